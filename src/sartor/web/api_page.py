"""The page and the document that say what can be asked over HTTP, both made from the table of routes."""

from __future__ import annotations

import json
from typing import Any

from sartor.report.html import Column, Markup, element, join, table
from sartor.web.fields import Field
from sartor.web.routes import ROUTES, Route

EXAMPLES: dict[str, Any] = {
    "estimate": {"model": "llama-3.1-8b", "gpu": "h100", "phase": "decode", "context_len": 8192},
    "gemm": {"m": 4096, "n": 4096, "k": 4096, "gpu": "a100"},
    "lint": {"model": "pythia-2.8b", "gpu": "a100"},
    "shape": {"model": "llama-2-70b", "set": {"ffn_hidden_size": 28160}},
    "sweep": {"model": "gpt2-xl", "field": "vocab_size", "values": [50257, 50304]},
    "compare": {"model": "gpt2-xl", "gpus": ["h100", "a100"], "shapes": [{"set": {}}, {"set": {"num_heads": 20}}]},
    "advise": {"model": "pythia-2.8b", "gpus": ["a100"]},
    "report": {"model": "pythia-2.8b", "gpus": ["a100"]},
    "config": {"model": "llama-3.1-8b", "set": {"num_layers": 30}},
    "plan": {"model": "llama-3.1-8b", "cluster": "dgx-h100", "num_devices": 64, "global_batch_size": 512},
    "plan_figures": {"model": "llama-3.1-8b", "num_devices": 64, "global_batch_size": 512},
    "plan_launch": {"model": "llama-3.1-8b", "num_devices": 64, "global_batch_size": 512, "trainer": "torchtitan"},
}
"""A body for each question, as a reader would try it first; tests send every one of them."""

INTRODUCTION = (
    "What the commands of sartor answer with --json, over HTTP on this machine. Bodies and answers are JSON; units are "
    "SI and stand in the key; every predicted time has low_s and high_s (80% interval) and source beside it. What "
    "cannot be used is answered 422 with the sentence of the command line in error.message, and error.field says "
    "which field it is about. 413: a body over 1 MB; 408: one that comes too slowly; 429: as many questions as the "
    "server takes at once, come again after Retry-After seconds."
)


def api_page() -> str:
    """The page at ``/api.html``: no script, the page's own styles."""
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
            element("title", "sartor: over HTTP"),
            Markup('<link rel="icon" href="icon.svg" type="image/svg+xml">'),
            Markup('<link rel="stylesheet" href="theme.css"><link rel="stylesheet" href="style.css">'),
            Markup('<script src="early.js"></script>'),
        ]
    )
    top = element("header", element("a", "sartor", href="/", class_="brand"), element("b", "over HTTP"), class_="top")
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
        columns = [Column(head=head, number=False) for head in ("field", "kind", "default", "what it is")]
        rows = [(f.name, kind_words(f), default_words(f), f.about) for f in route.fields]
        parts.append(
            element(
                "details",
                element("summary", f"{len(rows)} fields"),
                table(columns, rows, caption=f"Fields of {route.path}"),
            )
        )
    return element("section", *parts, class_="card", id=route.name)


def curl(route: Route, address: str = "http://127.0.0.1:8484") -> str:
    """A question as one line of shell."""
    body = json.dumps(EXAMPLES[route.name])
    return f"curl -s {address}{route.path} -H 'content-type: application/json' -d '{body}'"


def kind_words(field: Field) -> str:
    """``whole number``, ``list of words``."""
    words = {
        "integer": "whole number",
        "number": "number",
        "string": "word",
        "boolean": "true, false",
        "object": "object",
    }
    named = [f"list of {words[field.items]}s" if kind == "array" else words[kind] for kind in field.kinds]
    return " or ".join(named) + (f": {', '.join(field.words)}" if field.words else "")


def default_words(field: Field) -> str:
    return "required" if field.required else "" if field.default is None else str(field.default)


def api_markdown() -> str:
    """The same as a page of the documentation."""
    out = ["# Over HTTP", "", "Made from the table of routes (`src/sartor/web/routes.py`) by `tools/http_docs.py`.", ""]
    out += [
        INTRODUCTION,
        "",
        "`GET /openapi.json` is the OpenAPI 3.1 document, `GET /health` says whether the server answers.",
        "",
    ]
    for route in ROUTES:
        out += [f"## {route.method} {route.path}", "", f"{route.summary} {route.about}".strip(), ""]
        if route.name in EXAMPLES:
            out += ["```bash", curl(route), "```", ""]
        if route.keys:
            out += [f"Answers `sartor/{route.schema}/1` with `{'`, `'.join(route.keys)}`.", ""]
        if route.fields:
            out += ["| field | kind | default | what it is |", "|---|---|---|---|"]
            out += [f"| `{f.name}` | {kind_words(f)} | {default_words(f)} | {f.about} |" for f in route.fields]
            out += [""]
    return "\n".join(out).rstrip() + "\n"
