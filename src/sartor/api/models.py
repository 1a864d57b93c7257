"""A model from whatever names it: a file, a folder, a zoo name, a hub id or a graph of ``sartor extract``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sartor.json_types import JsonMap
from sartor.model.edit import edit_fields
from sartor.model.reading import ModelReading
from sartor.model.zoo import load_model
from sartor.read.graph_json import is_graph, not_traced, read_traced
from sartor.read.hub import fetch_config
from sartor.read.huggingface import read_model

Model = str | Path | ModelReading


def read(model: Model, set: JsonMap | None = None) -> ModelReading:
    """The model of a config.json (or its folder), a graph of ``sartor extract``, a zoo name or a hub id, with fields
    changed by ``set``.

    A path that exists wins over a zoo name; a model already read is taken as it is. Raises ``InputError``.
    """
    if isinstance(model, ModelReading):
        return _changed(model, set)
    text = str(model)
    path = Path(text)
    if is_graph(path):
        reading = read_traced(path)
    elif isinstance(model, Path) or text.endswith((".json", "/", "\\")) or _exists(path):
        reading = read_model(path)
    elif text.count("/") == 1:
        reading = read_model(fetch_config(text), name=text.rpartition("/")[2])
    else:
        shape = load_model(text)
        reading = ModelReading(shape=shape, notes=(f"from the zoo: sartor catalog models {text}",))
    return _changed(reading, set)


def read_each(model: Model | Sequence[Model], set: JsonMap | None = None) -> tuple[ModelReading, ...]:
    """One model or several, each read by `read`."""
    return tuple(read(each, set) for each in ([model] if isinstance(model, Model) else model))


def _changed(reading: ModelReading, set: JsonMap | None) -> ModelReading:
    if not set:
        return reading
    not_traced(reading, "set")
    shape, notes = edit_fields(reading.shape, set)
    return replace(reading, shape=shape, assumptions=(*reading.assumptions, *notes))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
