"""Which priced points to show: the best of each kind of change at equal work, and the smallest edit that pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.json_types import JsonMap
from sartor.shapes.space import Points, is_coupled
from sartor.units import FloatArray, IntArray

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
    """For every field, the fastest point that changes only this field."""
    out = {}
    for bit, field in enumerate(edits.fields):
        alone = np.flatnonzero(edits.kinds == 1 << bit)
        if len(alone):
            out[field] = int(alone[np.argmin(score[alone])])
    return out
