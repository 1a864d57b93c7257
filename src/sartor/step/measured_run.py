"""Measurements of a real run's steady steps, and the attribution of its time to parts and avoidable losses.

Throughput follows from the mean step, so slow steps count unless they are few: a checkpoint or an evaluation, which a
longer run may have as often. How well the mean is known depends on how they come. Those that come at random vary in
number from run to run; of those that come every so many steps, one at most is there or not.

Whether a quantity of two runs differs beyond the noise of their steps: steps are repeated measurements of one value,
and what counts is their mean. Slow steps that are few in both runs are left out, and correlated neighbours count as
fewer samples. The interval of the ratio is Welch's. It does not cover differences between launches of the same run
(other nodes, other clocks): launch twice to see those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import NormalDist

import numpy as np

from sartor.cost.cost import Source
from sartor.operators import Attention, DType, Gemm
from sartor.units import BoolArray, FloatArray, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Time between two printed steps beyond what the steps between them usually take."""

    iteration: int
    """The step before it."""
    seconds: float
    cause: str = ""
    """What the log prints there (``checkpoint``, ``evaluation``, ...); empty if nothing that tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Typical values of the steady steps of one run; NaN if not measured."""

    step_s: float
    """The median; the mean if many steps are slow or the speed changes."""
    is_mean: bool = False
    """Whether ``step_s`` and the rates are means."""
    is_whole: bool = False
    """Whether ``step_s`` is the mean that a log prints of its whole run."""
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
    p90_s: float = math.nan
    """What nine of ten steady steps don't exceed; NaN where the log prints a smoothed time."""
    drift: float = 0.0
    """The last third of the usual steps over the first, minus 1; 0 where it is within their noise."""
    work_drift: float = math.nan
    """The same change of a step's FLOPs or tokens, by the log's own rates."""
    memory_drift: float = math.nan
    """The same change of its peak memory."""
    events: tuple[str, ...] = ()
    """What ended the run before its time, and how it resumes the one before, in sentences."""
    wall_s: float = math.nan
    """From the first steady step to the last, pauses included."""
    wall_steps: int = 0
    """Steps in that time."""
    pauses: tuple[Pause, ...] = ()
    losses: tuple[float, ...] = ()
    """Training loss of the first and of the last step that print one."""
    jumps: tuple[int, ...] = ()
    """Steps whose loss jumps."""
    last_step: int = 0
    no_number: tuple[int, ...] = ()
    """Steps whose loss is not a number."""
    skipped: int = 0
    """Steps whose update was skipped."""
    rank_skew: float = math.nan
    """Compute of the slowest rank over that of the fastest, minus 1, as the trainer's timers say."""
    slow_rank: int | None = None
    tokens_per_s: float = math.nan
    """Of the whole job."""
    device_tokens_per_s: float = math.nan
    flops_per_s: float = math.nan
    """Per GPU, as the trainer counts FLOPs."""
    printed_mfu: float = math.nan
    """As the trainer prints it."""
    allocated_bytes: float = math.nan
    """Peak of allocated tensors on the reporting device."""
    reserved_bytes: float = math.nan
    """Peak memory reserved by its allocator."""

    @property
    def stall_free_s(self) -> float:
        """The step without its stalls, as a plan may explain it."""
        return self.step_s - self.stall_s

    @property
    def usual_step_s(self) -> float:
        """The step that a headline says: without stalls where they count."""
        return self.usual_s if self.stall_s else self.step_s

    @property
    def paused_s(self) -> float:
        """Seconds of all pauses."""
        return sum(pause.seconds for pause in self.pauses)


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
LEAST_UNEVEN = 5
"""With fewer steps no step is called slow, nor the steps steady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepSeries:
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
        positions = np.flatnonzero(self.slow)
        if positions.size < 3:
            return None
        apart = np.diff(positions)
        longest = int(apart.max())
        through = positions[0] <= longest and self.slow.size - 1 - positions[-1] <= longest
        even = longest - int(apart.min()) <= 1 and longest > 1
        return round(float(np.mean(apart))) if through and even else None

    @property
    def squared_error(self) -> tuple[float, float]:
        """Of the mean relative to it, squared; and the degrees of freedom of that estimate."""
        usual_error, count = _squared_error(self.usual_s)
        free = max(count - 1, 1.0)
        if self.counts:
            excess = self.seconds - self.usual_s
            if self.period is None:
                slow_error, events = _squared_error(excess)
                usual_error, free = usual_error + slow_error, max(min(free, events - 1), 1.0)
            else:  # one slow step more or less, half the time
                usual_error += float(np.mean(excess[self.slow]) / 2 / excess.size) ** 2
        return usual_error / self.mean_s**2, free


def step_series(seconds: FloatArray, slack: Floats = 0.0) -> _StepSeries:
    """Which steps are slow: by ``SLOW``, or by ``slack`` [s] where it is given."""
    slow = np.zeros(seconds.size, dtype=bool)
    if seconds.size >= LEAST_UNEVEN:
        low, base, high = np.quantile(seconds, QUANTILES)
        limit = slack if np.any(slack) else SLOW * base
        slow = seconds > base + np.maximum(limit, OUTLIER * float(high - low) / DEVIATES)
    usual = np.where(slow, np.median(seconds[~slow]), seconds)
    counts = int(slow.sum()) > max(1, FEW * slow.size)
    return _StepSeries(seconds=seconds, usual_s=usual, slow=slow, counts=counts)


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


LEVEL = 0.99
"""Confidence level of the interval; a change is significant if 1 lies outside it."""
LEAST_STEPS = 3
"""Steady steps needed from each run to estimate noise."""
LEAST_NOISE = 1e-4
"""Smallest relative standard deviation assumed, from the clock's resolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCalls:
    """How a run does an operator: its calls per step, the sizes of its inputs, and the kernels that they start."""

    calls: float
    sizes: str
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """One quantity in run A and in run B, with the interval of their ratio."""

    name: str
    a: float
    b: float
    low: float
    high: float
    """Bounds of B over A, at ``LEVEL`` jointly for all parts of a comparison."""
    in_a: OperatorCalls | None = None
    """Of an operator in a trace; None where the run does not have it."""
    in_b: OperatorCalls | None = None

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
    series_a, series_b = step_series(a), step_series(b)
    counts = series_a.counts or series_b.counts
    series_a, series_b = replace(series_a, counts=counts), replace(series_b, counts=counts)
    (square_a, free_a), (square_b, free_b) = _error_of_mean(series_a), _error_of_mean(series_b)
    error = float(np.sqrt(square_a + square_b))
    free = (square_a + square_b) ** 2 / (square_a**2 / free_a + square_b**2 / free_b)
    half = _student(1 - (1 - LEVEL) / tests / 2, free) * error
    middle = np.log(series_b.mean_s / series_a.mean_s)
    with np.errstate(over="ignore"):
        low, high = np.exp(middle - half), np.exp(middle + half)
    return RunChange(name=name, a=series_a.mean_s, b=series_b.mean_s, low=float(low), high=float(high))


