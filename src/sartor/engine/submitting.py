"""Run tasks with any ``concurrent.futures.Executor``, replacing workers that die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from sartor import __version__
from sartor.designs.question import DesignQuestion
from sartor.designs.search import in_time
from sartor.designs.tasks import Result, Task, run_task
from sartor.errors import InputError
from sartor.interrupts import unheard

OnDone = Callable[[Task, Result], None]

LOOK_S = 0.2
"""Interval for checking the clock while workers are busy."""
LIVES = 3
"""How often workers may die in a row without finishing anything."""


@dataclass
class Submitting:
    """Runs tasks with a ``concurrent.futures.Executor``, made by ``start`` when first needed.

    If its workers die, the executor is replaced by a new one and unfinished tasks are submitted again.
    """

    name: str
    start: Callable[[], Executor]
    executor: Executor | None = None

    def run(
        self, question: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float
    ) -> Iterator[Result]:
        """Yield results in order; unfinished tasks are cancelled when time is up."""
        results: dict[int, Result] = {}
        waiting: dict[Future[Result], int] = {}
        given, lives = 0, LIVES
        try:
            while given < len(tasks):
                try:
                    self._submit(question, tasks, results, waiting)
                    done, _ = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        i = waiting.pop(future)
                        results[i], lives = result, LIVES
                        on_done(tasks[i], result)
                except BrokenProcessPool:
                    lives -= 1
                    self._bury(waiting, lives)
                while given in results:
                    yield results[given]
                    given += 1
                    self._submit(question, tasks, results, waiting)
                in_time(deadline)
        finally:
            for future in waiting:
                future.cancel()

    def _submit(
        self,
        question: DesignQuestion,
        tasks: Sequence[Task],
        known: dict[int, Result],
        waiting: dict[Future[Result], int],
    ) -> None:
        """Submit every task that has neither a result nor been submitted."""
        self.executor = self.executor or self.start()
        asked = {*known, *waiting.values()}
        with unheard():
            for i, task in enumerate(tasks):
                if i not in asked:
                    waiting[self.executor.submit(run_elsewhere, __version__, question, task)] = i

    def _bury(self, waiting: dict[Future[Result], int], lives: int) -> None:
        """After workers died, forget the waiting tasks, so that they are submitted again to new workers."""
        self.close()
        waiting.clear()
        if lives <= 0:
            must = "workers died before finishing anything (out of memory?)"
            raise InputError("executor", self.name, must, "serial")

    def close(self) -> None:
        """Stop the workers without waiting for their tasks."""
        executor, self.executor = self.executor, None
        if executor is not None:
            processes = list((getattr(executor, "_processes", None) or {}).values())
            _leave_alone(getattr(executor, "_executor_manager_thread", None))
            executor.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()


def run_elsewhere(version: str, question: DesignQuestion, task: Task) -> Result:
    """Run a task in a worker. Raises ``InputError`` if the worker has another version, since results may differ."""
    if version != __version__:
        raise InputError("executor", f"sartor {__version__}", f"a worker must have sartor {version}, as asked", version)
    return run_task(question, task)


def _leave_alone(thread: threading.Thread | None) -> None:
    """Suppress the error of a pool's own thread when its workers are terminated: it updates futures that are already
    cancelled, and Python would print that."""
    told = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.thread is not thread:
            told(args)

    if thread is not None:
        threading.excepthook = hook
