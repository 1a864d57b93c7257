"""Estimates compared with their shared uncertainty, and what a measurement would narrow.

Comparison of two estimates: speedup and its probability, given that most of their errors are shared.

Contributions to an interval by kind of kernel, and what would narrow it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from sartor.cost.correction.attention import frameworks_of
from sartor.cost.correction.calibration import ANY, Calibration
from sartor.cost.correction.gemm import frameworks_of_gemms
from sartor.cost.cost import Z80, Cost, Source, correlated, family, interval_80, weakest_source
from sartor.cost.price import Estimate
from sartor.operators import KIND_NAMES, DType, Gemm
from sartor.units import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Speedup of ``after`` over ``before``: factor, its 80% interval, and the probability that ``after`` is faster."""

    speedup: Floats
    low: Floats
    high: Floats
    probability: Floats

    def longer(self, times: float) -> Comparison:
        """The same if ``after`` takes ``times`` as long."""
        speedup, low, high = (ratio / times for ratio in (self.speedup, self.low, self.high))
        sigma = np.maximum(np.log(high / low) / (2 * Z80), 1e-12)
        return Comparison(speedup=speedup, low=low, high=high, probability=_normal_cdf(np.log(speedup) / sigma))


def work_kept(*ratios: Floats) -> Floats:
    """Share of the baseline's work that a change still does: the smallest ratio of parameters and FLOPs, at most 1.

    A speedup times this is the gain at equal work: computing or holding less earns nothing, and computing more is
    charged through its time.
    """
    share: Floats = 1.0
    for ratio in ratios:
        share = np.minimum(share, ratio)
    return share


def compare(before: Estimate, after: Estimate, work: Floats = 1.0) -> Comparison:
    """Speedup of ``after`` over ``before`` on one device with shared errors, at equal work if ``after`` does the share
    ``work`` of it (``work_kept``).

    A family's common error moves both totals alike, so only the change of its share counts; unchanged operators cancel;
    changed operators carry their own error on both sides.
    """
    speedup = before.time_s / after.time_s * work
    sigma = np.sqrt(_ratio_variance(before, after))
    low, high = interval_80(speedup, sigma)
    z = np.log(speedup) / np.maximum(sigma, 1e-12)
    return Comparison(speedup=speedup, low=low, high=high, probability=_normal_cdf(z))


def _ratio_variance(before: Estimate, after: Estimate) -> Floats:
    ours, theirs = _shares(before), _shares(after)
    variance: Floats = 0.0
    for alike in dict.fromkeys([key[0] for key in (*ours, *theirs)]):
        names = dict.fromkeys(key for key in (*ours, *theirs) if key[0] == alike)
        pairs = [(ours.get(name, (0.0, 0.0)), theirs.get(name, (0.0, 0.0))) for name in names]
        common = [b[1] - a[1] for a, b in pairs]
        variances = [np.where(a[0] == b[0], (b[1] - a[1]) ** 2, a[1] ** 2 + b[1] ** 2) for a, b in pairs]
        variance = variance + correlated(common, variances)
    return variance


def _shares(estimate: Estimate) -> dict[tuple[Any, ...], tuple[Any, Any]]:
    """Per operator: time of one execution, and its share of the total times its sigma. Operators of two models match if
    family, block, role and pass match, in order of appearance."""
    out: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True):
        kind = (family(op), op.block, op.role, op.pass_)
        out[*kind, seen[kind]] = (cost.time_s, cost.time_s * op.count / estimate.time_s * cost.log_sigma)
        seen[kind] += 1
    return out


def _normal_cdf(z: Any) -> Any:
    if np.ndim(z) == 0:
        return 0.5 * (1 + math.erf(float(z) / math.sqrt(2)))
    return 0.5 * (1 + np.vectorize(math.erf)(np.asarray(z) / math.sqrt(2)))


def covering(estimate: Estimate, alternatives: Sequence[Estimate], *, intervals: bool = False) -> Estimate:
    """The estimate with intervals that hold those of the same pass under other assumptions, operator by operator, and
    of which the whole one holds their times, or their ``intervals``."""
    columns = zip(estimate.costs, *(alternative.costs for alternative in alternatives), strict=True)
    whole = replace(estimate, costs=tuple(holding(cost, others) for cost, *others in columns))
    factor: Floats = 1.0
    for other in alternatives:
        for end_s in (other.low_s, other.high_s) if intervals else (other.time_s,):
            factor = np.maximum(factor, _apart(estimate.time_s, end_s) / whole.log_sigma)
    costs = tuple(replace(cost, log_sigma=cost.log_sigma * factor) for cost in whole.costs)
    return replace(whole, costs=costs, sigma_factor=whole.sigma_factor * factor)