def sum_of(name: str, parts: Sequence[RunChange]) -> RunChange:
    """The change of a sum of independent parts: finite half-widths add in quadrature."""
    a, b = (sum(getattr(part, side) for part in parts) for side in ("a", "b"))
    bounded = [part for part in parts if np.isfinite(part.high)]
    half = float(np.sqrt(sum((part.a * (part.high - part.low) / 2) ** 2 for part in bounded))) / a if a else 0.0
    ratio = b / a if a else 1.0
    return RunChange(name=name, a=a, b=b, low=max(ratio - half, 0.0), high=ratio + half)


def _error_of_mean(series: _StepSeries) -> tuple[float, float]:
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


class PartKind(Enum):
    """Where the time of a step goes; every instant is counted once."""

    MATMUL = "matmul"
    SLOW_COMPUTE = "slow_compute"
    """Time of matrix multiplications and attention beyond the prediction for their sizes."""
    SHAPE = "shape"
    """Loss of a matrix multiplication with sizes that are not multiples of tensor-core or tile sizes."""
    TILES = "tiles"
    """Loss of matrix multiplications in partly filled tiles and waves, at predicted speed."""
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"
    MEMORY_BOUND = "memory_bound"
    UNFUSED_ATTENTION = "unfused_attention"
    """Attention of single operators (product, softmax, product), beyond what one fused kernel would take."""
    UNFUSED_LOSS = "unfused_loss"
    """Cross-entropy of single operators, beyond one pass over the logits."""
    CASTS = "casts"
    """Copies to another data type that stand alone."""
    LAYOUT = "layout"
    """Copies to another order of the same elements."""
    UNFUSED = "unfused"
    """Memory-bound kernels one after another, beyond what one fused kernel would take."""
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    """Exposed communication: no compute runs beside it."""
    BUBBLE = "bubble"
    """Waiting for another pipeline stage: sends and receives beyond their transfer time."""
    SLOW_LINK = "slow_link"
    """Exposed communication beyond what the links need."""
    STRAGGLER = "straggler"
    """Exposed communication spent waiting for a slower rank."""
    COPIES = "copies"
    LEAD_IN = "lead_in"
    """Nothing runs until the host launches the first kernel of a step."""
    DATA = "data_loading"
    """Nothing runs while the host loads data."""
    STALL = "host_stall"
    """Nothing runs in one long pause of the host per step."""
    SYNC = "host_sync"
    """Nothing runs after calls in which the host waited for the device."""
    HOST_GAP = "host_gap"
    """Nothing runs: the host launches many kernels too late."""
    STREAM_WAIT = "stream_wait"
    """Nothing runs though the next kernel is launched: it waits for another stream or an event."""
    KERNEL_START = "kernel_start"
    """Nothing runs for the microseconds in which a launched kernel starts."""
    CHECKPOINT = "checkpoint"
    """Saving a checkpoint while nothing computes: beside the steps, so it has no seconds of them."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """One part of the mean step."""

    kind: PartKind
    seconds: float
    evidence: tuple[str, ...] = ()
    fix: str = ""
    """What to change, if the part is a loss."""
    gain_s: float = 0.0
    """Seconds per step that the change would save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive kernels of one kind, in seconds since the start of their step."""

    lane: str
    """``compute`` or ``communication``; both may run at once."""
    kind: str
    begin_s: float
    end_s: float
    kernels: str = ""
    """The longest of its kernels, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """What a trace is of, read from its kernels."""

    work: str = ""
    """``training``, ``inference``, or empty where nothing tells."""
    precision: tuple[DType, ...] = ()
    """Data types of matrix multiplications and attention, most time first."""
    trained: str = ""
    """``adapters``, ``none`` (frozen weights), ``part`` or ``all`` of the weights; empty where sizes do not tell."""
    rank: int = 0
    """Of the adapters."""
    four_bits: bool = False
    tokens: int = 0
    """That a step of inference decodes, by the engine's marks; 0 if they do not tell."""
    read_bytes: float = 0.0
    """Weights that a memory-bound step of inference reads [bytes]; 0 for others."""

    @property
    def words(self) -> str:
        """``training in bf16, LoRA of rank 16 (other weights frozen)``."""
        types = f" in {' and '.join(dtype.value for dtype in self.precision)}" if self.precision else ""
        what = {
            "adapters": f", LoRA of rank {self.rank} (other weights frozen)",
            "none": ", most weights frozen",
            "part": ", a part of the weights frozen",
        }.get(self.trained, "")
        return f"{self.work}{types}{what}{', weights in 4 bits' if self.four_bits else ''}" if self.work else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKernels:
    """All kernels of one operator and size: measured and predicted seconds over the whole trace, and predicted seconds
    with sizes padded to multiples."""

    operator: Gemm | Attention
    seconds: float
    predicted_s: float
    padded_s: float
    padded: str
    """The padded size; empty if no padding is needed."""
    count: int
    unfilled_s: float = 0.0
    """The part of ``predicted_s`` spent in partly filled tiles and waves."""
    log_sigma: float = 0.0
    """Uncertainty of the prediction."""
    in_attention: bool = False
    """Products of unfused attention: a fused kernel would do without them, so their own sizes are no loss."""
    source: Source = Source.ANALYTIC

    @property
    def name(self) -> str:
        """Kind and sizes, in words."""
        return self.operator.name

    @property
    def flops(self) -> float:
        return self.count * float(self.operator.flops)
