"""``sartor collective`` for the terminal: time, bus bandwidth and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from sartor.report.contract import bus_bytes_per_s
from sartor.report.words import interval_text, printable, size_text
from sartor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from sartor.answers import CollectiveAnswer


def collective_view(answer: CollectiveAnswer) -> RenderableType:
    """One collective: interval, bus bandwidth, and the members that each tier joins."""
    op, cost = answer.collective, answer.cost
    where = f"{op.kind.value} of {size_text(op)} devices on {printable(answer.cluster.name)}"
    apart = f", {op.stride} apart" if int(op.stride) > 1 else ""
    line = Text(interval_text(float(cost.time_s), float(cost.low_s), float(cost.high_s)), style="bold")
    line.append(f"; {format_bytes(float(bus_bytes_per_s(op, cost)))}/s bus bandwidth; {cost.source.value}")
    parts = (
        f"transfer {format_seconds(float(cost.network_s))}, launch and latency {format_seconds(float(cost.overhead_s))}"
    )
    return Group(
        Text(where + apart, style="bold"), Rule(style="dim", characters="-"), line, Text(parts), *_tiers(answer)
    )


def _tiers(answer: CollectiveAnswer) -> list[Text]:
    inner, lines = 1, []
    for tier, here in zip(answer.cluster.tiers, answer.members, strict=True):
        if here > inner:
            rate = f"{format_bytes(tier.bytes_per_s)}/s per device"
            lines.append(Text(f"over {printable(tier.name)} ({rate}): {here} devices"))
        inner = here
    return lines
