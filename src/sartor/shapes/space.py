"""The search space: a grid of field values around the baseline, its points, and fields that cannot be searched.

A ``Space`` has a few axes: most hold one field; query heads, key/value heads and head dimension share one, since only
some combinations exist. The last axis is the width that is solved for: parameters grow with it, so a bisection finds
the range that keeps the model's size exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.model.counts import ParamCounts, count_params
from sartor.model.editing import edit
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    MoeFfn,
    SharedWidth,
    StateSpaceMixer,
    VectorRole,
)
from sartor.model.lower import feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.shapes.quality import QualityGuard, allowed, loss_change
from sartor.units import IntArray

EXPERT_FIELDS = (
    "num_experts",
    "experts_per_token",
    "expert_ffn_hidden_size",
    "num_shared_experts",
    "shared_ffn_hidden_size",
)
"""Sizes of a mixture of experts; at equal total and active parameters none changes alone."""


def frozen_by_structure(shape: TransformerShape, workload: Workload) -> dict[str, str]:
    """Field -> why a change of it would make a different model."""
    reasons = {
        **mixed(shape),
        **_latent(shape),
        **_given(shape),
        **_experts(shape),
        **_hidden(shape),
        **_layers(shape),
    }
    if not shape.lm_head and shape.encoder_only:
        reasons["vocab_size"] = "no matrix multiplication runs over the vocabulary"
    return {field: why for field, why in reasons.items() if field in shape.fields()}


def _layers_of(shape: TransformerShape) -> list[Layer]:
    return [run.layer for run in shape.main.runs]


def mixed(shape: TransformerShape) -> dict[str, str]:
    """Fields that differ between layers, so one value for all would be a different model."""
    seen: dict[str, set[Any]] = {}
    for name, value in (pair for layer in _layers_of(shape) for pair in _sizes(layer)):
        seen.setdefault(name, set()).add(value)
    return {
        name: f"differs between layers ({', '.join(str(v) for v in sorted(values))})"
        for name, values in seen.items()
        if len(values) > 1
    }


def _sizes(layer: Layer) -> Iterator[tuple[str, Any]]:
    for mixer in layer.mixers:
        if isinstance(mixer, (AttentionMixer, LatentAttentionMixer)):
            yield "num_heads", mixer.num_heads
            yield "num_kv_heads", mixer.num_kv_heads
            yield "head_dim", mixer.head_dim
    for part in layer.all_ffns:
        if isinstance(part, DenseFfn):
            yield "ffn_hidden_size", part.ffn_hidden_size
        else:
            yield "num_experts", part.num_experts
            yield "experts_per_token", part.experts_per_token
            yield "expert_ffn_hidden_size", part.expert.ffn_hidden_size
            if part.shared is not None and part.shared_width is SharedWidth.COUNTED:
                yield "num_shared_experts", part.num_shared
            elif part.shared is not None:
                yield "shared_ffn_hidden_size", part.shared.ffn_hidden_size


def _latent(shape: TransformerShape) -> dict[str, str]:
    if not isinstance(shape.attention, LatentAttentionMixer):
        return {}
    # Every head has its own keys and values, so their number follows the heads and needs no reason.
    return {"head_dim": "latent attention keeps its head dimensions", "num_kv_heads": ""}


def _experts(shape: TransformerShape) -> dict[str, str]:
    if shape.moe_ffn is None:
        return {}
    reasons: dict[str, str] = {}
    if shape.dense_ffn is not None:
        reasons["ffn_hidden_size"] = "the search varies the width of the experts"
    if shape.moe_ffn.shared_width is SharedWidth.TIED:
        reasons["experts_per_token"] = "one shared expert is as wide as a routed one, whatever their number"
    if isinstance(shape.moe_ffn, MoeFfn) and shape.moe_ffn.expert_hidden_size is not None:
        reasons["hidden_size"] = "experts have their own hidden size"
    return reasons


def _hidden(shape: TransformerShape) -> dict[str, str]:
    """The residual width, if something outside the linear layers depends on it."""
    layers, main = _layers_of(shape), shape.main
    mixers = [mixer for layer in layers for mixer in layer.mixers]
    parts = [part for layer in layers for part in layer.all_ffns]
    reasons = {
        "state-space projections are made for it": any(isinstance(m, StateSpaceMixer) for m in mixers),
        "another stack is projected to it": len(shape.stacks) > 1,
        "the token embedding has its own width": shape.embedding_size is not None,
        "linear layers outside attention and feed-forward are made for it": bool(
            shape.linears
            or main.linears
            or any(layer.linears for layer in layers)
            or any(m.projections for m in mixers if not isinstance(m, StateSpaceMixer))
            or any(p.projections for p in parts if isinstance(p, MoeFfn))
        ),
        "parameters outside its linear layers are tied to it": any(
            _is_given(owner) for owner in (shape, main, *layers, *mixers, *parts)
        ),
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return {"hidden_size": why} if why else {}


def _given(shape: TransformerShape) -> dict[str, str]:
    """Heads and widths of parts whose linear layers or vectors have fixed sizes in the config."""
    layers = _layers_of(shape)
    mixers = [m for layer in layers for m in layer.mixers if isinstance(m, (AttentionMixer, LatentAttentionMixer))]
    parts = [part for layer in layers for part in layer.all_ffns]
    reasons: dict[str, str] = {}
    if any(_is_given(m) or m.projections or getattr(m, "own_linears", None) for m in mixers):
        reasons |= dict.fromkeys(("num_heads", "num_kv_heads", "head_dim"), "attention has parts made for it")
    if any(p.vectors for p in parts if isinstance(p, DenseFfn)):
        reasons["ffn_hidden_size"] = "the feed-forward part has vectors made for it"
    if any(_is_given(p) or p.expert.vectors for p in parts if isinstance(p, MoeFfn)):
        reasons |= dict.fromkeys(EXPERT_FIELDS, "experts have vectors made for it")
    return reasons


def _is_given(owner: Any) -> bool:
    """Whether the part has vectors of a fixed size that ``edit`` does not adapt."""
    latent = isinstance(owner, LatentAttentionMixer)
    usual = FOLLOWING | ({VectorRole.LATENT_NORM} if latent else set())
    return any(not (isinstance(v.fixed, int) and v.fixed == 0) and v.role not in usual for v in owner.vectors)


FOLLOWING = {VectorRole.QUERY_NORM, VectorRole.KEY_NORM, VectorRole.SINKS, VectorRole.SCORE_BIAS}
"""Vectors of fixed size that ``edit`` adapts to heads and experts; none depends on the hidden size."""


def _layers(shape: TransformerShape) -> dict[str, str]:
    """The depth, if layers of several kinds alternate, because another depth changes the mix. A few dense layers before
    the experts do not count."""
    runs = shape.main.runs
    kinds = {repr(replace(run.layer, ffn=None, ffns=())) for run in runs}
    if len(kinds) > 1 or (len(runs) > 1 and any(run.positions and not _first(run.positions) for run in runs[:-1])):
        return {"num_layers": "layers of several kinds alternate"}
    if any(run.weight_sets is not None for run in runs):
        return {"num_layers": "layers share weights"}
    return {}


def _first(positions: tuple[int, ...]) -> bool:
    """Whether the positions are the stack's first ones."""
    return positions == tuple(range(len(positions)))


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


