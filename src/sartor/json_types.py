"""JSON objects: their types, and plain values out of nouns, in a module that imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import Any, TypeAlias

from sartor.version import __version__

JsonDict: TypeAlias = dict[str, Any]
"""A JSON object or TOML table that is written."""
JsonMap: TypeAlias = Mapping[str, Any]
"""A JSON object or TOML table that is only read."""


def picked(noun: object, *names: str) -> JsonDict:
    """Some attributes as plain values, under their own names."""
    return {name: plain(getattr(noun, name)) for name in names}


def record(noun: object) -> Any:
    """A frozen dataclass as a dictionary of plain values."""
    if is_dataclass(noun) and not isinstance(noun, type):
        return {f.name: plain(getattr(noun, f.name)) for f in fields(noun)}
    return plain(noun)


def plain(value: object) -> Any:
    """NumPy and enum values as plain Python ones; infinities and NaN as null, because JSON lacks them."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    return record(value) if hasattr(value, "__dataclass_fields__") else value


def envelope(command: str, body: JsonDict) -> str:
    """An answer as text: schema and version first, SI numbers, no NaN or Infinity, same bytes every time."""
    whole = {"schema": f"sartor/{command}/1", "version": __version__, **body}
    return json.dumps(whole, indent=2, allow_nan=False, ensure_ascii=True, default=_plain_or_refused) + "\n"


def _plain_or_refused(value: object) -> Any:
    """NumPy scalars and arrays as plain Python values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} does not belong in JSON")
