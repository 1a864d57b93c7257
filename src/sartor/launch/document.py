"""Fields of a configuration file by dotted path, checked when read; unread fields are listed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap

MAX_SIZE = 2**40
NO_OTHERS: Mapping[str, tuple[str, ...]] = {}


@dataclass(slots=True)
class Document:
    """A nested table. ``"auto"`` (filled in by the program) counts as not given; ``older`` maps a section to sections
    that held its fields in earlier versions."""

    raw: JsonDict
    assumptions: list[str] = field(default_factory=list)
    older: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_OTHERS)
    read: set[str] = field(default_factory=set)

    def find(self, path: str) -> Any:
        """The value at a path, or None."""
        section, _, rest = path.partition(".")
        for place in (path, *(f"{other}.{rest}" for other in self.older.get(section, ()))):
            value: Any = self.raw
            for part in place.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                self.read.add(place)
                return None if value == "auto" else value
        return None

    def size(self, path: str, *, least: int = 1, also: Sequence[int] = ()) -> int | None:
        """An integer of at least ``least``, or one of ``also``; None if not given."""
        value = self.find(path)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not (least <= value <= MAX_SIZE or value in also):
            raise InputError(path, value, f"must be an integer of at least {least}")
        return value

    def count(self, path: str, default: int, *, least: int = 1) -> int:
        """`size` with a default; -1 (all) is allowed if it is the default."""
        found = self.size(path, least=least, also=(-1,) if default == -1 else ())
        return default if found is None else found

    def flag(self, path: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.find(path)
        if value is not None and not isinstance(value, bool):
            raise InputError(path, value, "must be true or false")
        return default if value is None else value

    def text(self, path: str, default: str) -> str:
        """A string; an integer is accepted too."""
        value = self.find(path)
        if value is not None and (not isinstance(value, (str, int)) or isinstance(value, bool)):
            raise InputError(path, value, "must be a string")
        return default if value is None else str(value)

    def choice(self, path: str, default: str, choices: tuple[str, ...]) -> str:
        """A string that must be one of ``choices``."""
        word = self.text(path, default)
        if word not in choices:
            near = difflib.get_close_matches(word, choices, 1, 0.3)
            raise InputError(path, word, f"must be one of {', '.join(choices)}", "".join(near))
        return word

    def left(self) -> list[str]:
        """Paths that were not read, neither themselves nor as part of a table."""
        return [p for p in _paths(self.raw) if not any(p == r or p.startswith(r + ".") for r in self.read)]


def _paths(table: JsonMap, prefix: str = "") -> list[str]:
    out: list[str] = []
    for key, value in table.items():
        out += _paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return out
