"""Fronts of the objective against area, power, price or memory, over the whole space and with proof.

Metrics are two or more of objective, area, power, price and memory. All but the objective are known for every candidate
at once; the objective is bounded first (`designs.bounds`), and points with a covered bound are never evaluated.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Protocol

import numpy as np

from sartor.designs.candidates import (
    Candidates,
    DesignStatus,
    JointResult,
    Keep,
    Ranked,
    afresh,
    all_prices,
    candidates_of,
    memory_usd,
    priced,
)
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_point
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import PlanTask, WorkTask, lowered, run_task
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.pareto import is_pareto
from sartor.units import Array

METRICS = ("objective", "area_mm2", "power_w", "usd", "hbm_bytes")
"""The objective (throughput, or throughput per something) is maximized, all others are minimized."""
SCHEDULE_WORK_S = 0.8
"""Work limit for the proof of a schedule, in the seconds of `schedules.solve`."""
CHUNK = 256
"""Candidates whose second bounds are computed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """``points``, best objective first. ``complete``: for every point of the space, one of these is as good in all
    metrics, within ``tolerance`` of the objective; else ``open_points`` were not evaluated in time."""

    metrics: tuple[str, ...]
    points: tuple[Ranked, ...]
    tolerance: float
    complete: bool
    evaluated: int
    open_points: int
    seconds: float
    schedule_gap: float = 0.0
    """Share by which points of the front might be faster, because their schedules are not proved."""
    why: str = ""

    def values(self) -> Array:
        """[points, metrics]"""
        return np.array([[value_of(point, name) for name in self.metrics] for point in self.points])


def value_of(ranked: Ranked, metric: str) -> float:
    """A metric of an evaluated point."""
    values = {"objective": ranked.objective, "hbm_bytes": ranked.evaluation.point.hbm_bytes}
    return float(values[metric] if metric in values else getattr(ranked, metric))


def pareto_front(
    question: DesignQuestion,
    space: AcceleratorSpace,
    metrics: Sequence[str],
    *,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    keep: Keep = afresh,
) -> _Front:
    """The front of two or more of `METRICS` over every architecture, memory, plan and microbatch of the space.

    Without the objective only the front itself is evaluated; points that ``keep`` has are not evaluated again.

    Raises ``InputError`` for an unknown metric.
    """
    names = _checked(metrics)
    start = time.perf_counter()
    candidates, why = candidates_of(question, space)
    if why:
        return _Front(
            metrics=names,
            points=(),
            tolerance=tolerance,
            complete=True,
            evaluated=0,
            open_points=0,
            seconds=0.0,
            why=why,
        )
    search = _FrontSearch(question, candidates, names, tolerance, keep)
    while search.heap and time.perf_counter() - start < time_limit_s:
        search.step()
    left = sum(not search.covered(i, h) for _, i, h in search.heap)
    points = search.front()
    return _Front(
        metrics=names,
        points=points,
        tolerance=tolerance,
        complete=not left,
        evaluated=search.evaluated,
        open_points=left,
        seconds=time.perf_counter() - start,
        schedule_gap=max((x.bound / x.objective - 1 for x in points), default=0.0) if search.by_rate else 0.0,
    )


def _checked(metrics: Sequence[str]) -> tuple[str, ...]:
    """The metrics, each once."""
    names = tuple(dict.fromkeys(metrics))
    for name in names:
        if name not in METRICS:
            raise InputError("pareto", name, "must be a metric of a front", ", ".join(METRICS))
    if len(names) < 2:
        raise InputError("pareto", ",".join(names), "must be two metrics or more", "objective,area_mm2")
    return names


