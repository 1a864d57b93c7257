"""Reading of hardware catalogues: find names, read TOML, and check a user's own file with a pydantic model.

Entries of the package are not checked again, since tests check them: pydantic takes 50 ms to load, and a question about
a catalogue device should not wait for it.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, get_args

from sartor import bounded
from sartor.errors import InputError, quoted
from sartor.json_types import JsonDict, JsonMap

if TYPE_CHECKING:
    from pydantic import BaseModel

# ------------------------------------------------------------------------------------------- finding and reading


def is_path(name_or_path: str | Path) -> bool:
    """Whether a user names a file, not an entry of a catalogue."""
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """TOML files of the package, one for each entry: a name in any spelling, or another name that its file gives."""

    folder: Path
    option: str
    """The option that names an entry: ``gpu``."""
    shelf: str
    """The word of ``sartor catalog``: ``gpus``."""
    usual: tuple[str, ...] = ()
    """Names to suggest where no spelling is near."""
    cutoff: float = 0.5

    def names(self) -> tuple[str, ...]:
        """Every entry, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.toml")))

    def aliases(self) -> dict[str, str]:
        """Other names -> entry."""
        return _aliases_in(self.folder)

    def find(self, name: str) -> str:
        """The entry of a name. Raises ``InputError`` with the nearest ones."""
        spellings = _spellings_in(self.folder)
        if name in self:
            return spellings[canonical(name)]
        near = nearest_names(canonical(name), spellings, self.cutoff) or self.usual
        must = f"not in the catalogue (sartor catalog {self.shelf}) nor a .toml file"
        raise InputError(self.option, name, must, ", ".join(near))

    def __contains__(self, name: str) -> bool:
        return canonical(name) in _spellings_in(self.folder)

    def head(self, entry: str) -> JsonDict:
        """What an entry says before its tables, which take most of the time to parse."""
        return tomllib.loads(_texts_in(self.folder)[entry].partition("\n[")[0])

    def text(self, name: str) -> str:
        """The file's own text (TOML, in the units people read), to be printed, copied and changed."""
        return _texts_in(self.folder)[self.find(name)]

    def table(self, name_or_path: str | Path) -> tuple[JsonDict, Path]:
        """The table of an entry or of a user's file, and the file. Raises ``InputError``."""
        if not is_path(name_or_path):
            entry = self.find(str(name_or_path))
            return tomllib.loads(_texts_in(self.folder)[entry]), self.folder / f"{entry}.toml"
        return read_toml(Path(name_or_path), self.option), Path(name_or_path)


@cache
def _texts_in(folder: Path) -> dict[str, str]:
    """Every file's text by name, read once: 60 datasheets of 2 KB."""
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.toml")}


@cache
def _aliases_in(folder: Path) -> dict[str, str]:
    """From the ``aliases`` line of every file alone: parsing all tables for it would take 20 ms."""
    lines = {name: _ALIASES.search(text) for name, text in sorted(_texts_in(folder).items())}
    return {alias: name for name, line in lines.items() if line for alias in tomllib.loads(line[0])["aliases"]}


@cache
def _spellings_in(folder: Path) -> dict[str, str]:
    return {canonical(name): entry for name, entry in (_aliases_in(folder) | {n: n for n in _texts_in(folder)}).items()}


_ALIASES = re.compile(r"^aliases *= *\[[^\]]*\]", re.MULTILINE)


def canonical(name: str) -> str:
    """A name without case, separators and vendor."""
    squeezed = re.sub(r"[\s_\-]+", "", name.lower())
    return re.sub(r"^(nvidia|amd|google|intel|aws|tesla|instinct|geforce)+(?=.)", "", squeezed)


def nearest_names(name: str, spellings: Mapping[str, str], cutoff: float = 0.5) -> list[str]:
    """Up to four entries whose spelling is near; ``spellings`` is spelling -> entry."""
    near = difflib.get_close_matches(name, spellings, n=12, cutoff=cutoff)
    return list(dict.fromkeys(spellings[key] for key in near))[:4]


def read_toml(path: Path, field: str, entries: Iterable[str] = ()) -> JsonDict:
    """The TOML table of a file that a user gave in place of a catalogue name."""
    must = "must be a catalogue name or a TOML file that exists"
    return bounded.read_toml(path, field, must, nearest=", ".join(entries))


