"""A device's calibration as its kernels behave inside a training step instead of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import PowerCoefficients
from sartor.cost.cost import Cost
from sartor.cost.price import Estimate, total_s
from sartor.model.lower.setting import Kernels
from sartor.model.shape import TransformerShape
from sartor.operators import Collective, Operator
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.results import WholeStep
from sartor.units import remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class InRun:
    """A device in a training run: its kernels as they run there, the trainer's kernel choices, and the step that a
    microbatch is part of."""

    calibration: Calibration
    kernels: Kernels
    whole: WholeStep
    compute_factors: tuple[float, ...]
    """By block of the model, ``block_seconds.compute_factors``."""
    step_with: Callable[[TransformerShape, int | None], float | None]
    """Seconds of the step with another shape, whose layers are placed anew on the stages, and another microbatch size
    (None: the same); None where it cannot run."""

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
    return _in_a_run(calibration, constants.throttle_share, constants.attention_factor)


@remembered
def _in_a_run(calibration: Calibration, share: float, factor: float) -> Calibration:
    power = PowerCoefficients(kept=share)
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
