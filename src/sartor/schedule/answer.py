"""What every solver of a block hands back, and what it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.schedule.split import Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAnswer:
    """A schedule of a block and the best proved bound on its makespan; ``interrupted`` by the user before its limit."""

    timetable: Timetable
    lower_bound: int
    interrupted: bool = False
