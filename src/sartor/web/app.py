"""The requests as a Starlette application: bodies within limits, passed to the workers (``web.work``).

Stateless: a request carries everything it needs, so that tabs cannot disturb each other. The listening process only
moves bytes; workers compute.
"""

from __future__ import annotations

import asyncio
import json
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from sartor.errors import InputError, InternalError
from sartor.web.guard import Reply, Settings, refused
from sartor.web.routes import ROUTES, Route
from sartor.web.studies import Studies
from sartor.web.work import STUDIES, Lane, busy

COMPRESSED_BYTES = 4096
"""Least size of an answer that is compressed: a catalogue shrinks to a tenth, in a millisecond."""


def create_app(settings: Settings, lanes: dict[str, Lane], studies: Studies) -> Starlette:
    """The routes. Workers start and end with ``web.server``."""
    return Starlette(
        routes=[
            Endpoint(path, _paths(path, lanes, studies, settings), methods=methods)
            for path, methods in _by_path().items()
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=COMPRESSED_BYTES, compresslevel=3)],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )


def _by_path() -> dict[str, list[str]]:
    """Every path with its methods."""
    return {route.path: [item.method for item in ROUTES if item.path == route.path] for route in ROUTES}


def _paths(path: str, lanes: dict[str, Lane], studies: Studies, settings: Settings) -> Any:
    """The endpoint of a path, by method."""
    questions = {
        route.method: _studied(route, studies, settings)
        if route.lane == STUDIES
        else _question(route, lanes[route.lane], studies, settings)
        for route in ROUTES
        if route.path == path
    }

    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        response: Response = await questions[method](request)
        return response

    return endpoint


def _question(route: Route, lane: Lane, studies: Studies, settings: Settings) -> Any:
    """The endpoint of one route: read the body within its limits, have a worker answer."""

    async def endpoint(request: Request) -> Response:
        if lane.full:
            return _response_of(busy(), close=route.method == "POST")
        if route.takes != "application/json":
            return await _filed(request, route, lane, studies, settings)
        if route.name == "watched" and settings.study is not None and _is_large(settings.study):
            return _response_of(await studies.read(route.name, "study", settings.study))
        body = BytesIO()
        if refusal := await _read_body(request, route, settings, body):
            return _response_of(refusal, close=True)
        header = {"route": route.name, "path": dict(request.path_params)}
        return _sent(await lane.do(header, body.getvalue(), _gone(request)))

    return endpoint


_LARGE_BYTES = 2**23
"""A larger study is read in a process of its own, because a worker lacks the memory."""


def _is_large(path: Path) -> bool:
    """Whether a study is too large for a worker."""
    return path.is_file() and path.stat().st_size > _LARGE_BYTES


async def _filed(request: Request, route: Route, lane: Lane, studies: Studies, settings: Settings) -> Response:
    """The answer to a body that is a file: written to a temporary folder, where a worker reads it, to save memory."""
    with TemporaryDirectory(prefix="sartor-sent-") as folder:
        path = Path(folder) / "sent"
        with path.open("wb") as file:
            if refusal := await _read_body(request, route, settings, file):
                return _response_of(refusal, close=True)
        if _is_large(path):
            return _response_of(await studies.read(route.name, "file", path))
        return _sent(await lane.do({"route": route.name, "path": {"file": str(path)}}, b"", _gone(request)))


def _studied(route: Route, studies: Studies, settings: Settings) -> Any:
    """The endpoint of a route about a study that was started here."""

    async def endpoint(request: Request) -> Response:
        body = BytesIO()
        if refusal := await _read_body(request, route, settings, body):
            return _response_of(refusal, close=True)
        if route.name == "design":
            return _sent(await studies.start(body.getvalue()))
        if route.name == "design_stop":
            from sartor.read.config_text import parse_config  # imported only after the first page was sent
            from sartor.web.routes import checked

            try:
                checked(route.fields, parse_config(body.getvalue(), name="request"))
            except InputError as error:
                return _response_of(refused(error))
        does = {"design_state": studies.state, "design_stop": studies.stop, "design_file": studies.file}[route.name]
        return _sent(await does(request.path_params["id"]))

    return endpoint


def _sent(reply: Reply | None) -> Response:
    return _response_of(reply) if reply is not None else Response(status_code=499)


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request, route: Route, settings: Settings, into: IO[bytes]) -> Reply | None:
    """Write a POST's body to ``into``, or return the reason to reject it: type, size, or speed."""
    if route.method != "POST":
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != route.takes:
        return refused(InputError("Content-Type", kind or "missing", f"must be {route.takes}", route.takes), status=415)
    limit = max(settings.body_bytes, route.body_bytes)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        return _too_large(length[:20], limit)
    try:
        async with asyncio.timeout(settings.upload_s):
            return await _gather(request, limit, into)
    except TimeoutError:
        must = f"must arrive within {settings.upload_s:g} s"
        return refused(InputError("request", "a slow upload", must), status=408)
    except ClientDisconnect:
        return refused(InputError("request", "cut off", "must arrive whole"), status=400)


async def _gather(request: Request, limit: int, into: IO[bytes]) -> Reply | None:
    async for piece in request.stream():
        if into.tell() + len(piece) > limit:
            return _too_large(f"more than {limit}", limit)
        into.write(piece)
    return None


def _too_large(size: str, limit: int) -> Reply:
    return refused(InputError("request", f"{size} bytes", f"must be at most {limit} bytes"), status=413)


async def _http_error(request: Request, error: Exception) -> Response:
    """The error for an unknown path or method, in the usual form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    must = {404: "unknown address; see /openapi.json", 405: "does not support this method; see /openapi.json"}
    refusal = InputError(request.url.path[:100], request.method, must.get(status, "cannot be answered"))
    reply = _response_of(refused(refusal, status=status))
    reply.headers.update(getattr(error, "headers", None) or {})
    return reply


async def _internal_error(request: Request, error: Exception) -> Response:
    """An internal error in the listening process; the traceback goes to stderr."""
    why = f"internal error (please report {request.method} {request.url.path[:100]}): {type(error).__name__}"
    return _response_of(refused(InternalError("sartor", why), status=500))


def _response_of(reply: Reply, *, close: bool = False) -> Response:
    """A reply as a Starlette response; browsers must not cache it."""
    headers = {"cache-control": "no-store"}
    if reply.retry_s:
        headers["retry-after"] = str(reply.retry_s)
    if reply.warnings:
        headers["sartor-warnings"] = json.dumps(reply.warnings)
    if close:
        headers["connection"] = "close"
    return Response(reply.body, status_code=reply.status, headers={**headers, "content-type": reply.media})
