"""How far to trust the best chip of a space.

`cautions`: whether it can be built, and whether it is at the end of an axis. `nearby`: which values of each axis come
within 1% of it, and whether it stays ahead if an assumed rate is 30% off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from sartor.cost.chip.ownership import faults, too_hot
from sartor.designs.baselines import point_on
from sartor.designs.bounds import lower_models
from sartor.designs.candidates import Candidates, JointResult, Ranked, candidates_of, priced, space_excess
from sartor.designs.point import Option, ScheduleStore, evaluate_option, evaluate_point
from sartor.designs.question import EQUAL, DesignQuestion, Objective
from sartor.designs.space import AXES, AcceleratorSpace, column
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import ratios_to_default, template_value, with_key
from sartor.schedules.makespan import timing_fields

AS_PUBLISHED = (
    "; the published area formula counts only cores and buffers, so such chips are searched too "
    '(--space modern, or area_model = "die" in a space file, leaves them out)'
)
"""Why a chip that cannot be built may win."""
PLATEAU = 0.01
"""Share within which chips count as equal: less than the errors of the model of chips."""


def cautions(question: DesignQuestion, space: AcceleratorSpace, result: JointResult) -> tuple[str, ...]:
    """A sentence for each reason to doubt the best chip or to widen its space."""
    if result.best is None:
        return ()
    chip = result.best.evaluation.point.accelerator
    exempt = AS_PUBLISHED if question.budgets.plausible else ""
    sentences = [f"this chip cannot be built: {fault}{exempt}" for fault in faults(chip)]
    sentences += _defaults(question, space, result.best)
    ends = [*_at_ends(space, chip), *_at_plan_ends(question, result.best)]
    return tuple(filter(None, [*sentences, too_hot(chip), *ends, _plateau(result.best, result.ranked)]))


MOVES = 0.1
"""Smallest relative change of the throughput for which a default is named."""


def _defaults(question: DesignQuestion, space: AcceleratorSpace, best: Ranked) -> Iterator[str]:
    """Keys that the user's space leaves to the template, if a value that a chip of the catalogue has would move the
    best chip's throughput under its own plan by `MOVES`."""
    point, store = replace(best.evaluation.point, options=(), floor=()), ScheduleStore()
    outcomes = [outcome for outcome in best.evaluation.outcomes if outcome is not None]
    for key in space.unstated:
        ratios, default = ratios_to_default(key), template_value(point.accelerator, key)
        if isinstance(default, str) or not ratios or (key == "num_links" and "link_gb_per_s" in space.unstated):
            continue
        ratio, like = ratios[len(ratios) // 2]
        other = replace(point, accelerator=with_key(point.accelerator, key, default * ratio))
        reached = [(x, evaluate_option(question, other, x.option, store)[0]) for x in outcomes]
        gains = [there.sequences_per_s / x.sequences_per_s if there else 0.0 for x, there in reached]
        gain = max(gains, key=lambda gain: abs(gain - 1), default=1.0)
        if abs(gain - 1) >= MOVES:
            yield (
                f"{key}={default:g} is a default, which the space does not state: with {default * ratio:g} ({like} has "
                f"{ratio:.3g} times its default) this chip has {gain:.3g}x the throughput"
            )


def _plateau(best: Ranked, ranked: Sequence[Ranked]) -> str:
    """A note if other evaluated chips are within ``PLATEAU`` of the best."""
    threshold = best.objective * (1 - PLATEAU)
    near = {timing_fields(point.evaluation.point.accelerator) for point in ranked if point.objective >= threshold}
    others = len(near - {timing_fields(best.evaluation.point.accelerator)})
    if not others:
        return ""
    come = "another chip comes" if others == 1 else f"{others} other chips come"
    return f"the best is on a plateau: at least {come} within {PLATEAU:.0%} of it (--sensitivity says along which axes)"


def left_out(question: DesignQuestion, space: AcceleratorSpace) -> Iterator[str]:
    """How many chips of the space are left out because they cannot be built."""
    total = sum(int(np.sum(space_excess(question, space, chips) > 1)) for _, _, chips in space.chunks())
    if total:
        chips = f"{total:,} of {space.num_kept:,} chips"
        yield f"{chips} are left out because they cannot be built (--no-plausibility prices them too)"


def _at_ends(space: AcceleratorSpace, chip: object) -> Iterator[str]:
    for key in space.axes:
        field, unit = AXES[key]
        values = np.unique(np.concatenate([np.ravel(getattr(group, field)) for group in space.groups])) / unit
        value, low, high = float(getattr(chip, field)) / unit, float(values[0]), float(values[-1])
        if low == high:
            continue
        if value == high or (value == low and low > 1):
            end = "largest" if value == high else "smallest"
            yield f"{key}={value:g} is the {end} of its axis ({low:g} to {high:g}): the best may lie beyond it"


def _at_plan_ends(question: DesignQuestion, best: Ranked) -> Iterator[str]:
    """The largest values tried of a training plan's sizes that a model's best plan takes."""
    trained = zip(question.models, best.evaluation.outcomes, strict=True)
    for model, outcome in ((m, o) for m, o in trained if o is not None and not m.served):
        split, plan = outcome.option.split, outcome.plan
        for name, value, tried, limit in (
            ("microbatch-size", split.microbatch_size, question.whole_microbatches, question.global_batch_size),
            ("tp", split.width, model.widths, question.num_devices),
            ("cp", split.context_parallel, question.context_widths, question.num_devices),
            ("virtual-stages", plan.virtual_stages, question.virtual_stages, len(plan.stages) > 1 and np.inf),
        ):
            if 1 < value == max(tried) < limit:
                whose = f"{model.name}: " if len(question.models) > 1 else ""
                yield f"{whose}{value} is the largest --{name} that was tried: a larger one may be better"


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
class _Swing:
    """The best chip when an assumption changes by ``change``: its objective then, and the best of all priced."""

    assumption: str
    change: float
    objective: float
    best_objective: float
    num_rivals: int

    @property
    def survives(self) -> bool:
        """Whether the best chip still beats its rivals."""
        return self.objective >= self.best_objective * (1 - EQUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearby:
    """``near_best``: by axis, values around the best chip's that reach 99% of its objective, other axes unchanged."""

    near_best: dict[str, tuple[float, float]]
    swings: tuple[_Swing, ...]


class _Price(Protocol):
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
    seen = [
        ranked_point
        for ranked_point in result.ranked
        if not space.hbm_bytes or ranked_point.evaluation.point.hbm_bytes == hbm
    ]

    plain = question.objective is Objective.THROUGHPUT and len(question.models) == 1

    def price(chip: Accelerator, floor: float, rates: Accelerator | None = None) -> Ranked:
        memory = hbm if space.hbm_bytes else float(chip.hbm_bytes)
        point = point_on(question, models, rates or chip, memory)

        def under(**changes: Any) -> Ranked:
            evaluation = evaluate_point(question, replace(point, **changes), store)
            return priced(question, replace(evaluation, point=replace(evaluation.point, accelerator=chip)))

        same_options = tuple(
            o for o in point.options if any(x and _same(x.option, o) for x in best.evaluation.outcomes)
        )
        first = under(options=same_options)
        searched = under(floor=(max(floor, first.objective),) if plain else ())
        return max(searched, first, key=lambda ranked_point: ranked_point.objective)

    candidates, _ = candidates_of(question, space)
    near = {}
    for axis, values in _along(space, candidates, best).items():
        reached = _near(best, values, price)
        seen += reached.values()
        near[axis] = min(reached), max(reached)
    ordered = (
        ranked_point.evaluation.point.accelerator
        for ranked_point in sorted(seen, key=lambda ranked_point: -ranked_point.objective)
    )
    mine = best.evaluation.point.accelerator
    rivals = {timing_fields(chip): chip for chip in ordered if timing_fields(chip) != timing_fields(mine)}
    return Nearby(near_best=near, swings=tuple(_swings(mine, list(rivals.values())[:RIVALS], price)))


def _along(space: AcceleratorSpace, candidates: Candidates, best: Ranked) -> dict[str, dict[float, Accelerator | None]]:
    """By axis with several values, the candidates that differ from the best only on it; None: the best itself."""
    index = best.evaluation.point.index
    mine = np.flatnonzero(candidates.group == candidates.group[index])
    group, chip = candidates.groups[candidates.group[index]], candidates.accelerator(index)
    differs = np.zeros(len(mine), dtype=np.int8)
    for field in (AXES[key][0] for key in space.axes):
        differs += column(getattr(group, field), group.shape, candidates.place[mine]) != getattr(chip, field)
    mine = mine[differs <= 1]
    columns = {
        key: column(getattr(group, AXES[key][0]), group.shape, candidates.place[mine]) / AXES[key][1]
        for key in space.axes
    }
    best_row = int(np.flatnonzero(mine == index)[0])
    neighbours = {}
    for axis, values in columns.items():
        same = np.logical_and.reduce([c == c[best_row] for name, c in columns.items() if name != axis])
        if len(rows := np.flatnonzero(same)) > 1:
            chips = (None if i == best_row else candidates.accelerator(int(mine[i])) for i in rows)
            neighbours[axis] = dict(zip(values[rows].tolist(), chips, strict=True))
    return neighbours


def _near(best: Ranked, values: dict[float, Accelerator | None], price: _Price) -> dict[float, Ranked]:
    """Values with chips that reach 99% of the best, searched outwards from the best's value."""
    best_value = next(value for value, chip in values.items() if chip is None)
    sides = (sorted(v for v in values if v > best_value), sorted((v for v in values if v < best_value), reverse=True))
    reached, threshold = {best_value: best}, best.objective * (1 - PLATEAU)
    for side in sides:
        priced = ((v, price(chip, threshold)) for v in side if (chip := values[v]) is not None)
        reached.update(takewhile(lambda pair: pair[1].objective >= threshold, priced))
    return reached


def _swings(best: Accelerator, rivals: list[Accelerator], price: _Price) -> Iterator[_Swing]:
    def changed(name: str, change: float, chip: Accelerator) -> Accelerator:
        fields = {field: value * (1 + change) for field, value in ASSUMED[name](chip).items()}
        return replace(chip, **fields)  # type: ignore[arg-type]

    for name, change in ((name, change) for name, change in SWINGS if any(ASSUMED[name](best).values())):
        mine = price(best, 0.0, changed(name, change, best)).objective
        best_objective = max([mine, *(price(rival, mine, changed(name, change, rival)).objective for rival in rivals)])
        yield _Swing(
            assumption=name, change=change, objective=mine, best_objective=best_objective, num_rivals=len(rivals)
        )


def _same(first: Option, second: Option) -> bool:
    return (first.model, first.split, first.recompute) == (second.model, second.split, second.recompute)
