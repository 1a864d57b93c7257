"""A model's own shape as axes of the design space, and bounds of many shapes on many chips at once.

The bounds are those of `designs.bounds`; all pairs are priced in one array pass per split, and only the placement of
layers on devices is bounded shape by shape.

Widths of the feed-forward part and of the vocabulary only add work: among shapes that are equal otherwise and split
over the same devices, the narrowest is at least as fast on every chip, so only this one is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import lcm
from typing import Any

import numpy as np

from sartor.designs.bounds import (
    LoweredModel,
    Seconds,
    part_floor,
    part_seconds,
    placed_rates,
    rates_by_work,
    seconds_of,
)
from sartor.designs.candidates import Candidates
from sartor.designs.parts import CopySplit, ModelPart, ModelParts
from sartor.designs.question import DesignQuestion
from sartor.designs.space import taken
from sartor.hardware.accelerator import Accelerator
from sartor.interrupts import point
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.operators import Operator, OperatorGraph
from sartor.shapes.near import build_space
from sartor.shapes.quality import QualityGuard, freed_guard
from sartor.shapes.space import Points, mixed, same_size
from sartor.units import Array

PAIRS = 65_536
"""Pairs priced at a time: some tens of megabytes for each operator."""


MOST_PAIRS = 2_000_000
"""Most pairs of shape and chip bounded together: 16 MB for each split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePairs:
    """Every shape of one model, in one or several phases, on every chip: the question and the lowered models of each
    shape, and the candidates ``chips``. ``late`` returns whether time has run out."""

    questions: Sequence[DesignQuestion]
    models: Sequence[tuple[LoweredModel, ...]]
    candidates: Candidates
    chips: Array
    late: Callable[[], bool]

    def most(self) -> Array:
        """The first bound of the best shape, all models together, on each chip [chips]."""
        best_rates = (np.stack([_best(self._first(block, m)) for m in self._numbers]) for block in self._blocks())
        together = [np.asarray(self.questions[0].together(rates)).max(axis=0) for rates in best_rates]
        return np.asarray(np.max(together, axis=0))

    def bounds(self, hopes: Array) -> Array | None:
        """Upper bounds of each shape, all models together [shapes, chips]: the second bound where the first exceeds
        ``hopes`` [chips], else the first; None if time ran out."""
        bounds = []
        for block in self._blocks():
            block_bounds = self._bound(block, hopes)
            if block_bounds is None:
                return None
            bounds.append(block_bounds)
        return np.concatenate(bounds)

    @property
    def _numbers(self) -> range:
        return range(len(self.questions[0].models))

    def _blocks(self) -> list[Array]:
        blocks = min(-(-len(self.questions) * len(self.chips) // MOST_PAIRS), len(self.questions))
        return np.array_split(np.arange(len(self.questions)), blocks)

    def _bound(self, shapes: Array, hopes: Array) -> Array | None:
        """`bounds` of some shapes: second bounds of the pairs above ``hopes``, with the other models' best bounds."""
        together = self.questions[0].together
        first = [self._first(shapes, m) for m in self._numbers]
        best = np.stack([_best(per_split) for per_split in first])
        for m, per_split in enumerate(first):
            tight = np.zeros(best[m].shape)
            for split, rates in per_split.items():
                if self.late():
                    return None
                joint = np.asarray(together(np.concatenate([best[:m], rates[None], best[m + 1 :]])))
                shape, chip = np.nonzero((joint > hopes) & (rates > tight))
                enough = hopes[chip] if len(first) == 1 else np.zeros(len(chip))
                few, place = np.unique(shape, return_inverse=True)
                questions, parts = self._of(shapes[few], m, split)
                chips = self.chips[chip]
                rates[shape, chip] = second_rates(questions, parts, self.candidates, place.reshape(-1), chips, enough)
                tight = np.maximum(tight, rates)
            best[m] = tight
        return np.asarray(together(best))

    def _first(self, shapes: Array, m: int) -> dict[CopySplit, Array]:
        """First bounds [shapes, chips] of a model by split; 0 for shapes that the split does not divide."""
        rates = {}
        for split in dict.fromkeys(split for s in shapes for split in self.models[s][m].parts):
            divided = np.array([split in self.models[s][m].parts for s in shapes])
            questions, parts = self._of(shapes[divided], m, split)
            rates[split] = np.zeros((len(shapes), len(self.chips)))
            rates[split][divided] = first_rates(questions, parts, self.candidates, self.chips)
            point()
        return rates

    def _of(self, shapes: Array, m: int, split: CopySplit) -> tuple[list[DesignQuestion], list[ModelParts]]:
        return [self.questions[s] for s in shapes], [self.models[s][m].parts[split] for s in shapes]


def _best(rates: dict[CopySplit, Array]) -> Array:
    return np.asarray(np.max(list(rates.values()), axis=0))


def first_rates(
    questions: Sequence[DesignQuestion], parts: Sequence[ModelParts], candidates: Candidates, chips: Array
) -> Array:
    """`work_rates` [shapes, chips] of one split, from the question and parts of every shape."""
    memory = float(candidates.hbm_bytes.max())
    rates = np.zeros((len(parts), len(chips)))
    few = max(PAIRS // len(chips), 1)
    for start in range(0, len(parts), few):
        shapes = np.arange(start, min(start + few, len(parts)))
        shape, chip = (i.reshape(-1) for i in np.meshgrid(shapes, np.arange(len(chips)), indexing="ij"))
        forward, backward = _pair_seconds(parts, shape, candidates, chips[chip], part_floor)
        for s in shapes.tolist():
            mine = slice((s - start) * len(chips), (s - start + 1) * len(chips))
            rates[s] = rates_by_work(questions[s], parts[s], forward[:, mine], backward[:, mine], memory)
    return rates


def second_rates(
    questions: Sequence[DesignQuestion],
    parts: Sequence[ModelParts],
    candidates: Candidates,
    shape: Array,
    chip: Array,
    enough: Array,
) -> Array:
    """`plan_rates` [pairs] of pairs of shape and candidate, the largest over memories and recomputation; where the
    bound by schedules alone does not exceed ``enough`` [pairs], that bound."""
    memory = float(candidates.hbm_bytes.max())
    rates = np.zeros(len(shape))
    for start in range(0, len(shape), PAIRS // 16):
        block = slice(start, start + PAIRS // 16)
        forward, backward = _pair_seconds(parts, shape[block], candidates, chip[block], part_seconds)
        for s in np.unique(shape[block]).tolist():
            mine = np.flatnonzero(shape[block] == s)
            positions, seconds = start + mine, (forward[:, mine], backward[:, mine])
            rates[positions] = rates_by_work(questions[s], parts[s], *seconds, memory)
            hopeful = rates[positions] > enough[positions]
            mine, positions = mine[hopeful], positions[hopeful]
            for where, accelerator in candidates.of_groups(chip[positions]):
                hbm, few = candidates.hbm_bytes[:, chip[positions][where]], mine[where]
                placed = placed_rates(questions[s], parts[s], forward[:, few], backward[:, few], accelerator, hbm)
                rates[positions[where]] = np.minimum(rates[positions[where]], placed.max(axis=(0, 1)))
    return rates


def _pair_seconds(
    parts: Sequence[ModelParts], shape: Array, candidates: Candidates, chip: Array, seconds: Seconds
) -> tuple[Array, Array]:
    """``seconds`` forward and backward [parts, pairs] of every part, for shapes with one or a few structures; infinite
    if a chip does not support the split's type."""
    forward, backward = np.full((2, max(len(shape_parts.parts) for shape_parts in parts), len(shape)), np.inf)
    for where, accelerator in candidates.of_groups(chip):
        forward[:, where], backward[:, where] = stacked_seconds(parts, shape[where], accelerator, seconds)
    return forward, backward


def stacked_seconds(
    parts: Sequence[ModelParts], index: Array, candidates: Accelerator, seconds: Seconds
) -> tuple[Array, Array]:
    """`_pair_seconds` for parts with one structure: pair i is ``parts[index[i]]`` on candidate i."""
    forward, backward = np.full((2, max(len(shape_parts.parts) for shape_parts in parts), len(index)), np.inf)
    for alike in _alike(parts):
        positions = np.flatnonzero(np.isin(index, alike))
        if len(positions) and candidates.multiplies(parts[alike[0]].split.dtype):
            merged = _stacked_parts([parts[s] for s in alike], np.searchsorted(alike, index[positions]))
            forward[:, positions], backward[:, positions] = seconds_of(merged, taken(candidates, positions), seconds)
    return forward, backward


def _stacked_parts(parts: Sequence[ModelParts], index: Array) -> ModelParts:
    """Parts with one structure merged into arrays, with ``parts[index[i]]`` at i; only the graphs are meaningful."""

    def one(alternatives: tuple[ModelPart, ...]) -> ModelPart:
        forward, backward = (
            _stacked([getattr(p, way) for p in alternatives], index) for way in ("forward", "backward")
        )
        return replace(alternatives[0], forward=forward, backward=backward)

    return replace(parts[0], parts=tuple(map(one, zip(*(p.parts for p in parts), strict=True))))


def _alike(parts: Sequence[ModelParts]) -> list[Array]:
    """Positions of shapes, grouped by the structure of their parts."""
    groups: dict[Any, list[int]] = {}
    for s, shape_parts in enumerate(parts):
        groups.setdefault(tuple(_structure(g) for p in shape_parts.parts for g in (p.forward, p.backward)), []).append(
            s
        )
    return [np.array(positions) for positions in groups.values()]


def _structure(graph: OperatorGraph) -> Any:
    """Everything in a graph except sizes."""
    return graph.edges, tuple((type(op), op.count, *_words(op)) for op in graph.operators)


def _words(op: Operator) -> Iterator[Any]:
    for attribute in fields(op):
        value = getattr(op, attribute.name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            yield value


def _stacked(graphs: Sequence[OperatorGraph], index: Array) -> OperatorGraph:
    """Graphs with one structure merged into one, with ``graphs[index[i]]`` at i: sizes that differ become arrays."""

    def one(ops: tuple[Operator, ...]) -> Operator:
        changed: dict[str, Any] = {}
        for attribute in fields(ops[0]):
            values = [getattr(op, attribute.name) for op in ops]
            if any(value != values[0] for value in values):
                changed[attribute.name] = np.asarray(values)[index]
        return replace(ops[0], **changed)

    operators = (one(ops) for ops in zip(*(graph.operators for graph in graphs), strict=True))
    return replace(graphs[0], operators=tuple(operators))


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
