"""Fronts over a whole space: every point of the space is covered by one of the front, within a tolerance.

Metrics are two or more of objective, area, power, price and memory. All but the objective are known for every candidate
at once; the objective is bounded first (`designs.bounds`), and points with a covered bound are never evaluated.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sartor.designs.bounds import LoweredModel, lower_models, plan_rates, work_rates
from sartor.designs.candidates import Candidates, candidates_of, memory_usd, priced
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_point
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.result import Keep, Ranked, afresh
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.pareto import is_pareto
from sartor.units import Array

METRICS = ("objective", "area_mm2", "power_w", "usd", "hbm_bytes")
"""The objective (throughput, or throughput per something) is maximized, all others are minimized."""
SCHEDULE_WORK_S = 0.8
"""Work limit for the proof of a schedule, in the seconds of `schedules.solve`."""
CHUNK = 256
"""Candidates whose second bounds are computed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
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
    on_point: Callable[[Ranked], None] | None = None,
    keep: Keep = afresh,
) -> Front:
    """The front of two or more of `METRICS` over every architecture, memory, plan and microbatch of the space.

    Without the objective only the front itself is evaluated; points that ``keep`` has are not evaluated again.

    Raises ``InputError`` for an unknown metric.
    """
    names = _checked(metrics)
    start = time.perf_counter()
    candidates, why = candidates_of(question, space)
    if why:
        return Front(
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
        point = search.step()
        if point and on_point:
            on_point(point)
    left = sum(not search.covered(i, h) for _, i, h in search.heap)
    points = search.front()
    return Front(
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
        self.models, self.store = lower_models(question), ScheduleStore()
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
        c = self.candidates
        columns = {
            "area_mm2": c.area_mm2,
            "power_w": c.power_w,
            "usd": c.die_usd + memory_usd(self.question, c.hbm_bytes),
            "hbm_bytes": c.hbm_bytes,
        }
        return np.broadcast_to(columns[name], c.hbm_bytes.shape)

    def _loose(self) -> Array:
        """First bounds [memories, candidates], all models together."""
        memory, everyone = float(self.candidates.hbm_bytes.max()), np.arange(len(self.candidates))
        out = np.zeros((len(self.models), len(everyone)))
        for m, model in enumerate(self.models):
            for parts in model.parts.values():
                for where, accelerator in self.candidates.of_groups(everyone):
                    out[m, where] = np.maximum(out[m, where], work_rates(self.question, parts, accelerator, memory))
        return np.asarray(self.question.together(out)) / self.candidates.divisor

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
        hbm = self.candidates.hbm_bytes[:, where]
        options = [
            (Option(model=m, split=split, recompute=recompute), rates[r])
            for m, model in enumerate(self.models)
            for split, rates in self._plan_rates(model, where, hbm)
            for r, recompute in enumerate(self.question.recomputes)
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

    def _plan_rates(self, model: LoweredModel, where: Array, hbm: Array) -> list[tuple[Any, Array]]:
        out = []
        for split, parts in model.parts.items():
            rates = np.zeros((len(self.question.recomputes), *hbm.shape))
            for columns, accelerator in self.candidates.of_groups(where):
                rates[:, :, columns] = plan_rates(self.question, parts, accelerator, hbm[:, columns])
            out.append((split, np.where(hbm > 0, rates, 0.0)))
        return out

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
        return priced(self.question, self.candidates, evaluate_point(self.question, point, self.store))

    def front(self) -> tuple[Ranked, ...]:
        """Evaluated points that no other beats, without duplicates."""
        if not self.points:
            return ()
        rows = np.concatenate([-self.reached[:, None], self.values], axis=1) if self.by_rate else self.values
        keep = np.flatnonzero(is_pareto(rows))
        _, first = np.unique(rows[keep], axis=0, return_index=True)
        return tuple(sorted((self.points[i] for i in keep[first]), key=lambda point: -point.objective))
