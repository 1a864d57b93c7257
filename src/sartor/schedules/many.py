"""Schedule bounds of one layer on thousands of accelerators at once.

The bound is that of `sartor.schedules.bounds` (weights over tensor work, vector work and paths) on a coarse grid of
weights, as arrays over candidates; the graph, which is the same for all, is first split in series. The result of
`sartor.schedules.solve` for a candidate is always between the two bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.hardware.accelerator import Accelerator
from sartor.operators import OperatorGraph
from sartor.schedules.makespan import (
    UNIT_S,
    FusedGraph,
    core_type,
    fuse_graph,
    operator_floors,
    shared_s,
    shared_times,
    whole_latencies,
)
from sartor.schedules.problem import CoreType
from sartor.schedules.split import OpBlock, bits, part, series
from sartor.units import FloatArray, Floats

GRID = 8
"""Resolution of the weights: 45 combinations of tensor work, vector work and paths."""
ROUNDS = 2
"""Rounds of ruling out modes."""
WHOLE = 1e-9
"""Relative slack before a bound is rounded up: sums of doubles are exact to far less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Makespans:
    """Bounds on the makespan of each candidate, in whole units of the schedule: integer arrays [candidates]."""

    lower: npt.NDArray[np.int64]
    upper: npt.NDArray[np.int64]
    """One operator after another, each in its shorter mode."""


def makespan_bounds(graph: OperatorGraph, accelerator: Accelerator, unit_s: float = UNIT_S) -> Makespans:
    """Bounds for every candidate of ``accelerator`` (flattened), operators fused as ``schedule_problems`` fuses them.

    Raises ``InputError`` if a collective has no link to run on.
    """
    fused = fuse_graph(graph)
    single, split = whole_latencies(fused, accelerator, unit_s)
    shape = accelerator.shape
    tensor = np.broadcast_to(accelerator.num_tensor_cores, shape).reshape(-1).astype(np.float64)
    vector = np.broadcast_to(accelerator.num_vector_cores, shape).reshape(-1).astype(np.float64)
    upper = np.minimum(single, split).sum(axis=0)
    lower = np.zeros_like(upper)
    for positions, block in _parts(fused):
        rows = list(positions)
        lower += _part_bound(block, single[rows], split[rows], tensor, vector)
    lower = np.maximum.reduce([lower, *shared_times(fused, accelerator, unit_s).values()])
    return Makespans(lower=lower, upper=upper)


def makespan_floors(graph: OperatorGraph, accelerator: Accelerator) -> FloatArray:
    """A looser bound [candidates, seconds], a hundred times cheaper: tensor work, vector work, or the longest path of
    each part of the series; or the traffic on shared resources."""
    fused = fuse_graph(graph)
    floors = operator_floors(fused, accelerator)
    total: Floats = np.zeros(accelerator.shape)
    for positions, block in _parts(fused):
        mine = [floors[i] for i in positions]
        if len(mine) == 1:
            total = total + mine[0].least_s
            continue
        covers = [tuple(bits(mask)) for mask in block.covers]
        ahead: list[Any] = [floor.least_s for floor in mine]
        for i in reversed(range(len(mine))):
            below = [ahead[j] for j in covers[i]]
            ahead[i] = ahead[i] + (np.maximum.reduce(np.broadcast_arrays(*below)) if below else 0.0)
        longest = np.maximum.reduce(np.broadcast_arrays(*ahead))
        work = np.maximum(sum(floor.tensor_s for floor in mine), sum(floor.vector_s for floor in mine))
        total = total + np.maximum(longest, work)
    return np.asarray(np.maximum.reduce([np.asarray(total), *shared_s(floors, accelerator.shape).values()]))


def _parts(fused: FusedGraph) -> Iterator[tuple[tuple[int, ...], OpBlock]]:
    """The graph split in series: positions of each part, and the part (its latencies are placeholders)."""
    size = len(fused.operators)
    after = [0] * size
    below: list[list[int]] = [[] for _ in range(size)]
    for a, b in fused.edges:
        below[a].append(b)
    for i in reversed(range(size)):
        for j in below[i]:
            after[i] |= after[j] | 1 << j
    whole = OpBlock(
        num_tc=size,
        num_vc=size,
        core_types=tuple(map(core_type, fused.operators)),
        latency=(1,) * size,
        intra_latency=(1,) * size,
        after=tuple(after),
    )
    return ((positions, part(whole, positions)) for positions in series(whole))


