"""A design question with some points to evaluate, and workers whose results are remembered across tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from design_samples import TWO, question, small_space
from sartor.designs.candidates import JointResult
from sartor.designs.question import DesignQuestion
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import PointTask, Result, Task, run_task
from sartor.engine.executors import OnDone, make_executor
from sartor.engine.run import run_search
from sartor.engine.store import open_study

ASKED = question(models=tuple(replace(model, widths=(1,)) for model in TWO), microbatch_sizes=(4,))
SPACE = small_space(num_tensor_cores=[1, 2, 3, 4, 5, 6, 8], array_rows=[8, 16, 24, 32, 48], array_cols=[16, 32, 48])

KNOWN: dict[str, Result] = {}


def key_of(task: Task) -> str:
    """What a result hangs on."""
    if isinstance(task, PointTask):
        return json.dumps([[p.index, p.hbm_bytes, p.schedule_limit_s, p.floor] for p in task.points])
    return task.key


class CutError(BaseException):
    """The process is killed here."""


@dataclass
class Scripted:
    """Workers that compute what nobody has asked in this test run before, and die after ``lives`` results."""

    lives: int = 10**9
    done: list[str] = field(default_factory=list)
    name: str = "scripted"

    def run(self, asked: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float) -> Iterator[Result]:
        for task in tasks:
            if self.lives <= len(self.done):
                raise CutError
            key = key_of(task)
            if key not in KNOWN:
                KNOWN[key] = run_task(asked, task)
            self.done.append(key)
            on_done(task, KNOWN[key])
            yield KNOWN[key]

    def close(self) -> None:
        """Nothing is held."""


def run_design(
    asked: DesignQuestion,
    space: AcceleratorSpace,
    *,
    study: Path | None = None,
    executor: str = "serial",
    workers: int | None = None,
    **how: Any,
) -> JointResult:
    """One search with workers of its own, and a study if one is named."""
    by = make_executor(executor, workers)
    with closing(by), nullcontext() if study is None else open_study(study, by.name) as store:
        return run_search(asked, space, by, store, **how)


def search(path: Path, by: Any, **changes: Any) -> JointResult:
    """The sample question with a study."""
    with open_study(path, by.name) as store:
        return run_search(ASKED, SPACE, by, store, **changes)


def facts(result: JointResult) -> tuple[Any, ...]:
    """All of a result but the clock."""
    steps = [(p.phase, p.bound, p.incumbent, p.evaluated, p.waiting, p.pruned) for p in result.trajectory]
    counts = (result.evaluated, result.pruned, result.space_size)
    return result.status, result.best, result.upper_bound, result.gap, result.ranked, counts, steps


def digest(result: JointResult) -> str:
    """A short name of all of a result but the clock."""
    return hashlib.sha256(repr(facts(result)).encode()).hexdigest()


def evaluations(result: JointResult) -> int:
    """How often points were evaluated: a point whose schedules needed more time was so more than once."""
    return sum(step.phase == "search" for step in result.trajectory)
