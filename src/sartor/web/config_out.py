"""A config.json with changed sizes: written under the file's own keys, and read back to check it."""

from __future__ import annotations

import copy
import json

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.edit import edit_fields
from sartor.model.shape import TransformerShape
from sartor.read.config_text import parse_config
from sartor.read.huggingface import read_model
from sartor.report.lint_formats import CONFIG_KEYS
from sartor.web.asked import model_of
from sartor.web.zoo_config import kinds_of, zoo_config

INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections with the text model's sizes in files that also have towers."""


def written_config(body: JsonMap) -> bytes:
    """The bytes of a config.json with the requested shape. Raises ``InputError`` if no such file exists."""
    reading = model_of(body)
    changes = body["set"] or {}
    wanted, _ = edit_fields(reading.shape, changes) if changes else (reading.shape, ())
    config = body["config"]
    if config is None:
        return _bytes(_of_zoo(reading.shape, wanted, str(body["model"]), changes))
    parsed = parse_config(config.encode()) if isinstance(config, str) else config
    return _bytes(_changed(parsed, reading.shape, wanted) if changes else parsed)


def _of_zoo(own: TransformerShape, wanted: TransformerShape, name: str, changes: JsonMap) -> JsonDict:
    """The file of a zoo model with changes. Raises ``InputError``, at the change where the model itself has a file."""
    try:
        return zoo_config(wanted, name)
    except InputError:
        if not changes:
            raise
    zoo_config(own, name)
    field = next(iter(changes))
    must = (
        "has no config.json: with it, no published class holds all sizes of this model; leave it, or change others too"
    )
    raise InputError(field, changes[field], must, str(int(own.fields()[field])))


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
    if "num_full_layers" in changed:
        section["layer_types"] = kinds_of(new)
    for field in changed:  # what the file leaves to its defaults is named only where it has to be
        if not _reads_as(out, {field: after[field]}):
            _name(out, section, field, int(after[field]))
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


def _name(out: JsonMap, section: JsonDict, field: str, value: int) -> None:
    """The value under the first of the field's keys that the file's class reads."""
    for key in CONFIG_KEYS[field]:
        old = section.get(key)
        if old is not None or not _is_own(field, key):
            continue
        was_there = key in section
        section[key] = value
        if _reads_as(out, {field: value}):
            return
        if was_there:
            section[key] = old
        else:
            del section[key]


def _is_own(field: str, key: str) -> bool:
    """Whether a key is the field itself, not one that it is derived from."""
    follows = {"head_dim": ("num_attention_heads", "n_head", "n_heads"), "ffn_hidden_size": ("hidden_size", "n_embd")}
    return key not in follows.get(field, ()) and key != "multi_query"


def _reads_as(config: JsonMap, fields: JsonMap) -> bool:
    """Whether the file has these sizes."""
    try:
        found = read_model(copy.deepcopy(dict(config))).shape.fields()
        return all(found.get(field) == value for field, value in fields.items())
    except InputError:
        return False
