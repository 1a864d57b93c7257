"""Families as data: one row per model type, in the TOML files beside the readers.

A row has ``reader``, the function that reads the type as ``module.function`` of ``sartor.read.families``, or ``like``,
the row that it equals but for the facts it states. Facts are fields of the reader's record (`decoder.Family`,
`encoders.Encoder`, ...); where one is a function, it is written as a call: ``"patterns.window_pattern(4)"``.

A row may also say what the published classes' tables say for theirs: ``defaults`` of fields that a file may omit,
``aliases`` of field names, ``nested`` model types of configs inside, and ``verified``, how its counts were verified.
Published classes have these in ``class_defaults.json`` and ``verified.json``, which are generated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from sartor.json_types import JsonDict

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
