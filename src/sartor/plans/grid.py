"""Plans at every point of a grid: points whose plan is stated are priced as one array, the others are searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.plan import AXES
from sartor.model.training import TrainingJob
from sartor.plans.evaluate import HOPE, Evaluated, Pricer, weighed
from sartor.plans.result import PricedPlan
from sartor.plans.search import best_or_leanest, make_pricer
from sartor.plans.space import axes_of, plan_space, size_of, structures, take, to_plan, with_switches
from sartor.plans.stages import WORTH, place_rows
from sartor.step.mechanisms.mechanism import Rows
from sartor.units import Array, BoolArray, FloatArray

FIGURES = ("step_s", "log_sigma", "tokens_per_s_per_device", "mfu")
"""What a grid has of a `StepEstimate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GridPlans:
    """The fastest plan that fits (else the leanest) at every point of a grid [points], as `fastest_plan` finds it."""

    figures: Mapping[str, FloatArray]
    """`FIGURES` and ``device_bytes``, nan where no plan has the point's values."""
    rows: Rows
    """Axes of the plans; -1 where there is none."""
    splits: list[tuple[int, ...] | None]
    """Layers of the chunks of every kind of pipeline; the first is even."""
    split: Array
    """Index of each plan's pipeline."""
    limit_bytes: float
    """Memory that a plan may take of each device."""
    headroom: float
    """Share of it that stays free."""


def grid_plans(
    job: TrainingJob,
    cluster: Cluster,
    num_devices: int,
    values: Mapping[str, Array],
    *,
    headroom: float | None = None,
    calibration: Calibration | None = None,
) -> _GridPlans:
    """Plans for the product of the ``values`` of some axes, the last axis fastest; axes without values are searched."""
    pricer = make_pricer(job, cluster.reached(num_devices), calibration, headroom=headroom)
    shape = tuple(len(numbers) for numbers in values.values())
    points = int(np.prod(shape))
    figures = {name: np.full(points, np.nan) for name in (*FIGURES, "device_bytes")}
    grid = _GridPlans(
        figures=figures,
        rows={name: np.full(points, -1) for name in AXES},
        splits=[None],
        split=np.zeros(points, dtype=np.int64),
        limit_bytes=pricer.limit_bytes,
        headroom=pricer.headroom,
    )
    space = plan_space(job, num_devices, values)
    rows = with_switches(job, space, structures(job, space).rows, {})
    point = np.zeros(size_of(rows), dtype=np.int64)  # without values all plans are those of one point
    if values:
        point = np.ravel_multi_index(tuple(_positions(rows[name], numbers) for name, numbers in values.items()), shape)
    alone = np.bincount(point, minlength=points)[point] == 1
    alone &= bool({"recompute", "recompute_layers"} & values.keys()) or not job.trainer.recomputes_some_layers
    if alone.any():
        _price_rows(grid, pricer, take(rows, alone), point[alone])
    for index in np.unique(point[~alone]).tolist():
        position = np.unravel_index(index, shape)
        axes = {name: int(numbers[i]) for (name, numbers), i in zip(values.items(), position, strict=True)}
        plan, _ = best_or_leanest(pricer, plan_space(job, num_devices, axes))
        if plan is not None:
            _enter(grid, index, plan)
    return grid


def _positions(column: Array, numbers: Array) -> Array:
    """The index of each entry of a column among distinct ``numbers``."""
    order = np.argsort(numbers)
    return np.asarray(order[np.searchsorted(numbers[order], column)])


def _price_rows(grid: _GridPlans, pricer: Pricer, rows: Rows, point: Array) -> None:
    """Price one plan for each of some points, with its layers unevenly placed on stages where that is faster."""
    plans = weighed(pricer, rows)
    steps = pricer.step(to_plan(pricer.job, rows))
    for name in FIGURES:
        grid.figures[name][point] = getattr(steps, name)
    grid.figures["device_bytes"][point] = plans.device_bytes
    for name, column in grid.rows.items():
        column[point] = rows[name]
    step_s = np.broadcast_to(steps.step_s, (size_of(rows),))
    even_s = np.where(plans.device_bytes <= pricer.limit_bytes, step_s, np.inf)
    open_ = _open(pricer, plans, step_s - steps.imbalance_s, even_s)
    for index, candidates in place_rows(pricer, plans, np.flatnonzero(open_)):
        best_s = even_s[index] * (1 - WORTH)
        for uneven in candidates:
            if uneven.step_s < best_s:
                best_s = uneven.step_s
                _enter(grid, int(point[index]), uneven)


def _open(pricer: Pricer, plans: Evaluated, bound_s: Array, even_s: Array) -> BoolArray:
    """Rows that uneven stages might make faster, or make fit."""
    near = (plans.rows["pp"] > 1) & (plans.device_bytes <= HOPE * pricer.limit_bytes)
    return np.asarray(near & (bound_s < even_s * (1 - WORTH)) & (not pricer.job.trainer.one_program))


def _enter(grid: _GridPlans, index: int, plan: PricedPlan) -> None:
    for name in FIGURES:
        grid.figures[name][index] = getattr(plan.step, name)
    grid.figures["device_bytes"][index] = plan.peak_bytes
    for name, value in axes_of(plan.plan).items():
        grid.rows[name][index] = value
    if plan.plan.stage_layers not in grid.splits:
        grid.splits.append(plan.plan.stage_layers)
    grid.split[index] = grid.splits.index(plan.plan.stage_layers)
