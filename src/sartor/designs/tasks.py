"""Tasks of the joint search: tasks and results can be pickled, and `run_task` is pure.

So the answer does not depend on which worker runs them, in which order or how many at a time. Three kinds, each more
costly than the one before: first bounds of many candidates, second bounds of a few, exact evaluation of points.

In a search over shapes, a pair is a shape on a chip. Its bounds have one row per model and split (`Row`), the same rows
for every shape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sartor.cost.chip.ownership import energy_floor_j
from sartor.designs.bounds import LoweredModel, dynamic_j, lower_models, plan_rates, within_energy, work_rates
from sartor.designs.candidates import Candidates
from sartor.designs.parts import CopySplit, parts_of
from sartor.designs.point import Evaluation, Interval, Point, ScheduleStore, evaluate_point, nothing
from sartor.designs.question import DesignQuestion
from sartor.designs.shape_bounds import first_rates, second_rates
from sartor.hardware.accelerator import Accelerator
from sartor.model.shape import TransformerShape
from sartor.schedules.makespan import timing_fields
from sartor.schedules.solve import ScheduleCache
from sartor.units import Array

CandidateGroups = tuple[tuple[Array, Accelerator], ...]
"""Candidates by groups: their positions, and an accelerator with arrays that holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTask:
    """The first bound of ``count`` candidates from ``start``, with at most ``hbm_bytes`` of memory. Before 0 they are
    the best chips that boxes of candidates might hold, which take no less energy than some of them."""

    start: int
    count: int
    candidates: CandidateGroups
    hbm_bytes: float

    @property
    def key(self) -> str:
        return f"work {self.start} {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTask:
    """The second bound of candidates ``index`` for one split of one model, with memories [memories, candidates]."""

    model: int
    split: CopySplit
    index: Array
    candidates: CandidateGroups
    hbm_bytes: Array

    @property
    def key(self) -> str:
        names = hashlib.blake2b(np.ascontiguousarray(self.index, dtype="<i8").tobytes(), digest_size=12).hexdigest()
        return f"plan {self.model} {self.split.key} {names}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTask:
    """Points of one accelerator, which share its ``schedules``: earlier results by name."""

    points: tuple[Point, ...]
    schedules: tuple[tuple[str, Interval], ...] = ()


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


