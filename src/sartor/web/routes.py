"""The routes of ``routes.toml``: path, request fields and worker lane, used by the server, its checks and OpenAPI.

``/health``, ``/openapi.json`` and the page itself are in ``web.pages``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sartor.bounded import packaged_toml
from sartor.json_types import JsonDict
from sartor.web.fields import Field

QUICK, SLOW = "quick", "slow"
"""Worker lanes: quick answers take milliseconds and must not wait behind searches."""
STUDIES = "studies"
"""Design searches, each in its own process; the request does not wait for its end (``web.studies``)."""


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


def fields_of(*names: str) -> Iterator[Field]:
    """The fields with these names; the name of a group stands for its fields."""
    for name in names:
        if name in _TABLE["groups"]:
            yield from fields_of(*_TABLE["groups"][name])
        else:
            yield Field.of(name.rpartition(".")[2], _TABLE["fields"][name])


def _route(table: dict[str, Any]) -> Route:
    lists = {"fields": tuple(fields_of(*table.get("fields", ()))), "keys": tuple(table.get("keys", ()))}
    return Route(**{**table, **lists})


ROUTES = tuple(map(_route, _TABLE["routes"]))


def route_named(name: str) -> Route:
    return next(route for route in ROUTES if route.name == name)
