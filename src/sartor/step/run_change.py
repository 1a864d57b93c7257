"""Whether a quantity of two runs differs beyond the noise of their steps.

Steps of a run are repeated measurements of one value, and what counts is their mean. Slow steps that are few in both
runs (a checkpoint, a garbage collection) are left out, and correlated neighbours count as fewer samples. The interval
of the ratio is Welch's. It does not cover differences between launches of the same run (other nodes, other clocks):
launch twice to see those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from sartor.step.measured_run import StepSeries, step_series
from sartor.units import FloatArray

LEVEL = 0.99
"""Confidence level of the interval; a change is significant if 1 lies outside it."""
LEAST_STEPS = 3
"""Steady steps needed from each run to estimate noise."""
LEAST_NOISE = 1e-4
"""Smallest relative standard deviation assumed, from the clock's resolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """One quantity in run A and in run B, with the interval of their ratio."""

    name: str
    a: float
    b: float
    low: float
    high: float
    """Bounds of B over A, at ``LEVEL`` jointly for all parts of a comparison."""

    @property
    def ratio(self) -> float:
        return self.b / self.a if self.a else float("inf") if self.b else 1.0

    @property
    def significant(self) -> bool:
        """Whether a ratio of 1 lies outside the interval."""
        return not self.low <= 1.0 <= self.high

    def beyond(self, threshold: float) -> bool:
        """Whether the change exceeds noise and threshold, either way."""
        return self.significant and abs(self.ratio - 1.0) > threshold

    def worse(self, threshold: float) -> bool:
        """Whether B takes more than A, beyond noise and threshold."""
        return self.beyond(threshold) and self.ratio > 1.0


def run_change(name: str, a: FloatArray, b: FloatArray, *, tests: int = 1) -> RunChange:
    """The change of a quantity from its steps in A to those in B; ``tests`` is the number of quantities compared at
    once, for the Bonferroni correction. Both runs need ``LEAST_STEPS`` positive values."""
    assert min(a.size, b.size) >= LEAST_STEPS, "too few steps to tell noise from change"
    one, other = step_series(a), step_series(b)
    counts = one.counts or other.counts
    one, other = replace(one, counts=counts), replace(other, counts=counts)
    (square_a, free_a), (square_b, free_b) = _squared_error(one), _squared_error(other)
    error = float(np.sqrt(square_a + square_b))
    free = (square_a + square_b) ** 2 / (square_a**2 / free_a + square_b**2 / free_b)
    half = _student(1 - (1 - LEVEL) / tests / 2, free) * error
    middle = np.log(other.mean_s / one.mean_s)
    with np.errstate(over="ignore"):
        low, high = np.exp(middle - half), np.exp(middle + half)
    return RunChange(name=name, a=one.mean_s, b=other.mean_s, low=float(low), high=float(high))


def sum_of(name: str, parts: Sequence[RunChange]) -> RunChange:
    """The change of a sum of independent parts: finite half-widths add in quadrature."""
    a, b = (sum(getattr(each, side) for each in parts) for side in ("a", "b"))
    known = [each for each in parts if np.isfinite(each.high)]
    half = float(np.sqrt(sum((each.a * (each.high - each.low) / 2) ** 2 for each in known))) / a if a else 0.0
    ratio = b / a if a else 1.0
    return RunChange(name=name, a=a, b=b, low=max(ratio - half, 0.0), high=ratio + half)


def _squared_error(series: StepSeries) -> tuple[float, float]:
    """Of a mean, relative to it, at least that of the clock; and its degrees of freedom."""
    square, free = series.squared_error
    return max(square, LEAST_NOISE**2 / series.seconds.size), free


def _student(probability: float, free: float) -> float:
    """Quantile of Student's t by the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5), within 1%
    for three degrees of freedom and 0.1% for ten."""
    z = NormalDist().inv_cdf(min(probability, 1 - 1e-12))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / free**power for power, term in enumerate(terms, start=1))
