"""The HTTP API as an HTML page, made from the table of routes."""

from __future__ import annotations

import base64
import json
from typing import Any

from sartor.json_types import JsonDict
from sartor.report.grid import GridColumn, grid_of
from sartor.report.html import Markup, element, grid_table, join
from sartor.web.fields import Field
from sartor.web.routes import ROUTES, Route

LOG = "".join(
    f"step: {i:2d}  loss: 10.4  memory: 30.89GiB(32.5%)  tps: {6300 + i}  tflops: 367.4\n" for i in range(1, 7)
)
"""A training log as torchtitan prints it."""
EXAMPLES: JsonDict = {route.name: route.example for route in ROUTES if route.example}
EXAMPLES["diagnose"]["run"] = base64.b64encode(LOG.encode()).decode()
"""An example body for each request; tests send all of them."""

INTRODUCTION = (
    "The commands of sartor over HTTP, on this machine. Bodies and answers are JSON, the same as with --json on the "
    "command line: SI units, with the unit in the key; every predicted time has low_s and high_s (80% interval) and "
    "source beside it. Status 422: the input can't be used; error.message says why and error.field names the field. "
    "413: the body is over 1 MB (a run: 32 MiB). 408: the body arrives too slowly. 429: the server is busy; try "
    "again after Retry-After seconds."
)


def api_page() -> str:
    """The page at ``/api.html``, without scripts."""
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
            element("title", "sartor HTTP API"),
            Markup('<link rel="icon" href="icon.svg" type="image/svg+xml">'),
            Markup('<link rel="stylesheet" href="theme.css"><link rel="stylesheet" href="style.css">'),
            Markup('<script src="early.js"></script>'),
        ]
    )
    top = element("header", element("a", "sartor", href="/", class_="brand"), element("b", "HTTP API"), class_="top")
    links = element(
        "p",
        element("a", "openapi.json", href="openapi.json"),
        " (OpenAPI 3.1), ",
        element("a", "health", href="health"),
    )
    main = element(
        "main", element("p", INTRODUCTION), links, *(_section(route) for route in ROUTES), class_="stack api"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{top}{main}</body></html>\n'


def _section(route: Route) -> Markup:
    parts: list[Any] = [element("h2", element("code", f"{route.method} {route.path}"))]
    parts.append(element("p", f"{route.summary} {route.about}".strip()))
    if route.name in EXAMPLES:
        parts.append(element("pre", curl(route), tabindex="0"))
    if route.fields:
        columns = [GridColumn(head=head, number=False) for head in ("field", "type", "default", "meaning")]
        rows = [(f.name, kind_words(f), default_words(f), f.about["description"]) for f in route.fields]
        parts.append(
            element(
                "details",
                element("summary", f"{len(rows)} fields"),
                grid_table(grid_of(f"Fields of {route.path}", columns, rows)),
            )
        )
    return element("section", *parts, class_="card", id=route.name)


def curl(route: Route, address: str = "http://127.0.0.1:8484") -> str:
    """An example request as a shell command."""
    body = json.dumps(EXAMPLES[route.name])
    return f"curl -s {address}{route.path} -H 'content-type: application/json' -d '{body}'"


def kind_words(field: Field) -> str:
    """The JSON types of a field: ``integer``, ``list of strings``."""
    named = [f"list of {field.items}s" if kind == "array" else kind for kind in field.kinds]
    return " or ".join(named) + (f": {', '.join(field.words)}" if field.words else "")


def default_words(field: Field) -> str:
    if field.required or field.default is None:
        return "required" if field.required else ""
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
