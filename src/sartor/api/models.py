"""Read a model from any source: a file, a folder, a zoo name, a hub id or a graph of ``sartor extract``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.model.editing import edit_fields
from sartor.model.reading import ModelReading
from sartor.model.zoo import model_entry
from sartor.model.zoo.build import build_shape
from sartor.read.config_text import fetch_config
from sartor.read.graph_json import is_graph, not_traced, read_traced
from sartor.read.huggingface import read_model

Model = str | Path | ModelReading


def read(model: Model, set: JsonMap | None = None, changed_by: str = "") -> ModelReading:
    """The model of a config.json (or its folder), a graph of ``sartor extract``, a zoo name or a hub id, with fields
    changed by ``set``.

    A path that exists wins over a zoo name; a model already read is returned as it is. ``changed_by`` names a caller
    that changes the shape, which is not possible for a graph. Raises ``InputError``.
    """
    reading = model if isinstance(model, ModelReading) else replace(_named(model), asked=(str(model),))
    if set or changed_by:
        not_traced(reading, "set" if set else changed_by)
    if not set:
        return reading
    shape, notes = edit_fields(reading.shape, set)
    asked = [word for name, value in set.items() for word in ("--set", f"{name}={value}")]
    return replace(reading, shape=shape, assumptions=(*reading.assumptions, *notes), asked=(*reading.asked, *asked))


def _named(model: str | Path) -> ModelReading:
    text = str(model)
    path = Path(text)
    if "://" in text and text.endswith((".json", "/")):
        repository = re.search(r"huggingface\.co/([^/]+/[^/]+)", text)
        must = "must be a file or a name, not a URL: download the config.json, or give its hub id (org/name)"
        raise InputError("model", text, must, repository[1] if repository else "")
    if is_graph(path):
        return read_traced(path)
    if isinstance(model, Path) or text.endswith((".json", "/", "\\")) or _exists(path):
        return read_model(path)
    if text.count("/") == 1:
        return read_model(fetch_config(text), name=text.rpartition("/")[2])
    entry = model_entry(text)
    return ModelReading(
        shape=build_shape(entry),
        notes=(f"from the zoo: sartor catalog models {text}",),
        weights=entry.get("weights", ""),
    )


def read_each(model: Model | Sequence[Model], set: JsonMap | None = None) -> tuple[ModelReading, ...]:
    """One model or several, each as in `read`."""
    return tuple(read(each, set) for each in ([model] if isinstance(model, Model) else model))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
