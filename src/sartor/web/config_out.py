"""A config.json with changed sizes: written into the file's own keys, and read back before it is handed out."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from sartor import api
from sartor.errors import InputError
from sartor.interop.config_text import parse_config
from sartor.interop.huggingface import read_model
from sartor.model.edit import edit_fields
from sartor.model.shape import AttentionMixer, TransformerShape
from sartor.report.lint_formats import CONFIG_KEYS
from sartor.web.asked import model_of

INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections that hold the text model's sizes where the file has towers beside it."""
DERIVED = ("head_dim",)
"""Sizes that may follow from others: written only where the file reads back otherwise."""
PLAIN = ("llama", "mixtral")


def written_config(body: Mapping[str, Any]) -> bytes:
    """The bytes of a config.json whose shape is the asked one. Raises ``InputError`` where no such file can be."""
    reading = model_of(body)
    changes = body["set"] or {}
    wanted, _ = edit_fields(reading.shape, changes) if changes else (reading.shape, ())
    config = body["config"]
    if config is None:
        return _bytes(_of_zoo(wanted, str(body["model"])))
    parsed = parse_config(config.encode()) if isinstance(config, str) else config
    return _bytes(_changed(parsed, reading.shape, wanted) if changes else parsed)


def _bytes(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=True) + "\n").encode()


def _changed(config: Mapping[str, Any], old: TransformerShape, new: TransformerShape) -> dict[str, Any]:
    """The file with every size that differs written where it stands; read back and compared."""
    out = copy.deepcopy(dict(config))
    section = next((out[name] for name in INNER if isinstance(out.get(name), dict)), out)
    before, after = old.fields(), new.fields()
    for field, value in after.items():
        if before[field] != value:
            _write(section, field, int(value))
    if not _reads_as(out, after):
        for field in DERIVED:
            section[field] = int(after[field]) if field in after else section.get(field)
    if not _reads_as(out, after):
        changed = next(field for field in after if before[field] != after[field])
        must = "cannot be written into this file so that it reads back as asked; change it by hand"
        raise InputError(changed, int(after[changed]), must)
    return out


def _write(section: dict[str, Any], field: str, value: int) -> None:
    keys = [key for key in CONFIG_KEYS.get(field, ()) if isinstance(section.get(key), int) and _is_own(field, key)]
    for key in keys[:1]:
        section[key] = value
    if not keys and field not in DERIVED:
        section[CONFIG_KEYS[field][0]] = value


def _is_own(field: str, key: str) -> bool:
    """Whether a key says this field itself, not one that it follows from."""
    follows = {"head_dim": ("num_attention_heads", "n_head", "n_heads"), "ffn_hidden_size": ("hidden_size", "n_embd")}
    return key not in follows.get(field, ()) and key != "multi_query"


def _reads_as(config: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    try:
        return dict(read_model(copy.deepcopy(dict(config))).shape.fields()) == dict(fields)
    except InputError:
        return False


def _of_zoo(shape: TransformerShape, name: str) -> dict[str, Any]:
    """A config.json for a zoo model: in Llama's or Mixtral's words, where these say all there is about it."""
    fields = {field: int(value) for field, value in shape.fields().items()}
    mixer, moe = shape.attention, "num_experts" in fields
    config = {
        "model_type": "mixtral" if moe else "llama",
        "architectures": ["MixtralForCausalLM" if moe else "LlamaForCausalLM"],
        "hidden_size": fields["hidden_size"],
        "num_hidden_layers": fields["num_layers"],
        "vocab_size": fields["vocab_size"],
        "max_position_embeddings": shape.max_positions or 4096,
        "tie_word_embeddings": shape.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    if isinstance(mixer, AttentionMixer):
        config |= {
            "num_attention_heads": fields["num_heads"],
            "num_key_value_heads": fields["num_kv_heads"],
            "head_dim": fields["head_dim"],
        }
    if moe:
        config |= {
            "num_local_experts": fields["num_experts"],
            "num_experts_per_tok": fields["experts_per_token"],
            "intermediate_size": fields["expert_ffn_hidden_size"],
        }
    else:
        config["intermediate_size"] = fields.get("ffn_hidden_size", 0)
    if not _same_model(config, shape):
        must = "has parts that a plain Llama or Mixtral config.json does not say; load its own config.json to change it"
        raise InputError("model", name, must)
    return config


def _same_model(config: Mapping[str, Any], shape: TransformerShape) -> bool:
    """Whether the file is the model: the same sizes and the same number of parameters."""
    try:
        reading = read_model(dict(config))
    except InputError:
        return False
    same_size: bool = reading.num_params == api.read(_plain(shape)).num_params
    return same_size and dict(reading.shape.fields()) == dict(shape.fields())


def _plain(shape: TransformerShape) -> Any:
    from sartor.model.reading import ModelReading

    return ModelReading(shape=shape)
