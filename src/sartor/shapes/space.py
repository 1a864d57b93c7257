"""The search space: a grid of field values around the baseline, and its points of the same size.

A ``Space`` has a few axes: most hold one field; query heads, key/value heads and head dimension share one, since only
some combinations exist. The last axis is the width that is solved for: parameters grow with it, so a bisection finds
the range that keeps the model's size exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.model.counts import ParamCounts, count_params
from sartor.model.editing import edit
from sartor.model.lower import feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims
from sartor.shapes.frozen import mixed
from sartor.shapes.quality import QualityGuard, allowed
from sartor.units import IntArray

CHUNK = 500_000
"""Combinations processed together (before the width is solved for); bounds memory to a few hundred megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAxis:
    """One axis: ``values[field]`` are arrays of one length; entries at the same position belong together."""

    values: dict[str, IntArray]

    @property
    def size(self) -> int:
        return len(next(iter(self.values.values()))) if self.values else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Axes around a baseline. Every combination is a candidate before size and quality are checked."""

    shape: TransformerShape
    axes: tuple[ShapeAxis, ...]
    mixes: Mapping[str, IntArray] = field(default_factory=dict)
    """Expert fields of the mixtures of the baseline's size (``experts.equal_mixes``), the baseline's first."""
    assumptions: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Combinations in the grid."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def baseline(self) -> dict[str, int]:
        """The baseline's values of the fields on the axes."""
        values = self.shape.fields()
        return {field: int(values[field]) for axis in self.axes for field in axis.values}

    def edited(self, fields: Mapping[str, IntArray]) -> TransformerShape:
        """The shape with these fields; a field that differs between layers keeps its values."""
        frozen_fields = mixed(self.shape)
        return edit(self.shape, **{name: values for name, values in fields.items() if name not in frozen_fields})

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
    """Combinations of a space with the baseline's size: positions [N] on every axis, and parameter counts [N], total
    and used per token."""

    space: Space
    index: tuple[IntArray, ...]
    num_params: IntArray
    num_active_params: IntArray

    @property
    def size(self) -> int:
        return len(self.num_params)

    def fields(self) -> dict[str, IntArray]:
        return self.space.at(self.index)

    def with_own(self, field: str) -> Points:
        """The same points with the baseline's value of a field."""
        rows = [
            np.full_like(i, int(np.flatnonzero(axis.values[field] == self.space.baseline[field])[0]))
            if field in axis.values
            else i
            for axis, i in zip(self.space.axes, self.index, strict=True)
        ]
        return replace(self, index=tuple(rows))

    def take(self, chosen: Any) -> Points:
        return Points(
            space=self.space,
            index=tuple(i[chosen] for i in self.index),
            num_params=self.num_params[chosen],
            num_active_params=self.num_active_params[chosen],
        )


def same_size(space: Space, dims: ParallelDims, tolerance: float = 0.01, guard: QualityGuard | None = None) -> Points:
    """Every combination whose parameters are within ``tolerance`` (a share) of the baseline's, that ``dims`` can split
    and ``guard`` allows, always including the baseline itself; in the grid's lexicographic order.
    """
    guard = guard or QualityGuard()
    if not (math.isfinite(tolerance) and 0 <= tolerance <= 1):
        raise InputError("params_tolerance", tolerance, "must be a share from 0 to 1", "0.01")
    total = int(count_params(space.shape).total)
    low, high = math.ceil(total * (1 - tolerance)), math.floor(total * (1 + tolerance))
    parts = []
    for layers in _chunks(space):
        before = _before_width(space, guard, layers)
        index = _expand(before, *_widths_between(space, before, low, high))
        parts.append(_checked_points(space, index, dims, guard, tolerance))
    return _joined(parts)


def is_coupled(fields: Any) -> Any:
    """Whether heads x head_dim is the hidden size, elementwise; the head dimension then follows from the two."""
    return fields["num_heads"] * fields["head_dim"] == fields["hidden_size"]


