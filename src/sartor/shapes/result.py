"""The result of a shape search, and which of the priced points to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.price import Estimate
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload
from sartor.shapes.mixes import Mix
from sartor.shapes.quality import Quality
from sartor.shapes.space import Points, is_coupled
from sartor.shapes.stability import StabilityGrid, StabilityRange
from sartor.units import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One shape of the baseline's size. Times are of the objective on the first GPU unless stated otherwise."""

    shape: TransformerShape
    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    """Field -> (old, new)."""
    num_fields: int
    """Number of changed fields, without derived ones (``shapes.choose.Changes``)."""
    num_params: int
    params_change: float
    """Relative to the baseline's parameters."""
    flops_change: float
    """Relative to the baseline's FLOPs in the objective's workload."""
    time_s: float
    low_s: float
    high_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency_gain: float
    """The part of the speedup that is not due to a smaller model: speedup at equal parameters and FLOPs
    (``cost.uncertainty.work_kept``), with its 80% interval."""
    efficiency_low: float
    efficiency_high: float
    confidence: float
    """Probability that it takes less time than the baseline at equal work on the first GPU."""
    phase_s: Mapping[str, float]
    """Seconds by phase (train, prefill, decode) on the first GPU."""
    per_gpu: Mapping[str, float]
    """Speedup by GPU."""
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point that no other beats in training time, decode time, parameter change and number of changed fields."""

    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    num_fields: int
    params_change: float
    phase_s: Mapping[str, float]
    speedup: float
    efficiency_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEdit:
    """The best value of one field changed alone, at the same size."""

    field: str
    old: int
    new: int
    changed: Mapping[str, tuple[int, int]]
    speedup: float
    efficiency_gain: float
    params_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSearch:
    """The result of a search. ``candidates`` gain at equal work with an interval above 1, best first; ties go to fewer
    changed fields, then to the smaller change of size."""

    workload: Workload
    gpus: tuple[Gpu, ...]
    baseline: Estimate
    candidates: tuple[Candidate, ...]
    front: tuple[FrontPoint, ...]
    smallest_edit: Candidate | None
    """Fewest changed fields for at least 70% of the best gain at equal work; None without candidates."""
    unsure: Candidate | None
    """If there are no candidates, the shape with the best gain (its interval includes 1); None if none gains."""
    minimax: Candidate | None
    """With several GPUs: the shape with the smallest worst-case loss against each GPU's best."""
    regret: float
    """That worst-case loss, as a share of the GPU's best time; 0 with one GPU."""
    best_per_gpu: Mapping[str, Candidate]
    mixes: tuple[Mix, ...]
    """Other mixtures of experts at equal total and active parameters, also coarser ones; empty without experts."""
    single_edits: tuple[SingleEdit, ...]
    stability: tuple[StabilityRange | StabilityGrid, ...]
    grid_size: int
    """Combinations of the grid, all sizes."""
    evaluated: int
    """Shapes of the baseline's size; all are priced."""
    wall_s: float = field(compare=False)
    assumptions: tuple[str, ...]

    @property
    def evaluated_per_s(self) -> float:
        return self.evaluated / self.wall_s if self.wall_s else 0.0


NOISE = 5e-3
"""Share of time: gains that differ by less are ties, and smaller gains count as none. Repeated runs of one training
step differ by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The fields each point changes.

    ``kinds`` [N]: one bit per field of ``fields`` that counts as an edit. Fields that follow from others do not count:
    key/value heads of a multi-head model, the head dimension if heads x head_dim is the hidden size before and after,
    and fields that split the same total width of queries, or of keys and values, into other heads.
    """

    fields: tuple[str, ...]
    kinds: IntArray
    count: IntArray
    """Edits per point [N]."""


def changes(points: Points) -> Changes:
    """The changes of every point against the space's baseline."""
    fields, baseline = points.fields(), points.space.baseline
    edits = {name: values != baseline[name] for name, values in fields.items()}
    if "num_kv_heads" in baseline and baseline["num_kv_heads"] == baseline["num_heads"]:
        edits["num_kv_heads"] &= fields["num_kv_heads"] != fields["num_heads"]
    if "head_dim" in baseline:
        width, kv_width = (_width(fields, name) == _width(baseline, name) for name in ("num_heads", "num_kv_heads"))
        edits["num_kv_heads"] &= ~(edits["head_dim"] & kv_width)
        edits["head_dim"] &= ~width & ~(is_coupled(baseline) & is_coupled(fields))
    table = np.stack(list(edits.values())).astype(np.int64)
    bits = 1 << np.arange(len(edits))
    return Changes(fields=tuple(edits), kinds=bits @ table, count=table.sum(axis=0))


