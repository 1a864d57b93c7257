"""For a problem without solution: the smallest memory and the fewest devices that would suffice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from sartor.placement.dynamic_programming import Counts, Kind, least_bottlenecks
from sartor.placement.plain import least_bytes
from sartor.placement.plan import TightestLimit
from sartor.placement.problem import PlacedLayer, PlacementProblem, Width, copies_together
from sartor.placement.tabulate import StageSums, States, find_states, held_bytes, max_positions, stage_sums
from sartor.units import Array, format_bytes


def find_tightest(problem: PlacementProblem) -> TightestLimit:
    """The nearest feasible problem; both numbers are exact, from the recurrence with other costs. Copies that share
    optimizer states (ZeRO 1) are tried in powers of two, so there both are enough, but not always the least."""
    states = find_states(problem)
    least_bytes, least_devices = inf, inf
    for width in problem.widths:
        sums, fewest = stage_sums(width, states), copies_together(width.expert_parallel, width.context_parallel)
        most = min(problem.num_devices, problem.num_microbatches) if problem.zero_stage else 1
        several = [2**i * fewest for i in range(max(most // fewest, 1).bit_length())]
        for copies in [each for each in several if problem.shares(each)] if most > 1 else [1]:
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
    held = np.where(sums.is_stage, held_bytes(problem, sums, width, copies), inf)
    stash = sums.entering_bytes if problem.recompute else sums.activation_bytes
    kinds = _kinds(
        width, states, sums, lambda mask: lambda counts: np.where(mask, held + (sum(counts) - 1) * stash, inf)
    )
    devices = problem.num_devices // copies
    found = least_bottlenecks(kinds, states.sizes, min(len(states.order), devices), devices)
    return min((float(first.min()) for first in found.first.values()), default=inf)


def _least_devices(problem: PlacementProblem, width: Width, states: States, sums: StageSums, copies: int) -> float:
    """Fewest devices with the given memory that hold this many copies; infinite if no number does."""
    positions = max_positions(problem, sums, width, copies)
    kinds = _kinds(
        width, states, sums, lambda mask: lambda counts: np.where(mask & (positions >= sum(counts)), 0.0, inf)
    )
    num_layers = len(states.order)
    found = least_bottlenecks(kinds, states.sizes, num_layers, num_layers * width.devices)
    fit = (found.devices(counts) for counts, first in found.first.items() if np.isfinite(first).any())
    return copies * min(fit, default=inf)


def _kinds(
    width: Width, states: States, sums: StageSums, cost: Callable[[Array], Callable[[Counts], Array]]
) -> list[Kind]:
    split = sums.is_split
    masks = ((width.devices, sums.is_stage & split), (1, sums.is_stage & ~split))
    return [Kind(devices=devices, limit=len(states.order), cost_at=cost(mask)) for devices, mask in masks if mask.any()]


@dataclass(frozen=True, slots=True)
class _Need:
    held: float
    width: Width
    layer: PlacedLayer


def _layer_that_fits_nowhere(problem: PlacementProblem) -> PlacedLayer | None:
    """The largest layer, at the width where it is smallest, if it does not fit on a device by itself."""

    def needs(width: Width) -> _Need:
        held = {x.id: least_bytes(problem, width, x) for x in width.layers}
        worst = max(width.layers, key=lambda x: held[x.id])
        return _Need(held[worst.id], width, worst)

    least = min((needs(width) for width in problem.widths), key=lambda need: need.held)
    return least.layer if least.held > problem.memory_bytes else None


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
