"""Lanes: a few workers and a short queue each. A full queue rejects requests with a time to retry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.web.reply import Reply, refused

DEAD = (asyncio.IncompleteReadError, ConnectionError, ValueError)
"""Exceptions when reading from a dead worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """``workers`` processes, ``waiting`` requests in the queue, ``seconds`` per request. ``stops``: work is ended when
    the client disconnects (a search); else it is short and finishes.

    ``stops``: work whose asker has hung up is ended (a search); else it is short and runs out.
    """

    workers: int
    waiting: int
    seconds: float
    stops: bool = True


class Worker:
    """One worker process, which answers one request at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process; it is ready about half a second later."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sartor.web.work",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self.environment},
            start_new_session=True,  # Ctrl-C is for the server, which ends its workers itself
        )

    async def ask(self, header: JsonMap, body: bytes) -> Reply:
        """Send a request and wait for its answer; raises one of ``DEAD`` if the process died."""
        if self.process is None or self.process.returncode is not None:
            await self.start()
        assert self.process is not None
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({**header, "length": len(body)}).encode() + b"\n" + body)
        await stdin.drain()
        found = json.loads(await stdout.readuntil(b"\n"))
        length = found.pop("length")
        return Reply(**found, body=await stdout.readexactly(length))

    async def stop(self) -> None:
        """End the process, even if it is busy."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(ConnectionError):
                await process.stdin.wait_closed()


class Lane:
    """Some workers behind one queue."""

    def __init__(self, limits: LaneLimits, environment: Mapping[str, str]) -> None:
        self.limits = limits
        self.workers = [Worker(environment) for _ in range(limits.workers)]
        self.idle: asyncio.Queue[Worker] = asyncio.Queue()
        self.waiting = 0
        for worker in self.workers:
            self.idle.put_nowait(worker)

    @property
    def full(self) -> bool:
        """Whether the queue is full; as many waiting requests as there are idle workers are about to start."""
        return self.waiting >= self.limits.waiting + self.idle.qsize()

    async def start(self) -> None:
        await asyncio.gather(*(worker.start() for worker in self.workers))

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self.workers))

    async def do(self, header: JsonMap, body: bytes, gone: Awaitable[Any]) -> Reply | None:
        """The answer to a request; None if the client has ``gone`` (then work on it stops)."""
        if self.full:
            return busy()
        left = asyncio.ensure_future(gone)
        try:
            worker = await self._turn(left)
            return None if worker is None else await self._with(worker, header, body, left)
        finally:
            left.cancel()

    async def _turn(self, left: asyncio.Future[Any]) -> Worker | None:
        """Wait for a worker that is free."""
        self.waiting += 1
        free = asyncio.ensure_future(self.idle.get())
        try:
            await asyncio.wait({free, left}, return_when=asyncio.FIRST_COMPLETED)
            if not free.done():
                return None
            worker = free.result()
            if left.done():
                self.idle.put_nowait(worker)
                return None
            return worker
        finally:
            self.waiting -= 1
            free.cancel()

    async def _with(self, worker: Worker, header: JsonMap, body: bytes, left: asyncio.Future[Any]) -> Reply | None:
        asking = asyncio.ensure_future(worker.ask(header, body))
        clean = False
        try:
            until = {asking, left} if self.limits.stops else {asking}
            await asyncio.wait(until, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                reply = asking.result()
                clean = True
                return reply
            return None if self.limits.stops and left.done() else self._too_long()
        except DEAD:
            return await self._ended(worker)
        finally:
            if not clean:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError, *DEAD):
                    await asking
                await worker.stop()
                await worker.start()
            self.idle.put_nowait(worker)

    async def _ended(self, worker: Worker) -> Reply:
        """A dead worker: killed for its memory, or ended by a library without memory (OpenBLAS)."""
        code = await worker.process.wait() if worker.process else 0
        print(f"sartor: a worker ended with {code}", file=sys.stderr)
        must = "the worker process ended, probably because it ran out of memory; send a smaller request"
        return refused(InputError("request", "as given", must))

    def _too_long(self) -> Reply:
        allowed = f"{self.limits.seconds:g} s"
        must = f"takes longer than the limit of {allowed}; send a smaller request, or serve with --time-limit"
        return refused(InputError("request", "as given", must))


def busy() -> Reply:
    """Too many requests: an error, and when to retry."""
    must = "the server is busy; try again in a second"
    return refused(InputError("server", "busy", must), status=429, retry_s=1)
