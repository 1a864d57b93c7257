"""The changes with which a plan that does not fit in memory would: of all plans that fit, those of the fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.plans.search import HeldPlan, make_pricer
from sartor.plans.space import plan_space, size_of, structures, take, with_switches
from sartor.run.fields import FIELDS
from sartor.step.mechanisms.mechanism import Rows
from sartor.units import Array

_RANKED = sorted((row for row in FIELDS.values() if row.fits_rank), key=lambda row: row.fits_rank)
NAMED = tuple(row.name for row in _RANKED)
"""Axes that may change, in the order to try them."""

FREE = (*NAMED, "dp", "sequence_parallel")

DOUBLINGS = 7
"""How often to double the devices of a typical run in search of a plan that fits."""
EQUAL = 0.02
"""Of plans whose steps differ by less, the one with the fewest changes wins (a choice)."""


def would_fit(run: HeldPlan, calibration: Calibration | None = None) -> tuple[Mapping[str, int | str], ...]:
    """For a plan that does not fit, the changes with which it would and its step is shortest, as one mapping.

    The devices stay as they are. If they are a default, twice, four times, ... as many are tried until something fits,
    with as many more sequences, and both numbers are part of the change. Empty if nothing fits.
    """
    for wider in _wider(run):
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
    values = {name: int(rows[name][index]) for name in NAMED if name != "zero_stage" or rows["dp"][index] > 1}
    return {name: FIELDS[name].shown(value) for name, value in values.items() if value != plan.axes[name]}
