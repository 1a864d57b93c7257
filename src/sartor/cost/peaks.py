"""The peak rate of a data type, with a fallback for types that a device lacks."""

from __future__ import annotations

from sartor.hardware.gpu import Gpu
from sartor.operators import DType

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
