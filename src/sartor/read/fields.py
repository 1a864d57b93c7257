"""A config for its readers: fields by name and alias, checked, and what they mean in the published classes.

The tables hold facts only; ``lab/class_defaults.py`` writes them from the classes of the release it names.
``class_defaults.json`` has default values of the fields that affect the shape, aliases of fields and the default model
type of nested configs; ``published_classes.json`` has the classes' names.

Families are data: one row per model type, in the TOML files beside the readers. A row has ``reader``, the function that
reads the type as ``module.function`` of ``sartor.read.families``, or ``like``, the row that it equals but for the facts
it states. Facts are fields of the reader's record (`decoder.Family`, `encoders.Encoder`, ...); where one is a function,
it is written as a call: ``"parts.window_pattern(4)"``.

A row may also say what the published classes' tables say for theirs: ``defaults`` of fields that a file may omit,
``aliases`` of field names, ``nested`` model types of configs inside, and ``verified``, how its counts were verified.
Published classes have these in ``class_defaults.json`` and ``verified.json``, which are generated.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sartor.errors import InputError, Stated, quoted
from sartor.json_types import JsonDict
from sartor.model.shape import MAX_LAYERS
from sartor.read.config_text import packaged_json


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassDefaults:
    """Published defaults of one model type; empty for an unknown one."""

    values: JsonDict = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)
    known: bool = False


@cache
def class_defaults(model_type: str) -> _ClassDefaults:
    """The defaults of ``model_type``, published or of its row."""
    row = family_rows().get(model_type)
    if row is not None and (row.defaults or row.aliases or row.nested):
        return _ClassDefaults(values=row.defaults, aliases=row.aliases, nested=row.nested, known=True)
    entry = packaged_json("class_defaults.json")["model_types"].get(model_type)
    if entry is None:
        return _UNKNOWN
    return _ClassDefaults(
        values=entry.get("values", {}), aliases=entry.get("aliases", {}), nested=entry.get("nested", {}), known=True
    )


_UNKNOWN = _ClassDefaults()


def is_published_class(name: str) -> bool:
    """Whether the release has a model class of that name."""
    return name in _names()


def default_class(model_type: str) -> str:
    """The class to build for a file of ``model_type`` that names none; ``""`` for an unknown type."""
    return str(packaged_json("published_classes.json")["default"].get(model_type, ""))


@cache
def _names() -> frozenset[str]:
    return frozenset(
        stem + end for stem, ends in packaged_json("published_classes.json")["classes"].items() for end in ends
    )


MAX_SIZE = 2**28
"""Largest size accepted; published ones (positions, vocabularies) stay below 2**24."""


@dataclass(slots=True)
class Ledger:
    """Everything that a reader took from elsewhere than the file, in order."""

    assumptions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)
    """Reasons why the counts may differ from the real model's."""
    factor: float = 1.0
    """Factor by which the interval of every prediction is widened."""
    unread_sizes: list[str] = field(default_factory=list)
    """Sizes of the file that no reader knows, as ``field=value``: the parameter count is unknown."""
    parts: list[str] = field(default_factory=list)
    """Model types of the nested configs that were read."""
    read_sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the file that were read, by field."""
    asked: dict[str, set[str]] = field(default_factory=dict)
    """Names of the fields that readers looked up, by path of their config in the file."""

    def assume(self, sentence: str) -> None:
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def guess(self, sentence: str, factor: float = 1.05) -> None:
        """Record an assumption without a published default: the counts are no longer exact."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)
            self.inexact.append(sentence)
            self.factor *= factor


