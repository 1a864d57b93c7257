"""The OpenAPI 3.1 document of the server, made from the table of routes."""

from __future__ import annotations

import re

from sartor import __version__
from sartor.api.catalogs import SHELVES
from sartor.json_types import JsonDict
from sartor.web.routes import ROUTES, Route

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
    return {"schema": request_schema(route)}


def request_schema(route: Route) -> JsonDict:
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
