"""A frozen record behaves as the standard library's does."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from sartor.frozen import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size."""

    width: int
    depth: int = 2
    rows: dict[str, int] = field(default_factory=dict)
    note: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("width")


@dataclass(frozen=True, slots=True)
class Point:
    """A place, with its own text."""

    x: float
    y: float = 0.0

    def __str__(self) -> str:
        return f"{self.x}, {self.y}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Point):
    """A place with a name."""

    name: str = "a"

    def __hash__(self) -> int:
        return 7


@dataclass(frozen=True, slots=True, repr=False)
class Alone:
    """One field, printed by its class."""

    value: float

    def __repr__(self) -> str:
        return "alone"


def standard(cls: type) -> Any:
    """The same class by ``dataclasses``."""
    names = dataclasses.fields(cls)
    spaces = {row.name: row for row in ()} | {"__annotations__": {row.name: row.type for row in names}}
    defaults = {
        row.name: field(default_factory=row.default_factory, compare=row.compare, repr=row.repr, kw_only=row.kw_only)
        if row.default_factory is not dataclasses.MISSING
        else field(default=row.default, compare=row.compare, repr=row.repr, kw_only=row.kw_only)
        for row in names
    }
    return dataclasses.dataclass(frozen=True)(type(cls.__name__, (), {**spaces, **defaults}))


RECORDS = [
    (Size, {"width": 3}, {"width": 3, "depth": 5}),
    (Point, {"x": 1.5}, {"x": 1.5, "y": -1.0}),
    (Alone, {"value": 2.0}, {"value": 3.0}),
]


@pytest.mark.parametrize(("cls", "one", "another"), RECORDS)
def test_records_compare_and_print_as_standard_ones(cls: Any, one: dict[str, Any], another: dict[str, Any]) -> None:
    usual = standard(cls)
    assert cls(**one) == cls(**one) != cls(**another)
    assert (cls(**one) == usual(**one)) is False
    assert inspect.signature(cls).parameters.keys() == inspect.signature(usual).parameters.keys()
    assert inspect.signature(cls).parameters["self" if False else next(iter(one))].annotation
    if cls is not Alone:
        assert repr(cls(**another)) == repr(usual(**another))
    if cls is not Size:
        assert hash(cls(**one)) == hash(usual(**one))


@pytest.mark.parametrize(("cls", "one", "another"), RECORDS)
def test_records_are_copied_pickled_and_never_changed(cls: Any, one: dict[str, Any], another: dict[str, Any]) -> None:
    record = cls(**one)
    assert pickle.loads(pickle.dumps(record)) == record
    assert replace(record, **another) == cls(**another)
    for change in (lambda: setattr(record, next(iter(one)), 9), lambda: delattr(record, next(iter(one)))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.unknown = 1
