"""Errors for users: one sentence with the field, its value, what must hold and the nearest valid values."""

from __future__ import annotations

import json
import unicodedata
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from sartor.json_types import JsonDict

NOT_GIVEN = "not given"
"""The value of a missing option."""


class _Shown(str):
    """A value in words, which messages show as they are."""


class Stated(_Shown):
    """What is wrong with a field, in words that follow its name: ``is empty``."""


class InputError(ValueError):
    """Invalid user input. ``str(error)`` is the whole sentence; its parts are kept for ``--json``.

    Parameters are the ``field`` (a config key, a flag, a file), its ``value``, what ``must`` hold, and the
    ``nearest`` valid values (may be empty: of words that ``must`` lists, the one spelled most like the value).
    """

    def __init__(self, field: str, value: object, must: str, nearest: str = "") -> None:
        words = must.partition("must be one of ")[2].split(", ")
        nearest = nearest or ", ".join(get_close_matches(str(value).lower(), words, n=1))
        self.field, self.value, self.must, self.nearest = field, value, must, nearest
        missing = f"missing {'option' if field.startswith('-') else 'argument'} {field}: {must}"
        said = f"{field}: {value}; {must}" if isinstance(value, Stated) else f"{field}={_show(value)}: {must}"
        sentence = missing if isinstance(value, str) and value == NOT_GIVEN else said
        super().__init__(f"{sentence}; nearest: {nearest}" if nearest else sentence)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error with its parts, so that a worker process can raise it in its parent."""
        return _again, (type(self), self.args, self.__dict__)

    def to_dict(self) -> JsonDict:
        """The ``error`` object of the JSON contract."""
        return {
            "message": str(self),
            "field": self.field,
            "value": _show(self.value),
            "must": self.must,
            "nearest": self.nearest or None,
        }


class UsageError(InputError):
    """An invalid command line: the parser's message, and the nearest known words."""

    def __init__(self, field: str, message: str, nearest: str = "") -> None:
        super().__init__(field, "as given", message, nearest)
        self.args = (f"{message}; nearest: {nearest}" if nearest else message,)


class InternalError(UsageError):
    """An internal error of sartor, which users should report; in JSON ``{"internal": true, ...}``."""

    def to_dict(self) -> JsonDict:
        return {"internal": True, **super().to_dict()}


class MissingExtraError(InputError):
    """A feature needs a package that is not installed; the message gives the install command."""

    def __init__(self, feature: str, extra: str) -> None:
        command = install_command(extra)
        super().__init__(feature, "not installed", f"needs the extra {extra}", command)
        self.args = (f"{feature}: not installed here; run: {command}",)


def install_command(extra: str) -> str:
    """The command that installs an extra beside this copy, from the folder or file it came from; from an unknown place
    the packages of the extra, as no package index has sartor's name."""
    from importlib.metadata import PackageNotFoundError, distribution
    from shlex import quote

    try:
        copy = distribution("sartor")
    except PackageNotFoundError:  # a checkout that is not installed
        return f"pip install -e {quote(f'{Path(__file__).resolve().parents[2]}[{extra}]')}"
    origin = json.loads(copy.read_text("direct_url.json") or "{}")
    if not origin:
        rows = [row.partition(";") for row in copy.requires or ()]
        packages = [name.strip() for name, _, when in rows if f"extra == '{extra}'" in when.replace('"', "'")]
        return f"pip install {' '.join(map(quote, packages))}"
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e {quote(origin['url'].removeprefix('file://') + f'[{extra}]')}"
    return f"pip install {quote(f'sartor[{extra}] @ ' + origin['url'])}"


def _again(kind: type[InputError], words: tuple[Any, ...], parts: JsonDict) -> InputError:
    error = kind.__new__(kind, *words)
    error.args = words
    error.__dict__.update(parts)
    return error


def quoted(value: object) -> object:
    """A value given where a number must be: a text keeps its quotes, or ``"128"`` would read like 128.

    >>> str(InputError("array_rows", quoted("128"), "must be a number"))
    'array_rows="128" (a string): must be a number'
    """
    return _Shown(f"{json.dumps(value[:40])} (a string)") if isinstance(value, str) else value


def check_positive(field: str, value: float, otherwise: str = "") -> None:
    """Raise ``InputError`` for a value that is not positive and finite; the nearest of one below 0 is without the sign,
    and of others what to do ``otherwise``."""
    if not isfinite(value) or value <= 0:
        near = f"{-value:g}" if isfinite(value) and value < 0 else otherwise
        raise InputError(field, value, "must be positive and finite", near)


def visible(text: str) -> str:
    """Text with control and format characters escaped, so that it cannot move a cursor, hide or reorder itself;
    newlines, letters, marks and spaces of any language stay.

    >>> visible("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c == "\n" or c.isprintable() or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def _show(value: object, limit: int = 60) -> str:
    """A value as files spell it, safe to print: control characters escaped, long values (except paths) cut."""
    text = _spelled(value)
    if isinstance(value, _Shown):
        return str(value)
    if isinstance(value, str) and value.isprintable() and " " not in value and value:
        text = value
    limit = 1000 if isinstance(value, str | Path) and "/" in str(value) else limit
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _spelled(value: object) -> str:
    if isinstance(value, str):
        return repr(value) if value.isprintable() else ascii(value)
    if value is None or isinstance(value, bool | list | dict):
        return json.dumps(value, default=str)
    return repr(str(value)) if isinstance(value, Path) else repr(value)
