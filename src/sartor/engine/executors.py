"""Executors of tasks: this process, a pool of processes, or Dask workers on any number of hosts.

All run the same pure function on the same tasks, so the answer is the same. `make_executor` makes one by name; any
other ``concurrent.futures.Executor`` can be used through `Submitting`.

Dask ``distributed`` as workers: any number of hosts behind one address (extra ``cluster``).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from sartor.designs.question import DesignQuestion
from sartor.designs.search import in_time
from sartor.designs.tasks import Result, Task, run_task
from sartor.errors import InputError, MissingExtraError
from sartor.interrupts import deaf, unheard
from sartor.version import __version__

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
        raise InputError("workers", workers, "must be at least 1", str(_usable_cores()))
    if word == "serial":
        return _Serial()
    if word == "local":
        return Local(workers or _usable_cores())
    if "://" in word:
        return _connect_dask(word)
    raise InputError("executor", word, "must be serial, local or a scheduler's address", "local, tcp://127.0.0.1:8786")


def _usable_cores() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass
class _Serial:
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
    serial: _Serial = field(default_factory=_Serial)

    def __post_init__(self) -> None:
        self.beside = Submitting(name=self.name, start=partial(start_pool, self.workers))

    def run(
        self, question: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float
    ) -> Iterator[Result]:
        """Yield results in order."""
        num_serial, yielded, rest = 0, 0, list[Task]()
        with closing(self.beside.run(question, rest, on_done, deadline)) as beside:  # type: ignore[type-var]
            while yielded < len(tasks):
                if not rest and (self.spent_s < self.alone_s or self.workers == 1 or len(tasks) == yielded + 1):
                    start = time.perf_counter()
                    result = next(self.serial.run(question, [tasks[yielded]], on_done, deadline))
                    self.spent_s += time.perf_counter() - start
                    num_serial += 1
                else:
                    rest += tasks[num_serial + len(rest) :]
                    result = next(beside)
                yielded += 1
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
        yielded, lives = 0, LIVES
        try:
            while yielded < len(tasks):
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
                while yielded in results:
                    yield results[yielded]
                    yielded += 1
                    self._submit(question, tasks, results, waiting)
                in_time(deadline)
        finally:
            for future in waiting:
                future.cancel()

    def _submit(
        self,
        question: DesignQuestion,
        tasks: Sequence[Task],
        results: dict[int, Result],
        waiting: dict[Future[Result], int],
    ) -> None:
        """Submit every task that has neither a result nor been submitted."""
        self.executor = self.executor or self.start()
        submitted = {*results, *waiting.values()}
        with unheard():
            for i, task in enumerate(tasks):
                if i not in submitted:
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
    previous_hook = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.thread is not thread:
            previous_hook(args)

    if thread is not None:
        threading.excepthook = hook


REACH_S = 10.0
"""Seconds to wait for a scheduler, and for its first worker."""
SCHEMES = ("tcp", "tls", "ws", "wss", "ucx", "inproc")


@dataclass
class _DaskWorkers:
    """A Dask client and its scheduler's workers, which continue after the client closes."""

    name: str
    client: Any
    through: Submitting

    def run(
        self, question: DesignQuestion, tasks: Sequence[Task], on_done: OnDone, deadline: float
    ) -> Iterator[Result]:
        """Yield results in order. Raises ``InputError`` if the scheduler disappears or a task kills its workers."""
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            yield from self.through.run(question, tasks, on_done, deadline)
        except KilledWorker:
            must = "workers died before finishing anything (out of memory there?)"
            raise InputError("executor", self.name, must) from None
        except (CancelledError, CommClosedError, OSError, _cancelled()):
            must = "the scheduler went away; finished work is kept in the study, run again when it is back"
            raise InputError("executor", self.name, must, "local") from None
        except ModuleNotFoundError as error:
            must = f"its workers cannot import {error.name}; install the same sartor there"
            raise InputError("executor", self.name, must) from None

    def close(self) -> None:
        """Disconnect; this client's unfinished tasks are cancelled."""
        self.through.executor = None
        self.client.close(timeout=REACH_S)


def _connect_dask(address: str) -> _DaskWorkers:
    """Connect to the workers of a scheduler.

    Raises ``MissingExtraError`` without the package, ``InputError`` if the scheduler does not answer or has no workers.
    """
    scheme = address.partition("://")[0]
    if scheme not in SCHEMES:
        raise InputError("executor", address, "must be a scheduler's address", "tcp://127.0.0.1:8786")
    try:
        import distributed
    except ImportError:
        raise MissingExtraError("executor tcp://...", "cluster") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # our own errors say it in one sentence
    connect: Any = distributed.Client
    try:
        client: Any = connect(address, timeout=REACH_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:120] or "no answer"
        must = f"no scheduler answers there ({reason}); start one with `dask scheduler`"
        raise InputError("executor", address, must, "local") from None
    try:
        client.wait_for_workers(1, timeout=REACH_S)
    except TimeoutError:
        client.close()
        must = f"the scheduler has no workers; start some with `dask worker {address} --nthreads 1`"
        raise InputError("executor", address, must, "local") from None
    return _DaskWorkers(name=address, client=client, through=Submitting(name=address, start=lambda: _executor(client)))


def _executor(client: Any) -> Executor:
    executor: Executor = client.get_executor(pure=False)
    return executor


def _cancelled() -> type[BaseException]:
    """Dask's exception for a cancelled future."""
    from distributed.client import FutureCancelledError

    kind: type[BaseException] = FutureCancelledError
    return kind
