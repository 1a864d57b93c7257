"""The element type of a checkpoint's weights, as its ``quantization_config`` names it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sartor.json_types import JsonDict
from sartor.operators import DType

NAMED: Mapping[str, DType] = MappingProxyType(
    {
        "fp8": DType.FP8,
        "fbgemm_fp8": DType.FP8,
        "mxfp8": DType.MXFP8,
        "mxfp4": DType.MXFP4,
        "nvfp4": DType.NVFP4,
    }
)
"""Values of ``quant_method`` (transformers' ``QuantizationMethod``) and ``quant_algo`` (NVIDIA ModelOpt) that are a
type, recalled."""

OF_BITS: Mapping[int, DType] = MappingProxyType({4: DType.INT4_WO, 8: DType.INT8_WO})
"""Weights of so many bits that are multiplied in 16 (GPTQ, AWQ, bitsandbytes)."""


def says_quantized(config: JsonDict) -> bool:
    return bool(config.get("quantization_config") or config.get("compression_config"))


def released_type(config: JsonDict) -> DType | None:
    """Type of the weights; None if the file names none that is known.

    >>> released_type({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    <DType.FP8_BLOCK: 'fp8_block'>
    """
    said = config.get("quantization_config") or config.get("compression_config")
    said = {"quant_method": said} if isinstance(said, str) else said
    if not isinstance(said, dict):
        return None
    words = (str(said.get(name, "")).lower() for name in ("quant_algo", "quant_method"))
    named = next((NAMED[word] for word in words if word in NAMED), None)
    if named is not None:
        return DType.FP8_BLOCK if named is DType.FP8 and said.get("weight_block_size") else named
    groups = said.get("config_groups")
    if isinstance(groups, dict) and groups:
        return _of_group(next(iter(groups.values())))
    loaded = next((bits for bits in OF_BITS if said.get(f"load_in_{bits}bit") is True), None)
    return _of_bits(said.get("bits", loaded))


def _of_group(group: object) -> DType | None:
    """Of a group of ``compressed-tensors``, which describes its weights and its activations (null: 16 bits)."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        return None
    bits = weights.get("num_bits")
    if not group.get("input_activations"):
        return _of_bits(bits)
    if weights.get("type") == "float":
        narrow = DType.MXFP4 if weights.get("group_size") == 32 else DType.NVFP4
        wide = DType.FP8_BLOCK if weights.get("strategy") == "block" else DType.FP8
        return {4: narrow, 8: wide}.get(bits) if isinstance(bits, int) else None
    return DType.INT8 if bits == 8 else _of_bits(bits)


def _of_bits(bits: object) -> DType | None:
    return OF_BITS.get(bits) if isinstance(bits, int) else None