@dataclass(frozen=True, slots=True)
class Fields:
    """One (sub-)config: ``raw`` as in the file, the published class defaults behind it, and the shared ledger.

    Every getter takes the canonical field name and its aliases; the first one in the file that is not null counts, then
    the class default. Getters named ``optional_*`` return None if nothing is given.
    """

    raw: JsonDict
    model_type: str = ""
    path: str = ""
    """Path of this sub-config in the file: ``""`` or ``"text_config."``."""
    ledger: Ledger = field(default_factory=Ledger)
    architecture: str = ""
    """The class named in ``architectures``, or ``""``."""

    @property
    def defaults(self) -> _ClassDefaults:
        return class_defaults(self.model_type)

    # -- values -----------------------------------------------------------------------------------------------

    def size(self, name: str, *aliases: str, least: int = 1) -> int:
        """A required positive integer; the class default if the file omits it."""
        value = self.optional_size(name, *aliases, least=least)
        if value is None:
            raise self.missing(name, *aliases)
        return value

    def essential(self, name: str, *aliases: str) -> int:
        """Like `size`, but must be in the file (in nested configs a default will do): no model is just its defaults."""
        name_used, value, in_file = self._find((name, *aliases))
        if not in_file and (not self.path or value is None):
            raise self.missing(name, *aliases)
        if value is None:
            raise InputError(self.path + name_used, None, "must be a positive integer")
        return self.size(name, *aliases)

    def optional_size(self, name: str, *aliases: str, least: int = 1) -> int | None:
        """An integer of at least ``least``, or None if neither the file nor the class gives one."""
        name_used, value, in_file = self._find((name, *aliases))
        if value is None:
            return None
        checked = self._integer(name_used, value, least)
        if in_file:
            self.ledger.read_sizes[name_used] = checked
        else:
            self.ledger.assume(self._default_sentence(name, checked))
        return checked

    def layers(self, name: str = "num_hidden_layers", *aliases: str) -> int:
        """Number of layers; bounded, because patterns are written out layer by layer."""
        count = self.essential(name, *aliases)
        if count > MAX_LAYERS:
            raise InputError(self.path + name, count, f"must be at most {MAX_LAYERS} layers")
        return count

    def flag(self, name: str, *aliases: str, default: bool | None = None) -> bool:
        """A boolean; ``default`` if neither file nor class gives one."""
        name_used, value, in_file = self._find((name, *aliases))
        if value is None:
            value, in_file = bool(default), False
        if isinstance(value, int) and value in (0, 1):
            value = bool(value)
        if not isinstance(value, bool):
            raise InputError(self.path + name_used, quoted(value), "must be true or false")
        if not in_file:
            self.ledger.assume(self._default_sentence(name, value))
        return value

    def word(self, name: str, *aliases: str, default: str = "") -> str:
        """A short string such as ``hidden_act``."""
        name_used, value, in_file = self._find((name, *aliases))
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 100 or not value.isprintable():
            raise InputError(self.path + name_used, value, "must be a short string")
        if not in_file and value:
            self.ledger.assume(self._default_sentence(name, value))
        return value

    def number(self, name: str, *aliases: str) -> float | None:
        """A finite number, integer or not."""
        name_used, value, _ = self._find((name, *aliases))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(self.path + name_used, value, "must be a finite number")
        return float(value)

    def sequence(self, name: str, *aliases: str) -> list[Any] | None:
        """A list, or None."""
        name_used, value, _ = self._find((name, *aliases))
        if value is None:
            return None
        if not isinstance(value, list):
            raise InputError(self.path + name_used, value, "must be a list")
        if len(value) > MAX_LAYERS:
            raise InputError(
                self.path + name_used, Stated(f"has {len(value)} entries"), f"must have at most {MAX_LAYERS} entries"
            )
        return value

    def sizes(self, name: str, *aliases: str, length: int | None = None, least: int = 1) -> list[int] | None:
        """A list of integers (one number stands for ``length`` equal ones), or None."""
        name_used, value, _ = self._find((name, *aliases))
        if value is None:
            return None
        if not isinstance(value, list):
            return [self._integer(name_used, value, least)] * (length or 1)
        out = [self._integer(f"{name_used}[{i}]", x, least) for i, x in enumerate(self.sequence(name, *aliases) or [])]
        if length is not None and len(out) != length:
            raise InputError(
                self.path + name_used, Stated(f"has {len(out)} entries"), f"must have {length} entries, one per layer"
            )
        return out

    def words(self, name: str, *aliases: str, length: int | None = None) -> list[str] | None:
        """A list of short strings such as ``layer_types``, or None."""
        name_used, _, _ = self._find((name, *aliases))
        out = self.sequence(name, *aliases)
        if out is None:
            return None
        for i, x in enumerate(out):
            if not isinstance(x, str) or len(x) > 100 or not x.isprintable():
                raise InputError(f"{self.path}{name_used}[{i}]", x, "must be a short string")
        if length is not None and len(out) != length:
            raise InputError(
                self.path + name_used, Stated(f"has {len(out)} entries"), f"must have {length} entries, one per layer"
            )
        return out

    def has(self, *names: str) -> bool:
        """Whether the file itself gives one of the fields a value other than null."""
        return any(self.raw.get(name) is not None for name in self._all_names(names))

    def given(self, name: str, otherwise: object = None) -> Any:
        """The file's value under exactly this name, unchecked."""
        self._all_names((name,))
        return self.raw.get(name, otherwise)

    def nested(self, name: str, model_type: str = "") -> Fields | None:
        """The sub-config ``name`` as Fields, None if there is none; ``model_type``: its default type."""
        return None if self.raw.get(name) is None else self.part(name, model_type)

    def part(self, name: str, model_type: str = "") -> Fields:
        """Like `nested`, but with the defaults of ``model_type``'s class if the file has none."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise InputError(self.path + name, value, "must be an object")
        inner = dict(value or {})
        stated_type = inner.get("model_type")
        kind = (
            stated_type
            if isinstance(stated_type, str) and stated_type
            else model_type or self.defaults.nested.get(name, "")
        )
        if value is None:
            self.ledger.assume(f"{self.path}{name} is not in the file; assumed the defaults of {kind}")
        self.ledger.parts.append(kind)
        return Fields(inner, kind, f"{self.path}{name}.", self.ledger, self.architecture)

    # -- checks -----------------------------------------------------------------------------------------------

    def missing(self, name: str, *aliases: str) -> InputError:
        """The error for a required field that is missing."""
        null = next((n for n in self._all_names((name, *aliases)) if n in self.raw), None)
        if null is not None:
            return InputError(self.path + null, self.raw[null], "must be a positive integer")
        keys = {k.lower(): k for k in self.raw}
        near = [keys[k] for k in difflib.get_close_matches(name, list(keys), 2, 0.8)]
        others = f" (or {', '.join(aliases[:3])})" if aliases else ""
        must = f"must be given as a positive integer{others}"
        return InputError(self.path + name, "missing", must, " and ".join(near))

    def refuse(self, name: str, value: object, must: str, nearest: str = "") -> InputError:
        return InputError(self.path + name, value, must, nearest)

    # -- inner ------------------------------------------------------------------------------------------------

    def _all_names(self, names: tuple[str, ...]) -> list[str]:
        aliases = self.defaults.aliases
        all_names = [x for name in names for x in (name, aliases.get(name, name))]
        all_names = list(dict.fromkeys((*all_names, *(alias for alias, name in aliases.items() if name in all_names))))
        self.ledger.asked.setdefault(self.path, set()).update(all_names)
        return all_names

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any, bool]:
        """Name found, value, and whether it is from the file."""
        all_names = self._all_names(names)
        present = [name for name in all_names if name in self.raw]
        not_null = [name for name in present if self.raw[name] is not None]
        if not_null:
            values = [self.raw[name] for name in not_null]
            if len(not_null) > 1 and any(v != values[0] for v in values[1:]):
                others = ", ".join(f"{n}={self.raw[n]!r:.30}" for n in not_null[1:])
                self.ledger.note(f"{self.path}{not_null[0]}={values[0]!r:.30} is used; {others} is ignored")
            return not_null[0], values[0], True
        if present:
            return present[0], None, True
        for name in all_names:
            if (value := self.defaults.values.get(name)) is not None:
                return name, value, False
        return names[0], None, False

    def _integer(self, name: str, value: object, least: int) -> int:
        must = "must be a positive integer" if least == 1 else f"must be an integer of at least {least}"
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SIZE:
            self.ledger.note(f"{self.path}{name} is {value}, read as the integer {int(value)}")
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            digits = isinstance(value, str) and re.fullmatch("[0-9]{1,12}", value)
            raise InputError(self.path + name, quoted(value), must, f"{value} without quotes" if digits else "")
        if value < least:
            raise InputError(self.path + name, value, must)
        if value > MAX_SIZE:
            raise InputError(self.path + name, value, f"must be at most {MAX_SIZE}")
        return value

    def _default_sentence(self, name: str, value: object) -> str:
        shown = str(value).lower() if isinstance(value, bool) else value
        has_default = self.defaults.values.get(name) is not None or name in self.defaults.values
        behind = f"default of {self.model_type}" if has_default else "the usual value"
        return f"{self.path}{name} is not in the file; assumed {shown} ({behind})"


FOLDERS: tuple[Path, ...] = (Path(__file__).parent / "families",)
"""Where the files are; every ``*.toml`` in them is read."""
TOWERS = "towers.toml"
"""The file with rows of towers, which are parts of models and have model types of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """One model type."""

    model_type: str
    reader: str = ""
    facts: JsonDict = field(default_factory=dict)
    defaults: JsonDict = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)
    verified: str = ""


