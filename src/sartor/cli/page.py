"""``sartor page``: a page to explore shapes, plans and chips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError


def page(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. A non-local address requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any that is free.")] = 8484,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Additional host name of the server."),
    ] = None,
    study: o.WatchedStudy = None,
    time_limit: o.RequestTimeLimit = 120.0,
    workers: o.Searches = 1,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Open a page in the browser: drag a size and watch time, waves and memory change. Stop with Ctrl-C.

    Example: `sartor page --port 0`
    """
    from sartor.web.guard import Settings
    from sartor.web.server import address_of, listen
    from sartor.web.server import serve as answer

    if not 0.1 <= time_limit <= 3600:
        raise InputError("--time-limit", time_limit, "must be from 0.1 to 3600 seconds", "120")
    if not 1 <= workers <= 64:
        raise InputError("--workers", workers, "must be from 1 to 64", "1")
    settings = Settings(
        host=host,
        port=port,
        names=tuple(allow_host or ()),
        study=_existing(study),
        slow_s=time_limit,
        workers=workers,
    )
    sock = listen(settings)
    settings = replace(settings, port=sock.getsockname()[1])
    if not settings.is_local:
        import secrets

        settings = replace(settings, token=secrets.token_urlsafe(24))
        c.say(f"sartor: {host} can be reached from other machines, unencrypted; the address includes the access token")

    def ready() -> None:
        address = address_of(settings, sock)
        c.say(f"sartor: open {address} (Ctrl-C stops)")
        if open_:
            import webbrowser

            webbrowser.open(address)

    answer(settings, sock, ready)


def _existing(study: Path | None) -> Path | None:
    """The study's path, which must be an existing file."""
    if study is not None and not study.is_file():
        raise InputError("--study", str(study), "must be a study file of `sartor design --study FILE`")
    return None if study is None else study.resolve()
