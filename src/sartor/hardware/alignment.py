"""Minimum and preferred multiples of lengths for the matrix units, per generation and data type.

A length is the contiguous one of a stored operand, in elements. Below ``minimum`` a GEMM leaves the fast path; between
``minimum`` and ``preferred`` it keeps the fast path at a loss. The table only says where rules look and how severe a
finding is; the cost model prices it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sartor.hardware.gpu import Gpu
from sartor.operators import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Multiples for lengths of one data type on one device, in elements."""

    minimum: int
    """Lengths that are not a multiple of it leave the fast path."""
    preferred: int
    """Larger multiples gain nothing more."""
    cliff: bool = True
    """Missing ``minimum`` is a steep loss (NVIDIA's tensor cores); False for a gradual one."""
    graded: bool = True
    """Missing ``preferred`` is a measurable loss; False if the device hardly notices (AMD)."""
    scale_block: int = 1
    """Elements along k (and n where they are stored so) that share a scale."""
    source: str = ""


def alignment_of(gpu: Gpu, dtype: DType) -> Alignment:
    """The alignment of ``gpu`` for ``dtype``; unknown generations and types follow the 16- and 128-byte rule."""
    if gpu.matrix_tile:
        return _systolic(gpu, dtype, gpu.matrix_tile)
    generations = (*_TABLE, *_SYSTOLIC)
    family = next((name for name in generations if gpu.generation.lower().startswith(name)), _family_by_vendor(gpu))
    if family in _SYSTOLIC:
        return _systolic(gpu, dtype, _SYSTOLIC[family])
    return _TABLE.get(family, {}).get(dtype) or _by_bytes(dtype)


def flash_head_dims(gpu: Gpu) -> tuple[int, ...]:
    """Head dimensions that the generation's flash attention is compiled for, ascending; others are padded to the
    next."""
    return _FLASH_HEAD_DIMS.get(gpu.generation, _FLASH_DEFAULT)


_BLOCKS: Mapping[DType, int] = MappingProxyType(
    {DType.FP8: 16, DType.FP8_BLOCK: 128, DType.MXFP8: 32, DType.MXFP4: 32, DType.NVFP4: 32}
)
"""FP8: leading dimensions % 16; MX and NVFP4: last dimension % 32 (NVIDIA/TransformerEngine PR 2894, issue 2966, 2025);
fp8_block: 128 x 128 weight blocks (DeepSeek-V3 config.json, weight_block_size, 2024-12)."""


