"""Readers by ``model_type``: the rows of `sartor.read.fields` made into functions.

A reader takes the `Fields` of a config and returns the `TransformerShape` it describes. It raises `InputError`, and
records in ``fields.ledger`` whatever was not in the file.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from enum import Enum
from functools import cache, partial
from importlib import import_module
from inspect import signature
from typing import Any, TypeAlias, TypeVar, get_type_hints

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.shape import TransformerShape
from sartor.read.fields import FamilyRow, Fields, family_rows

Reader: TypeAlias = Callable[[Fields], TransformerShape]
Record = TypeVar("Record")


def read_part(f: Fields) -> TransformerShape:
    """The shape of a config, or of a config inside another; an unknown model type is read by its field names."""
    reader = reader_of(f.model_type) or _named("unknown.read_unknown")
    shape: TransformerShape = reader(f)
    return shape


def read_as(f: Fields, model_type: str) -> TransformerShape:
    """The shape of a config by the reader of another model type, with the defaults of its own."""
    reader = reader_of(model_type)
    assert reader is not None
    return reader(f)


def model_types() -> frozenset[str]:
    """Every model type with a reader."""
    return frozenset(family_rows())


@cache
def reader_of(model_type: str) -> Reader | None:
    """The reader of a model type, with the facts of its row; None for an unknown type."""
    row = family_rows().get(model_type)
    return None if row is None else _with_facts(row)


def _with_facts(row: FamilyRow) -> Reader:
    """The row's function with its facts: those of its record, if it takes one, and its own keywords."""
    function: Reader = _named(row.reader)
    hints = get_type_hints(function)
    parameters = list(signature(function).parameters)[1:]
    record = next((name for name in parameters if dataclasses.is_dataclass(hints[name])), "")
    names = {field.name for field in dataclasses.fields(hints[record])} if record else set()
    facts = {name: value for name, value in row.facts.items() if name not in parameters}
    keywords = {name: value for name, value in row.facts.items() if name in parameters}
    _check_names(row, facts, {*names, *parameters})
    if record:
        keywords[record] = made(hints[record], facts)
    return partial(function, **keywords) if keywords else function


def _check_names(row: FamilyRow, facts: JsonDict, names: set[str]) -> None:
    unknown = next((name for name in facts if name not in names), None)
    if unknown is not None:
        near = ", ".join(get_close_matches(unknown, names, 2))
        raise InputError(f"family {row.model_type}", unknown, f"must be a fact of {row.reader}", near)


def made(record: type[Record], facts: JsonDict) -> Record:
    """A record of a reader from its facts in a row."""
    hints: dict[str, str] = {field.name: str(field.type) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    return record(**{name: _fact(record, hints[name], value) for name, value in facts.items()})


_FUNCTIONS = ("Callable", "Spans", "Sparse", "Projector", "Norm")
"""Types of the facts that are written as a call."""


def _fact(record: type, hint: str, value: object) -> Any:
    """A fact as its record has it: functions by their call, words of an enum, nested records, lists as tuples."""
    name = hint.removeprefix("tuple[").split(",")[0].split(" ")[0]
    inner = getattr(import_module(record.__module__), name, None)
    if isinstance(value, str) and isinstance(inner, type) and issubclass(inner, Enum):
        return inner(value)
    if isinstance(value, str) and hint.startswith(_FUNCTIONS):
        return _called(value)
    if isinstance(value, dict) and isinstance(inner, type):
        return made(inner, value)
    if isinstance(value, list):
        return tuple(_fact(record, hint, item) if isinstance(item, dict) else item for item in value)
    return value


def _called(text: str) -> Any:
    """What ``"parts.window_pattern(4)"`` returns, or the function ``"parts.all_sparse"`` itself."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call):
        return _named(text)
    arguments = [ast.literal_eval(argument) for argument in tree.args]
    keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
    return _named(ast.unparse(tree.func))(*arguments, **keywords)


def _named(text: str) -> Any:
    """The function ``module.function`` of this folder."""
    module, _, function = text.partition(".")
    return getattr(import_module(f"sartor.read.families.{module}"), function)
