"""Serve the page: its files at once, all held in memory, while everything else loads in the background.

Beside the page there are a few fixed addresses; no other file is served.

The first page is sent before Starlette is imported and before a worker starts. These start after the first page, on the
first request, or shortly after startup, whichever comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from importlib.util import find_spec
from typing import Any

from sartor import __version__
from sartor.errors import InputError, MissingExtraError
from sartor.json_types import JsonDict
from sartor.report.palette import DARK, LIGHT, css_meanings, css_variables
from sartor.web.guard import App, Guard, Receive, Reply, Scope, Send, Settings, refused, respond
from sartor.web.studies import Studies
from sartor.web.work import QUICK, SLOW, Lane, LaneLimits, WorkerLimits, start

MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "gz": "application/gzip",
}


@dataclass(frozen=True, kw_only=True)
class _Page:
    """The content of one address. ``make`` is called on the first request, so that startup is fast; ``slow``: in a
    thread, and its bytes are packed with gzip."""

    media: str
    make: Callable[[], bytes]
    slow: bool = False

    @cached_property
    def data(self) -> bytes:
        return self.make()

    @cached_property
    def packed(self) -> bytes:
        """The content by gzip: a script shrinks to a third."""
        return gzip.compress(self.data, 6, mtime=0)

    @cached_property
    def tag(self) -> str:
        """The ETag, a hash of the content."""
        return f'"{hashlib.sha256(self.data).hexdigest()[:20]}"'


def pages(settings: Settings) -> dict[str, _Page]:
    """Every page by its path."""
    files = {f"/{name}": _page_of(name) for name in _page_files()}
    return {
        **files,
        "/": files["/index.html"],
        "/vega-embed.js": _Page(media=MEDIA["js"], make=_figures_library, slow=True),
        "/theme.css": _Page(media=MEDIA["css"], make=lambda: _theme().encode()),
        "/api.html": _Page(media=MEDIA["html"], make=_api_page),
        "/openapi.json": _Page(media=MEDIA["json"], make=_openapi),
        "/health": _Page(media=MEDIA["json"], make=lambda: _health(settings)),
    }


def _page_files() -> list[str]:
    """Names of the static files."""
    folder = resources.files("sartor.web") / "static"
    return sorted(item.name for item in folder.iterdir() if item.name.rpartition(".")[2] in MEDIA)


def _page_of(name: str) -> _Page:
    file = resources.files("sartor.web") / "static" / name
    return _Page(media=MEDIA[name.rpartition(".")[2]], make=file.read_bytes)


def _health(settings: Settings) -> bytes:
    return json.dumps({"status": "ok", "version": __version__, "watching": settings.study is not None}).encode() + b"\n"


def _openapi() -> bytes:
    from sartor.web.openapi import openapi

    return (json.dumps(openapi(), indent=2) + "\n").encode()


def _api_page() -> bytes:
    from sartor.web.openapi import api_page

    return api_page().encode()


def _theme() -> str:
    """The colours of the reports, light and dark, as the page's variables."""
    light = (
        css_variables(LIGHT) + "--orange-text:#8a5f00;--green-text:#00694d;--red-text:#a84300;"
        "--button:var(--blue);color-scheme:light;"
    )
    dark = (
        css_variables(DARK) + f"--orange-text:{DARK.orange};--green-text:{DARK.green};--red-text:{DARK.vermillion};"
        "--button:#1d6fa8;color-scheme:dark;"
    )
    return (
        f":root{{{light}{css_meanings()}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
    )


def _figures_library() -> bytes:
    """Vega, Vega-Lite and vega-embed, as vl-convert carries them, packed. Bundling takes a second and 80 MB, and holds
    the interpreter: it has a process of its own."""
    code = "import vl_convert; print(vl_convert.javascript_bundle('window.vegaEmbed=vegaEmbed;'))"
    made = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return gzip.compress(made.stdout, mtime=0)


PATIENCE_S = 0.5
"""Delay after which the rest is loaded without a request."""


