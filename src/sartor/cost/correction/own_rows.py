"""A smooth factor on predicted times from a user's own measured GEMMs, stored as data.

A Gaussian process over (ln rows, ln n, ln k): ``ln factor = mean + sum of weight x closeness``, where closeness falls
from 1 at a measured GEMM to 0 far from all of them (Matern 5/2; Rasmussen and Williams 2006, eq. 4.17), so that far
away only the mean is left. Written by ``sartor calibrate``, applied by ``sartor.cost.correction.gemm``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.json_types import JsonMap
from sartor.units import FloatArray, Floats

FARTHEST = 2.0
"""Greatest ``|ln factor|``."""

SHORTEST = 2.5
"""Length in ln(size) over which the rows tell of GEMMs beyond their range: the shortest that a fit can choose. Further
on a GEMM may run another kernel, or be bound by another part of the device, to which the factor need not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """The factor of one dtype on one device, and its error on unseen GEMMs."""

    mean: float
    length: float
    """Correlation length of GEMM times in ln(size)."""
    points: tuple[tuple[float, float, float], ...]
    """(ln of batch x m, ln n, ln k) of the measured GEMMs."""
    weights: tuple[float, ...]
    log_sigma: float
    """Standard deviation of ln(measured / predicted) on regions held out; ``small`` of short GEMMs."""
    log_sigma_small: float
    residual: str = ""
    """Fingerprint of the coefficients with the residual used when these rows were fitted; empty: none."""

    def log_factor(self, rows: FloatArray, n: FloatArray, k: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln of the factor for flat arrays of GEMMs, and the part of it guessed beyond the rows' range: an entry equals
        the call with that entry alone."""
        places = np.log(np.stack([rows, n, k], axis=1))
        points, weights = np.asarray(self.points), np.asarray(self.weights)
        log_factors = np.empty(len(places))
        for start in range(0, len(places), _BLOCK):
            part = slice(start, start + _BLOCK)
            log_factors[part] = (closeness(places[part], points, self.length) * weights).sum(axis=1)
        factor = np.clip(self.mean + log_factors, -FARTHEST, FARTHEST)
        beyond = places - np.clip(places, points.min(axis=0), points.max(axis=0))
        return factor, np.abs(factor) * (1 - _falling(np.sqrt((beyond**2).sum(axis=1)), SHORTEST))


_BLOCK = 2048
"""GEMMs evaluated together: with 400 points 6 MB a matrix."""


def closeness(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    """Matern 5/2 kernel between every point of ``a`` and every point of ``b``."""
    squared: Floats = sum((a[:, None, i] - b[None, :, i]) ** 2 for i in range(a.shape[1]))
    return _falling(np.sqrt(squared), length)


def _falling(distance: FloatArray, length: float) -> FloatArray:
    d = np.sqrt(5.0) * distance / length
    similarity: FloatArray = (1 + d + d * d / 3) * np.exp(-d)
    return similarity


def own_rows_of(values: JsonMap) -> OwnRows:
    """The record from a file's tables. Raises ``TypeError`` or ``ValueError`` if they are not valid."""
    points = tuple((float(a), float(b), float(c)) for a, b, c in values["points"])
    weights = tuple(float(weight) for weight in values["weights"])
    numbers = {name: float(values[name]) for name in ("mean", "length", "log_sigma", "log_sigma_small")}
    everything = np.concatenate([np.ravel(points), weights, list(numbers.values())])
    if len(points) != len(weights) or not points or not np.isfinite(everything).all():
        raise ValueError("points and weights must be as many numbers")
    if min(numbers["length"], numbers["log_sigma"], numbers["log_sigma_small"]) <= 0:
        raise ValueError("length and standard deviations must be above 0")
    return OwnRows(points=points, weights=weights, residual=str(values.get("residual", "")), **numbers)
