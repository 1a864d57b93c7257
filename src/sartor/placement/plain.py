"""The fastest placement under the published cost model: one recurrence per width serves all numbers of copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import inf, isclose

import numpy as np

from sartor.placement.check import price
from sartor.placement.dynamic_programming import Counts, Kind, least_bottlenecks, trace
from sartor.placement.pipeline import best_choice, time_bound
from sartor.placement.plan import Plan
from sartor.placement.problem import PlacementProblem, Width
from sartor.placement.tabulate import StageTable, States, find_states, tabulate
from sartor.units import Array, distinct


def solve(problem: PlacementProblem) -> Plan | None:
    """The fastest plan, priced by the checker, or None. Widths are tried in order of their bounds."""
    bounds = [(width_bound(problem, width), index) for index, width in enumerate(problem.widths)]
    if all(bound == inf for bound, _ in bounds):
        return None
    states = find_states(problem)
    best: tuple[float, Width | None, list[tuple[int, ...]], int] = (inf, None, [], 0)
    for bound, index in sorted(bounds):
        width = problem.widths[index]
        if bound < best[0]:
            table = tabulate(problem, width, states)
            found = least_bottlenecks(
                plain_kinds(problem, table), states.sizes, max_stages(problem, states), problem.num_devices
            )
            choice = best_choice(problem, table, found, best[0])
            if choice:
                cuts, _ = trace(found, choice.counts, choice.first_end)
                best = (choice.time_s, width, stages_between(states, cuts), choice.copies)
    time_s, chosen, stages, copies = best
    if chosen is None:
        return None
    priced = price(problem, chosen, stages, copies)
    assert not priced.faults, f"the checker refuses the plan: {priced.faults}"
    assert isclose(priced.time_per_batch_s, time_s, rel_tol=1e-9), (priced.time_per_batch_s, time_s)
    return priced.plan


def stages_between(states: States, cuts: list[int]) -> list[tuple[int, ...]]:
    return [states.layers(i, j) for i, j in pairwise(cuts)]


def max_stages(problem: PlacementProblem, states: States) -> int:
    return min(len(states.order), problem.num_devices)


def width_bound(problem: PlacementProblem, width: Width) -> float:
    """A lower bound on the time at this width; infinite if some layer does not fit."""
    held = np.array([(2 + problem.states) * x.param_bytes + x.activation_bytes for x in width.layers])
    if (held > problem.memory_bytes * (1 + 1e-9)).any():
        return inf
    layer_s = np.array([x.forward_s + x.backward_s for x in width.layers])
    fewest = width.devices if all(x.is_split for x in width.layers) else 1
    return time_bound(problem, fewest, layer_s)


def plain_kinds(problem: PlacementProblem, table: StageTable) -> list[Kind]:
    """Stages that take ``width.devices`` devices and stages that take one; a single kind if the two cost the same."""
    unsplit = sum(not x.is_split for x in table.width.layers)
    num_layers, devices = len(table.states.order), table.width.devices
    loads, positions, split = table.load_s, table.max_position, table.sums.is_split
    if devices == 1 or unsplit in (0, num_layers):
        count = 1 if unsplit == num_layers else devices
        return [Kind(devices=count, limit=num_layers, cost_at=masked(loads, positions))]
    return [
        Kind(devices=devices, limit=num_layers, cost_at=masked(np.where(split, loads, inf), positions)),
        Kind(devices=1, limit=unsplit, cost_at=masked(np.where(split, inf, loads), positions)),
    ]


def masked(costs: Array, positions: Array) -> Callable[[Counts], Array]:
    """Costs at a position: infinite beyond ``positions``. Positions between two limits share a table."""
    limits = distinct(positions)

    @lru_cache(maxsize=2)
    def beyond(level: int) -> Array:
        return np.where(positions >= limits[level], costs, inf)

    def at(counts: Counts) -> Array:
        level = int(np.searchsorted(limits, sum(counts)))
        return beyond(level) if level < len(limits) else np.full_like(costs, inf)

    return at
