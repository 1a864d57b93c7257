"""Published defaults of the model classes: what a field means when a file of that ``model_type`` omits it.

The table (``class_defaults.json``) holds facts only, one entry per model type: default values of the fields that affect
the shape, aliases of fields, and the default model type of nested configs. ``lab/class_defaults.py`` writes it from the
configuration classes of the release it names.
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
