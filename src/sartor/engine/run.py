"""`run_whole`: a design with all further requests, with one executor and one study that stores every part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Protocol

from sartor.designs.against import reasons
from sartor.designs.baselines import compare
from sartor.designs.candidates import Baseline, JointResult, Keep, Progress, afresh
from sartor.designs.front import NamedSearch, ProvedFront, proved_front
from sartor.designs.question import DesignQuestion
from sartor.designs.search import OutOfTime, RunTasks, in_time, search_design
from sartor.designs.shapes import ShapeDesign
from sartor.designs.shapes_proved import JointShapes
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import Result, ShapeTask, Task
from sartor.engine.executors import Workers, make_executor
from sartor.engine.store import SearchStore, Store, open_study
from sartor.engine.study import MAIN
from sartor.model.shape import TransformerShape


def run_search(
    question: DesignQuestion,
    space: AcceleratorSpace,
    by: Workers,
    store: Store | None,
    *,
    scope: str | None = MAIN,
    time_limit_s: float = float("inf"),
    tolerance: float = 0.0,
    on_progress: Callable[[Progress], None] | None = None,
    floor: float = 0.0,
) -> JointResult:
    """`designs.search.search_design` with workers already made, continuing from the results stored in a study.

    With ``store``, every result is stored at once, and stored results are not computed again, so a session continues
    the last one however it ended; ``seconds`` counts all sessions. A study may have further searches besides the main
    one, under another ``scope`` or (None) one named by its question. ``floor`` is as in `search_design`.
    """
    deadline = time.perf_counter() + time_limit_s
    search_store = None if store is None else store.scoped(question, space, tolerance, scope)
    already_s = 0.0 if search_store is None else search_store.spent_s()
    numbers = count()

    def told(progress: Progress) -> None:
        if search_store is not None:
            search_store.step(next(numbers), progress)
        if on_progress is not None:
            on_progress(progress)

    result = search_design(
        question,
        space,
        time_limit_s=time_limit_s,
        tolerance=tolerance,
        run=Remembering(by=by, stored=search_store, deadline=deadline),
        on_progress=told,
        already_s=already_s,
        floor=floor,
        keep=afresh if search_store is None else search_store.keep,
    )
    if store is None or search_store is None:
        return result
    store.ending = _ending_of(result, tolerance)
    return replace(result, trajectory=search_store.history())


def _ending_of(result: JointResult, tolerance: float) -> str:
    """A word for how a search ended."""
    ended = result.status.proved or result.gap <= tolerance
    return "interrupted" if result.interrupted else "complete" if ended else "time"


@dataclass(frozen=True, slots=True)
class Remembering:
    """Runs tasks with ``by`` unless ``stored`` has their results, and stores new results."""

    by: Workers
    stored: SearchStore | _ShapesStore | None
    deadline: float

    def __call__(self, question: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
        """Results in the order of the tasks, to which more may be appended meanwhile."""
        results, missing = list[Result | None](), list[Task]()
        put, yielded = self.stored.put if self.stored is not None else _forget, 0
        with closing(self.by.run(question, missing, put, self.deadline)) as fresh:  # type: ignore[type-var]
            while yielded < len(tasks):
                for task in tasks[len(results) :]:
                    results.append(None if self.stored is None else self.stored.get(task))
                    missing += [task] if results[-1] is None else []
                result = results[yielded]
                yielded += 1
                yield next(fresh) if result is None else result


def _forget(task: Task, result: Result) -> None:
    """Store nothing, without a study."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Requests besides the best point: baselines, a front over ``axes``, a search over ``shapes``."""

    baselines: bool = False
    axes: Sequence[str] = ()
    shapes: Callable[[NamedSearch, Keep], ShapeDesign] | None = None
    every_shape: EveryShape | None = None
    """Search with the shape's fields as axes of the space; replaces the search for the best point."""


class EveryShape(Protocol):
    """`search_with_shapes` of a question, given a search and an executor that end by themselves at the deadline."""

    def __call__(
        self, *, search: NamedSearch, run: RunTasks, tolerance: float, deadline: float, on_progress: OnProgress | None
    ) -> JointShapes | JointResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The search's result, including baselines, and the results of the other requests."""

    result: JointResult
    front: ProvedFront | None = None
    shapes: ShapeDesign | None = None
    joint: JointShapes | None = None


SEARCHED = 0.8
"""Share of the time for the search, where other requests come after it."""


