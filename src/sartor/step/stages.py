"""Which layers every device of a pipeline holds, reduced to the few distinct devices and distinct rows of plans.

A pipeline of ``pp`` devices with ``v`` chunks each cuts a model into ``pp * v`` parts; part ``g`` is chunk ``g // pp``
of device ``g % pp``; in a V the second half of the parts is on the devices in reverse order. The embedding is on the
first part, MTP modules and the head on the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.model.shape import BlockKind, TransformerShape, blocks, layer_order
from sartor.model.training import PipelineSchedule, TrainingPlan
from sartor.units import BoolArray, Floats, IntArray, Ints, remembered

ChunkLayers = tuple[Sequence[tuple[int, ...] | None], IntArray]
"""Layers of the chunks of several pipelines (``TrainingPlan.stage_layers``), and the index of each plan's own."""


CHUNK = 8192
"""Plans summed up at once: their arrays fit in a core's cache."""


@remembered
def stage_counts(
    shape: TransformerShape,
    pp: int,
    virtual_stages: int = 1,
    stage_layers: tuple[int, ...] | None = None,
    *,
    v_shaped: bool = False,
) -> IntArray:
    """How many of each of `blocks` every chunk holds: [device, chunk, block].

    ``stage_layers`` are the layers of each part in model order. None spreads them evenly, with the remainder on the
    first parts; if there are two more parts than layers, embedding and head get a part of their own. Raises
    ``InputError`` if they are not ``pp * virtual_stages`` numbers that add up to the model.
    """
    kinds = blocks(shape)
    order = layer_order(shape)
    layers = _layers_of_parts(len(order), pp * virtual_stages, stage_layers)
    ends = np.cumsum(layers)
    passed = np.concatenate(
        [np.zeros((1, len(kinds)), np.int64), np.cumsum(np.eye(len(kinds), dtype=np.int64)[order], 0)]
    )
    counts = passed[ends] - passed[ends - layers]
    for i, block in enumerate(kinds):
        if block.kind is not BlockKind.LAYER:
            counts[0 if block.kind is BlockKind.EMBEDDING else -1, i] += int(block.count)
    devices: IntArray = counts.reshape(virtual_stages, pp, len(kinds)).swapaxes(0, 1)
    if v_shaped and virtual_stages == 2:
        devices = np.stack([devices[:, 0], devices[::-1, 1]], axis=1)
    devices.flags.writeable = False
    return devices


def plan_counts(shape: TransformerShape, plan: TrainingPlan) -> IntArray:
    """`stage_counts` of a single plan."""
    pp, virtual = int(plan.dims.pp), int(plan.virtual_stages)
    v_shaped = bool(is_v_shaped(plan.schedule, pp, virtual))
    return stage_counts(shape, pp, virtual, plan.stage_layers, v_shaped=v_shaped)


def is_v_shaped(schedule: Ints, pp: Ints, virtual_stages: Ints) -> BoolArray:
    """Whether plans place their chunks in a V."""
    v = np.asarray(schedule) >= PipelineSchedule.ZERO_BUBBLE_V
    return np.asarray(v & (np.asarray(pp) > 1) & (np.asarray(virtual_stages) == 2))