class _FrontSearch:
    """Points wait by falling bound of the objective; those covered by evaluated points are dropped."""

    def __init__(
        self,
        question: DesignQuestion,
        candidates: Candidates,
        metrics: tuple[str, ...],
        tolerance: float,
        keep: Keep,
    ) -> None:
        self.question, self.candidates, self.tolerance, self.keep = question, candidates, tolerance, keep
        self.models, self.store = lowered(question), ScheduleStore()
        self.by_rate = "objective" in metrics
        self.costs = np.stack([self._costs(name) for name in metrics if name != "objective"], axis=-1)
        self.values, self.reached = np.zeros((0, self.costs.shape[-1])), np.zeros(0)
        self.points: list[Ranked] = []
        self.evaluated = 0
        self.rates: dict[int, list[tuple[Option, Array]]] = {}
        loose = self._loose()
        self.bounds = np.where(candidates.hbm_bytes > 0, loose, 0.0)
        self.heap = [self._entry(int(i), int(h)) for h, i in np.argwhere(self.bounds > 0)]
        heapq.heapify(self.heap)

    def _entry(self, index: int, h: int) -> tuple[float, int, int]:
        """A point's heap entry: the fastest first, or the cheapest if the objective is not a metric."""
        first = -self.bounds[h, index] if self.by_rate else np.log(self.costs[h, index]).sum()
        return float(first), index, h

    def _costs(self, name: str) -> Array:
        """[memories, candidates]"""
        c, (area, watts, die_usd) = self.candidates, all_prices(self.question, self.candidates)
        columns = {
            "area_mm2": area,
            "power_w": watts,
            "usd": die_usd + memory_usd(self.question, c.hbm_bytes),
            "hbm_bytes": c.hbm_bytes,
        }
        return np.broadcast_to(columns[name], c.hbm_bytes.shape)

    def _loose(self) -> Array:
        """First bounds [memories, candidates], all models together."""
        everyone, memory = np.arange(len(self.candidates)), float(self.candidates.hbm_bytes.max())
        groups = tuple(self.candidates.of_groups(everyone))
        task = WorkTask(start=0, count=len(everyone), candidates=groups, hbm_bytes=memory)
        return np.asarray(self.question.together(np.asarray(run_task(self.question, task)))) / self.candidates.divisor

    def covered(self, index: int, h: int) -> bool:
        """Whether an evaluated point is as good in all metrics as this one can be, within the tolerance."""
        no_dearer = (self.values <= self.costs[h, index] * (1 + EQUAL)).all(axis=1)
        if self.by_rate:
            no_dearer &= self.reached * (1 + max(self.tolerance, EQUAL)) >= self.bounds[h, index]
        return bool(no_dearer.any())

    def step(self) -> Ranked | None:
        """Take the next point that is not covered: compute its second bound (with others), or else evaluate it."""
        _, index, h = self.heap[0]
        if self.covered(index, h):
            heapq.heappop(self.heap)
            return None
        if index not in self.rates:
            self._bound_some()
            return None
        heapq.heappop(self.heap)
        return self._evaluate(index, h)

    def _bound_some(self) -> None:
        """Second bounds of the next candidates in the heap that are not covered."""
        few: list[int] = []
        for _, index, h in heapq.nsmallest(4 * CHUNK, self.heap):
            if index not in self.rates and index not in few and not self.covered(index, h):
                few.append(index)
            if len(few) == CHUNK:
                break
        where = np.array(few)
        hbm, groups = self.candidates.hbm_bytes[:, where], tuple(self.candidates.of_groups(where))
        tasks = (
            PlanTask(model=m, split=split, index=where, candidates=groups, hbm_bytes=hbm)
            for m, model in enumerate(self.models)
            for split in model.parts
        )
        options = [
            (Option(model=task.model, split=task.split, recompute=recompute), np.where(hbm > 0, rates, 0.0))
            for task in tasks
            for recompute, rates in zip(
                self.question.recomputes, np.asarray(run_task(self.question, task)), strict=True
            )
        ]
        model_of_row = np.array([option.model for option, _ in options])
        option_rates = np.stack([rates for _, rates in options])
        best = np.stack([option_rates[model_of_row == m].max(axis=0) for m in range(len(self.models))])
        joint = np.asarray(self.question.together(best)) / self.candidates.divisor[:, where]
        self.bounds[:, where] = np.minimum(self.bounds[:, where], joint)
        for column, index in enumerate(few):
            self.rates[index] = [(option, rates[:, column]) for option, rates in options]
        self.heap = [self._entry(i, h) for _, i, h in self.heap if self.bounds[h, i] > 0]
        heapq.heapify(self.heap)

    def _evaluate(self, index: int, h: int) -> Ranked | None:
        options = tuple(
            replace(option, bound=float(rates[h])) for option, rates in self.rates[index] if float(rates[h]) > 0
        )
        memory = float(self.candidates.hbm_bytes[h, index])
        point = Point(
            index=index,
            accelerator=self.candidates.accelerator(index),
            hbm_bytes=memory,
            options=options,
            schedule_limit_s=SCHEDULE_WORK_S,
        )
        ranked = self.keep(f"front, candidate {index}, {memory:.0f} bytes", partial(self._ranked, point))
        self.evaluated += 1
        if ranked.objective <= 0:
            return None
        self.points.append(ranked)
        self.values = np.concatenate([self.values, self.costs[h, index][None]])
        self.reached = np.append(self.reached, ranked.objective)
        return ranked

    def _ranked(self, point: Point) -> Ranked:
        return priced(self.question, evaluate_point(self.question, point, self.store))

    def front(self) -> tuple[Ranked, ...]:
        """Evaluated points that no other beats, without duplicates."""
        if not self.points:
            return ()
        rows = np.concatenate([-self.reached[:, None], self.values], axis=1) if self.by_rate else self.values
        keep = np.flatnonzero(is_pareto(rows))
        _, first = np.unique(rows[keep], axis=0, return_index=True)
        return tuple(sorted((self.points[i] for i in keep[first]), key=lambda point: -point.objective))