def _part_bound(
    block: OpBlock, single: Any, split: Any, num_tc: FloatArray, num_vc: FloatArray
) -> npt.NDArray[np.int64]:
    """Lower bounds for one part: integers [candidates] from latencies [operators, candidates].

    ``block`` gives kinds of cores and precedence; its own latencies are not used.
    """
    serial: npt.NDArray[np.int64] = np.minimum(single, split).sum(axis=0)
    if block.size == 1:
        return serial
    kinds = block.core_types
    cores_tc = np.minimum(num_tc, max(sum(kind.needs_tensor_core for kind in kinds), 1))
    cores_vc = np.minimum(num_vc, max(sum(kind.needs_vector_core for kind in kinds), 1))
    p = _Part(
        covers=[tuple(bits(mask)) for mask in block.covers],
        single=single.astype(np.float64),
        split=np.where(split < single, split, np.inf),
        tensor=_needs(kinds, tensor=True) / cores_tc,
        vector=_needs(kinds, tensor=False) / cores_vc,
    )
    allowed = np.ones(single.shape, dtype=bool), np.isfinite(p.split)
    best = np.zeros(serial.shape)
    for _ in range(ROUNDS):
        value, with_single, with_split = _over_weights(p, allowed)
        best = np.maximum(best, value)
        useful = allowed[0] & (with_single < serial), allowed[1] & (with_split < serial)
        if all(np.array_equal(a, b) for a, b in zip(useful, allowed, strict=True)):
            break
        allowed = useful
        hopeless = ~(useful[0] | useful[1]).all(axis=0)  # nothing shorter than running in turn is left
        best = np.where(hopeless, serial, best)
        allowed = useful[0] | hopeless, useful[1]
    rounded: npt.NDArray[np.int64] = np.ceil(best * (1 - WHOLE)).astype(np.int64)
    return np.minimum(rounded, serial)


@dataclass(frozen=True, slots=True)
class _Part:
    """Arrays [operators, candidates]; ``tensor`` and ``vector``: share of all such cores that an operator takes."""

    covers: Sequence[tuple[int, ...]]
    single: FloatArray
    split: FloatArray
    tensor: FloatArray
    vector: FloatArray


Allowed = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


def _needs(kinds: Sequence[CoreType], *, tensor: bool) -> FloatArray:
    return np.array([[float(kind.needs_tensor_core if tensor else kind.needs_vector_core)] for kind in kinds])


def _over_weights(p: _Part, allowed: Allowed) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The best bound, and the bounds with each operator on one core, and with each split."""
    shape = p.single.shape
    value, with_single, with_split = np.zeros(shape[1]), np.zeros(shape), np.zeros(shape)
    split = np.where(allowed[1], p.split, np.inf)
    for tensor, vector in _weights():
        work = p.single * (p.tensor * (tensor / GRID) + p.vector * (vector / GRID))
        least_time = _least(work, split, allowed[0])
        for _ in range(GRID - tensor - vector):
            heavier = work + p.single / GRID
            gain = _least(heavier, split, allowed[0]) - least_time
            work = np.where(_best_path(p.covers, gain), heavier, work)
            least_time = _least(work, split, allowed[0])
        total = least_time.sum(axis=0)
        np.maximum(value, total, out=value)
        rest = total - least_time
        np.maximum(with_single, np.ceil((rest + work) * (1 - WHOLE)), out=with_single)
        np.maximum(with_split, np.ceil((rest + p.split) * (1 - WHOLE)), out=with_split)
    return value, with_single, with_split


def _weights() -> Iterator[tuple[int, int]]:
    for tensor in range(GRID + 1):
        for vector in range(GRID + 1 - tensor):
            yield tensor, vector


def _least(work: FloatArray, split: FloatArray, may_be_single: npt.NDArray[np.bool_]) -> FloatArray:
    return np.minimum(np.where(may_be_single, work, np.inf), split)


def _best_path(covers: Sequence[tuple[int, ...]], gain: FloatArray) -> npt.NDArray[np.bool_]:
    """The operators on the path with the largest sum of gains, for every candidate."""
    size, count = gain.shape
    ahead, following = gain.copy(), np.full((size, count), -1, dtype=np.int16)
    for i in reversed(range(size)):
        below = list(covers[i])
        if len(below) == 1:
            following[i] = below[0]
            ahead[i] += ahead[below[0]]
        elif below:
            those = ahead[below]
            following[i] = np.asarray(below, dtype=np.int16)[those.argmax(axis=0)]
            ahead[i] += those.max(axis=0)
    node = ahead.argmax(axis=0)
    on = np.zeros((size, count), dtype=bool)
    for i in range(size):
        on[i] = node == i
        node = np.where(on[i], following[i], node)
    return on
