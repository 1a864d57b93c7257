"""What a launch's switches without a price leave open: which of them could turn the verdict on whether it fits.

A switch takes away, or adds, at most a share of the parts of memory that it may change (``bytes_of`` and ``share`` in
``fields.toml``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sartor.launch.fields import Row, rows, text_of
from sartor.launch.plan import LaunchKind
from sartor.run.run import Turn
from sartor.step.waterfall import StageMemory
from sartor.units import format_bytes

_OFF = ("false", "none", "0", "{}")
"""Values that leave a switch off."""


def depends_on(unpriced: Iterable[str], stages: Sequence[StageMemory], limit_bytes: float) -> tuple[Turn, ...]:
    """Which of a launch's ``unpriced`` switches could turn whether it fits into ``limit_bytes`` per device: those that
    could alone, or all together if none could."""
    change_bytes = max(stage.total_bytes() for stage in stages) - limit_bytes
    sign = 1 if change_bytes <= 0 else -1

    def turned_by(*switches: Row) -> bool:
        sizes = [stage.total_bytes() + sign * _most_bytes(stage, switches, sign) for stage in stages]
        return (max(sizes) > limit_bytes) == (sign > 0)

    switches = [(value, row) for value, row in _switches(unpriced) if row.sign in (0, sign)]
    alone = [(value, row) for value, row in switches if turned_by(row)]
    together = [] if alone or not turned_by(*(row for _, row in switches)) else switches
    others = {row.argument: [r.argument for _, r in together if r is not row] for _, row in together}
    return tuple(_turn(v, row, stages, change_bytes, others.get(row.argument, [])) for v, row in alone or together)


def _switches(unpriced: Iterable[str]) -> list[tuple[str, Row]]:
    """The values and rows of switches that are on and may change memory."""
    table = {row.argument: row for kind in LaunchKind for row in rows(kind, "unpriced")}
    split = [re.split("[ =]", words, maxsplit=1) for words in unpriced]
    switches = [(value[0] if value else "on", table[name]) for name, *value in split if name in table]
    return [(v, row) for v, row in switches if v.lower().removesuffix(".0") not in (*_OFF, text_of(row.default or ""))]


def _most_bytes(stage: StageMemory, switches: Sequence[Row], sign: int) -> float:
    """The most that switches together may add to a stage (``sign`` 1) or take away; no part is taken away twice."""
    names = {name for row in switches for name in row.bytes_of}
    shares = {name: sum(row.share for row in switches if name in row.bytes_of) for name in names}
    return sum(stage.part_bytes(name) * (share if sign > 0 else min(share, 1.0)) for name, share in shares.items())


def _turn(value: str, row: Row, stages: Sequence[StageMemory], change_bytes: float, others: Sequence[str]) -> Turn:
    priced = f"{' and '.join(row.bytes_of)}: {format_bytes(max(s.part_bytes(*row.bytes_of) for s in stages))} as priced"
    beside = f", together with {' and '.join(others)}" if others else ""
    word = "fits if it saves" if change_bytes > 0 else "does not fit if it adds more than"
    verdict = f"{word} {format_bytes(abs(change_bytes))} ({priced}){beside}"
    return Turn(field=row.argument, value=value, verdict=verdict, figures={"change_bytes": abs(change_bytes)})