BUDGETS = ("area_mm2", "power_w", "hbm_bytes")
AXES = (*BUDGETS, "usd")
"""Axes of a front besides the objective; all but the price can also be budgets."""
WHOLE_POINTS = 400
"""Points (with a memory each) up to which a front covers the whole space exactly."""
ROUGHLY = 0.05
"""Tolerance, as a share of the objective, of a front over a larger space (needed if price is an axis)."""
STEPS = {1: 8, 2: 4, 3: 3}
"""Number of axes -> budgets on each axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedFront:
    """Points that no other point beats in the objective and on all axes, best first.

    They include the best point under each of ``num_budgets`` combinations of budgets, or an equal one (``proved``:
    these are optimal), and other evaluated points that none beats.
    Without budgets (0) the front covers the whole space: ``proved`` then means that for every point of the space, one
    of the front is as good on all axes, within ``tolerance`` of the objective.
    """

    axes: tuple[str, ...]
    points: tuple[Ranked, ...]
    num_budgets: int
    proved: bool
    tolerance: float = 0.0
    interrupted: bool = False


class NamedSearch(Protocol):
    """A search of a variant of the question, described by ``name``; ``floor`` is as in `search_design`."""

    def __call__(
        self, question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0
    ) -> JointResult: ...


def plain_search(question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0) -> JointResult:
    """Search in this process, without a time limit."""
    return search_design(question, space, floor=floor)


def proved_front(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: Sequence[str],
    time_limit_s: float = float("inf"),
    search: NamedSearch = plain_search,
    keep: Keep = afresh,
) -> ProvedFront:
    """The front over some of ``AXES``: by ``search`` under each budget, or over the whole space within
    ``time_limit_s``, with points that ``keep`` may have. Raises ``InputError``.

    Up to `WHOLE_POINTS` points it is exact over the whole space; in a larger space with price as an axis it covers the
    space within `ROUGHLY` of the objective; else it is made of the best points under budgets.
    """
    candidates, why = candidates_of(question, space)
    small = len(candidates) * len(candidates.hbm_bytes) <= WHOLE_POINTS
    if not why and axes and (small or "usd" in axes):
        return _of_the_whole(question, space, check_axes(axes), 0.0 if small else ROUGHLY, time_limit_s, keep)
    results = front_over(question, space, axes, search=search)
    reached = [
        ranked for result in results for ranked in (result.best, *result.ranked) if ranked and ranked.objective > 0
    ]
    return ProvedFront(
        axes=tuple(axes),
        points=not_dominated(reached, tuple(axes)),
        num_budgets=len(results),
        proved=all(result.status is DesignStatus.OPTIMAL and not result.interrupted for result in results),
        interrupted=any(result.interrupted for result in results),
    )


def _of_the_whole(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: Sequence[str],
    tolerance: float,
    time_limit_s: float,
    keep: Keep,
) -> ProvedFront:
    names = ("objective", *axes)
    front = pareto_front(question, space, names, tolerance=tolerance, time_limit_s=time_limit_s, keep=keep)
    return ProvedFront(
        axes=tuple(axes),
        points=front.points,
        num_budgets=0,
        proved=front.complete and front.schedule_gap <= max(tolerance, EQUAL),
        tolerance=max(tolerance, front.schedule_gap),
    )


def front_over(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: str | Sequence[str],
    steps: int | None = None,
    search: NamedSearch = plain_search,
) -> tuple[JointResult, ...]:
    """One search per combination of budgets on ``axes``, each evenly spread from the smallest candidate to the largest
    (for memory: the space's sizes); infeasible ones are left out.

    Raises ``InputError`` for an axis that is not a budget.
    """
    names = check_axes([axes] if isinstance(axes, str) else axes, BUDGETS)
    candidates, why = candidates_of(question, space)
    if why or not names:
        return ()
    results = []
    for budgets in product(*(_budgets(question, candidates, axis, steps or STEPS[len(names)]) for axis in names)):
        limits: JsonMap = dict(zip(names, budgets, strict=True))
        limited = replace(question, budgets=replace(question.budgets, **limits))
        result = search(limited, space, ", ".join(f"{axis} at most {value:.6g}" for axis, value in limits.items()))
        if result.best is not None:
            results.append(result)
        if result.interrupted:
            break
    return tuple(results)


def check_axes(axes: Sequence[str], allowed: Sequence[str] = AXES) -> list[str]:
    """The axes without duplicates and without the objective, which every front has. Raises ``InputError``."""
    axes = [axis for axis in axes if axis != "objective"]
    for axis in axes:
        if axis not in allowed:
            raise InputError("pareto", axis, "must be an axis that can be a budget", ", ".join(allowed))
    return list(dict.fromkeys(axes))


def _budgets(question: DesignQuestion, candidates: Candidates, axis: str, steps: int) -> Iterator[float]:
    if axis == "hbm_bytes":
        sizes = np.unique(candidates.hbm_bytes[candidates.hbm_bytes > 0])
        yield from sizes[np.unique(np.linspace(0, len(sizes) - 1, steps).round().astype(np.int64))].tolist()
        return
    column = all_prices(question, candidates)[int(axis == "power_w")]
    yield from np.unique(np.linspace(float(column.min()), float(column.max()), steps)).tolist()


def not_dominated(ranked: Sequence[Ranked], axes: tuple[str, ...] = ("area_mm2", "power_w")) -> tuple[Ranked, ...]:
    """Points that no other beats in the objective and on all axes, best first, without duplicates; not those that no
    plan fits."""
    ranked = [point for point in ranked if point.objective]
    if not ranked:
        return ()
    rows = np.array([(-point.objective, *(value_of(point, axis) for axis in axes)) for point in ranked])
    survivors = [
        (tuple(row), point) for row, point, keep in zip(rows.tolist(), ranked, is_pareto(rows), strict=True) if keep
    ]
    distinct = dict(reversed(survivors))
    return tuple(sorted(distinct.values(), key=lambda point: -point.objective))
