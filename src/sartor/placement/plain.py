"""The fastest placement under the published cost model: one recurrence per width serves all numbers of copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf, isclose

import numpy as np

from sartor.placement.check import price
from sartor.placement.dynamic_programming import Bottlenecks, Counts, Kind, least_bottlenecks, trace
from sartor.placement.pipeline import Choice, best_choice, choice_bounds, copies_to_try, once_s, time_bound
from sartor.placement.plan import Plan
from sartor.placement.problem import PlacedLayer, PlacementProblem, Width
from sartor.placement.tabulate import StageTable, States, find_states, max_positions, tabulate
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
            of_width = _solve_sharded if problem.zero_stage else _solve_width
            solved = of_width(problem, width, states, best[0])
            if solved:
                choice, cuts = solved
                best = (choice.time_s, width, stages_between(states, cuts), choice.copies)
    time_s, chosen, stages, copies = best
    if chosen is None:
        return None
    priced = price(problem, chosen, stages, copies)
    assert not priced.faults, f"the checker refuses the plan: {priced.faults}"
    assert isclose(priced.time_per_batch_s, time_s, rel_tol=1e-9), (priced.time_per_batch_s, time_s)
    return priced.plan


Solved = tuple[Choice, list[int]]
"""The best pipeline of a width, and its cuts."""


def _solve_width(problem: PlacementProblem, width: Width, states: States, below_s: float) -> Solved | None:
    """The best pipeline of a width if it beats ``below_s``: one recurrence serves every number of copies."""
    table = tabulate(problem, width, states)
    found = _bottlenecks(problem, table, plain_kinds(problem, table))
    choice = best_choice(problem, table, found, below_s)
    return (choice, trace(found, choice.counts, choice.first_end)[0]) if choice else None


def _solve_sharded(problem: PlacementProblem, width: Width, states: States, below_s: float) -> Solved | None:
    """`_solve_width` with ZeRO 1: memory depends on the number of copies. Each is bounded by a recurrence in which the
    stage at position s from the end shares its states with as many copies as s such stages leave room for; then solved
    by its own recurrence, in the order of the bounds."""
    copies = copies_to_try(problem, width)
    if not len(copies):
        return None
    table = tabulate(problem, width, states)
    loose = _bottlenecks(problem, table, _loose_kinds(problem, table, int(copies[-1])))
    if not loose.first:
        return None
    bounds = choice_bounds(problem, loose, copies, once_s(problem, table, copies)).min(axis=0)
    best: Solved | None = None
    for bound, d in sorted(zip(bounds.tolist(), copies.tolist(), strict=True)):
        below = best[0].time_s if best else below_s
        if not bound < below:
            break
        own = replace(table, max_position=max_positions(problem, table.sums, width, d))
        found = _bottlenecks(replace(problem, num_devices=problem.num_devices // d), own, plain_kinds(problem, own))
        choice = best_choice(problem, own, found, below, np.array([d]))
        best = (choice, trace(found, choice.counts, choice.first_end)[0]) if choice else best
    return best


def _loose_kinds(problem: PlacementProblem, table: StageTable, most: int) -> list[Kind]:
    """`plain_kinds` for the memory of the most copies that a pipeline with a stage at each position can have."""
    fewest = table.width.devices if all(x.is_split for x in table.width.layers) else 1

    def at(kind: Kind) -> Kind:
        def cost_at(counts: Counts) -> Array | None:
            copies = max(min(problem.num_devices // (fewest * sum(counts)), most), 1)
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
    return least_bottlenecks(kinds, states.sizes, max_stages(problem, states), problem.num_devices)


def stages_between(states: States, cuts: list[int]) -> list[tuple[int, ...]]:
    return [states.layers(i, j) for i, j in pairwise(cuts)]


def max_stages(problem: PlacementProblem, states: States) -> int:
    return min(len(states.order), problem.num_devices)


def width_bound(problem: PlacementProblem, width: Width) -> float:
    """A lower bound on the time at this width; infinite if some layer does not fit."""
    held = np.array([least_bytes(problem, width, x) for x in width.layers])
    if (held > problem.memory_bytes * (1 + 1e-9)).any():
        return inf
    layer_s = np.array([x.forward_s + x.backward_s for x in width.layers])
    fewest = width.devices if all(x.is_split for x in width.layers) else 1
    return time_bound(problem, fewest, layer_s)


def least_bytes(problem: PlacementProblem, width: Width, layer: PlacedLayer) -> float:
    """Bytes of a layer on a device in as many copies as there are devices for."""
    most = max(min(problem.num_devices, problem.num_microbatches), 1) * width.context_parallel
    dense, experts = layer.param_bytes - layer.expert_param_bytes, layer.expert_param_bytes
    return float(problem.state_bytes(dense, experts, most, width.expert_parallel)) + layer.activation_bytes


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
