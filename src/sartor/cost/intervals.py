"""How wide an interval is: the width of one operator's, and the law by which those of many add up.

Errors of operators of one family on one device are correlated (the same coefficients, the same clock): with
correlation ``RHO`` between any two of a family and none between families, a total's variance is
``sum over families of rho (sum of t sigma)^2 + (1 - rho) sum of (t sigma)^2``. A pass of a model is more than the
kernels a graph lists, so its total deviates by ``PASS_LOG_SIGMA`` beyond them. docs/concepts/intervals.md.
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
"""Standard deviation of ln(measured / predicted) of a model's forward pass beyond its operators': with it 80% of whole
models lie inside, 78% of each GPU's when chosen without that GPU (data/measured/layer_and_model.parquet, 59 passes of
nine GPUs, which need 0.065; decoding steps of data/end_to_end need 0.09; 2026-11-21)."""

BACKWARD_PASS_LOG_SIGMA = 0.2
"""The same of forward and backward together, whose kernels no table holds apart (24 steps of six GPUs;
chosen without one of them it holds 67% of its steps)."""


def interval_80(time_s: Floats, log_sigma: Floats) -> tuple[Floats, Floats]:
    """Ends of the 80% interval of a time whose ln(measured / predicted) deviates by ``log_sigma``."""
    spread = np.exp(Z80 * log_sigma)
    return time_s / spread, time_s * spread


def family(op: Operator) -> str:
    """Operators of one family share their errors."""
    return "gemm" if isinstance(op, (Gemm, GroupedGemm)) else type(op).__name__.lower()


def total_deviation(parts: Iterable[tuple[Operator, Floats]]) -> Floats:
    """Standard deviation of a total [s] of operators that deviate by so many seconds each."""
    families: dict[str, list[Floats]] = {}
    for op, deviation in parts:
        families.setdefault(family(op), []).append(deviation)
    return np.sqrt(sum((correlated(each, [d * d for d in each]) for each in families.values()), 0.0))


def variance_of_each(parts: Sequence[tuple[Operator, Floats]]) -> list[Floats]:
    """What each operator brings to the square of ``total_deviation``: its own square, and its part of what its family
    shares. They add up to it."""
    common: dict[str, Floats] = {}
    for op, deviation in parts:
        common[family(op)] = common.get(family(op), 0.0) + deviation
    return [deviation * (RHO * common[family(op)] + (1 - RHO) * deviation) for op, deviation in parts]


def correlated(common: list[Floats], own: list[Floats]) -> Floats:
    """Variance of one family: what its members share of their deviations, and the squares of what each has alone."""
    return RHO * add(common) ** 2 + (1 - RHO) * add(own)


def add(parts: list[Floats]) -> Floats:
    """Sum of arrays of different shapes, smallest first so that few additions are of full size."""
    total: Floats = 0.0
    for part in sorted(parts, key=np.size):
        total = total + part
    return total
