"""What of a plan decides how long a block takes, each combination once: few rows under a million plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.model.training import TrainingPlan

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Distinct (tp, cp, ep, microbatch_size, sequence_parallel), one array each, and which of them every plan has.

    ``index`` has the shape these fields of the plan broadcast to, () for a single plan.
    """

    tp: IntArray
    cp: IntArray
    ep: IntArray
    microbatch_size: IntArray
    sequence_parallel: npt.NDArray[np.bool_]
    index: IntArray

    @property
    def size(self) -> int:
        return self.tp.size


def block_rows(plan: TrainingPlan) -> BlockRows:
    """The distinct rows of a plan's arrays, in ascending order, found by counting alone: no array of plans is sorted.

    Without tensor parallelism there is nothing for sequence parallelism to split: such plans share a row.
    """
    dims = plan.dims
    sequence = np.asarray(dims.sequence_parallel, dtype=bool) | (np.asarray(dims.tp) == 1)
    columns = [np.asarray(column) for column in (dims.tp, dims.cp, dims.ep, plan.microbatch_size, sequence)]
    values, codes = zip(*(_distinct(column.astype(np.int64)) for column in columns), strict=True)
    key: Any = np.int64(0)
    for value, code in zip(values, codes, strict=True):
        key = key * value.size + code
    found, index = _distinct(np.asarray(key))
    places = np.unravel_index(found, [value.size for value in values])
    tp, cp, ep, microbatch, sequence = (value[place] for value, place in zip(values, places, strict=True))
    return BlockRows(
        tp=tp, cp=cp, ep=ep, microbatch_size=microbatch, sequence_parallel=sequence.astype(bool), index=index
    )


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Sorted distinct values (not negative) and, in the shape of ``values``, which of them each is."""
    if values.size and values.max() < _TABLE:
        seen = np.zeros(int(values.max()) + 1, dtype=np.int64)
        seen[values] = 1
        return np.flatnonzero(seen), (np.cumsum(seen) - 1)[values]
    found, index = np.unique(values, return_inverse=True)
    return found, index.reshape(values.shape)


_TABLE = 1 << 22
"""Largest value looked up in a table; beyond it (no degree of parallelism is) values are sorted."""
