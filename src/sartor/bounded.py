"""Readers of user files: text, JSON, TOML and CSV of bounded size, nesting and number length.

A file is data: it is never imported, followed or executed. Every reader goes through here, so that a missing, huge,
binary, truncated or endlessly nested file gives a one-sentence error, in time and memory bounded by its size.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tomllib
import zlib
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sartor.errors import InputError, Stated
from sartor.json_types import JsonDict

MAX_BYTES = 10_000_000
"""Largest JSON or script read; published config.json files stay below 1 MB (id2label tables included)."""
MAX_TOML_BYTES = 1_000_000
"""Largest TOML read: parsing the worst of that size takes 2 s and 0.2 GB (measured)."""
MAX_CSV_BYTES = 50_000_000
"""Largest CSV read; the largest published one (serving.csv) has 2 MB."""
MAX_CELLS = 5_000_000
"""Most values read from a CSV: half a gigabyte."""
MAX_DEPTH = 64
"""Deepest nesting accepted; published configurations stay below 8."""
MAX_DIGITS = 40
"""Longest integer accepted; 2**63 has 19 digits."""


# ------------------------------------------------------------------------------------------------------- files


def read_bytes(path: Path, field: str, must: str, *, limit: int = MAX_BYTES, nearest: str = "") -> bytes:
    """The bytes of a regular file of at most ``most`` bytes; ``must`` ends the error message if there is none."""
    try:
        if not path.is_file():
            fault = f"is not a regular file; {must}" if path.exists() else f"no such file; {must}"
            raise InputError(field, str(path), fault, nearest)
        if (size := path.stat().st_size) > limit:
            raise InputError(field, str(path), f"has {size} bytes; must be at most {limit} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(field, str(path), f"must be readable ({reason})") from None


def unpacked(data: bytes, field: str, name: str, *, limit: int) -> bytes:
    """The bytes, out of their gzip if they are packed."""
    if not data.startswith(GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            content = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(field, name, f"must be readable ({error})") from None
    if len(content) > limit:
        raise InputError(field, name, f"has more than {limit} bytes unpacked; must be at most that")
    return content


GZIP = b"\x1f\x8b"
"""The first bytes of gzip."""


def decoded(data: bytes, field: str, name: str, *, errors: str = "strict") -> str:
    """Bytes decoded as UTF-8, or as their byte order mark says."""
    encoding = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise InputError(field, name, f"must be text in UTF-8 (byte {error.start} is not)") from None


_BYTE_ORDER_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


# -------------------------------------------------------------------------------------------------------- TOML


def packaged_toml(room: str, name: str) -> JsonDict:
    """A TOML table shipped with the package, which needs no checks."""
    return tomllib.loads(files("sartor").joinpath(room, name).read_text(encoding="utf-8"))


def read_toml(path: Path, field: str, must: str = "must be a TOML file", *, nearest: str = "") -> JsonDict:
    """The table of a TOML file. Raises `InputError`."""
    data = read_bytes(path, field, must, limit=MAX_TOML_BYTES, nearest=nearest)
    return parse_toml(decoded(data, field, str(path)), field, str(path))


def parse_toml(text: str, field: str, name: str) -> JsonDict:
    """The table of a TOML text. Raises `InputError`."""
    if len(text) > MAX_TOML_BYTES:
        raise InputError(field, name, f"must have at most {MAX_TOML_BYTES} characters")
    try:
        _check_toml(text)
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        early = "; the file ends early: is it whole?" if "at end of document" in reason else ""
        raise InputError(field, name, f"must be readable as TOML: {reason}{early}") from None


def _check_toml(text: str) -> None:
    """Reject what the parser would handle very slowly: endless brackets and dotted keys, long numbers."""
    brackets = dots = 0
    for token in _TOML_TOKENS.finditer(text):
        first = token.group()[0]
        if first in "[{":
            brackets, dots = brackets + 1, 0
        elif first in "]}":
            brackets -= 1
        elif first == ".":
            dots += 1
        elif first in "=,\n":
            dots = 0
        elif first.isdigit():
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(f"a number of more than {MAX_DIGITS} digits (at line {line})")
        if brackets + dots > MAX_DEPTH:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(f"nested too deeply, more than {MAX_DEPTH} levels (at line {line})")


_TOML_TOKENS = re.compile(
    r'"""(?:\\?.)*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*+"?|\'[^\'\n]*+\'?|#[^\n]*+'
    rf"|(?<![\w.])[0-9]\w{{{MAX_DIGITS},}}+|[\[\]{{}}.=,\n]",
    re.DOTALL,
)
"""Strings and comments (with any content), over-long numbers, and brackets and separators."""


