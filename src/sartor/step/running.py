"""What is known of a device's kernels, as they run inside a training step instead of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import PowerCoefficients
from sartor.model.lower.kernels import Kernels
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.results import WholeStep


@dataclass(frozen=True, slots=True, kw_only=True)
class InRun:
    """A device at work in a training run: its kernels as they run there, the trainer's habits, and the step that a
    microbatch is part of."""

    calibration: Calibration
    kernels: Kernels
    whole: WholeStep


def in_a_run(calibration: Calibration, constants: TrainingCoefficients) -> Calibration:
    """The calibration with ``throttle_share`` of the power limit's slowdown and attention ``attention_factor`` as slow.

    A benchmark that repeats one product sees the clock fall as that product draws power; in a step all kernels share
    one clock, so all take as much longer as the table's longest products did, less what kernels between them spare.
    Attention tables are of the newest kernels; a trainer's may be a generation older.
    """
    share, factor = constants.throttle_share, constants.attention_factor
    power = PowerCoefficients(kept=share)
    efficiency = tuple((width, rate / factor) for width, rate in _padded(calibration.attention.efficiency))
    return replace(calibration, power=power, attention=replace(calibration.attention, efficiency=efficiency))


def _padded(efficiency: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Share of the peak by head dimension, where no kernel is slower than a wider one run on padded heads.

    Tables hold what serving frameworks choose: at 192 on Blackwell a kernel of an older generation (0.11 of the peak
    where 128 has 0.60 and 256 has 0.54). cuDNN, which trainers call, takes any multiple of 8.
    """
    return tuple(
        (width, max(rate * width / wide for wide, rate in efficiency if wide >= width)) for width, _ in efficiency
    )