def holding(cost: Cost, others: Sequence[Cost]) -> Cost:
    """The cost with an interval that holds those of the same operator under other assumptions."""
    log_sigma, floor_s = cost.log_sigma, cost.floor_s
    for other in others:
        log_sigma = np.maximum(log_sigma, other.log_sigma + _apart(cost.time_s, other.time_s))
        floor_s = np.minimum(floor_s, other.floor_s)
    return replace(cost, log_sigma=log_sigma, floor_s=floor_s)


def _apart(time_s: Floats, other_s: Floats) -> Floats:
    """The standard deviation of ln time at which the 80% interval of one time just holds another; a collective among
    one device takes no time."""
    no_time_s = 1e-12
    return np.abs(np.log(np.maximum(other_s, no_time_s) / np.maximum(time_s, no_time_s))) / Z80


class Narrows(Enum):
    """What would narrow an interval: naming the framework's kernels, measuring this device, or nothing."""

    KERNELS = "kernels"
    MEASURE = "measure"
    ALIGNMENT = "alignment"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPart:
    """The contribution of one kind of kernel to the interval of a total."""

    kind: str
    share: float
    """Share of the variance of ln time."""
    source: Source
    """The weakest source of these kernels; assumed if that dominates their share."""
    narrows: Narrows
    kernels: tuple[str, ...] = ()
    """Frameworks to choose from, if the kernels' framework is not specified."""
    log_sigma_without: float
    """Standard deviation of ln time that would remain if this part were known exactly."""


def interval_parts(estimate: Estimate, calibration: Calibration) -> tuple[IntervalPart, ...]:
    """Kinds of kernels by their contribution to the interval, largest first."""
    kinds: dict[str, list[tuple[float, Cost]]] = {}
    for op, cost, share in zip(estimate.graph.operators, estimate.costs, estimate.variance_shares, strict=True):
        kinds.setdefault(KIND_NAMES.get(type(op), "memory_bound"), []).append((share, cost))
    sigma = float(np.mean(estimate.log_sigma))
    measurable = _MEASURED if estimate.device.accelerator is None else ()
    dtypes = tuple(dict.fromkeys(op.dtype for op in estimate.graph.operators if type(op) is Gemm))
    parts = [_part(kind, members, calibration, dtypes, sigma, measurable) for kind, members in kinds.items()]
    return tuple(sorted(parts, key=lambda part: -part.share))


def _part(
    kind: str,
    members: list[tuple[float, Cost]],
    calibration: Calibration,
    dtypes: Sequence[DType],
    sigma: float,
    measurable: Sequence[str],
) -> IntervalPart:
    share = sum(variance for variance, _ in members)
    source = _weakest(members, share)
    frameworks = _frameworks(kind, calibration, dtypes)
    if frameworks:
        narrows = Narrows.KERNELS
    elif source is Source.ASSUMED and kind == "gemm":
        narrows = Narrows.ALIGNMENT
    elif source is Source.ANALYTIC and kind in measurable:
        narrows = Narrows.MEASURE
    else:
        narrows = Narrows.NOTHING
    left = sigma * max(1 - share, 0.0) ** 0.5
    return IntervalPart(
        kind=kind, share=share, source=source, narrows=narrows, kernels=frameworks, log_sigma_without=left
    )


def _weakest(members: list[tuple[float, Cost]], share: float) -> Source:
    parts = [(bool(np.all(cost.fitted)), bool(np.any(cost.assumed)), kind) for kind, cost in members]
    return Source(str(weakest_source(parts, share)))


def _frameworks(kind: str, calibration: Calibration, dtypes: Sequence[DType]) -> tuple[str, ...]:
    """What the user could name: a framework if none is named, and one of its families of grouped kernels where it has
    several."""
    families = {
        "attention": frameworks_of(calibration),
        "grouped_gemm": tuple(calibration.grouped_families),
        "gemm": tuple(name for dtype in dtypes for name in frameworks_of_gemms(calibration, dtype)),
    }
    members: dict[str, dict[str, None]] = {}
    for name in families.get(kind, ()):
        members.setdefault(name.partition("_")[0], {})[name] = None
    several = {framework: tuple(names) if len(names) > 1 else (framework,) for framework, names in members.items()}
    if calibration.kernels == ANY:
        return tuple(name for names in several.values() for name in names)
    return tuple(name for name in several.get(calibration.kernels, ()) if name != calibration.kernels)


_MEASURED = ("gemm", "attention", "memory_bound")
"""Kinds that ``sartor measure`` times and ``sartor calibrate`` fits; neither measures a template chip."""