# -------------------------------------------------------------------------------------------------------- JSON


def parse_json(data: bytes, *, name: str) -> JsonDict:
    """The object in the bytes of a JSON file; duplicate keys and NaN are errors."""
    name = printable(name)
    text = _json_text(data, name)
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
        raise _no_json(error, name) from None
    except RecursionError:
        raise InputError(name, Stated("is deeply nested"), f"must nest at most {MAX_DEPTH} levels") from None
    if not isinstance(root, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(root), "a number")
        raise InputError(name, Stated(f"is {kind}"), "the top level must be an object { ... }")
    return root


def _json_text(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise InputError(name, f"{len(data)} bytes", f"must be at most {MAX_BYTES} bytes")
    if not data.strip():
        raise InputError(name, Stated("is empty"), "must hold a JSON object")
    text = decoded(data, "file", name)
    if "\x00" in text:
        raise InputError(name, Stated("is binary data"), "must be a JSON text, not weights or an archive")
    return text


def _refuse_what_is_no_json(text: str, name: str) -> None:
    start = text.lstrip()[:200]
    if start.startswith("<"):
        raise InputError(name, start[:30], "must be JSON; this is a web page or XML saved under that name")
    if start.startswith("version https://git-lfs"):
        raise InputError(name, Stated("is a Git LFS pointer"), "must be the file itself; run: git lfs pull")


def _no_json(error: json.JSONDecodeError, name: str) -> InputError:
    """Error for text that is not JSON: where, and whether the file ends early."""
    where = f"line {error.lineno} column {error.colno}"
    if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string"):
        return InputError(
            name, where, "must be valid JSON; the file ends early, in the middle of a value: is it whole?"
        )
    return InputError(name, where, f"must be valid JSON; {error.msg[0].lower()}{error.msg[1:]}")


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Strings (which may contain brackets), and brackets."""


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
        match = _NAN.search(text)
        line = text.count("\n", 0, match.start("nan")) + 1 if match else 1
        key = f" ({printable(match['key'])})" if match and match["key"] else ""
        raise InputError(name, f"NaN in line {line}{key}", "must hold no NaN; JSON has none and no field means it")
    return float(word.replace("Infinity", "inf"))  # Mamba-2 configs contain "time_step_limit": [0.0, Infinity].


_NAN = re.compile(r'(?:"(?P<key>[^"\\\n]{1,80})"\s{0,20}:[\s\[]{0,20})?(?<!["\w])(?P<nan>NaN)(?!["\w])')
"""The word NaN outside a string, with the key before it, if any."""


def _integer(digits: str, *, name: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError(name, digits[:20] + "...", f"must hold numbers of at most {MAX_DIGITS} digits")
    return int(digits)


# --------------------------------------------------------------------------------------------------------- CSV


def read_csv(
    path: Path, field: str, must: str, required: Sequence[str], text: str | None = None
) -> list[dict[str, str]]:
    """Rows of a CSV file, or of the ``text`` that stands for it, by column name. Raises `InputError`, also if the last
    line is cut off."""
    text = decoded(read_bytes(path, field, must, limit=MAX_CSV_BYTES), field, str(path)) if text is None else text
    reader = csv.reader(text.splitlines(keepends=True))
    try:
        names = [name.strip() for name in next(reader, [])]
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise InputError(field, str(path), f"{must} (line {reader.line_num}: {error})") from None
    if missing := [name for name in required if name not in names]:
        raise InputError(field, str(path), f"lacks the columns {', '.join(missing)}", ", ".join(required))
    if len(lines) * len(names) > MAX_CELLS:
        must = f"must have at most {MAX_CELLS} values"
        raise InputError(field, str(path), f"has {len(lines)} rows of {len(names)} columns; {must}")
    if lines and len(lines[-1]) < len(names) and not text.endswith("\n"):
        raise InputError(field, str(path), f"ends early: its last line has {len(lines[-1])} of {len(names)} columns")
    return [dict(zip_longest(names, line[: len(names)], fillvalue="")) for line in lines]


# ------------------------------------------------------------------------------------------------------- words


def printable(text: str) -> str:
    """A name made safe for a terminal: anything but printable ASCII escaped, long names (except paths) cut."""
    shown = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    longest = 1000 if "/" in shown else 80
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."
