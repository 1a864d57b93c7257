"""Fronts of the objective against area, power, price or memory: over the whole space if it is small, else the proved
best points under a series (or grid) of budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import numpy as np

from sartor.designs.candidates import Candidates, candidates_of
from sartor.designs.pareto import pareto_front, value_of
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.result import DesignStatus, JointResult, Keep, Ranked, afresh
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.pareto import is_pareto

BUDGETS = ("area_mm2", "power_w", "hbm_bytes")
AXES = (*BUDGETS, "usd")
"""Axes of a front besides the objective; all but the price can also be budgets."""
WHOLE_POINTS = 400
"""Points (with a memory each) up to which a front covers the whole space exactly."""
ROUGHLY = 0.05
"""Tolerance, as a share of the objective, of a front over a larger space (needed if price is an axis)."""
STEPS = {1: 8, 2: 4, 3: 3}
"""Number of axes -> budgets on each axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedFront:
    """Points that no other point beats in the objective and on all axes, best first.

    They include the best point under each of ``num_budgets`` combinations of budgets, or an equal one (``proved``:
    these are optimal), and other evaluated points that none beats.
    Without budgets (0) the front covers the whole space: ``proved`` then means that for every point of the space, one
    of the front is as good on all axes, within ``tolerance`` of the objective.
    """

    axes: tuple[str, ...]
    points: tuple[Ranked, ...]
    num_budgets: int
    proved: bool
    tolerance: float = 0.0
    interrupted: bool = False


class NamedSearch(Protocol):
    """A search of a variant of the question, described by ``name``; ``floor`` is as in `search_design`."""

    def __call__(
        self, question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0
    ) -> JointResult: ...


def plain_search(question: DesignQuestion, space: AcceleratorSpace, name: str, floor: float = 0.0) -> JointResult:
    """Search in this process, without a time limit."""
    return search_design(question, space, floor=floor)


def proved_front(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: Sequence[str],
    steps: int | None = None,
    time_limit_s: float = float("inf"),
    search: NamedSearch = plain_search,
    keep: Keep = afresh,
) -> ProvedFront:
    """The front over some of ``AXES``: by ``search`` under each budget, or over the whole space within
    ``time_limit_s``, with points that ``keep`` may have. Raises ``InputError``.

    Up to `WHOLE_POINTS` points it is exact over the whole space; in a larger space with price as an axis it covers the
    space within `ROUGHLY` of the objective; else it is made of the best points under budgets.
    """
    candidates, why = candidates_of(question, space)
    small = len(candidates) * len(candidates.hbm_bytes) <= WHOLE_POINTS
    if not why and axes and (small or "usd" in axes):
        return _of_the_whole(question, space, check_axes(axes), 0.0 if small else ROUGHLY, time_limit_s, keep)
    results = front_over(question, space, axes, steps, search)
    reached = [
        ranked for result in results for ranked in (result.best, *result.ranked) if ranked and ranked.objective > 0
    ]
    return ProvedFront(
        axes=tuple(axes),
        points=not_dominated(reached, tuple(axes)),
        num_budgets=len(results),
        proved=all(result.status is DesignStatus.OPTIMAL and not result.interrupted for result in results),
        interrupted=any(result.interrupted for result in results),
    )


def _of_the_whole(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: Sequence[str],
    tolerance: float,
    time_limit_s: float,
    keep: Keep,
) -> ProvedFront:
    names = ("objective", *axes)
    front = pareto_front(question, space, names, tolerance=tolerance, time_limit_s=time_limit_s, keep=keep)
    return ProvedFront(
        axes=tuple(axes),
        points=front.points,
        num_budgets=0,
        proved=front.complete and front.schedule_gap <= max(tolerance, EQUAL),
        tolerance=max(tolerance, front.schedule_gap),
    )


def front_over(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: str | Sequence[str],
    steps: int | None = None,
    search: NamedSearch = plain_search,
) -> tuple[JointResult, ...]:
    """One search per combination of budgets on ``axes``, each evenly spread from the smallest candidate to the largest
    (for memory: the space's sizes); infeasible ones are left out.

    Raises ``InputError`` for an axis that is not a budget.
    """
    names = check_axes([axes] if isinstance(axes, str) else axes, BUDGETS)
    candidates, why = candidates_of(question, space)
    if why or not names:
        return ()
    results = []
    for budgets in product(*(_budgets(candidates, axis, steps or STEPS[len(names)]) for axis in names)):
        limits: JsonMap = dict(zip(names, budgets, strict=True))
        limited = replace(question, budgets=replace(question.budgets, **limits))
        result = search(limited, space, ", ".join(f"{axis} at most {value:.6g}" for axis, value in limits.items()))
        if result.best is not None:
            results.append(result)
        if result.interrupted:
            break
    return tuple(results)


def check_axes(axes: Sequence[str], allowed: Sequence[str] = AXES) -> list[str]:
    """The axes without duplicates and without the objective, which every front has. Raises ``InputError``."""
    axes = [axis for axis in axes if axis != "objective"]
    for axis in axes:
        if axis not in allowed:
            raise InputError("pareto", axis, "must be an axis that can be a budget", ", ".join(allowed))
    return list(dict.fromkeys(axes))


def _budgets(candidates: Candidates, axis: str, steps: int) -> Iterator[float]:
    if axis == "hbm_bytes":
        sizes = np.unique(candidates.hbm_bytes[candidates.hbm_bytes > 0])
        yield from sizes[np.unique(np.linspace(0, len(sizes) - 1, steps).round().astype(np.int64))].tolist()
        return
    column = candidates.area_mm2 if axis == "area_mm2" else candidates.power_w
    yield from np.unique(np.linspace(float(column.min()), float(column.max()), steps)).tolist()


def not_dominated(ranked: Sequence[Ranked], axes: tuple[str, ...] = ("area_mm2", "power_w")) -> tuple[Ranked, ...]:
    """Points that no other beats in the objective and on all axes, best first, without duplicates; not those that no
    plan fits."""
    ranked = [point for point in ranked if point.objective]
    if not ranked:
        return ()
    rows = np.array([(-point.objective, *(value_of(point, axis) for axis in axes)) for point in ranked])
    survivors = [
        (tuple(row), point) for row, point, keep in zip(rows.tolist(), ranked, is_pareto(rows), strict=True) if keep
    ]
    distinct = dict(reversed(survivors))
    return tuple(sorted(distinct.values(), key=lambda point: -point.objective))
