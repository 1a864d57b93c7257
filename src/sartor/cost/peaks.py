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
    for each in (dtype, *STAND_INS.get(dtype, ()), DType.FP16, DType.BF16, DType.FP32):
        if each in gpu.peak_flops_per_s:
            return gpu.peak_flops_per_s[each]
    return max(gpu.peak_flops_per_s.values())
