"""Distinct combinations of columns: what a million plans share is computed once and handed out by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

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
