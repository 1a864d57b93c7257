"""What is known of a training step: seconds of blocks and of the step, bytes of a device; arrays are plans."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Source
from sartor.hardware.cluster import Cluster
from sartor.operators import DType
from sartor.units import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Seconds of one block (a kind of layer, the embedding or the head) on one device for one microbatch.

    Communication is what the collective takes by itself; what is hidden behind compute is the step's business.
    """

    name: str
    forward_s: Floats
    """Compute of the forward pass."""
    dgrad_s: Floats
    """Compute of backward that the layer below waits for (attention and memory-bound kernels included)."""
    wgrad_s: Floats
    """Compute of weight gradients, which can wait (zero-bubble schedules)."""
    tp_forward_s: Floats = 0.0
    tp_backward_s: Floats = 0.0
    ep_forward_s: Floats = 0.0
    ep_backward_s: Floats = 0.0
    cp_forward_s: Floats = 0.0
    """Context-parallel exchange that does not hide behind attention."""
    cp_backward_s: Floats = 0.0
    selective_s: Floats = 0.0
    """Extra compute of selective recomputation: the attention core again, with what it exchanges."""
    full_s: Floats = 0.0
    """Extra compute and communication of full recomputation."""
    tp_beside_s: Floats = 0.0
    """Part of ``tp_backward_s`` that Megatron runs beside products that do not wait for it: the input gathered again
    beside the input gradient, the reduction of the input gradient beside the weight gradient."""
    products_forward_s: Floats = 0.0
    """Part of ``forward_s``: products next to tensor-parallel collectives, which these may run beside in pieces."""
    products_backward_s: Floats = 0.0
    """The same of ``dgrad_s`` and ``wgrad_s``."""
    kernels: Floats = 0.0
    """Launches forward and backward: what an eager host must keep up with."""
    log_sigma: Floats = 0.0
    flops: Floats = 0.0
    """Product FLOPs forward and backward, recomputation not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """A step as those see it who change a shape: the part that its operators take, and the rest that stays.

    What a change of the operators does to the step follows at once for a million shapes; the rest (gradient traffic
    that is seen, optimizer, start-up) is taken as it is, which shapes of equal size leave it.
    """

    busy_s: float
    """Of the step: seconds that grow with the operators of a microbatch, and the bubble with them."""
    step_s: float
    low_s: float
    high_s: float

    def after(self, ratio: Floats) -> Floats:
        """Seconds of the step when a microbatch's operators take ``ratio`` times as long."""
        return self.step_s + (ratio - 1.0) * self.busy_s

    def speedup(self, of_operators: Floats) -> Floats:
        """Of the step, when that of the operators is given."""
        return self.step_s / self.after(1.0 / of_operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """A step's predicted seconds and what they are made of; the parts add up to ``step_s``."""

    step_s: Floats
    log_sigma: Floats
    compute_s: Floats
    """Busy time of the slowest stage: its microbatches' compute, recomputation included."""
    tp_s: Floats
    pp_bubble_s: Floats
    pp_transfer_s: Floats
    dp_exposed_s: Floats
    ep_s: Floats
    cp_s: Floats
    optimizer_s: Floats
    overhead_s: Floats
    """Host launches that compute does not hide, and other fixed costs of a step."""
    model_flops: Floats
    """Product FLOPs of one step over all devices, recomputation not counted, attention by its mask."""
    tokens_per_s_per_device: Floats
    mfu: Floats
    """``model_flops`` per second and device over the dense peak of the recipe's dtype."""
    imbalance_s: Floats = 0.0
    """No part of ``step_s``: busy seconds of the slowest stage beyond the mean of all, the most that placing layers
    on stages unevenly can save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of the fullest device at its fullest moment, part by part: theory, then allocated, then reserved."""

    param_bytes: Floats
    grad_bytes: Floats
    optimizer_bytes: Floats
    stash_bytes: Floats
    """Activations kept for backward, all microbatches in flight."""
    workspace_bytes: Floats
    """Peak of what is not kept: logits and loss, the layer at work, gathered parameters, communication buffers."""
    allocated_bytes: Floats
    """Their sum: what the framework's allocator has handed out at the peak."""
    reserved_bytes: Floats
    """With fragmentation: what the allocator holds."""
    device_bytes: Floats
    """With CUDA context and libraries: what nvidia-smi shows."""
    stage: Floats = 0
    """Pipeline rank that is fullest."""


def step_source(cluster: Cluster, dtype: DType, own: Calibration | None) -> Source:
    """Calibrated where the device's own products and attention are, as they make most of a step."""
    known = [own if own and own.gpu == gpu.name else load_calibration(gpu, dtype) for gpu in cluster.gpus]
    both = {f"gemm.{dtype.value}", "attention"}
    return Source.CALIBRATED if all(both <= each.calibrated for each in known) else Source.ANALYTIC
