"""The simplest plan about as fast as the best: fewer mechanisms to set up and to fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.model.training import Recompute, TrainingPlan
from sartor.plans.result import PlanSearch, PricedPlan
from sartor.run.fields import FIELDS

LOOKED_AT = 4
"""Sets of dims for which the plainest plans are priced too."""

CLOSE = 0.05
RIGHT = 0.7
"""Two plans of one model on one machine share most of their error, so the interval of one step says little about which
is faster. Of 87 pairs of published runs predicted less than `CLOSE` apart by a fit without their source, the share
`RIGHT` is ranked correctly (69%); of 185 further apart, 92% (lab/plan_pairs.py, 2026-11-28)."""

AXES = tuple(row for row in FIELDS.values() if row.mechanism)
"""Axes of a plan whose values bring a mechanism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simpler:
    """A plan with fewer mechanisms than the best, how much slower it is predicted, and which mechanisms it drops."""

    priced: PricedPlan
    slower: float
    """Relative to the best plan's step."""
    without: tuple[str, ...]


def simpler(search: PlanSearch, calibration: Calibration | None = None) -> Simpler | None:
    """The plan with fewest mechanisms (a subset of the best plan's) whose step is less than `CLOSE` longer, since
    pairs that close are often ranked wrongly; None if no plan has fewer."""
    best = search.best
    if best is None or search.cluster.gpu.accelerator is not None:
        return None
    best_mechanisms = set(mechanisms(best.plan))
    near = [
        candidate
        for candidate in _candidates(search, best_mechanisms, calibration)
        if candidate.step_s < (1 + CLOSE) * best.step_s
    ]
    near = [candidate for candidate in near if best_mechanisms > set(mechanisms(candidate.plan))]
    if not near:
        return None
    few = min(near, key=lambda candidate: (len(mechanisms(candidate.plan)), candidate.step_s))
    without = tuple(word for word in mechanisms(best.plan) if word not in mechanisms(few.plan))
    return Simpler(priced=few, slower=few.step_s / best.step_s - 1, without=without)


def mechanisms(plan: TrainingPlan) -> tuple[str, ...]:
    """The mechanisms of a plan beyond replicas with a sharded optimizer."""
    words = [row.mechanism for row in AXES if int(plan.columns[row.name]) not in row.plain]
    return (*words, "uneven stages") if plan.stage_layers and len(set(plan.stage_layers)) > 1 else tuple(words)


def _candidates(search: PlanSearch, best_mechanisms: set[str], calibration: Calibration | None) -> Iterator[PricedPlan]:
    """The best of every set of dims, and of the first few the plainest plans; none is searched for that could not have
    fewer mechanisms than those ``best_mechanisms``."""
    yield from search.top
    for priced in search.top[:LOOKED_AT]:
        plain = {row.name: row.plain[0] for row in AXES if row.name != "recompute_layers"}
        plain |= {name: int(getattr(priced.plan.dims, name)) for name in ("tp", "pp", "dp", "cp", "ep")}
        plain["zero_stage"] = min(int(priced.plan.zero_stage), 2)
        for recompute in (Recompute.NONE, Recompute.FULL):
            fixed = {**plain, "recompute": int(recompute), **search.fixed}
            if best_mechanisms > _needed(fixed):
                yield from _plainest(search, fixed, calibration)


def _needed(fixed: Mapping[str, int]) -> set[str]:
    """Mechanisms that every plan with these fields has."""
    return {row.mechanism for row in AXES if row.name in fixed and fixed[row.name] not in row.plain}


def _plainest(search: PlanSearch, fixed: Mapping[str, int], calibration: Calibration | None) -> tuple[PricedPlan, ...]:
    from sartor.plans.search import search_plans

    try:
        searched = search_plans(
            search.job,
            search.cluster,
            search.num_devices,
            fixed,
            top=1,
            uneven=False,
            calibration=calibration,
            headroom=search.headroom,
            explain=False,
        )
    except InputError:  # a trainer that has no such plan
        return ()
    return searched.top