def run_whole(
    question: DesignQuestion,
    space: AcceleratorSpace,
    beside: Beside,
    *,
    time_limit_s: float = float("inf"),
    tolerance: float = 0.0,
    study: str | Path | None = None,
    executor: str = "serial",
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Whole:
    """The search (`run_search`), then the requests in ``beside``; a study stores everything, so nothing is done twice.

    ``executor`` is ``serial``, ``local`` (up to ``workers`` processes; call it under ``if __name__ == "__main__"``) or
    a Dask scheduler's address; the answer is the same. All of it ends after ``time_limit_s``, of which `SEARCHED` is
    for the search; known chips whose turn has not come by then are left out. Ctrl-C ends the current part and skips the
    rest; the result then says so. Raises ``InputError`` for a study of another question, damaged or in use, a full
    disk, or a scheduler that does not answer.
    """
    with closing(make_executor(executor, workers)) as by:
        opened = nullcontext() if study is None else open_study(study, by.name)
        with opened as store:
            end = time.perf_counter() + time_limit_s
            limit_s = time_limit_s * (SEARCHED if beside.baselines or beside.axes or beside.shapes else 1.0)
            run = _Run(question, space, by, store, limit_s, tolerance, on_progress, end)
            if beside.every_shape is None:
                whole = Whole(result=run.search(question, space, ""))
            else:
                whole, run = _over_shapes(run, beside.every_shape)
            if whole.result.best is not None and not whole.result.interrupted:
                whole = _with(whole, beside, run)
            if store is not None:
                store.ending = _ending_of(whole.result, tolerance)
            return whole


def _over_shapes(run: _Run, every_shape: EveryShape) -> tuple[Whole, _Run]:
    """Search the best of all shapes; the further requests then use the best shape."""
    deadline = time.perf_counter() + run.limit_s

    def search(question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0) -> JointResult:
        left_s = max(deadline - time.perf_counter(), 0.0)
        return replace(run, limit_s=left_s).search(question, space, name, floor)

    shapes_store = None if run.store is None else _ShapesStore(run.store, run.question, run.space, run.tolerance)
    joint = every_shape(
        search=search,
        run=Remembering(by=run.by, stored=shapes_store, deadline=deadline),
        tolerance=run.tolerance,
        deadline=deadline,
        on_progress=run.on_progress,
    )
    if isinstance(joint, JointResult):
        return Whole(result=joint), run
    return Whole(result=joint.result, joint=joint), replace(run, question=joint.question, scope="the best shape")


@dataclass
class _ShapesStore:
    """Results of a search over shapes: bounds in one part of the study, the points of each shape in separate parts."""

    store: Store
    question: DesignQuestion
    space: AcceleratorSpace
    tolerance: float
    parts: dict[TransformerShape | None, SearchStore] = field(default_factory=dict)

    def get(self, task: Task) -> Result | None:
        """The stored result of a task, or None."""
        return self._part(task).get(_bare(task))

    def put(self, task: Task, result: Result) -> None:
        """Store the result of a task. Raises ``InputError`` if the disk is full."""
        self._part(task).put(_bare(task), result)

    def _part(self, task: Task) -> SearchStore:
        shape = task.shape if isinstance(task, ShapeTask) else None
        if shape not in self.parts:
            question = self.question if shape is None else self.question.with_shape(shape)
            scope = "all shapes" if shape is None else f"shape {len(self.parts)}"
            self.parts[shape] = self.store.scoped(question, self.space, self.tolerance, scope)
        return self.parts[shape]


def _bare(task: Task) -> Task:
    """The task within its shape's own search."""
    return task.task if isinstance(task, ShapeTask) else task


@dataclass(frozen=True, slots=True)
class _Run:
    """Executor, study and time limit of a run."""

    question: DesignQuestion
    space: AcceleratorSpace
    by: Workers
    store: Store | None
    limit_s: float
    tolerance: float
    on_progress: OnProgress | None
    end: float
    """When all requests must end."""
    scope: str = MAIN

    def search(self, question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0) -> JointResult:
        """Run the main search, or another of the study by its name."""
        return run_search(
            question,
            space,
            self.by,
            self.store,
            scope=name or MAIN,
            time_limit_s=self.limit_s,
            tolerance=self.tolerance,
            on_progress=self.on_progress,
            floor=floor,
        )

    @property
    def keep(self) -> Keep:
        """The `Keep` of the study's main part (of the best shape, if all were searched), or one that stores nothing."""
        if self.store is None:
            return afresh
        return self.store.scoped(self.question, self.space, self.tolerance, self.scope).keep

    def told(self, result: JointResult, phase: str) -> None:
        """Report the current phase, with the search's last figures."""
        if self.on_progress and result.trajectory:
            self.on_progress(replace(result.trajectory[-1], phase=phase))


def _with(whole: Whole, beside: Beside, run: _Run) -> Whole:
    """Run the further requests one after another, until Ctrl-C."""
    if run.store is not None:
        run.store.ending = "interrupted"  # unless everything gets done
    for part in (_with_baselines, _with_front, _with_shapes):
        try:
            whole = part(whole, beside, replace(run, limit_s=max(run.end - time.perf_counter(), 0.0)))
        except KeyboardInterrupt:
            whole = replace(whole, result=replace(whole.result, interrupted=True))
        if whole.result.interrupted:
            break
    return whole


def _with_baselines(whole: Whole, beside: Beside, run: _Run) -> Whole:
    if not beside.baselines:
        return whole
    result, baselines = whole.result, list[Baseline]()
    try:
        for way in _ways(run, result):
            baselines.append(way)
            in_time(run.end)
        if result.best is not None:
            run.told(result, "baselines: why the best is faster")
            result = replace(result, reasons=reasons(run.question, result.best, baselines, run.keep))
    except OutOfTime:
        pass
    except KeyboardInterrupt:
        result = replace(result, interrupted=True)
    return replace(whole, result=replace(result, baselines=tuple(baselines)))


def _ways(run: _Run, result: JointResult) -> Iterator[Baseline]:
    for way in compare(run.question, run.space, keep=run.keep):
        run.told(result, f"baselines: {way.name}")
        yield way


def _with_front(whole: Whole, beside: Beside, run: _Run) -> Whole:
    if not beside.axes:
        return whole
    run.told(whole.result, "front")
    front = proved_front(
        run.question, run.space, beside.axes, time_limit_s=run.limit_s, search=run.search, keep=run.keep
    )
    return replace(whole, front=front, result=replace(whole.result, interrupted=front.interrupted))


def _with_shapes(whole: Whole, beside: Beside, run: _Run) -> Whole:
    if beside.shapes is None:
        return whole
    run.told(whole.result, "shapes")
    shapes = beside.shapes(run.search, run.keep)
    ended = any(result.interrupted for result in (*shapes.results, shapes.family))
    return replace(whole, shapes=shapes, result=replace(whole.result, interrupted=ended))
