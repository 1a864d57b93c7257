"""`run_search`: the joint search with workers and a study file that stores its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count

from sartor.designs.question import DesignQuestion
from sartor.designs.result import JointResult, Progress
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import Result, Task
from sartor.engine.executors import Workers
from sartor.engine.store import SearchStore, ShapesStore, Store
from sartor.engine.study import MAIN


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
    kept = None if store is None else store.scoped(question, space, tolerance, scope)
    already_s = 0.0 if kept is None else kept.spent_s()
    numbers = count()

    def told(progress: Progress) -> None:
        if kept is not None:
            kept.step(next(numbers), progress)
        if on_progress is not None:
            on_progress(progress)

    result = search_design(
        question,
        space,
        time_limit_s=time_limit_s,
        tolerance=tolerance,
        run=Remembering(by=by, kept=kept, deadline=deadline),
        on_progress=told,
        already_s=already_s,
        floor=floor,
    )
    if store is None or kept is None:
        return result
    store.ending = ending_of(result, tolerance)
    return replace(result, trajectory=kept.history())


def ending_of(result: JointResult, tolerance: float) -> str:
    """A word for how a search ended."""
    ended = result.status.proved or result.gap <= tolerance
    return "interrupted" if result.interrupted else "complete" if ended else "time"


@dataclass(frozen=True, slots=True)
class Remembering:
    """Runs tasks with ``by`` unless ``kept`` has their results, and stores new results."""

    by: Workers
    kept: SearchStore | ShapesStore | None
    deadline: float

    def __call__(self, question: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
        """Results in the order of the tasks, to which more may be appended meanwhile."""
        known, missing = list[Result | None](), list[Task]()
        put, given = self.kept.put if self.kept is not None else _forget, 0
        with closing(self.by.run(question, missing, put, self.deadline)) as fresh:  # type: ignore[type-var]
            while given < len(tasks):
                for task in tasks[len(known) :]:
                    known.append(None if self.kept is None else self.kept.get(task))
                    missing += [task] if known[-1] is None else []
                result = known[given]
                given += 1
                yield next(fresh) if result is None else result


def _forget(task: Task, result: Result) -> None:
    """Store nothing, without a study."""
