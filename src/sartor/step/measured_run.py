"""Measurements of a real run's steady steps, to compare predictions with, and the steps as a time series: a usual step,
and steps that take much longer.

Throughput follows from the mean step, so slow steps count unless they are few: a checkpoint or an evaluation, which a
longer run may have as often. How well the mean is known depends on how they come. Those that come at random vary in
number from run to run; of those that come every so many steps, one at most is there or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sartor.units import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Typical values of the steady steps of one run; NaN if not measured."""

    step_s: float
    """The median; the mean if many steps are slow or the speed changes."""
    is_mean: bool = False
    """Whether ``step_s`` and the rates are means."""
    usual_s: float = math.nan
    """Median without slow steps."""
    stall_s: float = 0.0
    """Of ``step_s``, what slow steps take beyond usual ones, where they count."""
    spread: float = 0.0
    """Robust standard deviation of single steps over their median, without slow ones."""
    num_steps: int = 0
    """Steady steps."""
    warm_up: int = 0
    """Steps skipped before them."""
    tokens_per_s: float = math.nan
    """Of the whole job."""
    flops_per_s: float = math.nan
    """Per GPU, as the trainer counts FLOPs."""
    allocated_bytes: float = math.nan
    """Peak of allocated tensors on the reporting device."""
    reserved_bytes: float = math.nan
    """Peak memory reserved by its allocator."""

    @property
    def stall_free_s(self) -> float:
        """The step without its stalls, as a plan may explain it."""
        return self.step_s - self.stall_s


SLOW = 0.2
"""A slow step takes this share longer than a usual one, at least."""
OUTLIER = 5.0
"""A slow step is also this many standard deviations of usual steps longer, which normal noise does not reach."""
QUANTILES = (0.15, 0.25, 0.4)
"""Low quantiles, which describe the usual steps even if six of ten are slow."""
DEVIATES = 0.783
"""Standard deviations between the first and the last of them, if steps are normal."""
FEW = 0.05
"""Slow steps up to this share, or a single one, are left out."""
REAL = 1.5
"""Neighbours count as correlated from this many standard deviations on."""
LEAST_STEPS = 5
"""With fewer steps no step is called slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Steady steps in order, as usual ones and excess."""

    seconds: FloatArray
    usual_s: FloatArray
    """The steps with slow ones at the median of the others."""
    slow: BoolArray
    counts: bool
    """Whether slow steps are part of the mean."""

    @property
    def kept_s(self) -> FloatArray:
        """The steps of which the mean is taken."""
        return self.seconds if self.counts else self.usual_s

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.kept_s))

    @property
    def stall_s(self) -> float:
        """Of the mean, what slow steps take beyond usual ones; 0 where they are left out."""
        return float(np.mean(self.kept_s - self.usual_s))

    @property
    def slow_s(self) -> float:
        """Median of the slow steps."""
        return float(np.median(self.seconds[self.slow]))

    @property
    def middle_s(self) -> float:
        """Median of the usual steps."""
        return float(np.median(self.seconds[~self.slow]))

    @property
    def period(self) -> int | None:
        """Every how many steps a slow one comes, if it does so all through the run."""
        at = np.flatnonzero(self.slow)
        if at.size < 3:
            return None
        apart = np.diff(at)
        longest = int(apart.max())
        through = at[0] <= longest and self.slow.size - 1 - at[-1] <= longest
        even = longest - int(apart.min()) <= 1 and longest > 1
        return round(float(np.mean(apart))) if through and even else None

    @property
    def squared_error(self) -> tuple[float, float]:
        """Of the mean relative to it, squared; and the degrees of freedom of that estimate."""
        own, count = _squared_error(self.usual_s)
        free = max(count - 1, 1.0)
        if self.counts:
            excess = self.seconds - self.usual_s
            if self.period is None:
                more, events = _squared_error(excess)
                own, free = own + more, max(min(free, events - 1), 1.0)
            else:  # one slow step more or less, half the time
                own += float(np.mean(excess[self.slow]) / 2 / excess.size) ** 2
        return own / self.mean_s**2, free


def step_series(seconds: FloatArray) -> StepSeries:
    """Which steps are slow."""
    slow = np.zeros(seconds.size, dtype=bool)
    if seconds.size >= LEAST_STEPS:
        low, base, high = np.quantile(seconds, QUANTILES)
        slow = seconds > base + max(SLOW * base, OUTLIER * float(high - low) / DEVIATES)
    usual = np.where(slow, np.median(seconds[~slow]), seconds)
    counts = int(slow.sum()) > max(1, FEW * slow.size)
    return StepSeries(seconds=seconds, usual_s=usual, slow=slow, counts=counts)


def _squared_error(values: FloatArray) -> tuple[float, float]:
    """Squared error of the mean of correlated values, and how many independent values they are worth.

    Neighbours are taken to be correlated as in a first-order process. Both their correlation and the variance come out
    too small in a short run, as its own mean is subtracted: by (1 + 3r)/n (Kendall 1954) and by one over the number of
    independent values."""
    size, variance = values.size, float(np.var(values))
    if size < 3 or not variance:
        return 0.0, float(size)
    centred = values - np.mean(values)
    next_to = float(np.sum(centred[1:] * centred[:-1]) / np.sum(centred**2))
    alike = min(next_to + (1 + 3 * next_to) / size, 0.98) if size >= 8 and next_to > REAL / np.sqrt(size) else 0.0
    count = max(size * (1 - alike) / (1 + alike), 2.0)
    return variance * count / (count - 1) / count, count
