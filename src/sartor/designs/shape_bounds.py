"""Bounds of many shapes on many chips at once: operators with the same structure and sizes as arrays over pairs.

The bounds are those of `designs.bounds`; all pairs are priced in one array pass per split, and only the placement of
layers on devices is bounded shape by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sartor.designs.bounds import (
    LoweredModel,
    Seconds,
    lower_models,
    part_floor,
    part_seconds,
    placed_rates,
    rates_by_work,
    seconds_of,
)
from sartor.designs.candidates import Candidates
from sartor.designs.parts import ModelPart, ModelParts, Split
from sartor.designs.question import DesignQuestion
from sartor.designs.space import taken
from sartor.hardware.accelerator import Accelerator
from sartor.interrupts import point
from sartor.operators import Operator, OperatorGraph
from sartor.units import Array

PAIRS = 65_536
"""Pairs priced at a time: some tens of megabytes for each operator."""


MOST_PAIRS = 2_000_000
"""Most pairs of shape and chip bounded together: 16 MB for each split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePairs:
    """Every shape of one model, in one or several phases, on every chip: the question and the lowered models of each
    shape, and the candidates ``chips``. ``late`` returns whether time has run out."""

    asked: Sequence[DesignQuestion]
    models: Sequence[tuple[LoweredModel, ...]]
    candidates: Candidates
    chips: Array
    late: Callable[[], bool]

    def most(self) -> Array:
        """The first bound of the best shape, all models together, on each chip [chips]."""
        found = (np.stack([_best(self._first(some, m)) for m in self._numbers]) for some in self._blocks())
        together = [np.asarray(self.asked[0].together(each)).max(axis=0) for each in found]
        return np.asarray(np.max(together, axis=0))

    def bounds(self, hopes: Array) -> Array | None:
        """Upper bounds of each shape, all models together [shapes, chips]: the second bound where the first exceeds
        ``hopes`` [chips], else the first; None if time ran out."""
        found = []
        for some in self._blocks():
            each = self._bound(some, hopes)
            if each is None:
                return None
            found.append(each)
        return np.concatenate(found)

    @property
    def _numbers(self) -> range:
        return range(len(self.asked[0].models))

    def _blocks(self) -> list[Array]:
        blocks = min(-(-len(self.asked) * len(self.chips) // MOST_PAIRS), len(self.asked))
        return np.array_split(np.arange(len(self.asked)), blocks)

    def _bound(self, shapes: Array, hopes: Array) -> Array | None:
        """`bounds` of some shapes: second bounds of the pairs above ``hopes``, with the other models' best bounds."""
        together = self.asked[0].together
        first = [self._first(shapes, m) for m in self._numbers]
        best = np.stack([_best(each) for each in first])
        for m, each in enumerate(first):
            tight = np.zeros(best[m].shape)
            for split, rates in each.items():
                if self.late():
                    return None
                joint = np.asarray(together(np.concatenate([best[:m], rates[None], best[m + 1 :]])))
                shape, chip = np.nonzero((joint > hopes) & (rates > tight))
                enough = hopes[chip] if len(first) == 1 else np.zeros(len(chip))
                few, place = np.unique(shape, return_inverse=True)
                asked, parts = self._of(shapes[few], m, split)
                at = self.chips[chip]
                rates[shape, chip] = second_rates(asked, parts, self.candidates, place.reshape(-1), at, enough)
                tight = np.maximum(tight, rates)
            best[m] = tight
        return np.asarray(together(best))

    def _first(self, shapes: Array, m: int) -> dict[Split, Array]:
        """First bounds [shapes, chips] of a model by split; 0 for shapes that the split does not divide."""
        found = {}
        for split in dict.fromkeys(split for s in shapes for split in self.models[s][m].parts):
            divided = np.array([split in self.models[s][m].parts for s in shapes])
            asked, parts = self._of(shapes[divided], m, split)
            found[split] = np.zeros((len(shapes), len(self.chips)))
            found[split][divided] = first_rates(asked, parts, self.candidates, self.chips)
            point()
        return found

    def _of(self, shapes: Array, m: int, split: Split) -> tuple[list[DesignQuestion], list[ModelParts]]:
        return [self.asked[s] for s in shapes], [self.models[s][m].parts[split] for s in shapes]


def lowered_shapes(asked: Sequence[DesignQuestion], late: Callable[[], bool]) -> list[tuple[LoweredModel, ...]] | None:
    """The lowered models of each shape's question; None if time ran out."""
    models = []
    for each in asked:
        if late():
            return None
        models.append(lower_models(each))
    return models


def _best(rates: dict[Split, Array]) -> Array:
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
        some = slice(start, start + PAIRS // 16)
        forward, backward = _pair_seconds(parts, shape[some], candidates, chip[some], part_seconds)
        for s in np.unique(shape[some]).tolist():
            mine = np.flatnonzero(shape[some] == s)
            at, seconds = start + mine, (forward[:, mine], backward[:, mine])
            rates[at] = rates_by_work(questions[s], parts[s], *seconds, memory)
            hopeful = rates[at] > enough[at]
            mine, at = mine[hopeful], at[hopeful]
            for where, accelerator in candidates.of_groups(chip[at]):
                hbm, few = candidates.hbm_bytes[:, chip[at][where]], mine[where]
                placed = placed_rates(questions[s], parts[s], forward[:, few], backward[:, few], accelerator, hbm)
                rates[at[where]] = np.minimum(rates[at[where]], placed.max(axis=(0, 1)))
    return rates


def _pair_seconds(
    parts: Sequence[ModelParts], shape: Array, candidates: Candidates, chip: Array, seconds: Seconds
) -> tuple[Array, Array]:
    """``seconds`` forward and backward [parts, pairs] of every part, for shapes with one or a few structures; infinite
    if a chip does not support the split's type."""
    forward, backward = np.full((2, max(len(each.parts) for each in parts), len(shape)), np.inf)
    for where, accelerator in candidates.of_groups(chip):
        forward[:, where], backward[:, where] = stacked_seconds(parts, shape[where], accelerator, seconds)
    return forward, backward


def stacked_seconds(
    parts: Sequence[ModelParts], index: Array, candidates: Accelerator, seconds: Seconds
) -> tuple[Array, Array]:
    """`_pair_seconds` for parts with one structure: pair i is ``parts[index[i]]`` on candidate i."""
    forward, backward = np.full((2, max(len(each.parts) for each in parts), len(index)), np.inf)
    for alike in _alike(parts):
        at = np.flatnonzero(np.isin(index, alike))
        if len(at) and candidates.multiplies(parts[alike[0]].split.dtype):
            one = _stacked_parts([parts[s] for s in alike], np.searchsorted(alike, index[at]))
            forward[:, at], backward[:, at] = seconds_of(one, taken(candidates, at), seconds)
    return forward, backward


def _stacked_parts(parts: Sequence[ModelParts], index: Array) -> ModelParts:
    """Parts with one structure merged into arrays, with ``parts[index[i]]`` at i; only the graphs are meaningful."""

    def one(each: tuple[ModelPart, ...]) -> ModelPart:
        forward, backward = (_stacked([getattr(p, way) for p in each], index) for way in ("forward", "backward"))
        return replace(each[0], forward=forward, backward=backward)

    return replace(parts[0], parts=tuple(map(one, zip(*(p.parts for p in parts), strict=True))))


def _alike(parts: Sequence[ModelParts]) -> list[Array]:
    """Positions of shapes, grouped by the structure of their parts."""
    found: dict[Any, list[int]] = {}
    for s, each in enumerate(parts):
        found.setdefault(tuple(_structure(g) for p in each.parts for g in (p.forward, p.backward)), []).append(s)
    return [np.array(positions) for positions in found.values()]


def _structure(graph: OperatorGraph) -> Any:
    """Everything in a graph except sizes."""
    return graph.edges, tuple((type(op), op.count, *_words(op)) for op in graph.operators)


def _words(op: Operator) -> Iterator[Any]:
    for each in fields(op):
        value = getattr(op, each.name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            yield value


def _stacked(graphs: Sequence[OperatorGraph], index: Array) -> OperatorGraph:
    """Graphs with one structure merged into one, with ``graphs[index[i]]`` at i: sizes that differ become arrays."""

    def one(ops: tuple[Operator, ...]) -> Operator:
        changed: dict[str, Any] = {}
        for each in fields(ops[0]):
            values = [getattr(op, each.name) for op in ops]
            if any(value != values[0] for value in values):
                changed[each.name] = np.asarray(values)[index]
        return replace(ops[0], **changed)

    operators = (one(ops) for ops in zip(*(graph.operators for graph in graphs), strict=True))
    return replace(graphs[0], operators=tuple(operators))
