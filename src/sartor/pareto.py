"""Exact non-dominated filter, all objectives minimized.

The filter follows Optuna's ``optuna/_hypervolume/wfg.py`` (sort lexicographically, take the first, drop what it
dominates, repeat), with two additions that make it fast on hundreds of thousands of points: a few strong points cull
most of the rest first, and survivors are taken in blocks. Nothing is sampled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BLOCK = 256


def is_pareto(objectives: npt.ArrayLike) -> npt.NDArray[np.bool_]:
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
    front = _cull(points)
    # np.unique sorts lexicographically: a point can only be dominated by one that comes before it.
    distinct, inverse = np.unique(points[front], axis=0, return_inverse=True)
    mask[front] = _front_of_sorted(distinct)[inverse.reshape(-1)]
    return mask


def _cull(points: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Positions left after dropping what a few strong points (least weighted sums, in turn) dominate."""
    front = np.arange(len(points))
    if len(points) <= _BLOCK:
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


def _weights(objectives: int) -> npt.NDArray[np.float64]:
    """Weight vectors for finding strong points: all equal, one above the rest, one below the rest."""
    ones, identity = np.ones((objectives, objectives)), np.eye(objectives)
    return np.concatenate([ones[:1], 0.05 * ones + identity, ones - 0.9 * identity, 0.3 * ones + identity])


def _front_of_sorted(points: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """The filter itself, for distinct points in lexicographic order."""
    mask = np.zeros(len(points), dtype=np.bool_)
    alive = np.arange(len(points))
    while len(alive):
        block, rest = alive[:_BLOCK], alive[_BLOCK:]
        front = block[~_dominated_by(points[block], points[block])]
        mask[front] = True
        alive = rest[~_dominated_by(points[rest], points[front])]
    return mask


def _dominated_by(points: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether any of ``others`` [F, M] dominates each of ``points`` [N, M], where no two distinct rows are equal."""
    dominated = np.zeros(len(points), dtype=np.bool_)
    for point in others:
        alive = np.flatnonzero(~dominated)
        if not len(alive):
            break
        rest = points[alive]
        worse = (rest >= point).all(axis=1) & (rest > point).any(axis=1)
        dominated[alive[worse]] = True
    return dominated
