"""``sartor compare``: what changed between two runs, usable as a performance gate in CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o

First = Annotated[Path, typer.Argument(metavar="A", help="Log or profiler trace of the run to compare with.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="The same of the run that is judged.")]
Threshold = Annotated[
    float, typer.Option("--threshold", metavar="SHARE", help="Smallest relative change that fails the comparison.")
]


RunA = Annotated[
    int | None,
    typer.Option("--run-a", metavar="N", parser=o.whole_number, help="Which run of log A. [default: the last]"),
]
RunB = Annotated[
    int | None,
    typer.Option("--run-b", metavar="N", parser=o.whole_number, help="Which run of log B. [default: the last]"),
]


def compare(
    a: First,
    b: Second,
    threshold: Threshold = 0.02,
    run_a: RunA = None,
    run_b: RunB = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Say what changed from run A to run B, and whether it is more than the noise of their steps.

    Exits with 1 where B's step is slower, or its memory larger, by more than noise and threshold: a gate for CI.

    Example: `sartor compare baseline.log today.log --threshold 0.03`

    Example: `sartor compare train.log train.log --run-a 1 --run-b 2`
    """
    from sartor import api
    from sartor.report.diagnose_document import compare_view

    found = api.compare(a, b, threshold=threshold, run_a=run_a, run_b=run_b)
    c.answer("compare", found.to_dict(), as_json=json, out=out)
    if not json:
        c.show(compare_view(found))
    if found.worse:
        raise c.Exit(1)