class Equal(Enum):
    """What shapes that are compared have in common: ``WORK``, the size, and their times are compared at equal
    parameters and FLOPs; ``LOSS``, a loss that is surely no higher, and their times are compared as they are."""

    WORK = "work"
    LOSS = "loss"


TOLERANCE = {Equal.WORK: 0.01, Equal.LOSS: 0.1}
"""Usual largest change of the parameter count, as a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Combinations of a space about as large as the baseline: positions [N] on every axis, and parameter counts [N],
    total and used per token."""

    space: Space
    index: tuple[IntArray, ...]
    num_params: IntArray
    num_active_params: IntArray
    equal: Equal = Equal.WORK

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
        return replace(
            self,
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


def comparable(
    space: Space, dims: ParallelDims, tolerance: float, guard: QualityGuard, equal: Equal = Equal.WORK
) -> Points:
    """`same_size`, and at equal loss only shapes whose loss is no higher at the upper end of its interval either
    (`quality.loss_change`): a search that trusted the middle would find the law's errors."""
    points = same_size(space, dims, tolerance, guard)
    if equal is Equal.WORK:
        return points
    highest = np.asarray(loss_change(space.edited(points.fields()), space.shape).high_nats)
    kept = np.flatnonzero(np.broadcast_to(highest <= 1e-9, points.num_params.shape))
    return replace(points.take(kept), equal=equal)


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
