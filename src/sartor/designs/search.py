"""Joint search for accelerator and plan by branch and bound: the best bound first, from one frozen state to the next.

Three levels, each more costly and tighter: work over cores, for every candidate at once; bounds on schedules and
placements, for chunks of candidates in the order of the first bound; and exact evaluation of the point with the largest
bound, until no bound is larger than the best value found, which is then proved.

The search submits tasks (`designs.tasks`) in rounds, or a few tasks ahead of the results. New tasks depend only on
earlier results in the order of submission, never on which worker computed them or when. So every executor gets the same
answer by the same steps, and a search with stored results can be replayed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf

import numpy as np

from sartor.designs.bounding import Bounding
from sartor.designs.candidates import (
    LATER_TIME,
    LEAST_POINTS,
    LONGEST_SCHEDULE_S,
    MORE_TIME,
    MOST_POINTS,
    Candidates,
    DesignStatus,
    JointResult,
    Progress,
    next_limit_s,
    priced,
)
from sartor.designs.infeasible import LeastEnergy, least_energy, tightest_constraint
from sartor.designs.point import Evaluation, Point
from sartor.designs.question import EQUAL, DesignModel, DesignQuestion, Objective
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import EvaluatedPoints, PointTask, Result, Task, lowered, run_task
from sartor.interrupts import point
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


RunTasks = Callable[[DesignQuestion, Sequence[Task]], Iterable[Result]]
"""Function that runs tasks and yields results in the order of the tasks. Tasks may be appended to the sequence after
each result, so that workers do not wait for the slowest task of a round."""


def search_design(
    question: DesignQuestion,
    space: AcceleratorSpace,
    *,
    time_limit_s: float = float("inf"),
    tolerance: float = 0.0,
    run: RunTasks | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    already_s: float = 0.0,
    floor: float = 0.0,
) -> JointResult:
    """The best point of ``space`` for ``question`` with its proof, or the best found and its gap at the limit.

    ``tolerance`` ends the search at that gap. ``floor`` is an objective reached elsewhere: if nothing exceeds it, the
    result has no best point, only an upper bound. ``run`` executes the tasks (see the executors of `engine.run`);
    default: in this process, one after another. ``already_s`` is time spent before, added to the seconds. Ctrl-C ends
    the search and returns the result so far. Raises ``InputError`` for an invalid question.
    """
    deadline = time.perf_counter() + time_limit_s
    ask = partial(run or partial(run_here, deadline=deadline), question)
    state = SearchState(
        question=question,
        space=space,
        tolerance=tolerance,
        on_progress=on_progress,
        start=time.perf_counter() - already_s,
        time_limit_s=time_limit_s,
        floor=floor,
    )
    interrupted = False
    try:
        if not state.infeasible:
            _search(state, ask, deadline)
    except OutOfTime:
        pass
    except KeyboardInterrupt:
        interrupted = True
    return _result(state, interrupted, deadline)


class OutOfTime(Exception):
    """The time limit was reached."""


def run_here(question: DesignQuestion, tasks: Sequence[Task], *, deadline: float) -> Iterator[Result]:
    """Run every task in this process, until the deadline."""
    return (run_task(question, task, partial(in_time, deadline)) for task in tasks)


def in_time(deadline: float) -> None:
    """Raise `OutOfTime` after the deadline, and ``KeyboardInterrupt`` after Ctrl-C."""
    point()
    if time.perf_counter() > deadline:
        raise OutOfTime


def _search(state: SearchState, ask: Callable[[Sequence[Task]], Iterable[Result]], deadline: float) -> None:
    def done(tasks: Sequence[Task]) -> Iterator[Result]:
        in_time(deadline)
        for result in ask(tasks) if tasks else ():
            yield result
            in_time(deadline)

    state.order_by(done(state.work_tasks()))
    while True:
        if state.next_loose() > max(state.top(), state.enough()):
            chunks = state.next_chunks()
            state.keep(chunks, done([task for chunk in chunks for task in chunk.tasks]))
            if state.hopeless():
                return
            if not state.early():
                continue
        elif not state.waiting() and not state.resume():
            return
        while sharper := state.next_blunt():
            state.sharpen(sharper, done([entry.task for entry in sharper]))
        tasks = state.point_tasks()
        for result in done(tasks):
            state.add(result)
            tasks += [] if state.early() else state.point_tasks()


def _result(state: SearchState, interrupted: bool, deadline: float) -> JointResult:
    question, space = state.question, state.space
    num_points = space.num_kept * max(len(space.hbm_bytes), 1)
    left_out = num_points - int(np.count_nonzero(state.candidates.hbm_bytes))
    common = {
        "space_size": num_points * question.num_ways,
        "num_candidates": space.num_kept,
        "num_points": num_points,
        "left_out": left_out,
        "seconds": time.perf_counter() - state.start,
        "assumptions": space.assumptions,
        "interrupted": interrupted,
        "trajectory": tuple(state.trajectory),
    }
    if state.infeasible:
        nothing = {"best": None, "upper_bound": 0.0, "gap": 0.0, "evaluated": 0, "pruned": num_points - left_out}
        return JointResult(status=DesignStatus.INFEASIBLE, tightest=state.infeasible, **nothing, **common)  # type: ignore[arg-type]
    upper, value = state.bound(), state.value()
    if not value and not upper:
        nothing = {"best": None, "upper_bound": 0.0, "gap": 0.0, "evaluated": len(state.ranked)}
        nothing["pruned"] = num_points - left_out - len(state.ranked)
        memory, quickest_s = float(state.candidates.hbm_bytes.max()), partial(_quickest_s, question, space, deadline)
        energy = partial(_least_energy, question, state.candidates, deadline)
        why = tightest_constraint(question, lowered(question), memory, quickest_s, energy)
        return JointResult(status=DesignStatus.INFEASIBLE, tightest=why, **nothing, **common)  # type: ignore[arg-type]
    gap = (upper - value) / value if value else float("inf")
    proved = upper <= value * (1 + EQUAL)
    return JointResult(
        status=DesignStatus.OPTIMAL if proved else DesignStatus.FEASIBLE if value else DesignStatus.UNKNOWN,
        best=state.best,
        upper_bound=value if proved else upper,
        gap=0.0 if proved else gap,
        evaluated=len(state.ranked),
        pruned=state.pruned(),
        ranked=tuple(sorted(state.ranked.values(), key=lambda ranked: -ranked.objective)),
        **common,  # type: ignore[arg-type]
    )


def _least_energy(question: DesignQuestion, candidates: Candidates, deadline: float) -> LeastEnergy:
    """The least energy of any plan, or nothing if time or patience runs out."""
    try:
        return least_energy(question, candidates, partial(in_time, deadline))
    except (OutOfTime, KeyboardInterrupt):
        return LeastEnergy(reached_j=inf, bound_j=0.0)


def _quickest_s(
    question: DesignQuestion, space: AcceleratorSpace, deadline: float, model: DesignModel
) -> tuple[float, bool]:
    """Seconds of a served model's fastest pass on any chip, and whether they are proved. One copy with its smallest
    batch suffices, since a larger one is never faster; copies that share experts are searched together."""
    quickest_s, proved = inf, True
    quick_model = replace(model, latency_s=None, batch_sizes=(min(model.batch_sizes),))
    for width, experts in product(sorted(model.widths, reverse=True), model.expert_widths):
        if width * experts > question.num_devices:
            continue
        variant = replace(
            question,
            models=(replace(quick_model, widths=(width,), expert_widths=(experts,)),),
            num_devices=width * experts,
            objective=Objective.THROUGHPUT,
            budgets=replace(question.budgets, energy_j_per_token=None),
        )
        floor = experts * quick_model.batch_sizes[0] / quickest_s
        result = search_design(variant, space, time_limit_s=max(deadline - time.perf_counter(), 0.0), floor=floor)
        if result.best is not None and (outcome := result.best.evaluation.outcomes[0]):
            quickest_s = min(quickest_s, outcome.step_s)
        proved &= result.status.proved
        if result.interrupted:
            return quickest_s, False
    return quickest_s, proved
