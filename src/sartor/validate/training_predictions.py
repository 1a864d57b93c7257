"""Predictions of published training runs: how well they rank plans, and what a few of one's own runs teach.

A class of runs (one source, device and precision) is divided into K observed configurations and the others, which are
predicted. `planned` chooses the K before anything is measured, to leave the least uncertainty about the rest. `drawn`
uses K runs that happen to be at hand: several random draws. Repeats of a configuration stay together.

ln(measured / predicted) of two runs is assumed to covary through three causes: a factor of compute that all runs share,
one of everything else, and one that grows with the similarity of the runs (model, recomputation, sizes of the plan).
Predictions move by its expected value given the observed runs (kriging; Rasmussen and Williams 2006, ISBN 026218253X,
eq. 2.23).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import numpy as np
import numpy.typing as npt

from sartor.ask.alternatives import Alternative, Weighed, weighed
from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Z80, interval_80
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.interrupts import counted
from sartor.json_types import JsonMap
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.run.fields import Run
from sartor.step.coefficients import coefficients_for
from sartor.step.footprint import every_stage, fit_probability, footprint, usable_bytes
from sartor.step.results import Footprint, StepEstimate
from sartor.step.step import step
from sartor.units import FloatArray, Floats, format_seconds
from sartor.validate.training_open import OpenRun, Settled, fastest, more_sharded, resorts, settled_words
from sartor.validate.training_rows import TrainingCase
from sartor.validate.training_setup import recorded

IMPOSSIBLE = 2.0
"""A step this many times faster than its FLOPs at the dense peak has another unit (no published run is faster than its
FLOPs allow)."""

TOO_FAST = f"faster than {IMPOSSIBLE:g} x what the dense peak allows: is iter_time_s in seconds?"

NAIVE_EFFICIENCY = 0.5
"""Share of peak in the naive prediction: model FLOPs over half of the dense peak of the recipe's dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """A row with its prediction; ``reason`` says why there is none."""

    case: TrainingCase
    predicted_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    """The 80% interval, over every plausible run that the row leaves open."""
    naive_s: float = math.nan
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of every timed part of the step."""
    still_open: tuple[str, ...] = ()
    """What the row does not state: the value that was taken, and the step with each other one, as phrases."""
    predicted_bytes: float = math.nan
    """Of the measured kind; device bytes if memory was not measured."""
    fit_probability: float = math.nan
    """Probability that it fits on its device."""
    would_fit: tuple[str, ...] = ()
    """Of a run that does not fit as its row states it: values of open switches with which it does, as phrases."""
    reason: str = ""

    @property
    def timed(self) -> bool:
        return math.isfinite(self.predicted_s) and math.isfinite(self.case.measured_s)

    @property
    def log_sigma(self) -> float:
        """Deviation of ln(seconds) that an interval of the same width has."""
        return math.log(self.high_s / self.low_s) / (2 * Z80)

    @property
    def covered(self) -> bool:
        """Whether the measured time is inside the interval."""
        return self.low_s <= self.case.measured_s <= self.high_s

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.case.measured_s

    @property
    def weighed(self) -> bool:
        """Whether memory was measured and can be compared."""
        has_memory = self.case.memory_known and bool(self.case.memory_kind)
        return has_memory and math.isfinite(self.predicted_bytes) and math.isfinite(self.case.measured_bytes)

    @property
    def fits(self) -> bool:
        """Whether it fits rather than not."""
        return self.fit_probability >= 0.5

    @property
    def refused(self) -> bool:
        """Whether it is said not to fit: it does not, whatever switches its row leaves open."""
        return not self.fits and not self.would_fit


def predict_training(
    cases: Sequence[TrainingCase], table: JsonMap | None = None, *, intervals: bool = True
) -> tuple[TrainingOutcome, ...]:
    """One outcome per case. ``table`` replaces the packaged constants of a step (see hardware.training_calibration);
    without ``intervals`` what the rows leave open is not priced."""
    calibrations: dict[str, Calibration] = {}
    return tuple(_outcome(case, calibrations, table, intervals) for case in counted(cases, "predicting runs"))


def _outcome(
    case: TrainingCase, calibrations: dict[str, Calibration], table: JsonMap | None, intervals: bool
) -> TrainingOutcome:
    if case.reason or case.job is None or case.plan is None or case.cluster is None:
        return TrainingOutcome(case=case, reason=case.reason)
    try:
        calibration = _calibration(case.cluster, calibrations)
        constants = coefficients_for(case.job, case.cluster.gpu, table)
        unaided, _ = settled(case, table, ran=False)
        resort, slowest = settled(replace(case, out_of_memory=False), table)
        case, slowest = settled(case, table) if case.out_of_memory else (resort, slowest)
        job, plan, cluster = case.priceable
        estimate = step(job, plan, cluster, calibration, constants)
        memory = footprint(*unaided.priceable)
        open_run = _weighed(case, calibration) if intervals else Weighed(run=Run(facts={}))
        low, high = _interval(estimate, slowest, open_run.alternatives)
    except InputError as error:
        return TrainingOutcome(case=case, reason=f"{error.field}: {error.must}"[:120])
    naive_s = _naive_s(case, estimate)
    if case.measured_s * IMPOSSIBLE < naive_s * NAIVE_EFFICIENCY:
        return TrainingOutcome(case=case, reason=TOO_FAST)
    parts = {name: _one(seconds) for name, seconds in estimate.parts.items()}
    if case.no_optimizer:
        parts |= {"optimizer_s": 0.0, "dp_exposed_s": 0.0}
    predicted_s = sum(parts.values())
    return TrainingOutcome(
        case=case,
        predicted_s=predicted_s,
        low_s=low * predicted_s,
        high_s=high * predicted_s,
        naive_s=naive_s,
        parts=parts,
        still_open=tuple(_open_words(open_run, _one(estimate.step_s))),
        predicted_bytes=_bytes(unaided, memory),
        fit_probability=_fit_probability(unaided, memory),
        would_fit=_would_fit(unaided, resort),
    )


def _weighed(case: TrainingCase, calibration: Calibration) -> Weighed:
    """The run with every other plausible value of what its row does not state, as `sartor estimate` prices them; their
    steps are compared under the packaged constants."""
    job, _, cluster = case.priceable
    return weighed(
        case.run,
        case.shape or job.shape,
        *case.priceable,
        calibration,
        limit_bytes=usable_bytes(cluster),
        record=partial(recorded, case.words, job, cluster.gpu),
    )


def _interval(estimate: StepEstimate, slowest: float, alternatives: Sequence[Alternative]) -> tuple[float, float]:
    """Ends of the 80% interval relative to the step: it holds the intervals of all plausible plans and trainers, and
    the step with every other switch.

    With their trainers hidden, 0.79 of 846 published runs are in this union and 0.60 in the interval of one trainer;
    widened by the root mean square of the differences, it holds 0.69 of every second run. Of the 401 that have an open
    switch, 0.79 are inside, and 0.84 with the intervals of the switches too (2026-11-29)."""
    step_s = _one(estimate.step_s)
    own = interval_80(step_s, _one(estimate.log_sigma))
    trainers = [interval_80(other.step_s, other.log_sigma) for other in alternatives if "framework" in other.values]
    low_s = min(float(low) for low, _ in (own, *trainers))
    high_s = max(float(high) for _, high in (own, *trainers))
    times_s = [other.step_s for other in alternatives]
    return min([low_s, *times_s]) / step_s, max([slowest * high_s, *times_s]) / step_s


def _open_words(open_run: Weighed, step_s: float) -> Iterator[str]:
    """``deepep not stated: off (on: 42.8 s)``."""
    for name, fact in open_run.run.facts.items():
        others = [
            f"{other.values[name]}: {format_seconds(other.step_s)}"
            for other in open_run.alternatives
            if other.values.keys() == {name} and abs(other.step_s / step_s - 1) >= _WORTH_SAYING
        ]
        if others:
            yield f"{name} not stated: {fact.value} ({', '.join(others)})"


_WORTH_SAYING = 0.01
"""Smallest relative change of the step for which a value that was not taken is named."""


def settled(case: TrainingCase, table: JsonMap | None = None, *, ran: bool = True) -> tuple[TrainingCase, float]:
    """The case with a single run: the fastest that fits of those the row leaves open, and the seconds of the slowest
    plausible one relative to it. ``ran``: that a run did not run out of memory says more of what its row does not
    state; its memory is predicted without."""
    if case.cluster is None or case.job is None or case.plan is None:
        return case, 1.0
    ran = ran and not case.out_of_memory
    if not case.open_runs and (not ran or _fits(*case.priceable)):
        return case, 1.0
    runs = case.open_runs or (OpenRun(job=case.job, plans=case.plan),)
    chosen = _settle(case, runs, 1.0, table)
    if not chosen.fits and ran:
        resort = resorts(case.words, runs, case.cluster.gpu)
        further = (_settle(case, others, factor, table) for others, factor in resort)
        chosen = next((settled for settled in further if settled.fits), chosen)
    elif chosen.recomputes and np.unique(np.concatenate([run.plans.recompute for run in runs])).size > 1:
        sharded = (_settle(case, others, 1.0, table) for others in more_sharded(case.words, runs))
        chosen = min((chosen, *sharded), key=lambda settled: settled.step_s)
    words = settled_words(chosen, runs)
    return replace(case, job=chosen.job, plan=chosen.plan, open_runs=(), settled=words), chosen.slowest


def _would_fit(unaided: TrainingCase, resort: TrainingCase) -> tuple[str, ...]:
    if _fits(*unaided.priceable) or not _fits(*resort.priceable):
        return ()
    return tuple(words.partition(":")[0] for words in resort.settled)


def _fits(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> bool:
    return _one(footprint(job, plan, cluster).device_bytes) <= usable_bytes(cluster)


def _settle(case: TrainingCase, runs: Sequence[OpenRun], factor: float, table: JsonMap | None) -> Settled:
    """The fastest of the runs that fit ``factor`` times the device's usable memory."""
    *_, cluster = case.priceable
    constants = coefficients_for(runs[0].job, cluster.gpu, table)
    estimates = [step(run.job, run.plans, cluster, None, constants) for run in runs]
    memories = [footprint(run.job, run.plans, cluster) for run in runs]
    return fastest(runs, estimates, memories, factor * usable_bytes(cluster))


