"""The part of YAML that launch files are written in: nested mappings, lists of scalars, comments, quotes.

Anchors, tags, several documents, block scalars and flow mappings are refused with their line, never guessed at. A
full YAML library would be a dependency for two files of twenty lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sartor.errors import InputError
from sartor.read.config_text import printable

_KEY = re.compile(r"""(?P<key>"[^"]*"|'[^']*'|[^\s#:'"\[\]{},&*!|>%@`-][^#:]*?|--?[\w-]+)\s*:(?:\s+(?P<rest>.*))?$""")
_NUMBER = re.compile(r"[-+]?\d+")
_REAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?")


def read_yaml(text: str, *, name: str = "file.yaml") -> dict[str, Any]:
    """The mapping a YAML text holds. Raises `InputError` for YAML beyond mappings, lists of scalars and scalars."""
    lines = []
    for number, raw in enumerate(text.splitlines(), start=1):
        if "\t" in raw[: len(raw) - len(raw.lstrip())]:
            raise _wrong(name, number, "must be indented by spaces, not tabs")
        body = _uncomment(raw).rstrip()
        if body.strip() and body.strip() != "---":
            lines.append((number, len(body) - len(body.lstrip()), body.strip()))
    value, rest = _mapping(lines, lines[0][1] if lines else 0, name)
    if rest:
        raise _wrong(name, rest[0][0], "is indented less than the lines before it")
    return value


Lines = list[tuple[int, int, str]]


def _mapping(lines: Lines, indent: int, name: str) -> tuple[dict[str, Any], Lines]:
    out: dict[str, Any] = {}
    while lines and lines[0][1] == indent:
        number, _, body = lines[0]
        found = _KEY.match(body)
        if not found:
            raise _wrong(name, number, "must read `key: value`")
        key, lines = _scalar_text(found["key"].strip()), lines[1:]
        if key in out:
            raise _wrong(name, number, f"gives {printable(key)} a second time")
        out[key], lines = _value(found["rest"], lines, indent, name, number)
    if lines and lines[0][1] > indent:
        raise _wrong(name, lines[0][0], "is indented more than the lines before it")
    return out, lines


def _value(rest: str | None, lines: Lines, indent: int, name: str, number: int) -> tuple[Any, Lines]:
    if rest:
        return _inline(rest, name, number), lines
    if lines and lines[0][2].startswith("- ") and lines[0][1] >= indent:
        return _items(lines, lines[0][1], name)
    if lines and lines[0][1] > indent:
        return _mapping(lines, lines[0][1], name)
    return None, lines


def _items(lines: Lines, indent: int, name: str) -> tuple[list[Any], Lines]:
    out = []
    while lines and lines[0][1] == indent and lines[0][2].startswith("- "):
        number, _, body = lines[0]
        out.append(_inline(body[2:].strip(), name, number))
        lines = lines[1:]
    return out, lines


def _inline(text: str, name: str, number: int) -> Any:
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(part.strip()) for part in inner.split(",")] if inner else []
    if text == "{}":
        return {}
    if text[0] in "&*!|>%@`{[":
        raise _wrong(name, number, f"has {text[0]!r}, beyond the YAML that is read here: mappings, lists, scalars")
    return _scalar(text)


def _scalar(text: str) -> Any:
    """A scalar by YAML 1.1's rules, as PyYAML reads it: yes and no are booleans."""
    if text[:1] in "'\"":
        return _scalar_text(text)
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None, "~": None}
    if text.lower() in words:
        return words[text.lower()]
    if _NUMBER.fullmatch(text) and len(text) < 30:
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text


def _scalar_text(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text


def _uncomment(line: str) -> str:
    """The line without a comment: ``#`` at its start or after a blank, outside quotes."""
    quote, skip = "", False
    for at, char in enumerate(line):
        if skip:
            skip = False
        elif quote:
            skip = char == quote == "'" and line[at + 1 : at + 2] == "'"
            quote = "" if char == quote and not skip else quote
        elif char in "'\"" and (at == 0 or line[at - 1] in " :[,-"):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1] == " "):
            return line[:at]
    return line


def _wrong(name: str, number: int, must: str) -> InputError:
    return InputError(printable(name), f"line {number}", must)


def write_yaml(value: Mapping[str, Any], *, indent: int = 0) -> str:
    """Nested mappings of scalars and lists as YAML, keys in the order given; words YAML might misread are quoted."""
    pad, out = " " * indent, []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            out.append(f"{pad}{key}:\n{write_yaml(item, indent=indent + 2)}")
        elif isinstance(item, (list, tuple)):
            out.append(f"{pad}{key}: [{', '.join(_written(x) for x in item)}]\n")
        else:
            out.append(f"{pad}{key}: {_written(item)}\n")
    return "".join(out)


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return str(value)
    text = str(value)
    safe = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and isinstance(_scalar(text), str)
    return text if safe else "'" + text.replace("'", "''") + "'"
