"""A smooth factor from a device's own rows, and the trials that decide whether it and the fit are kept.

Fit a smooth factor on predicted times to a few measured GEMMs: how large it is, and over what distance it varies.

A Gaussian process with a fitted mean. Length scale, height and noise are the values of a small grid that make the rows
most likely (Rasmussen and Williams 2006, eq. 5.8), so a few scattered rows change little except the mean. Outliers are
clipped to four robust standard deviations. The same rows give the same factor.

Ways to fit a user's GEMMs, each scored by cross-validation over regions: docs/howto/calibrate.md, "Which".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from sartor.calibrate.fit import Index, Products, fit, seconds
from sartor.calibrate.samples import regions
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.own_rows import SHORTEST, OwnRows, closeness
from sartor.units import FloatArray

LENGTHS = (SHORTEST, 4.0, 7.0)
HEIGHTS = (0.03, 0.07, 0.15, 0.3)
NOISES = (0.02, 0.04, 0.08, 0.16)
MEAN_SD = 0.5
"""Prior standard deviation of the mean: another clock, another definition of what is timed."""
OUTLIER = 4.0
MOST_POINTS = 400
"""Run time grows with the cube of the number of GEMMs and file size with the number; the first rows tell most."""


def fit_own_rows(products: Products, predicted_s: FloatArray, measured_s: FloatArray) -> OwnRows:
    """The factor from ``predicted_s`` to ``measured_s`` fitted to the first ``MOST_POINTS`` GEMMs. The caller sets its
    standard deviations from held-out rows."""
    points = np.log(np.stack([1.0 * products.batch * products.m, products.n, products.k], axis=1))[:MOST_POINTS]
    y = _drawn_in(np.log(measured_s / predicted_s)[:MOST_POINTS])
    apart = {length: closeness(points, points, length) for length in LENGTHS}
    likely = [
        (_log_likelihood(height**2 * apart[length] + MEAN_SD**2, noise, y), length, height, noise)
        for length, height, noise in product(LENGTHS, HEIGHTS, NOISES)
    ]
    _, length, height, noise = max(likely)
    alpha = np.linalg.solve(height**2 * apart[length] + MEAN_SD**2 + noise**2 * np.eye(y.size), y)
    return OwnRows(
        mean=_rounded(MEAN_SD**2 * alpha.sum()),
        length=length,
        points=tuple((_rounded(a), _rounded(b), _rounded(c)) for a, b, c in points),
        weights=tuple(_rounded(height**2 * weight) for weight in alpha),
        log_sigma=0.25,
        log_sigma_small=0.25,
    )


def no_factor(products: Products) -> OwnRows:
    """A factor of 1: the rows only determine the width of the interval."""
    point = tuple(_rounded(np.log(float(size[0]))) for size in (products.batch * products.m, products.n, products.k))
    return OwnRows(
        mean=0.0,
        length=1.0,
        points=((point[0], point[1], point[2]),),
        weights=(0.0,),
        log_sigma=0.25,
        log_sigma_small=0.25,
    )


def factor_of(own_rows: OwnRows, products: Products) -> FloatArray:
    """Factor by which to multiply the predicted times of these GEMMs."""
    rows, n, k = (column.astype(np.float64) for column in (products.batch * products.m, products.n, products.k))
    factor: FloatArray = np.exp(own_rows.log_factor(rows, n, k)[0])
    return factor


def _drawn_in(y: FloatArray) -> FloatArray:
    middle = np.median(y)
    usual = 1.4826 * np.median(np.abs(y - middle)) + 0.01
    drawn: FloatArray = np.clip(y, middle - OUTLIER * usual, middle + OUTLIER * usual)
    return drawn


def _log_likelihood(covariance: FloatArray, noise: float, y: FloatArray) -> float:
    factor = np.linalg.cholesky(covariance + noise**2 * np.eye(y.size))
    half = np.linalg.solve(factor, y)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())


def _rounded(value: float) -> float:
    """Rounded to the six digits written to the file."""
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way to fit the chosen rows, and its predictions for GEMMs outside the regions fitted."""

    freedom: float | None
    """Scale of how far coefficients may leave the start; None: the package's prediction unchanged."""
    with_rows: bool
    predicted_s: FloatArray
    error: float
    """Mean of |ln(predicted / measured)|."""


FREEDOMS = (1.0, 0.3, 0.1)


def trials(
    products: Products,
    measured_s: FloatArray,
    chosen: Index,
    start: GemmCoefficients,
    packaged_s: FloatArray | None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Trial]:
    """Trials with coefficients that may leave the start by much or little (few rows can only spoil a start that is this
    device's own fit) and with the package's prediction as it is, each with and without a smooth factor."""
    bases: list[tuple[float | None, Predictions]] = [
        (freedom, _refitted(products, measured_s, start, freedom)) for freedom in FREEDOMS
    ]
    if packaged_s is not None:
        known_s = packaged_s
        bases.append((None, lambda learned, where: known_s[where]))
    fold = regions(products)
    parts = np.unique(fold)
    for turn, (freedom, base) in enumerate(bases):
        plain, moved = (seconds(products)(start) if packaged_s is None else packaged_s.copy() for _ in range(2))
        for part_index, part in enumerate(parts):
            if progress:
                progress(turn * parts.size + part_index, len(bases) * parts.size)
            learned, where = chosen[fold[chosen] != part], np.flatnonzero(fold == part)
            if not learned.size or not where.size:
                continue
            predicted_s = base(learned, np.concatenate([learned, where]))
            own_rows = fit_own_rows(products.part(learned), predicted_s[: learned.size], measured_s[learned])
            plain[where] = predicted_s[learned.size :]
            moved[where] = plain[where] * factor_of(own_rows, products.part(where))
        for with_rows, predicted in ((False, plain), (True, moved)):
            error = float(np.abs(np.log(predicted / measured_s)).mean())
            yield Trial(freedom=freedom, with_rows=with_rows, predicted_s=predicted, error=error)


Predictions = Callable[[Index, Index], FloatArray]
"""(rows fitted, rows to predict) -> seconds."""


def _refitted(products: Products, measured_s: FloatArray, start: GemmCoefficients, freedom: float) -> Predictions:
    def predict(learned: Index, where: Index) -> FloatArray:
        fitted = fit(products.part(learned), measured_s[learned], start, freedom=freedom)
        return seconds(products.part(where))(fitted)

    return predict
