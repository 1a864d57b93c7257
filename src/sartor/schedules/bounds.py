"""Lower bounds on the makespan, without a solver.

Operators split over all cores run alone, so a makespan T is the sum of their times plus the time M in which only
single-core operators run: T = sum of q_i over the split ones + M. M is at least the one-core time on any path, and
at least the one-core work of either kind over its cores; so it is at least any average of these. With weights a_tc,
a_vc, and a_p for some paths p, that add up to one,

    T >= sum over operators of min(q_i, l_i w_i),    w_i = a_tc [tensor] / N_tc + a_vc [vector] / N_vc + sum of a_p

with the last sum over the paths through i. What operators share (memory, buffer, links) counts like a kind of core,
what an operator moves in place of l_i / N. Weights are multiples of 1 / GRID; the paths are found one after the other,
each the one that raises the bound most. All is in whole numbers, so nothing is lost to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sartor.schedules.split import OpBlock, bits
from sartor.units import ceil_div

GRIDS = ((60, 16), (300, 8), (2000, 4))
"""Resolution of the weights, by the size of the block: their number grows with the square, the work with the cube."""
ROUNDS = 4
"""Rounds of ruling out modes."""

Modes: TypeAlias = tuple[tuple[bool, bool], ...]
"""For each operator, whether one core, and whether all cores, can be part of a better schedule."""
Found: TypeAlias = tuple[int, list[int], list[int]]
"""A bound, and the bounds with each operator on one core, and with each split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanBound:
    """A lower bound on the makespan, and the modes that a better schedule than the known one may still use."""

    value: int
    modes: Modes


def lower_bound(block: OpBlock, upper: int) -> MakespanBound:
    """The best bound over all weights, given a schedule of makespan ``upper``; at most ``upper``.

    A mode that would lift a bound to ``upper`` is no part of a better schedule. Ruling it out lifts the bounds
    further, for a few rounds; the optimum is at least the smaller of ``upper`` and what comes out.
    """
    covers = [list(bits(mask)) for mask in block.covers]
    modes: Modes = tuple((True, may) for may in block.may_split)
    value = 0
    for _ in range(ROUNDS):
        found = [_weighted(block, covers, modes, weights) for weights in _weights(block)]
        value = max(value, *(total for total, _, _ in found))
        single, split = ([max(column) for column in zip(*(row[k] for row in found), strict=True)] for k in (1, 2))
        kept = tuple(
            (may_single and single[i] < upper, may_split and split[i] < upper)
            for i, (may_single, may_split) in enumerate(modes)
        )
        if value >= upper or not all(map(any, kept)):
            return MakespanBound(value=upper, modes=modes)
        if kept == modes:
            break
        modes = kept
    return MakespanBound(value=value, modes=modes)


def tails(block: OpBlock, durations: Sequence[int]) -> list[int]:
    """For each operator, the longest path that starts with it, itself included, for given durations."""
    covers, out = block.covers, [0] * block.size
    for i in reversed(range(block.size)):
        out[i] = durations[i] + max((out[j] for j in bits(covers[i])), default=0)
    return out


def _least(single: int, split: int, mode: tuple[bool, bool]) -> int:
    return min(single, split) if all(mode) else single if mode[0] else split


class _Weights(NamedTuple):
    """Weights of tensor cores, vector cores, something shared (its traffic) and paths, as multiples of 1 / grid."""

    grid: int
    tensor: int
    vector: int
    paths: int
    shared: int = 0
    traffic: tuple[int, ...] = ()


def _weights(block: OpBlock) -> Iterator[_Weights]:
    """The grid of weights; something shared has weight beside one of the others only."""
    grid = next(grid for size, grid in GRIDS if block.size <= size)
    for tensor in range(grid + 1 if block.num_tc else 1):
        for vector in range(grid + 1 - tensor if block.num_vc else 1):
            yield _Weights(grid, tensor, vector, grid - tensor - vector)
    for traffic in block.traffic:
        for shared in range(1, grid + 1):
            rest = grid - shared
            for tensor, vector in ((0, 0), (rest, 0), (0, rest)) if rest else ((0, 0),):
                yield _Weights(grid, tensor, vector, rest - tensor - vector, shared, traffic)


def _weighted(block: OpBlock, covers: list[list[int]], modes: Modes, weights: _Weights) -> Found:
    """The bound for one set of weights, and the bounds with each operator on one core, and split.

    Everything is times grid * N_tc * N_vc, so that it stays whole.
    """
    num_tc, num_vc, paths = max(block.num_tc, 1), max(block.num_vc, 1), weights.paths
    whole = num_tc * num_vc
    scale, step = weights.grid * whole, [whole * time for time in block.latency]
    alone = [scale * time for time in block.intra_latency]
    tensor, vector = weights.tensor * num_vc, weights.vector * num_tc
    moved = [weights.shared * whole * time for time in weights.traffic or (0,) * block.size]
    work = [
        time * (tensor * kind.needs_tensor_core + vector * kind.needs_vector_core) + each
        for kind, time, each in zip(block.core_types, block.latency, moved, strict=True)
    ]
    on_path = [w + paths * s for w, s in zip(work, step, strict=True)]
    with_single, with_split = _through_each(covers, modes, work, on_path, alone)
    least = list(map(_least, work, alone, modes))
    for _ in range(paths):
        more = [w + s for w, s in zip(work, step, strict=True)]
        more_least = list(map(_least, more, alone, modes))
        for i in _best_path(covers, [high - low for high, low in zip(more_least, least, strict=True)]):
            work[i], least[i] = more[i], more_least[i]
    total = sum(least)
    with_single = [max(one, total - low + w) for one, low, w in zip(with_single, least, work, strict=True)]
    with_split = [max(one, total - low + q) for one, low, q in zip(with_split, least, alone, strict=True)]
    return ceil_div(total, scale), [ceil_div(x, scale) for x in with_single], [ceil_div(x, scale) for x in with_split]


def _through_each(
    covers: list[list[int]], modes: Modes, off_path: list[int], on_path: list[int], alone: list[int]
) -> tuple[list[int], list[int]]:
    """The bound with the whole weight on one path through each operator, on one core and split."""
    least = list(map(_least, off_path, alone, modes))
    gain = [_least(w, q, mode) - low for w, q, mode, low in zip(on_path, alone, modes, least, strict=True)]
    ahead, behind, total = [0] * len(gain), list(gain), sum(least)
    for i, targets in enumerate(covers):
        for j in targets:
            ahead[j] = max(ahead[j], ahead[i] + gain[i])
    for i in reversed(range(len(gain))):
        behind[i] += max((behind[j] for j in covers[i]), default=0)
    others = [total - least[i] + ahead[i] + behind[i] - gain[i] for i in range(len(gain))]
    with_single = [rest + w for rest, w in zip(others, on_path, strict=True)]
    return with_single, [rest + q for rest, q in zip(others, alone, strict=True)]


def _best_path(covers: list[list[int]], gains: list[int]) -> Iterator[int]:
    """The path with the largest sum of gains."""
    ahead, following = list(gains), [-1] * len(gains)
    for i in reversed(range(len(gains))):
        if covers[i]:
            following[i] = max(covers[i], key=ahead.__getitem__)
            ahead[i] += ahead[following[i]]
    here = max(range(len(gains)), key=ahead.__getitem__)
    while here >= 0:
        yield here
        here = following[here]
