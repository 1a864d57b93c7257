"""Ways to fit a user's GEMMs, each scored by cross-validation over regions: docs/howto/calibrate.md, "Which"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sartor.calibrate.fit import Index, Products, fit, seconds
from sartor.calibrate.own_rows import factor_of, fit_own_rows
from sartor.calibrate.samples import regions
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.units import FloatArray


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
