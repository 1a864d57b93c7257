"""Free constants of a training step that no datasheet or benchmark gives, and kernels as they behave inside it.

Kernels and links are calibrated elsewhere (``hardware.calibration``); these constants are what a run adds to them.
Defaults are starting values of the fit on published runs (``calibration/training.toml``), not measurements.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.calibration_file import packaged_training_table, training_constants
from sartor.cost.correction.coefficients import PowerCoefficients
from sartor.cost.cost import Cost
from sartor.cost.price import Estimate, total_s
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.lower.setting import Kernels
from sartor.model.shape import TransformerShape
from sartor.model.training import Recipe, TrainingJob
from sartor.operators import Collective, Operator
from sartor.step.results import WholeStep
from sartor.step.trainers import TRAINERS
from sartor.units import Floats, Ints, remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCoefficients:
    """Constants of one trainer on one kind of device. Shares are from 0 to 1, times in seconds."""

    compute_factor: float = 1.0
    """Seconds of a layer's compute in a run over its kernels alone: unmodelled kernels, gaps between kernels, clocks
    under sustained load."""
    throttle_share: float = 1.0
    """Share of the power limit's slowdown of GEMMs that remains in a run: kernels that draw less power run between them
    (see training.running)."""
    flops_per_joule: float = 0.0
    """16-bit FLOPs per joule of the power limit at which the clock that all kernels of a step share begins to fall, in
    place of ``throttle_share`` where tables of short runs do not show it (docs/concepts/gemm.md, "Clock"); else 0."""
    attention_factor: float = 1.0
    """Seconds of the trainer's fused attention over those of the device's newest kernel, which the tables measure."""
    launch_s: float = 4e-6
    """Host time for one kernel of an eager trainer (PyTorch dispatch and a launch take 3-6 us; recalled)."""
    checkpoint_s: float = 0.0
    """Exposed time of one fully recomputed layer and microbatch under tensor parallelism. Assumed cause, not measured:
    DeepSpeed splits a layer's input over tensor-parallel ranks (``partition_activations``) and the host waits while it
    is gathered; without tensor parallelism runs show no such time. Off until fitted."""
    graph_launch_s: float = 1e-6
    """The same with CUDA graphs (about 1 us a node; recalled)."""
    network_factor: float = 1.0
    """Seconds of a collective in a run over those in a benchmark of it alone: unequal arrival, other traffic."""
    tp_overlap_share: float = 0.7
    """Share of tensor-parallel communication hidden when ``Trainer.tp_overlap`` is on: gathers and scatters run as ring
    pieces beside their GEMM; the first piece cannot be hidden."""
    ep_overlap_share: float = 0.9
    """Share of the expert-parallel exchange hidden behind another microbatch's compute when ``Trainer.ep_overlap`` is
    on and chunks interleave."""
    p2p_overlap_share: float = 1.0
    """Share of a chunk's compute that can hide a pipeline transfer when chunks interleave and ``Trainer.p2p_overlap``
    is on."""
    dp_overlap_share: float = 0.9
    """Share of backward (forward) compute that gradient (parameter) traffic can run beside."""
    sm_contention: float = 0.1
    """Compute seconds lost per second of hidden communication: collectives occupy SMs (16-32 of 132) and memory
    bandwidth (recalled; the order of Rashidi et al. 2021, arXiv 2007.00156)."""
    bucket_bytes: float = 160e6
    """Gradients that are reduced together: Megatron's default of 40 million fp32 values (its
    ``ddp_bucket_size``; recalled)."""
    broadcast_s: float = 2e-3
    """Seconds per owner of whole tensors that broadcasts them after its update (``Trainer.broadcasts_shards``):
    launches and latencies of many small messages, one owner after the other."""
    optimizer_factor: float = 1.0
    """Seconds of the optimizer step over the time of its memory traffic."""
    fixed_step_s: float = 5e-3
    """Fixed seconds per step: batch to the device, loss and norm to the host, logging, synchronization."""
    jitter: float = 0.003
    """Relative standard deviation of a device's busy time: n devices wait for the slowest, ``sqrt(2 ln n)`` standard
    deviations later (the expected maximum of n normal values)."""
    step_sigma: float = 0.06
    """Standard deviation of ln(measured/predicted) shared by all steps, besides their kernels'. Starts at the change of
    one plan on the same devices between software releases: 6% median (README of the development runs, 2026-11-21)."""

    def __post_init__(self) -> None:
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(name, getattr(self, name), "must be a share from 0 to 1")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "must be above 0")

    def waiting(self, devices: Ints) -> Floats:
        """Seconds of waiting for the slowest of ``devices``, as a share of the busy time (``jitter``)."""
        return np.asarray(self.jitter * np.sqrt(2 * np.log(devices)))


_SHARES = ("throttle_share", "tp_overlap_share", "ep_overlap_share", "p2p_overlap_share", "dp_overlap_share")
_POSITIVE = ("compute_factor", "attention_factor", "network_factor", "bucket_bytes", "optimizer_factor")


def coefficients_for(job: TrainingJob, gpu: Gpu, table: JsonMap | None = None) -> TrainingCoefficients:
    """Constants for the job's trainer and precision on ``gpu``; ``table`` replaces the packaged fit.

    Raises ``InputError`` for an unknown constant.
    """
    coefficients = _fitted(job, gpu.generation, table)
    return coefficients if gpu.accelerator is None else _on_a_chip(coefficients, job, gpu.accelerator)


def _on_a_chip(coefficients: TrainingCoefficients, job: TrainingJob, chip: Accelerator) -> TrainingCoefficients:
    """Constants on a chip of the template: what a run adds in lockstep is part of the chip's description
    (``run_factor``), other trainers keep what was fitted. A chip's program is compiled ahead and its links need no
    core, so launches and hidden collectives are free; the interval is the operators'."""
    constants = replace(coefficients, **dict.fromkeys(_NOT_ON_A_CHIP, 0.0))
    return replace(constants, compute_factor=chip.run_factor, network_factor=1.0) if job.trainer.lockstep else constants


