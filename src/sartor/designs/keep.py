"""What is worked out beside the search itself (other ways to choose, fronts, pairings of shapes and chips) may be kept
by whoever asks, piece by piece, so that it is not worked out twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sartor.interrupts import point

T = TypeVar("T")


class Keep(Protocol):
    """The value of ``make()``, or what it was when ``key`` was asked for before.

    Within one question a key has one value: None, a number, a text, one of the records a design answers with
    (`joint_result`, `joint_point`), or a tuple of these.
    """

    def __call__(self, key: str, make: Callable[[], T]) -> T: ...


def afresh(key: str, make: Callable[[], T]) -> T:
    """Nothing is kept."""
    point()
    return make()
