"""A worker's reply: status, media type, bytes. Errors have the same message as on the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sartor.errors import InputError
from sartor.json_types import JsonDict, envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer without its headers. ``retry_s``: seconds after which to retry, if that may help."""

    status: int = 200
    body: bytes
    media: str = "application/json"
    retry_s: int = 0


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