@cache
def family_rows() -> Mapping[str, FamilyRow]:
    """Every family by its model type."""
    return MappingProxyType(dict(_rows(path for path in _files() if path.name != TOWERS)))


@cache
def tower_rows() -> Mapping[str, FamilyRow]:
    """Every tower by its model type."""
    return MappingProxyType(dict(_rows(path for path in _files() if path.name == TOWERS)))


def _files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted(folder.glob("*.toml"))]


def _rows(paths: Iterator[Path]) -> Iterator[tuple[str, FamilyRow]]:
    tables: dict[str, JsonDict] = {}
    for path in paths:
        with path.open("rb") as file:
            rows = tomllib.load(file)
        twice = tables.keys() & rows.keys()
        assert not twice, f"{path.name}: {sorted(twice)} is another file's row too"
        tables |= rows
    for model_type in tables:
        yield model_type, _row(model_type, _whole(model_type, tables))


def _whole(model_type: str, tables: Mapping[str, JsonDict]) -> JsonDict:
    """The row with all that it takes from the row it is like; only facts are inherited, and the reader."""
    table = tables[model_type]
    if "like" not in table:
        return table
    base = {name: value for name, value in _whole(table["like"], tables).items() if name not in _OF_THE_TYPE}
    return base | {name: value for name, value in table.items() if name != "like"}


_OF_THE_TYPE = ("defaults", "aliases", "nested", "verified")


def _row(model_type: str, table: JsonDict) -> FamilyRow:
    facts = {name: value for name, value in table.items() if name not in ("reader", *_OF_THE_TYPE)}
    stated = {name: table[name] for name in ("reader", *_OF_THE_TYPE) if name in table}
    return FamilyRow(model_type=model_type, facts=facts, **stated)