class _WebApp:
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


async def _send_page(page: _Page, scope: Scope, send: Send) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        error = InputError(scope["path"][:100], scope["method"], "does not support this method; see /openapi.json")
        await respond(send, refused(error, status=405), extra={"allow": "GET, HEAD"}, close=True)
        return
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    if page.slow:
        await asyncio.to_thread(lambda: page.data)
    packed = not page.slow and b"gzip" in headers.get(b"accept-encoding", b"") and len(page.packed) < len(page.data)
    tag = f'{page.tag[:-1]}-gzip"' if packed else page.tag
    tag_header = {"etag": tag, "vary": "accept-encoding"} | (
        {"content-encoding": "gzip"} if packed or page.slow else {}
    )
    if headers.get(b"if-none-match", b"").decode("latin-1") == tag:
        await respond(send, Reply(status=304, body=b"", media=page.media), cache="no-cache", extra=tag_header)
        return
    body = page.packed if packed else page.data
    await respond(send, Reply(body=body, media=page.media), cache="no-cache", extra=tag_header)


MOST_CONNECTIONS = 256
"""Most open connections; uvicorn answers 503 to further ones."""


def listen(settings: Settings) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises ``InputError`` if it is not available."""
    if not 0 <= settings.port <= 65535:
        raise InputError("port", settings.port, "must be from 0 (any) to 65535", "8484")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except UnicodeError:
        raise InputError("host", settings.host, "must be an address of this machine", "127.0.0.1") from None
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, socket.gaierror):
            raise InputError("host", settings.host, f"must be an address of this machine ({reason})") from None
        raise InputError("port", settings.port, f"cannot be listened on ({reason})", "0 for any") from None
    return sock


def serve(settings: Settings, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on ``sock`` until interrupted; ``ready`` is called at the start. Raises ``MissingExtraError``."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(f"the page ({error.name})", "web") from error
    if find_spec("starlette") is None:  # imported after the first page
        raise MissingExtraError("the page (starlette)", "web")

    class ReadyServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            ready()

    app, protocol = Guard(_WebApp(settings), settings), _patient(settings.upload_s)
    ReadyServer(uvicorn.Config(app, http=protocol, **_LIMITS)).run(sockets=[sock])


def _patient(seconds: float) -> type[asyncio.Protocol]:
    """A protocol class that waits at most ``seconds`` for a request's header, and then closes the connection.

    uvicorn only times out idle connections after an answer; one that sends its header a byte a minute would stay open.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class PatientProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.waiting: asyncio.TimerHandle | None = None
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def _watch(self) -> None:
            """Start the timer at a request's first byte (not its last); stop it once it is being answered."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self.waiting is None:
                self.waiting = self.loop.call_later(seconds, self._give_up)

        def _forget(self) -> None:
            if self.waiting is not None:
                self.waiting.cancel()
                self.waiting = None

        def _give_up(self) -> None:
            self.waiting = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.close()

    return PatientProtocol


_LIMITS: JsonDict = {
    "ws": "none",
    "loop": "asyncio",
    "lifespan": "on",
    "log_config": None,
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "date_header": True,
    "proxy_headers": False,
    "limit_concurrency": MOST_CONNECTIONS,
    "timeout_keep_alive": 15,
    "timeout_graceful_shutdown": 2,
    "h11_max_incomplete_event_size": 32 * 1024,
}


def address_of(settings: Settings, sock: socket.socket) -> str:
    """The URL for a browser."""
    port = sock.getsockname()[1]
    host = settings.host
    if host in ("0.0.0.0", "::", ""):
        host = _outward(sock)
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{port}/" + (f"?token={settings.token}" if settings.token else "")


def _outward(listening: socket.socket) -> str:
    """The address by which other machines reach this one; the loopback if it has no network."""
    outside, loopback = ("2001:db8::1", "::1") if listening.family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    with socket.socket(listening.family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((outside, 9))  # an address of documentation: picks a route, sends nothing
        return str(probe.getsockname()[0])
    return loopback
