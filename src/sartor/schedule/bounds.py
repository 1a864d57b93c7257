"""What no schedule can beat, without a solver.

Operators split over all cores run alone, so a makespan T is the sum of their times plus the time M in which only
single-core operators run: T >= sum of q_i over the split ones + M. M is at least the one-core time on any path, and
at least the one-core work of either kind over its cores. For any weights that add up to one, T is then at least

    sum over operators of min(q_i, l_i * (a_tc [tensor] / N_tc + a_vc [vector] / N_vc + a_path [on the path]))

for every path: a longest-path search per set of weights, exact in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.schedule.split import Block, bits
from sartor.units import ceil_div

GRID = 8
"""Weights are multiples of 1 / GRID: 45 sets of them."""


def lower_bound(block: Block) -> int:
    """The best of the bounds above and of the critical path; at most the optimal makespan."""
    covers = block.covers
    weighted = (_weighted(block, covers, *weights) for weights in _weights())
    return max(critical_path(block), *weighted)


def critical_path(block: Block) -> int:
    """The longest path when every operator runs in its shorter mode."""
    return max(tails(block, block.serial), default=0)


def tails(block: Block, durations: tuple[int, ...]) -> list[int]:
    """Per operator, the longest path that starts with it, itself included, for given durations."""
    covers, out = block.covers, [0] * block.size
    for i in reversed(range(block.size)):
        out[i] = durations[i] + max((out[j] for j in bits(covers[i])), default=0)
    return out


def _weights() -> Iterator[tuple[int, int, int]]:
    """Weights of tensor cores, vector cores and the path, times GRID."""
    for tensor in range(GRID + 1):
        for vector in range(GRID + 1 - tensor):
            yield tensor, vector, GRID - tensor - vector


def _weighted(block: Block, covers: tuple[int, ...], tensor: int, vector: int, path: int) -> int:
    """The bound for one set of weights; everything times GRID * N_tc * N_vc, so that it stays whole."""
    num_tc, num_vc = max(block.num_tc, 1), max(block.num_vc, 1)
    scale, total, extra = GRID * num_tc * num_vc, 0, []
    for kind, single, intra in zip(block.core_types, block.latency, block.intra_latency, strict=True):
        work = single * (tensor * num_vc * kind.needs_tensor_core + vector * num_tc * kind.needs_vector_core)
        off_path = min(scale * intra, work)
        on_path = min(scale * intra, work + single * path * num_tc * num_vc)
        total += off_path
        extra.append(on_path - off_path)
    longest = [0] * block.size
    for i in reversed(range(block.size)):
        longest[i] = extra[i] + max((longest[j] for j in bits(covers[i])), default=0)
    return ceil_div(total + max(longest, default=0), scale)  # type: ignore[no-any-return]
