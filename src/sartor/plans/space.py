"""Every way to spread a job over a number of devices: the axes of the search, and which candidates may run.

A plan of the search is a *structure* (tp, pp, dp, cp, ep, virtual stages, microbatch) with *switches* (sequence
parallelism, recomputation, ZeRO stage, schedule). Axes are independent of each other: illegal combinations are removed
by the ``limits`` of the step's mechanisms, with a reason for each.

A condition is checked as soon as its axis is known, so an impossible degree is removed before the rest of the grid is
expanded below it; all grid points it removes are counted. A point that fails several conditions is counted under the
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.model.plan import AXES, DIMS, SEARCHED, STRUCTURE, SWITCHES
from sartor.model.shape import layer_order
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.step.mechanisms import MECHANISMS
from sartor.step.mechanisms.mechanism import Condition, Rows
from sartor.units import Array, BoolArray, Ints, ceil_div, divisors

CHUNK = 16384
"""_Structures priced at once: with their switches a few hundred thousand plans, enough that shared parts (blocks,
traffic) are priced rarely, and few enough that their arrays stay below a few hundred megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpace:
    """The axes of one search before any rejection. ``dims`` holds every tp x pp x cp x dp of the devices."""

    num_devices: int
    dims: Rows
    axes: Mapping[str, Array]
    """Values of every other axis."""
    fixed: Mapping[str, Ints]

    @property
    def size(self) -> int:
        """Points of the whole grid."""
        return len(self.dims["tp"]) * int(np.prod([len(values) for values in self.axes.values()], dtype=object))


def plan_space(job: TrainingJob, num_devices: int, fixed: Mapping[str, Ints]) -> PlanSpace:
    """All axes for a job on ``num_devices``, those in ``fixed`` with a single value, or a few."""
    dims = factorizations(num_devices)
    facts = (job.shape, job.trainer, job.global_batch_size, dims)
    values = ((name, AXES[name].values) for name in SEARCHED if name not in DIMS)
    axes = {name: np.array(tried(*facts) if callable(tried) else tried) for name, tried in values}
    keep = np.ones(len(dims["tp"]), dtype=bool)
    for name, value in fixed.items():
        if name in dims:
            keep &= np.isin(dims[name], value)
        elif name in axes:
            axes[name] = np.atleast_1d(value)
    return PlanSpace(num_devices=num_devices, dims=take(dims, keep), axes=axes, fixed=dict(fixed))


