"""Two runs side by side, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.answers.diagnosis import CHANGED_BYTES, CHANGED_TIME, MOST_RATIO
from sartor.answers.field import columns_of
from sartor.report.document import Block, bullets_block, document_text, grid_block, section
from sartor.report.grid import field_grid
from sartor.units import format_change, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.diagnosis import RunComparison

SHOWN = 15
"""Operators that the terminal lists."""


def compare_view(answer: RunComparison) -> RenderableType:
    """The verdict, then what changed."""
    times = [(change, answer.threshold) for change in (answer.total, *answer.parts[:SHOWN])]
    memory = [(change, answer.threshold) for change in answer.memory]
    blocks = [
        Block(words=_verdict(answer), style="bold"),
        section("Time"),
        grid_block(field_grid("Time", columns_of(CHANGED_TIME), times)),
        *([section("Memory"), grid_block(field_grid("Memory", columns_of(CHANGED_BYTES), memory))] if memory else []),
        bullets_block("Facts that differ", [f"{name}: {a} in A, {b} in B" for name, (a, b) in answer.facts.items()]),
        bullets_block("Warnings", answer.warnings),
    ]
    return document_text(blocks)


def _verdict(answer: RunComparison) -> str:
    total, limit = answer.total, format_share(answer.threshold)
    what = "All kernels take" if total.name == "kernels" else f"A {total.name} takes"
    said = f"{what} {format_seconds(total.a)} in A and {format_seconds(total.b)} in B"
    interval = format_change(total.ratio - 1)
    if total.high < MOST_RATIO:
        interval += f" ({format_change(total.low - 1)} to {format_change(total.high - 1)})"
    if not total.significant:
        return f"{said}: {interval}. No change beyond noise."
    faster = "slower" if total.ratio > 1 else "faster"
    beyond = (
        f"beyond the threshold of {limit}" if total.beyond(answer.threshold) else f"within the threshold of {limit}"
    )
    return f"{said}: {interval}. B is {faster}, more than noise, {beyond}."
