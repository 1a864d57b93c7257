"""Options of a journey, each declared once: its type in a ``TypedDict``, the rest in a row of ``options.toml`` beside
it, a `Declared`.

    class SearchOptions(TypedDict, total=False):
        time_limit: float | None

    def search(model: str, **options: Unpack[SearchOptions]) -> Answer:
        settings = completed(SearchOptions, options)

Editors complete the keywords and mypy checks them; `completed` refuses a misspelt one and fills in defaults; the
command line makes its flags of the same rows (`sartor.cli.run_options`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto
from functools import cache
from importlib.resources import files
from inspect import Parameter, cleandoc, signature
from textwrap import fill
from typing import Any, ClassVar, TypeVar, cast

from sartor.bounded import packaged_toml
from sartor.errors import InputError

T = TypeVar("T", bound=Callable[..., Any])
Options = TypeVar("Options")


class Spelling(Enum):
    """How the command line spells a value."""

    TEXT = auto()
    NUMBER = auto()
    WHOLE = auto()
    """A whole number."""
    NUMBERS = auto()
    """Numbers with commas."""
    WHOLES = auto()
    WORDS = auto()
    """Words with commas."""
    REPEATED = auto()
    """The flag may be repeated, once for each value."""
    SWITCH = auto()
    """``--name/--no-name``, or ``--name`` alone if it is off by default."""
    FILE = auto()
    """A file to be written."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What an option is for, its default, and how the command line shows it."""

    kind: Spelling
    help: str
    metavar: str = ""
    default: Any = None
    terminal_default: Any = ...
    """Default of the command line, where that is another."""


def declared(options: type) -> dict[str, Declared]:
    """The rows of a ``TypedDict`` of options by name, those of its bases first."""
    rows = _rows_beside(options.__module__)
    return {name: rows[name] for name in options.__annotations__}


@cache
def _rows_beside(module: str) -> dict[str, Declared]:
    """The rows in the folder of a module, if it has any."""
    room = module.split(".")[-2]
    if not files("sartor").joinpath(room, "options.toml").is_file():
        return {}
    return {name: _declared(**row) for name, row in packaged_toml(room, "options.toml").items()}


def _declared(kind: str, default: Any = None, terminal_default: Any = ..., **words: str) -> Declared:
    default = tuple(default) if isinstance(default, list) else default
    terminal_default = None if terminal_default == "" else terminal_default
    return Declared(kind=Spelling[kind], default=default, terminal_default=terminal_default, **words)


def completed(options: type[Options], stated: Mapping[str, Any]) -> Options:
    """Every option, stated or by default. Raises ``InputError`` for a name that is not an option."""
    rows = declared(options)
    for name, value in stated.items():
        if name not in rows:
            nearest = get_close_matches(name, rows, 1, 0.4)
            raise InputError(name, value, "is not an option", nearest[0] if nearest else "")
    return cast(Options, {name: row.default for name, row in rows.items()} | dict(stated))


def part_of(options: type[Options], settings: Mapping[str, Any]) -> Options:
    """Those of the settings that ``options`` declares."""
    return cast(Options, {name: settings[name] for name in declared(options)})


class Panel(Enum):
    """Groups of options on a help page."""

    QUESTION = "The run"
    PLAN = "The plan (what is left out is searched for)"
    TUNING = "Fine-tuning (without these all weights are trained)"
    RARE = "Rarely needed"


class Unit(Enum):
    """What a size counts; it tells what ``8k`` or ``4M`` can mean."""

    NONE = ""
    TOKENS = "tokens"
    SEQUENCES = "sequences"
    DEVICES = "devices"
    SHARE = "share"
    USD_PER_HOUR = "USD per device and hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunField:
    """One field of a run."""

    name: str
    kind: type
    words: str
    """What it is, as a noun phrase."""
    help: str
    panel: Panel = Panel.QUESTION
    unit: Unit = Unit.NONE
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    """Words it may take, in the order of help pages; empty: any."""
    least: float | None = None
    most: float | None = None
    example: str = ""
    training: bool = True
    """Applies to training."""
    inference: bool = True
    """Applies to prefill and decode."""
    axis: ClassVar[bool] = False
    """An axis of the plan: what is not stated is searched for."""

    @property
    def is_switch(self) -> bool:
        """On or off: without a third state in which it is searched for."""
        return self.kind is bool and not self.axis

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def with_options(
    options: type, fields: Mapping[str, RunField] | None = None, *, without: Collection[str] = ()
) -> Callable[[T], T]:
    """Show the options as keyword arguments in the function's signature, in place of its ``**options``, and describe
    each at the end of the docstring's parameters: for ``help`` and notebooks, which read them when the program runs.

    ``fields`` has units, and the rows of options without one beside them; ``without`` names options that this function
    does not take.
    """
    hints = {name: hint for name, hint in options.__annotations__.items() if name not in without}

    def shown(function: T) -> T:
        written = signature(function)
        own = [p for p in written.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        table: dict[str, Declared | RunField] = {**(fields or {}), **_rows_beside(options.__module__)}
        rows = {name: table[name] for name in hints if name in table}
        keywords = [_keyword(name, hint, rows.get(name)) for name, hint in hints.items()]
        function.__signature__ = written.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        head, returns, rest = cleandoc(function.__doc__ or "").partition("\n\nReturns\n")
        units = {name: row.unit.value for name, row in (fields or {}).items()}
        entries = "\n".join(_entry(name, hints[name], row, units.get(name, "")) for name, row in rows.items())
        function.__doc__ = f"{head}\n{entries}{returns}{rest}"
        return function

    return shown


def _keyword(name: str, hint: object, row: Declared | RunField | None) -> Parameter:
    default = row.default if isinstance(row, Declared) else False if row is not None and row.is_switch else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_type_words(hint, row))


def _type_words(hint: object, row: Declared | RunField | None) -> str:
    """An option's type as a reader writes it: ``int | None``."""
    if isinstance(row, RunField):
        words = {"Path": "str | Path", "dict": "Mapping[str, int | str]"}.get(row.kind.__name__, row.kind.__name__)
        return words if row.is_switch else f"{words} | None"
    words = hint.__name__ if isinstance(hint, type) and "[" not in str(hint) else str(hint)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(getattr(hint, "__forward_arg__", words)))


def _entry(name: str, hint: object, row: Declared | RunField, unit: str) -> str:
    """An option as a docstring lists it: type, unit, meaning, default."""
    words = row.help.replace(" May be repeated.", "")
    words = re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), words)
    if isinstance(row, RunField):
        kind = f"{{{', '.join(map(repr, row.choices))}}}" if row.choices else _type_words(hint, row)
    else:
        kind, unit = _type_words(hint, row), DECLARED_UNITS.get(row.metavar, unit)
        if row.default not in (None, ()) and "[default" not in words:
            words += f" [default: {row.default}]"
    lines = fill(words, 100, initial_indent="    ", subsequent_indent="    ")
    return f"{name} : {kind.removesuffix(' | None')}{unit and f' [{unit}]'}\n{lines}"


DECLARED_UNITS = {"SECONDS": "s", "SHARE": "share", "Y": "years"}
"""Units that the words of declared options imply; most have theirs in the name."""
