"""Comparison of two estimates: speedup and its probability, given that most of their errors are shared."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.cost.intervals import Z80, correlated, family, interval_80
from sartor.cost.price import Estimate
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
