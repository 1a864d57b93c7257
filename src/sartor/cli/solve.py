"""``sartor place``: which layers form which stage, with how many copies and what tensor-parallel width."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o


def place(
    instance: Annotated[
        Path, typer.Argument(metavar="INSTANCE.json", help="A placement instance.", show_default=False)
    ],
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms",
            metavar="FILE.json",
            help="Add cost terms: link tiers, gradient reduction of every stage, device types, interleaving, ZeRO.",
        ),
    ] = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Find the optimal placement of an instance (layers with times and bytes) on identical devices.

    Exits with 3 if nothing fits, naming the least memory and the fewest devices that would do.

    Example: `sartor place examples/placement/encoder_decoder.json`
    """
    from sartor import api
    from sartor.report.solved import placement_view

    result = api.place(instance, terms=terms)
    c.answer("place", result.to_dict(), as_json=json, out=out)
    if not json:
        c.show(placement_view(result))
    if result.plan is None:
        if json and result.tightest:
            c.say(f"sartor: {result.tightest.message}")
        raise c.Exit(3)
