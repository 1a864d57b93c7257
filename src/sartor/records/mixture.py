"""Errors of a table's rows as a mixture: rows of its own device, stray rows, and rows of another device.

Own rows lie about a smooth trend over sizes, so that a library, clock or memory that differs from the packaged one is
no defect. Rows of another device lie about the same trend moved by the ratio of the two devices' predicted times and by
a level of their own (their machine need not be slower by the factor that this one is), and scatter by the error of that
device's prediction too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.units import FloatArray

Mask = npt.NDArray[np.bool_]

SHARES, LEAST_OF_SHARE = 12, 15
"""A trend has at most as many knots along a size as the first, each the median of at least as many rows as the second.
"""

LEAST_SCATTER = 0.01
OTHER_LEVEL, OTHER_SCATTER = 0.1, 0.03
"""GEMMs of another device: standard deviation (ln) of their level about this one's, and what no trend takes out of
their scatter. Withheld bf16 GEMMs are 3% off (docs/accuracy), whole files by up to 10% (assumed). Other kernels, whose
predictions lack steps that tables have, share this device's level and scatter: else 0.4% of the published memory-bound
rows are accused (2026-11-27)."""
ROUNDS, FEW_ROUNDS = 15, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How likely each row is, as a logarithm; its probability to be the other device's; its distance from its own
    device's trend, and the scatter of rows, both in ln."""

    log_likelihood: FloatArray
    other: FloatArray
    off: FloatArray
    scatter: float

    @property
    def likely(self) -> float:
        return float(self.log_likelihood.sum())


def trend(ratio: FloatArray, sizes: FloatArray, use: Mask) -> FloatArray:
    """Smooth trend of ln ratios at each row, from the rows in ``use``: a sum of functions of one size each (the rows of
    ``sizes``), interpolated between medians of equal shares."""
    where = np.flatnonzero(use)
    level = np.full(ratio.size, np.median(ratio[where]))
    shares = min(SHARES, where.size // LEAST_OF_SHARE)
    if shares < 2:
        return level
    length = where.size // shares
    for x in (*sizes, *sizes):
        parts = where[np.argsort(x[where], kind="stable")][: shares * length].reshape(shares, length)
        left = np.median((ratio - level)[parts], axis=1)
        knots, which = np.unique(np.median(x[parts], axis=1), return_inverse=True)
        level = level + np.interp(x, knots, np.bincount(which, left) / np.bincount(which))
    return level


def own_alone(ratio: FloatArray, sizes: FloatArray) -> Mixture:
    """The mixture of own and stray rows."""
    return mixed(ratio - trend(ratio, sizes, np.ones(ratio.size, dtype=bool)), None)


def with_other(ratio: FloatArray, sizes: FloatArray, apart: FloatArray, *, loose: bool) -> Mixture:
    """The mixture with rows of a device whose predicted times are ``apart`` (ln) from the own ones; ``loose``: with a
    level and a scatter of their own."""
    all_rows = np.ones(ratio.size, dtype=bool)
    mixture = mixed(ratio - np.median(ratio), apart, loose=loose)
    for _ in range(2):
        moved = ratio - np.where(mixture.other > 0.5, apart, 0.0)
        mixture = mixed(ratio - trend(moved, sizes, all_rows), apart, loose=loose)
    return mixture


def mixed(off: FloatArray, apart: FloatArray | None, rounds: int = ROUNDS, *, loose: bool = False) -> Mixture:
    """Expectation maximization: normal distributions of one scatter about 0 and ``apart``, a wide one of stray rows."""
    scatter = max(float(np.median(np.abs(off))) / 0.6745, LEAST_SCATTER)
    wide, level = max(5 * scatter, 0.5), 0.0
    spread = np.hypot(scatter, OTHER_LEVEL if loose else 0.0)
    shares = np.asarray([0.97, 0.03] if apart is None else [0.87, 0.1, 0.03])
    for _ in range(rounds):
        moved = [] if apart is None else [off - apart - level]
        log_weights = np.stack(
            [_log_normal(off, scatter), *(_log_normal(x, spread) for x in moved), _log_normal(off, wide)]
        )
        log_weights += np.log(shares)[:, None]
        total = np.logaddexp.reduce(log_weights, axis=0)
        weight = np.exp(log_weights - total)
        own_weight, stray = weight[0], weight[-1]
        near, squares = own_weight.sum(), (own_weight * off**2).sum()
        if apart is not None and not loose:
            near, squares = near + weight[1].sum(), squares + (weight[1] * (off - apart) ** 2).sum()
        scatter = max(float(np.sqrt(squares / near)), LEAST_SCATTER)
        wide = max(float(np.sqrt((stray * off**2).sum() / max(float(stray.sum()), 1e-9))), 4 * scatter, 0.2)
        spread = np.hypot(scatter, OTHER_SCATTER if loose else 0.0)
        if apart is not None and loose:
            level = float(weight[1] @ (off - apart)) / (float(weight[1].sum()) + (spread / OTHER_LEVEL) ** 2)
        shares = np.maximum(weight.mean(axis=1), 0.003)
        shares = shares / shares.sum()
    other_weight = np.zeros(off.size) if apart is None else weight[1]
    return Mixture(log_likelihood=total, other=other_weight, off=off, scatter=scatter)


def _log_normal(x: FloatArray, scatter: float) -> FloatArray:
    log_density: FloatArray = -0.5 * (x / scatter) ** 2 - np.log(scatter * np.sqrt(2 * np.pi))
    return log_density
