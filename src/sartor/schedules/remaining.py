"""Lower bound on the time that a schedule still takes when some operators have started.

As in `bounds`: with weights of tensor cores, vector cores and one path that add up to one, each operator to come adds
its time on all cores or its weighted time on one, whichever is less; cores that are still busy add their weighted time.
"""

from __future__ import annotations

import numpy as np

from sartor.schedules.split import OpBlock, bits
from sartor.units import BoolArray, IntArray, ceil_div

GRID = 4
"""Weights are multiples of 1 / GRID; 8 and 16 brought nothing on backward layers."""
EXACT = 1 << 60


def fits(block: OpBlock) -> bool:
    """Whether all sums fit in 64 bits."""
    return _scale(block) * (sum(block.latency) + sum(block.intra_latency)) < EXACT


def _scale(block: OpBlock) -> int:
    return GRID * max(block.num_tc, 1) * max(block.num_vc, 1)


class Remaining:
    """Arrays [operators, weights], in units of 1 / ``scale``: what each operator adds at least, and what the best path
    that starts with it adds to that."""

    def __init__(self, block: OpBlock) -> None:
        self.scale, self.num_tc, self.cores = _scale(block), block.num_tc, block.num_tc + block.num_vc
        weights = [(t, v, GRID - t - v) for t in range(GRID + 1) for v in range(GRID + 1 - t)]
        tensor, vector, path = self.scale // GRID * np.array(weights, dtype=np.int64).T
        self.tensor, self.vector = tensor // max(block.num_tc, 1), vector // max(block.num_vc, 1)
        single, split = (np.array(times, dtype=np.int64)[:, None] for times in (block.latency, block.intra_latency))
        uses_tensor = np.array([[kind.needs_tensor_core] for kind in block.core_types])
        uses_vector = np.array([[kind.needs_vector_core] for kind in block.core_types])
        work = single * (uses_tensor * self.tensor + uses_vector * self.vector)
        self.each = np.minimum(work, self.scale * split)
        self.path = np.minimum(work + single * path, self.scale * split) - self.each
        for i in reversed(range(block.size)):
            if later := list(bits(block.covers[i])):
                self.path[i] += self.path[later].max(axis=0)

    def least(self, begun: BoolArray, which: IntArray, until: IntArray) -> IntArray:
        """The least time to come [prefixes]: sets of ``begun`` operators [sets, operators], ``which`` set each prefix
        has, and ``until`` when its tensor cores, then its vector cores are busy [prefixes, cores and more]."""
        longest = np.max([np.where(begun[:, i, None], 0, path) for i, path in enumerate(self.path)], axis=0)
        to_come = ~begun @ self.each + longest
        tensor, vector = until[:, : self.num_tc].sum(axis=1), until[:, self.num_tc : self.cores].sum(axis=1)
        busy = np.outer(tensor, self.tensor) + np.outer(vector, self.vector)
        return np.asarray(ceil_div((to_come[which] + busy).max(axis=1), self.scale))
