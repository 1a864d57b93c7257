"""The routes of ``routes.toml``: path, worker lane, and the request's fields with schema and type check.

``/health``, ``/openapi.json`` and the page itself are in ``web.server``.

Ranges and words are checked by the same functions as on the command line, with the same messages; only JSON types and
unknown fields are checked here.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sartor.bounded import packaged_toml
from sartor.errors import NOT_GIVEN, InputError, Stated, quoted
from sartor.json_types import JsonDict, JsonMap
from sartor.run.fields import FIELDS, TrainingOptions
from sartor.web.work import QUICK


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """One field of a request body. An optional field may be null, which means "not given"."""

    name: str
    about: JsonDict
    """Its JSON Schema (2020-12)."""
    required: bool = False

    @classmethod
    def of(cls, name: str, table: JsonMap) -> RequestField:
        """A field from its entry in ``routes.toml``."""
        return cls(
            name=name,
            about={key: value for key, value in table.items() if key != "required"},
            required=table.get("required", False),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The JSON Schema types it may have."""
        kinds = self.about["type"]
        return (kinds,) if isinstance(kinds, str) else tuple(kinds)

    @property
    def items(self) -> str:
        """The element type of a list field."""
        return str(self.about.get("items", {}).get("type", ""))

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.about.get("enum", ()))

    @property
    def default(self) -> Any:
        return self.about.get("default")

    @property
    def example(self) -> str:
        """A valid example value; empty if there is none."""
        return "".join(str(value) for value in self.about.get("examples", ()))

    def schema(self) -> JsonDict:
        """The field as OpenAPI 3.1 embeds it."""
        if self.required:
            return self.about
        null = {"enum": [*self.words, None]} if self.words else {}
        return {**self.about, "type": [*self.kinds, "null"], **null}


def checked(fields: Sequence[RequestField], body: JsonMap) -> JsonDict:
    """The request's values, with defaults for missing ones. Raises ``InputError``.

    Unknown fields are rejected with the nearest known one; null means "not given".
    """
    by_name = {field.name: field for field in fields}
    for name in body:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, 3, 0.5)
            raise InputError(name, body[name], "is not a field of this request", ", ".join(near or by_name))
    return {field.name: _value(field, body.get(field.name)) for field in fields}


def _value(field: RequestField, value: object) -> object:
    if value is None:
        if field.required:
            raise InputError(
                field.name, NOT_GIVEN, f"must be given{field.example and f', for example {field.example}'}"
            )
        return field.default
    if not any(_is(kind, value) for kind in field.kinds):
        word = value if "string" in field.kinds else quoted(value)
        raise InputError(field.name, word, f"must be {_kinds(field.kinds)}", _near(field, value))
    if isinstance(value, list):
        _check_list(field, value)
    return float(value) if isinstance(value, int | float) and field.kinds == ("number",) else value


def _near(field: RequestField, value: object) -> str:
    """The nearest value of the field's kind: a string's number without its quotes, or a whole number beside a broken
    one; empty if there is none."""
    if isinstance(value, str) and not {"integer", "number"}.isdisjoint(field.kinds):
        return f"{value} without quotes" if re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,12})?", value) else ""
    if not isinstance(value, float) or "integer" not in field.kinds:
        return ""
    from sartor.step.question import MOST  # late: the first page waits for no NumPy

    return str(min(max(round(value), field.about.get("minimum", -MOST)), MOST))


def _check_list(field: RequestField, values: list[object]) -> None:
    longest = field.about.get("maxItems", len(values))
    if "maxItems" in field.about and not 1 <= len(values) <= longest:
        raise InputError(field.name, Stated(f"has {len(values)} entries"), f"must be a list of 1 to {longest}")
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


_KIND_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a word",
    "boolean": "true or false",
    "object": "an object { ... }",
    "array": "a list [ ... ]",
}


def _kinds(kinds: Sequence[str]) -> str:
    return " or ".join(_KIND_WORDS[kind] for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the HTTP API. ``name`` is the function of ``web.answers`` that answers it."""

    name: str
    path: str
    summary: str
    about: str = ""
    method: str = "POST"
    fields: tuple[RequestField, ...] = ()
    lane: str = QUICK
    media: str = "application/json"
    takes: str = "application/json"
    body_bytes: int = 0
    """Largest body; 0: as in the server's settings."""
    schema: str = ""
    """The ``schema`` key of the answer: ``sartor/<schema>/1``; empty where the answer is not JSON."""
    keys: tuple[str, ...] = ()
    """Keys that every answer has besides ``schema`` and ``version``."""
    example: JsonDict = field(default_factory=dict)
    """An example body; tests send all of them."""


_TABLE = packaged_toml("web", "routes.toml")
GROUPS = {**_TABLE["groups"], "training": [*TrainingOptions.__annotations__]}


def _fields_of(*names: str) -> Iterator[RequestField]:
    """The fields with these names; the name of a group stands for its fields."""
    for name in names:
        if name in GROUPS:
            yield from _fields_of(*GROUPS[name])
        else:
            short = name.rpartition(".")[2]
            yield RequestField.of(short, {**_declared(short), **_TABLE["fields"].get(name, {})})


_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _declared(name: str) -> JsonDict:
    """Type, bounds and words of a field of a run, from the table of its fields; empty for other fields."""
    row = FIELDS.get(name)
    if row is None or row.kind not in _KINDS:
        return {}
    about: JsonDict = {"type": _KINDS[row.kind], "description": _plain(row.help)}
    about |= {"examples": [row.kind(row.example)]} if row.example else {}
    about |= {} if row.least is None else {"minimum": int(row.least)}
    return about | ({"enum": list(row.choices)} if row.choices else {})


def _plain(words: str) -> str:
    """A flag's help as a field's: ``--seq-len`` is seq_len here."""
    return re.sub(
        r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), re.sub(r"\[default: (.*)\]", r"Default: \1.", words)
    )


def _route(table: dict[str, Any]) -> Route:
    lists = {"fields": tuple(_fields_of(*table.get("fields", ()))), "keys": tuple(table.get("keys", ()))}
    return Route(**{**table, **lists})


ROUTES = tuple(map(_route, _TABLE["routes"]))


def route_named(name: str) -> Route:
    return next(route for route in ROUTES if route.name == name)
