"""Names and defaults of the published model classes: what a field means when a file of that ``model_type`` omits it.

The tables hold facts only; ``lab/class_defaults.py`` writes them from the classes of the release it names.
``class_defaults.json`` has default values of the fields that affect the shape, aliases of fields and the default model
type of nested configs; ``published_classes.json`` has the classes' names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from sartor.json_types import JsonDict
from sartor.read.config_text import packaged_json
from sartor.read.family_table import family_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDefaults:
    """Published defaults of one model type; empty for an unknown one."""

    values: JsonDict = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)
    known: bool = False


@cache
def class_defaults(model_type: str) -> ClassDefaults:
    """The defaults of ``model_type``, published or of its row."""
    row = family_rows().get(model_type)
    if row is not None and (row.defaults or row.aliases or row.nested):
        return ClassDefaults(values=row.defaults, aliases=row.aliases, nested=row.nested, known=True)
    entry = packaged_json("class_defaults.json")["model_types"].get(model_type)
    if entry is None:
        return _UNKNOWN
    return ClassDefaults(
        values=entry.get("values", {}), aliases=entry.get("aliases", {}), nested=entry.get("nested", {}), known=True
    )


@cache
def published_field_names() -> frozenset[str]:
    """Every field of any published configuration class, including nested configs and base classes."""
    return frozenset(str(packaged_json("class_defaults.json")["field_names"]).split())


_UNKNOWN = ClassDefaults()


def is_published_class(name: str) -> bool:
    """Whether the release has a model class of that name."""
    return name in _names()


def default_class(model_type: str) -> str:
    """The class to build for a file of ``model_type`` that names none; ``""`` for an unknown type."""
    return str(packaged_json("published_classes.json")["default"].get(model_type, ""))


def types_of_class(name: str) -> list[str]:
    """The model types whose default class has that name."""
    return [
        model_type for model_type, built in packaged_json("published_classes.json")["default"].items() if built == name
    ]


@cache
def _names() -> frozenset[str]:
    return frozenset(
        stem + end for stem, ends in packaged_json("published_classes.json")["classes"].items() for end in ends
    )
