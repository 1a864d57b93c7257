"""Listen with uvicorn within the limits of ``Settings``, and tell the user the address."""

from __future__ import annotations

import socket
from collections.abc import Callable
from importlib.util import find_spec

from sartor.errors import InputError, MissingExtraError
from sartor.json_types import JsonDict
from sartor.web.settings import Settings

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

        from sartor.web.front import WebApp
        from sartor.web.guard import Guard
        from sartor.web.protocol import patient
    except ImportError as error:
        raise MissingExtraError(f"the page ({error.name})", "web") from error
    if find_spec("starlette") is None:  # imported after the first page
        raise MissingExtraError("the page (starlette)", "web")

    class ReadyServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            ready()

    app, protocol = Guard(WebApp(settings), settings), patient(settings.upload_s)
    ReadyServer(uvicorn.Config(app, http=protocol, **_LIMITS)).run(sockets=[sock])


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
        host = socket.gethostbyname(socket.gethostname()) if host != "::" else "[::1]"
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{port}/" + (f"?token={settings.token}" if settings.token else "")