def _by_bytes(dtype: DType) -> Alignment:
    """16 bytes to reach the fast path, 128 for full speed: the rule of arXiv 2401.14489 for A100."""
    bits = round(8 * dtype.bytes)  # without the share of a scale
    return Alignment(
        minimum=max(1, 16 * 8 // bits),
        preferred=max(1, 128 * 8 // bits),
        scale_block=_BLOCKS.get(dtype, 1),
        source="16- and 128-byte rule, arXiv 2401.14489 (2024-01)",
    )


def _rows(
    source: str, rows: Mapping[DType, tuple[int, int]], *, cliff: bool = True, graded: bool = True
) -> dict[DType, Alignment]:
    return {
        dtype: Alignment(
            minimum=low,
            preferred=high,
            cliff=cliff,
            graded=graded,
            scale_block=_BLOCKS.get(dtype, 1),
            source=source,
        )
        for dtype, (low, high) in rows.items()
    }


_FC_GUIDE = "NVIDIA Linear/Fully-Connected Layers User's Guide (2023); arXiv 2401.14489 (2024-01), tensor core rule"
_TE = "NVIDIA/TransformerEngine PR 2894 and issue 2966 (2025): FP8 16, MXFP8 and NVFP4 32-element blocks"
_AMPERE: Mapping[DType, tuple[int, int]] = MappingProxyType(
    {
        DType.FP16: (8, 64),
        DType.BF16: (8, 64),
        DType.TF32: (4, 32),
        DType.FP64: (1, 16),
        DType.INT8: (16, 128),
        DType.INT4: (32, 256),
    }
)
_FP8: Mapping[DType, tuple[int, int]] = MappingProxyType({DType.FP8: (16, 128), DType.FP8_BLOCK: (128, 128)})
_AMD = "raw sweeps of EleutherAI/cookbook on MI250X (2023-10): 83, 84 and 85 TFLOP/s at N % 2, 8 and 64"

_TABLE: Mapping[str, Mapping[DType, Alignment]] = MappingProxyType(
    {
        "volta": _rows(_FC_GUIDE, {DType.FP16: (8, 8), DType.BF16: (8, 8), DType.INT8: (4, 4)}),
        "turing": _rows(_FC_GUIDE, {DType.FP16: (8, 8), DType.BF16: (8, 8), DType.INT8: (16, 16)}),
        "ampere": _rows(_FC_GUIDE, _AMPERE),
        "ada": _rows(_FC_GUIDE, {**_AMPERE, **_FP8}),
        "hopper": _rows(f"{_FC_GUIDE}; TMA needs 16-byte strides", {**_AMPERE, **_FP8}),
        "blackwell_rtx": _rows(
            f"{_FC_GUIDE}; {_TE}", {**_AMPERE, **_FP8, DType.MXFP8: (32, 128), DType.NVFP4: (32, 128)}
        ),
        "blackwell": _rows(
            _TE,
            {
                **_AMPERE,
                DType.FP16: (8, 128),
                DType.BF16: (8, 128),
                **_FP8,
                DType.MXFP8: (32, 128),
                DType.MXFP4: (32, 128),
                DType.NVFP4: (32, 128),
            },
        ),
        "pascal": _rows(
            "no matrix units: vectors of 16 bytes are all that alignment buys (P100 datasheet, 2016)",
            {DType.FP16: (2, 8), DType.BF16: (2, 8), DType.FP32: (1, 4)},
            cliff=False,
            graded=False,
        ),
        "cdna": _rows(_AMD, {DType.FP16: (2, 64), DType.BF16: (2, 64), DType.FP32: (1, 32)}, cliff=False, graded=False)
        | _rows(
            "hipBLASLt and torch._scaled_mm ask for multiples of 16 (2024); weak beyond, as for FP16",
            {DType.FP8: (16, 128), DType.FP8_BLOCK: (128, 128), DType.MXFP8: (32, 128), DType.MXFP4: (32, 128)},
            graded=False,
        ),
    }
)
_SYSTOLIC: Mapping[str, int] = MappingProxyType({"tpu": 128, "trainium": 128, "inferentia": 128, "gaudi": 128})


def _systolic(gpu: Gpu, dtype: DType, side: int) -> Alignment:
    """A systolic array pads to its own side: no steep loss, but every padded lane costs time."""
    lengths = (
        "the chip's own description" if gpu.accelerator else "codesign.md section 2.1, vendor guides; from memory, 2024"
    )
    return Alignment(
        minimum=1,
        preferred=side,
        cliff=False,
        scale_block=_BLOCKS.get(dtype, 1),
        source=f"side of the matrix unit, {side} ({lengths})",
    )


def _family_by_vendor(gpu: Gpu) -> str:
    return {"amd": "cdna", "google": "tpu", "aws": "trainium", "amazon": "trainium"}.get(gpu.vendor.lower(), "")


FLASH_MULTIPLE = 8
"""Head dimensions that flash attention takes without copies: 16 bytes of a 16-bit type (flash_attn_interface.py pads
others to it, flash-attention 2.7; ``check_cudnn_tensor_shapes`` in PyTorch's sdp_utils.cpp)."""
_FLASH_DEFAULT = (32, 64, 96, 128, 192, 256)
"""Dao-AILab/flash-attention, csrc/flash_attn kernels of 2.x (2023-07): head dimensions up to 256."""
_FLASH_HEAD_DIMS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "hopper": (64, 96, 128, 192, 256),
        "blackwell": (64, 96, 128, 192, 256),
    }
)
"""Dao-AILab/flash-attention, hopper/ (FlashAttention-3, 2024-07); FA2 to FA4 from the reference digest."""
