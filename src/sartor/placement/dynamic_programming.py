"""States and recurrence of the dynamic program: downsets of a layer graph, and the smallest bottleneck over them.

The publication tabulates dp[D][k][s] for every number k of devices, up to thousands. But a stage takes ``a`` devices if
it holds a split layer and one otherwise, so k follows from the number of stages of each kind. The table shrinks to one
value per state and per pair of counts; usually (all layers split, or none) to one row per number of stages, and these
rows serve every number of data-parallel copies:

    bottleneck[counts][i] = min over kinds k, states j of max(cost_k(s)[i, j], bottleneck[counts - 1_k][j])

with s = the sum of the counts, the position of the new front stage from the end; its cost is infinite if memory forbids
that position. Every pair (i, j) is evaluated, so no monotonicity is assumed; where costs are known to grow with what a
stage holds, j is bisected: before it the rest is the bottleneck, from it on the stage.

A pipeline is an increasing sequence of downsets (sets of layers closed under predecessors): the first is empty, the
last has all layers, and a stage is the difference of two neighbours. A chain of L layers has L + 1 downsets, its
prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sartor.errors import InputError
from sartor.units import Array

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Up to ``limit`` stages that take ``devices`` devices each.

    ``cost_at(counts)`` is their cost table if ``counts`` stages of each kind run from this one to the end (their sum is
    its position from the end); None if such a stage is not allowed next.
    """

    devices: int
    limit: int
    cost_at: Callable[[Counts], Array | None]
    growing: bool = False
    """Whether it is the only kind, every stage has the same costs, and none costs less for holding more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottlenecks:
    """``of[counts][i]``: least bottleneck from state i to the end; ``first[counts][j]``: with a first stage up to j."""

    kinds: tuple[Kind, ...]
    by_counts: dict[Counts, Array]
    first: dict[Counts, Array]

    def devices(self, counts: Counts) -> int:
        return sum(count * kind.devices for count, kind in zip(counts, self.kinds, strict=True))


def least_bottlenecks(kinds: Sequence[Kind], sizes: Array, max_stages: int, max_devices: int) -> Bottlenecks:
    """Fill the table for up to ``max_stages`` stages on at most ``max_devices``; ``sizes`` are the states' layers."""
    end = np.full(len(sizes), np.inf)
    end[-1] = 0.0
    bottlenecks = Bottlenecks(kinds=tuple(kinds), by_counts={(0,) * len(kinds): end}, first={})
    limits = [min(kind.limit, max_devices // kind.devices) for kind in kinds]
    # A state that s stages can still follow misses at least s layers.
    reach = np.searchsorted(sizes, sizes[-1] - np.arange(max_stages + 1), side="right")
    layer = list(bottlenecks.by_counts)
    for s in range(1, max_stages + 1):
        next_counts = [counts for counts in _next_counts(layer, limits) if bottlenecks.devices(counts) <= max_devices]
        for counts in next_counts:
            _extend(bottlenecks, counts, rows=int(reach[s]), columns=int(reach[s - 1]))
        layer = [counts for counts in next_counts if counts in bottlenecks.by_counts]
    return bottlenecks


def _next_counts(layer: list[Counts], limits: Sequence[int]) -> list[Counts]:
    """Counts with one more stage than some of ``layer``, without duplicates."""
    grown = {
        (*counts[:k], counts[k] + 1, *counts[k + 1 :])
        for counts in layer
        for k, limit in enumerate(limits)
        if counts[k] < limit
    }
    return sorted(grown)


TABLE = 1 << 16
"""Entries of a cost table up to which a pass over all of them is faster than bisecting its rows."""


def _extend(bottlenecks: Bottlenecks, counts: Counts, *, rows: int, columns: int) -> None:
    """Add one entry to the table from those with one stage less; nothing is added if nothing fits."""
    best, first = None, None
    for k, kind in enumerate(bottlenecks.kinds):
        after = bottlenecks.by_counts.get(less_one(counts, k))
        cost = None if after is None else kind.cost_at(counts)
        if after is None or cost is None:
            continue
        least = _least_of_growing if kind.growing and rows * columns > TABLE else _least
        smallest, both = least(cost[:rows, :columns], after[:columns]), np.maximum(cost[0, :columns], after[:columns])
        best = smallest if best is None else np.minimum(best, smallest)
        first = both if first is None else np.minimum(first, both)
    if best is None or first is None or np.isinf(best).all():
        return
    value = np.full(len(bottlenecks.by_counts[(0,) * len(counts)]), np.inf)
    value[:rows] = best
    bottlenecks.by_counts[counts] = value
    bottlenecks.first[counts] = np.concatenate([first, np.full(len(value) - columns, np.inf)])


def _least(cost: Array, after: Array) -> Array:
    return np.asarray(np.maximum(cost, after).min(axis=1))


def _least_of_growing(cost: Array, after: Array) -> Array:
    """`_least` if a row of ``cost`` grows from its diagonal on, and ``after`` shrinks."""
    row, last = np.arange(len(cost)), after.size - 1
    low, high = row + 1, np.full(len(cost), last)
    for _ in range(int(last).bit_length()):
        middle = (low + high) // 2
        stage = cost[row, middle] >= after[middle]
        low, high = np.where(stage, low, np.minimum(middle + 1, high)), np.where(stage, middle, high)
    at, before = np.maximum(cost[row, high], after[high]), np.maximum(high - 1, 0)
    return np.asarray(np.minimum(at, np.maximum(cost[row, before], after[before])))


def less_one(counts: Counts, k: int) -> Counts:
    return (*counts[:k], counts[k] - 1, *counts[k + 1 :])


def trace(bottlenecks: Bottlenecks, counts: Counts, first_end: int) -> tuple[list[int], list[int]]:
    """A pipeline with bottleneck ``found.first[counts][first_end]``: its states from first to last, and their kinds."""
    states, kinds, state, end = [0], [], 0, first_end
    last = len(bottlenecks.by_counts[(0,) * len(counts)]) - 1
    while True:
        options = []
        for k, kind in enumerate(bottlenecks.kinds):
            after = bottlenecks.by_counts.get(less_one(counts, k))
            cost = None if after is None else kind.cost_at(counts)
            if after is not None and cost is not None:
                costs = np.maximum(cost[state], after)
                j = end if end >= 0 else int(costs.argmin())
                options.append((float(costs[j]), k, j))
        _, k, state = min(options)
        states.append(state)
        kinds.append(k)
        counts, end = less_one(counts, k), -1
        if state == last:
            return states, kinds


Pairs = Sequence[tuple[int, int]]


MAX_DOWNSETS = 2500
"""Most downsets of a branching graph: tables grow with their square (2500: 50 MB each, tens of seconds)."""


def downsets(order: Sequence[int], pairs: Pairs) -> list[int]:
    """All downsets as bit masks over positions in ``order``, smaller ones first; `InputError` if too many."""
    position = {id_: index for index, id_ in enumerate(order)}
    needs = [0] * len(order)
    for source, dest in pairs:
        needs[position[dest]] |= 1 << position[source]
    sets = {0}
    layer = [0]
    while layer:
        grown = {
            mask | 1 << v for mask in layer for v, need in enumerate(needs) if not mask >> v & 1 and need & mask == need
        }
        sets |= grown
        if len(sets) > MAX_DOWNSETS:
            raise InputError(
                "edges",
                f"more than {MAX_DOWNSETS} downsets",
                f"the layer graph must have at most {MAX_DOWNSETS} downsets (sets closed under predecessors); long"
                " independent branches multiply them: merge layers of a branch, or join branches by an edge",
            )
        layer = list(grown)
    return sorted(sets, key=lambda mask: (mask.bit_count(), mask))
