"""An output file must not be an input of the same command, nor another of its outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from sartor.errors import InputError

_KEY = "sartor.outputs"


def declare(context: typer.Context, option: str, path: Path) -> None:
    """Note that ``option`` names a file to be written; `check_outputs` compares it once all words are parsed."""
    context.meta.setdefault(_KEY, {})[option] = path


class Command(TyperCommand):
    """A command that takes each subject once, unless it may be repeated, and checks its output files before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        refuse_repeated(self.params, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        check_outputs(ctx)
        return super().invoke(ctx)


SUBJECTS = ("--gpu", "--cluster", "--framework")
"""Options that name what is priced; two of them are two questions."""


def refuse_repeated(params: Sequence[Any], words: Sequence[str]) -> None:
    """Raise ``InputError`` for a subject that stands twice, with different values, but is taken once; of other options
    the last counts, so that a command can be extended."""
    for param in params:
        if getattr(param, "multiple", False):
            continue
        flags = [flag for flag in param.opts if flag in SUBJECTS]
        values = [
            word.partition("=")[2] if "=" in word else next(iter(words[i + 1 : i + 2]), "")
            for i, word in enumerate(words)
            if any(word == flag or word.startswith(f"{flag}=") for flag in flags)
        ]
        if len(set(values)) > 1:
            raise InputError(flags[0], " and ".join(values), "is taken once; leave one out", values[0])


def check_outputs(context: Any) -> None:
    """Raise ``InputError`` if an output file is also an input (model, GPU, calibration, ...) or another output."""
    outputs: dict[str, Path] = context.meta.get(_KEY, {})
    if not outputs:
        return
    named = {param.name: max(param.opts, key=len) for param in context.command.params}
    for option, path in outputs.items():
        for name, value in context.params.items():
            other = named.get(name, name)
            written = other in outputs
            if other != option and any(_are_same(path, each, written=written) for each in _files(value)):
                does = "also writes" if written else "reads"
                by = other if other.startswith("-") else f"the argument {other.upper()}"
                raise InputError(option, str(path), f"is the file that {by} {does}; must be another file")


def _files(value: Any) -> Iterator[str]:
    """Every path that an option's value may name: each of several, with or without commas; of a folder its config."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str | Path) and str(value):
        yield from (str(value), os.path.join(value, "config.json"))  # noqa: PTH118
        if "," in str(value):
            yield from str(value).split(",")


def _are_same(output: Path, other: str, *, written: bool) -> bool:
    """Whether two names lead to one regular file; of two that are written, also to one that does not exist yet."""
    try:
        if output.exists():
            return output.is_file() and output.samefile(other)
        return written and os.path.realpath(output) == os.path.realpath(other)
    except (OSError, ValueError):
        return False
