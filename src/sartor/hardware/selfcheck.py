"""Check that the numbers of a datasheet agree: a peak is cores x clock x FLOPs per core and cycle.

The commonest error is a peak *with structured sparsity*, twice the dense one; the message says so. For generations that
are not in ``FLOPS_PER_SM_CYCLE``, only ratios between types are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.operators import DType

TOLERANCE = 0.035
"""Datasheets round peaks to three digits and state them at clocks that differ by a few percent."""

MAX_OVER_BOOST = 1.2
"""Highest clock over the clock of the stated peaks: 1.16 on the H100 NVL, 1.00 to 1.08 elsewhere."""

RIDGE_RANGE = (10.0, 800.0)
"""FLOP/byte of the widest matrix type of 16 bits or more: H20 has 37, TPU v6e 560; a sparse peak leaves it."""

HOST_RIDGE_RANGE = (0.5, 800.0)
"""The same of a host's cores (generation ``cpu``): an old desktop has 3, cores with matrix units some hundreds."""


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
    table = FLOPS_PER_SM_CYCLE.get(key, FLOPS_PER_SM_CYCLE.get(gpu.generation, {}))
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
    """FP8 runs at the 16-bit rate (Gaudi 3, Trainium 1) or at twice it; nothing sold does anything else dense."""
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


def _rates(**by_name: float) -> Mapping[DType, float]:
    return MappingProxyType({DType(name): float(rate) for name, rate in by_name.items()})


# Dense FLOPs per SM and cycle (2 per multiply-add). Key: generation, or generation/compute capability.
FLOPS_PER_SM_CYCLE: Mapping[str, Mapping[DType, float]] = MappingProxyType(
    {
        # NVIDIA Tesla P100 whitepaper, 2016 (64 FP32 cores, FP16 at twice); P4 datasheet, 2016 (128 cores, DP4A)
        "pascal/6.0": _rates(fp64=64, fp32=128, fp16=256),
        "pascal/6.1": _rates(fp32=256, int8=1024),
        # NVIDIA Tesla V100 whitepaper, 2017: 8 tensor cores x 64 FMA
        "volta": _rates(fp64=64, fp32=128, fp16=1024),
        # NVIDIA Turing whitepaper, 2018
        "turing": _rates(fp32=128, fp16=1024, int8=2048, int4=4096),
        # NVIDIA A100 whitepaper, 2020, table 2: 4 tensor cores x 256 FMA; FP64 through the tensor cores
        "ampere/8.0": _rates(fp64=128, fp32=128, tf32=1024, bf16=2048, fp16=2048, int8=4096, int4=8192),
        # NVIDIA GA102 whitepaper, 2020
        "ampere/8.6": _rates(fp32=256, tf32=512, bf16=1024, fp16=1024, int8=2048, int4=4096),
        # NVIDIA Ada whitepaper, 2022
        "ada": _rates(fp32=256, tf32=512, bf16=1024, fp16=1024, fp8=2048, int8=2048, int4=4096),
        # NVIDIA H100 whitepaper, 2022: 4 tensor cores x 512 FMA
        "hopper": _rates(fp64=256, fp32=256, tf32=2048, bf16=4096, fp16=4096, fp8=8192, int8=8192),
        # NVIDIA Blackwell architecture brief and HGX B200 datasheet, 2024; B300 (10.3) trades FP64 and INT8 for FP4
        "blackwell/10.0": _rates(
            fp64=128,
            fp32=256,
            tf32=4096,
            bf16=8192,
            fp16=8192,
            fp8=16384,
            mxfp8=16384,
            int8=16384,
            nvfp4=32768,
            mxfp4=32768,
        ),
        "blackwell/10.3": _rates(
            fp32=256, tf32=4096, bf16=8192, fp16=8192, fp8=16384, mxfp8=16384, nvfp4=49152, mxfp4=32768
        ),
        # NVIDIA RTX Blackwell whitepaper, 2025
        "blackwell_rtx": _rates(
            fp32=256, tf32=512, bf16=1024, fp16=1024, fp8=2048, mxfp8=2048, int8=2048, nvfp4=4096, mxfp4=4096
        ),
        # AMD CDNA whitepapers 2020 (CDNA), 2021 (CDNA 2), 2023 (CDNA 3), 2025 (CDNA 4): matrix cores, per CU
        "cdna1": _rates(fp32=256, bf16=512, fp16=1024, int8=1024),
        "cdna2": _rates(fp64=256, fp32=256, bf16=1024, fp16=1024, int8=1024),
        "cdna3": _rates(fp64=256, fp32=256, tf32=1024, bf16=2048, fp16=2048, fp8=4096, int8=4096),
        "cdna4": _rates(fp64=128, fp32=256, bf16=4096, fp16=4096, fp8=8192, mxfp8=8192, int8=8192, mxfp4=16384),
        # Intel Xe2: 8 matrix engines of 128 FMA per core (Intel Arc Pro B60 product brief, 2025)
        "battlemage": _rates(fp32=256, bf16=2048, fp16=2048, int8=4096),
        # TPUs, per matrix unit of 128 x 128 or 256 x 256 multiply-adds (Jouppi et al. 2023; Google Cloud TPU docs)
        "tpu_v4": _rates(bf16=2 * 128**2, int8=2 * 128**2),
        "tpu_v5e": _rates(bf16=2 * 128**2, int8=4 * 128**2),
        "tpu_v5p": _rates(bf16=2 * 128**2, int8=4 * 128**2),
        # Intel Gaudi whitepapers 2022 and 2024: 256 x 256 multiply-adds per matrix engine
        "gaudi2": _rates(bf16=2 * 256**2, fp8=4 * 256**2),
        "gaudi3": _rates(bf16=2 * 256**2, fp8=2 * 256**2),
    }
)
