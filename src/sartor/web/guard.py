"""The settings of a server, which requests it answers (host, origin, token), and the headers of every answer.

Another site's page must not be able to use a server on 127.0.0.1. Checking ``Host`` prevents DNS rebinding; ``Origin``
and ``Sec-Fetch-Site`` prevent requests from other pages; and a JSON content type is required, which forms cannot send.

A `Reply` has status, media type and bytes; errors have the same message as on the command line.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sartor.errors import InputError
from sartor.json_types import JsonDict, envelope

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Address, allowed hosts and limits. ``token`` "" requires none (loopback only)."""

    host: str = "127.0.0.1"
    port: int = 8484
    token: str = ""
    names: tuple[str, ...] = ()
    """Additional host names of the server (``Host``)."""
    body_bytes: int = MIB
    upload_s: float = 10.0
    """Seconds for the header of a request, and again for its body."""
    quick_s: float = 20.0
    slow_s: float = 120.0
    """Time limits of a quick request and a search [s]."""
    waiting: int = 24
    """Requests that may wait in each lane; further ones are rejected with a time to retry."""
    workers: int = 1
    """Processes for searches, in addition to the one for quick requests."""
    worker_bytes: int = 320 * MIB
    """Memory a worker may allocate for its answers."""
    study_bytes: int = 2048 * MIB
    """Memory that a design search may allocate."""
    study: Path | None = None
    """A study file to watch."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name is a loopback name."""
    address = _address(host.strip("[]"))
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "sartor_token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
OPEN = ("/health",)
"""Paths that need no token."""


class Guard:
    """The server with its checks."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.run = secrets.token_hex(4)
        """Identifies this run of the server, so that a page notices a restart."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.refusal(scope, headers)
        extra = self._cookie(scope)

        async def headed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message.get("headers", ())}
                headers = {**HEADERS, "sartor-run": self.run}
                missing = [(k.encode(), v.encode()) for k, v in headers.items() if k.encode() not in names]
                message = {**message, "headers": [*message.get("headers", ()), *missing, *extra]}
            await send(message)

        if refusal is not None:
            await respond(headed, refusal, close=True)
            return
        await self.app(scope, receive, headed)

    def refusal(self, scope: Scope, headers: Mapping[str, str]) -> Reply | None:
        """The reason to reject this request; None if there is none."""
        host = headers.get("host", "")
        if not self.is_known(host):
            must = "must be the address this server was started on (or one given with --allow-host)"
            return refused(InputError("Host", host, must), status=403)
        if not self.is_own(headers, host):
            origin = headers.get("origin") or headers.get("sec-fetch-site", "")
            return refused(InputError("Origin", origin, "must be this server's own page"), status=403)
        if self.settings.token and scope["path"] not in OPEN and not self.has_token(scope, headers):
            must = "must be given: open the address that `sartor page` printed, or send Authorization: Bearer TOKEN"
            return refused(InputError("token", "missing or wrong", must), status=401)
        return None

    def is_known(self, host: str) -> bool:
        """Whether the host is the server's own address, a loopback name of this machine, or an allowed name."""
        name, port = split_host(host)
        if port not in (None, self.settings.port):
            return False
        if name in {self.settings.host.lower().strip("[]"), *(n.lower() for n in self.settings.names)}:
            return True
        if self.settings.is_local:
            return name in ("localhost", "127.0.0.1", "::1")
        return _address(name) is not None  # not loopback: only by number (a name could be rebound), and with the token

    def is_own(self, headers: Mapping[str, str], host: str) -> bool:
        """Whether a request comes from this server's page, or from no page at all."""
        site = headers.get("sec-fetch-site", "none")
        if site == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return False
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc.lower() == host.lower() != ""

    def has_token(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether the request has the token in its address, a header, or the page's cookie."""
        sent = [_asked_token(scope), headers.get("authorization", "").removeprefix("Bearer ").strip()]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        sent.append(cookie.value if cookie else "")
        return any(hmac.compare_digest(word.encode(), self.settings.token.encode()) for word in sent)

    def _cookie(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        token = self.settings.token
        if not token or not hmac.compare_digest(_asked_token(scope).encode(), token.encode()):
            return []
        return [(b"set-cookie", f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/".encode())]


def _asked_token(scope: Scope) -> str:
    try:
        query: str = scope.get("query_string", b"").decode("latin-1")
        return parse_qs(query, max_num_fields=32).get("token", [""])[0]
    except ValueError:
        return ""


def split_host(host: str) -> tuple[str, int | None]:
    """``"[::1]:80"`` -> ``("::1", 80)``; None without a port, -1 for an invalid host."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.\-]+)(?::([0-9]{1,5}))?", host)
    if match is None:
        return "", -1
    return match[1].lower().strip("[]").rstrip("."), int(match[2]) if match[2] else None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


async def respond(
    send: Send, reply: Reply, *, close: bool = False, cache: str = "no-store", extra: Mapping[str, str] | None = None
) -> None:
    """Send a whole reply. ``close`` ends the connection, so that the rest of a body need not be read."""
    headers = {"cache-control": cache, **(extra or {})}
    if reply.status != 304:
        headers |= {"content-type": reply.media, "content-length": str(len(reply.body))}
    if reply.retry_s:
        headers["retry-after"] = str(reply.retry_s)
    if close:
        headers["connection"] = "close"
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": encoded})
    await send({"type": "http.response.body", "body": reply.body})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer without its headers. ``retry_s``: seconds after which to retry, if that may help; ``warnings``:
    what the command line prints beside the answer."""

    status: int = 200
    body: bytes
    media: str = "application/json"
    retry_s: int = 0
    warnings: tuple[str, ...] = ()


def answered(schema: str, body: JsonDict) -> Reply:
    """The JSON envelope as ``--json`` writes it: the same answer gives the same bytes."""
    return Reply(body=envelope(schema, body).encode())


def compact(schema: str, body: JsonDict) -> Reply:
    """The same without white space, for requests at every move of a slider: ten times faster to write."""
    from sartor import __version__

    envelope = {"schema": f"sartor/{schema}/1", "version": __version__, **body}
    return Reply(body=json.dumps(envelope, allow_nan=False, separators=(",", ":")).encode())


def refused(error: InputError, status: int = 422, *, retry_s: int = 0) -> Reply:
    """The JSON error object, with the message of the command line."""
    from sartor import __version__

    shown = {"schema": "sartor/error/1", "version": __version__, "error": error.to_dict()}
    text = json.dumps(shown, indent=2, ensure_ascii=True, default=str) + "\n"
    return Reply(status=status, body=text.encode(), retry_s=retry_s)
