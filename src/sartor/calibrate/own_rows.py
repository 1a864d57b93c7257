"""Fit a smooth factor to a few measured GEMMs: by how much, and over what distance, they lie from what is predicted.

A Gaussian process with a mean of its own. Length, height and noise are those of a small grid that make the rows most
likely (Rasmussen and Williams 2006, eq. 5.8), so few rows that scatter move little but the mean; rows far from the rest
are brought in to four times the usual distance. The same rows give the same factor.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from sartor.calibrate.fit import Products
from sartor.cost.correction.own_rows import OwnRows, closeness
from sartor.units import FloatArray

LENGTHS = (2.5, 4.0, 7.0)
HEIGHTS = (0.03, 0.07, 0.15, 0.3)
NOISES = (0.02, 0.04, 0.08, 0.16)
MEAN_SD = 0.5
"""Standard deviation of the mean before anything is measured: another clock, another unit of work."""
OUTLIER = 4.0
MOST_POINTS = 400
"""Time goes with the cube of the GEMMs and the file with their number; those given first tell most."""


def fit_own_rows(products: Products, predicted_s: FloatArray, measured_s: FloatArray) -> OwnRows:
    """The factor from ``predicted_s`` to ``measured_s`` by the first ``MOST_POINTS`` GEMMs; its standard deviations
    are set by who holds rows out."""
    at = np.log(np.stack([1.0 * products.batch * products.m, products.n, products.k], axis=1))[:MOST_POINTS]
    y = _drawn_in(np.log(measured_s / predicted_s)[:MOST_POINTS])
    apart = {length: closeness(at, at, length) for length in LENGTHS}
    likely = [
        (_log_likelihood(height**2 * apart[length] + MEAN_SD**2, noise, y), length, height, noise)
        for length, height, noise in product(LENGTHS, HEIGHTS, NOISES)
    ]
    _, length, height, noise = max(likely)
    alpha = np.linalg.solve(height**2 * apart[length] + MEAN_SD**2 + noise**2 * np.eye(y.size), y)
    return OwnRows(
        mean=_rounded(MEAN_SD**2 * alpha.sum()),
        length=length,
        points=tuple((_rounded(a), _rounded(b), _rounded(c)) for a, b, c in at),
        weights=tuple(_rounded(height**2 * each) for each in alpha),
        log_sigma=0.25,
        log_sigma_small=0.25,
    )


def no_factor(products: Products) -> OwnRows:
    """Rows that agree with what is predicted: they say only how far off it is."""
    at = tuple(_rounded(np.log(float(size[0]))) for size in (products.batch * products.m, products.n, products.k))
    return OwnRows(
        mean=0.0, length=1.0, points=((at[0], at[1], at[2]),), weights=(0.0,), log_sigma=0.25, log_sigma_small=0.25
    )


def factor_of(own: OwnRows, products: Products) -> FloatArray:
    """What the times of these GEMMs are multiplied by."""
    rows, n, k = (each.astype(np.float64) for each in (products.batch * products.m, products.n, products.k))
    found: FloatArray = np.exp(own.log_factor(rows, n, k))
    return found


def _drawn_in(y: FloatArray) -> FloatArray:
    middle = np.median(y)
    usual = 1.4826 * np.median(np.abs(y - middle)) + 0.01
    found: FloatArray = np.clip(y, middle - OUTLIER * usual, middle + OUTLIER * usual)
    return found


def _log_likelihood(covariance: FloatArray, noise: float, y: FloatArray) -> float:
    factor = np.linalg.cholesky(covariance + noise**2 * np.eye(y.size))
    half = np.linalg.solve(factor, y)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())


def _rounded(value: float) -> float:
    """As it is written."""
    return float(f"{value:.6g}")
