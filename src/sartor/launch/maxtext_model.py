"""Read a model from MaxText's keys, via an equivalent config.json.

Keys and defaults: maxtext/configs/base.yml, configs/types.py and configs/models/*.yml of MaxText 0.2.5 (its wheel on
PyPI, read 2026-11-23). A decoder block computes what the model family of the same name does.
"""

from __future__ import annotations

import re

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.stated import StatedDocument
from sartor.model.shape import TransformerShape
from sartor.model.zoo import load_model
from sartor.read.huggingface import read_fields

BLOCKS = {
    "llama2": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "deepseek": "deepseek_v3",
}
"""Supported decoder blocks, with the ``model_type`` of config.json that computes the same."""
NAMED = {
    "deepseek3-671b": "deepseek-v3",
    "deepseek2-236b": "deepseek-v2",
    "deepseek2-16b": "deepseek-v2-lite",
    "kimi-k2-1t": "kimi-k2",
}
"""MaxText model names that differ from the zoo's."""
LLAMA3_SCALING: JsonDict = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Constants of LLaMARotaryEmbedding (layers/embeddings.py)."""


def shape_of(keys: StatedDocument, positions: int = 0) -> TransformerShape | None:
    """The model that the keys define or name; None if the zoo does not have the name. Raises `InputError` for
    unsupported blocks."""
    name = keys.text("model_name", "default")
    if name != "default":
        if keys.flag("override_model_config"):
            must = "changes a model that is only named; must give its sizes without model_name"
            raise InputError("override_model_config", "true", must, "base_emb_dim=... decoder_block=...")
        try:
            return load_model(NAMED.get(name, name))
        except InputError:
            return None
    return read_fields(_config(keys, positions), name="").shape


def _config(keys: StatedDocument, positions: int) -> JsonDict:
    """A config.json equivalent to the keys; defaults are base.yml's."""
    block = keys.choice("decoder_block", "llama2", tuple(BLOCKS))
    for ignored in ("normalize_embedding_logits", "use_qk_norm", "attention_bias"):
        keys.flag(ignored)
    width, heads, depth = _scales(keys)
    out: JsonDict = {
        "model_type": BLOCKS[block],
        "hidden_size": width * keys.count("base_emb_dim", 2048),
        "intermediate_size": heads * keys.count("base_mlp_dim", 7168),
        "num_hidden_layers": depth * keys.count("base_num_decoder_layers", 16),
        "num_attention_heads": heads * keys.count("base_num_query_heads", 16),
        "num_key_value_heads": heads * keys.count("base_num_kv_heads", 16),
        "vocab_size": keys.count("vocab_size", 32000),
        "hidden_act": "silu",
        "max_position_embeddings": positions or keys.count("max_target_length", 2048),
        "rms_norm_eps": _number(keys, "normalization_layer_epsilon", 1e-5),
        "rope_theta": _number(keys, "rope_max_timescale", 10000.0),
        "tie_word_embeddings": keys.flag("logits_via_embedding"),
    }
    if block != "deepseek":
        out["head_dim"] = keys.count("head_dim", 128)
    if block == "mistral":
        out["sliding_window"] = keys.count("sliding_window_size", 0, least=0) or None
    if scaling := _scaling(keys):
        out["rope_scaling"] = scaling
    return {**out, **_config_of_experts(keys, block)}


def _scales(keys: StatedDocument) -> tuple[int, int, int]:
    """Factors for width, for heads and feed-forward width, and for layers (``get_individual_scales``): each doubling of
    ``global_parameter_scale`` doubles the second, the first and the third in turn."""
    scale = keys.count("global_parameter_scale", 1)
    if scale & (scale - 1):
        raise InputError("global_parameter_scale", scale, "must be a power of two", str(1 << (scale.bit_length() - 1)))
    doublings, rest = divmod(scale.bit_length() - 1, 3)
    return 2 ** (doublings + (rest > 1)), 2 ** (doublings + (rest > 0)), 2**doublings


def _scaling(keys: StatedDocument) -> JsonDict:
    kind = keys.choice("rope_type", "default", ("default", "llama3.1", "yarn"))
    if kind == "llama3.1":
        return dict(LLAMA3_SCALING)
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": _number(keys, "rope_factor", 40.0),
            "beta_fast": _number(keys, "beta_fast", 32.0),
            "beta_slow": _number(keys, "beta_slow", 1.0),
            "mscale": 1.0,
            "mscale_all_dim": _number(keys, "mscale", 1.0),
            "original_max_position_embeddings": keys.count("original_max_position_embeddings", 4096),
            "truncate": keys.flag("rope_truncate", True),
        }
    factor = _number(keys, "rope_linear_scaling_factor", 1.0)
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}


def _config_of_experts(keys: StatedDocument, block: str) -> JsonDict:
    if block not in ("mixtral", "qwen3_moe", "deepseek"):
        return {}
    experts, width = keys.count("num_experts", 1), _scales(keys)[1] * keys.count("base_moe_mlp_dim", 7168)
    balance = _number(keys, "load_balance_loss_weight", 0.0)
    normalized, chosen = keys.flag("norm_topk_prob"), keys.count("num_experts_per_tok", 1)
    common: JsonDict = {"num_experts_per_tok": chosen, "router_aux_loss_coef": balance}
    if block == "mixtral":
        return {**common, "num_local_experts": experts, "intermediate_size": width}
    if block == "qwen3_moe":
        return {**common, "num_experts": experts, "moe_intermediate_size": width, "norm_topk_prob": normalized}
    groups = keys.count("n_routing_groups", -1)
    return {
        "num_experts_per_tok": chosen,
        "n_routed_experts": experts,
        "moe_intermediate_size": width,
        "n_shared_experts": keys.count("shared_experts", 0, least=0),
        "first_k_dense_replace": keys.count("first_num_dense_layers", 0, least=0),
        "scoring_func": keys.text("routed_score_func", "") or "softmax",
        "topk_method": "noaux_tc" if keys.flag("routed_bias") else "greedy",
        "norm_topk_prob": True,
        "routed_scaling_factor": _number(keys, "routed_scaling_factor", 1.0),
        "n_group": groups if groups > 0 else 1,
        "topk_group": max(keys.count("topk_routing_group", -1), 1),
        "num_nextn_predict_layers": keys.count("mtp_num_layers", 0, least=0),
        **_config_of_ranks(keys),
    }


def _config_of_ranks(keys: StatedDocument) -> JsonDict:
    keys.choice("attention_type", "mla", ("mla",))
    ranks = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    config: JsonDict = {name: keys.count(name, default) for name, default in ranks.items()}
    return {**config, "q_lora_rank": keys.count("q_lora_rank", 0, least=0) or None}


def _number(keys: StatedDocument, name: str, default: float) -> float:
    value = keys.find(name)
    if value is None:
        return default
    if isinstance(value, str) and re.fullmatch(r"\d+[eE][+-]?\d{1,3}", value):  # a string in YAML 1.1
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(name, value, "must be a number")
    return float(value)
