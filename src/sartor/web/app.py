"""The server as an ASGI application: the page, the questions, health and the OpenAPI document.

Stateless: a question carries all it needs, so that two tabs cannot disturb each other. The process that listens only
moves bytes; workers do the work (``web.lanes``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Path

from sartor import __version__
from sartor.errors import InputError
from sartor.report.palette import DARK, LIGHT, css_variables
from sartor.web.guard import Guard
from sartor.web.lanes import Lane, LaneLimits, busy
from sartor.web.openapi import openapi
from sartor.web.reply import Reply, refused
from sartor.web.routes import QUICK, ROUTES, SLOW, Route
from sartor.web.settings import Settings

MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def create_app(settings: Settings) -> Guard:
    """The application behind its guard. Workers start with it (ASGI lifespan) and end with it."""
    lanes = make_lanes(settings)
    files = page_files()
    document = Reply(body=(json.dumps(openapi(), indent=2) + "\n").encode())
    health = Reply(body=json.dumps(_health(settings)).encode() + b"\n")
    app = Starlette(
        routes=[
            Path("/health", _always(health), methods=["GET"]),
            Path("/openapi.json", _always(document), methods=["GET"]),
            *(Path(f"/{name}", _file(name, data), methods=["GET"]) for name, data in files.items()),
            Path("/", _file("index.html", files["index.html"]), methods=["GET"]),
            Path("/api.html", _api_page(), methods=["GET"]),
            *(Path(path, _paths(path, lanes, settings), methods=methods) for path, methods in by_path().items()),
        ],
        exception_handlers={HTTPException: _http_error},
        lifespan=_lifespan(lanes),
    )
    return Guard(app, settings)


def _health(settings: Settings) -> dict[str, Any]:
    return {"status": "ok", "version": __version__, "watching": settings.study is not None}


def make_lanes(settings: Settings) -> dict[str, Lane]:
    """One worker for quick questions, ``settings.workers`` for searches."""
    environment = {
        "SARTOR_WORKER_BYTES": str(settings.worker_bytes),
        "SARTOR_STUDY": str(settings.study or ""),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    quick = LaneLimits(workers=1, waiting=settings.waiting, seconds=settings.quick_s, stops=False)
    slow = LaneLimits(workers=settings.workers, waiting=settings.waiting, seconds=settings.slow_s, stops=True)
    return {QUICK: Lane(quick, environment), SLOW: Lane(slow, environment)}


def page_files() -> dict[str, bytes]:
    """Every file of the page by its path, in memory: nothing else can be asked for."""
    folder = resources.files("sartor.web") / "static"
    names = [item.name for item in folder.iterdir() if item.name.rpartition(".")[2] in MEDIA]
    found = {name: (folder / name).read_bytes() for name in sorted(names)}
    return {**found, "theme.css": theme().encode()}


def theme() -> str:
    """The colours of the reports, light and dark, as the page's variables."""
    light = css_variables(LIGHT) + "--orange-text:#8a5f00;--green-text:#00694d;--red-text:#a84300;color-scheme:light;"
    dark = (
        css_variables(DARK)
        + f"--orange-text:{DARK.orange};--green-text:{DARK.green};--red-text:{DARK.vermillion};color-scheme:dark;"
    )
    return (
        f":root{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )


def _lifespan(lanes: dict[str, Lane]) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await asyncio.gather(*(lane.start() for lane in lanes.values()))
        try:
            yield
        finally:
            await asyncio.gather(*(lane.stop() for lane in lanes.values()))

    return lifespan


def _always(reply: Reply) -> Any:
    async def endpoint(_: Request) -> Response:
        return response_of(reply)

    return endpoint


def _file(name: str, data: bytes) -> Any:
    media = MEDIA[name.rpartition(".")[2]]
    tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'

    async def endpoint(request: Request) -> Response:
        headers = {"cache-control": "no-cache", "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=media, headers=headers)

    return endpoint


def _api_page() -> Any:
    """Made when it is first asked for: what draws it loads NumPy, which the first page need not wait for."""
    made: list[Any] = []

    async def endpoint(request: Request) -> Response:
        if not made:
            from sartor.web.api_page import api_page

            made.append(_file("api.html", api_page().encode()))
        found: Response = await made[0](request)
        return found

    return endpoint


def by_path() -> dict[str, list[str]]:
    """Every path of a question with its methods."""
    return {route.path: [each.method for each in ROUTES if each.path == route.path] for route in ROUTES}


def _paths(path: str, lanes: dict[str, Lane], settings: Settings) -> Any:
    """The endpoint of a path: its questions by method."""
    questions = {route.method: _question(route, lanes[route.lane], settings) for route in ROUTES if route.path == path}

    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        found: Response = await questions[method](request)
        return found

    return endpoint


def _question(route: Route, lane: Lane, settings: Settings) -> Any:
    """The endpoint of one route: read the body within its limits, have a worker answer."""

    async def endpoint(request: Request) -> Response:
        if lane.full:
            return response_of(busy(), close=route.method == "POST")
        body = b""
        if route.method == "POST":
            read = await read_body(request, route, settings)
            if isinstance(read, Reply):
                return response_of(read, close=True)
            body = read
        header = {"route": route.name, "path": dict(request.path_params)}
        reply = await lane.do(header, body, _gone(request))
        return response_of(reply) if reply is not None else Response(status_code=499)

    return endpoint


async def _gone(request: Request) -> None:
    """Returns when the asker has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, route: Route, settings: Settings) -> bytes | Reply:
    """A request's body, or why it is not taken: its kind, its size, or that it comes too slowly."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != route.takes:
        return refused(InputError("Content-Type", kind or "missing", f"must be {route.takes}", route.takes), status=415)
    limit = settings.body_bytes
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdigit() and int(said[:20]) > limit:
        return _too_large(said[:20], limit)
    try:
        async with asyncio.timeout(settings.upload_s):
            return await _gather(request, limit)
    except TimeoutError:
        must = f"must arrive within {settings.upload_s:g} s"
        return refused(InputError("request", "a slow upload", must), status=408)
    except ClientDisconnect:
        return refused(InputError("request", "cut off", "must arrive whole"), status=400)


async def _gather(request: Request, limit: int) -> bytes | Reply:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            return _too_large(f"more than {limit}", limit)
    return bytes(body)


def _too_large(size: str, limit: int) -> Reply:
    return refused(InputError("request", f"{size} bytes", f"must be at most {limit} bytes"), status=413)


async def _http_error(request: Request, error: Exception) -> Response:
    """No such path, no such method: the same kind of sentence."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    must = {404: "there is no such address here; see /openapi.json", 405: "takes another method; see /openapi.json"}
    said = InputError(request.url.path[:100], request.method, must.get(status, "cannot be answered"))
    reply = response_of(refused(said, status=status))
    reply.headers.update(getattr(error, "headers", None) or {})
    return reply


def response_of(reply: Reply, *, close: bool = False) -> Response:
    """A reply as Starlette sends it; nothing of the answers is cached by a browser."""
    headers = {"cache-control": "no-store"}
    if reply.retry_s:
        headers["retry-after"] = str(reply.retry_s)
    if close:
        headers["connection"] = "close"
    return Response(reply.body, status_code=reply.status, headers={**headers, "content-type": reply.media})
