"""Workers, each one process of anyio's pool that answers one request at a time, in lanes with a short queue each.

They are separate processes because a search can only be stopped from outside: one that takes too long is killed and
replaced. Their memory is limited too. A full queue rejects requests with a time to retry.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sartor import interrupts
from sartor.errors import InputError, InternalError
from sartor.json_types import JsonMap
from sartor.web.guard import Reply, refused

if TYPE_CHECKING:
    from anyio import CancelScope

REMEMBERED = 64
"""Cache of quick answers by request, so that undo, redo and dragging back cost nothing."""
LARGEST_KEPT = 400_000
"""Largest answer that is kept [bytes]."""
FRESH = ("study", "watched")
"""Routes answered from a file, which may change: not cached."""
STATM = Path("/proc/self/statm")
LOOK_S = 0.05
"""Interval between checks of a process's memory [s]."""
BEYOND_BYTES = 2**28
"""What it may allocate beyond its limit between two checks."""
NO_MEMORY = 12
"""Exit status of a process that exceeded its memory limit (ENOMEM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Memory limit of a worker [bytes] (0: none), and the study named on the command line."""

    memory_bytes: int = 0
    study: str | None = None


def _answer(limits: WorkerLimits, header: JsonMap, body: bytes) -> Reply:
    """Answer one request in this worker process."""
    return _begin(limits)(header, body)


def _ready(limits: WorkerLimits) -> None:
    """Load in advance what the first request needs."""
    _begin(limits)


@cache
def _begin(limits: WorkerLimits) -> Answerer:
    """Make this process a worker: it ignores Ctrl-C (the server ends it), and prints its errors (anyio's workers are
    silent)."""
    interrupts.deaf()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    answerer = Answerer(limits.study)
    _warm_up(answerer)
    limit_memory(limits.memory_bytes)
    return answerer


OPENED = {
    "model": "GPT-3 2.7B",
    "gpu": "a100_sxm",
    "phase": "train",
    "attention": "flash",
    "framework": "torchtitan",
    "set": {},
}
"""What the page asks when it opens (``START`` of static/state.js)."""


def _warm_up(answerer: Answerer) -> None:
    """Answer the page's first requests in advance: everything they need is loaded, and the answers are kept."""
    import sartor.shapes.search  # noqa: F401

    answerer({"route": "shape"}, json.dumps(OPENED, separators=(",", ":")).encode())
    for shelf in ("models", "gpus", "accelerators"):
        answerer({"route": "catalog", "path": {"what": shelf}}, b"")


class Answerer:
    """Answers by route, with a cache. ``study`` is the file named on the command line."""

    def __init__(self, study: str | None = None) -> None:
        self.study = study
        self.kept: OrderedDict[tuple[str, bytes], Reply] = OrderedDict()

    def __call__(self, header: JsonMap, body: bytes) -> Reply:
        key = (json.dumps([header["route"], header.get("path", {})]), body)
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        reply = self.fresh(header["route"], header.get("path", {}), body)
        small = len(reply.body) <= LARGEST_KEPT and len(body) <= LARGEST_KEPT
        if reply.status == 200 and small and header["route"] not in FRESH:
            self.kept[key] = reply
            while len(self.kept) > REMEMBERED:
                self.kept.popitem(last=False)
        return reply

    def fresh(self, name: str, path: Mapping[str, str], body: bytes) -> Reply:
        """One answer; any failure becomes an error message."""
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                reply = self._answer(name, path, body)
            return replace(reply, warnings=tuple(dict.fromkeys(str(warning.message) for warning in heard)))
        except InputError as error:
            return refused(error)
        except MemoryError:
            return refused(
                InputError("request", "as given", "needs more memory than a worker has; send a smaller request")
            )
        except OverflowError:
            return refused(InputError("request", "as given", "has sizes that are too large (2^63)"))
        except RecursionError:
            return refused(InputError("request", "as given", "is nested too deeply"))
        except Exception as slip:
            import traceback

            traceback.print_exc()
            sentence = " ".join(str(slip).split())[:200]
            why = f"internal error (please report): {type(slip).__name__}: {sentence}"
            return refused(InternalError("sartor", why), status=500)

    def _answer(self, name: str, path: Mapping[str, str], body: bytes) -> Reply:
        from sartor.web import answers, study_view
        from sartor.web.arguments import body_of, calibration_at_hand
        from sartor.web.guard import answered, compact
        from sartor.web.routes import checked, route_named

        route = route_named(name)
        if name == "study":
            return answered("study", study_view.uploaded_body(Path(path["file"])))
        if name == "watched":
            path_fields = {"id": path["id"]} if "id" in path else {}
            return answered("study", {**path_fields, **study_view.watched_body(path.get("study", self.study))})
        if name == "design":
            from sartor.web.study_run import asked_of, searched

            request = checked(route.fields, body_of(body))
            if path:
                return searched(request, path["study"])
            return compact("design", {"models": len(asked_of(request)["model"])})
        handler: Callable[[JsonMap], Reply] = getattr(answers, name)
        if route.method == "GET":
            return handler(path)
        with calibration_at_hand(checked(route.fields, body_of(body))) as fields:
            return handler(fields)


def limit_memory(size: int) -> None:
    """End this process once it has taken ``size`` bytes more than it has now (Linux only; 0: never).

    Memory is watched rather than denied, because Python and its libraries misbehave if an allocation fails (half-loaded
    modules, missing hash functions, OpenBLAS retrying for ever). Only far larger allocations are denied, because they
    could use up the machine between two checks.
    """
    if not size:
        return
    try:
        import resource

        largest = _own_memory() + size
        data = int(STATM.read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + size + BEYOND_BYTES,) * 2)
    except (ImportError, ValueError, OSError):
        print("sartor: this system does not limit a worker's memory", file=sys.stderr)
        return
    threading.Thread(target=_end_above, args=(largest,), daemon=True).start()


def _end_above(largest: int) -> None:
    while _own_memory() <= largest:
        time.sleep(LOOK_S)
    os._exit(NO_MEMORY)


def _own_memory() -> int:
    """Resident bytes that this process does not share with others."""
    resident, shared = STATM.read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


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
                    return await in_a_process(_answer, self.worker, header, body)
                except BrokenWorkerProcess:  # perhaps its memory was full of earlier answers, so try a fresh one
                    return await in_a_process(_answer, self.worker, header, body)
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
    await asyncio.gather(*(in_a_process(_ready, worker) for _ in range(workers)))


async def _when(gone: Awaitable[None], scope: CancelScope) -> None:
    await gone
    scope.cancel()


def busy() -> Reply:
    """Too many requests: an error, and when to retry."""
    must = "the server is busy; try again in a second"
    return refused(InputError("server", "busy", must), status=429, retry_s=1)
