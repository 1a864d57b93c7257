"""A zoo entry as the fields of a Hugging Face config, so that the published class can be built from it.

Common fields have the names that every config class of transformers accepts; families with their own spelling are in
``OWN_NAMES``. What an entry does not say (rotary base, dropout, epsilons) affects no shape: class defaults apply.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.json_types import JsonDict, JsonMap
from sartor.model.zoo import load_model, model_entry

COMMON = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
}
FAMILIES = {"gpt3": "gpt2"}
"""Families without a published class, and one with the same layers (GPT-3 has GPT-2's architecture: Brown et al. 2020,
sec. 2.1; its alternating sparse attention is left out)."""
NO_KV = {"gpt2", "opt", "bloom", "gptj", "gpt_neo", "gpt_neox", "bert", "t5"}
OWN_NAMES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {"ffn_hidden_size": "n_inner"},
    "gptj": {"ffn_hidden_size": "n_inner", "rotary_dim": "rotary_dim"},
    "opt": {"ffn_hidden_size": "ffn_dim"},
    "bloom": {},
    "falcon": {"ffn_hidden_size": "ffn_hidden_size"},
}


def zoo_config(name: str) -> tuple[JsonMap, str]:
    """The config's fields of a zoo model, and its display name. Raises ``InputError`` for an unknown name."""
    shape = load_model(name)
    entry = model_entry(name)
    own: str = entry["family"]
    family = FAMILIES.get(own, own)
    if family.startswith("megatron"):
        family = "gpt2"
    if family == "t5":
        return _t5(entry), shape.name
    fields: JsonDict = {"model_type": family} | {hf: entry[ours] for ours, hf in COMMON.items()}
    if family not in NO_KV:
        fields["num_key_value_heads"] = entry["num_kv_heads"]
    names = OWN_NAMES.get(family, {"ffn_hidden_size": "intermediate_size"})
    fields |= {hf: entry[ours] for ours, hf in names.items() if ours in entry}
    usual = entry["hidden_size"] // entry["num_heads"]
    if entry["head_dim"] != usual or family in ("qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gpt_oss"):
        fields["head_dim"] = entry["head_dim"]
    for more in (_biases, _experts, _latent, _windows, _special):
        fields |= more(entry, family)
    return fields, shape.name


def _t5(entry: JsonMap) -> JsonDict:
    return {
        "model_type": "t5",
        "num_layers": entry["num_layers"],
        "num_decoder_layers": entry["num_decoder_layers"],
        "d_model": entry["hidden_size"],
        "d_kv": entry["head_dim"],
        "d_ff": entry["ffn_hidden_size"],
        "num_heads": entry["num_heads"],
        "vocab_size": entry["vocab_size"],
        "tie_word_embeddings": entry["tied_embeddings"],
        "feed_forward_proj": ("gated-" if entry["gated"] else "") + entry["activation"],
    }


def _biases(entry: JsonMap, family: str) -> JsonDict:
    """Biases: some classes have one switch for attention; the others decide by family."""
    return {"attention_bias": "q" in entry["biases"]} if family in ("llama", "qwen3", "qwen3_moe", "gpt_oss") else {}


def _experts(entry: JsonMap, family: str) -> JsonDict:
    experts = entry.get("experts")
    if experts is None:
        return {}
    count, chosen, width = experts["num_experts"], experts["experts_per_token"], experts["ffn_hidden_size"]
    shared = experts.get("shared_ffn_hidden_size", 0)
    if family in ("mixtral", "gpt_oss"):
        return {"num_local_experts": count, "num_experts_per_tok": chosen, "intermediate_size": width}
    if family == "qwen3_moe":
        return {"num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": width}
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "n_shared_experts": shared // width,
        "first_k_dense_replace": experts["first_dense_layers"],
        **({"n_group": 1, "topk_group": 1} if count % 8 else {}),
    }


def _latent(entry: JsonMap, family: str) -> JsonDict:
    latent = entry.get("latent")
    if latent is None:
        return {}
    return {**latent, "q_lora_rank": latent["q_lora_rank"] or None, "head_dim": latent["qk_rope_head_dim"]}


def _windows(entry: JsonMap, family: str) -> JsonDict:
    windows = entry.get("windows")
    if windows is None:
        return {}
    pattern, layers = windows["pattern"].split(), entry["num_layers"]
    words = {"local": "sliding_attention", "global": "full_attention"}
    if family == "gpt_neo":
        return {"window_size": windows["size"], "attention_types": [[pattern, layers // len(pattern)]]}
    if set(pattern) == {"local"}:
        return {"sliding_window": windows["size"]}
    types = [words[pattern[i % len(pattern)]] for i in range(layers)]
    return {"sliding_window": windows["size"], "layer_types": types}


def _special(entry: JsonMap, family: str) -> JsonDict:
    """Fields that a class names differently, or has a different default for."""
    if family == "falcon":
        grouped = entry["num_kv_heads"] > 1
        return {
            "multi_query": not grouped,
            "new_decoder_architecture": grouped,
            "num_kv_heads": entry["num_kv_heads"],
            "parallel_attn": entry["parallel"],
            "alibi": False,
            "bias": False,
        }
    if family == "opt":
        width = entry.get("embedding_size", entry["hidden_size"])
        return {"word_embed_proj_dim": width, "do_layer_norm_before": width == entry["hidden_size"]}
    if family == "gpt_neox":
        share = entry.get("rotary_dim", entry["head_dim"]) / entry["head_dim"]
        return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}}
    if family == "bert":
        return {"architectures": ["BertModel"]}
    return {}