def _calibration(cluster: Cluster, by_gpu: dict[str, Calibration]) -> Calibration:
    name = cluster.gpu.name
    if name not in by_gpu:
        by_gpu[name] = load_calibration(cluster.gpu)
    return by_gpu[name]


def _naive_s(case: TrainingCase, estimate: StepEstimate) -> float:
    """Model FLOPs, a third more with full recomputation, over half of the peak of all devices."""
    job, plan, cluster = case.priceable
    again = 4 / 3 if plan.recompute == Recompute.FULL else 1.0
    peak = peak_flops_per_s(cluster.gpu, job.recipe.dtype) * _one(plan.num_devices)
    return _one(estimate.model_flops) * again / (NAIVE_EFFICIENCY * peak)


def _bytes(case: TrainingCase, memory: Footprint) -> float:
    """Bytes of the fullest device; for nvidia-smi figures, of the first node (where it is run): the first stages."""
    job, plan, cluster = case.priceable
    nodes = cluster.num_devices / cluster.devices_per_node
    if case.memory_kind == "device":
        ranks = every_stage(job, plan, cluster)
        stages = (ranks.reserved + ranks.held.context)[:, 0]
        return float(stages[: math.ceil(len(stages) / nodes)].max())
    figures = {"allocated": memory.allocated_bytes, "reserved": memory.reserved_bytes}
    return _one(figures.get(case.memory_kind, memory.device_bytes))