_NOT_ON_A_CHIP = (
    "launch_s",
    "graph_launch_s",
    "sm_contention",
    "broadcast_s",
    "step_sigma",
)


def _fitted(job: TrainingJob, generation: str, table: JsonMap | None) -> TrainingCoefficients:
    names = {field.name for field in fields(TrainingCoefficients)}
    constants = training_constants(
        job.trainer.name,
        _precision_class(job.recipe),
        generation,
        packaged_training_table() if table is None else table,
        experts=job.shape.moe_ffn is not None,
    )
    for name in constants:
        if name not in names:
            nearest = ", ".join(difflib.get_close_matches(name, names, 2))
            raise InputError("training constants", name, "is not a constant of a training step", nearest)
    fitted = TrainingCoefficients(**constants)
    return replace(fitted, attention_factor=fitted.attention_factor * job.trainer.attention_factor)


PRECISIONS = ("32bit", "16bit", "fp8", "fp4")


def check_constants(table: JsonMap, path: str) -> None:
    """Raise ``InputError`` for a misspelled constant in a user's file."""
    names = [field.name for field in fields(TrainingCoefficients)]
    parts = [*TRAINERS, *{gpu.generation for gpu in map(load_gpu, GPUS.names())}, *PRECISIONS]
    for section, values in table.items():
        for part in values if section != "provenance" else ():
            if isinstance(values[part], Mapping) and part not in parts:
                must = "must be a trainer, a generation or a precision"
                raise InputError(f"{section}.{part}", path, must, ", ".join(difflib.get_close_matches(part, parts, 2)))
        for name in _constant_names(values) if section != "provenance" else ():
            if name not in names:
                nearest = difflib.get_close_matches(name, names, 2) or names[:3]
                raise InputError(f"{section}: {name}", path, "is not a constant of a training step", ", ".join(nearest))


def _constant_names(values: object) -> Iterator[str]:
    """Names of the constants in a section and its subsections."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _constant_names(value)
        else:
            yield name


def _precision_class(recipe: Recipe) -> str:
    """``32bit``, ``16bit``, ``fp8`` or ``fp4``: the precisions that a section of constants can name."""
    bits = {Recipe.FP32: "32bit", Recipe.TF32: "32bit", Recipe.NVFP4: "fp4", Recipe.MXFP4: "fp4"}
    return bits.get(recipe, "16bit" if recipe in (Recipe.FP16, Recipe.BF16) else "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class InRun:
    """A device in a training run: its kernels as they run there, the trainer's kernel choices, and the step that a
    microbatch is part of."""

    calibration: Calibration
    kernels: Kernels
    whole: WholeStep
    compute_factors: tuple[float, ...]
    """By block of the model, ``block_seconds.compute_factors``."""
    step_with: Callable[[TransformerShape | None, Mapping[str, int]], float | None]
    """Seconds of the step with another shape (None: the same), whose layers are placed anew on the stages, or with
    other values of axes of the plan on as many devices, what was searched being searched again; None where that cannot
    run or fit."""
    searched: frozenset[str] = frozenset()
    """Axes of the plan that a search chose: to change one of them alone gains nothing."""

    def in_step(self, estimate: Estimate) -> Estimate:
        """A microbatch's estimate with every block's compute as the step counts it, so that the ratio of two shapes is
        that of the step's busy time."""
        parts = zip(estimate.graph.operators, estimate.costs, strict=True)
        costs = tuple(self._in_step(operator, cost) for operator, cost in parts)
        return replace(estimate, costs=costs, time_s=total_s(estimate.graph.operators, costs))

    def _in_step(self, operator: Operator, cost: Cost) -> Cost:
        factor = 1.0 if isinstance(operator, Collective) else self.compute_factors[operator.block]
        return replace(cost, time_s=cost.time_s * factor)


def in_a_run(calibration: Calibration, constants: TrainingCoefficients) -> Calibration:
    """The calibration with ``throttle_share`` of the power limit's slowdown and attention times ``attention_factor``.

    A benchmark that repeats one GEMM lowers the clock by that GEMM's power draw. In a step all kernels share one clock,
    so all slow down as much as the longest GEMMs did, less what lighter kernels in between save. Attention tables
    measure the newest kernels; a trainer may use a generation older.

    GEMMs in fp32 keep the host's launches of their tables: the constants were fitted with them (eager runs without
    them: 10.3% off for 9.7, 7.9 for 4.8; ../shared/data/end_to_end/training.csv, 2026-11-27).
    """
    c = constants
    return _in_a_run(calibration, c.throttle_share, c.flops_per_joule, c.attention_factor)


@remembered
def _in_a_run(calibration: Calibration, share: float, per_joule: float, factor: float) -> Calibration:
    power = PowerCoefficients(kept=share, step_flops_per_joule=per_joule)
    efficiency = tuple((width, rate / factor) for width, rate in _padded(calibration.attention.efficiency))
    attention = replace(calibration.attention, efficiency=efficiency)
    return replace(calibration, power=power, attention=attention, host_launches=True)


def _padded(efficiency: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Attention efficiency by head dimension, where no kernel is slower than a wider one run on padded heads.

    Tables measure the kernels that serving frameworks choose: for 192 on Blackwell an older generation's kernel (0.11
    of peak, against 0.60 for 128 and 0.54 for 256). cuDNN, which trainers call, takes any multiple of 8.
    """
    return tuple(
        (width, max(rate * width / wide for wide, rate in efficiency if wide >= width)) for width, _ in efficiency
    )
