"""Results for a training step: seconds of blocks and of the step, bytes of a device; arrays are plans. What must hold
of them is checked where ``SARTOR_DEBUG=1`` is set (the tests set it)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Source
from sartor.hardware.cluster import Cluster
from sartor.operators import DType
from sartor.units import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Seconds of one block (a kind of layer, the embedding or the head) on one device for one microbatch.

    Communication times are of the collective alone; overlap with compute is applied later, in the step.
    """

    name: str
    forward_s: Floats
    """Compute of the forward pass."""
    dgrad_s: Floats
    """Compute of backward that the previous layer waits for (attention and memory-bound kernels included)."""
    wgrad_s: Floats
    """Compute of weight gradients, which can wait (zero-bubble schedules)."""
    tp_forward_s: Floats = 0.0
    tp_backward_s: Floats = 0.0
    ep_forward_s: Floats = 0.0
    ep_backward_s: Floats = 0.0
    cp_forward_s: Floats = 0.0
    """Context-parallel exchange that attention does not hide."""
    cp_backward_s: Floats = 0.0
    selective_s: Floats = 0.0
    """Extra compute of selective recomputation: the attention core again, with its communication."""
    full_s: Floats = 0.0
    """Extra compute and communication of full recomputation."""
    tp_beside_s: Floats = 0.0
    """Part of ``tp_backward_s`` that Megatron overlaps with independent GEMMs: re-gathering the input with the input
    gradient, and reducing the input gradient with the weight gradient."""
    products_forward_s: Floats = 0.0
    """Part of ``forward_s``: GEMMs next to tensor-parallel collectives, which can overlap with them in pieces."""
    products_backward_s: Floats = 0.0
    """The same of ``dgrad_s`` and ``wgrad_s``."""
    kernels: Floats = 0.0
    """Kernel launches forward and backward, which an eager host must keep up with."""
    log_sigma: Floats = 0.0
    flops: Floats = 0.0
    """FLOPs of matrix multiplications forward and backward (attention's as its kernel computes it: a fused backward
    repeats the scores), without layers computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """A step as a change of model shape sees it: the part that its operators take, and the rest, which stays.

    The effect of an operator change on the step then follows at once for a million shapes; the rest (exposed gradient
    traffic, optimizer, start-up) is kept fixed, which is right for shapes of equal size.
    """

    busy_s: float
    """Seconds of the step that scale with a microbatch's operators (``InRun.in_step``): pipeline bubble and waiting
    for the slowest device included."""
    step_s: float
    low_s: float
    high_s: float

    def after(self, ratio: Floats) -> Floats:
        """Seconds of the step if a microbatch's operators take ``ratio`` times as long."""
        return self.step_s + (ratio - 1.0) * self.busy_s

    def speedup(self, of_operators: Floats) -> Floats:
        """Speedup of the step from the speedup of the operators."""
        return self.step_s / self.after(1.0 / of_operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """A step's predicted seconds and their parts, which add up to ``step_s``."""

    step_s: Floats
    log_sigma: Floats
    parts: Mapping[str, Floats]
    """Seconds by key: `sartor.step.mechanisms.parts`."""
    model_flops: Floats
    """FLOPs of matrix multiplications in one step over all devices, as ``BlockTimes.flops`` counts them."""
    tokens_per_s_per_device: Floats
    mfu: Floats
    """``model_flops`` per second and device over the dense peak of the recipe's dtype, or of a traced model's GEMMs."""
    imbalance_s: Floats = 0.0
    """Not part of ``step_s``: busy seconds of the slowest stage beyond the mean, the most that a better placement of
    layers on stages can save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of the fullest device at its peak, part by part."""

    param_bytes: Floats
    grad_bytes: Floats
    optimizer_bytes: Floats
    stash_bytes: Floats
    """Activations kept for backward, all microbatches in flight."""
    workspace_bytes: Floats
    """Peak of temporaries: logits and loss, the active layer, gathered parameters, communication buffers."""
    allocated_bytes: Floats
    """Their sum: memory allocated to tensors at the peak."""
    reserved_bytes: Floats
    """With fragmentation and idle blocks: memory reserved by the allocator where it has room. With CUDA context and
    libraries it is what nvidia-smi shows."""
    device_bytes: Floats
    """What must fit: tensors, gaps that remain when the allocator has freed idle blocks, CUDA context and libraries."""
    stage: Floats = 0
    """The fullest pipeline rank."""


def step_source(cluster: Cluster, dtype: DType, calibration: Calibration | None) -> Source:
    """CALIBRATED if both GEMMs and attention of every device are, as they take most of a step."""
    calibrations = [
        calibration if calibration and calibration.gpu == gpu.name else load_calibration(gpu) for gpu in cluster.gpus
    ]
    both = {f"gemm.{dtype.value}", "attention"}
    return Source.CALIBRATED if all(both <= calibrated.calibrated for calibrated in calibrations) else Source.ANALYTIC


ROUNDING = 1e-9
"""Relative difference that rounding may leave."""


def _checking() -> bool:
    """Whether invariants are checked."""
    return os.environ.get("SARTOR_DEBUG", "") not in ("", "0")


def check_sum(what: str, parts: Iterable[Floats], whole: Floats) -> None:
    """The parts add up to the whole."""
    if _checking():
        total = sum(np.asarray(part) for part in parts)
        apart = ~np.isclose(total, whole, rtol=ROUNDING, atol=0.0, equal_nan=True)
        assert not apart.any(), f"internal error: the parts of {what} don't add up: {total} is not {whole}"


def check_none_negative(what: str, parts: Mapping[str, Floats], whole: Floats) -> None:
    """No part is below 0, but for rounding."""
    if _checking():
        for name, seconds in parts.items():
            below = np.asarray(seconds) < -ROUNDING * np.abs(whole)
            assert not below.any(), f"internal error: {name} of {what} is negative: {np.min(seconds)}"
