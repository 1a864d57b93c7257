"""Options of several commands made from tables: of a run's fields, and of a journey's declared options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.common import parse_fix, parse_sets
from sartor.errors import InputError
from sartor.options import Declared, Panel, RunField, Spelling, declared
from sartor.run.fields import FIELDS, parse_size

Command = Callable[..., None]


def takes_run(
    *, only: Collection[str] = FIELDS, without: tuple[str, ...] = (), helps: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """A command with the options of a run in place of its ``**options``, parsed into values: ``only`` some fields,
    ``without`` others; ``helps`` replaces their help."""
    rows = [row for name, row in FIELDS.items() if name in only and name not in ("gpu", *without)]

    def decorated(command: Command) -> Command:
        @wraps(command)
        def parsed(**words: Any) -> None:
            values = {row.name: _parsed(row, words.pop(row.name)) for row in rows}
            command(**words, **{name: value for name, value in values.items() if value is not None})

        parsed.__signature__ = _signature(command, rows, helps or {})  # type: ignore[attr-defined]
        parsed.__annotations__ = {p.name: p.annotation for p in inspect.signature(parsed).parameters.values()}
        return parsed

    return decorated


def _signature(command: Command, rows: list[RunField], helps: Mapping[str, str]) -> inspect.Signature:
    hints = get_type_hints(command, include_extras=True)
    written = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    subject = [parameter for parameter in written if parameter.name in ("context", "runs", "model", "models", "gpu")]
    options = {
        panel: [_parameter(row, helps.get(row.name, row.help)) for row in rows if row.panel is panel] for panel in Panel
    }
    rare, own = options.pop(Panel.RARE), [p for p in written if p not in subject]
    return inspect.Signature([*subject, *(p for group in options.values() for p in group), *own, *rare])


def _parameter(row: RunField, words: str) -> inspect.Parameter:
    flag = f"{row.flag}/--no-{row.flag[2:]}" if row.kind is bool and row.axis else row.flag
    about: dict[str, Any] = {"help": words, "rich_help_panel": row.panel.value, "show_default": False}
    if row.kind is not bool:
        about["metavar"] = row.metavar
    kinds = {bool: bool, dict: list[str], Mapping: list[str], Path: Path, float: float}
    kind = kinds.get(row.kind, str) | None
    option = Annotated[kind, typer.Option(flag, *ALSO.get(row.name, ()), **about)]  # type: ignore[valid-type]
    return inspect.Parameter(row.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=option)


ALSO = {"kernels": ("--engine",)}
"""Further spellings of a field's option."""


def _parsed(row: RunField, word: Any) -> Any:
    if word is None or word == []:
        return None
    if row.kind is dict:
        return parse_sets(word)
    if row.kind is Mapping:
        return parse_fix(word)
    if row.kind is int:
        return parse_size(row.name, word)
    if row.choices and isinstance(word, str) and row.axis and word.lower() not in row.choices:
        raise InputError(row.name, word, f"must be one of {', '.join(row.choices)}", row.choices[-1])
    return word


F = TypeVar("F", bound=Callable[..., None])

SPELT: Mapping[Spelling, Any] = {
    Spelling.TEXT: str,
    Spelling.NUMBER: float,
    Spelling.WHOLE: int,
    Spelling.NUMBERS: str,
    Spelling.WHOLES: str,
    Spelling.WORDS: str,
    Spelling.REPEATED: list[str],
    Spelling.SWITCH: bool,
    Spelling.FILE: Path,
}
"""The type of a flag's value before it is read."""


def with_flags(options: type) -> Callable[[F], F]:
    """A command whose ``**options`` become one flag each, after its positional parameters and before its own flags."""

    def built(command: F) -> F:
        written = inspect.signature(command, eval_str=True)
        parameters = [p for p in written.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        own_flags = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        subject = [p for p in parameters if p not in own_flags]
        flags = [_declared_parameter(name, row) for name, row in declared(options).items()]
        in_order = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*subject, *flags, *own_flags)]
        command.__signature__ = inspect.Signature(in_order)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in in_order}
        return command

    return built


def read_flags(options: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the flags as the journey takes them; lists that are not given keep their default.
    Raises ``InputError``."""
    return {name: _value(name, row, flags[name]) for name, row in declared(options).items()}


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def numbers(field: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    """``"1,2,4"`` -> ``[1, 2, 4]``, and ``"4k"`` -> ``[4096]``."""
    read = partial(parse_size, field.removeprefix("--").replace("-", "_")) if kind is int else kind
    try:
        values = [read(word) for word in text.strip(",").split(",") if text.strip(", ")]
    except ValueError:
        values = []
    if not values:
        what = "a whole number" if kind is int else "a number"
        raise InputError(field, text, f"must be {what}, or several with commas", "1,2,4")
    return values


def _declared_parameter(name: str, row: Declared) -> inspect.Parameter:
    flag = _flag_of(name)
    if row.kind is Spelling.SWITCH and row.default:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    extras: dict[str, Any] = {"metavar": row.metavar or None}
    if row.kind is Spelling.WHOLE:
        extras["parser"] = o.size_of(name)
    if row.metavar == "SECONDS":
        extras["parser"] = o.seconds
    if row.kind is Spelling.FILE:
        extras["callback"] = o.writable
    default = row.default if row.terminal_default is ... else row.terminal_default
    if isinstance(default, tuple):
        default = ",".join(map(str, default)) or None
    spelt = SPELT[row.kind] if default is not None else SPELT[row.kind] | None
    annotation: Any = Annotated[spelt, typer.Option(flag, help=row.help, **extras)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(name: str, row: Declared, value: Any) -> Any:
    match row.kind:
        case Spelling.WHOLES | Spelling.NUMBERS:
            return (
                row.default
                if value is None
                else numbers(_flag_of(name), value, int if row.kind is Spelling.WHOLES else float)
            )
        case Spelling.WORDS:
            return c.words_of(value)
        case Spelling.REPEATED:
            return value or None
        case _:
            return value