def _fit_probability(case: TrainingCase, memory: Footprint) -> float:
    """Without optimizer states if no optimizer steps."""
    states = memory.optimizer_bytes if case.no_optimizer else 0.0
    return float(fit_probability(_one(memory.device_bytes - states), case.priceable[2]))


def _one(value: Floats) -> float:
    return float(np.ravel(value)[0])


NEAR = 0.02
"""Plans whose measured times differ by less count as equal."""

SAME = ("source", "model", "L", "h", "a", "d_ff", "seq", "gpu", "n_gpu", "gbs", "dtype")
"""Columns that must match for two plans to be compared, besides the number of devices in the plans."""

LEAST = 3
"""Fewest plans for which the first choice is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranking:
    """``right`` of ``pairs`` pairs are ordered as measured; ``regrets`` has one share of time lost per group."""

    pairs: int
    right: float
    regrets: tuple[float, ...]

    @property
    def pair_accuracy(self) -> float | None:
        return self.right / self.pairs if self.pairs else None

    @property
    def regret(self) -> float | None:
        """Mean over groups of the chosen plan's measured time over the best one's, minus 1."""
        return float(np.mean(self.regrets)) if self.regrets else None


def ranking(outcomes: Sequence[TrainingOutcome]) -> _Ranking:
    """Pairs and regrets among timed runs."""
    pairs, right, regrets = 0, 0.0, []
    for times in rivals(outcomes):
        for (measured, guessed), (slower_s, other_guess) in combinations(times, 2):
            if abs(measured / slower_s - 1) > NEAR:
                pairs += 1
                right += float((measured < slower_s) == (guessed < other_guess)) if guessed != other_guess else 0.5
        if len(times) >= LEAST:
            chosen = min(times, key=lambda pair: pair[1])[0]
            regrets.append(chosen / min(measured for measured, _ in times) - 1)
    return _Ranking(pairs=pairs, right=right, regrets=tuple(regrets))


def rivals(outcomes: Sequence[TrainingOutcome]) -> Iterator[list[tuple[float, float]]]:
    """Measured and predicted seconds of the plans of one model on one cluster, a list for each; repeats of a
    configuration count once, with their mean."""
    questions: dict[tuple[object, ...], dict[str, list[TrainingOutcome]]] = {}
    for i, outcome in enumerate(outcomes):
        if outcome.timed:
            words = outcome.case.words
            devices = int(np.ravel(outcome.case.priceable[1].num_devices)[0])
            same = (*(words.get(name, "") for name in SAME), devices)
            questions.setdefault(same, {}).setdefault(words.get("config_hash") or str(i), []).append(outcome)
    for plans in questions.values():
        yield [
            (float(np.mean([p.case.measured_s for p in members])), float(np.mean([p.predicted_s for p in members])))
            for members in plans.values()
        ]


DRAWS = 20
SEED = 20261121

COMPUTE, REST, ALIKE, OWN = 0.1, 0.1, 0.1, 0.05
"""Standard deviations of ln(measured / predicted): of compute, of the rest, of similar runs, of a single run. Chosen
among a dozen on data/end_to_end with every source's constants fitted on the others (2026-11-21)."""

