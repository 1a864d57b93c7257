"""The HTTP API described from the table of routes: as an OpenAPI 3.1 document, and as a page."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from sartor import __version__
from sartor.api.models import SHELVES
from sartor.json_types import JsonDict
from sartor.report.grid import GridColumn, Markup, element, grid_of, grid_table, join
from sartor.web.routes import ROUTES, RequestField, Route

REFUSALS = {
    "413": "The body is larger than the server takes.",
    "422": "The input cannot be used: one sentence with field, value, what must hold and the nearest that would.",
    "429": "Busy: ask again after Retry-After seconds.",
}


def openapi() -> JsonDict:
    """The document, byte for byte the same for the same version."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sartor",
            "version": __version__,
            "summary": "Cuts the model to the hardware, the hardware to the model, and the plan to both.",
            "description": (
                "What the commands of sartor answer with `--json`, over HTTP. Units are SI and stand in the key. "
                "Every predicted time has `low_s` and `high_s` beside it (80% interval)."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": _paths(),
        "components": {"schemas": {"Error": _error()}},
    }


def _paths() -> JsonDict:
    paths: JsonDict = {"/health": {"get": _health()}}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> JsonDict:
    operation: JsonDict = {"operationId": route.name, "summary": route.summary}
    if route.about:
        operation["description"] = route.about
    if names := re.findall(r"{(\w+)}", route.path):
        operation["parameters"] = [_parameter(name) for name in names]
    if route.method == "POST":
        operation["requestBody"] = {"required": True, "content": {route.takes: _taken(route)}}
    ok = {"description": "The answer.", "content": {route.media.partition(";")[0]: {"schema": _answer(route)}}}
    refusals = {code: _refusal(text) for code, text in REFUSALS.items() if code != "413" or route.method == "POST"}
    operation["responses"] = {
        "200": ok,
        **refusals,
        "default": _refusal("Refused: host, origin, token or kind of body."),
    }
    return operation


def _taken(route: Route) -> JsonDict:
    if route.takes != "application/json":
        return {"schema": {"type": "string", "contentMediaType": "application/vnd.sqlite3"}}
    return {"schema": _request_schema(route)}


def _request_schema(route: Route) -> JsonDict:
    """The body of a POST as JSON Schema."""
    required = [field.name for field in route.fields if field.required]
    schema: JsonDict = {
        "type": "object",
        "properties": {field.name: field.schema() for field in route.fields},
        "additionalProperties": False,
    }
    return {**schema, "required": required} if required else schema


def _answer(route: Route) -> JsonDict:
    if not route.schema:
        return {"type": "string" if route.media.startswith("text") else "object"}
    named = {"schema": {"const": f"sartor/{route.schema}/1"}, "version": {"type": "string"}}
    keys: JsonDict = {key: {} for key in route.keys}
    return {"type": "object", "properties": {**named, **keys}, "required": [*named, *keys]}


def _parameter(name: str) -> JsonDict:
    schema: JsonDict = {"type": "string", "enum": [*SHELVES]} if name == "what" else {"type": "string"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _refusal(text: str) -> JsonDict:
    return {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }


def _error() -> JsonDict:
    text = {"type": "string"}
    error = {"message": text, "field": text, "value": text, "must": text, "nearest": {"type": ["string", "null"]}}
    return {
        "type": "object",
        "properties": {
            "schema": {"const": "sartor/error/1"},
            "version": text,
            "error": {"type": "object", "properties": error, "required": [*error]},
        },
        "required": ["schema", "version", "error"],
    }


def _health() -> JsonDict:
    schema = {"type": "object", "required": ["status", "version"], "properties": {"status": {"const": "ok"}}}
    return {
        "operationId": "health",
        "summary": "Whether the server answers.",
        "responses": {"200": {"description": "It does.", "content": {"application/json": {"schema": schema}}}},
    }


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
        rows = [(f.name, _kind_words(f), _default_words(f), f.about["description"]) for f in route.fields]
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


def _kind_words(field: RequestField) -> str:
    """The JSON types of a field: ``integer``, ``list of strings``."""
    named = [f"list of {field.items}s" if kind == "array" else kind for kind in field.kinds]
    return " or ".join(named) + (f": {', '.join(field.words)}" if field.words else "")


def _default_words(field: RequestField) -> str:
    if field.required or field.default is None:
        return "required" if field.required else ""
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
