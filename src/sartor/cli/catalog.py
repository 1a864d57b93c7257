"""``sartor catalog``: known devices, models, clusters, rules and spaces, with sources."""

from __future__ import annotations

from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o


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
    from sartor.api.catalogs import catalog_entries

    entries = catalog_entries(what, name)
    c.answer("catalog", {"catalog": what, "entries": entries}, as_json=json, out=out)
    if not json:
        from sartor.report.catalog_view import catalog_view

        c.show(catalog_view(what, entries, whole=name is not None))