OWN_OF_EXPERTS = 0.15
"""The same for a single run of a model with experts: the same plan changes by up to twice between releases (README of
data/end_to_end, 2026-11-21)."""

WORDS = ("model", "recompute", "flash_attention", "ep", "zero_stage", "dtype")
RELEASE = "framework_version"
SIZES = {"n_gpu": 0.1, "seq": 0.15, "tp": 0.15, "pp": 0.1, "mbs": 0.15, "grad_accum": 0.05}
WORD = 0.5
"""Distance of two runs: ``WORD`` for each word that differs (half for the trainer's release), and for sizes their
weight per factor of two; shared variance falls by e per unit."""

BUSY = ("compute_s", "optimizer_s")
"""Parts that are compute; bubbles scale with the rest of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Predictions after calibration: one entry per choice of observed runs and unobserved run."""

    index: np.ndarray
    """Index of the outcome."""
    ratio: np.ndarray
    """Predicted over measured."""


def _class_of(outcome: TrainingOutcome) -> tuple[str, ...]:
    """The class that shares a calibration: source, device and precision."""
    words = outcome.case.words
    return (words.get("source", ""), words.get("gpu", ""), outcome.case.precision)


def planned(outcomes: Sequence[TrainingOutcome], shots: int) -> Shots:
    """Predictions of every timed run from the ``shots`` configurations of its class that are most informative about the
    others; classes with no more are left out. Measured times do not influence the choice."""
    return _calibrated(outcomes, shots, lambda group, members: [group.telling(members, shots)])


def drawn(outcomes: Sequence[TrainingOutcome], shots: int, draws: int = DRAWS) -> Shots:
    """The same from ``shots`` configurations drawn at random, ``draws`` times; the same input gives the same draws."""

    def choices(_: _Class, members: Members) -> list[list[int]]:
        orders = (np.random.default_rng(SEED + draw).permutation(len(members)) for draw in range(draws))
        return [order[:shots].tolist() for order in orders]

    return _calibrated(outcomes, shots, choices)


Members = Sequence[npt.NDArray[np.int64]]
"""The runs of every configuration of a class."""


