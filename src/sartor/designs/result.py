"""The result of the joint search: the best point with its proof, the effort of the search, and baselines; and the
protocol of a store (`Keep`) for whatever else is computed once. What every best-first search keeps (`Incumbent`):
the best so far, and the points that wait with their upper bounds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Protocol, TypeVar

from sartor.designs.point import Evaluation
from sartor.designs.question import EQUAL
from sartor.interrupts import point
from sartor.units import Array


class DesignStatus(StrEnum):
    """``OPTIMAL``: no point of the space is better; ``FEASIBLE``: none is better by more than the gap; ``UNKNOWN``: the
    search ended before it found a point or proved that there is none."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    @property
    def proved(self) -> bool:
        """Whether nothing is left to search."""
        return self in (DesignStatus.OPTIMAL, DesignStatus.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An evaluated point with its price, its objective and an upper bound on it."""

    evaluation: Evaluation
    objective: float
    bound: float
    area_mm2: float
    power_w: float
    die_usd: float
    usd: float = 0.0
    """Price of die and memory, the divisor of throughput per dollar; no package, test, margin, host or power supply."""
    ownership_usd: float = 0.0
    """``usd`` plus package and electricity over the years of use at peak power; no test, margin, host or network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of the search at one moment."""

    seconds: float
    evaluated: int
    bound: float
    incumbent: float
    waiting: int = 0
    """Bounded points with a bound that still exceeds the incumbent."""
    phase: str = "search"
    pruned: int = 0
    """Points ruled out by a bound so far."""
    left_s: float | None = None
    """Remaining seconds if no better point is found; None before anything is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline with the same cost model; ``ranked`` is None if nothing fits or it could not be run."""

    name: str
    ranked: Ranked | None
    evaluations: int
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointResult:
    """The best point of the space. ``upper_bound`` holds for all points; ``gap`` = (upper_bound - best) / best.

    ``num_candidates``: chips of the space, each counted once; ``space_size``: these times memories, microbatches and
    recomputations. A point is a chip with a memory: of ``num_points``, ``evaluated`` were scheduled and placed,
    ``pruned`` ruled out by a bound, ``left_out`` by budgets or because they cannot be built; ``waiting`` are open.
    """

    status: DesignStatus
    best: Ranked | None
    upper_bound: float
    gap: float
    space_size: int
    num_candidates: int
    evaluated: int
    pruned: int
    seconds: float
    num_points: int
    left_out: int
    trajectory: tuple[Progress, ...]
    ranked: tuple[Ranked, ...] = ()
    """Every point that was evaluated, best first."""
    pareto: tuple[Any, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    reasons: tuple[Any, ...] = ()
    """By model, why the best beats the TPUv4-like point (`designs.why.Reason`), if baselines were requested."""
    tightest: str = ""
    interrupted: bool = False
    assumptions: tuple[str, ...] = field(default=())

    @property
    def waiting(self) -> int:
        """Points that were neither evaluated nor ruled out."""
        return max(self.num_points - self.left_out - self.evaluated - self.pruned, 0)


T = TypeVar("T")


class Keep(Protocol):
    """Returns ``make()``, or the value that was stored under ``key`` before.

    Within one question a key has one value: None, a number, a text, one of the records a design answers with
    (`designs.result`, `designs.point`), or a tuple of these.
    """

    def __call__(self, key: str, make: Callable[[], T]) -> T: ...


def afresh(key: str, make: Callable[[], T]) -> T:
    """A `Keep` that stores nothing."""
    point()
    return make()


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
