"""Options of a journey, each declared once: a ``TypedDict`` whose values carry a `Declared`.

    class SearchOptions(TypedDict, total=False):
        time_limit: Annotated[float | None, Declared(Spelling.NUMBER, "Stop after this time.", metavar="SECONDS")]

    def search(model: str, **options: Unpack[SearchOptions]) -> Answer:
        settings = completed(SearchOptions, options)

Editors complete the keywords and mypy checks them; `completed` refuses a misspelt one and fills in defaults; the
command line makes its flags of the same rows (`sartor.cli.run_options`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto
from inspect import Parameter, signature
from typing import Any, ClassVar, TypeVar, cast

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
    return {name: hint.__metadata__[0] for name, hint in options.__annotations__.items()}


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


def with_options(options: type) -> Callable[[T], T]:
    """Show the options as keyword arguments in the function's signature (``help``), in place of its ``**options``."""

    def shown(function: T) -> T:
        written = signature(function)
        own = [p for p in written.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        keywords = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=row.default, annotation=options.__annotations__[name])
            for name, row in declared(options).items()
        ]
        function.__signature__ = written.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return shown


class Panel(Enum):
    """Groups of options on a help page."""

    QUESTION = "The run"
    PLAN = "The plan (what is left out is searched for)"
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
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"
