"""Why not another plan: the plan a user asks about, or the nearest possible one, compared with the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.plans.fixed import named_values
from sartor.plans.relax import word_of
from sartor.plans.result import PlanSearch, PricedPlan
from sartor.plans.search import search_plans
from sartor.plans.space import STRUCTURE, plan_space, structures


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """A plan the user asked about, and the best one. ``reason`` is None if it is possible and just slower."""

    asked: str
    reason: str | None
    plan: PricedPlan | None
    """The fastest plan with the given values, the leanest if none fits, or the nearest possible one; None if none."""
    best: PricedPlan


def why_not(
    search: PlanSearch, asked: Mapping[str, int | str], calibration: Calibration | None = None
) -> WhyNot | None:
    """The plan with the ``asked`` values, compared with the best of a search; None if nothing fits at all.

    Raises `InputError` for an unknown axis or word.
    """
    values = named_values(asked, "why_not")
    if search.best is None:
        return None
    plan, reason = None, None
    try:
        searched = _search(search, values, calibration)
        tightest = searched.tightest
        plan = searched.best or (tightest.leanest if tightest else None)
        reason = tightest.message if tightest else None
    except InputError as error:
        reason = str(error).removeprefix("fix").lstrip(" =")
    words = ",".join(f"{name}={word_of(name, value)}" for name, value in values.items())
    plan = plan or _nearest(search, values, calibration)
    return WhyNot(asked=words, reason=reason, plan=plan, best=search.best)


def _search(search: PlanSearch, values: Mapping[str, int], calibration: Calibration | None) -> PlanSearch:
    free = {name: value for name, value in search.fixed.items() if name not in values}
    fixed = {**free, **values}
    return search_plans(search.job, search.cluster, search.num_devices, fixed, top=1, calibration=calibration)


def _nearest(search: PlanSearch, values: Mapping[str, int], calibration: Calibration | None) -> PricedPlan | None:
    """The possible plan nearest to an impossible one: one value is freed and ends up closest to the given one."""
    candidates: list[tuple[float, float, PricedPlan]] = []
    for name, value in values.items():
        rest = {axis: rest_value for axis, rest_value in values.items() if axis != name}
        for fixed in _held_near(search, rest, name, value):
            try:
                best = _search(search, fixed, calibration).best
            except InputError:
                continue
            if best is not None:
                candidates.append((_distance(best, name, value), best.step_s, best))
    if not candidates:
        fewer = dict(list(values.items())[:-1])
        return _nearest(search, fewer, calibration) if fewer else None
    return min(candidates, key=lambda rest_value: rest_value[:2])[2]


def _held_near(search: PlanSearch, rest: Mapping[str, int], name: str, value: int) -> list[Mapping[str, int]]:
    """Fixed values with ``name`` at its nearest possible values, or free if the axis has no order."""
    if name not in STRUCTURE:
        return [rest]
    legal = structures(search.job, plan_space(search.job, search.num_devices, rest)).rows[name]
    near = sorted(np.unique(legal).tolist(), key=lambda neighbour: abs(math.log(neighbour / value)))
    return [{**rest, name: int(neighbour)} for neighbour in near[:2]]


def _distance(priced: PricedPlan, name: str, value: int) -> float:
    """Distance of an axis from the given value, as a ratio."""
    return abs(math.log((int(priced.plan.columns[name]) + 1) / (value + 1)))
