"""Options of the commands that price a run, made from the table of its fields (`sartor.run.fields`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sartor.cli.common import parse_sets
from sartor.errors import InputError
from sartor.run.fields import FIELDS, RunField, parse_size

Command = Callable[..., None]


def takes_run(*, without: tuple[str, ...] = (), helps: Mapping[str, str] | None = None) -> Callable[[Command], Command]:
    """A command with the options of a run in place of its ``**options``, parsed into values; ``without`` leaves out
    fields, ``helps`` replaces their help."""
    rows = [row for name, row in FIELDS.items() if name not in ("gpu", *without)]

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
    subject = [parameter for parameter in written if parameter.name in ("runs", "model", "models", "gpu")]
    options = [_parameter(row, helps.get(row.name, row.help)) for row in rows]
    return inspect.Signature([*subject, *options, *(p for p in written if p not in subject)])


def _parameter(row: RunField, words: str) -> inspect.Parameter:
    flag = f"{row.flag}/--no-{row.flag[2:]}" if row.kind is bool and row.axis else row.flag
    about: dict[str, Any] = {"help": words, "rich_help_panel": row.panel.value, "show_default": False}
    if row.kind is not bool:
        about["metavar"] = row.metavar
    kind = {bool: bool | None, dict: list[str] | None, Path: Path | None, float: float | None}.get(row.kind, str | None)
    option = Annotated[kind, typer.Option(flag, **about)]  # type: ignore[valid-type]
    return inspect.Parameter(row.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=option)


def _parsed(row: RunField, word: Any) -> Any:
    if word is None or word == []:
        return None
    if row.kind is dict:
        return parse_sets(word)
    if row.kind is int:
        return parse_size(row.name, word)
    if row.choices and isinstance(word, str) and row.axis and word.lower() not in row.choices:
        raise InputError(row.name, word, f"must be one of {', '.join(row.choices)}", row.choices[-1])
    return word
