"""Rates of a device: peak FLOP/s of a type, and the clock that its power limit leaves.

The peak rate of a data type, with a fallback for types that a device lacks.

Long runs under a power limit: how far the clock falls below that of short runs.

The power that GEMMs draw grows approximately with their FLOP rate and the fourth power of the clock: dynamic power is
proportional to clock x voltage^2, and near the top of the range voltage rises a little faster than the clock. So work
at a rate above the limit's rate slows by the fourth root of the ratio, and work below it does not. Evidence and
figures: docs/concepts/gemm.md, "Clock".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.cost.correction.calibration import Clock
from sartor.cost.correction.coefficients import PowerCoefficients
from sartor.hardware.gpu import Gpu
from sartor.operators import DType
from sartor.units import Floats

STAND_INS = {
    DType.FP16: (DType.BF16,),
    DType.BF16: (DType.FP16,),
    DType.FP8_BLOCK: (DType.FP8,),
    DType.MXFP8: (DType.FP8,),
    DType.MXFP4: (DType.NVFP4,),
    DType.INT8: (DType.FP8, DType.BF16, DType.FP16),
    DType.FP8: (DType.BF16, DType.FP16),
    DType.NVFP4: (DType.FP8, DType.BF16, DType.FP16),
    DType.INT4: (DType.INT8, DType.BF16, DType.FP16),
    DType.TF32: (DType.FP32,),
    DType.INT8_WO: (DType.BF16, DType.FP16),
    DType.INT4_WO: (DType.BF16, DType.FP16),
}
"""Types that a format is converted to or shares its units with, nearest first."""


def peak_flops_per_s(gpu: Gpu, dtype: DType) -> float:
    """Dense peak for ``dtype`` [FLOP/s]; a format the device lacks runs at the rate of the type it is converted to."""
    for candidate in (dtype, *STAND_INS.get(dtype, ()), DType.FP16, DType.BF16, DType.FP32):
        if candidate in gpu.peak_flops_per_s:
            return gpu.peak_flops_per_s[candidate]
    return max(gpu.peak_flops_per_s.values())


def as_run(dtype: DType, gpu: Gpu) -> DType:
    """The type as ``gpu`` runs it: without matrix units for fp8, weights are stored in 8 bits and widened to 16 (vLLM's
    documentation, "FP8 W8A8": Ampere and Turing run "as weight-only W8A16"; Intel's Xe2: ``fp8_gemm_w8a16``). Arc B60
    takes as long in fp8 as in bf16 from 256 rows on (median 0.98)."""
    widened = dtype is DType.FP8 and dtype not in gpu.peak_flops_per_s and gpu.accelerator is None
    return DType.INT8_WO if widened else dtype


def widened_note(dtype: DType, gpu: Gpu) -> str:
    """What is said of a type that ``as_run`` replaces."""
    runs = as_run(dtype, gpu).value
    return f"{gpu.name} has no matrix units for {dtype.value}: 8-bit weights are widened to 16 ({runs}), as in vLLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """What a power limit does to kernels of one type on one device; one of the first two is 0."""

    limit_flops_per_s: float = 0.0
    """FLOP rate at which a kernel running alone reaches the limit."""
    uniform: float = 0.0
    """Factor on every kernel's time, if only that is known."""
    kept: float = 1.0
    """Share of the slowdown that remains."""


def long_run(gpu: Gpu, dtype: DType, power: PowerCoefficients, throttle: float, clock: Clock) -> LongRun | None:
    """None where the clock does not fall: in short runs, and where ``throttle``, the slowdown fitted on a table's
    longest GEMMs, is 0 and nothing else is known (general cores, fits of long runs)."""
    if clock is Clock.BOOST:
        return None
    if power.step_flops_per_joule and _OF_16_BITS.get(dtype) == 1.0:
        limit = power.step_flops_per_joule * gpu.tdp_w
        return LongRun(uniform=max((peak_flops_per_s(gpu, dtype) / limit) ** 0.25, 1.0))
    if power.flops_per_joule and dtype in _OF_16_BITS:
        return LongRun(limit_flops_per_s=power.flops_per_joule * _OF_16_BITS[dtype] * gpu.tdp_w, kept=power.kept)
    return LongRun(uniform=1 + throttle, kept=power.kept) if throttle else None


def lasting_s(time_s: Floats, flops: Floats, run: LongRun | None) -> Floats:
    """The time in a long run of a kernel that takes ``time_s`` in a short one; never less."""
    if run is None:
        return time_s
    if run.uniform:
        return time_s * (1 + run.kept * (run.uniform - 1))
    longer = np.sqrt(time_s * np.sqrt(time_s * (flops / run.limit_flops_per_s)))
    return time_s + run.kept * np.maximum(longer - time_s, 0.0)


LONG_RUN_LOG_SIGMA = 0.08
"""Standard deviation of ln(measured / predicted) that the law adds to a GEMM's: with it 80% of the sustained over
short ratios of power-metered tables lie inside (0.06 to 0.13 of five pairs on B200, GB200, H200; 2026-11-21)."""

_NARROW = 2.0
"""FLOPs per joule at the limit of GEMMs with 8 or fewer bits relative to 16, B200 to GB300, H200 and RTX PRO 6000
(longest GEMMs of data/measured/gemm_lowbit.parquet against their median: fp8 1.3 to 2.4, nvfp4 1.6 to 2.4)."""

_OF_16_BITS = {
    DType.TF32: 0.5,
    DType.FP16: 1.0,
    DType.BF16: 1.0,
    DType.INT8_WO: 1.0,
    DType.INT4_WO: 1.0,
    DType.FP8: _NARROW,
    DType.FP8_BLOCK: _NARROW,
    DType.MXFP8: _NARROW,
    DType.INT8: _NARROW,
    DType.NVFP4: _NARROW,
    DType.MXFP4: _NARROW,
    DType.INT4: _NARROW,
}
"""FLOPs per joule relative to 16-bit GEMMs, for types that run on tensor cores."""
