"""The fields of a config.json that change what a model computes but none of its sizes, and the type of its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from sartor.json_types import JsonDict, JsonMap
from sartor.model.shape import MAX_LAYERS, Numerics, Value, family_numerics
from sartor.operators import DType

NAMES = {
    "norm_eps": (
        "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps", "layernorm_epsilon",
    ),
    "rope_theta": ("rope_theta", "rotary_emb_base", "rope_base"),
    "rope_local_theta": ("rope_local_base_freq",),
    "attention_softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "query_scale": ("query_pre_attn_scalar",),
    "attention_multiplier": ("attention_multiplier",),
    "embedding_multiplier": ("embedding_multiplier", "scale_emb"),
    "residual_multiplier": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "qkv_clip": ("clip_qkv",),
    "glu_limit": ("swiglu_limit",),
    "router_score": ("scoring_func",),
    "router_normalized": ("norm_topk_prob",),
    "router_groups": ("n_group",),
    "router_topk_groups": ("topk_group",),
    "router_scale": ("routed_scaling_factor",),
    "router_jitter": ("router_jitter_noise",),
    "aux_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
    "aux_loss_per_sequence": ("seq_aux",),

    "z_loss": ("router_z_loss_coef",),
}  # fmt: skip
"""Config fields by their name in `sartor.model.shape`; the first one in the file counts."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config")
SUSPECT = re.compile(
    r"multiplier|softcap|_clip|clip_|temperature|alibi|sandwich|post_norm|residual_multi|residual_scal|jitter|scale_attn|attn_scale|"
    r"scale_depth|dim_model_base|router_scal|logit_scal|no_rope|mup_|swiglu_|norm_after|route_scale|score_function"
)
"""Fields with such names may change what is computed; they are kept under their own names."""
PLAIN = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "no_rope_layers": None,
    "no_rope_layer_interval": None,
    "offset_alibi": None,
}
"""Suspect fields with their plain value; None: the shape itself holds them."""


def read_numerics(config: JsonMap, family: str, activation: str = "") -> Numerics:
    """The file's numerics, with those of its class where the file says nothing (and its default ``activation``)."""
    section = next((config[name] for name in SECTIONS if isinstance(config.get(name), dict)), None)
    fields: JsonMap = config if section is None else {**section}
    inner = family if section is None else str(section.get("model_type") or family)
    values: dict[str, Value] = {}
    for name, places in NAMES.items():
        value = next((_scalar(fields[place]) for place in places if fields.get(place) is not None), None)
        if value is not None:
            values[name] = value
    values |= _rope(fields)
    values |= _rope_layers(fields, inner)
    values |= _unknown(fields)
    if fields.get("do_layer_norm_before") is False:
        values["norm_order"] = "after"
    if fields.get("topk_method") == "noaux_tc":
        values["router_bias"] = True
    elif isinstance(fields.get("topk_method"), str):
        values["router_method"] = "" if fields["topk_method"] == "greedy" else fields["topk_method"]
    named = next((fields[name] for name in ACTIVATIONS if isinstance(fields.get(name), str)), "")
    return family_numerics(inner, values, str(named).lower() or activation)


def _scalar(value: object) -> Value | None:
    if isinstance(value, bool) or (isinstance(value, str) and len(value) < 60 and value.isprintable()):
        return value
    if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 1e15:
        return float(value)
    return None


def _rope(fields: JsonMap) -> dict[str, Value]:
    """Rotary scaling, in the older form (``rope_scaling``) and the newer (``rope_parameters``)."""
    table = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not isinstance(table, dict):
        return {}
    out: dict[str, Value] = {}
    if isinstance(full := table.get("full_attention"), dict):  # one table per kind of layer
        local = table.get("sliding_attention")
        theta = _scalar(local.get("rope_theta")) if isinstance(local, dict) else None
        out = {"rope_local_theta": theta} if theta else {}
        table = full
    kind = table.get("rope_type", table.get("type", ""))
    for name, value in table.items():
        names = {"rope_theta": "rope_theta", "original_max_position_embeddings": "rope_original_max_positions"}
        number = _scalar(value)
        if name not in ("type", "rope_type", "partial_rotary_factor") and number is not None:
            out[names.get(name, name if name.startswith("rope_") else f"rope_{name}")] = number
    if kind in ("default", "", None):
        return {name: value for name, value in out.items() if name in ("rope_theta", "rope_local_theta")}
    longest = _scalar(fields.get("max_position_embeddings"))
    if longest and kind in ("yarn", "llama3"):  # the classes' default
        out.setdefault("rope_original_max_positions", longest)
    return {"rope_type": str(kind), **out}


def _rope_layers(fields: JsonMap, family: str) -> dict[str, Value]:
    """Which layers rotate queries and keys (1) and which do not (0); empty if all do."""
    period = fields.get("no_rope_layer_interval", 4 if family in ("smollm3", "llama4_text") else None)
    bits, layers = fields.get("no_rope_layers"), fields.get("num_hidden_layers")
    if not bits and isinstance(period, int) and isinstance(layers, int) and period > 0 and 0 < layers <= MAX_LAYERS:
        bits = [int((k + 1) % period != 0) for k in range(layers)]
    if not isinstance(bits, list) or all(bits) or len(bits) > MAX_LAYERS:
        return {}
    return {"rope_layers": "".join("1" if bit else "0" for bit in bits)}


def _unknown(fields: JsonMap) -> dict[str, Value]:
    """Fields that may change the model but have no name here, unless they are switched off."""
    read = {place for places in NAMES.values() for place in places}
    out: dict[str, Value] = {}
    for name, value in fields.items():
        if name in read or not SUSPECT.search(name) or PLAIN.get(name, ...) is None:
            continue
        number = _scalar(value)
        if number not in (None, "", False, PLAIN.get(name, 0)) and not (number == 1 and "multipl" in name):
            out[f"config.{name}"] = str(number)
    return out


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
    config_part = config.get("quantization_config") or config.get("compression_config")
    config_part = {"quant_method": config_part} if isinstance(config_part, str) else config_part
    if not isinstance(config_part, dict):
        return None
    words = (str(config_part.get(name, "")).lower() for name in ("quant_algo", "quant_method"))
    named = next((NAMED[word] for word in words if word in NAMED), None)
    if named is not None:
        return DType.FP8_BLOCK if named is DType.FP8 and config_part.get("weight_block_size") else named
    groups = config_part.get("config_groups")
    if isinstance(groups, dict) and groups:
        return _of_group(next(iter(groups.values())))
    loaded = next((bits for bits in OF_BITS if config_part.get(f"load_in_{bits}bit") is True), None)
    return _of_bits(config_part.get("bits", loaded))


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