def _calibrated(
    outcomes: Sequence[TrainingOutcome], shots: int, choices: Callable[[_Class, Members], list[list[int]]]
) -> Shots:
    index: list[int] = []
    ratio: list[float] = []
    for configurations in _classes(outcomes).values():
        if len(configurations) <= shots:
            continue
        runs = [i for configuration in configurations for i in configuration]
        group = _Class([outcomes[i] for i in runs])
        members = np.split(np.arange(len(runs)), np.cumsum([*map(len, configurations)])[:-1])
        for chosen in choices(group, members):
            seen = np.concatenate([members[member] for member in chosen])
            rest = np.setdiff1d(np.arange(len(runs)), seen)
            index += [runs[i] for i in rest]
            ratio += group.after(seen, rest).tolist()
    return Shots(index=np.asarray(index, dtype=np.int64), ratio=np.asarray(ratio))


def _classes(outcomes: Sequence[TrainingOutcome]) -> dict[tuple[str, ...], list[list[int]]]:
    """Timed runs by class and configuration."""
    classes: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for i, outcome in enumerate(outcomes):
        if outcome.timed:
            configuration = outcome.case.words.get("config_hash") or str(i)
            classes.setdefault(_class_of(outcome), {}).setdefault(configuration, []).append(i)
    return {name: list(groups.values()) for name, groups in classes.items()}


class _Class:
    """Runs that share a calibration: their errors and the covariance of these."""

    def __init__(self, runs: Sequence[TrainingOutcome]) -> None:
        self.off = np.log([outcome.ratio for outcome in runs])
        busy = np.array([_busy_share(outcome.parts) for outcome in runs])
        alike = np.exp(-_distances([outcome.case.words for outcome in runs]))
        self.together = COMPUTE**2 * np.outer(busy, busy) + REST**2 * np.outer(1 - busy, 1 - busy) + ALIKE**2 * alike
        self.own = np.array([OWN_OF_EXPERTS if outcome.case.experts == "moe" else OWN for outcome in runs]) ** 2

    def telling(self, members: Members, shots: int) -> list[int]:
        """Configurations to observe, chosen greedily to leave the least uncertainty about unobserved runs (the sum of
        their standard deviations). Each is represented by its first run; errors of single runs average out."""
        first = np.array([configuration[0] for configuration in members])
        repeats = np.array([len(configuration) for configuration in members])
        left, own_variance = self.together[np.ix_(first, first)], self.own[first] / repeats
        rest = repeats[:, None] * (1.0 - np.eye(len(members)))  # [i, j]: runs of i left after observing j
        chosen: list[int] = []
        for _ in range(shots):
            removed = left**2 / (np.diag(left) + own_variance)  # [i, j]: variance of i removed by observing j
            unknown = (rest * np.sqrt(np.maximum(np.diag(left)[:, None] - removed, 0.0))).sum(axis=0)
            unknown[chosen] = np.inf
            best = int(np.argmin(unknown))
            chosen.append(best)
            rest[best] = 0.0
            left = left - np.outer(left[best], left[best]) / (left[best, best] + own_variance[best])
        return chosen

    def after(self, seen: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> FloatArray:
        """Predicted over measured of ``rest`` after observing ``seen``."""
        covariance = self.together[np.ix_(seen, seen)] + np.diag(self.own[seen])
        expected = self.together[np.ix_(rest, seen)] @ np.linalg.solve(covariance, self.off[seen])
        left: FloatArray = np.exp(self.off[rest] - expected)
        return left


def _distances(rows: Sequence[Mapping[str, str]]) -> FloatArray:
    """Distances between runs [n, n]."""
    words = np.array([[row.get(name, "") for name in WORDS] for row in rows])
    sizes = np.array([[_octaves(row.get(name, "")) * weight for name, weight in SIZES.items()] for row in rows])
    releases = np.array([row.get(RELEASE, "") for row in rows])
    differ = (words[:, None] != words).sum(axis=-1) + (releases[:, None] != releases) / 2
    far: FloatArray = WORD * differ + np.abs(sizes[:, None] - sizes).sum(axis=-1)
    return far


def _octaves(word: str) -> float:
    try:
        size = float(word or 1)
    except ValueError:
        return 0.0
    return math.log2(size) if 1 <= size < math.inf else 0.0


def _busy_share(parts: Mapping[str, float]) -> float:
    """Share of compute in a step, without the bubble."""
    busy, bubble = sum(parts[name] for name in BUSY), parts["pp_bubble_s"]
    return busy / max(sum(parts.values()) - bubble, 1e-30)
