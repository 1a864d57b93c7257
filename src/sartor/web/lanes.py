"""Lanes: a few workers and a short queue each. A full queue rejects requests with a time to retry."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.web.reply import Reply, refused
from sartor.web.work import WorkerLimits, answer, ready

if TYPE_CHECKING:
    from anyio import CancelScope


T = TypeVar("T")

QUICK, SLOW = "quick", "slow"
"""Worker lanes: quick answers take milliseconds and must not wait behind searches."""
STUDIES = "studies"
"""Design searches, each in its own process; the request does not wait for its end (``web.studies``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """``workers`` processes, ``waiting`` requests in the queue, ``seconds`` per request.

    ``stops``: work is cancelled when the client disconnects (a search); else it is short and finishes.
    """

    workers: int
    waiting: int
    seconds: float
    stops: bool = True


class Lane:
    """A limited number of processes from anyio's pool, with a short queue of requests."""

    def __init__(self, limits: LaneLimits, worker: WorkerLimits) -> None:
        self.limits, self.worker = limits, worker
        self.turn = asyncio.Semaphore(limits.workers)
        self.asked = 0

    @property
    def full(self) -> bool:
        """Whether every worker is busy and the queue is full."""
        return self.asked >= self.limits.workers + self.limits.waiting

    async def do(self, header: JsonMap, body: bytes, gone: Awaitable[None]) -> Reply | None:
        """The answer to a request; None if the client has ``gone`` (then work on it stops)."""
        from anyio import CancelScope, create_task_group  # imported only after the first page was sent

        if self.full:
            return busy()
        self.asked += 1
        reply = None
        try:
            async with create_task_group() as group:
                group.start_soon(_when, gone, group.cancel_scope)
                async with self.turn:
                    with CancelScope(shield=not self.limits.stops):
                        reply = await self._answer(header, body)
                group.cancel_scope.cancel()
        finally:
            self.asked -= 1
        return reply

    async def _answer(self, header: JsonMap, body: bytes) -> Reply:
        from anyio import BrokenWorkerProcess, fail_after

        try:
            with fail_after(self.limits.seconds):
                try:
                    return await in_a_process(answer, self.worker, header, body)
                except BrokenWorkerProcess:  # perhaps its memory was full of earlier answers, so try a fresh one
                    return await in_a_process(answer, self.worker, header, body)
        except TimeoutError:
            allowed = f"{self.limits.seconds:g} s"
            must = f"takes longer than the limit of {allowed}; send a smaller request, or serve with --time-limit"
        except BrokenWorkerProcess:
            print("sartor: two workers ended at one request", file=sys.stderr)
            must = "needs more memory than a worker has; send a smaller request"
        return refused(InputError("request", "as given", must))


async def in_a_process(job: Callable[..., T], *args: object) -> T:
    """Run ``job`` in a process of anyio's pool, which is killed if this is cancelled."""
    from anyio import CapacityLimiter, to_process

    return await to_process.run_sync(job, *args, cancellable=True, limiter=CapacityLimiter(1))


async def start(workers: int, worker: WorkerLimits) -> None:
    """Make sure that the pool has this many processes ready for a request."""
    await asyncio.gather(*(in_a_process(ready, worker) for _ in range(workers)))


async def _when(gone: Awaitable[None], scope: CancelScope) -> None:
    await gone
    scope.cancel()


def busy() -> Reply:
    """Too many requests: an error, and when to retry."""
    must = "the server is busy; try again in a second"
    return refused(InputError("server", "busy", must), status=429, retry_s=1)
