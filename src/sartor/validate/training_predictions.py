"""Predictions of published training runs, and how well they rank the plans of one source.

Predicted time and memory of every training row, with a naive estimate for comparison.

Ranking of plans for one model on one cluster: pairs ordered correctly, and the loss from the predicted best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Z80, interval_80
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonMap
from sartor.model.training import Recompute
from sartor.step.coefficients import coefficients_for
from sartor.step.footprint import every_stage, footprint
from sartor.step.results import Footprint, StepEstimate
from sartor.step.step import step
from sartor.units import Floats
from sartor.validate.training_open import OpenRun, Settled, fastest, more_sharded, needed_bytes, resorts, settled_words
from sartor.validate.training_rows import TrainingCase

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
    predicted_bytes: float = math.nan
    """Of the measured kind; device bytes if memory was not measured."""
    needed_bytes: float = math.nan
    """Allocated bytes plus context: an allocator frees cached gaps before it runs out of memory."""
    reason: str = ""

    @property
    def timed(self) -> bool:
        return math.isfinite(self.predicted_s) and math.isfinite(self.case.measured_s)

    @property
    def log_sigma(self) -> float:
        """Deviation of ln(seconds) that an interval of the same width has."""
        return math.log(self.high_s / self.low_s) / (2 * Z80)

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
        """Whether the prediction fits the device."""
        return self.case.cluster is not None and self.needed_bytes <= self.case.cluster.gpu.hbm_bytes


def predict_training(cases: Sequence[TrainingCase], table: JsonMap | None = None) -> tuple[TrainingOutcome, ...]:
    """One outcome per case. ``table`` replaces the packaged constants of a step (see hardware.training_calibration)."""
    calibrations: dict[str, Calibration] = {}
    return tuple(_outcome(case, calibrations, table) for case in cases)


def _outcome(case: TrainingCase, calibrations: dict[str, Calibration], table: JsonMap | None) -> TrainingOutcome:
    if case.reason or case.job is None or case.plan is None or case.cluster is None:
        return TrainingOutcome(case=case, reason=case.reason)
    try:
        calibration = _calibration(case.cluster, calibrations)
        constants = coefficients_for(case.job, case.cluster.gpu, table)
        case, slowest = settled(case, table)
        assert case.job is not None
        assert case.plan is not None
        assert case.cluster is not None
        estimate = step(case.job, case.plan, case.cluster, calibration, constants)
        memory = footprint(case.job, case.plan, case.cluster)
        low, high = _interval(case, estimate, slowest, calibration, table)
    except InputError as error:
        return TrainingOutcome(case=case, reason=f"{error.field}: {error.must}"[:120])
    naive_s = _naive_s(case, estimate)
    if case.measured_s * IMPOSSIBLE < naive_s * NAIVE_EFFICIENCY:
        return TrainingOutcome(case=case, reason=TOO_FAST)
    parts = {name: float(np.ravel(seconds)[0]) for name, seconds in estimate.parts.items()}
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
        predicted_bytes=_bytes(case, memory),
        needed_bytes=_needed(case, memory),
    )


def _interval(
    case: TrainingCase, estimate: StepEstimate, slowest: float, calibration: Calibration, table: JsonMap | None
) -> tuple[float, float]:
    """Ends of the 80% interval relative to the step: the union of those of all plausible runs and trainers.

    With their trainers hidden, 0.79 of 846 published runs are in this union and 0.60 in the interval of one trainer;
    widened by the root mean square of the differences, it holds 0.69 of every second run (2026-11-29)."""
    assert case.job is not None
    assert case.plan is not None
    assert case.cluster is not None
    jobs = [replace(case.job, trainer=trainer) for trainer in case.trainers]
    steps = [
        step(job, case.plan, case.cluster, calibration, coefficients_for(job, case.cluster.gpu, table)) for job in jobs
    ]
    ends = [interval_80(_one(each.step_s), _one(each.log_sigma)) for each in (estimate, *steps)]
    step_s = _one(estimate.step_s)
    return min(float(low) for low, _ in ends) / step_s, slowest * max(float(high) for _, high in ends) / step_s


def settled(case: TrainingCase, table: JsonMap | None = None) -> tuple[TrainingCase, float]:
    """The case with a single run: the fastest that fits of those the row leaves open, and the seconds of the slowest
    plausible one relative to it."""
    if not case.open_runs or case.cluster is None:
        return case, 1.0
    chosen = _settle(case, case.open_runs, 1.0, table)
    if not chosen.fits and not case.out_of_memory:
        further = (_settle(case, runs, factor, table) for runs, factor in resorts(case.words, case.open_runs))
        chosen = next((settled for settled in further if settled.fits), chosen)
    elif (
        chosen.recomputes and len({int(again) for run in case.open_runs for again in np.ravel(run.plans.recompute)}) > 1
    ):
        sharded = (_settle(case, runs, 1.0, table) for runs in more_sharded(case.words, case.open_runs))
        chosen = min((chosen, *sharded), key=lambda settled: settled.step_s)
    words = settled_words(chosen, case.open_runs)
    return replace(case, job=chosen.job, plan=chosen.plan, open_runs=(), settled=words), chosen.slowest


def _settle(case: TrainingCase, runs: Sequence[OpenRun], factor: float, table: JsonMap | None) -> Settled:
    """The fastest of the runs that fit ``factor`` times the device's memory."""
    assert case.cluster is not None
    constants = coefficients_for(runs[0].job, case.cluster.gpu, table)
    estimates = [step(run.job, run.plans, case.cluster, None, constants) for run in runs]
    memories = [footprint(run.job, run.plans, case.cluster) for run in runs]
    return fastest(runs, estimates, memories, factor * case.cluster.gpu.hbm_bytes)


