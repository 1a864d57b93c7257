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
    values, codes = zip(*(_distinct(np.asarray(column, dtype=np.int64) + 1) for column in columns), strict=True)
    key: Any = np.int64(0)
    for value, code in zip(values, codes, strict=True):
        key = key * value.size + code
    found, index = _distinct(key)
    places = np.unravel_index(found, [value.size for value in values])
    return [value[place] - 1 for value, place in zip(values, places, strict=True)], index


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    if values.size and values.max() < min(TABLE, 64 * values.size + 4096):
        seen = np.zeros(int(values.max()) + 1, dtype=np.int64)
        seen[values] = 1
        return np.flatnonzero(seen), (np.cumsum(seen) - 1)[values]
    found, index = np.unique(values, return_inverse=True)
    return found, index.reshape(values.shape)