def _layers_of_parts(num_layers: int, parts: int, cuts: tuple[int, ...] | None) -> IntArray:
    if cuts is None:
        if parts == num_layers + 2:  # embedding and head in their own parts
            return np.pad(np.ones(num_layers, dtype=np.int64), 1)
        share, rest = divmod(num_layers, parts)
        return share + (np.arange(parts) < rest).astype(np.int64)
    if len(cuts) != parts or sum(cuts) != num_layers or min(cuts) < 0:
        must = f"must be {parts} numbers (pp x virtual_stages), none negative, that add up to {num_layers} layers"
        even = ", ".join(str(n) for n in _layers_of_parts(num_layers, parts, None))
        raise InputError("stage_layers", list(cuts), must, even)
    return np.array(cuts, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The distinct devices of a pipeline: few, since most hold equal layers. R rows, K blocks.

    A pipeline's time is the maximum over paths that stay at one device; among equal devices the last one's path is
    never shorter, so every row stands for its last device.
    """

    pp: int
    virtual_stages: int
    counts: IntArray
    """[R, K]: number of each block, over all chunks of the device."""
    last: IntArray
    """[R]: the last device of the row."""
    first: IntArray
    """[R]: the first device of the row."""
    before: IntArray
    """[R, R]: how many devices of the second row come before the last device of the first row."""
    before_first: IntArray
    """[R, R]: the same, before the first device of the first row."""
    times: IntArray
    """[R]: number of devices of the row."""
    pool: IntArray
    """[R]: index of the stage's pool in a mixed cluster; 0 if there is one."""


def stage_rows(counts: IntArray, pools: IntArray | None = None) -> StageRows:
    """Distinct rows of `stage_counts` summed over chunks, ordered by their first device; devices of different ``pools``
    [pp] are distinct."""
    pp, virtual, _ = counts.shape
    where = np.zeros(pp, dtype=np.int64) if pools is None else pools
    rows, first, which = _distinct_rows(np.column_stack([counts.sum(axis=1), where]))
    is_row = which[:, None] == np.arange(len(rows))
    passed = np.concatenate([np.zeros((1, len(rows)), np.int64), np.cumsum(is_row, axis=0)])
    last = pp - 1 - np.argmax(is_row[::-1], axis=0)
    return StageRows(
        pp=pp,
        virtual_stages=virtual,
        counts=rows[:, :-1],
        last=last,
        first=first,
        before=passed[last],
        before_first=passed[first],
        times=passed[-1],
        pool=rows[:, -1],
    )


def each_device(counts: IntArray, virtual_stages: int, pools: IntArray | None = None) -> StageRows:
    """Every device of ``counts`` [devices, blocks] as its own row, equal or not."""
    order = np.arange(len(counts))
    before = (order[:, None] > order).astype(np.int64)
    return StageRows(
        pp=len(counts),
        virtual_stages=virtual_stages,
        counts=counts,
        last=order,
        first=order,
        before=before,
        before_first=before,
        times=np.ones_like(order),
        pool=np.zeros_like(order) if pools is None else pools,
    )


def summed(counts: Floats, values: Any) -> Any:
    """``counts`` [..., K] @ ``values`` [K, n] = [..., n], added one after the other, so that an entry does not depend
    on the other columns (the last bits of a BLAS GEMM, and of NumPy's sum over a lone column, do)."""
    weights = np.asarray(counts, dtype=np.float64)
    total = weights[..., 0, None] * values[0]
    for k in range(1, weights.shape[-1]):
        if weights[..., k].any():
            total = total + weights[..., k, None] * values[k]
    return total


def _distinct_rows(table: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct rows in order of appearance, the position where each first appears, and the index of every row."""
    seen: dict[tuple[Any, ...], int] = {}
    which = np.array([seen.setdefault(tuple(row), len(seen)) for row in table.tolist()], dtype=np.int64)
    first = np.array([int(np.argmax(which == r)) for r in range(len(seen))], dtype=np.int64)
    return table[first], first, which


def flat_columns(plan: TrainingPlan) -> tuple[dict[str, IntArray], tuple[int, ...]]:
    """Every degree and field of the plans as one flat array each, and the shape they broadcast to."""
    columns = plan.columns
    arrays = np.broadcast_arrays(*(np.asarray(column, dtype=np.int64) for column in columns.values()))
    return {name: np.ravel(array) for name, array in zip(columns, arrays, strict=True)}, arrays[0].shape


def columns_of_each(
    plans: Sequence[TrainingPlan],
) -> tuple[dict[str, IntArray], list[tuple[int, ...] | None], IntArray]:
    """Flat columns of single plans together, their distinct ``stage_layers``, and each plan's index into these."""
    each = [plan.columns for plan in plans]
    columns = {name: np.array([plan[name] for plan in each], dtype=np.int64) for name in each[0]}
    splits: dict[tuple[int, ...] | None, int] = {}
    split = np.array([splits.setdefault(plan.stage_layers, len(splits)) for plan in plans], dtype=np.int64)
    return columns, list(splits), split


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
    key, size = np.zeros(np.broadcast_shapes(*(column.shape for column in arrays)), dtype=np.int64), 1
    for column in arrays:
        least = int(column.min(initial=TABLE))
        base = int(column.max(initial=least)) - least + 1
        if base == 1:  # equal in all rows
            continue
        if size * base > limit:  # renumber the values that occur
            rows, key = _distinct(key)
            size = rows.size
        code, count = (column - least, base) if size * base <= limit else _coded(column)
        key, size = np.broadcast_to(code, key.shape) if size == 1 else key * count + code, size * count
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
        rows, position = np.flatnonzero(seen), np.empty(seen.size, dtype=np.int64)
        position[rows] = np.arange(rows.size)
        return rows, position.take(values)
    distinct, index = np.unique(values, return_inverse=True)
    return distinct, index.reshape(values.shape)


def grouped(index: IntArray, size: int) -> tuple[IntArray, list[int]]:
    """Positions in the order of their ``index`` below ``size``, and how many come before each index, then all."""
    narrow = index.astype(np.uint16) if size <= 1 << 16 else index  # sorted by counting
    return np.argsort(narrow, kind="stable"), [0, *np.bincount(index, minlength=size).cumsum().tolist()]


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


def round_of(pp: int, microbatches: Ints) -> Ints:
    """Microbatches that pass through a chunk before the next chunk: pp, or the smallest number from pp on of which the
    last round has all or at least pp (Megatron-Core checks it)."""
    values, index = np.unique(np.asarray(microbatches), return_inverse=True)
    sizes = np.arange(pp, 4 * pp)
    rest = values[:, None] % sizes
    legal = (rest == 0) | (rest >= pp)
    size = np.where(legal.any(axis=1), sizes[legal.argmax(axis=1)], values)
    return size[index].reshape(np.shape(microbatches))