def _calibration(cluster: Cluster, by_gpu: dict[str, Calibration]) -> Calibration:
    name = cluster.gpu.name
    if name not in by_gpu:
        by_gpu[name] = load_calibration(cluster.gpu)
    return by_gpu[name]


def _naive_s(case: TrainingCase, estimate: StepEstimate) -> float:
    """Model FLOPs, a third more with full recomputation, over half of the peak of all devices."""
    assert case.job is not None
    assert case.plan is not None
    assert case.cluster is not None
    again = 4 / 3 if case.plan.recompute == Recompute.FULL else 1.0
    peak = peak_flops_per_s(case.cluster.gpu, case.job.recipe.dtype) * _one(case.plan.num_devices)
    return _one(estimate.model_flops) * again / (NAIVE_EFFICIENCY * peak)


def _bytes(case: TrainingCase, memory: Footprint) -> float:
    """Bytes of the fullest device; for nvidia-smi figures, of the first node (where it is run): the first stages."""
    assert case.job is not None
    assert case.plan is not None
    assert case.cluster is not None
    nodes = case.cluster.num_devices / case.cluster.devices_per_node
    if case.memory_kind == "device" and nodes > 1 and _one(case.plan.dims.pp) > 1:
        stages = every_stage(case.job, case.plan, case.cluster).device_bytes[:, 0]
        return float(stages[: math.ceil(len(stages) / nodes)].max())
    figures = {"allocated": memory.allocated_bytes, "reserved": memory.reserved_bytes}
    return _one(figures.get(case.memory_kind, memory.device_bytes))


def _needed(case: TrainingCase, memory: Footprint) -> float:
    """Bytes a device needs at least; without optimizer states if no optimizer steps."""
    states = memory.optimizer_bytes if case.no_optimizer else 0.0
    return _one(needed_bytes(memory) - states)


def _one(value: Floats) -> float:
    return float(np.ravel(value)[0])


NEAR = 0.02
"""Plans whose measured times differ by less count as equal."""

SAME = ("source", "model", "L", "h", "a", "d_ff", "seq", "gpu", "n_gpu", "gbs", "dtype")
"""Columns that must match for two plans to be compared, besides the number of devices in the plans."""

LEAST = 3
"""Fewest plans for which the first choice is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
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


def ranking(outcomes: Sequence[TrainingOutcome]) -> Ranking:
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
    return Ranking(pairs=pairs, right=right, regrets=tuple(regrets))


def rivals(outcomes: Sequence[TrainingOutcome]) -> Iterator[list[tuple[float, float]]]:
    """Measured and predicted seconds of the plans of one model on one cluster, a list for each; repeats of a
    configuration count once, with their mean."""
    questions: dict[tuple[object, ...], dict[str, list[TrainingOutcome]]] = {}
    for i, outcome in enumerate(outcomes):
        if outcome.timed:
            words = outcome.case.words
            same = (*(words.get(name, "") for name in SAME), _devices(outcome))
            questions.setdefault(same, {}).setdefault(words.get("config_hash") or str(i), []).append(outcome)
    for plans in questions.values():
        yield [
            (float(np.mean([p.case.measured_s for p in members])), float(np.mean([p.predicted_s for p in members])))
            for members in plans.values()
        ]


def _devices(outcome: TrainingOutcome) -> int:
    assert outcome.case.plan is not None
    return int(np.ravel(outcome.case.plan.num_devices)[0])
