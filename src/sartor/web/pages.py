"""The page's static files, all held in memory, and other fixed addresses; nothing else is served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from sartor import __version__
from sartor.report.palette import DARK, LIGHT, css_meanings, css_variables
from sartor.web.guard import Settings

MEDIA = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of one address. ``make`` is called on the first request, so that startup is fast."""

    media: str
    make: Callable[[], bytes]

    @cached_property
    def data(self) -> bytes:
        return self.make()

    @cached_property
    def tag(self) -> str:
        """The ETag, a hash of the content."""
        return f'"{hashlib.sha256(self.data).hexdigest()[:20]}"'


def pages(settings: Settings) -> dict[str, Page]:
    """Every page by its path."""
    files = {f"/{name}": _page_of(name) for name in _page_files()}
    return {
        **files,
        "/": files["/index.html"],
        "/theme.css": Page(media=MEDIA["css"], make=lambda: _theme().encode()),
        "/api.html": Page(media=MEDIA["html"], make=_api_page),
        "/openapi.json": Page(media=MEDIA["json"], make=_openapi),
        "/health": Page(media=MEDIA["json"], make=lambda: _health(settings)),
    }


def _page_files() -> list[str]:
    """Names of the static files."""
    folder = resources.files("sartor.web") / "static"
    return sorted(item.name for item in folder.iterdir() if item.name.rpartition(".")[2] in MEDIA)


def _page_of(name: str) -> Page:
    file = resources.files("sartor.web") / "static" / name
    return Page(media=MEDIA[name.rpartition(".")[2]], make=file.read_bytes)


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
    light = css_variables(LIGHT) + "--orange-text:#8a5f00;--green-text:#00694d;--red-text:#a84300;color-scheme:light;"
    dark = (
        css_variables(DARK)
        + f"--orange-text:{DARK.orange};--green-text:{DARK.green};--red-text:{DARK.vermillion};color-scheme:dark;"
    )
    return (
        f":root{{{light}{css_meanings()}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )
