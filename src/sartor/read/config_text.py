"""From the bytes of a config.json to one plain dictionary, or one sentence on why not.

Nothing here knows a model. A file is data: it is never imported, followed or executed, its size and nesting are
bounded before it is parsed, and what JSON leaves open (a key twice, NaN) is closed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.json_types import JsonDict

MAX_BYTES = 10 * 1000 * 1000
"""Largest config.json that is read; published ones stay below 1 MB (id2label tables included)."""
MAX_DEPTH = 64
"""Deepest nesting that is read; published configurations stay below 8."""
MAX_DIGITS = 40
"""Longest number that is read; 2**63 has 19 digits."""


def read_config(path: Path) -> JsonDict:
    """The dictionary in a config.json or in the folder that holds one. Raises `InputError`."""
    return parse_config(_read_bytes(path), name=str(path))


def parse_config(data: bytes, *, name: str = "config.json") -> JsonDict:
    """The dictionary in the bytes of a config.json. Raises `InputError`."""
    name = printable(name)
    text = _decode(data, name)
    _refuse_what_is_no_json(text, name)
    _check_depth(text, name)
    try:
        root = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=partial(_constant, text=text, name=name),
            parse_int=partial(_integer, name=name),
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise InputError(name, where, f"must be valid JSON; {error.msg[0].lower()}{error.msg[1:]}") from None
    except RecursionError:
        raise InputError(name, "deeply nested", f"must nest at most {MAX_DEPTH} levels") from None
    if not isinstance(root, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(root), "a number")
        raise InputError(name, kind, "the top level must be an object { ... }")
    _check_keys(root)
    return root


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            path = path / "config.json"
        if not path.exists():
            raise InputError("model", str(path), "no such file; must be a config.json or the folder that holds one")
        if not path.is_file():
            raise InputError("model", str(path), "must be a regular file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(
                printable(str(path)), f"{size} bytes", f"must be at most {MAX_BYTES} bytes for a config.json"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError("model", str(path), f"must be readable ({reason})") from None


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise InputError(name, f"{len(data)} bytes", f"must be at most {MAX_BYTES} bytes for a config.json")
    if not data.strip():
        raise InputError(name, "an empty file", "must hold a JSON object")
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start}", "must be text in UTF-8") from None
    if "\x00" in text:
        raise InputError(name, "binary data", "must be a JSON text, not weights or an archive")
    return text


_BYTE_ORDER_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


def _refuse_what_is_no_json(text: str, name: str) -> None:
    start = text.lstrip()[:200]
    if start.startswith("<"):
        raise InputError(name, start[:30], "must be JSON; this is a web page or XML saved under that name")
    if start.startswith("version https://git-lfs"):
        raise InputError(name, "a Git LFS pointer", "must be the file itself; run: git lfs pull")


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
"""Strings, which may hold brackets of their own, and brackets."""


def _check_depth(text: str, name: str) -> None:
    depth = 0
    for token in _TOKENS.finditer(text):
        char = token.group()[0]
        depth += 1 if char in "{[" else -1 if char in "}]" else 0
        if depth > MAX_DEPTH:
            raise InputError(name, f"more than {MAX_DEPTH} nested levels", f"must nest at most {MAX_DEPTH} levels")


def _unique_keys(pairs: list[tuple[str, Any]]) -> JsonDict:
    out: JsonDict = {}
    for key, value in pairs:
        if key in out and out[key] != value:
            raise InputError(printable(key), value, f"is given twice, first as {out[key]!r:.40}; must be given once")
        if key in out:
            raise InputError(printable(key), value, "is given twice; must be given once")
        out[key] = value
    return out


def _constant(word: str, *, text: str, name: str) -> float:
    if word == "NaN":
        found = _NAN.search(text)
        line = text.count("\n", 0, found.start("nan")) + 1 if found else 1
        key = f" ({printable(found['key'])})" if found and found["key"] else ""
        raise InputError(name, f"NaN in line {line}{key}", "must hold no NaN; JSON has none and no field means it")
    return float(word.replace("Infinity", "inf"))  # Mamba-2 files do say "time_step_limit": [0.0, Infinity].


_NAN = re.compile(r'(?:"(?P<key>[^"\\\n]{1,80})"\s{0,20}:[\s\[]{0,20})?(?<!["\w])(?P<nan>NaN)(?!["\w])')
"""The word NaN outside a string, with the key before it where it follows one."""


def _integer(digits: str, *, name: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError(name, digits[:20] + "...", f"must hold numbers of at most {MAX_DIGITS} digits")
    return int(digits)


def _check_keys(config: JsonDict) -> None:
    """Field names are ASCII without exception; anything else is a slip or a disguise."""
    for key, value in config.items():
        if not key.isascii():
            raise InputError(
                printable(key), value, "field names must be plain ASCII; this only looks so", skeleton(key)
            )
        if not key.isprintable():
            raise InputError(printable(key), value, "field names must hold no control characters", skeleton(key))
        if isinstance(value, dict) and key.endswith("config"):
            _check_keys(value)


def printable(text: str) -> str:
    """A name as it may go to a terminal: anything but printable ASCII escaped, long ones cut."""
    shown = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= 80 else shown[:77] + "..."


_LOOK_ALIKES = dict(zip("асеорхуіјѕԁһӏɡοαινκτρϲⅼ", "aceopxyijsdhlgoaivktpcl", strict=True))
"""Cyrillic, Greek and other letters drawn like Latin ones (Unicode TR 39, confusables, the lower-case Latin part)."""


def skeleton(text: str) -> str:
    """The ASCII text that ``text`` looks like, invisible characters left out."""
    folded = unicodedata.normalize("NFKD", text)
    return "".join(_LOOK_ALIKES.get(c, c) for c in folded if _LOOK_ALIKES.get(c, c).isascii() and c.isprintable())


@cache
def packaged_json(name: str) -> JsonDict:
    """A table of facts that the package ships beside these modules."""
    table: JsonDict = json.loads(files("sartor.read").joinpath(name).read_text(encoding="utf-8"))
    return table
