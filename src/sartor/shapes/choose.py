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
"""Share of time: gains closer than this are ties, and a smaller one is none. Repeated runs of one training step differ
by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The fields each point changes.

    ``kinds`` [N]: one bit per field of ``fields`` that counts as an edit. A field that follows from others is changed
    but does not count: key/value heads of a multi-head model, the head dimension where heads x head_dim is the hidden
    size before and after, and what cuts the same width of queries, or of keys and values, into other heads.
    """

    fields: tuple[str, ...]
    kinds: IntArray
    count: IntArray
    """Edits per point [N]."""


def changes(points: Points) -> Changes:
    """The changes of every point against the space's baseline."""
    fields, own = points.fields(), points.space.baseline
    edits = {name: values != own[name] for name, values in fields.items()}
    if "num_kv_heads" in own and own["num_kv_heads"] == own["num_heads"]:
        edits["num_kv_heads"] &= fields["num_kv_heads"] != fields["num_heads"]
    if "head_dim" in own:
        width, kv_width = (_width(fields, name) == _width(own, name) for name in ("num_heads", "num_kv_heads"))
        edits["num_kv_heads"] &= ~(edits["head_dim"] & kv_width)
        edits["head_dim"] &= ~width & ~(is_coupled(own) & is_coupled(fields))
    table = np.stack(list(edits.values())).astype(np.int64)
    bits = 1 << np.arange(len(edits))
    return Changes(fields=tuple(edits), kinds=bits @ table, count=table.sum(axis=0))


def _width(fields: JsonMap, heads: str) -> Any:
    """Elements of all queries, or of all keys, of a token."""
    return fields[heads] * fields["head_dim"]


def worth(points: Points, score: FloatArray) -> npt.NDArray[np.bool_]:
    """Mask of the points that save ``NOISE`` of the time at equal work. ``score`` is that time relative to the
    baseline's."""
    mask: npt.NDArray[np.bool_] = score <= 1 - NOISE
    return mask


def best_of_each(key: IntArray, score: FloatArray, size_change: FloatArray) -> IntArray:
    """For every distinct key one position, best first: of the points within ``NOISE`` of the key's least score the one
    whose size changes least. Ties go to the earlier point."""
    _, group = np.unique(key, return_inverse=True)
    least = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, group, score)
    close = np.flatnonzero(score <= least[group] + NOISE)
    order = close[np.lexsort((score[close], size_change[close], group[close]))]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = group[order][1:] != group[order][:-1]
    best = order[first]
    return best[np.argsort(score[best], kind="stable")]


def shortlist(points: Points, found: Changes, score: FloatArray, size_change: FloatArray, most: int) -> IntArray:
    """Positions to price with their intervals, best first: the best of every set of edits, then of every combination
    of heads within those sets, ``most`` in all."""
    better = np.flatnonzero(worth(points, score))
    kinds, times, sizes = found.kinds[better], score[better], size_change[better]
    heads = points.index[2][better]
    finer = kinds * (int(points.index[2].max()) + 1) + heads
    chosen = [*best_of_each(kinds, times, sizes), *best_of_each(finer, times, sizes)]
    return better[np.asarray(list(dict.fromkeys(map(int, chosen)))[:most], dtype=np.int64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Points that surely gain, as columns: positions, sets of edits, fields changed, heads, time at equal work relative
    to the baseline's, and size changes."""

    at: IntArray
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
        """At most ``top`` rows, best first: of every set of edits the best, and if that leaves room of every
        combination of heads; without those that a subset of their edits equals."""
        ranked = self.ranked()
        firsts = list({int(self.kinds[i]): i for i in reversed(ranked)}.values())
        needed = [i for i in firsts if not self._is_idle(i, firsts)]
        finer = list({(int(self.kinds[i]), int(self.heads[i])): i for i in reversed(ranked)}.values())
        rest = [i for i in finer if i not in needed and not self._is_idle(i, [*firsts, *self._alike(i, finer)])]
        place = {row: at for at, row in enumerate(ranked)}
        chosen = sorted(needed, key=place.__getitem__) + sorted(rest, key=place.__getitem__)
        return sorted(chosen[:top], key=place.__getitem__)

    def _alike(self, i: int, others: list[int]) -> list[int]:
        return [j for j in others if self.heads[j] == self.heads[i]]

    def _is_idle(self, i: int, others: list[int]) -> bool:
        """Whether some edit of row ``i`` gains nothing: one of ``others`` with fewer of its edits is as good."""
        fewer = [j for j in others if self.kinds[j] & self.kinds[i] == self.kinds[j] != self.kinds[i]]
        return any(self.score[j] <= self.score[i] + NOISE for j in fewer)

    def smallest_edit(self, share: float) -> int:
        """The row with fewest fields that saves at least ``share`` of what the first saves; of those the best."""
        ranked = self.ranked()
        enough = share * (1 - self.score[ranked[0]])
        return next(i for i in sorted(ranked, key=lambda i: self.count[i]) if 1 - self.score[i] >= enough)


def single_edits(found: Changes, score: FloatArray) -> Mapping[str, int]:
    """For every field, the fastest point that changes only this field."""
    out = {}
    for bit, field in enumerate(found.fields):
        alone = np.flatnonzero(found.kinds == 1 << bit)
        if len(alone):
            out[field] = int(alone[np.argmin(score[alone])])
    return out
