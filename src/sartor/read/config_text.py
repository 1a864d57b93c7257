"""From the bytes of a config.json, local or of a hub model, to a plain dictionary, or an error in one sentence."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache
from importlib.resources import files
from pathlib import Path

from sartor.bounded import parse_json, printable, read_bytes
from sartor.errors import InputError, MissingExtraError
from sartor.json_types import JsonDict


def read_config(path: Path) -> JsonDict:
    """The dictionary in a config.json or in the folder that holds one. Raises `InputError`."""
    try:
        inner = path / "config.json" if path.is_dir() else path
    except ValueError as error:
        raise InputError("model", str(path), f"must be readable ({error})") from None
    data = read_bytes(inner, "model", "must be a config.json or the folder that holds one")
    return parse_config(data, name=str(path))


def parse_config(data: bytes, *, name: str = "config.json") -> JsonDict:
    """The dictionary in the bytes of a config.json. Raises `InputError`."""
    root = parse_json(data, name=name)
    _check_keys(root)
    return root


def _check_keys(config: JsonDict) -> None:
    """Field names are always ASCII; anything else is a typing error or a look-alike."""
    for key, value in config.items():
        if not key.isascii():
            raise InputError(
                printable(key),
                value,
                "field names must be plain ASCII; this one has characters that look alike",
                _skeleton(key),
            )
        if not key.isprintable():
            raise InputError(printable(key), value, "field names must hold no control characters", _skeleton(key))
        if isinstance(value, dict) and key.endswith("config"):
            _check_keys(value)


_LOOK_ALIKES = dict(zip("асеорхуіјѕԁһӏɡοαινκτρϲⅼ", "aceopxyijsdhlgoaivktpcl", strict=True))
"""Cyrillic, Greek and other letters drawn like Latin ones (Unicode TR 39, confusables of lower-case Latin)."""


def _skeleton(text: str) -> str:
    """The ASCII text that ``text`` looks like, without invisible characters."""
    folded = unicodedata.normalize("NFKD", text)
    return "".join(_LOOK_ALIKES.get(c, c) for c in folded if _LOOK_ALIKES.get(c, c).isascii() and c.isprintable())


@cache
def packaged_json(name: str) -> JsonDict:
    """A JSON table shipped with the package."""
    table: JsonDict = json.loads(files("sartor.read").joinpath(name).read_text(encoding="utf-8"))
    return table


HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}\Z")


def fetch_config(hub_id: str) -> Path:
    """Path of a hub model's config.json, fetched unless it is in the cache. No other file is downloaded.

    Raises ``InputError`` for an invalid or unreachable name, ``MissingExtraError`` without the extra.
    """
    if not HUB_ID.match(hub_id):
        raise InputError("model", hub_id, "must be a path, a zoo name (sartor catalog models) or a hub id org/name")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtraError(f"reading {hub_id} from the hub (there is no such path)", "hub") from None
    try:
        return Path(hf_hub_download(hub_id, "config.json"))
    except Exception as error:  # the library has many, changing error types; all mean the same here
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            "model", hub_id, f"no such path, and no config.json could be fetched from the hub: {reason}"
        ) from None
