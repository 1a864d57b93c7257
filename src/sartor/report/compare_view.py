"""Two runs side by side, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.report.table_estimate import notes, plain_table
from sartor.report.words import printable, signed_share
from sartor.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers.diagnosis import RunComparison
    from sartor.step.measured_run import RunChange

MOST_RATIO = 10.0
"""Upper end of a ratio's interval above which it is not shown."""
SHOWN = 15
"""Operators that the terminal lists."""


def compare_view(answer: RunComparison) -> RenderableType:
    """The verdict, then what changed."""
    parts: list[RenderableType] = [Text(_verdict(answer), style="bold"), _table(answer)]
    changed = [f"{name}: {old} in A, {new} in B" for name, (old, new) in answer.facts.items()]
    return Group(*parts, *notes("Facts that differ", changed), *notes("Warnings", answer.warnings))


def _verdict(answer: RunComparison) -> str:
    total, limit = answer.total, format_share(answer.threshold)
    what = "All kernels take" if total.name == "kernels" else f"A {total.name} takes"
    said = f"{what} {format_seconds(total.a)} in A and {format_seconds(total.b)} in B"
    interval = signed_share(total.ratio - 1)
    if total.high < MOST_RATIO:
        interval += f" ({signed_share(total.low - 1)} to {signed_share(total.high - 1)})"
    if not total.significant:
        return f"{said}: {interval}. No change beyond noise."
    faster = "slower" if total.ratio > 1 else "faster"
    beyond = (
        f"beyond the threshold of {limit}" if total.beyond(answer.threshold) else f"within the threshold of {limit}"
    )
    return f"{said}: {interval}. B is {faster}, more than noise, {beyond}."


def _table(answer: RunComparison) -> Table:
    table = plain_table("", "A", "B", "change", "99% interval", "")
    rows: list[tuple[RunChange, Callable[[float], str]]] = [
        (each, format_seconds) for each in (answer.total, *answer.parts[:SHOWN])
    ]
    rows += [(each, format_bytes) for each in answer.memory]
    for each, words in rows:
        mark = (
            "beyond the threshold"
            if each.beyond(answer.threshold)
            else ""
            if each.significant or each.low == each.high
            else "noise"
        )
        interval = (
            f"{signed_share(each.low - 1)} to {signed_share(each.high - 1)}"
            if 0 < each.low < each.high < MOST_RATIO
            else ""
        )
        name = printable(each.name.replace("_bytes", " memory"))
        table.add_row(name, words(each.a), words(each.b), _ratio_text(each), interval, mark)
    return table


def _ratio_text(each: RunChange) -> str:
    return "new" if not each.a else "gone" if not each.b else signed_share(each.ratio - 1)
