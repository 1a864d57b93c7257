"""A study of ``sartor design``: the front, how the search converged, and the winner, for the design view."""

from __future__ import annotations

from typing import Any

from sartor.errors import InputError


def uploaded_body(data: bytes) -> dict[str, Any]:
    """What the bytes of a study file hold. Raises ``InputError`` where they are none."""
    if not data.startswith(b"SQLite format 3\x00"):
        raise InputError("study", f"{len(data)} bytes", "must be a study file of `sartor design --study FILE` (SQLite)")
    raise InputError("study", "SQLite", "is no study of sartor")


def watched_body(path: str | None) -> dict[str, Any]:
    """What the study named on the command line holds now. Raises ``InputError``."""
    if path is None:
        raise InputError("study", "none", "no study is watched: start with `sartor serve --study FILE`, or load a file")
    raise InputError("study", path, "is no study of sartor")
