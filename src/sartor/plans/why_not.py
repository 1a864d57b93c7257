"""Why not another plan: the nearest possible one beside the best; and of all plans that fit, those of the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.model.plan import AXES, STRUCTURE
from sartor.plans.fixed import named_values
from sartor.plans.result import PlanSearch, PricedPlan
from sartor.plans.search import HeldPlan, make_pricer, search_plans
from sartor.plans.space import plan_space, size_of, structures, take, with_switches
from sartor.step.mechanisms.mechanism import Rows
from sartor.units import Array


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
    words = ",".join(f"{name}={AXES[name].word(value)}" for name, value in values.items())
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


_RANKED = sorted((row for row in AXES.values() if row.fits_rank), key=lambda row: row.fits_rank)
NAMED = tuple(row.name for row in _RANKED)
"""Axes that may change, in the order to try them."""

FREE = (*NAMED, "dp", "sequence_parallel")

DOUBLINGS = 7
"""How often to double the devices of a typical run in search of a plan that fits."""
EQUAL = 0.02
"""Of plans whose steps differ by less, the one with the fewest changes wins (a choice)."""


def would_fit(run: HeldPlan, calibration: Calibration | None = None) -> tuple[Mapping[str, int | str], ...]:
    """For a plan that does not fit, the changes with which it would and its step is shortest, as one mapping.

    Where no change of `NAMED` is enough, the optimizer's states also go to the host's memory. The devices stay as they
    are. If they are a default, twice, four times, ... as many are tried until something fits, with as many more
    sequences, and both numbers are part of the change. Empty if nothing fits.
    """
    for wider in (offloads for plan in _wider(run) for offloads in _offloading(plan)):
        rows, step_s = _priced(wider, calibration)
        if size_of(rows):
            size = {"num_devices": wider.num_devices, "global_batch_size": wider.job.global_batch_size}
            return ((size if run.assumed else {}) | _change(run, rows, _cheapest(run, rows, step_s)),)
    return ()


def _wider(plan: HeldPlan) -> Iterator[HeldPlan]:
    yield plan
    for times in (2**k for k in range(1, DOUBLINGS + 1) if plan.assumed):
        devices, job = plan.num_devices * times, plan.job
        job = replace(job, global_batch_size=job.global_batch_size * times)
        yield replace(plan, job=job, num_devices=devices, cluster=plan.cluster.reached(devices))


def _offloading(plan: HeldPlan) -> Iterator[HeldPlan]:
    """The plan as it is, then with the optimizer's states in the host's memory."""
    yield plan
    if not plan.axes["optimizer_offload"]:
        yield replace(plan, axes={**plan.axes, "optimizer_offload": 1})


def _priced(plan: HeldPlan, calibration: Calibration | None) -> tuple[Rows, Array]:
    """All plans of the job on the same devices that change axes of `NAMED` only and fit, with the seconds of a step."""
    fixed = {name: value for name, value in plan.axes.items() if name not in FREE}
    space = plan_space(plan.job, plan.num_devices, fixed)
    rows = structures(plan.job, space).rows
    rows = take(rows, _wanted_structures(plan, rows))
    rows = with_switches(plan.job, space, rows, {})
    rows = take(rows, _wanted_switches(plan, rows))
    pricer = make_pricer(plan.job, plan.cluster, calibration, headroom=plan.headroom)
    if size_of(rows):
        rows = take(rows, pricer.memory(rows)[0] <= pricer.limit_bytes)
    return rows, pricer.seconds(rows)[0] if size_of(rows) else np.zeros(0)


def _wanted_structures(plan: HeldPlan, rows: Rows) -> Array:
    axes = plan.axes
    allowed = np.isin(rows["microbatch_size"], (1, axes["microbatch_size"]))
    for name in ("tp", "pp", "ep"):
        allowed &= rows[name] >= axes[name]
    return np.asarray(allowed & (rows["tp"] <= max(axes["tp"], plan.cluster.devices_per_node)))


def _wanted_switches(plan: HeldPlan, rows: Rows) -> Array:
    axes = plan.axes
    sequence = (rows["tp"] > 1) & (plan.job.seq_len % (rows["tp"] * rows["cp"]) == 0)
    sequence &= bool(axes["sequence_parallel"]) or axes["tp"] == 1
    sharded = (rows["zero_stage"] >= axes["zero_stage"]) | (rows["dp"] * rows["cp"] == 1)
    return np.asarray(sharded & (rows["sequence_parallel"] == sequence) & (rows["recompute"] >= axes["recompute"]))


def _cheapest(plan: HeldPlan, rows: Rows, step_s: Array) -> int:
    """Of the rows within `EQUAL` of the fastest, the one with the fewest and first changes of `NAMED`."""
    changed = np.stack([rows[name] != plan.axes[name] for name in NAMED])
    order = np.lexsort([step_s, 2 ** np.arange(len(NAMED)) @ changed, changed.sum(axis=0)])
    return int(order[np.argmax(step_s[order] <= (1 + EQUAL) * step_s.min())])


def _change(plan: HeldPlan, rows: Rows, index: int) -> dict[str, int | str]:
    names = (*NAMED, "optimizer_offload")
    values = {name: int(rows[name][index]) for name in names if name != "zero_stage" or rows["dp"][index] > 1}
    return {name: AXES[name].shown(value) for name, value in values.items() if value != plan.axes[name]}
