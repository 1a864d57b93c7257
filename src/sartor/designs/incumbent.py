"""What every best-first search of a design keeps: the best so far, and the points that wait with their upper bounds.

The search over chips (`designs.bounding`, `designs.state`) and that over shapes and chips (`designs.shape_queue`) bound
and evaluate different things, but prune, wait and prove in the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from sartor.designs.question import EQUAL
from sartor.designs.result import Ranked
from sartor.units import Array

LEAST_POINTS, MOST_POINTS = 4, 32
"""Points in flight: few at first and more later, so that little work is wasted."""
LONGEST_SCHEDULE_S = 4.0
"""Longest time limit of a schedule as long as other points are open."""
MORE_TIME = 64.0
"""Factor on the time limit of schedules that were not proved at first; limits in between prove few more."""
LATER_TIME = 8.0
"""Factor on the time limit each time that nothing but schedules keeps the proof open."""

Spot = tuple[int, int]
"""What is priced (a chip, or a pair of shape and chip), and which of its memories."""


@dataclass(kw_only=True)
class Incumbent:
    """The best point so far and the waiting ones."""

    tolerance: float
    floor: float = 0.0
    """Objective reached elsewhere: only better points matter."""
    best: Ranked | None = None
    heap: list[tuple[float, int, int]] = field(default_factory=list)
    """Negative bound and spot of every waiting point, the best bound first."""
    in_flight: dict[Spot, float] = field(default_factory=dict)
    """Bounds of points that are being evaluated."""
    dropped: float = 0.0
    """Largest bound within the tolerance of the incumbent, of points that were therefore not evaluated."""
    rounds: int = 0
    """Rounds of second bounds so far."""

    def value(self) -> float:
        return self.best.objective if self.best else self.floor

    def enough(self) -> float:
        """Points with a bound up to this value need not be evaluated."""
        return self.value() * (1 + max(self.tolerance, EQUAL))

    def top(self) -> float:
        """The largest bound of a waiting point; 0 if none waits."""
        return -self.heap[0][0] if self.heap else 0.0

    def early(self) -> bool:
        """Whether to evaluate the best waiting point before bounding the rest: a good incumbent saves more bounds than
        the evaluation costs."""
        return self.rounds == 1

    def drop(self, bounds: Array) -> None:
        """Remember the largest of the bounds up to ``enough``: the proof is only as good as this value."""
        low = bounds[bounds <= self.enough()]
        self.dropped = max(self.dropped, float(low.max(initial=0.0)))

    def keep_waiting(self, entries: Collection[tuple[float, int, int]]) -> None:
        """Let only these entries wait, without those that need not be evaluated any more."""
        self.heap = [entry for entry in entries if -entry[0] > self.enough()]
        heapq.heapify(self.heap)


def next_limit_s(limits: Collection[float], left_s: float) -> float | None:
    """The least of the time limits that schedules had so far, if there is time for a larger one."""
    least_limit = min(limits, default=inf)
    return least_limit if least_limit * LATER_TIME <= left_s and limits else None
