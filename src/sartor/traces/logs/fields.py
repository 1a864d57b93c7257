"""The numbers of a log's line, each by the words before or behind it: quantity, value in SI, and these words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from sartor.bounded import packaged_toml
from sartor.units import GIB

FILE = packaged_toml("traces/logs", "formats.toml")
LARGEST = 1e30
"""Larger numbers are ignored."""
LONGEST_KEY, SHOWN = 100, 40
"""Characters before a number in which its key is looked for, and that show where it is read."""
SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}

_UNITS = "|".join((r"[KMGTB](?![A-Za-z])", *FILE["behind"].values(), "%"))
_NUMBER = re.compile(
    r"(?<![\w.-])(?<!\d[:/])((?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20})(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?)(?!\d|:\d|-\d)"
    rf"(?: ?((?i:{_UNITS})|(?:(?<=\d)/[\d.]{{1,9}} ?)?[GM]i?B)(?![\w/]|\s?[:=]))?"
)
_BREAK = re.compile(r"[|,;{}<>]|\s{2,}| - ")
_KEY_UNIT = r"(?:[ _(]{1,2}(?:in )?(ms|s|sec|secs|seconds|gi?b|mi?b))?\)?$"
_KEYS = {name: re.compile(rf"(?:^|[^a-z])(?:{pattern}){_KEY_UNIT}") for name, pattern in FILE["keys"].items()}
_BEHIND = {name: re.compile(f"(?i){pattern}") for name, pattern in FILE["behind"].items()}
_OTHER = {name: re.compile(pattern) for name, pattern in FILE["other"].items()}


def numbers_in(line: str, keys: Mapping[str, re.Pattern[str]], gigabyte: float) -> Iterator[tuple[str, float, str]]:
    """The known numbers of a line; of a time that no word names, ``lone_s`` if it is the only one. ``keys``: a
    trainer's own word for a quantity, which then has no other."""
    begin, lone = 0, list[tuple[str, float, str]]()
    table = _OTHER["table"].search(line)
    for match in _NUMBER.finditer(line):
        before = line[max(begin, match.start() - LONGEST_KEY) : match.start()]
        begin = match.end()
        key = _BREAK.split(before.rstrip(" \t:='\"([<>"))[-1].lstrip(" '\"([").lower()
        behind = re.sub(r"^/[\d.]+ ?", "", (match[2] or "").lower())
        own = next((name for name, pattern in keys.items() if pattern.search(key)), "")
        name, unit = (own, behind) if own else _named(key, behind)
        value = float(match[1].replace(",", "")) * SUFFIX.get(behind.upper(), 1.0)
        if not name or (name in keys and not own) or not 0 < value < LARGEST:
            continue
        if name.endswith("_bytes") or name == "memory":
            value *= _bytes(unit or (table[1].lower() if table else ""), value, gigabyte, bare=name == "memory")
        elif name == "told_per_s":
            name, value = "told_s", 1 / value
        else:
            value *= {"ms": 1e-3, "%": 1e-2, "tera": 1e12, "mega": 1e6}.get(unit, 1.0)
        words = " ".join((before + line[match.start() : match.end()]).split())[-SHOWN:]
        if name == "lone_s":
            lone.append((name, value, words))
        elif value:
            yield name, value, words
    if len(lone) == 1 and not _OTHER["times"].search(line):
        yield lone[0]


@lru_cache(maxsize=4096)
def _named(key: str, behind: str) -> tuple[str, str]:
    """The quantity of a number between these words, and its unit."""
    other = _OTHER["keys"].search(key)
    name, unit = "", behind
    for name_of_key, pattern in _KEYS.items():
        if (match := pattern.search(key)) and not (other and name_of_key.endswith("_s")):
            name, unit = name_of_key, match[1] or behind
            break
    else:
        name = next((of for of, pattern in _BEHIND.items() if behind and not other and pattern.fullmatch(behind)), "")
    if name == "tokens_per_s" and _OTHER["device"].search(key):
        name = "device_tokens_per_s"
    if name == "mfu":
        return ("mfu", "%") if "%" in unit else ("mfu_number", "")
    return name, "tera" if name == "flops_per_s" else "mega" if key.endswith("mtps") else unit


def _bytes(unit: str, value: float, gigabyte: float, *, bare: bool) -> float:
    """Bytes of a unit of memory, without one by the size of the number; 0 if that is not known."""
    if unit in ("gib", "gb"):
        return gigabyte if unit == "gb" else GIB
    if unit in ("mib", "mb") or (not unit and GIB / 2**20 <= value < LEAST_BYTES):
        return 2.0**20
    return GIB if not unit and value < LEAST_BYTES and not bare else float(value >= LEAST_BYTES or bool(unit))


LEAST_BYTES = 1e7
"""Numbers of memory without a unit are bytes from this on, megabytes from 1,024 on, and else gigabytes."""
