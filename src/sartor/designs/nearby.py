"""Robustness of the best chip: which values of each axis come within 1% of it, and whether it stays ahead if an assumed
rate is 30% off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from sartor.designs.baselines import alone, point_on
from sartor.designs.bounds import lower_models
from sartor.designs.candidates import Candidates, candidates_of
from sartor.designs.cautions import AXES, PLATEAU, tied
from sartor.designs.point import Option, ScheduleStore, evaluate_point
from sartor.designs.question import EQUAL, DesignQuestion, Objective
from sartor.designs.result import JointResult, Ranked
from sartor.designs.space import AcceleratorSpace
from sartor.hardware.accelerator import Accelerator
from sartor.schedules.makespan import timing_fields

RIVALS = 3
"""Number of next best chips that are also priced under a changed assumption."""
CHANGES = (-0.3, 0.3)
SUSTAINED = "sustained matrix rate"
ASSUMED: dict[str, Callable[[Accelerator], dict[str, float]]] = {
    "HBM rate": lambda a: {"stack_bytes_per_s": float(a.hbm_bytes_per_s / a.num_stacks)},
    "buffer bandwidth": lambda a: {"bank_bytes_per_cycle": float(a.bank_bytes_per_cycle)},
    "link rate": lambda a: {"link_bytes_per_s": float(a.link_bytes_per_s)},
    "scale-out rate": lambda a: {"scale_out_bytes_per_s": float(a.scale_out_bytes_per_s)},
    "link latency": lambda a: {"link_latency_s": float(a.link_latency_s)},
    SUSTAINED: lambda a: {"sustained_share": a.sustained_share},
}
"""Assumptions common to all chips, and the fields that hold them."""
SWINGS = tuple((name, change) for name in ASSUMED for change in CHANGES if name != SUSTAINED or change < 0)
"""Assumptions with their changes; the sustained share of the peak can only be lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """The best chip when an assumption changes by ``change``: its objective then, and the best of all priced."""

    assumption: str
    change: float
    objective: float
    most: float
    num_rivals: int

    @property
    def survives(self) -> bool:
        """Whether the best chip still beats its rivals."""
        return self.objective >= self.most * (1 - EQUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearby:
    """``near_best``: by axis, values around the best chip's that reach 99% of its objective, other axes unchanged."""

    near_best: dict[str, tuple[float, float]]
    swings: tuple[Swing, ...]


class Price(Protocol):
    """Price a chip under its best plan at the rates of ``rates`` (default: its own); for objectives below ``floor`` any
    plan may be returned. Area, power and price are the chip's own, since a wrong assumption changes the speed but not
    the chip."""

    def __call__(self, chip: Accelerator, floor: float, rates: Accelerator | None = None) -> Ranked: ...


def nearby(question: DesignQuestion, space: AcceleratorSpace, result: JointResult) -> Nearby | None:
    """The neighbourhood of the best point, each chip under its own best plan and, if the space lists memory sizes, with
    the best point's memory; None without a best."""
    best = result.best
    if best is None:
        return None
    models, store, hbm = lower_models(question), ScheduleStore(), best.evaluation.point.hbm_bytes
    seen = [each for each in result.ranked if not space.hbm_bytes or each.evaluation.point.hbm_bytes == hbm]

    plain = question.objective is Objective.THROUGHPUT and len(question.models) == 1

    def price(chip: Accelerator, floor: float, rates: Accelerator | None = None) -> Ranked:
        memory = hbm if space.hbm_bytes else float(chip.hbm_bytes)
        point = point_on(question, models, rates or chip, memory)

        def under(**changes: Any) -> Ranked:
            found = evaluate_point(question, replace(point, **changes), store)
            return alone(question, replace(found, point=replace(found.point, accelerator=chip)))

        own = tuple(o for o in point.options if any(x and _same(x.option, o) for x in best.evaluation.outcomes))
        first = under(options=own)
        found = under(floor=(max(floor, first.objective),) if plain else ())
        return max(found, first, key=lambda each: each.objective)

    candidates, _ = candidates_of(question, space)
    near = {}
    for axis, values in _along(space, candidates, best).items():
        found = _near(best, values, price)
        seen += found.values()
        near[axis] = min(found), max(found)
    ordered = (each.evaluation.point.accelerator for each in sorted(seen, key=lambda each: -each.objective))
    mine = best.evaluation.point.accelerator
    rivals = {timing_fields(chip): chip for chip in ordered if timing_fields(chip) != timing_fields(mine)}
    return Nearby(near_best=near, swings=tuple(_swings(mine, list(rivals.values())[:RIVALS], price)))


def _along(space: AcceleratorSpace, candidates: Candidates, best: Ranked) -> dict[str, dict[float, Accelerator | None]]:
    """By axis with several values, the candidates that differ from the best only on it; None: the best itself."""
    index = best.evaluation.point.index
    mine = np.flatnonzero(candidates.group == candidates.group[index])
    group, place = candidates.groups[candidates.group[index]], candidates.place[mine]
    lanes_follow = tied(space)
    axes = {axis: each for axis, each in AXES.items() if axis != "vector_lanes" or not lanes_follow}
    columns = {
        axis: np.broadcast_to(getattr(group, field), group.shape).reshape(-1)[place] / unit
        for axis, (field, unit) in axes.items()
    }
    here = int(np.flatnonzero(mine == index)[0])
    found = {}
    for axis, column in columns.items():
        same = np.logical_and.reduce([c == c[here] for other, c in columns.items() if other != axis])
        if len(at := np.flatnonzero(same)) > 1:
            chips = (None if i == here else candidates.accelerator(int(mine[i])) for i in at)
            found[axis] = dict(zip(column[at].tolist(), chips, strict=True))
    return found


def _near(best: Ranked, values: dict[float, Accelerator | None], price: Price) -> dict[float, Ranked]:
    """Values with chips that reach 99% of the best, searched outwards from the best's value."""
    here = next(value for value, chip in values.items() if chip is None)
    sides = (sorted(v for v in values if v > here), sorted((v for v in values if v < here), reverse=True))
    found, least = {here: best}, best.objective * (1 - PLATEAU)
    for side in sides:
        priced = ((v, price(chip, least)) for v in side if (chip := values[v]) is not None)
        found.update(takewhile(lambda each: each[1].objective >= least, priced))
    return found


def _swings(best: Accelerator, rivals: list[Accelerator], price: Price) -> Iterator[Swing]:
    def changed(name: str, change: float, chip: Accelerator) -> Accelerator:
        fields = {field: value * (1 + change) for field, value in ASSUMED[name](chip).items()}
        return replace(chip, **fields)  # type: ignore[arg-type]

    for name, change in ((name, change) for name, change in SWINGS if any(ASSUMED[name](best).values())):
        mine = price(best, 0.0, changed(name, change, best)).objective
        most = max([mine, *(price(each, mine, changed(name, change, each)).objective for each in rivals)])
        yield Swing(assumption=name, change=change, objective=mine, most=most, num_rivals=len(rivals))


def _same(one: Option, other: Option) -> bool:
    return (one.model, one.split, one.recompute) == (other.model, other.split, other.recompute)
