"""The inputs and outputs of a block solver."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.schedules.split import Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAnswer:
    """A schedule of a block and the best proved bound on its makespan; ``interrupted`` by the user before its limit."""

    timetable: Timetable
    lower_bound: int
    interrupted: bool = False
