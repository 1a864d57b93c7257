"""A model's own shape as axes of the design space: every shape of its size that the quality guard allows.

Widths of the feed-forward part and of the vocabulary only add work: among shapes that are equal otherwise and split
over the same devices, the narrowest is at least as fast on every chip, so only this one is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.shapes.frozen import mixed
from sartor.shapes.near import build_space
from sartor.shapes.quality import QualityGuard, freed_guard
from sartor.shapes.space import Points, same_size
from sartor.units import Array

WIDTHS = ("ffn_hidden_size", "expert_ffn_hidden_size", "vocab_size")
"""Fields that only add work; the others trade one kind of work for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeVariant:
    """One shape of the model's size; ``changed`` is empty for the model itself."""

    shape: TransformerShape
    changed: tuple[tuple[str, int, int], ...]
    """Field, old, new."""

    @property
    def name(self) -> str:
        """``as it is``, or ``num_heads=16, ...``."""
        return ", ".join(f"{field}={new}" for field, _, new in self.changed) or "as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAxes:
    """Shapes of one size. ``variants``: the unchanged model, then the shapes to search (`narrowest`)."""

    variants: tuple[ShapeVariant, ...]
    num_shapes: int
    """Number of all shapes, including those that are not searched."""
    tolerance: float
    """Largest relative difference of their parameter counts from the model's."""
    assumptions: tuple[str, ...] = ()


def shape_axes(
    shape: TransformerShape,
    seq_len: int,
    widths: Sequence[int],
    *,
    tolerance: float = 0.01,
    guard: QualityGuard | None = None,
) -> ShapeAxes:
    """Layers, hidden size, heads, head size, key/value heads, feed-forward width (experts' too) and vocabulary that
    keep the parameters within ``tolerance`` and that ``guard`` allows; ``widths`` are the tensor-parallel degrees that
    may be used. Raises ``InputError``."""
    free = ("num_layers",)
    guard = freed_guard(guard or QualityGuard(), free)
    workload = Workload(shape=shape, seq_len=seq_len, attention_kernel=AttentionKernel.UNFUSED)
    space = build_space(workload, ParallelDims(), guard, free=free, keep_tp=(), tolerance=tolerance)
    points = same_size(space, ParallelDims(), tolerance, guard)
    fields, baseline = points.fields(), space.baseline
    alike = narrowest(fields, lcm(*widths))
    frozen = mixed(shape)
    names = [name for name, values in fields.items() if name not in frozen and np.any(values != baseline[name])]
    others = [i for i in alike.tolist() if any(fields[name][i] != baseline[name] for name in names)]
    return ShapeAxes(
        variants=(ShapeVariant(shape=shape, changed=()), *(_variant(points, i, names) for i in others)),
        num_shapes=points.size,
        tolerance=tolerance,
        assumptions=space.assumptions,
    )


def narrowest(fields: dict[str, Array], degrees: int) -> Array:
    """Positions of shapes for which there is no narrower one: equal in all other fields, not wider in any of `WIDTHS`,
    and with the same common divisors of its widths with ``degrees``."""
    wide = [name for name in WIDTHS if name in fields]
    shared = [np.gcd(fields[name], degrees) for name in wide if name != "vocab_size"]  # the trainer pads the vocabulary
    others = [values for name, values in fields.items() if name not in wide]
    _, kind = np.unique(np.stack([*others, *shared], axis=1), axis=0, return_inverse=True)
    order = np.lexsort((*(fields[name] for name in wide), kind.reshape(-1)))
    survivors = []
    for same in np.split(order, np.flatnonzero(np.diff(kind.reshape(-1)[order])) + 1):
        sizes = np.stack([fields[name][same] for name in wide], axis=1) if wide else np.zeros((len(same), 1))
        no_wider = (sizes[:, None] <= sizes[None]).all(axis=2) & (sizes[:, None] < sizes[None]).any(axis=2)
        survivors.append(same[~no_wider.any(axis=0)])
    return np.sort(np.concatenate(survivors))


def _variant(points: Points, i: int, names: Sequence[str]) -> ShapeVariant:
    shape, baseline = points.space.shape, points.space.baseline
    new = {name: int(values[i]) for name, values in points.fields().items() if name in names}
    return ShapeVariant(
        shape=replace(edit(shape, **new), name=shape.name),
        changed=tuple((name, baseline[name], value) for name, value in new.items() if value != baseline[name]),
    )
