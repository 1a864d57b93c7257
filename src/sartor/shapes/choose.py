"""Which priced points to show: the fastest of each kind of change, and the smallest edit that pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.shapes.space import IntArray, Points, is_coupled

FloatArray = npt.NDArray[np.float64]

MIN_GAIN = 5e-3
"""Least share of time that a shown candidate saves beyond the effect of being smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The fields each point changes.

    ``kinds`` [N]: one bit per field of ``fields`` that counts as an edit. A field that follows from others is changed
    but does not count: key/value heads of a multi-head model, and the head dimension where heads x head_dim is the
    hidden size before and after.
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
    if "head_dim" in own and is_coupled(own):
        edits["head_dim"] &= ~is_coupled(fields)
    table = np.stack(list(edits.values())).astype(np.int64)
    bits = 1 << np.arange(len(edits))
    return Changes(fields=tuple(edits), kinds=bits @ table, count=table.sum(axis=0))


def fastest_of_each(key: IntArray, score: FloatArray) -> IntArray:
    """Positions of the least score for every distinct key, best first; ties go to the earlier point."""
    order = np.lexsort((score, key))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = key[order][1:] != key[order][:-1]
    best = order[first]
    return best[np.argsort(score[best], kind="stable")]


def paying(points: Points, score: FloatArray, baseline: int) -> npt.NDArray[np.bool_]:
    """Mask of the points that save more time than their smaller parameter count explains. ``score`` is time relative to
    the baseline's, which is the point at ``baseline``."""
    counts = (points.num_params, points.num_active_params)
    smaller = np.minimum.reduce([np.minimum(1.0, count / count[baseline]) for count in counts])
    mask: npt.NDArray[np.bool_] = score <= smaller * (1 - MIN_GAIN)
    return mask


def shown(points: Points, found: Changes, score: FloatArray, pays: npt.NDArray[np.bool_], top: int) -> IntArray:
    """Positions of at most ``top`` points to show, best first: of those that pay.

    First the fastest of every set of edits, without those that a subset of their edits equals; if that leaves room,
    the fastest of every combination of heads within those sets, again without edits that gain nothing.
    """
    better = np.flatnonzero(pays)
    if not len(better):
        return np.zeros(0, dtype=np.int64)
    better = better[np.lexsort((found.count[better], score[better]))]
    kinds, times = found.kinds[better], score[better]
    needed = [i for i in fastest_of_each(kinds, times) if not _has_better_subset(int(kinds[i]), times[i], kinds, times)]
    heads = points.index[2][better]
    finer = fastest_of_each(kinds * (int(points.index[2].max()) + 1) + heads, times)
    rest = [i for i in finer if i not in set(needed) and not _is_idle(i, finer[heads[finer] == heads[i]], kinds, times)]
    chosen = [*needed, *rest][:top]
    return np.asarray(better[sorted(chosen)], dtype=np.int64)


def _is_idle(i: int, others: IntArray, kinds: IntArray, times: FloatArray) -> bool:
    """Whether some edit of point ``i`` gains nothing: one of ``others`` is as fast without it."""
    return _has_better_subset(int(kinds[i]), times[i], kinds[others], times[others])


def _has_better_subset(kind: int, time: float, kinds: IntArray, times: FloatArray) -> bool:
    """Whether fewer of the same edits are as fast."""
    subset = (kinds & kind == kinds) & (kinds != kind)
    return bool(np.any(times[subset] <= time))


def smallest_edit(found: Changes, score: FloatArray, pays: npt.NDArray[np.bool_], best: int, share: float) -> int:
    """The paying point with fewest edits that saves at least ``share`` of the time the point ``best`` saves; of those
    the fastest."""
    good = np.flatnonzero(pays & (1 - score >= share * (1 - score[best])))
    return int(good[np.lexsort((score[good], found.count[good]))[0]])


def single_edits(found: Changes, score: FloatArray) -> Mapping[str, int]:
    """For every field, the fastest point that changes only this field."""
    out = {}
    for bit, field in enumerate(found.fields):
        alone = np.flatnonzero(found.kinds == 1 << bit)
        if len(alone):
            out[field] = int(alone[np.argmin(score[alone])])
    return out