def _chunks(space: Space) -> list[IntArray]:
    """Positions on the first axis, in groups small enough to process together."""
    first, *others = (axis.size for axis in space.axes[:-1])
    return np.array_split(np.arange(first), min(first, math.ceil(first * math.prod(others) / CHUNK)))


def _before_width(space: Space, guard: QualityGuard, layers: IntArray) -> tuple[IntArray, ...]:
    """Combinations of all axes but the last that the guard allows; the width is not solved yet."""
    sizes = [axis.size for axis in space.axes[1:-1]]
    index = tuple(i.ravel() for i in np.meshgrid(layers, *(np.arange(n) for n in sizes), indexing="ij"))
    fields = space.at(index)
    mask = np.broadcast_to(allowed(guard, fields, space.baseline), index[0].shape)
    if "head_dim" in fields and is_coupled(space.baseline):
        mask = mask & is_coupled(fields)
    return tuple(i[mask] for i in index)


def _widths_between(space: Space, before: tuple[IntArray, ...], low: int, high: int) -> tuple[IntArray, IntArray]:
    """For every combination, the first width with at least ``low`` parameters and the first with more than ``high``.

    Parameters are linear in the width of the feed-forward parts, so two counts give them at every width.
    """
    last = space.axes[-1].size - 1
    widths = next(iter(space.axes[-1].values.values())) if space.axes[-1].values else np.zeros(1, dtype=np.int64)
    narrow, wide = (
        np.broadcast_to(_count(space, (*before, np.full_like(before[0], end))).total, before[0].shape)
        for end in (0, last)
    )
    slope = (wide - narrow) // max(int(widths[last] - widths[0]), 1)

    def first(bound: int) -> IntArray:
        beyond = -((narrow - bound) // np.maximum(slope, 1))  # ceil: how much wider than the narrowest it must be
        position: IntArray = np.searchsorted(widths - widths[0], beyond)
        return np.where(slope > 0, position, np.where(narrow < bound, last + 1, 0))

    return first(low), first(high + 1)


def _count(space: Space, index: Sequence[IntArray]) -> ParamCounts:
    return count_params(space.edited(space.at(index)))


def _expand(before: tuple[IntArray, ...], first: IntArray, last: IntArray) -> tuple[IntArray, ...]:
    """Each combination once for every width from ``first`` up to, not including, ``last``."""
    many = np.maximum(last - first, 0)
    starts = np.cumsum(many) - many
    width = np.arange(int(many.sum())) - np.repeat(starts - first, many)
    return (*(np.repeat(i, many) for i in before), width)


def _checked_points(
    space: Space, index: tuple[IntArray, ...], dims: ParallelDims, guard: QualityGuard, tolerance: float
) -> Points:
    """The remaining conditions: the guard on the width, whole shards, and, for experts, parameters per token."""
    fields, baseline = space.at(index), space.baseline
    counts = _count(space, index)
    mask = allowed(guard, fields, baseline) & np.asarray(feasible(space.edited(fields), dims))
    active = count_params(space.shape).active
    if "num_experts" in baseline:
        mask = mask & (np.abs(counts.active - active) <= tolerance * active)
    is_baseline = np.all([fields[name] == baseline[name] for name in baseline], axis=0)
    chosen = np.flatnonzero(np.broadcast_to(mask | is_baseline, index[0].shape))
    total, used = (
        np.broadcast_to(np.asarray(count, dtype=np.int64), index[0].shape) for count in (counts.total, counts.active)
    )
    return Points(
        space=space,
        index=tuple(i[chosen] for i in index),
        num_params=total[chosen],
        num_active_params=used[chosen],
    )


def _joined(parts: Sequence[Points]) -> Points:
    return Points(
        space=parts[0].space,
        index=tuple(np.concatenate(columns) for columns in zip(*(part.index for part in parts), strict=True)),
        num_params=np.concatenate([part.num_params for part in parts]),
        num_active_params=np.concatenate([part.num_active_params for part in parts]),
    )
