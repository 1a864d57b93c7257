"""Dask ``distributed`` as workers: any number of hosts behind one address (extra ``cluster``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Executor
from dataclasses import dataclass
from typing import Any

from sartor.designs.question import DesignQuestion
from sartor.designs.tasks import Result, Task
from sartor.engine.executors import OnDone, Submitting
from sartor.errors import InputError, MissingExtraError

REACH_S = 10.0
"""Seconds to wait for a scheduler, and for its first worker."""
SCHEMES = ("tcp", "tls", "ws", "wss", "ucx", "inproc")


@dataclass
class DaskWorkers:
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


def connect_dask(address: str) -> DaskWorkers:
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
    return DaskWorkers(name=address, client=client, through=Submitting(name=address, start=lambda: _executor(client)))


def _executor(client: Any) -> Executor:
    executor: Executor = client.get_executor(pure=False)
    return executor


def _cancelled() -> type[BaseException]:
    """Dask's exception for a cancelled future."""
    from distributed.client import FutureCancelledError

    kind: type[BaseException] = FutureCancelledError
    return kind
