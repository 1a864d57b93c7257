"""Fronts of throughput against area or power: the best point under each of a row of budgets, every one proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sartor.errors import InputError
from sartor.search.accelerator_space import AcceleratorSpace
from sartor.search.joint import candidates_of, search_design
from sartor.search.joint_question import DesignQuestion, Objective
from sartor.search.joint_result import JointResult, Progress, Ranked
from sartor.search.pareto import is_pareto

AXES = ("area_mm2", "power_w")
"""What a front may be over beside the objective; both are budgets too."""


def front_over(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axis: str,
    steps: int = 8,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[JointResult, ...]:
    """One search per budget on ``axis``, evenly spread up to the largest candidate's; infeasible ones are left out.

    The objective is throughput itself. Raises ``InputError`` for an axis that is no budget.
    """
    if axis not in AXES:
        raise InputError("--pareto", axis, "must be an axis that can be a budget", ", ".join(AXES))
    asked = replace(question, objective=Objective.THROUGHPUT)
    candidates, why = candidates_of(asked, space)
    if why:
        return ()
    column = candidates.area_mm2 if axis == "area_mm2" else candidates.power_w
    budgets = float(column.max()) * np.arange(1, steps + 1) / steps
    results = []
    for budget in budgets:
        limited = replace(asked, budgets=replace(asked.budgets, **{axis: float(budget)}))
        result = search_design(limited, space, on_progress=on_progress)
        if result.best is not None:
            results.append(result)
        if result.interrupted:
            break
    return tuple(results)


def not_dominated(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """Points no other beats in objective, area and power at once, best first; equal ones once."""
    if not ranked:
        return ()
    rows = np.array([(-each.objective, each.area_mm2, each.power_w) for each in ranked])
    kept = [each for each, keep in zip(ranked, is_pareto(rows), strict=True) if keep]
    distinct = {(each.objective, each.area_mm2, each.power_w): each for each in reversed(kept)}
    return tuple(sorted(distinct.values(), key=lambda each: -each.objective))
