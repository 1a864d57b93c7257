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
from sartor.placement.problem import RESYNC_FACTOR, PlacementProblem, Width, copies_together, expert_replicas
from sartor.placement.tabulate import StageTable, stage_ranks
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


def once_s(problem: PlacementProblem, table: StageTable, copies: Ints) -> Array:
    """``[copies, j]``: seconds in which this many copies exchange and update the first stage that ends at state j."""
    experts, width = np.asarray(table.sums.expert_param_bytes[0]), table.width
    dense = table.first_param_bytes - experts
    ranks = stage_ranks(table.sums.is_split[0], width, np.asarray(copies)[:, None])
    of_experts = expert_replicas(ranks, width.expert_parallel)
    rate, factor, update = problem.link_bytes_per_s, problem.resync_factor, problem.update_s_per_byte
    agreed = resync_s_per_byte(ranks, rate, factor) * dense + resync_s_per_byte(of_experts, rate, factor) * experts
    shared = dense / ranks + experts / of_experts if problem.zero_stage else dense + experts
    return np.asarray(agreed + update * shared)


def best_choice(
    problem: PlacementProblem,
    table: StageTable,
    found: Bottlenecks,
    below_s: float,
    copies: Array | None = None,
) -> Choice | None:
    """The fastest (counts, copies, first stage) below ``below_s``, or None; ``copies`` are the numbers to choose from.

    All (counts, copies) are first bounded with the shortest first stage; only those with a bound below the best result
    so far are tried with every first stage.
    """
    if not found.first:
        return None
    copies = copies_to_try(problem, table.width) if copies is None else copies
    if not len(copies):
        return None
    keys = list(found.first)
    first = np.array([found.first[key] for key in keys])
    duration = slots(problem.num_microbatches, copies, np.array([sum(key) for key in keys])[:, None])
    once = once_s(problem, table, copies)
    bound = choice_bounds(problem, found, copies, once)

    def exact(rows: Array, columns: Array) -> Array:
        return np.asarray(first[rows] * duration[rows, columns][:, None] + once[columns])

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


def choice_bounds(problem: PlacementProblem, found: Bottlenecks, copies: Array, once: Array) -> Array:
    """Lower bounds on the time with each of ``found.first`` in each number of copies [counts, copies], ``once`` as of
    `once_s`."""
    keys = list(found.first)
    first = np.array([found.first[key] for key in keys])
    num_stages = np.array([sum(key) for key in keys])[:, None]
    devices = np.array([found.devices(key) for key in keys])[:, None]
    possible = np.isfinite(first)
    if (np.diff(once, axis=1) >= 0).all():  # of the possible first stages, the shortest
        least = once.T[possible.argmax(axis=1)]
    else:
        least = np.where(possible.any(axis=0), once, np.inf).min(axis=1)
    reachable = possible.any(axis=1)[:, None] & (devices * copies <= problem.num_devices)
    duration = slots(problem.num_microbatches, copies, num_stages)
    with np.errstate(invalid="ignore"):  # 0 * inf where no first stage is possible
        return np.where(reachable, first.min(axis=1)[:, None] * duration + least, np.inf)


def copies_to_try(problem: PlacementProblem, width: Width) -> Array:
    """Numbers of copies of which one is best: `useful_copies`, or all if the copies share optimizer states, since more
    of them then need less memory each."""
    groups_of = copies_together(width.expert_parallel, width.context_parallel)
    if not problem.zero_stage and not problem.even_copies:
        return useful_copies(problem.num_microbatches, problem.num_devices, groups_of)
    copies = np.arange(groups_of, min(problem.num_devices, problem.num_microbatches) + 1, groups_of)
    return np.asarray(copies[problem.shares(copies)])


def time_bound(problem: PlacementProblem, devices: int, layer_s: Array) -> float:
    """A lower bound on the time: work split perfectly, no layer cut, no communication."""
    num_stages = np.arange(1, min(len(layer_s), problem.num_devices // devices) + 1)[:, None]
    if not len(num_stages):
        return np.inf
    copies = useful_copies(problem.num_microbatches, problem.num_devices)
    bottleneck = np.maximum(layer_s.sum() / num_stages, layer_s.max())
    times = bottleneck * slots(problem.num_microbatches, copies, num_stages)
    return float(np.where(num_stages * devices * copies <= problem.num_devices, times, np.inf).min())
