"""Tasks of the joint search: tasks and results can be pickled, and `run_task` is pure.

So the answer does not depend on which worker runs them, in which order or how many at a time. Three kinds, each more
costly than the one before: first bounds of many candidates, second bounds of a few, exact evaluation of points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sartor.cost.chip.energy_floor import energy_floor_j
from sartor.designs.bounds import LoweredModel, lower_models, plan_rates, work_rates
from sartor.designs.energy import dynamic_j, within_energy
from sartor.designs.parts import Split
from sartor.designs.point import Evaluation, Interval, Point, ScheduleStore, evaluate_point, nothing
from sartor.designs.question import DesignQuestion
from sartor.designs.shape_tasks import FirstPairs, PairTask, SecondPairs
from sartor.hardware.accelerator import Accelerator
from sartor.model.shape import TransformerShape
from sartor.schedules.makespan import timing_fields
from sartor.schedules.solve import ScheduleCache
from sartor.units import Array

Some = tuple[tuple[Array, Accelerator], ...]
"""Candidates by groups: their positions, and an accelerator with arrays that holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTask:
    """The first bound of ``count`` candidates from ``start``, with at most ``hbm_bytes`` of memory."""

    start: int
    count: int
    candidates: Some
    hbm_bytes: float

    @property
    def key(self) -> str:
        return f"work {self.start} {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTask:
    """The second bound of candidates ``index`` for one split of one model, with memories [memories, candidates]."""

    model: int
    split: Split
    index: Array
    candidates: Some
    hbm_bytes: Array

    @property
    def key(self) -> str:
        names = hashlib.blake2b(np.ascontiguousarray(self.index, dtype="<i8").tobytes(), digest_size=12).hexdigest()
        return f"plan {self.model} {self.split.key} {names}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTask:
    """Points of one accelerator, which share its schedules; ``known`` are earlier results for schedules, by name."""

    points: tuple[Point, ...]
    known: tuple[tuple[str, Interval], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeTask:
    """Points of one accelerator in another shape of the model."""

    shape: TransformerShape
    task: PointTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPoints:
    """The evaluated points of a task, and the schedules that are new or improved."""

    evaluations: tuple[Evaluation, ...]
    schedules: tuple[tuple[str, Interval], ...] = ()


Task = WorkTask | PlanTask | PointTask | PairTask | ShapeTask
Result = Array | EvaluatedPoints
"""Rates [models, candidates] of a first bound and [recomputations, memories, candidates] of a second."""


def run_task(question: DesignQuestion, task: Task, check: Callable[[], None] = nothing) -> Result:
    """The result of a task. ``check`` is called from time to time and may raise to stop the task."""
    if isinstance(task, WorkTask):
        return _work(question, task)
    if isinstance(task, PlanTask):
        return _plan(question, task)
    if isinstance(task, FirstPairs | SecondPairs):
        return task.run(question, check)
    blocks = _proved(question)
    if isinstance(task, ShapeTask):
        return _points(question.with_shape(task.shape), task.task, blocks, check)
    return _points(question, task, blocks, check)


@lru_cache(maxsize=4)
def lowered(question: DesignQuestion) -> tuple[LoweredModel, ...]:
    """The question's models, lowered once per process."""
    return lower_models(question)


@lru_cache(maxsize=4)
def _proved(question: DesignQuestion) -> ScheduleCache:
    """Proved blocks of a question, cached in the process: a proof does not depend on who found it."""
    return ScheduleCache()


def _work(question: DesignQuestion, task: WorkTask) -> Array:
    rates = np.zeros((len(question.models), task.count))
    for m, model in enumerate(lowered(question)):
        for parts in model.parts.values():
            for where, accelerator in task.candidates:
                mine = work_rates(question, parts, accelerator, task.hbm_bytes)
                mine = within_energy(question, m, parts, accelerator, mine, energy_floor_j)
                rates[m, where] = np.maximum(rates[m, where], mine)
    return rates


def _plan(question: DesignQuestion, task: PlanTask) -> Array:
    parts = lowered(question)[task.model].parts[task.split]
    rates = np.zeros((len(question.recomputes), *task.hbm_bytes.shape))
    for where, accelerator in task.candidates:
        mine = plan_rates(question, parts, accelerator, task.hbm_bytes[:, where])
        rates[:, :, where] = within_energy(question, task.model, parts, accelerator, mine, dynamic_j)
    return rates


def _points(
    question: DesignQuestion, task: PointTask, blocks: ScheduleCache, check: Callable[[], None]
) -> EvaluatedPoints:
    cores = timing_fields(task.points[0].accelerator)
    known = {(cores, name): interval for name, interval in task.known}
    store = ScheduleStore(seconds=dict(known), blocks=blocks, check=check)
    evaluations = tuple(evaluate_point(question, point, store) for point in task.points)
    found = ((name, interval) for (_, name), interval in store.seconds.items())
    return EvaluatedPoints(
        evaluations=evaluations,
        schedules=tuple((name, interval) for name, interval in found if known.get((cores, name)) != interval),
    )
