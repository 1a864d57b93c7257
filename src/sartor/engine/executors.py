"""Executors of tasks: this process, a pool of processes, or Dask workers on any number of hosts.

All run the same pure function on the same tasks, so the answer is the same. `make_executor` makes one by name; any
other ``concurrent.futures.Executor`` can be used through `Submitting`.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from sartor.designs.question import DesignQuestion
from sartor.designs.search import in_time
from sartor.designs.tasks import Result, Task, run_task
from sartor.engine.submitting import OnDone, Submitting
from sartor.errors import InputError
from sartor.interrupts import deaf

ALONE_S = 4.0
"""Seconds of work here before processes are started: they take a second to load, too long for a small question."""


class Workers(Protocol):
    """Runs tasks and yields results in their order; ``on_done`` is called for each as soon as it is known, in any
    order. Tasks may be appended to the sequence while results are read."""

    name: str

    def run(
        self, question: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float
    ) -> Iterator[Result]: ...

    def close(self) -> None: ...


def make_executor(word: str, workers: int | None = None) -> Workers:
    """``serial``, ``local`` (processes on this machine, ``workers`` of them) or a Dask scheduler's address.

    Raises ``InputError`` for any other word, an unreachable scheduler, or a package that is missing.
    """
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "must be at least 1", str(usable_cores()))
    if word == "serial":
        return Serial()
    if word == "local":
        return Local(workers or usable_cores())
    if "://" in word:
        from sartor.engine.dask_workers import connect_dask

        return connect_dask(word)
    raise InputError("executor", word, "must be serial, local or a scheduler's address", "local, tcp://127.0.0.1:8786")


def usable_cores() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass
class Serial:
    """One task after another in this process."""

    name: str = "serial"

    def run(
        self, question: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float
    ) -> Iterator[Result]:
        """Yield results in order; stops within a task when time is up."""
        for task in tasks:
            result = run_task(question, task, partial(in_time, deadline))
            on_done(task, result)
            yield result

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Local:
    """Starts in this process and continues with a pool of processes if the question is large."""

    workers: int
    alone_s: float = ALONE_S
    name: str = "local"
    spent_s: float = 0.0
    here: Serial = field(default_factory=Serial)

    def __post_init__(self) -> None:
        self.beside = Submitting(name=self.name, start=partial(start_pool, self.workers))

    def run(
        self, question: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float
    ) -> Iterator[Result]:
        """Yield results in order."""
        here, given, rest = 0, 0, list[Task]()
        with closing(self.beside.run(question, rest, on_done, deadline)) as beside:  # type: ignore[type-var]
            while given < len(tasks):
                if not rest and (self.spent_s < self.alone_s or self.workers == 1 or len(tasks) == given + 1):
                    start = time.perf_counter()
                    result = next(self.here.run(question, [tasks[given]], on_done, deadline))
                    self.spent_s += time.perf_counter() - start
                    here += 1
                else:
                    rest += tasks[here + len(rest) :]
                    result = next(beside)
                given += 1
                yield result

    def close(self) -> None:
        """Stop the processes."""
        self.beside.close()


def start_pool(workers: int) -> Executor:
    """A pool of fresh processes that ignore Ctrl-C and always end when this process ends."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_serve)


def _serve() -> None:
    deaf()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
