"""`run_whole`: a design with all further requests, with one executor and one study that stores every part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sartor.designs.baselines import compare
from sartor.designs.front import NamedSearch, ProvedFront, proved_front
from sartor.designs.keep import Keep, afresh
from sartor.designs.question import DesignQuestion
from sartor.designs.result import Baseline, JointResult, Progress
from sartor.designs.search import RunTasks
from sartor.designs.shapes import ShapeDesign
from sartor.designs.shapes_proved import JointShapes
from sartor.designs.space import AcceleratorSpace
from sartor.designs.why import reasons
from sartor.engine.executors import Workers, make_executor
from sartor.engine.run import Remembering, ending_of, run_search
from sartor.engine.store import ShapesStore, Store, open_study
from sartor.engine.study import MAIN

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
        self, *, search: NamedSearch, run: RunTasks, tolerance: float, deadline: float, told: OnProgress | None
    ) -> JointShapes | JointResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The search's result, including baselines, and the results of the other requests."""

    result: JointResult
    front: ProvedFront | None = None
    shapes: ShapeDesign | None = None
    joint: JointShapes | None = None


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
    a Dask scheduler's address; the answer is the same. Each search ends after ``time_limit_s``. Ctrl-C ends the current
    part and skips the rest; the result then says so. Raises ``InputError`` for a study of another question, damaged or
    in use, a full disk, or a scheduler that does not answer.
    """
    with closing(make_executor(executor, workers)) as by:
        opened = nullcontext() if study is None else open_study(study, by.name)
        with opened as store:
            run = _Run(question, space, by, store, time_limit_s, tolerance, on_progress)
            if beside.every_shape is None:
                whole = Whole(result=run.search(question, space, ""))
            else:
                whole, run = _over_shapes(run, beside.every_shape)
            if whole.result.best is not None and not whole.result.interrupted:
                whole = _with(whole, beside, run)
            if store is not None:
                store.ending = ending_of(whole.result, tolerance)
            return whole


def _over_shapes(run: _Run, every_shape: EveryShape) -> tuple[Whole, _Run]:
    """Search the best of all shapes; the further requests then use the best shape."""
    deadline = time.perf_counter() + run.limit_s

    def search(question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0) -> JointResult:
        left_s = max(deadline - time.perf_counter(), 0.0)
        return replace(run, limit_s=left_s).search(question, space, name, floor)

    kept = None if run.store is None else ShapesStore(run.store, run.question, run.space, run.tolerance)
    found = every_shape(
        search=search,
        run=Remembering(by=run.by, kept=kept, deadline=deadline),
        tolerance=run.tolerance,
        deadline=deadline,
        told=run.on_progress,
    )
    if isinstance(found, JointResult):
        return Whole(result=found), run
    return Whole(result=found.result, joint=found), replace(run, question=found.question, scope="the best shape")


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
            whole = part(whole, beside, run)
        except KeyboardInterrupt:
            whole = replace(whole, result=replace(whole.result, interrupted=True))
        if whole.result.interrupted:
            break
    return whole


def _with_baselines(whole: Whole, beside: Beside, run: _Run) -> Whole:
    if not beside.baselines:
        return whole
    result, found = whole.result, list[Baseline]()
    try:
        for way in _ways(run, result):
            found.append(way)
        if result.best is not None:
            run.told(result, "baselines: why the best is faster")
            result = replace(result, reasons=reasons(run.question, result.best, found, run.keep))
    except KeyboardInterrupt:
        result = replace(result, interrupted=True)
    return replace(whole, result=replace(result, baselines=tuple(found)))


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
    ended = any(each.interrupted for each in (*shapes.results, shapes.family))
    return replace(whole, shapes=shapes, result=replace(whole.result, interrupted=ended))
