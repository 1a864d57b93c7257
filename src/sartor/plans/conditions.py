"""Candidates that satisfy every condition of the mechanisms (``limits``), and how many each reason rejects.

A condition is checked as soon as its axis is known, so an impossible degree is removed before the rest of the grid is
expanded below it; all grid points it removes are counted. A point that fails several conditions is counted under the
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sartor.errors import InputError
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.plans.space import AXES, STRUCTURE, SWITCHES, PlanSpace, axes_of, cross, size_of, take
from sartor.step.mechanisms import MECHANISMS
from sartor.step.mechanisms.mechanism import Condition, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Structures:
    """Possible rows of all axes except the switches, and how many grid points each reason rejected."""

    rows: Rows
    rejected: Mapping[str, int]


def structures(job: TrainingJob, space: PlanSpace) -> Structures:
    """Expand the axes one after the other, removing impossible rows as soon as their axes are known. Raises
    `InputError` for a job that no plan can run."""
    check_job(job)
    rejected: dict[str, int] = {}
    rows, below = space.dims, space.size // max(1, size_of(space.dims))
    rows = _strike(rows, _conditions(job, DEGREES), rejected, weight=below)
    for axis in STRUCTURE[len(DEGREES) :]:
        below //= len(space.axes[axis])
        rows = _strike(cross(rows, axis, space.axes[axis]), _conditions(job, [axis]), rejected, weight=below)
    return Structures(rows=rows, rejected=rejected)


def with_switches(job: TrainingJob, space: PlanSpace, rows: Rows, rejected: dict[str, int]) -> Rows:
    """Every structure with every legal setting of the switches; rejected points are added to ``rejected``."""
    below = math.prod(len(space.axes[axis]) for axis in SWITCHES)
    for axis in SWITCHES:
        below //= len(space.axes[axis])
        rows = _strike(cross(rows, axis, space.axes[axis]), _conditions(job, [axis]), rejected, weight=below)
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
    rows = {name: np.array([value]) for name, value in axes_of(plan).items()}
    conditions = _conditions(job, (*DEGREES, *AXES[len(DEGREES) :]))
    of_plan = (limit.reason for limit in conditions if not limit.of_search and not np.all(limit.ok(rows)))
    return (*(f"{error.field}={error.value}: {error.must}" for error in job_limits(job)), *of_plan)
