"""Solve a placement problem, check the plan independently, and price the expert's strategy; without a solution, say
which memory and how many devices would suffice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from sartor.placement.check import fixed_strategy_time, fixed_strategy_time_with_terms
from sartor.placement.dynamic_programming import Counts, Kind, least_bottlenecks
from sartor.placement.plain import least_bytes, solve
from sartor.placement.problem import (
    PlacedLayer,
    Placement,
    PlacementProblem,
    PlacementStatus,
    TightestLimit,
    Width,
    copies_together,
)
from sartor.placement.tabulate import StageSums, States, find_states, held_bytes, max_positions, stage_sums
from sartor.placement.terms import PlacementTerms, types_of
from sartor.placement.with_terms import solve_with_terms
from sartor.units import Array, format_bytes


def place(problem: PlacementProblem, terms: PlacementTerms | None = None) -> Placement:
    """The fastest placement, or the tightest constraint if none fits.

    The answer is exact for the published cost model, or for its extension with ``terms``
    (docs/concepts/placement.md): no other tensor width, number of copies and cut into stages is faster. The plan is
    re-priced by :mod:`sartor.placement.check` before it is returned.

    Raises
    ------
    InputError
        If a branching layer graph has more downsets than can be tabulated.
    """
    start = time.perf_counter()
    plan = solve_with_terms(problem, terms) if terms else solve(problem)
    solve_s = time.perf_counter() - start
    fixed_s = fixed_strategy_time_with_terms(problem, terms) if terms else fixed_strategy_time(problem)
    return Placement(
        status=PlacementStatus.OPTIMAL if plan else PlacementStatus.INFEASIBLE,
        plan=plan,
        fixed_strategy_time_per_batch_s=fixed_s,
        checked=True,
        solve_s=solve_s,
        tightest=None if plan else _tightest(problem, terms),
    )


def _tightest(problem: PlacementProblem, terms: PlacementTerms | None) -> TightestLimit:
    """The tightest constraint; with terms, that of the problem without them."""
    if terms is None:
        return find_tightest(problem)
    types = types_of(problem, terms)
    pooled = replace(
        problem,
        num_devices=sum(device_type.num_devices for device_type in types),
        memory_bytes=max(device_type.memory_bytes for device_type in types),
    )
    tightest = find_tightest(pooled)
    return replace(tightest, message=f"no case fits under the terms given; without them, {tightest.message}")


def find_tightest(problem: PlacementProblem) -> TightestLimit:
    """The nearest feasible problem; both numbers are exact, from the recurrence with other costs. Copies that share
    optimizer states (ZeRO 1) are tried in powers of two, so there both are enough, but not always the least."""
    states = find_states(problem)
    least_bytes, least_devices = inf, inf
    for width in problem.widths:
        sums, fewest = stage_sums(width, states), copies_together(width.expert_parallel, width.context_parallel)
        most_copies = min(problem.num_devices, problem.num_microbatches) if problem.zero_stage else 1
        several = [2**i * fewest for i in range(max(most_copies // fewest, 1).bit_length())]
        for copies in [count for count in several if problem.shares(count)] if most_copies > 1 else [1]:
            least_bytes = min(least_bytes, _least_memory(problem, width, states, sums, copies))
            least_devices = min(least_devices, _least_devices(problem, width, states, sums, copies))
    layer = _layer_that_fits_nowhere(problem)
    devices = int(least_devices) if isfinite(least_devices) else None
    return TightestLimit(
        least_memory_bytes=least_bytes if isfinite(least_bytes) else None,
        least_devices=devices,
        layer=layer.id if layer else None,
        message=_sentence(problem, least_bytes, devices, layer),
    )


def _least_memory(problem: PlacementProblem, width: Width, states: States, sums: StageSums, copies: int) -> float:
    """Smallest memory per device with which this many copies fit: a bottleneck of bytes."""
    stage_bytes = np.where(sums.is_stage, held_bytes(problem, sums, width, copies), inf)
    stash = sums.entering_bytes if problem.recompute else sums.activation_bytes
    kinds = _kinds(
        width, states, sums, lambda mask: lambda counts: np.where(mask, stage_bytes + (sum(counts) - 1) * stash, inf)
    )
    devices = problem.num_devices // copies
    bottlenecks = least_bottlenecks(kinds, states.sizes, min(len(states.order), devices), devices)
    return min((float(first.min()) for first in bottlenecks.first.values()), default=inf)


def _least_devices(problem: PlacementProblem, width: Width, states: States, sums: StageSums, copies: int) -> float:
    """Fewest devices with the given memory that hold this many copies; infinite if no number does."""
    positions = max_positions(problem, sums, width, copies)
    kinds = _kinds(
        width, states, sums, lambda mask: lambda counts: np.where(mask & (positions >= sum(counts)), 0.0, inf)
    )
    num_layers = len(states.order)
    bottlenecks = least_bottlenecks(kinds, states.sizes, num_layers, num_layers * width.devices)
    fit = (bottlenecks.devices(counts) for counts, first in bottlenecks.first.items() if np.isfinite(first).any())
    return copies * min(fit, default=inf)


def _kinds(
    width: Width, states: States, sums: StageSums, cost: Callable[[Array], Callable[[Counts], Array]]
) -> list[Kind]:
    split = sums.is_split
    masks = ((width.devices, sums.is_stage & split), (1, sums.is_stage & ~split))
    return [Kind(devices=devices, limit=len(states.order), cost_at=cost(mask)) for devices, mask in masks if mask.any()]


@dataclass(frozen=True, slots=True)
class _Need:
    needed_bytes: float
    width: Width
    layer: PlacedLayer


def _layer_that_fits_nowhere(problem: PlacementProblem) -> PlacedLayer | None:
    """The largest layer, at the width where it is smallest, if it does not fit on a device by itself."""

    def needs(width: Width) -> _Need:
        bytes_by_layer = {x.id: least_bytes(problem, width, x) for x in width.layers}
        worst = max(width.layers, key=lambda x: bytes_by_layer[x.id])
        return _Need(bytes_by_layer[worst.id], width, worst)

    smallest_need = min((needs(width) for width in problem.widths), key=lambda need: need.needed_bytes)
    return smallest_need.layer if smallest_need.needed_bytes > problem.memory_bytes else None


def _sentence(problem: PlacementProblem, least_bytes: float, devices: int | None, layer: PlacedLayer | None) -> str:
    has = f"maxMemoryPerDevice={problem.memory_bytes:.12g} on maxDevices={problem.num_devices}"
    why = "no cut into stages fits"
    if layer:
        why = f"layer {layer.id} alone is larger than a device at every width"
    elif not isfinite(least_bytes):
        why = "every width takes more devices than there are"
    would = []
    if isfinite(least_bytes):
        would.append(f"at least {least_bytes:.12g} bytes ({format_bytes(least_bytes)}) per device on these devices")
    if devices is not None:
        would.append(f"at least {devices} devices of this memory")
    return f"{has}: {why}; it takes {', or '.join(would)}" if would else f"{has}: {why}"
