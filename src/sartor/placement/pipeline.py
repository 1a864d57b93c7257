"""The time of a batch through a pipeline, and the best (stages, copies) for given bottlenecks.

    time = bottleneck * (ceil(N/d) + S - 1) + 4 (d - 1)/d * P_first / B

for S stages, d copies, N microbatches, P_first parameter bytes of the first stage and B bytes/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from sartor.placement.dynamic_programming import Bottlenecks, Counts
from sartor.placement.problem import RESYNC_FACTOR, PlacementProblem
from sartor.placement.tabulate import StageTable
from sartor.units import Array, Ints, ceil_div, distinct


def slots(num_microbatches: int, data_parallel: Any, num_stages: Any) -> Any:
    """Number of bottlenecks per batch: microbatches of one copy, and filling the pipeline."""
    return ceil_div(num_microbatches, data_parallel) + num_stages - 1


def resync_s_per_byte(data_parallel: Ints, bytes_per_s: float, factor: float = RESYNC_FACTOR) -> Any:
    """Seconds to reduce gradients, per parameter byte of the first stage."""
    return factor * (data_parallel - 1) / data_parallel / bytes_per_s


def useful_copies(num_microbatches: int, num_devices: int, groups_of: int = 1) -> Array:
    """Numbers of copies to try, multiples of ``groups_of``: the smallest for each ceil(N/d), at most about 2 sqrt(N).

    The smallest needs the fewest devices and the shortest resync, and costs the same otherwise.
    """
    if groups_of > 1:  # ceil(N / (g k)) = ceil(ceil(N / g) / k)
        groups = useful_copies(int(ceil_div(num_microbatches, groups_of)), num_devices // groups_of)
        return np.asarray(groups[groups * groups_of <= num_microbatches] * groups_of)
    most = min(num_devices, num_microbatches)
    root = isqrt(num_microbatches) + 1
    few = np.arange(1, min(root, most) + 1)
    per_copy = distinct(np.concatenate([ceil_div(num_microbatches, few), np.arange(1, root + 1)]))
    copies = distinct(ceil_div(num_microbatches, per_copy))
    return np.asarray(copies[copies <= most])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best pipeline of one width: ``counts`` of stages by kind, ``copies``, and the end of the first stage."""

    time_s: float
    counts: Counts
    copies: int
    first_end: int


def best_choice(problem: PlacementProblem, table: StageTable, found: Bottlenecks, below_s: float) -> Choice | None:
    """The fastest (counts, copies, first stage) below ``below_s``, or None.

    All (counts, copies) are first bounded with the shortest first stage; only those with a bound below the best result
    so far are tried with every first stage.
    """
    if not found.first:
        return None
    keys = list(found.first)
    first = np.array([found.first[key] for key in keys])
    num_stages = np.array([sum(key) for key in keys])[:, None]
    devices = np.array([found.devices(key) for key in keys])[:, None]
    experts = table.width.expert_parallel
    copies = useful_copies(problem.num_microbatches, problem.num_devices, experts)
    if not len(copies):
        return None
    duration = slots(problem.num_microbatches, copies, num_stages)
    rate, factor = problem.link_bytes_per_s, problem.resync_factor
    per_byte = resync_s_per_byte(copies, rate, factor) + problem.update_s_per_byte
    less_per_byte = resync_s_per_byte(copies, rate, factor) - resync_s_per_byte(copies // experts, rate, factor)
    params, expert_params = table.first_param_bytes, np.asarray(table.sums.expert_param_bytes[0])
    possible = np.isfinite(first)
    dense_params = params - expert_params
    least_params = np.where(possible, dense_params if experts > 1 else params, np.inf).min(axis=1)[:, None]
    reachable = possible.any(axis=1)[:, None] & (devices * copies <= problem.num_devices)
    with np.errstate(invalid="ignore"):  # 0 * inf where no first stage is possible
        bound = np.where(reachable, first.min(axis=1)[:, None] * duration + per_byte * least_params, np.inf)

    def exact(rows: Array, columns: Array) -> Array:
        agreed = per_byte[columns][:, None] * params - less_per_byte[columns][:, None] * expert_params
        return np.asarray(first[rows] * duration[rows, columns][:, None] + agreed)

    if not bound.min() < below_s:
        return None
    row, column = np.unravel_index(bound.argmin(), bound.shape)
    incumbent = exact(np.array([row]), np.array([column])).min()
    open_ = bound < min(incumbent, below_s)
    open_[row, column] = True
    rows, columns = np.nonzero(open_)
    times = exact(rows, columns)
    at, first_end = np.unravel_index(times.argmin(), times.shape)
    if not times[at, first_end] < below_s:
        return None
    return Choice(
        time_s=float(times[at, first_end]),
        counts=keys[rows[at]],
        copies=int(copies[columns[at]]),
        first_end=int(first_end),
    )


def time_bound(problem: PlacementProblem, devices: int, layer_s: Array) -> float:
    """A lower bound on the time: work split perfectly, no layer cut, no communication."""
    num_stages = np.arange(1, min(len(layer_s), problem.num_devices // devices) + 1)[:, None]
    if not len(num_stages):
        return np.inf
    copies = useful_copies(problem.num_microbatches, problem.num_devices)
    bottleneck = np.maximum(layer_s.sum() / num_stages, layer_s.max())
    times = bottleneck * slots(problem.num_microbatches, copies, num_stages)
    return float(np.where(num_stages * devices * copies <= problem.num_devices, times, np.inf).min())
