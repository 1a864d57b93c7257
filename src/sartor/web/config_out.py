"""Write a config.json with changed sizes under the file's own keys, and read it back to check it."""

from __future__ import annotations

import copy
import json

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.editing import edit_fields
from sartor.model.shape import TransformerShape
from sartor.read.config_text import parse_config
from sartor.read.huggingface import read_model
from sartor.read.zoo_config import kinds_of, zoo_config
from sartor.report.lint_formats import CONFIG_KEYS
from sartor.web.arguments import model_of

TWINS = {
    "num_layers": ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"),
    "ffn_hidden_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
}
"""Keys that repeat a size in files of an encoder and a decoder."""
INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections with the text model's sizes in files that also have towers."""


def written_config(body: JsonMap) -> bytes:
    """The bytes of a config.json with the requested shape. Raises ``InputError`` if no such file exists."""
    reading = model_of(body)
    changes = body["set"] or {}
    edited, _ = edit_fields(reading.shape, changes) if changes else (reading.shape, ())
    config = body["config"]
    if config is None:
        return _bytes(_of_zoo(reading.shape, edited, str(body["model"]), changes))
    parsed = parse_config(config.encode()) if isinstance(config, str) else config
    return _bytes(_changed(parsed, reading.shape, edited) if changes else parsed)


def _of_zoo(original: TransformerShape, edited: TransformerShape, name: str, changes: JsonMap) -> JsonDict:
    """The file of a zoo model with changes. Raises ``InputError``; if the unchanged model has a file, at the change."""
    try:
        return zoo_config(edited, name)
    except InputError:
        if not changes:
            raise
    zoo_config(original, name)
    field = next(iter(changes))
    must = (
        "has no config.json: with it, no published class holds all sizes of this model; leave it, or change others too"
    )
    raise InputError(field, changes[field], must, str(int(original.fields()[field])))


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
    for field in changed:  # keys that the file omits are added only if necessary
        for way in (_scale, _twin, _name):
            if not _reads_as(out, {field: after[field]}):
                way(out, section, field, int(before[field]), int(after[field]))
    if changed and not _reads_as(out, after) and "num_full_layers" in after:
        section["layer_types"] = kinds_of(new)
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


def _scale(out: JsonMap, section: JsonDict, field: str, old: int, value: int) -> None:
    """Handle a key with a multiple of the size: Qwen's first feed-forward width covers both projections."""
    for key in CONFIG_KEYS.get(field, ()):
        if (
            section.get(key) == value
            and _is_own(field, key)
            and (read := int(_fields(out).get(field, 0)))
            and value % read == 0
        ):
            section[key] = value * (value // read)
            return


def _twin(out: JsonMap, section: JsonDict, field: str, old: int, value: int) -> None:
    """Write the same size for encoder and decoder."""
    for key in TWINS.get(field, ()):
        if section.get(key) == old:
            section[key] = value


def _name(out: JsonMap, section: JsonDict, field: str, old: int, value: int) -> None:
    """Write the value under the first of the field's keys that the file's class reads."""
    for key in CONFIG_KEYS[field]:
        current = section.get(key)
        if current is not None or not _is_own(field, key):
            continue
        was_there = key in section
        section[key] = value
        if _reads_as(out, {field: value}):
            return
        if was_there:
            section[key] = current
        else:
            del section[key]


def _is_own(field: str, key: str) -> bool:
    """Whether a key is the field itself, not one that it is derived from."""
    follows = {"head_dim": ("num_attention_heads", "n_head", "n_heads"), "ffn_hidden_size": ("hidden_size", "n_embd")}
    return key not in follows.get(field, ()) and key != "multi_query"


def _reads_as(config: JsonMap, fields: JsonMap) -> bool:
    """Whether the file is read with these sizes."""
    read_back = _fields(config)
    return all(read_back.get(field) == value for field, value in fields.items())


def _fields(config: JsonMap) -> JsonMap:
    """The sizes read from the file; empty if it cannot be read."""
    try:
        return read_model(copy.deepcopy(dict(config))).shape.fields()
    except InputError:
        return {}
