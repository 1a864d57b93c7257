"""Serve the page's files at once, while everything else loads in the background.

The first page is sent before Starlette is imported and before a worker starts. These start after the first page, on the
first request, or shortly after startup, whichever comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

from sartor.errors import InputError
from sartor.web.guard import App, Receive, Scope, Send, respond
from sartor.web.lanes import QUICK, SLOW, Lane, LaneLimits, start
from sartor.web.pages import Page, pages
from sartor.web.reply import Reply, refused
from sartor.web.settings import Settings
from sartor.web.studies import Studies
from sartor.web.work import WorkerLimits

PATIENCE_S = 0.5
"""Delay after which the rest is loaded without a request."""


class WebApp:
    """The ASGI application: pages from memory, requests to ``web.app`` and its workers."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.pages, self.lanes = settings, pages(settings), _make_lanes(settings)
        self.studies = Studies(self.lanes[QUICK], self.lanes[SLOW], settings)
        self.wanted = asyncio.Event()
        self.loading: asyncio.Task[App] | None = None
        self.starting: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and (page := self.pages.get(scope["path"])):
            await _send_page(page, scope, send)
            self.wanted.set()
        else:
            app = await self._questions()
            await app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The ASGI lifespan; anyio ends its workers with the event loop, even if busy."""
        await receive()
        self.loading = asyncio.create_task(self._load())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in (self.loading, self.starting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        await self.studies.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _questions(self) -> App:
        self.wanted.set()
        assert self.loading is not None
        return await asyncio.shield(self.loading)

    async def _load(self) -> App:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wanted.wait(), PATIENCE_S)
        os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # for workers: one core each
        worker = _worker_limits(self.settings)
        self.starting = asyncio.create_task(self._start_workers(worker))
        return await asyncio.to_thread(_make, self.settings, self.lanes, self.studies)

    async def _start_workers(self, worker: WorkerLimits) -> None:
        """Start the worker for quick requests; those for searches later, not to slow the page's first requests."""
        async with self.lanes[QUICK].turn:
            await start(1, worker)
        await asyncio.sleep(PATIENCE_S)
        await start(1 + self.settings.workers, worker)


def _make(settings: Settings, lanes: dict[str, Lane], studies: Studies) -> App:
    from sartor.web.app import create_app

    return create_app(settings, lanes, studies)


def _make_lanes(settings: Settings) -> dict[str, Lane]:
    """One worker for quick requests, ``settings.workers`` for searches."""
    worker = _worker_limits(settings)
    quick = LaneLimits(workers=1, waiting=settings.waiting, seconds=settings.quick_s, stops=False)
    slow = LaneLimits(workers=settings.workers, waiting=settings.waiting, seconds=settings.slow_s, stops=True)
    return {QUICK: Lane(quick, worker), SLOW: Lane(slow, worker)}


def _worker_limits(settings: Settings) -> WorkerLimits:
    return WorkerLimits(memory_bytes=settings.worker_bytes, study=str(settings.study) if settings.study else None)


async def _send_page(page: Page, scope: Scope, send: Send) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        error = InputError(scope["path"][:100], scope["method"], "does not support this method; see /openapi.json")
        await respond(send, refused(error, status=405), extra={"allow": "GET, HEAD"}, close=True)
        return
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    tag_header = {"etag": page.tag}
    if headers.get(b"if-none-match", b"").decode("latin-1") == page.tag:
        await respond(send, Reply(status=304, body=b"", media=page.media), cache="no-cache", extra=tag_header)
        return
    await respond(send, Reply(body=page.data, media=page.media), cache="no-cache", extra=tag_header)