def factorizations(num_devices: int) -> Rows:
    """Every ordered (tp, pp, cp, dp) whose product is ``num_devices``: C(k + 3, 3) of them for 2^k devices."""
    columns = [np.array([num_devices])]
    for _ in range(3):  # split the last factor again
        last = columns[-1]
        pairs = [(i, d) for i, n in enumerate(last.tolist()) for d in divisors(n)]
        index = np.array([i for i, _ in pairs])
        factor = np.array([d for _, d in pairs])
        columns = [*(column[index] for column in columns[:-1]), factor, last[index] // factor]
    return dict(zip(DIMS, columns, strict=True))


def _cross(rows: Rows, axis: str, values: Array) -> Rows:
    """Every row with every value of one more axis; copies of a row are adjacent."""
    count = len(next(iter(rows.values())))
    if len(values) == 1:
        return {**rows, axis: np.full(count, values[0])}
    return {**{n: np.repeat(v, len(values)) for n, v in rows.items()}, axis: np.tile(values, count)}


def take(rows: Rows, index: Array | slice) -> Rows:
    """Some of the rows, by mask, slice or positions."""
    return {name: values[index] for name, values in rows.items()}


def size_of(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def chunks(rows: Rows) -> Iterator[Rows]:
    """Structures in pieces; those with equal work on a device (tp, cp, ep, microbatch) are adjacent, so that few pieces
    have to price it."""
    order = np.lexsort([rows[name] for name in ("virtual_stages", "pp", "microbatch_size", "ep", "cp", "tp")])
    for start in range(0, len(order), CHUNK):
        yield take(rows, order[start : start + CHUNK])


def stage_layers(job: TrainingJob, rows: Rows) -> Array:
    """Layers of the fullest device, all its chunks together."""
    chunks = rows["virtual_stages"]
    return np.asarray(ceil_div(len(layer_order(job.shape)), rows["pp"] * chunks) * chunks)


def to_plan(job: TrainingJob, rows: Mapping[str, Any]) -> TrainingPlan:
    """Rows as one ``TrainingPlan`` of arrays."""
    columns = {name: rows[name] > 0 if AXES[name].kind is bool else rows[name] for name in SEARCHED}
    columns["num_microbatches"] = job.global_batch_size // (rows["dp"] * rows["microbatch_size"])
    return TrainingPlan().with_columns(**columns, recompute_layers=rows.get("recompute_layers", -1))


def plan_at(job: TrainingJob, rows: Rows, index: int) -> TrainingPlan:
    """One row as a scalar plan."""
    row = {name: int(values[index]) for name, values in rows.items()}
    words = {name: kinds(row[name]) for name in SEARCHED if (kinds := AXES[name].kinds)}
    return to_plan(job, {**row, **words})


def axes_of(plan: TrainingPlan) -> dict[str, int]:
    """Every axis of a plan as the search holds it."""
    columns = plan.columns
    axes = {name: int(columns[name]) for name in SEARCHED}
    axes["sequence_parallel"] *= axes["tp"] > 1
    layers = int(plan.recompute_layers)
    return axes | ({"recompute_layers": layers} if layers >= 0 else {})


def rows_of(plan: TrainingPlan) -> Rows:
    """A single plan as one row."""
    return {name: np.array([value]) for name, value in axes_of(plan).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structures:
    """Possible rows of all axes except the switches, and how many grid points each reason rejected."""

    rows: Rows
    rejected: Mapping[str, int]


def structures(job: TrainingJob, space: PlanSpace) -> _Structures:
    """Expand the axes one after the other, removing impossible rows as soon as their axes are known. Raises
    `InputError` for a job that no plan can run."""
    check_job(job)
    rejected: dict[str, int] = {}
    rows, below = space.dims, space.size // max(1, size_of(space.dims))
    rows = _strike(rows, _conditions(job, DEGREES), rejected, weight=below)
    for axis in STRUCTURE[len(DEGREES) :]:
        below //= len(space.axes[axis])
        rows = _strike(_cross(rows, axis, space.axes[axis]), _conditions(job, [axis]), rejected, weight=below)
    return _Structures(rows=rows, rejected=rejected)


def with_switches(job: TrainingJob, space: PlanSpace, rows: Rows, rejected: dict[str, int]) -> Rows:
    """Every structure with every legal setting of the switches; rejected points are added to ``rejected``."""
    below = math.prod(len(space.axes[axis]) for axis in SWITCHES)
    for axis in SWITCHES:
        below //= len(space.axes[axis])
        rows = _strike(_cross(rows, axis, space.axes[axis]), _conditions(job, [axis]), rejected, weight=below)
    layers = space.fixed.get("recompute_layers", -1)
    return {**rows, "recompute_layers": np.where(rows["recompute"] == Recompute.FULL, layers, -1)}


DEGREES = ("pp", "dp", "cp", "tp")
"""The order in which degrees are checked."""


def _conditions(job: TrainingJob, axes: Iterable[str]) -> Iterator[Condition]:
    """What the mechanisms ask of these axes."""
    for axis in axes:
        for mechanism in MECHANISMS:
            if axis in mechanism.limits:
                yield from mechanism.limits[axis](job)


def _strike(rows: Rows, conditions: Iterable[Condition], rejected: dict[str, int], *, weight: int) -> Rows:
    for condition in conditions:
        if not size_of(rows):
            break
        ok = np.broadcast_to(condition.ok(rows), (size_of(rows),))
        struck = int(len(ok) - ok.sum())
        if struck:
            rejected[condition.reason] = rejected.get(condition.reason, 0) + struck * weight
            rows = take(rows, ok)
    return rows


def check_job(job: TrainingJob) -> None:
    """Raise `InputError` for what the trainer cannot do under any plan."""
    for error in job_limits(job):
        raise error


def job_limits(job: TrainingJob) -> Iterator[InputError]:
    """What the trainer cannot do of the job under any plan."""
    for mechanism in MECHANISMS:
        if mechanism.job_limits:
            yield from mechanism.job_limits(job)


def broken(job: TrainingJob, plan: TrainingPlan) -> tuple[str, ...]:
    """What keeps a single plan from running, as reasons; empty if it runs."""
    return tuple(reason for reason, stopped in stops(job, rows_of(plan)).items() if stopped.any())


def running(stated: TrainingJob, job: TrainingJob, plan: TrainingPlan) -> Callable[[TrainingJob, TrainingPlan], bool]:
    """Whether other jobs and plans run, apart from what keeps ``plan`` out of the files of ``job`` but not from running
    as ``stated``."""
    of_files = set(broken(job, plan)) - set(broken(stated, plan))
    return lambda changed_job, changed_plan: not set(broken(changed_job, changed_plan)) - of_files


def stops(job: TrainingJob, rows: Rows) -> dict[str, BoolArray]:
    """What keeps plans from running: for every reason the rows that it stops."""
    size = (size_of(rows),)
    stopped = {
        f"{error.field}={error.value}: {error.must}": np.full(size, fill_value=True) for error in job_limits(job)
    }
    for limit in _conditions(job, (*DEGREES, *SEARCHED[len(DEGREES) :])):
        if not limit.of_search:
            stopped[limit.reason] = stopped.get(limit.reason, np.zeros(size, bool)) | ~np.asarray(limit.ok(rows), bool)
    return stopped
