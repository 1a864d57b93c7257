"""Which prefixes of a schedule are worth keeping: those that no other one is as good as (`prefixes`).

Of two prefixes with the same operators, one is as good as the other if its last start is no later, nor do its cores get
free later, nor the operators end that others wait for. Operators on one path never run at once, so of each kind no more
cores matter than there are paths with operators to come: those that get free first, and, since a split operator needs
all, the one that gets free last.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sartor.schedules.bounds import paths
from sartor.schedules.split import OpBlock
from sartor.units import BoolArray, IntArray

LEADERS = 2000
"""Most prefixes of the same operators that the others are compared with: those with the smallest sums of times."""
AT_ONCE = 64
"""Of those, how many at once."""


class Dominance:
    """Columns of ``until`` [prefixes, columns], times after ``last``: tensor cores, then vector cores, each kind in the
    order in which they get free; then operators."""

    def __init__(self, block: OpBlock) -> None:
        cover = [sum(1 << i for i in path) for path in paths(block)]
        tensor = sum(kind.needs_tensor_core << i for i, kind in enumerate(block.core_types))
        vector = sum(kind.needs_vector_core << i for i, kind in enumerate(block.core_types))
        self.kinds = [
            (0, block.num_tc, [path & tensor for path in cover]),
            (block.num_tc, block.num_tc + block.num_vc, [path & vector for path in cover]),
        ]

    def undominated(self, begun: IntArray, last: IntArray, until: IntArray) -> IntArray:
        """Rows to keep; of equally good ones the first. ``begun``: the operators of each, as bits."""
        order = np.lexsort(((until.shape[1] + 1) * last + until.sum(axis=1), begun))
        cuts = [*np.flatnonzero(np.diff(begun[order], prepend=-1)).tolist(), len(order)]
        kept = [order]
        for a, b in pairwise(cuts):
            rows = order[a:b]
            kept.append(rows[_undominated(self._times(int(begun[rows[0]]), last[rows], until[rows]))])
        return np.concatenate(kept[1:] or kept)

    def _times(self, begun: int, last: IntArray, until: IntArray) -> IntArray:
        """What is compared [times, prefixes] of prefixes with the same operators."""
        useful: BoolArray = np.any(until, axis=0)
        for first, end, masks in self.kinds:
            useful[first + sum(mask & ~begun > 0 for mask in masks) : end] = False
        return np.stack([last, last + until.max(axis=1), *(last + until[:, k] for k in np.flatnonzero(useful))])


def _undominated(times: IntArray) -> IntArray:
    """Columns, ascending by their sums, that are in some row smaller than each one before."""
    left, done = np.arange(times.shape[1]), 0
    while done < min(len(left), LEADERS):
        worse = np.triu(np.ones((min(AT_ONCE, len(left) - done), len(left) - done), dtype=bool), 1)
        for time in times[:, done:]:
            worse &= time[: len(worse), None] <= time
        kept = np.concatenate([np.ones(done, dtype=bool), ~worse.any(axis=0)])
        done += int(kept[done : done + AT_ONCE].sum())
        left, times = left[kept], times[:, kept]
    return left
