"""The cost of an operator: seconds with their terms, source and details; standard deviations of a sum of them.

Width of prediction intervals: of one operator, and how those of many operators add up.

Errors of operators of one family on one device are correlated (same coefficients, same clock). With correlation ``RHO``
between any two of a family and none between families, a total's variance is ``sum over families of rho (sum of t
sigma)^2 + (1 - rho) sum of (t sigma)^2``. A model's pass does more than the kernels in its graph, so its total deviates
by a further ``PASS_LOG_SIGMA``. docs/concepts/intervals.md.

The cost of an operator: seconds, their terms, and the uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

import numpy as np
import numpy.typing as npt

from sartor.json_types import JsonDict
from sartor.operators import Gemm, GroupedGemm, Operator
from sartor.units import Bools, Floats, plain

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


class Source(Enum):
    """Where a predicted time comes from: a lookup, a model fitted on that device, a datasheet alone, or an assumption
    that dominates the uncertainty (a misaligned operand or a size without measurements)."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    ASSUMED = "assumed"


class Bound(Enum):
    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Predicted duration of one execution of one operator. All fields broadcast like the operator's sizes.

    ``time_s`` is the prediction; ``compute_s``, ``memory_s``, ``network_s`` and ``overhead_s`` are its terms (compute
    and memory overlap, overhead adds). ``log_sigma`` is the standard deviation of ln(measured/predicted), from the
    calibration's held-out error; the 80% interval is ``time_s * exp(+-1.2816 log_sigma)``, not below ``floor_s``, the
    least that the datasheet allows (0: not asked for).
    """

    time_s: Floats
    compute_s: Floats = 0.0
    memory_s: Floats = 0.0
    network_s: Floats = 0.0
    overhead_s: Floats = 0.0
    log_sigma: Floats = 0.3
    floor_s: Floats = 0.0
    source: Source = Source.ANALYTIC
    details: JsonDict = field(default_factory=dict)
    """For GEMMs: tile_m, tile_n, split_k, waves, tile_efficiency, wave_efficiency, alignment; ``assumed`` if more of
    the interval is assumption than fit error; ``fitted`` if entries of an array differ in their source."""

    @property
    def low_s(self) -> Floats:
        return interval_80(self.time_s, self.log_sigma, self.floor_s)[0]

    @property
    def high_s(self) -> Floats:
        return interval_80(self.time_s, self.log_sigma)[1]

    @property
    def stated_source(self) -> Source:
        """``source``, or ``ASSUMED`` if an assumption dominates (for a single cost, not an array)."""
        return Source.ASSUMED if self.details.get("assumed") else self.source

    @property
    def fitted(self) -> Bools:
        """Whether it comes from a fit of the device itself; an array if entries differ."""
        is_fitted: Bools = self.details.get("fitted", self.source is not Source.ANALYTIC)
        return is_fitted

    @property
    def assumed(self) -> Bools:
        """Whether an assumption dominates; an array if entries differ."""
        is_assumed: Bools = np.not_equal(self.details.get("assumed", 0.0), 0.0)
        return is_assumed

    @property
    def learned(self) -> Floats:
        """Factor by which measurements (packaged or the user's) changed the formula's time."""
        factor: Floats = self.details.get("residual", 1.0) * self.details.get("own_rows", 1.0)
        return factor

    @property
    def bound_by(self) -> Bound:
        """The largest term (for a single cost, not an array)."""
        terms = {
            Bound.COMPUTE: float(self.compute_s),
            Bound.MEMORY: float(self.memory_s),
            Bound.NETWORK: float(self.network_s),
            Bound.OVERHEAD: float(self.overhead_s),
        }
        return max(terms, key=lambda bound: terms[bound])


_TERMS = ("time_s", "compute_s", "memory_s", "network_s", "overhead_s", "log_sigma")


def select_cost(where: Bools, chosen: Cost, alternative: Cost) -> Cost:
    """``chosen`` where the mask holds, ``alternative`` elsewhere: times, terms and details; a detail that only one has
    counts as a factor of 1 in the other, or as nothing ``assumed``."""
    terms: JsonDict = {
        name: plain(np.where(where, getattr(chosen, name), getattr(alternative, name))) for name in _TERMS
    }
    absent = {name: float(name != "assumed") for name in chosen.details | alternative.details if name != "fitted"}
    details = {
        name: plain(np.where(where, chosen.details.get(name, no), alternative.details.get(name, no)))
        for name, no in absent.items()
    }
    fitted = np.where(where, chosen.fitted, alternative.fitted)
    if fitted.any() and not fitted.all():
        details["fitted"] = fitted
    return Cost(**terms, source=Source.CALIBRATED if fitted.all() else Source.ANALYTIC, details=details)


def weakest_source(parts: Sequence[tuple[Bools, Bools, Floats]], whole: Floats = 1.0) -> npt.NDArray[np.str_]:
    """The source of a total, entry by entry, from whether each of its parts is ``fitted``, whether it is ``assumed``,
    and its share of the ``whole`` variance: a total is calibrated only if every part is, and assumed if assumed parts
    cause more than half of its interval."""
    guessed: Floats = sum((share * np.asarray(assumed) for _, assumed, share in parts), 0.0)
    fitted = reduce(np.logical_and, (fitted for fitted, _, _ in parts)) if parts else False
    words = np.where(fitted, Source.CALIBRATED.value, Source.ANALYTIC.value)
    return np.where(guessed > 0.5 * np.asarray(whole), Source.ASSUMED.value, words)
