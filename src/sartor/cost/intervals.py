"""Width of prediction intervals: of one operator, and how those of many operators add up.

Errors of operators of one family on one device are correlated (same coefficients, same clock). With correlation ``RHO``
between any two of a family and none between families, a total's variance is ``sum over families of rho (sum of t
sigma)^2 + (1 - rho) sum of (t sigma)^2``. A model's pass does more than the kernels in its graph, so its total deviates
by a further ``PASS_LOG_SIGMA``. docs/concepts/intervals.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sartor.operators import Gemm, GroupedGemm, Operator
from sartor.units import Floats

Z80 = 1.2815515655446004
"""Half-width of a standard normal's central 80%."""

RHO = 0.5
"""Correlation of ln errors between two operators of one family on one device."""

PASS_LOG_SIGMA = 0.07
"""Standard deviation of ln(measured / predicted) of a model's forward pass beyond its operators': with it the interval
covers 80% of whole models, 78% per GPU when fitted without that GPU (data/measured/layer_and_model.parquet, 59 passes
of nine GPUs, which need 0.065; decoding steps of data/end_to_end need 0.09; 2026-11-21)."""

BACKWARD_PASS_LOG_SIGMA = 0.2
"""The same for forward and backward together; no table has their kernels separately (24 steps of six GPUs; fitted
without one GPU it covers 67% of that GPU's steps)."""


def interval_80(time_s: Floats, log_sigma: Floats, floor_s: Floats = 0.0) -> tuple[Floats, Floats]:
    """Ends of the 80% interval of a time whose ln(measured / predicted) deviates by ``log_sigma``; the lower one is not
    below ``floor_s``, the least that the hardware allows (unless the time itself is)."""
    spread = np.exp(Z80 * log_sigma)
    return np.maximum(time_s / spread, np.minimum(floor_s, time_s)), time_s * spread


def family(op: Operator) -> str:
    """Name of an operator's family, whose members share their errors."""
    return "gemm" if isinstance(op, (Gemm, GroupedGemm)) else type(op).__name__.lower()


def total_deviation(parts: Iterable[tuple[Operator, Floats]]) -> Floats:
    """Standard deviation of a total [s] from the deviations [s] of its operators."""
    families: dict[str, list[Floats]] = {}
    for op, deviation in parts:
        families.setdefault(family(op), []).append(deviation)
    return np.sqrt(sum((correlated(deviations, [d * d for d in deviations]) for deviations in families.values()), 0.0))


def variance_of_each(parts: Sequence[tuple[Operator, Floats]]) -> list[Floats]:
    """Each operator's contribution to the square of ``total_deviation``: its own square, and its part of the family's
    shared error. They add up to the total."""
    common: dict[str, Floats] = {}
    for op, deviation in parts:
        common[family(op)] = common.get(family(op), 0.0) + deviation
    return [deviation * (RHO * common[family(op)] + (1 - RHO) * deviation) for op, deviation in parts]


def correlated(common: list[Floats], squares: list[Floats]) -> Floats:
    """Variance of one family from its members' deviations (``common``) and the squares of their own (``squares``)."""
    return RHO * add(common) ** 2 + (1 - RHO) * add(squares)


def add(parts: list[Floats]) -> Floats:
    """Sum of arrays of different shapes, smallest first, so that few additions are of full size."""
    total: Floats = 0.0
    for part in sorted(parts, key=np.size):
        total = total + part
    return total
