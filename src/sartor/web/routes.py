"""The routes of ``routes.toml``: path, request fields and worker lane, used by the server, its checks and OpenAPI.

``/health``, ``/openapi.json`` and the page itself are in ``web.pages``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sartor.bounded import packaged_toml
from sartor.json_types import JsonDict
from sartor.run.fields import FIELDS, TrainingOptions
from sartor.web.fields import Field
from sartor.web.lanes import QUICK


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the HTTP API. ``name`` is the function of ``web.answers`` that answers it."""

    name: str
    path: str
    summary: str
    about: str = ""
    method: str = "POST"
    fields: tuple[Field, ...] = ()
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


def fields_of(*names: str) -> Iterator[Field]:
    """The fields with these names; the name of a group stands for its fields."""
    for name in names:
        if name in GROUPS:
            yield from fields_of(*GROUPS[name])
        else:
            short = name.rpartition(".")[2]
            yield Field.of(short, {**_declared(short), **_TABLE["fields"].get(name, {})})


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
    lists = {"fields": tuple(fields_of(*table.get("fields", ()))), "keys": tuple(table.get("keys", ()))}
    return Route(**{**table, **lists})


ROUTES = tuple(map(_route, _TABLE["routes"]))


def route_named(name: str) -> Route:
    return next(route for route in ROUTES if route.name == name)