def _width(fields: JsonMap, heads: str) -> Any:
    """Width of all queries, or of all keys, of a token [elements]."""
    return fields[heads] * fields["head_dim"]


def _worth(points: Points, score: FloatArray) -> npt.NDArray[np.bool_]:
    """Mask of the points that save ``NOISE`` of the time at equal work. ``score`` is that time relative to the
    baseline's."""
    mask: npt.NDArray[np.bool_] = score <= 1 - NOISE
    return mask


def best_of_each(key: IntArray, score: FloatArray, size_change: FloatArray) -> IntArray:
    """One position per distinct key, best first: among points within ``NOISE`` of the key's least score, the one with
    the smallest change of size. Ties go to the earlier point."""
    _, group = np.unique(key, return_inverse=True)
    best_score = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(best_score, group, score)
    close = np.flatnonzero(score <= best_score[group] + NOISE)
    order = close[np.lexsort((score[close], size_change[close], group[close]))]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = group[order][1:] != group[order][:-1]
    best = order[first]
    return best[np.argsort(score[best], kind="stable")]


def shortlist(points: Points, edits: Changes, score: FloatArray, size_change: FloatArray, count: int) -> IntArray:
    """Positions to price with intervals, at most ``count``: the best of every set of edits, then the best of every
    combination of heads within those sets."""
    better = np.flatnonzero(_worth(points, score))
    kinds, times, sizes = edits.kinds[better], score[better], size_change[better]
    heads = points.index[2][better]
    finer = kinds * (int(points.index[2].max()) + 1) + heads
    chosen = [*best_of_each(kinds, times, sizes), *best_of_each(finer, times, sizes)]
    return better[np.asarray(list(dict.fromkeys(map(int, chosen)))[:count], dtype=np.int64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Points with an interval above no gain, as columns: positions, sets of edits, fields changed, heads, time at equal
    work relative to the baseline's, and size changes."""

    rows: IntArray
    kinds: IntArray
    count: IntArray
    heads: IntArray
    score: FloatArray
    size_change: FloatArray
    deeper: npt.NDArray[np.bool_]

    def ranked(self) -> list[int]:
        """Rows, best first; scores within ``NOISE`` of a group's best are ties, which go to fewer fields, then to the
        smaller change of size, then to the same depth."""
        left, out = list(np.argsort(self.score, kind="stable")), []
        while left:
            ties = [i for i in left if self.score[i] <= self.score[left[0]] + NOISE]
            ties.sort(
                key=lambda i: (self.count[i], round(float(self.size_change[i]), 4), self.deeper[i], self.score[i])
            )
            out += [int(i) for i in ties]
            left = [i for i in left if self.score[i] > self.score[left[0]] + NOISE]
        return out

    def shown(self, top: int) -> list[int]:
        """At most ``top`` rows, best first: the best of every set of edits, then if there is room the best of every
        combination of heads. Rows are left out if a subset of their edits is as good."""
        ranked = self.ranked()
        firsts = list({int(self.kinds[i]): i for i in reversed(ranked)}.values())
        needed = [i for i in firsts if not self._is_idle(i, firsts)]
        finer = list({(int(self.kinds[i]), int(self.heads[i])): i for i in reversed(ranked)}.values())
        rest = [i for i in finer if i not in needed and not self._is_idle(i, [*firsts, *self._alike(i, finer)])]
        place = {row: position for position, row in enumerate(ranked)}
        chosen = sorted(needed, key=place.__getitem__) + sorted(rest, key=place.__getitem__)
        return sorted(chosen[:top], key=place.__getitem__)

    def _alike(self, i: int, others: list[int]) -> list[int]:
        return [j for j in others if self.heads[j] == self.heads[i]]

    def _is_idle(self, i: int, others: list[int]) -> bool:
        """Whether some edit of row ``i`` gains nothing: one of ``others`` with fewer of its edits is as good."""
        fewer = [j for j in others if self.kinds[j] & self.kinds[i] == self.kinds[j] != self.kinds[i]]
        return any(self.score[j] <= self.score[i] + NOISE for j in fewer)

    def smallest_edit(self, share: float) -> int:
        """The row with the fewest changed fields that has at least ``share`` of the best gain; ties go to the best."""
        ranked = self.ranked()
        enough = share * (1 - self.score[ranked[0]])
        return next(i for i in sorted(ranked, key=lambda i: self.count[i]) if 1 - self.score[i] >= enough)


def single_edits(edits: Changes, score: FloatArray) -> Mapping[str, int]:
    """For every name, the fastest point that changes only this name."""
    out = {}
    for bit, name in enumerate(edits.fields):
        alone = np.flatnonzero(edits.kinds == 1 << bit)
        if len(alone):
            out[name] = int(alone[np.argmin(score[alone])])
    return out
