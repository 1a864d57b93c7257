"""State of a joint search: waiting points, points in flight, the best so far, and the next points to evaluate."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, replace

import numpy as np

from sartor.designs.bounding import Bounding
from sartor.designs.candidates import priced
from sartor.designs.point import Evaluation, Point
from sartor.designs.question import EQUAL
from sartor.designs.result import (
    LATER_TIME,
    LEAST_POINTS,
    LONGEST_SCHEDULE_S,
    MORE_TIME,
    MOST_POINTS,
    Progress,
    next_limit_s,
)
from sartor.designs.tasks import EvaluatedPoints, PointTask, Result
from sartor.schedules.makespan import SCHEDULE_LIMIT_S, timing_fields


@dataclass(kw_only=True)
class SearchState(Bounding):
    """The state of the search and its next tasks."""

    # Points

    def point_tasks(self) -> list[PointTask]:
        """Tasks for the accelerators with the largest bounds of waiting points, if above the incumbent and the bounds
        of unbounded candidates, up to the limit in flight: evaluated before the results of the first are known."""
        window, tasks = min(MOST_POINTS, max(LEAST_POINTS, len(self.ranked) // 4)), list[PointTask]()
        busy = {index for index, _ in self.in_flight}
        while len(busy) < window and self.top() > max(self.enough(), 0.0 if self.early() else self.next_loose()):
            index = self.heap[0][1]
            if index in self.blunt:
                break
            busy.add(index)
            tasks.append(self._point_task(index))
        return tasks

    def _point_task(self, index: int) -> PointTask:
        """All waiting points of an accelerator in one task, since they share its schedules."""
        mine = [entry for entry in self.heap if entry[1] == index and -entry[0] > self.enough()]
        self.heap = [entry for entry in self.heap if entry not in mine]
        heapq.heapify(self.heap)
        self.in_flight |= {(index, h): -bound for bound, _, h in mine}
        points = tuple(self._point(index, h) for _, _, h in sorted(mine))
        return PointTask(
            points=points, schedules=tuple(self.schedules.get(timing_fields(points[0].accelerator), {}).items())
        )

    def _point(self, index: int, h: int) -> Point:
        rates = self.rates[index][:, h]
        alone = len(self.question.models) == 1
        floor = self.value() * float(self.candidates.divisor[h, index])
        return Point(
            index=index,
            accelerator=self.candidates.accelerator(index),
            hbm_bytes=self._memory(index, h),
            options=tuple(replace(o, bound=float(r)) for o, r in zip(self.options, rates, strict=True) if r > 0),
            floor=(floor,) if alone else (),
            schedule_limit_s=self.limits.get((index, h), SCHEDULE_LIMIT_S),
        )

    def _memory(self, index: int, h: int) -> float:
        return float(self.candidates.hbm_bytes[h, index])

    def add(self, result: Result) -> None:
        """Store the evaluated points of a task; a point that may still be better waits again with a longer limit."""
        assert isinstance(result, EvaluatedPoints)
        cores = timing_fields(result.evaluations[0].point.accelerator)
        self.schedules.setdefault(cores, {}).update(result.schedules)
        for evaluation in result.evaluations:
            self._add(evaluation)
            self.report("search")

    def _add(self, evaluation: Evaluation) -> None:
        ranked = priced(self.question, self.candidates, evaluation)
        point = evaluation.point
        key = point.index, point.hbm_bytes
        before = self.ranked.get(key)
        if before is None or ranked.objective >= before.objective:
            self.ranked[key] = ranked
        h = next(h for i, h in self.in_flight if i == point.index and self._memory(i, h) == point.hbm_bytes)
        del self.in_flight[point.index, h]
        self.again.discard((point.index, h))
        if ranked.objective > self.value():
            self.best = ranked
            self.drop(np.array([-bound for bound, _, _ in self.heap]))
            self.keep_waiting(self.heap)
        if ranked.bound > max(self.enough(), ranked.objective * (1 + EQUAL)):
            spot, limit = (point.index, h), point.schedule_limit_s * MORE_TIME
            if limit > LONGEST_SCHEDULE_S:
                self.put_off[spot], self.limits[spot] = ranked.bound, point.schedule_limit_s
            else:
                self._again(spot, ranked.bound, limit)

    def _again(self, spot: tuple[int, int], bound: float, limit_s: float) -> None:
        self.limits[spot] = limit_s
        self.again.add(spot)
        heapq.heappush(self.heap, (-bound, *spot))

    def resume(self) -> bool:
        """Queue the points that were put off and may still be better, with more time for their schedules; False if
        there are none or no time is left."""
        still = {spot: self.limits[spot] for spot, bound in self.put_off.items() if bound > self.enough()}
        least_limit = next_limit_s(still.values(), self.time_limit_s - (time.perf_counter() - self.start))
        for spot in (spot for spot, limit in still.items() if limit == least_limit):
            self._again(spot, self.put_off.pop(spot), self.limits[spot] * LATER_TIME)
        return least_limit is not None

    # Progress

    def report(self, phase: str) -> None:
        now = time.perf_counter()
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.now
        self.now = now
        progress = Progress(
            seconds=now - self.start,
            evaluated=len(self.ranked),
            bound=self.bound(),
            incumbent=self.value(),
            waiting=len(self.heap),
            phase=phase,
            pruned=self.pruned(),
            left_s=self._left_s(now),
        )
        self.trajectory.append(progress)
        if self.on_progress:
            self.on_progress(progress)

    def _left_s(self, now: float) -> float | None:
        """Remaining seconds at the pace so far, if nothing better is found; at most the remaining time limit."""
        if not self.bounded:
            return None
        pace = self.spent.get("search", 0.0) / max(len(self.ranked), 1)
        left = (len(self.heap) + len(self.in_flight)) * pace
        left += self._later(max(self.enough(), self.top())) * self.spent["bounds"] / self.bounded
        return min(left, max(self.time_limit_s - (now - self.start), 0.0))
