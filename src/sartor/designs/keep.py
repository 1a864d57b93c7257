"""Protocol of a store for results besides the search itself (baselines, fronts, pairings of shapes and chips), so that
they are not computed twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sartor.interrupts import point

T = TypeVar("T")


class Keep(Protocol):
    """Returns ``make()``, or the value that was stored under ``key`` before.

    Within one question a key has one value: None, a number, a text, one of the records a design answers with
    (`designs.result`, `designs.point`), or a tuple of these.
    """

    def __call__(self, key: str, make: Callable[[], T]) -> T: ...


def afresh(key: str, make: Callable[[], T]) -> T:
    """A `Keep` that stores nothing."""
    point()
    return make()
