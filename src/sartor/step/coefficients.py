"""Free constants of a training step: what no datasheet and no kernel benchmark says, each with a physical meaning.

Kernels and links are calibrated elsewhere (``hardware.calibration``); here stands what a run adds to them. Defaults
are the starting values of the fit on published runs (``calibration/training.toml``), not measurements.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from sartor.cost.correction.training_calibration import packaged_training_table, training_constants
from sartor.errors import InputError
from sartor.hardware.catalog import gpu_names, load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.training import Recipe, TrainingJob
from sartor.step.trainers import TRAINERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCoefficients:
    """Constants of one trainer on one kind of device. Shares are of 1, times in seconds."""

    compute_factor: float = 1.0
    """Seconds of a layer's compute in a run over what its kernels take alone: kernels nobody lists, gaps between them,
    clocks under a lasting load."""
    throttle_share: float = 1.0
    """Share of the power limit's slowdown that products keep in a run: between them run kernels that draw less
    (see training.running)."""
    attention_factor: float = 1.0
    """Seconds of the trainer's fused attention over those of the newest kernel of its device, which tables hold."""
    launch_s: float = 4e-6
    """Host time for one kernel of an eager trainer (PyTorch dispatch and a launch take 3-6 us; recalled)."""
    checkpoint_s: float = 0.0
    """Time of one fully recomputed layer and microbatch under tensor parallelism that no kernel hides. Assumed cause,
    not measured: DeepSpeed keeps a part of a layer's input on each tensor-parallel rank (``partition_activations``) and
    gathers it first, the host waiting; without tensor parallelism there is nothing to gather, and runs show none of it.
    Off until fitted."""
    graph_launch_s: float = 1e-6
    """The same with CUDA graphs (about 1 us a node; recalled)."""
    network_factor: float = 1.0
    """Seconds of a collective in a run over those in a benchmark of it alone: unequal arrival, other traffic."""
    tp_overlap_share: float = 0.7
    """Share of tensor-parallel communication hidden where ``Trainer.tp_overlap`` is on: gathers and scatters go in
    ring pieces beside their product, the first piece cannot."""
    ep_overlap_share: float = 0.9
    """Share of expert-parallel exchange hidden behind another microbatch's compute where ``Trainer.ep_overlap`` is
    on and chunks interleave."""
    p2p_overlap_share: float = 1.0
    """Share of a chunk's compute a pipeline transfer may hide behind where interleaving leaves something to hide
    behind and ``Trainer.p2p_overlap`` is on."""
    dp_overlap_share: float = 0.9
    """Share of backward (and forward) compute that gradient (and parameter) traffic may run beside."""
    sm_contention: float = 0.1
    """Seconds compute loses per second of communication hidden behind it: collectives hold SMs (16-32 of 132) and
    memory bandwidth (recalled; the order of Rashidi et al. 2021, arXiv 2007.00156)."""
    bucket_bytes: float = 160e6
    """Gradients that are reduced together: Megatron's default of 40 million fp32 values (its
    ``ddp_bucket_size``; recalled)."""
    broadcast_s: float = 2e-3
    """Of each owner of whole tensors that it broadcasts after its update (``Trainer.broadcasts_shards``): launches
    and latencies of its many small messages, one owner after the other."""
    optimizer_factor: float = 1.0
    """Seconds of the optimizer step over its memory traffic's."""
    fixed_step_s: float = 5e-3
    """Of a step whatever its size: batch to the device, loss and norm to the host, logging, synchronisation."""
    jitter: float = 0.003
    """Standard deviation of a device's busy time, as a share: n devices wait for the slowest, ``sqrt(2 ln n)`` of it
    later (the expected maximum of n normal values)."""
    step_sigma: float = 0.06
    """Standard deviation of ln(measured/predicted) that all steps share beyond their kernels'. Starts at what one plan
    on the same devices moves by with the software release: 6% median (README of the development runs, 2026-11-21)."""

    def __post_init__(self) -> None:
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(name, getattr(self, name), "must be a share from 0 to 1")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "must be above 0")


_SHARES = ("throttle_share", "tp_overlap_share", "ep_overlap_share", "p2p_overlap_share", "dp_overlap_share")
_POSITIVE = ("compute_factor", "attention_factor", "network_factor", "bucket_bytes", "optimizer_factor")


def coefficients_for(job: TrainingJob, gpu: Gpu, table: JsonMap | None = None) -> TrainingCoefficients:
    """Constants for the job's trainer and precision on ``gpu``; ``table`` in place of the packaged fit.

    ``InputError`` names a constant nobody knows.
    """
    if gpu.accelerator is not None:
        return OF_A_CHIP
    known = {field.name for field in fields(TrainingCoefficients)}
    constants = training_constants(
        job.trainer.name,
        precision_class(job.recipe),
        gpu.generation,
        packaged_training_table() if table is None else table,
        experts=job.shape.moe_ffn is not None,
    )
    for name in constants:
        if name not in known:
            nearest = ", ".join(difflib.get_close_matches(name, known, 2))
            raise InputError("training constants", name, "is no constant of a training step", nearest)
    return TrainingCoefficients(**constants)


PRECISIONS = ("32bit", "16bit", "fp8", "fp4")


def check_constants(table: JsonMap, path: str) -> None:
    """Raise ``InputError`` for a constant that a file of one's own misspells."""
    known = [field.name for field in fields(TrainingCoefficients)]
    parts = [*TRAINERS, *{gpu.generation for gpu in map(load_gpu, gpu_names())}, *PRECISIONS]
    for section, values in table.items():
        for part in values if section != "provenance" else ():
            if isinstance(values[part], Mapping) and part not in parts:
                must = "is no trainer, generation or precision that constants can be of"
                raise InputError(f"{section}.{part}", path, must, ", ".join(difflib.get_close_matches(part, parts, 2)))
        for name in constant_names(values) if section != "provenance" else ():
            if name not in known:
                nearest = difflib.get_close_matches(name, known, 2) or known[:3]
                raise InputError(f"{section}: {name}", path, "is no constant of a training step", ", ".join(nearest))


def constant_names(values: object) -> Iterator[str]:
    """Names of the constants of a section and of those inside it."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            yield from constant_names(value)
        else:
            yield name


OF_A_CHIP = TrainingCoefficients(
    launch_s=0.0, graph_launch_s=0.0, sm_contention=0.0, fixed_step_s=0.0, jitter=0.0, broadcast_s=0.0, step_sigma=0.0
)
"""For a chip that does not exist yet: operators take what the template says, launches are free, and the interval is
that of its operators."""


def precision_class(recipe: Recipe) -> str:
    """``32bit``, ``16bit``, ``fp8`` or ``fp4``: what a section of constants may name."""
    bits = {Recipe.FP32: "32bit", Recipe.TF32: "32bit", Recipe.NVFP4: "fp4"}
    return bits.get(recipe, "16bit" if recipe in (Recipe.FP16, Recipe.BF16) else "fp8")
