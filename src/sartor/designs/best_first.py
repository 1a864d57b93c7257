"""Best-first search with upper bounds: first bounds of all, second bounds of the best of them, exact evaluation.

What is searched (a chip, or a pair of shape and chip) has a number, and every number several memories. Two searches
are of this kind, over chips (`designs.search`) and over shapes on chips (`designs.shapes_proved`); they differ in what
they bound, and share how points wait, run and come back.

New tasks depend only on earlier results in the order of submission, never on which worker computed them or when. So
every executor gets the same answer by the same steps.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sartor.designs.candidates import Candidates, Ranked, priced
from sartor.designs.point import Evaluation, Interval, Option, Point
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.tasks import EvaluatedPoints, PointTask, Result, ShapeTask, Task
from sartor.schedules.makespan import SCHEDULE_LIMIT_S
from sartor.units import Array

_LEAST_POINTS, _MOST_POINTS = 4, 32
"""Points in flight: few at first and more later, so that little work is wasted."""
_LONGEST_SCHEDULE_S = 4.0
"""Longest time limit of a schedule as long as other points are open."""
MORE_TIME = 64.0
"""Factor on the time limit of schedules that were not proved at first; limits in between prove few more."""
LATER_TIME = 8.0
"""Factor on the time limit each time that nothing but schedules keeps the proof open."""

Spot = tuple[int, int]
"""What is priced (the number of a chip, or of a pair of shape and chip), and which of its memories."""
RunInTime = Callable[[Sequence[Task]], Iterator[Result]]
"""Runs tasks and yields results in their order; raises when time is up."""


@dataclass(kw_only=True)
class BestFirst(ABC):
    """The best point so far, the waiting ones and those in flight."""

    question: DesignQuestion
    candidates: Candidates = field(init=False)
    tolerance: float
    floor: float = 0.0
    """Objective reached elsewhere: only better points matter."""
    best: Ranked | None = None
    best_spot: Spot | None = None
    """Where ``best`` was evaluated; None: elsewhere."""
    ranked: dict[Spot, Ranked] = field(default_factory=dict)
    """Every point that was evaluated."""
    heap: list[tuple[float, int, int]] = field(default_factory=list)
    """Negative bound and spot of every waiting point, the best bound first."""
    in_flight: dict[Spot, float] = field(default_factory=dict)
    """Bounds of points that are being evaluated."""
    dropped: float = 0.0
    """Largest bound within the tolerance of the incumbent, of points that were therefore not evaluated."""
    rounds: int = 0
    """Rounds of second bounds so far."""
    limits: dict[Spot, float] = field(default_factory=dict)
    """Larger time limits for schedules of points that had too little time before."""
    again: set[Spot] = field(default_factory=set)
    """Points that were evaluated before and are waiting or in flight again."""
    put_off: dict[Spot, float] = field(default_factory=dict)
    """Bounds of points with schedules that take long to prove; they are evaluated again when nothing else is open."""
    schedules: dict[Hashable, dict[str, Interval]] = field(default_factory=dict)

    # What a search is over

    @abstractmethod
    def next_first(self) -> float:
        """The largest first bound of what has no second bound yet; 0 if there is none."""

    @abstractmethod
    def bound_next(self, run: RunInTime) -> None:
        """Compute the next second bounds in the order of the first; queue the points that may beat the incumbent."""

    @abstractmethod
    def sharpen_best(self, run: RunInTime) -> bool:
        """Compute postponed second bounds of the best waiting points; False if they have none."""

    @abstractmethod
    def is_blunt(self, number: int) -> bool:
        """Whether second bounds of this number were postponed."""

    @abstractmethod
    def chip(self, number: int) -> int:
        """Position among the candidates."""

    @abstractmethod
    def options(self, number: int, h: int) -> Iterator[Option]:
        """What to evaluate on a point, with bounds."""

    @abstractmethod
    def left_s(self) -> float:
        """Seconds until the time limit."""

    def name(self, number: int) -> int:
        """Index of the chip in the whole space."""
        return self.chip(number)

    def shaped(self, number: int) -> DesignQuestion:
        """The question with this number's shape."""
        return self.question

    def cores(self, number: int) -> Hashable:
        """Numbers with the same cores share schedules."""
        return number

    def task(self, number: int, points: PointTask) -> PointTask | ShapeTask:
        return points

    def hopeless(self) -> bool:
        """Whether it is clear that no point fits."""
        return False

    @abstractmethod
    def report(self, phase: str) -> None: ...

    # What is known

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

    # Points

    def until_proved(self, run: RunInTime) -> None:
        """Compute bounds and evaluate points until no remaining point can be better."""
        while True:
            if self.next_first() > max(self.top(), self.enough()):
                self.bound_next(run)
                if self.hopeless():
                    return
                if not self.early():
                    continue
            elif self.top() <= self.enough() and not self._resume():
                return
            while self.sharpen_best(run):
                pass
            tasks = self.point_tasks()
            for result in run(tasks):
                self.add(result)
                tasks += [] if self.early() else self.point_tasks()

    def point_tasks(self) -> list[PointTask | ShapeTask]:
        """Tasks for the numbers with the largest bounds of waiting points, if above the incumbent and the first bounds
        of the rest, up to the limit in flight: evaluated before the results of the first are known."""
        window = min(_MOST_POINTS, max(_LEAST_POINTS, len(self.ranked) // 4))
        busy, tasks = {number for number, _ in self.in_flight}, list[PointTask | ShapeTask]()
        while len(busy) < window and self.top() > self.enough() and (self.early() or self.top() >= self.next_first()):
            number = self.heap[0][1]
            if self.is_blunt(number):
                break
            busy.add(number)
            tasks.append(self._point_task(number))
        return tasks

    def _point_task(self, number: int) -> PointTask | ShapeTask:
        """All waiting points of a number in one task, since they share its schedules."""
        mine = sorted(entry for entry in self.heap if entry[1] == number and -entry[0] > self.enough())
        self.heap = [entry for entry in self.heap if entry[1] != number]
        heapq.heapify(self.heap)
        self.in_flight |= {(number, h): -bound for bound, _, h in mine}
        points = tuple(self._point(number, h, tuple(self.options(number, h))) for _, _, h in mine)
        schedules = tuple(self.schedules.get(self.cores(number), {}).items())
        return self.task(number, PointTask(points=points, schedules=schedules))

    def _point(self, number: int, h: int, options: tuple[Option, ...]) -> Point:
        chip = self.chip(number)
        floor = self.value() * float(self.candidates.divisor[h, chip])
        return Point(
            index=self.name(number),
            accelerator=self.candidates.accelerator(chip),
            hbm_bytes=float(self.candidates.hbm_bytes[h, chip]),
            options=options,
            floor=(floor,) if len(self.question.models) == 1 else (),
            schedule_limit_s=self.limits.get((number, h), SCHEDULE_LIMIT_S),
        )

    def add(self, result: Result) -> None:
        """Store the evaluated points of a task; a point that may still be better waits again with a longer limit."""
        assert isinstance(result, EvaluatedPoints)
        for evaluation in result.evaluations:
            number, h = self._spot(evaluation)
            self.schedules.setdefault(self.cores(number), {}).update(result.schedules)
            self._add((number, h), evaluation)
            self.report("search")

    def _spot(self, evaluation: Evaluation) -> Spot:
        """The matching point in flight that was submitted first: results come in that order."""
        point = evaluation.point
        return next(
            (number, h)
            for number, h in self.in_flight
            if self.name(number) == point.index and self.candidates.hbm_bytes[h, self.chip(number)] == point.hbm_bytes
        )

    def _add(self, spot: Spot, evaluation: Evaluation) -> None:
        ranked = priced(self.shaped(spot[0]), evaluation)
        before = self.ranked.get(spot)
        if before is None or ranked.objective >= before.objective:
            self.ranked[spot] = ranked
        del self.in_flight[spot]
        self.again.discard(spot)
        if ranked.objective > self.value():
            self.best, self.best_spot = ranked, spot
            self.drop(np.array([-bound for bound, _, _ in self.heap]))
            self.keep_waiting(self.heap)
        limit_s = evaluation.point.schedule_limit_s
        if ranked.bound <= max(self.enough(), ranked.objective * (1 + EQUAL)):
            self.dropped = max(self.dropped, min(ranked.bound, self.enough()))
        elif limit_s * MORE_TIME > _LONGEST_SCHEDULE_S:
            self.put_off[spot], self.limits[spot] = ranked.bound, limit_s
        else:
            self._again(spot, ranked.bound, limit_s * MORE_TIME)

    def _again(self, spot: Spot, bound: float, limit_s: float) -> None:
        self.limits[spot] = limit_s
        self.again.add(spot)
        heapq.heappush(self.heap, (-bound, *spot))

    def _resume(self) -> bool:
        """Queue the points that were put off and may still be better, with more time for their schedules; False if
        there are none or no time is left."""
        still = {spot: self.limits[spot] for spot, bound in self.put_off.items() if bound > self.enough()}
        least_limit = min(still.values(), default=inf)
        if not still or least_limit * LATER_TIME > self.left_s():
            return False
        for spot in (spot for spot, limit in still.items() if limit == least_limit):
            self._again(spot, self.put_off.pop(spot), self.limits[spot] * LATER_TIME)
        return True
