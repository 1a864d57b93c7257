"""A config.json with changed sizes: written under the file's own keys, and read back to check it."""

from __future__ import annotations

import copy
import json

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.counts import count_params
from sartor.model.edit import edit_fields
from sartor.model.shape import TransformerShape
from sartor.read.config_text import parse_config
from sartor.read.huggingface import read_model
from sartor.report.lint_formats import CONFIG_KEYS
from sartor.web.asked import model_of

INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections with the text model's sizes in files that also have towers."""
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Classes whose config.json can be written for a zoo model, simplest first."""
GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "n_positions",
    "tie_word_embeddings": "tie_word_embeddings",
}


def written_config(body: JsonMap) -> bytes:
    """The bytes of a config.json with the requested shape. Raises ``InputError`` if no such file exists."""
    reading = model_of(body)
    changes = body["set"] or {}
    wanted, _ = edit_fields(reading.shape, changes) if changes else (reading.shape, ())
    config = body["config"]
    if config is None:
        return _bytes(_of_zoo(wanted, str(body["model"])))
    parsed = parse_config(config.encode()) if isinstance(config, str) else config
    return _bytes(_changed(parsed, reading.shape, wanted) if changes else parsed)


def _bytes(config: JsonMap) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=True) + "\n").encode()


def _changed(config: JsonMap, old: TransformerShape, new: TransformerShape) -> JsonDict:
    """The file with every changed size; read back and compared."""
    out = copy.deepcopy(dict(config))
    section = next((out[name] for name in INNER if isinstance(out.get(name), dict)), out)
    before, after = old.fields(), new.fields()
    changed = [field for field in after if before[field] != after[field]]
    for field in changed:
        _write(section, field, int(after[field]))
    for field in changed:  # what the file leaves to its defaults is named only where it has to be
        if _reads_as(out, after):
            break
        section.setdefault(CONFIG_KEYS[field][0], int(after[field]))
    if not _reads_as(out, after):
        must = "cannot be written to this file in a way that reads back correctly; edit the file by hand"
        raise InputError(changed[0], int(after[changed[0]]), must)
    return out


def _write(section: JsonDict, field: str, value: int) -> None:
    """The value under the file's key for the field, if it has one."""
    for key in CONFIG_KEYS.get(field, ()):
        if isinstance(section.get(key), int) and _is_own(field, key):
            section[key] = value
            return


def _is_own(field: str, key: str) -> bool:
    """Whether a key is the field itself, not one that it is derived from."""
    follows = {"head_dim": ("num_attention_heads", "n_head", "n_heads"), "ffn_hidden_size": ("hidden_size", "n_embd")}
    return key not in follows.get(field, ()) and key != "multi_query"


def _reads_as(config: JsonMap, fields: JsonMap) -> bool:
    try:
        return dict(read_model(copy.deepcopy(dict(config))).shape.fields()) == dict(fields)
    except InputError:
        return False


def _of_zoo(shape: TransformerShape, name: str) -> JsonDict:
    """A config.json for a zoo model, of the first published class that matches it exactly.

    All sizes and the parameter count are compared, so a class with one more bias or norm does not match.
    """
    for model_type, architecture in CLASSES.items():
        config = {"model_type": model_type, "architectures": [architecture], **_sizes(shape, model_type)}
        if _same_model(config, shape):
            return config
    must = "no config.json can be written for this model; load its own config.json to change it"
    raise InputError("model", name, must, ", ".join(CLASSES))


def _sizes(shape: TransformerShape, model_type: str) -> JsonDict:
    """The sizes of a shape under the keys of a class."""
    fields = {field: int(value) for field, value in shape.fields().items()}
    experts = "num_experts" in fields
    width = fields["expert_ffn_hidden_size"] if experts else fields.get("ffn_hidden_size", 0)
    values = {
        "hidden_size": fields["hidden_size"],
        "num_hidden_layers": fields["num_layers"],
        "num_attention_heads": fields.get("num_heads", 0),
        "num_key_value_heads": fields.get("num_kv_heads", 0),
        "intermediate_size": width,
        "vocab_size": fields["vocab_size"],
        "max_position_embeddings": shape.max_positions or 4096,
        "tie_word_embeddings": shape.tied_embeddings,
    }
    if model_type == "gpt2":
        values = {GPT2_KEYS[key]: value for key, value in values.items() if key in GPT2_KEYS}
    elif fields.get("num_heads", 0) * fields.get("head_dim", 0) != fields["hidden_size"]:
        values["head_dim"] = fields.get("head_dim", 0)
    if experts:
        values |= {
            "num_local_experts": fields["num_experts"],
            "num_experts": fields["num_experts"],
            "num_experts_per_tok": fields["experts_per_token"],
            "moe_intermediate_size": width,
        }
    return values


def _same_model(config: JsonMap, shape: TransformerShape) -> bool:
    """Whether the file has the model's sizes and number of parameters."""
    try:
        reading = read_model(dict(config))
    except InputError:
        return False
    same_size: bool = reading.num_params == count_params(shape).total
    return same_size and dict(reading.shape.fields()) == dict(shape.fields())
