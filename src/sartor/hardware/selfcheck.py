"""Check that the numbers of a datasheet agree: a peak is cores x clock x FLOPs per core and cycle.

The most common error is a peak *with structured sparsity*, twice the dense one; the message says so. For generations
that are not in ``flops_per_cycle.toml``, only ratios between types are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.operators import DType

TOLERANCE = 0.035
"""Datasheets round peaks to three digits and state them at clocks that differ by a few percent."""

MAX_OVER_BOOST = 1.2
"""Highest clock over the clock of the stated peaks: 1.16 on the H100 NVL, 1.00 to 1.08 elsewhere."""

RIDGE_RANGE = (10.0, 800.0)
"""Valid FLOP/byte of the widest matrix type of 16 bits or more: H20 has 37, TPU v6e 560; a sparse peak is outside."""

HOST_RIDGE_RANGE = (0.5, 800.0)
"""The same for a host's cores (generation ``cpu``): an old desktop has 3, cores with matrix units a few hundred."""


def check_gpu(gpu: Gpu) -> Gpu:
    """The device itself, or ``InputError`` with its first contradiction."""
    for error in contradictions(gpu):
        raise error
    return gpu


def contradictions(gpu: Gpu) -> Iterator[InputError]:
    """Every pair of stated numbers that cannot both be true."""
    yield from _clocks_apart(gpu)
    yield from _peaks_off_the_clock(gpu)
    yield from _narrow_slower_than_wide(gpu)
    yield from _fp8_off_bf16(gpu)
    yield from _ridge_out_of_range(gpu)


def flops_per_sm_cycle(gpu: Gpu) -> Mapping[DType, float]:
    """Dense FLOPs of one SM (CU, core, matrix engine) per cycle, by type; empty for unknown generations."""
    key = f"{gpu.generation}/{gpu.compute_capability}"
    table = flops_per_cycle().get(key, flops_per_cycle().get(gpu.generation, {}))
    vector = (DType.FP64, DType.FP32)
    return {
        dtype: rate
        * (1.0 if dtype in vector else gpu.tensor_core_rate)
        * (gpu.fp32_accumulate_rate if dtype in _SUMMED_IN_FP32 else 1.0)
        for dtype, rate in table.items()
    }


def _clocks_apart(gpu: Gpu) -> Iterator[InputError]:
    boost, highest = gpu.boost_clock_hz / 1e6, gpu.max_clock_hz / 1e6
    if highest and not boost <= highest <= MAX_OVER_BOOST * boost:
        must = f"the highest clock lies between the boost clock and {MAX_OVER_BOOST} times it, {boost:g} MHz"
        yield InputError("max_clock_mhz", highest, must, f"{boost:g}")


def _peaks_off_the_clock(gpu: Gpu) -> Iterator[InputError]:
    low_hz, high_hz = gpu.boost_clock_hz, max(gpu.boost_clock_hz, gpu.max_clock_hz)
    for dtype, rate in flops_per_sm_cycle(gpu).items():
        peak = gpu.peak_flops_per_s.get(dtype)
        if peak is None:
            continue
        low, high = (gpu.num_sms * hz * rate for hz in (low_hz, high_hz))
        if low * (1 - TOLERANCE) <= peak <= high * (1 + TOLERANCE):
            continue
        field, tflops, nearest = f"peak_dense_tflops.{dtype.value}", peak / 1e12, f"{low / 1e12:.4g}"
        cores = f"{gpu.num_sms} SMs x {low_hz / 1e6:g} MHz x {rate:g} FLOP per cycle"
        if 2 * low * (1 - TOLERANCE) <= peak <= 2 * high * (1 + TOLERANCE):
            yield InputError(field, tflops, f"is twice {cores}, a peak with sparsity; state the dense one", nearest)
        else:
            yield InputError(field, tflops, f"must agree with {cores} of {gpu.generation}", nearest)


def _narrow_slower_than_wide(gpu: Gpu) -> Iterator[InputError]:
    stated = [dtype for dtype in _WIDE_TO_NARROW if dtype in gpu.peak_flops_per_s]
    for wide, narrow in pairwise(stated):
        if gpu.peak_flops_per_s[narrow] < gpu.peak_flops_per_s[wide] * (1 - TOLERANCE):
            yield InputError(
                f"peak_dense_tflops.{narrow.value}",
                gpu.peak_flops_per_s[narrow] / 1e12,
                f"a narrower type cannot be slower than {wide.value}",
                f"{gpu.peak_flops_per_s[wide] / 1e12:.4g}",
            )


def _fp8_off_bf16(gpu: Gpu) -> Iterator[InputError]:
    """FP8 must run at the 16-bit rate (Gaudi 3, Trainium 1) or at twice it, as dense FP8 does on all products."""
    fp8, bf16 = gpu.peak_flops_per_s.get(DType.FP8), gpu.peak_flops_per_s.get(DType.BF16)
    if fp8 and bf16 and not any(abs(fp8 / bf16 - times) <= times * TOLERANCE for times in (1, 2)):
        yield InputError(
            "peak_dense_tflops.fp8",
            fp8 / 1e12,
            "a dense fp8 peak is once or twice the bf16 one"
            + ("; four times it is a peak with sparsity" if abs(fp8 / bf16 - 4) < 0.2 else ""),
            f"{2 * bf16 / 1e12:.4g}",
        )


def _ridge_out_of_range(gpu: Gpu) -> Iterator[InputError]:
    low, high = HOST_RIDGE_RANGE if gpu.generation == "cpu" else RIDGE_RANGE
    ridge = gpu.ridge_flops_per_byte(gpu.default_dtype)
    if not low <= ridge <= high:
        yield InputError(
            "hbm_gb_per_s",
            round(gpu.hbm_bytes_per_s / 1e9, 3),
            f"gives a ridge of {ridge:.3g} FLOP/byte with the {gpu.default_dtype.value} peak, "
            f"outside {low:g} to {high:g} of all devices known; check units and sparsity",
        )


_SUMMED_IN_FP32 = (DType.TF32, DType.BF16, DType.FP16, DType.FP8, DType.MXFP8)
_WIDE_TO_NARROW = (DType.FP32, DType.TF32, DType.FP16, DType.FP8, DType.NVFP4)


@cache
def flops_per_cycle() -> Mapping[str, Mapping[DType, float]]:
    """Dense FLOPs per SM and cycle (2 per multiply-add), by generation or generation/compute capability."""
    table = packaged_toml("hardware", "flops_per_cycle.toml")
    return {key: {DType(name): float(rate) for name, rate in row.items()} for key, row in table.items()}
