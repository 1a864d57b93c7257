"""The fastest placement under the published cost model: one recurrence per width serves all numbers of copies.

    time = bottleneck * (ceil(N/d) + S - 1) + 4 (d - 1)/d * P_first / B

for S stages, d copies, N microbatches, P_first parameter bytes of the first stage and B bytes/s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import inf, isclose, isqrt
from typing import Any

import numpy as np

from sartor.placement.check import price
from sartor.placement.dynamic_programming import Bottlenecks, Counts, Kind, least_bottlenecks, trace
from sartor.placement.problem import (
    RESYNC_FACTOR,
    PlacedLayer,
    PlacementProblem,
    Plan,
    Width,
    copies_together,
    expert_replicas,
)
from sartor.placement.tabulate import StageTable, States, find_states, max_positions, stage_ranks, tabulate
from sartor.units import Array, Ints, ceil_div, distinct


def solve(problem: PlacementProblem) -> Plan | None:
    """The fastest plan, priced by the checker, or None. Widths are tried in order of their bounds."""
    bounds = [(_width_bound(problem, width), index) for index, width in enumerate(problem.widths)]
    if all(bound == inf for bound, _ in bounds):
        return None
    states = find_states(problem)
    best: tuple[float, Width | None, list[tuple[int, ...]], int] = (inf, None, [], 0)
    for bound, index in sorted(bounds):
        width = problem.widths[index]
        if bound < best[0]:
            of_width = _solve_sharded if problem.zero_stage else _solve_width
            solved = of_width(problem, width, states, best[0])
            if solved:
                choice, cuts = solved
                best = (choice.time_s, width, _stages_between(states, cuts), choice.copies)
    time_s, chosen, stages, copies = best
    if chosen is None:
        return None
    priced = price(problem, chosen, stages, copies)
    assert not priced.faults, f"the checker refuses the plan: {priced.faults}"
    assert isclose(priced.time_per_batch_s, time_s, rel_tol=1e-9), (priced.time_per_batch_s, time_s)
    return priced.plan


def _solve_width(problem: PlacementProblem, width: Width, states: States, below_s: float) -> Solved | None:
    """The best pipeline of a width if it beats ``below_s``: one recurrence serves every number of copies."""
    table = tabulate(problem, width, states)
    bottlenecks = _bottlenecks(problem, table, plain_kinds(problem, table))
    choice = _best_choice(problem, table, bottlenecks, below_s)
    return (choice, trace(bottlenecks, choice.counts, choice.first_end)[0]) if choice else None


def _solve_sharded(problem: PlacementProblem, width: Width, states: States, below_s: float) -> Solved | None:
    """`_solve_width` with ZeRO 1: memory depends on the number of copies. Each is bounded by a recurrence in which the
    stage at position s from the end shares its states with as many copies as s such stages leave room for; then solved
    by its own recurrence, in the order of the bounds."""
    copies = _copies_to_try(problem, width)
    if not len(copies):
        return None
    table = tabulate(problem, width, states)
    loose = _bottlenecks(problem, table, _loose_kinds(problem, table, int(copies[-1])))
    if not loose.first:
        return None
    bounds = _choice_bounds(problem, loose, copies, _once_s(problem, table, copies)).min(axis=0)
    best: Solved | None = None
    for bound, d in sorted(zip(bounds.tolist(), copies.tolist(), strict=True)):
        below = best[0].time_s if best else below_s
        if not bound < below:
            break
        sharded_table = replace(table, max_position=max_positions(problem, table.sums, width, d))
        bottlenecks = _bottlenecks(
            replace(problem, num_devices=problem.num_devices // d), sharded_table, plain_kinds(problem, sharded_table)
        )
        choice = _best_choice(problem, sharded_table, bottlenecks, below, np.array([d]))
        best = (choice, trace(bottlenecks, choice.counts, choice.first_end)[0]) if choice else best
    return best


def _loose_kinds(problem: PlacementProblem, table: StageTable, most_copies: int) -> list[Kind]:
    """`plain_kinds` for the memory of the most copies that a pipeline with a stage at each position can have."""
    fewest = table.width.devices if all(x.is_split for x in table.width.layers) else 1

    def at(kind: Kind) -> Kind:
        def cost_at(counts: Counts) -> Array | None:
            copies = max(min(problem.num_devices // (fewest * sum(counts)), most_copies), 1)
            if copies not in tables:
                positions = max_positions(problem, table.sums, table.width, copies)
                tables[copies] = plain_kinds(problem, replace(table, max_position=positions))
            return tables[copies][number[id(kind)]].cost_at(counts)

        return replace(kind, cost_at=cost_at)

    tables: dict[int, list[Kind]] = {}
    kinds = plain_kinds(problem, table)
    number = {id(kind): k for k, kind in enumerate(kinds)}
    return [at(kind) for kind in kinds]


def _bottlenecks(problem: PlacementProblem, table: StageTable, kinds: list[Kind]) -> Bottlenecks:
    states = table.states
    return least_bottlenecks(kinds, states.sizes, _max_stages(problem, states), problem.num_devices)


def _stages_between(states: States, cuts: list[int]) -> list[tuple[int, ...]]:
    return [states.layers(i, j) for i, j in pairwise(cuts)]


def _max_stages(problem: PlacementProblem, states: States) -> int:
    return min(len(states.order), problem.num_devices)


def _width_bound(problem: PlacementProblem, width: Width) -> float:
    """A lower bound on the time at this width; infinite if some layer does not fit."""
    layer_bytes = np.array([least_bytes(problem, width, x) for x in width.layers])
    if (layer_bytes > problem.memory_bytes * (1 + 1e-9)).any():
        return inf
    layer_s = np.array([x.forward_s + x.backward_s for x in width.layers])
    fewest = width.devices if all(x.is_split for x in width.layers) else 1
    return _time_bound(problem, fewest, layer_s)


def least_bytes(problem: PlacementProblem, width: Width, layer: PlacedLayer) -> float:
    """Bytes of a layer on a device in as many copies as there are devices for."""
    most_ranks = max(min(problem.num_devices, problem.num_microbatches), 1) * width.context_parallel
    dense, experts = layer.param_bytes - layer.expert_param_bytes, layer.expert_param_bytes
    return float(problem.state_bytes(dense, experts, most_ranks, width.expert_parallel)) + layer.activation_bytes


def plain_kinds(problem: PlacementProblem, table: StageTable) -> list[Kind]:
    """Stages that take ``width.devices`` devices and stages that take one; a single kind if the two cost the same."""
    unsplit = sum(not x.is_split for x in table.width.layers)
    num_layers, devices = len(table.states.order), table.width.devices
    loads, positions, split = table.load_s, table.max_position, table.sums.is_split
    if devices == 1 or unsplit in (0, num_layers):
        count = 1 if unsplit == num_layers else devices
        return [Kind(devices=count, limit=num_layers, cost_at=_masked(loads, positions))]
    return [
        Kind(devices=devices, limit=num_layers, cost_at=_masked(np.where(split, loads, inf), positions)),
        Kind(devices=1, limit=unsplit, cost_at=_masked(np.where(split, inf, loads), positions)),
    ]


def _masked(costs: Array, positions: Array) -> Callable[[Counts], Array]:
    """Costs at a position: infinite beyond ``positions``. Positions between two limits share a table."""
    limits = distinct(positions)

    @lru_cache(maxsize=2)
    def beyond(level: int) -> Array:
        return np.where(positions >= limits[level], costs, inf)

    def at(counts: Counts) -> Array:
        level = int(np.searchsorted(limits, sum(counts)))
        return beyond(level) if level < len(limits) else np.full_like(costs, inf)

    return at


def slots(num_microbatches: int, data_parallel: Any, num_stages: Any) -> Any:
    """Number of bottlenecks per batch: microbatches of one copy, and filling the pipeline."""
    return ceil_div(num_microbatches, data_parallel) + num_stages - 1


def resync_s_per_byte(data_parallel: Ints, bytes_per_s: float, factor: float = RESYNC_FACTOR) -> Any:
    """Seconds to reduce gradients, per parameter byte of the first stage."""
    return factor * (data_parallel - 1) / data_parallel / bytes_per_s


def _useful_copies(num_microbatches: int, num_devices: int, groups_of: int = 1) -> Array:
    """Numbers of copies to try, multiples of ``groups_of``: the smallest for each ceil(N/d), at most about 2 sqrt(N).

    The smallest needs the fewest devices and the shortest resync, and costs the same otherwise.
    """
    if groups_of > 1:  # ceil(N / (g k)) = ceil(ceil(N / g) / k)
        groups = _useful_copies(int(ceil_div(num_microbatches, groups_of)), num_devices // groups_of)
        return np.asarray(groups[groups * groups_of <= num_microbatches] * groups_of)
    most_copies = min(num_devices, num_microbatches)
    root = isqrt(num_microbatches) + 1
    few = np.arange(1, min(root, most_copies) + 1)
    per_copy = distinct(np.concatenate([ceil_div(num_microbatches, few), np.arange(1, root + 1)]))
    copies = distinct(ceil_div(num_microbatches, per_copy))
    return np.asarray(copies[copies <= most_copies])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineChoice:
    """The best pipeline of one width: ``counts`` of stages by kind, ``copies``, and the end of the first stage."""

    time_s: float
    counts: Counts
    copies: int
    first_end: int


Solved = tuple[_PipelineChoice, list[int]]
"""The best pipeline of a width, and its cuts."""


def _once_s(problem: PlacementProblem, table: StageTable, copies: Ints) -> Array:
    """``[copies, j]``: seconds in which this many copies exchange and update the first stage that ends at state j."""
    experts, width = np.asarray(table.sums.expert_param_bytes[0]), table.width
    dense = table.first_param_bytes - experts
    ranks = stage_ranks(table.sums.is_split[0], width, np.asarray(copies)[:, None])
    of_experts = expert_replicas(ranks, width.expert_parallel)
    rate, factor, update = problem.link_bytes_per_s, problem.resync_factor, problem.update_s_per_byte
    agreed = resync_s_per_byte(ranks, rate, factor) * dense + resync_s_per_byte(of_experts, rate, factor) * experts
    shared = dense / ranks + experts / of_experts if problem.zero_stage else dense + experts
    return np.asarray(agreed + update * shared)


def _best_choice(
    problem: PlacementProblem,
    table: StageTable,
    bottlenecks: Bottlenecks,
    below_s: float,
    copies: Array | None = None,
) -> _PipelineChoice | None:
    """The fastest (counts, copies, first stage) below ``below_s``, or None; ``copies`` are the numbers to choose from.

    All (counts, copies) are first bounded with the shortest first stage; only those with a bound below the best result
    so far are tried with every first stage.
    """
    if not bottlenecks.first:
        return None
    copies = _copies_to_try(problem, table.width) if copies is None else copies
    if not len(copies):
        return None
    keys = list(bottlenecks.first)
    first = np.array([bottlenecks.first[key] for key in keys])
    duration = slots(problem.num_microbatches, copies, np.array([sum(key) for key in keys])[:, None])
    once = _once_s(problem, table, copies)
    bound = _choice_bounds(problem, bottlenecks, copies, once)

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
    copies_index, first_end = np.unravel_index(times.argmin(), times.shape)
    if not times[copies_index, first_end] < below_s:
        return None
    return _PipelineChoice(
        time_s=float(times[copies_index, first_end]),
        counts=keys[rows[copies_index]],
        copies=int(copies[columns[copies_index]]),
        first_end=int(first_end),
    )


def _choice_bounds(problem: PlacementProblem, bottlenecks: Bottlenecks, copies: Array, once: Array) -> Array:
    """Lower bounds on the time with each of ``found.first`` in each number of copies [counts, copies], ``once`` as of
    `_once_s`."""
    keys = list(bottlenecks.first)
    first = np.array([bottlenecks.first[key] for key in keys])
    num_stages = np.array([sum(key) for key in keys])[:, None]
    devices = np.array([bottlenecks.devices(key) for key in keys])[:, None]
    possible = np.isfinite(first)
    if (np.diff(once, axis=1) >= 0).all():  # of the possible first stages, the shortest
        least_once = once.T[possible.argmax(axis=1)]
    else:
        least_once = np.where(possible.any(axis=0), once, np.inf).min(axis=1)
    reachable = possible.any(axis=1)[:, None] & (devices * copies <= problem.num_devices)
    duration = slots(problem.num_microbatches, copies, num_stages)
    with np.errstate(invalid="ignore"):  # 0 * inf where no first stage is possible
        return np.where(reachable, first.min(axis=1)[:, None] * duration + least_once, np.inf)


def _copies_to_try(problem: PlacementProblem, width: Width) -> Array:
    """Numbers of copies of which one is best: `_useful_copies`, or all if the copies share optimizer states, since more
    of them then need less memory each."""
    groups_of = copies_together(width.expert_parallel, width.context_parallel)
    if not problem.zero_stage and not problem.even_copies:
        return _useful_copies(problem.num_microbatches, problem.num_devices, groups_of)
    copies = np.arange(groups_of, min(problem.num_devices, problem.num_microbatches) + 1, groups_of)
    return np.asarray(copies[problem.shares(copies)])


def _time_bound(problem: PlacementProblem, devices: int, layer_s: Array) -> float:
    """A lower bound on the time: work split perfectly, no layer cut, no communication."""
    num_stages = np.arange(1, min(len(layer_s), problem.num_devices // devices) + 1)[:, None]
    if not len(num_stages):
        return np.inf
    copies = _useful_copies(problem.num_microbatches, problem.num_devices)
    bottleneck = np.maximum(layer_s.sum() / num_stages, layer_s.max())
    times = bottleneck * slots(problem.num_microbatches, copies, num_stages)
    return float(np.where(num_stages * devices * copies <= problem.num_devices, times, np.inf).min())
