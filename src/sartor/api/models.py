"""Read a model from any source: a file, a folder, a zoo name, a hub id, a Hugging Face configuration or a graph of
``sartor extract``; and the entries of the catalogues by name, with every field and its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Protocol

from sartor.answers.field import Answer, Fields, Level, Scalar, flag, mapping, number, numbers, rows, text
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.counts import check_countable
from sartor.model.editing import edit_fields
from sartor.model.shape import TransformerShape
from sartor.model.workload import ModelReading
from sartor.model.zoo import build_shape, model_entry
from sartor.units import format_count


class HuggingFaceConfig(Protocol):
    """What is read of a ``transformers.PretrainedConfig``."""

    model_type: str

    def to_dict(self) -> JsonDict: ...


READ: Fields = (
    text("name", "model", path="shape.name", level=Level.HEADLINE),
    text("model_type", path="shape.model_type"),
    number("num_params", "parameters", form=lambda count: format_count(float(count)), level=Level.HEADLINE),
    *numbers("num_active_params text_params"),
    flag("exact", "exact", help="the counts equal those of the published class", level=Level.HEADLINE),
    rows("unread_sizes", Scalar.TEXT, help="entries of the config that name a size and were not read"),
    rows("assumptions", Scalar.TEXT),
    rows("notes", Scalar.TEXT),
    mapping("", Scalar.INTEGER, path=lambda reading: reading.shape.fields(), help="sizes of the shape"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelAnswer(Answer, ModelReading):
    """A model as read: its shape, its parameters, and what is not from the file."""

    fields: ClassVar[Fields] = READ


Model = str | Path | ModelReading | JsonMap | HuggingFaceConfig


def read(model: Model, set: JsonMap | None = None, changed_by: str = "") -> ModelAnswer:
    """The model of a file, a name or a Hugging Face configuration: its shape, its parameters, what was assumed.

    Parameters
    ----------
    model
        A config.json or its folder, a Hugging Face configuration (the object or its dictionary), a graph of
        ``sartor extract``, a zoo name or a hub id. A path that exists wins over a zoo name; a model already read is
        returned as it is.
    set
        Fields of the shape to change.
    changed_by
        A caller that changes the shape, which is not possible for a graph.

    Returns
    -------
    ModelAnswer
        ``shape``, ``num_params`` (and whether they are ``exact``), ``assumptions``.

    Raises
    ------
    InputError
        For what is no model, in one sentence with the nearest that is.

    Examples
    --------
    >>> read("gpt2", set={"num_heads": 6}).shape.num_heads
    6
    """
    reading = model if isinstance(model, ModelAnswer) else ModelAnswer.holding(_read(model))
    if (set or changed_by) and reading.shape.traced is not None:
        from sartor.read.graph_json import not_traced

        not_traced(reading, "set" if set else changed_by)
    if set:
        shape, notes = edit_fields(reading.shape, set)
        asked = [word for name, value in set.items() for word in ("--set", f"{name}={value}")]
        notes = (*reading.assumptions, *notes)
        reading = replace(reading, shape=shape, assumptions=notes, asked=(*reading.asked, *asked))
    check_countable(reading.shape)
    return reading


def _read(model: Model) -> ModelReading:
    if isinstance(model, ModelReading):
        return model
    if isinstance(model, str) and not model.strip():
        raise InputError("model", "''", "is empty: must be a name, a file or a hub id", "llama-3.1-8b")
    if isinstance(model, str | Path):
        return replace(_named(model), asked=(str(model),))
    from sartor.read.config_text import parse_config  # no model of the zoo needs the readers
    from sartor.read.huggingface import read_model

    config = model if isinstance(model, Mapping) else _config_of(model)
    return read_model(parse_config(json.dumps(dict(config), default=str).encode(), name="model"))


def _config_of(model: HuggingFaceConfig) -> JsonDict:
    """The fields of a configuration object. Raises ``InputError`` for any other object."""
    if not (hasattr(model, "to_dict") and hasattr(model, "model_type")):
        must = "must be a name, a path, or a Hugging Face configuration (the object or its dictionary)"
        raise InputError("model", type(model).__name__, must, "llama-3.1-8b")
    return model.to_dict()


def _named(model: str | Path) -> ModelReading:
    text = str(model)
    path = Path(text)
    if "://" in text and text.endswith((".json", "/")):
        repository = re.search(r"huggingface\.co/([^/]+/[^/]+)", text)
        must = "must be a file or a name, not a URL: download the config.json, or give its hub id (org/name)"
        raise InputError("model", text, must, repository[1] if repository else "")
    is_path = isinstance(model, Path) or text.endswith((".json", "/", "\\")) or _exists(path)
    return _from_file(path) if is_path else _from_hub(text) if text.count("/") == 1 else from_zoo(text)


def _from_file(path: Path) -> ModelReading:
    """The model of a graph, a config.json or its folder; no model of the zoo loads the readers."""
    from sartor.read.graph_json import is_graph, read_traced
    from sartor.read.huggingface import read_model

    return read_traced(path) if is_graph(path) else read_model(path)


def _from_hub(name: str) -> ModelReading:
    from sartor.read.config_text import fetch_config
    from sartor.read.huggingface import read_model

    return read_model(fetch_config(name), name=name.rpartition("/")[2])


def from_zoo(name: str) -> ModelReading:
    """The zoo's model of that name. Raises ``InputError``."""
    entry, notes = model_entry(name), (f"from the zoo: sartor catalog models {name}",)
    return ModelReading(shape=build_shape(entry), notes=notes, weights=entry.get("weights", ""), asked=(name,))