Row = tuple[int, CopySplit]
"""A model's index and its split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPairs:
    """First bounds of all ``shapes`` on all ``candidates``, kept if they exceed ``hopes`` [candidates]; ``start`` is
    the index of the first shape."""

    start: int
    shapes: tuple[TransformerShape, ...]
    rows: tuple[Row, ...]
    candidates: Candidates
    hopes: Array

    @property
    def key(self) -> str:
        return f"first {self.start} {len(self.shapes)} {_digest(self.hopes)}"

    def run(self, question: DesignQuestion, check: Callable[[], None]) -> Array:
        """[2 + rows, 1 + pairs]: index of the shape, position of the chip, and the bound of each row (0 if the split
        does not divide the shape). The first column has, in its first row, the upper bound of all pairs left out."""
        chips = np.arange(len(self.candidates))
        rates = np.zeros((len(self.rows), len(self.shapes), len(chips)))
        questions = [question.with_shape(shape) for shape in self.shapes]
        for r, (m, split) in enumerate(self.rows):
            check()
            parts = {s: parts_of(entry, m, split) for s, entry in enumerate(questions)}
            divided = {s: entry for s, entry in parts.items() if entry is not None}
            if divided:
                divided_questions = [questions[s] for s in divided]
                rates[r, list(divided)] = first_rates(divided_questions, list(divided.values()), self.candidates, chips)
        joint = together(question, self.rows, rates)
        shape, chip = np.nonzero(joint > self.hopes)
        others = np.zeros((2 + len(self.rows), 1))
        others[0] = np.where(joint > self.hopes, 0.0, joint / self.candidates.least_divisor()).max(initial=0.0)
        pairs = np.concatenate([[shape + self.start], [chip], rates[:, shape, chip]])
        return np.concatenate([others, pairs], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPairs:
    """Second bounds of pairs of ``shape`` (index into ``shapes``) and ``chip`` (into ``candidates``). ``rates`` [rows,
    pairs] are first bounds where ``blunt``. The best blunt row is bounded repeatedly, until the best row has its second
    bound or the pair does not exceed ``hopes`` [pairs]; with ``every_row``, all rows that exceed it are."""

    shapes: tuple[TransformerShape, ...]
    rows: tuple[Row, ...]
    candidates: Candidates
    shape: Array
    chip: Array
    rates: Array
    blunt: Array
    hopes: Array
    every_row: bool

    @property
    def key(self) -> str:
        return f"second {self.every_row} {_digest(self.shape, self.chip, self.rates, self.blunt, self.hopes)}"

    def run(self, question: DesignQuestion, check: Callable[[], None]) -> Array:
        """[2, rows, pairs]: rates, and which of them are still first bounds."""
        questions = [question.with_shape(shape) for shape in self.shapes]
        rates, blunt = self.rates.copy(), self.blunt.copy()
        todo = self._every if self.every_row else self._best
        while (due := todo(question, rates, blunt)).any():
            check()
            for m in range(len(question.models)):
                row, pairs = np.nonzero(due & (_models(self.rows) == m)[:, None])
                if len(pairs):
                    rates[row, pairs] = np.minimum(rates[row, pairs], self._second(questions, m, row, pairs))
                    blunt[row, pairs] = False
        return np.stack([rates, blunt.astype(np.float64)])

    def _best(self, question: DesignQuestion, rates: Array, blunt: Array) -> Array:
        """Mask [rows, pairs] of blunt rows that are the best of their model, for pairs above ``hopes``."""
        hopeful = together(question, self.rows, rates) > self.hopes
        due, of_model = np.zeros(blunt.shape, dtype=bool), _models(self.rows)
        for m in range(len(question.models)):
            mine = np.flatnonzero(of_model == m)
            due[mine[rates[mine].argmax(axis=0)], np.arange(rates.shape[1])] = True
        return np.asarray(due & blunt & hopeful)

    def _every(self, question: DesignQuestion, rates: Array, blunt: Array) -> Array:
        """Mask of all blunt rows that exceed ``hopes`` together with the best rows of the other models."""
        best, due = _best_rows(question, self.rows, rates), blunt.copy()
        for r, (m, _) in enumerate(self.rows):
            joint = question.together(np.concatenate([best[:m], rates[r][None], best[m + 1 :]]))
            due[r] &= np.asarray(joint) > self.hopes
        return due

    def _second(self, questions: Sequence[DesignQuestion], m: int, row: Array, pairs: Array) -> Array:
        """Second bounds of rows ``row`` [...] of model ``m`` for pairs ``pairs`` [...], in one array pass."""
        both, place = np.unique(np.stack([self.shape[pairs], row]), axis=1, return_inverse=True)
        parts = [parts_of(questions[s], m, self.rows[r][1]) for s, r in both.T.tolist()]
        enough = self.hopes[pairs] if len(questions[0].models) == 1 else np.zeros(len(pairs))
        return second_rates(
            [questions[s] for s in both[0].tolist()],
            [
                shape_parts for shape_parts in parts if shape_parts is not None
            ],  # splits that do not divide a shape have rate 0: none here
            self.candidates,
            place.reshape(-1),
            self.chip[pairs],
            enough,
        )


Task = WorkTask | PlanTask | PointTask | FirstPairs | SecondPairs | ShapeTask
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
                if task.start >= 0:
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
    schedules = {(cores, name): interval for name, interval in task.schedules}
    store = ScheduleStore(seconds=dict(schedules), blocks=blocks, check=check)
    evaluations = tuple(evaluate_point(question, point, store) for point in task.points)
    solved = ((name, interval) for (_, name), interval in store.seconds.items())
    return EvaluatedPoints(
        evaluations=evaluations,
        schedules=tuple((name, interval) for name, interval in solved if schedules.get((cores, name)) != interval),
    )


def together(question: DesignQuestion, rows: Sequence[Row], rates: Array) -> Array:
    """Rates of all models together [...], each with its best row, from rates [rows, ...]."""
    return np.asarray(question.together(_best_rows(question, rows, rates)))


def _best_rows(question: DesignQuestion, rows: Sequence[Row], rates: Array) -> Array:
    """The best row's rate of every model [models, ...]."""
    of_model = _models(rows)
    return np.stack([rates[of_model == m].max(axis=0, initial=0.0) for m in range(len(question.models))])


def _models(rows: Sequence[Row]) -> Array:
    return np.array([m for m, _ in rows])


def _digest(*arrays: Array) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return digest.hexdigest()
