"""What a worker hands back: a status, a media type, bytes. Errors carry the command line's sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sartor.errors import InputError
from sartor.json_types import JsonDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer without its headers. ``retry_s``: seconds after which to ask again, where that may help."""

    status: int = 200
    body: bytes
    media: str = "application/json"
    retry_s: int = 0


def answered(schema: str, body: JsonDict) -> Reply:
    """The contract's envelope, as ``--json`` writes it: the same answer gives the same bytes."""
    from sartor.cli.common import to_json

    return Reply(body=to_json(schema, body).encode())


def compact(schema: str, body: JsonDict) -> Reply:
    """The same without white space, for what a page asks for at every turn of a knob: ten times quicker to write."""
    from sartor import __version__

    envelope = {"schema": f"sartor/{schema}/1", "version": __version__, **body}
    return Reply(body=json.dumps(envelope, allow_nan=False, separators=(",", ":")).encode())


def refused(error: InputError, status: int = 422, *, retry_s: int = 0) -> Reply:
    """The error object of the contract, with the sentence of the command line."""
    from sartor import __version__

    shown = {"schema": "sartor/error/1", "version": __version__, "error": error.to_dict()}
    text = json.dumps(shown, indent=2, ensure_ascii=True, default=str) + "\n"
    return Reply(status=status, body=text.encode(), retry_s=retry_s)
