"""``sartor catalog``: known devices, models, clusters, rules and spaces, with sources."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.json_types import JsonDict


def catalog(
    what: Annotated[
        str, typer.Argument(metavar="gpus|models|clusters|rules|accelerators|spaces", help="Which catalogue.")
    ],
    name: Annotated[str | None, typer.Argument(help="Show one entry with all fields and sources.")] = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """List GPUs, models, clusters, rules, accelerator templates and design spaces, with sources.

    Example: `sartor catalog gpus h100`
    """
    if what not in SHELVES:
        raise InputError("catalog", what, f"must be one of {', '.join(SHELVES)}")
    entries = entries_of(what, name)
    c.answer("catalog", {"catalog": what, "entries": entries}, as_json=json, out=out)
    if not json:
        from sartor.report.catalog_view import catalog_view

        c.show(catalog_view(what, entries, whole=name is not None))


SHELVES = ("gpus", "models", "clusters", "rules", "accelerators", "spaces")
_FILES = {
    "gpus": ("sartor.hardware.catalog", "gpu"),
    "models": ("sartor.model.zoo", "model"),
    "clusters": ("sartor.hardware.cluster_catalog", "cluster"),
    "accelerators": ("sartor.hardware.accelerator_catalog", "accelerator"),
    "spaces": ("sartor.read.space_file", "space"),
}
"""The module of each catalogue of files, and the word before ``_names`` and ``_entry`` in its functions."""


def entries_of(what: str, name: str | None = None) -> list[JsonDict]:
    """All entries of a catalogue, or the one with a name."""
    if what == "rules":
        from sartor.rules.catalog import rule_entries

        return rule_entries(name)
    module, word = _FILES[what]
    found = import_module(module)
    entry = getattr(found, f"{word}_entry")
    return [entry(each) for each in ([name] if name else getattr(found, f"{word}_names")())]
