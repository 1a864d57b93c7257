"""What the search may choose from: a grid of field values around the baseline, and the points of it that are the
same size.

A ``Space`` is a handful of axes: most hold one field; query heads, key/value heads and head dimension share one,
since only some combinations exist. The last axis is the width that is solved for: given everything else, parameters
grow with it, so a bisection finds the stretch that keeps the model's size, exactly and without touching the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.errors import InputError
from sartor.model.counts import ParamCounts, count_params
from sartor.model.lower import feasible
from sartor.model.parallel import ParallelDims
from sartor.model.shape import EDITABLE, AttentionMixer, TransformerShape, edit
from sartor.model.workload import AttentionKernel, Workload
from sartor.search.frozen import frozen_by_structure
from sartor.search.quality import QualityGuard, allowed
from sartor.units import round_up

IntArray = npt.NDArray[np.int64]

FLASH_HEAD_DIMS = (64, 96, 128, 192, 256)
"""Head dimensions FlashAttention-3 is compiled for (hopper/generate_kernels.py of the flash-attention repository);
FlashAttention-2 has all of them too."""

UNFUSED_HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 256)
"""Multiples of 16 that published models use: matrix products take any."""

KEEP_TP = (2, 4)
"""Tensor-parallel degrees that heads go on splitting over, where the baseline's do: a shape of 43 heads is of no use
to whoever later needs two devices."""

CHUNK = 500_000
"""Combinations (before the width is solved for) looked at together; bounds memory to a few hundred megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One choice: ``values[field]`` are arrays of one length, entry i of each belonging together."""

    values: dict[str, IntArray]

    @property
    def size(self) -> int:
        return len(next(iter(self.values.values()))) if self.values else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Axes around a baseline. Every combination is a candidate before size and quality are asked."""

    shape: TransformerShape
    axes: tuple[Axis, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Combinations in the grid."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def baseline(self) -> dict[str, int]:
        """The fields the axes hold, as the baseline has them."""
        own = self.shape.fields()
        return {field: int(own[field]) for axis in self.axes for field in axis.values}

    def grid(self) -> dict[str, IntArray]:
        """Fields as an open grid: axis i of the space is axis i of its fields' arrays, all others have length 1."""
        rank = len(self.axes)
        return {
            field: values.reshape([-1 if j == i else 1 for j in range(rank)])
            for i, axis in enumerate(self.axes)
            for field, values in axis.values.items()
        }

    def at(self, index: Sequence[IntArray]) -> dict[str, IntArray]:
        """Fields at points given by their position on every axis (or on the first few)."""
        return {
            field: values[i] for axis, i in zip(self.axes, index, strict=False) for field, values in axis.values.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Combinations of a space that are the same size as the baseline: positions [N] on every axis, and counts [N]."""

    space: Space
    index: tuple[IntArray, ...]
    num_params: IntArray

    @property
    def size(self) -> int:
        return len(self.num_params)

    def fields(self) -> dict[str, IntArray]:
        return self.space.at(self.index)

    def take(self, chosen: Any) -> Points:
        return Points(space=self.space, index=tuple(i[chosen] for i in self.index), num_params=self.num_params[chosen])


def build_space(
    workload: Workload,
    dims: ParallelDims,
    guard: QualityGuard | None = None,
    freeze: Iterable[str] = (),
    extra: dict[str, Sequence[int]] | None = None,
    keep_tp: Sequence[int] = KEEP_TP,
) -> Space:
    """The default grid around a workload's shape: values hardware likes, within the guard, the baseline's own among
    them. ``extra`` adds values of single fields; heads keep splitting over the degrees in ``keep_tp`` that the
    baseline's split over. Raises ``InputError`` for a field in ``freeze`` that none is.
    """
    guard = guard or QualityGuard()
    shape = workload.shape
    own = {name: int(value) for name, value in shape.fields().items()}
    held = {**frozen_by_structure(shape, workload), **dict.fromkeys(_checked(freeze), "")}
    free = {name for name in own if name not in held}
    near = _Near(own=own, guard=guard, dims=dims, free=free, extra=extra or {}, keep_tp=tuple(keep_tp))
    axes = [
        _axis(num_layers=near.layers()),
        _axis(hidden_size=near.hidden()),
        _attention_axis(near, shape, workload),
        _axis(vocab_size=near.vocab()),
        _axis(**({"num_experts": near.experts()} if "num_experts" in own else {})),
        _axis(**near.width()),
    ]
    notes = tuple(f"{field} is kept: {why}" for field, why in held.items() if why)
    return Space(shape=shape, axes=tuple(axes), assumptions=notes)


def same_size(space: Space, dims: ParallelDims, tolerance: float = 0.01, guard: QualityGuard | None = None) -> Points:
    """Every combination whose parameters are within ``tolerance`` (a share) of the baseline's, that ``dims`` can
    split and ``guard`` lets through; the baseline itself is always one. In the grid's lexicographic order.
    """
    guard = guard or QualityGuard()
    if not (math.isfinite(tolerance) and 0 <= tolerance <= 1):
        raise InputError("params_tolerance", tolerance, "must be a share from 0 to 1", "0.01")
    total = int(count_params(space.shape).total)
    low, high = math.ceil(total * (1 - tolerance)), math.floor(total * (1 + tolerance))
    parts = []
    for layers in _chunks(space):
        before = _before_width(space, guard, layers)
        index = _expand(before, _bisect(space, before, low), _bisect(space, before, high + 1))
        parts.append(_checked_points(space, index, dims, guard))
    return _joined(parts)


def _checked(freeze: Iterable[str]) -> list[str]:
    for field in freeze:
        if field not in EDITABLE:
            raise InputError("freeze", field, "must be fields of the shape", ", ".join(EDITABLE))
    return list(freeze)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """Values near the baseline's, field by field."""

    own: dict[str, int]
    guard: QualityGuard
    dims: ParallelDims
    free: set[str]
    extra: dict[str, Sequence[int]]
    keep_tp: tuple[int, ...]

    @property
    def degrees(self) -> list[int]:
        """Tensor-parallel degrees that heads must split over."""
        kept = [t for t in self.keep_tp if self.own["num_heads"] % t == 0 and _shares(self.own["num_kv_heads"], t)]
        return [self.tp, *kept]

    @property
    def tp(self) -> int:
        return int(self.dims.tp)

    def layers(self) -> IntArray:
        share = min(self.guard.depth * self.guard.width, 0.9)
        step = int(self.dims.pp) * max(1, round(self.own["num_layers"] / 64))
        return self.around("num_layers", 1 - share, 1 + share, step)

    def hidden(self) -> IntArray:
        """Multiples of 64 (128 from 8192, 256 from 16384 up) within 20%."""
        h = self.own["hidden_size"]
        share = min(0.2 * self.guard.width, 0.9)
        return self.around("hidden_size", 1 - share, 1 + share, 64 if h < 8192 else 128 if h < 16384 else 256)

    def vocab(self) -> IntArray:
        """The baseline's, and upwards to multiples of 64, 128 and 256 on every tensor-parallel rank (at most 5%)."""
        v = self.own["vocab_size"]
        padded = [int(round_up(v, step * ranks)) for step in (64, 128, 256) for ranks in {1, self.tp}]
        return self._values("vocab_size", [p for p in padded if p <= 1.05 * v])

    def experts(self) -> IntArray:
        e, share = self.own["num_experts"], min(self.guard.experts * self.guard.width, 0.9)
        step = math.lcm(int(self.dims.ep), 1 if e < 32 else 8)
        return self.around("num_experts", 1 - share, 1 + share, step)

    def width(self) -> dict[str, IntArray]:
        """Feed-forward width: of the experts where there are any (dense layers among them then stay), else the dense
        one. Multiples of 64 on every rank, coarser for very wide parts."""
        field = "expert_ffn_hidden_size" if "expert_ffn_hidden_size" in self.own else "ffn_hidden_size"
        if field not in self.own:
            return {}
        share = min(self.guard.ffn * self.guard.width, 0.9)
        hidden = self.hidden()
        low = (1 - share) * hidden.min() / self.own["hidden_size"]
        high = (1 + share) * hidden.max() / self.own["hidden_size"]
        step = 64 * self.tp
        while (high - low) * self.own[field] / step > 256:
            step *= 2
        return {field: self.around(field, low, high, step)}

    def around(self, field: str, low: float, high: float, step: int) -> IntArray:
        """Multiples of ``step`` from ``low`` to ``high`` times the baseline's value."""
        own = self.own[field]
        start, stop = math.ceil(own * low / step) * step, math.floor(own * high)
        return self._values(field, range(max(start, step), stop + 1, step))

    def _values(self, field: str, values: Iterable[int]) -> IntArray:
        """Sorted, with the baseline's own value and any extra ones; the baseline's alone where the field is frozen."""
        chosen = {*values, *self.extra.get(field, ())} if field in self.free else set()
        return np.asarray(sorted({*chosen, self.own[field]}), dtype=np.int64)


def _axis(**values: IntArray) -> Axis:
    return Axis(values=values)


def _attention_axis(near: _Near, shape: TransformerShape, workload: Workload) -> Axis:
    """Combinations of query heads, key/value heads and head dimension."""
    mixer = shape.attention
    if mixer is None:
        return _axis()
    if not isinstance(mixer, AttentionMixer):
        return _axis(num_heads=_latent_heads(near))
    rows = sorted({*_head_rows(near, workload), _own_heads(near)})
    columns = np.asarray(rows, dtype=np.int64).T
    return _axis(num_heads=columns[0], num_kv_heads=columns[1], head_dim=columns[2])


def _own_heads(near: _Near) -> tuple[int, int, int]:
    return near.own["num_heads"], near.own["num_kv_heads"], near.own["head_dim"]


def _latent_heads(near: _Near) -> IntArray:
    """Heads of latent attention within 25%: they add parameters, since their inner sizes stay."""
    share = min(0.25 * near.guard.width, 0.9)
    return near.around("num_heads", 1 - share, 1 + share, math.lcm(near.tp, 8))


def _head_rows(near: _Near, workload: Workload) -> Iterable[tuple[int, int, int]]:
    """Heads x head_dim equals the hidden size where the baseline's does; else it keeps near its own width."""
    a0, _, d0 = _own_heads(near)
    known = FLASH_HEAD_DIMS if workload.attention_kernel is AttentionKernel.FLASH else UNFUSED_HEAD_DIMS
    head_dims = sorted({d0, *known, *near.extra.get("head_dim", ())}) if "head_dim" in near.free else [d0]
    for d in head_dims:
        for a in _head_counts(near, d):
            if "num_heads" in near.free or a == a0:
                yield from ((a, g, d) for g in _kv_counts(near, a))


def _head_counts(near: _Near, head_dim: int) -> Iterable[int]:
    a0, _, d0 = _own_heads(near)
    most = a0 * near.guard.heads**near.guard.width
    if is_coupled(near.own):
        counts = {int(h) // head_dim for h in near.hidden() if h % head_dim == 0}
    else:
        step = math.lcm(near.tp, max(1, near.own["num_kv_heads"]))
        counts = {*range(step, int(most) + 1, step), a0 * d0 // head_dim}
    counts |= set(near.extra.get("num_heads", ()))
    return sorted(a for a in counts if 0 < a <= most and all(a % t == 0 for t in near.degrees))


def _kv_counts(near: _Near, heads: int) -> Iterable[int]:
    """Divisors of the heads that split over the ranks or are whole on several. Multi-head and multi-query models stay
    what they are."""
    a0, g0, _ = _own_heads(near)
    if a0 == g0:
        return [heads] if "num_kv_heads" in near.free or heads == g0 else []
    if g0 == 1 or "num_kv_heads" not in near.free:
        return [g0] if heads % g0 == 0 else []
    divisors = (g for g in range(2, heads) if heads % g == 0)
    return [g for g in divisors if all(_shares(g, t) for t in near.degrees)]


def _shares(kv_heads: int, tp: int) -> bool:
    """Whether every rank gets whole key/value heads, its own or one it shares with others."""
    return kv_heads % tp == 0 or tp % kv_heads == 0


def is_coupled(fields: Any) -> Any:
    """Whether heads x head_dim is the hidden size, elementwise: then the head dimension follows from the two."""
    return fields["num_heads"] * fields["head_dim"] == fields["hidden_size"]


def _chunks(space: Space) -> list[IntArray]:
    """Positions on the first axis, in groups small enough to look at together."""
    first, *others = (axis.size for axis in space.axes[:-1])
    return np.array_split(np.arange(first), min(first, math.ceil(first * math.prod(others) / CHUNK)))


def _before_width(space: Space, guard: QualityGuard, layers: IntArray) -> tuple[IntArray, ...]:
    """Combinations of all axes but the last that the guard lets through; the solved width is not yet chosen."""
    sizes = [axis.size for axis in space.axes[1:-1]]
    index = tuple(i.ravel() for i in np.meshgrid(layers, *(np.arange(n) for n in sizes), indexing="ij"))
    fields = space.at(index)
    mask = np.broadcast_to(allowed(guard, fields, space.baseline), index[0].shape)
    if "head_dim" in fields and is_coupled(space.baseline):
        mask = mask & is_coupled(fields)
    return tuple(i[mask] for i in index)


def _bisect(space: Space, before: tuple[IntArray, ...], bound: int) -> IntArray:
    """For every combination, how many widths give fewer parameters than ``bound`` (parameters grow with the width)."""
    low = np.zeros(before[0].shape, dtype=np.int64)
    high = np.full_like(low, space.axes[-1].size)
    while np.any(low < high):
        middle = (low + high) // 2
        probe = np.minimum(middle, space.axes[-1].size - 1)
        fewer = (_count(space, (*before, probe)).total < bound) & (middle < high)
        low, high = np.where(fewer, middle + 1, low), np.where(fewer, high, np.minimum(high, middle))
    return low


def _count(space: Space, index: Sequence[IntArray]) -> ParamCounts:
    return count_params(edit(space.shape, **space.at(index)))


def _expand(before: tuple[IntArray, ...], first: IntArray, last: IntArray) -> tuple[IntArray, ...]:
    """Each combination once for every width from ``first`` up to, not including, ``last``."""
    many = np.maximum(last - first, 0)
    starts = np.cumsum(many) - many
    width = np.arange(int(many.sum())) - np.repeat(starts - first, many)
    return (*(np.repeat(i, many) for i in before), width)


def _checked_points(space: Space, index: tuple[IntArray, ...], dims: ParallelDims, guard: QualityGuard) -> Points:
    """What else must hold: the guard on the width, whole shards, and for experts what one token uses."""
    fields, own = space.at(index), space.baseline
    counts = _count(space, index)
    mask = allowed(guard, fields, own) & np.asarray(feasible(edit(space.shape, **fields), dims))
    active = count_params(space.shape).active
    if "num_experts" in own:
        mask = mask & (np.abs(counts.active - active) <= max(guard.active * guard.width, 1e-12) * active)
    is_baseline = np.all([fields[name] == own[name] for name in own], axis=0)
    chosen = np.flatnonzero(np.broadcast_to(mask | is_baseline, index[0].shape))
    total = np.broadcast_to(np.asarray(counts.total, dtype=np.int64), index[0].shape)
    return Points(space=space, index=tuple(i[chosen] for i in index), num_params=total[chosen])


def _joined(parts: Sequence[Points]) -> Points:
    return Points(
        space=parts[0].space,
        index=tuple(np.concatenate(columns) for columns in zip(*(part.index for part in parts), strict=True)),
        num_params=np.concatenate([part.num_params for part in parts]),
    )