def config_text(model: Model, shape: TransformerShape) -> str:
    """A config.json with a model's sizes changed to those of ``shape``, under the file's own keys. Raises
    ``InputError`` if no such file exists."""
    from sartor.read.config_text import fetch_config, read_config
    from sartor.read.zoo_config import config_with

    original, config = read(model).shape, model if isinstance(model, Mapping) else None
    if isinstance(model, str | Path):
        path, text = Path(model), str(model)
        if _exists(path) or text.count("/") == 1:
            config = read_config(path if _exists(path) else fetch_config(text))
    before = original.fields()
    changes = {name: int(value) for name, value in shape.fields().items() if before.get(name) != value}
    return json.dumps(config_with(config, str(model), original, shape, changes), indent=2, ensure_ascii=True) + "\n"


def read_each(model: Model | Sequence[Model], set: JsonMap | None = None) -> tuple[ModelReading, ...]:
    """One model or several, each as in `read`."""
    models = model if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    return tuple(read(each, set) for each in models)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


_FILES = {
    "gpus": ("sartor.hardware.catalog", "GPUS.names", "gpu_entry"),
    "models": ("sartor.model.zoo", "model_names", "model_entry"),
    "clusters": ("sartor.hardware.cluster_catalog", "CLUSTERS.names", "cluster_entry"),
    "accelerators": ("sartor.hardware.accelerator_catalog", "ACCELERATORS.names", "accelerator_entry"),
    "spaces": ("sartor.read.space_file", "space_names", "space_entry"),
}
"""The module of each catalogue of files, and its functions of all names and of one entry."""
SHELVES = ("gpus", "models", "clusters", "rules", "accelerators", "spaces")


def catalog_entries(shelf: str, name: str | None = None) -> list[JsonDict]:
    """All entries of a catalogue, or the one with a name. Raises ``InputError``."""
    if shelf not in SHELVES:
        raise InputError("catalog", shelf, f"must be one of {', '.join(SHELVES)}")
    if shelf == "rules":
        from sartor.rules.shape import rule_entries

        return rule_entries(name)
    module, *functions = _FILES[shelf]
    names, entry = (attrgetter(function)(import_module(module)) for function in functions)
    return [entry(item) for item in ([name] if name else names())]


def catalog_names(shelf: str) -> list[str]:
    """Names and other names of a catalogue's entries, as a shell completes them."""
    if shelf == "rules":
        return [str(row["name"]) for row in catalog_entries(shelf)]
    module = import_module(_FILES[shelf][0])
    folder = getattr(module, shelf.upper(), None)
    others = folder.aliases() if folder else module.model_aliases() if shelf == "models" else ()
    return [*attrgetter(_FILES[shelf][1])(module)(), *sorted(others)]
