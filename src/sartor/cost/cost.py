"""The cost of an operator: seconds, their terms, and the uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

import numpy as np
import numpy.typing as npt

from sartor.cost.intervals import interval_80
from sartor.json_types import JsonDict
from sartor.units import Bools, Floats, plain


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
