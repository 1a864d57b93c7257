"""Exact non-dominated filter, all objectives minimized. Nothing is sampled.

Two objectives are sorted once; the front is where the second one is below all before. With more, the filter follows
Optuna's ``optuna/_hypervolume/wfg.py`` (sort lexicographically, take the first, drop what it dominates, repeat), with
one addition that makes it fast on hundreds of thousands of points: a few strong points cull most of the rest first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sartor.units import BoolArray, FloatArray, IntArray

_MANY = 256
"""More points than this are culled first."""


def is_pareto(objectives: npt.ArrayLike) -> BoolArray:
    """Mask of the points [N, M] that no other point dominates; every objective is minimized.

    One point dominates another when it is nowhere larger and somewhere smaller, so equal points are kept or dropped
    together. Infinite entries are allowed (an infeasible time); NaN is not.

    >>> is_pareto([[1, 5], [2, 2], [3, 3], [2, 2]]).tolist()
    [True, True, False, True]
    """
    points = np.asarray(objectives, dtype=np.float64)
    if points.ndim != 2:
        raise ValueError(f"objectives must be an array [points, objectives], not of {points.ndim} dimensions")
    if np.isnan(points).any():
        raise ValueError("objectives must not be NaN")
    mask = np.zeros(len(points), dtype=np.bool_)
    if not points.size:
        return ~mask
    front = _of_two(points) if points.shape[1] == 2 else _of_several(points)
    mask[front] = True
    return mask


def _of_two(points: FloatArray) -> IntArray:
    """Positions of the front of points [N, 2]."""
    order = np.argsort(points[:, 0])
    first, second = points[order].T
    starts = np.append(0, np.flatnonzero(first[1:] != first[:-1]) + 1)
    least = np.minimum.reduceat(second, starts)  # of the points that are equal in the first objective
    least[1:][least[1:] >= np.minimum.accumulate(least)[:-1]] = np.nan
    front: IntArray = order[second == np.repeat(least, np.diff(starts, append=len(points)))]
    return front


def _of_several(points: FloatArray) -> IntArray:
    left = _cull(points)
    # np.unique sorts lexicographically: a point can only be dominated by one that comes before it.
    distinct, inverse = np.unique(points[left], axis=0, return_inverse=True)
    mask, rest = np.zeros(len(distinct), dtype=np.bool_), np.arange(len(distinct))
    while rest.size:
        mask[rest[0]] = True
        rest = rest[(distinct[rest] < distinct[rest[0]]).any(axis=1)]
    return left[mask[inverse.reshape(-1)]]


def _cull(points: FloatArray) -> IntArray:
    """Positions left after dropping what a few strong points (least weighted sums, in turn) dominate."""
    front = np.arange(len(points))
    if len(points) <= _MANY:
        return front
    finite = np.isfinite(points)
    low = points.min(axis=0, where=finite, initial=0.0)
    span = points.max(axis=0, where=finite, initial=0.0) - low
    scaled = (points - low) / np.where(span > 0, span, 1.0)
    for weight in _weights(points.shape[1]):
        rest = points[front]
        strongest = rest[np.argmin(scaled[front] @ weight)]
        front = front[~((rest >= strongest).all(axis=1) & (rest > strongest).any(axis=1))]
    return front


def _weights(objectives: int) -> FloatArray:
    """Weight vectors for finding strong points: all equal, one above the rest, one below the rest."""
    ones, identity = np.ones((objectives, objectives)), np.eye(objectives)
    return np.concatenate([ones[:1], 0.05 * ones + identity, ones - 0.9 * identity, 0.3 * ones + identity])
