"""Distinct rows of columns, and of the plan fields that determine a block's time: computed once for a million plans and
mapped back by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.model.training import TrainingPlan
from sartor.units import BoolArray, IntArray


def flat_columns(plan: TrainingPlan) -> tuple[dict[str, IntArray], tuple[int, ...]]:
    """Every degree and field of the plans as one flat array each, and the shape they broadcast to."""
    columns = plan.columns
    arrays = np.broadcast_arrays(*(np.asarray(column, dtype=np.int64) for column in columns.values()))
    return {name: np.ravel(array) for name, array in zip(columns, arrays, strict=True)}, arrays[0].shape


def plans_of(columns: Mapping[str, IntArray]) -> TrainingPlan:
    """The plans with these columns (`flat_columns`), and defaults for the rest."""
    typed = {name: x.astype(bool) if name in _SWITCHES else x for name, x in columns.items()}
    return TrainingPlan().with_columns(**typed)


_SWITCHES = {name for name, value in TrainingPlan().columns.items() if isinstance(value, bool)}


def entries(record: Any, index: Any) -> Any:
    """The entries at ``index`` of every array in a record, its records and its tuples."""
    if isinstance(record, np.ndarray):
        return record[index] if record.ndim else record
    if isinstance(record, tuple):
        return tuple(entries(part, index) for part in record)
    names = getattr(record, "__dataclass_fields__", ())
    return replace(record, **{name: entries(getattr(record, name), index) for name in names}) if names else record


TABLE = 1 << 22
"""Largest value looked up in a table; larger values (no degree of parallelism is) are sorted."""


def distinct_rows(columns: Sequence[Any]) -> tuple[list[IntArray], IntArray]:
    """Distinct rows of equally long integer columns (values >= -1), in ascending order, and the row index of each
    entry. Found by counting, without sorting."""
    arrays = [np.asarray(column, dtype=np.int64) for column in columns]
    if all(column.size == 1 for column in arrays):
        whole = max((column.shape for column in arrays), key=len)
        return [column.ravel() for column in arrays], np.zeros(whole, dtype=np.int64)
    limit = _limit(max(column.size for column in arrays))
    key, size = np.zeros((), dtype=np.int64), 1
    for column in arrays:
        base = int(column.max(initial=-1)) + 2
        if size * base > limit:  # renumber the values that occur
            rows, key = _distinct(key)
            size = rows.size
        code, count = (column + 1, base) if size * base <= limit else _coded(column)
        key, size = key * count + code, size * count
    rows, index = _distinct(key)
    where = np.empty(rows.size, dtype=np.int64)
    where[index] = np.arange(index.size).reshape(index.shape)
    return [np.broadcast_to(column, key.shape).ravel()[where] for column in arrays], index


def _coded(column: IntArray) -> tuple[IntArray, int]:
    values, code = _distinct(column + 1)
    return code, values.size


def _limit(size: int) -> int:
    """Largest value that is looked up in a table; more values allow a larger table."""
    return min(TABLE, 16 * size + 4096)


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    if values.size and values.max() < _limit(values.size):
        seen = np.zeros(int(values.max()) + 1, dtype=bool)
        seen[values] = True
        return np.flatnonzero(seen), (np.cumsum(seen) - 1).take(values)
    distinct, index = np.unique(values, return_inverse=True)
    return distinct, index.reshape(values.shape)


def side_by_side(arrays: Sequence[Any]) -> Any:
    """Arrays [R, n] with different R side by side, [largest R, sum of n], padded with zero rows."""
    if len(arrays) == 1:
        return arrays[0]
    ranks = max(len(array) for array in arrays)
    out = np.zeros((ranks, sum(array.shape[1] for array in arrays)), dtype=arrays[0].dtype)
    start = 0
    for array in arrays:
        out[: len(array), start : start + array.shape[1]] = array
        start += array.shape[1]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Distinct (tp, cp, ep, microbatch_size, sequence_parallel), one array each, and the row index of every plan.

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

    Sequence parallelism has no effect if tp is 1: such plans share a row.
    """
    dims = plan.dims
    sequence = np.asarray(dims.sequence_parallel, dtype=bool) | (np.asarray(dims.tp) == 1)
    columns = np.broadcast_arrays(dims.tp, dims.cp, dims.ep, plan.microbatch_size, sequence)
    (tp, cp, ep, microbatch, sequence), index = distinct_rows(columns)
    return BlockRows(
        tp=tp, cp=cp, ep=ep, microbatch_size=microbatch, sequence_parallel=sequence.astype(bool), index=index
    )
