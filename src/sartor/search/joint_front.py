"""Fronts of the objective against area, power or memory: the best point under each of a row (or grid) of budgets, every
one proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from sartor.errors import InputError
from sartor.search.accelerator_space import AcceleratorSpace
from sartor.search.joint import search_design
from sartor.search.joint_candidates import Candidates, candidates_of
from sartor.search.joint_question import DesignQuestion
from sartor.search.joint_result import DesignStatus, JointResult, Progress, Ranked
from sartor.search.pareto import is_pareto

AXES = ("area_mm2", "power_w", "hbm_bytes")
"""What a front may be over beside the objective; all are budgets too."""
STEPS = {1: 8, 2: 4, 3: 3}
"""Budgets on each axis, by how many axes there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedFront:
    """Points none of which another beats in the objective and on the axes at once, best first.

    Each is the best point under one of ``num_budgets`` combinations of budgets; ``proved``: every one is optimal there.
    """

    axes: tuple[str, ...]
    points: tuple[Ranked, ...]
    num_budgets: int
    proved: bool


def proved_front(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: Sequence[str],
    steps: int | None = None,
    time_limit_s: float = float("inf"),
    on_progress: Callable[[Progress], None] | None = None,
) -> ProvedFront:
    """The front over one, two or three of ``AXES``; ``time_limit_s`` is that of each search. Raises ``InputError``."""
    results = front_over(question, space, axes, steps, time_limit_s, on_progress)
    best = [result.best for result in results if result.best is not None]
    return ProvedFront(
        axes=tuple(axes),
        points=not_dominated(best, tuple(axes)),
        num_budgets=len(results),
        proved=all(result.status is DesignStatus.OPTIMAL and not result.interrupted for result in results),
    )


def front_over(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: str | Sequence[str],
    steps: int | None = None,
    time_limit_s: float = float("inf"),
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[JointResult, ...]:
    """One search per combination of budgets on ``axes``, each evenly spread from the smallest candidate to the largest
    (memories: sizes there are); infeasible ones are left out.

    Raises ``InputError`` for an axis that is no budget.
    """
    names = check_axes([axes] if isinstance(axes, str) else axes)
    candidates, why = candidates_of(question, space)
    if why or not names:
        return ()
    results = []
    for budgets in product(*(_budgets(candidates, axis, steps or STEPS[len(names)]) for axis in names)):
        limits = dict(zip(names, budgets, strict=True))
        limited = replace(question, budgets=replace(question.budgets, **limits))
        result = search_design(limited, space, time_limit_s=time_limit_s, on_progress=on_progress)
        if result.best is not None:
            results.append(result)
        if result.interrupted:
            break
    return tuple(results)


def check_axes(axes: Sequence[str]) -> list[str]:
    """The axes, each once. Raises ``InputError`` for one that is no budget."""
    for axis in axes:
        if axis not in AXES:
            raise InputError("--pareto", axis, "must be an axis that can be a budget", ", ".join(AXES))
    return list(dict.fromkeys(axes))


def _budgets(candidates: Candidates, axis: str, steps: int) -> Iterator[float]:
    if axis == "hbm_bytes":
        sizes = np.unique(candidates.hbm_bytes[candidates.hbm_bytes > 0])
        yield from sizes[np.unique(np.linspace(0, len(sizes) - 1, steps).round().astype(np.int64))].tolist()
        return
    column = candidates.area_mm2 if axis == "area_mm2" else candidates.power_w
    yield from np.unique(np.linspace(float(column.min()), float(column.max()), steps)).tolist()


def not_dominated(ranked: Sequence[Ranked], axes: tuple[str, ...] = ("area_mm2", "power_w")) -> tuple[Ranked, ...]:
    """Points no other beats in the objective and on the axes at once, best first; equal ones once."""
    if not ranked:
        return ()
    rows = np.array([(-each.objective, *(_on(each, axis) for axis in axes)) for each in ranked])
    kept = [(tuple(row), each) for row, each, keep in zip(rows.tolist(), ranked, is_pareto(rows), strict=True) if keep]
    distinct = dict(reversed(kept))
    return tuple(sorted(distinct.values(), key=lambda each: -each.objective))


def _on(ranked: Ranked, axis: str) -> float:
    return ranked.evaluation.point.hbm_bytes if axis == "hbm_bytes" else float(getattr(ranked, axis))
