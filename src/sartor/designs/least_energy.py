"""The least energy per token that any chip and plan needs: the answer to a budget of energy that nothing meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from sartor.cost.chip.energy_floor import energy_floor_j
from sartor.designs.bounds import plan_rates, work_rates
from sartor.designs.candidates import Candidates
from sartor.designs.energy import dynamic_j, joules_per_token, least_joules
from sartor.designs.parts import Split
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_option
from sartor.designs.question import DesignQuestion
from sartor.designs.tasks import lowered
from sartor.hardware.accelerator import Accelerator
from sartor.model.training import Recompute
from sartor.units import Array

SHARPENED, SPLITS = 256, 4
"""Chips with the least first bounds, and splits of each model, that get their second bound."""
MOST_CHIPS = 8
"""Most chips that are tried, those with the least bounds first."""

Bounds = tuple[Mapping[Split, Array], ...]
"""Of each model, joules per token [candidates] that no plan of a split falls below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastEnergy:
    """Joules per token that a plan takes (inf: none was found), and that none falls below."""

    reached_j: float
    bound_j: float


def least_energy(question: DesignQuestion, candidates: Candidates, check: Callable[[], None]) -> LeastEnergy:
    """The chips with the least bounds tried in turn, in whatever time ``check`` leaves before it raises."""
    free = replace(question, budgets=replace(question.budgets, energy_j_per_token=None))
    memory, reached = candidates.hbm_bytes.max(axis=0), inf
    bounds = _bounds(free, candidates, float(memory.max()))
    few = np.argsort(_together(bounds), kind="stable")[:SHARPENED]
    sharp = tuple(_sharpened(free, candidates, m, each, few, check) for m, each in enumerate(bounds))
    expected = _together(sharp)
    for i in few[np.argsort(expected[few], kind="stable")][:MOST_CHIPS].tolist():
        if expected[i] >= reached:
            break
        own = tuple({split: float(column[i]) for split, column in each.items()} for each in sharp)
        reached = min(reached, _of_chip(free, candidates.accelerator(i), float(memory[i]), own, check))
    return LeastEnergy(reached_j=reached, bound_j=min(float(_together(bounds).min()), reached))


def _bounds(question: DesignQuestion, candidates: Candidates, memory: float) -> Bounds:
    every = np.arange(len(candidates))
    groups = tuple(candidates.of_groups(every))
    found: Bounds = ()
    for m, model in enumerate(lowered(question)):
        own = {split: np.full(len(every), inf) for split in model.parts}
        for split, parts in model.parts.items():
            for where, a in groups:
                if a.multiplies(split.dtype):
                    rates = work_rates(question, parts, a, memory)
                    own[split][where] = least_joules(question, m, parts, a, rates, energy_floor_j)
        found += (own,)
    return found


def _sharpened(
    question: DesignQuestion,
    candidates: Candidates,
    m: int,
    bounds: Mapping[Split, Array],
    few: Array,
    check: Callable[[], None],
) -> Mapping[Split, Array]:
    """The splits that take least on a ``few`` chips, with their bounds there raised by tiles, schedules and plans."""
    best = sorted(bounds, key=lambda split: float(bounds[split][few].min()))[:SPLITS]
    for split in best:
        check()
        parts = lowered(question)[m].parts[split]
        for where, a in candidates.of_groups(few):
            if a.multiplies(split.dtype):
                at = few[where]
                rates = plan_rates(question, parts, a, candidates.hbm_bytes[:, at]).max(axis=(0, 1))
                own = least_joules(question, m, parts, a, rates, dynamic_j)
                bounds[split][at] = np.maximum(bounds[split][at], own)
    return {split: bounds[split] for split in best}


def _together(bounds: Bounds) -> Array:
    """Joules per token [candidates] of the model that takes most."""
    return np.asarray(np.max([np.min([*each.values()], axis=0) for each in bounds], axis=0))


def _of_chip(
    question: DesignQuestion,
    a: Accelerator,
    memory: float,
    bounds: tuple[Mapping[Split, float], ...],
    check: Callable[[], None],
) -> float:
    """Joules per token on one chip of the model that takes most; inf if a model has no plan."""
    point, store = Point(index=0, accelerator=a, hbm_bytes=memory, options=()), ScheduleStore(check=check)
    least = [inf] * len(bounds)
    for m, each in enumerate(bounds):
        for split in sorted(each, key=lambda split: each[split]):
            if each[split] >= least[m]:
                break
            least[m] = min([least[m], *_of_split(question, point, m, split, store)])
    return max(least)


def _of_split(question: DesignQuestion, point: Point, m: int, split: Split, store: ScheduleStore) -> Iterator[float]:
    for recompute in question.recomputes:
        store.check()
        option = Option(model=m, split=split, recompute=Recompute(recompute))
        outcome, _ = evaluate_option(question, point, option, store)
        if outcome:
            run = replace(option, recompute=outcome.recompute)
            yield joules_per_token(question, point.accelerator, run, outcome.step_s)