# --------------------------------------------------------------------------------------------------- checking


def model_of(kinds: JsonMap, required: Iterable[str] = ()) -> type[BaseModel]:
    """A pydantic model of a table: the type of each key (`kind`), and the required keys."""
    from pydantic import ConfigDict, create_model

    needed = {*required}
    fields: JsonDict = {key: (value, ... if key in needed else None) for key, value in kinds.items()}
    return create_model("Table", __config__=ConfigDict(extra="forbid"), **fields)


def check(table: JsonMap, model: type[BaseModel], *, subject: str, where: str = "") -> None:
    """Refuse a table that does not fit its model: first unknown keys, then missing keys, then values.

    ``subject`` is what the table describes (``a datasheet``), ``where`` its place in the file.
    """
    from pydantic import ValidationError

    try:
        model.model_validate(table)
    except ValidationError as error:
        order = {"extra_forbidden": 0, "missing": 1}
        first = min(error.errors(), key=lambda fault: order.get(fault["type"], 2))
        raise _sentence(first, model, subject, where) from None


def _sentence(first: Any, model: type[BaseModel], subject: str, where: str) -> InputError:
    path, value = [str(part) for part in first["loc"]], first["input"]
    field = (where + ".".join(path))[:80]
    if first["type"] == "missing":
        return InputError(field, "missing", f"every {subject.partition(' ')[2]} must state it")
    if first["type"] == "extra_forbidden":
        keys = [*_inner(model, path[:-1]).model_fields]
        near = difflib.get_close_matches(path[-1], keys, n=2, cutoff=0.4) or keys[:4]
        return InputError(field, value, f"is not a key of {subject}", ", ".join(near))
    if first["type"] == "not_so":
        must = first["ctx"]["must"]
        return InputError(field, quoted(value) if " number" in must else value, must, first["ctx"]["nearest"])
    if first["type"] == "too_long":
        return InputError(field, f"{first['ctx']['actual_length']} tables", f"at most {first['ctx']['max_length']}")
    key = path[-2] if path[-1].isdigit() else path[-1]
    written = _inner(model, [part for part in path if not part.isdigit()][:-1]).model_fields[key].description
    return InputError(field, value, written or f"must be a table, written [{key}]")


def _inner(model: Any, path: list[str]) -> Any:
    """The model of a table within a table, or of the tables in a list."""
    for part in path:
        if not part.isdigit():
            model = model.model_fields[part].annotation
            model = get_args(model)[0] if get_args(model) else model
    return model


Complaint = tuple[str, str] | None
"""What an invalid value must be and a nearby valid one; None for a valid value."""


def kind(*judges: Callable[[Any], Complaint]) -> Any:
    """The type of a key: a value that every check accepts."""
    from pydantic import PlainValidator
    from pydantic_core import PydanticCustomError

    def checked(value: object) -> Any:
        for judge in judges:
            if complaint := judge(value):
                raise PydanticCustomError("not_so", "{must}", {"must": complaint[0], "nearest": complaint[1]})
        return value

    return Annotated[Any, PlainValidator(checked)]


def text(value: object) -> Complaint:
    """Text without control characters."""
    fits = isinstance(value, str) and value.replace("\n", " ").isprintable()
    return None if fits else ("must be printable text in quotes", "")


def texts(value: object) -> Complaint:
    """A list of texts."""
    fits = isinstance(value, list) and all(text(entry) is None for entry in value)
    return None if fits else ("must be a list of texts in quotes", "")


def number(value: object) -> Complaint:
    """A finite number of at least 0."""
    fits = _is_number(value) and 0 <= value < 1e15
    return None if fits else ("must be a finite number not below 0, in the unit the key names", "")


def above_zero(value: object) -> Complaint:
    """A finite number above 0."""
    must = "must be a finite number above 0, in the unit the key names"
    return number(value) or (None if _is_number(value) and value > 0 else (must, ""))


def whole(value: object) -> Complaint:
    """A number without a fraction."""
    fits = _is_number(value) and value == int(value)
    return None if fits else ("must be a whole number", f"{round(value)}" if _is_number(value) else "")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
