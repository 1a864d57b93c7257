"""What is known of a device's kernels, as they run inside a training step instead of a benchmark."""

from __future__ import annotations

from dataclasses import replace

from sartor.hardware.calibration import Calibration
from sartor.training.coefficients import TrainingCoefficients


def in_a_run(calibration: Calibration, constants: TrainingCoefficients) -> Calibration:
    """The calibration with ``throttle_share`` of the power limit's slowdown and attention ``attention_factor`` as slow.

    A benchmark that repeats one product sees the whole fall of the clock; in a step products alternate with kernels
    that draw less. Attention tables are of the newest kernels; a trainer's may be a generation older.
    """
    share, factor = constants.throttle_share, constants.attention_factor
    if share == 1 and factor == 1:
        return calibration
    gemm = {dtype: replace(each, throttle=each.throttle * share) for dtype, each in calibration.gemm.items()}
    efficiency = tuple((width, rate / factor) for width, rate in calibration.attention.efficiency)
    return replace(calibration, gemm=gemm, attention=replace(calibration.attention, efficiency=efficiency))
