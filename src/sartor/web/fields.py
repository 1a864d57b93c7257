"""Fields of a request: description, JSON Schema, and type check.

Ranges and words are checked by the same functions as on the command line, with the same messages; here only JSON types
and unknown fields are checked.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a request body. ``kinds`` are JSON Schema's types; ``most`` bounds the length of a list."""

    name: str
    about: str
    kinds: tuple[str, ...]
    default: object = None
    example: object = None
    words: tuple[str, ...] = ()
    required: bool = False
    items: str = ""
    most: int = 0
    least: int | None = None

    def schema(self) -> JsonDict:
        """The field in JSON Schema 2020-12, as OpenAPI 3.1 embeds it."""
        found: JsonDict = {"description": self.about}
        kinds = [*self.kinds]
        if not self.required:
            kinds.append("null")
        found["type"] = kinds[0] if len(kinds) == 1 else kinds
        if self.words:
            found["enum"] = [*self.words, *([None] if "null" in kinds else [])]
        if self.items:
            found["items"] = {"type": self.items}
        if self.most and "array" in kinds:
            found |= {"maxItems": self.most, "minItems": 1}
        if self.least is not None:
            found["minimum"] = self.least
        if self.default is not None:
            found["default"] = self.default
        if self.example is not None:
            found["examples"] = [self.example]
        return found


def word(name: str, about: str, **more: Any) -> Field:
    """A field that is text."""
    return Field(name=name, about=about, kinds=("string",), **more)


def whole(name: str, about: str, **more: Any) -> Field:
    """A field that is a whole number."""
    return Field(name=name, about=about, kinds=("integer",), **more)


def number(name: str, about: str, **more: Any) -> Field:
    """A field that is a number."""
    return Field(name=name, about=about, kinds=("number",), **more)


def flag(name: str, about: str, **more: Any) -> Field:
    """A field that is true or false."""
    return Field(name=name, about=about, kinds=("boolean",), **{"default": False, **more})


def table(name: str, about: str, **more: Any) -> Field:
    """A field that is an object."""
    return Field(name=name, about=about, kinds=("object",), **more)


def listed(items: str, name: str, about: str, **more: Any) -> Field:
    """A field that is a list, each entry of the kind ``items``."""
    return Field(name=name, about=about, kinds=("array",), items=items, **more)


def checked(fields: Sequence[Field], body: JsonMap) -> JsonDict:
    """The request's values, with defaults for missing ones. Raises ``InputError``.

    Unknown fields are rejected with the nearest known one; null means "not given".
    """
    known = {field.name: field for field in fields}
    for name in body:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.5)
            raise InputError(name, body[name], "is not a field of this request", ", ".join(near or known))
    return {field.name: _value(field, body.get(field.name)) for field in fields}


def _value(field: Field, value: object) -> object:
    if value is None:
        if field.required:
            raise InputError(field.name, "not given", "must be given", _shown(field.example))
        return field.default
    if not any(_is(kind, value) for kind in field.kinds):
        raise InputError(field.name, value, f"must be {_kinds(field.kinds)}", _shown(field.example))
    if isinstance(value, list):
        _check_list(field, value)
    return float(value) if isinstance(value, int | float) and field.kinds == ("number",) else value


def _check_list(field: Field, values: list[object]) -> None:
    if field.most and not 1 <= len(values) <= field.most:
        raise InputError(field.name, f"{len(values)} entries", f"must be a list of 1 to {field.most}")
    for value in values:
        if field.items and not _is(field.items, value):
            raise InputError(field.name, value, f"must be a list of which each is {_kinds((field.items,))}")


def _is(kind: str, value: object) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
    return isinstance(value, {"string": str, "boolean": bool, "object": dict, "array": list}[kind])


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a word",
    "boolean": "true or false",
    "object": "an object { ... }",
    "array": "a list [ ... ]",
}


def _kinds(kinds: Sequence[str]) -> str:
    return " or ".join(_KINDS[kind] for kind in kinds)


def _shown(example: object) -> str:
    return "" if example is None else str(example)
