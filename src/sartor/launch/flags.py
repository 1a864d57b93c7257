"""Flags of a command line: which were given, which have been read, and which are left over."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.launch.shell_words import HOLE

MAX_SIZE = 2**40


@dataclass(slots=True)
class Flags:
    """Flags by name, each with its values. A getter marks its flag as read; `left` lists the flags never read."""

    given: dict[str, list[str]]
    assumptions: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    odd: list[str] = field(default_factory=list)
    """Words that belong to no flag."""

    def on(self, *names: str) -> bool:
        """Whether a switch is given, by any of its names."""
        self.read |= set(names)
        return any(name in self.given for name in names)

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """An integer from ``least`` to ``most``, or the default if the flag is absent or its value unknown."""
        text = self.word(name)
        if text is None:
            return default
        if not re.fullmatch(r"[+-]?\d{1,15}", text) or int(text) < least:
            raise InputError(name, printable(text), f"must be an integer of at least {least}")
        if int(text) > most:
            raise InputError(name, printable(text), f"must be at most {most}")
        return int(text)

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        text = self.word(name)
        if text is None:
            return default
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
            raise InputError(name, printable(text), "must be a number")
        return float(text)

    def word(self, name: str, choices: Sequence[str] = ()) -> str | None:
        """The flag's value; None if it is absent or not known from the file alone."""
        self.read.add(name)
        if name not in self.given:
            return None
        values = self.given[name]
        if not values:
            raise InputError(name, "no value", "must be followed by its value", ", ".join(choices[:6]))
        if HOLE in values[0]:
            self.assumptions.append(f"{name} is {hole_text(values[0])}, which the file does not set: ignored")
            return None
        if choices and values[0] not in choices:
            near = difflib.get_close_matches(values[0], choices, 1)
            raise InputError(name, printable(values[0]), f"must be one of {', '.join(choices)}", "".join(near))
        return values[0]

    def words(self, name: str) -> list[str]:
        """All values of a flag."""
        self.read.add(name)
        return self.given.get(name, [])

    def left(self) -> list[str]:
        """Names of flags that were not read, in the order given."""
        return [name for name in self.given if name not in self.read]


def parse_flags(words: Iterable[str]) -> Flags:
    """Parse ``--flag value value`` and ``--flag=value``; the last one wins if a flag is repeated."""
    flags = Flags(given={})
    current: list[str] | None = None
    for word in words:
        if word.startswith("--") and len(word) > 2 and HOLE not in word.partition("=")[0]:
            name, sign, value = word.partition("=")
            if name in flags.given:
                flags.assumptions.append(f"{printable(name)} is given twice: the last one counts")
            current = flags.given[name] = [value] if sign else []
        elif current is not None:
            current.append(word)
        elif word.strip(HOLE + " "):
            flags.odd.append(word)
    return flags


def hole_text(word: str) -> str:
    """A word with its unknown parts (holes) as in a shell: ``$NAME``, ``$(...)``."""
    named = re.sub(f"{HOLE}(\\w+){HOLE}", r"$\1", word)
    return printable(named.replace(HOLE, "$(...)"))


def shown_flag(name: str, values: list[str], known: Iterable[str] = ()) -> str:
    """An unread flag for display, with a similar known flag."""
    near = difflib.get_close_matches(name.replace("_", "-"), sorted(known), 1, 0.8)
    text = " ".join([printable(name), *(hole_text(v) for v in values[:3]), *(["..."] if len(values) > 3 else [])])
    return f"{text} (did you mean {near[0]}?)" if near and near[0] != name else text
