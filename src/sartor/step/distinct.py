"""Distinct combinations of columns, and of what decides how long a block takes: what a million plans share is computed
once and handed out by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.model.training import TrainingPlan
from sartor.units import BoolArray, IntArray

TABLE = 1 << 22
"""Largest value looked up in a table; beyond it (no degree of parallelism is) values are sorted."""


def distinct_rows(columns: Sequence[Any]) -> tuple[list[IntArray], IntArray]:
    """Distinct combinations of equally long columns of integers not below -1, in ascending order, and which of them
    each entry is. Found by counting: no column is sorted."""
    given = [np.asarray(column, dtype=np.int64) for column in columns]
    limit = _limit(max(column.size for column in given))
    key, size = np.zeros((), dtype=np.int64), 1
    for column in given:
        most = int(column.max(initial=-1)) + 2
        if size * most > limit:  # fewer are used than could be
            found, key = _distinct(key)
            size = found.size
        code, count = (column + 1, most) if size * most <= limit else _coded(column)
        key, size = key * count + code, size * count
    found, index = _distinct(key)
    where = np.empty(found.size, dtype=np.int64)
    where[index] = np.arange(index.size).reshape(index.shape)
    return [np.broadcast_to(column, key.shape).ravel()[where] for column in given], index


def _coded(column: IntArray) -> tuple[IntArray, int]:
    found, code = _distinct(column + 1)
    return code, found.size


def _limit(size: int) -> int:
    """Largest value that is looked up in a table: that of many values may be large."""
    return min(TABLE, 16 * size + 4096)


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    if values.size and values.max() < _limit(values.size):
        seen = np.zeros(int(values.max()) + 1, dtype=bool)
        seen[values] = True
        return np.flatnonzero(seen), (np.cumsum(seen) - 1).take(values)
    found, index = np.unique(values, return_inverse=True)
    return found, index.reshape(values.shape)


def side_by_side(arrays: Sequence[Any]) -> Any:
    """Arrays [R, n] of several R next to each other, [most R, all n]: those of fewer rows are filled up with zeros."""
    ranks = max(len(each) for each in arrays)
    out = np.zeros((ranks, sum(each.shape[1] for each in arrays)), dtype=arrays[0].dtype)
    start = 0
    for each in arrays:
        out[: len(each), start : start + each.shape[1]] = each
        start += each.shape[1]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Distinct (tp, cp, ep, microbatch_size, sequence_parallel), one array each, and which of them every plan has.

    ``index`` has the shape these fields of the plan broadcast to, () for a single plan.
    """

    tp: IntArray
    cp: IntArray
    ep: IntArray
    microbatch_size: IntArray
    sequence_parallel: BoolArray
    index: IntArray

    @property
    def size(self) -> int:
        return self.tp.size


def block_rows(plan: TrainingPlan) -> BlockRows:
    """The distinct rows of a plan's arrays, in ascending order.

    Without tensor parallelism there is nothing for sequence parallelism to split: such plans share a row.
    """
    dims = plan.dims
    sequence = np.asarray(dims.sequence_parallel, dtype=bool) | (np.asarray(dims.tp) == 1)
    columns = np.broadcast_arrays(dims.tp, dims.cp, dims.ep, plan.microbatch_size, sequence)
    (tp, cp, ep, microbatch, sequence), index = distinct_rows(columns)
    return BlockRows(
        tp=tp, cp=cp, ep=ep, microbatch_size=microbatch, sequence_parallel=sequence.astype(bool), index=index
    )
