"""One shape for several devices and phases, by its regret against the best shape of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from sartor.cost.uncertainty import compare
from sartor.hardware.gpu import Gpu
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.near import build_space, grain_of
from sartor.shapes.pricing import work_of
from sartor.shapes.quality import QualityGuard, freed_guard
from sartor.shapes.result import NOISE, best_of_each, changes
from sartor.shapes.space import Points, same_size
from sartor.units import FloatArray, IntArray

SHORTLIST = 100
"""Most shapes whose gain is priced with its interval on every device in every phase."""


class Regret(Enum):
    """``WEIGHTED``: the mean loss, phases by their weights and devices alike. ``WORST``: the largest loss."""

    WEIGHTED = "weighted"
    WORST = "worst"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    """The best shape for one device in one phase (within ``NOISE`` of the best, the one with the fewest changed fields)
    and the gain of the common shape there; gains are speedups at equal parameters and FLOPs."""

    gpu: str
    phase: str
    weight: float
    alone: Mapping[str, tuple[int, int]]
    alone_gain: float
    common_gain: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoDesign:
    """The common shape's changed fields (none: keep the shape), its regret, and that of the unchanged shape."""

    rule: Regret
    changed: Mapping[str, tuple[int, int]]
    regret: float
    baseline_regret: float
    wants: tuple[_Want, ...]


def codesign(
    workloads: Mapping[Phase, Workload],
    weights: Mapping[Phase, float],
    gpus: Sequence[Gpu],
    dims: ParallelDims,
    evaluator: Evaluator,
    *,
    rule: Regret,
    params_tolerance: float,
    guard: QualityGuard,
    freeze: Sequence[str] = (),
    free: Sequence[str] = (),
) -> CoDesign:
    """The shape of the same size with the least regret over every device and phase, if the interval of its gain over
    the unchanged shape is above 1; ties go to fewer changed fields."""
    guard = freed_guard(guard, free)
    main = workloads[max(weights, key=lambda phase: weights[phase])]
    grain = grain_of(tuple(gpus))
    space = build_space(main, dims, guard, freeze, free, grain=grain, tolerance=params_tolerance)
    points = same_size(space, dims, params_tolerance, guard)
    baseline = space.baseline
    base = int(np.flatnonzero(np.all([v == baseline[n] for n, v in points.fields().items()], axis=0))[0])
    tried = [
        _Tried(points=points, workload=workloads[phase], gpus=tuple(gpus), evaluator=evaluator, base=base)
        for phase in weights
    ]
    scores = dict(zip(weights, (entry.scores() for entry in tried), strict=True))
    losses = {phase: [entry / entry.min() - 1 for entry in outcomes] for phase, outcomes in scores.items()}
    total, outcomes = _total(losses, weights, rule), changes(points)
    size_change = np.abs(points.num_params / points.num_params[base] - 1)
    better = np.flatnonzero(total < total[base] - NOISE)
    hopeful = better[best_of_each(outcomes.kinds[better], total[better], size_change[better])[:SHORTLIST]]
    sure = hopeful[_surely_gains(tried, hopeful, weights, losses, rule)]
    best = _fewest(total, outcomes.count, sure) if len(sure) else base
    wants = [
        _Want(
            gpu=gpu.name,
            phase=phase.value,
            weight=weights[phase],
            alone=_changed(points, _fewest(score, outcomes.count, np.arange(points.size))),
            alone_gain=float(1 / score.min()),
            common_gain=float(1 / score[best]),
            regret=float(loss[best]),
        )
        for phase in weights
        for gpu, score, loss in zip(gpus, scores[phase], losses[phase], strict=True)
    ]
    return CoDesign(
        rule=rule,
        changed=_changed(points, best),
        regret=float(total[best]),
        baseline_regret=float(total[base]),
        wants=tuple(wants),
    )


def _fewest(score: FloatArray, count: IntArray, among: IntArray) -> int:
    """Among points within ``NOISE`` of the least score, the one with the fewest changed fields, then least score."""
    near = among[score[among] <= score[among].min() + NOISE]
    return int(near[np.lexsort((score[near], count[near]))[0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """The points in one phase on every device; ``base`` is the position of the unchanged shape."""

    points: Points
    workload: Workload
    gpus: tuple[Gpu, ...]
    evaluator: Evaluator
    base: int

    def work(self) -> FloatArray:
        return work_of(self.points, self.workload, self.evaluator, self.base)

    def scores(self) -> list[FloatArray]:
        """Time at equal work relative to the baseline's, by device."""
        equal = [times / self.work() for times in self.evaluator.times(self.points, self.workload, self.gpus)]
        ratios = [times / times[self.base] for times in equal]
        return [1 / self._of_step(gpu, 1 / ratio) for gpu, ratio in zip(self.gpus, ratios, strict=True)]

    def gains(self, rows: IntArray) -> list[tuple[FloatArray, FloatArray]]:
        """Gains at some points and the lower ends of their 80% intervals, by device."""
        shape, work = self.points.space.edited(self.points.take(rows).fields()), self.work()[rows]
        gains = []
        for gpu in self.gpus:
            before, after = (
                self.evaluator.one(varied, gpu) for varied in (self.workload, replace(self.workload, shape=shape))
            )
            gain = compare(before, after, work)
            gains.append((self._of_step(gpu, np.asarray(gain.speedup)), self._of_step(gpu, np.asarray(gain.low))))
        return gains

    def _of_step(self, gpu: Gpu, speedup: FloatArray) -> FloatArray:
        """For training, the speedup of the whole step if it is known."""
        run = self.evaluator.runs.get(gpu.name) if self.workload.phase is Phase.TRAIN else None
        return np.asarray(speedup if run is None else run.whole.speedup(speedup))


def _surely_gains(
    tried: Sequence[_Tried],
    rows: IntArray,
    weights: Mapping[Phase, float],
    losses: Mapping[Phase, list[FloatArray]],
    rule: Regret,
) -> npt.NDArray[np.bool_]:
    """Mask of the points whose gain has an interval above 1: the weighted mean gain (errors are common to the phases of
    one device, independent between devices), or the gain of the device and phase that lose most with the unchanged
    shape."""
    if not len(rows):
        return np.zeros(0, dtype=np.bool_)
    gains = [entry.gains(rows) for entry in tried]
    if rule is Regret.WEIGHTED:
        share = 1 / len(tried[0].gpus)
        mean = sum(w * share * gain for w, entry in zip(weights.values(), gains, strict=True) for gain, _ in entry)
        below = [
            sum(w * share * (entry[i][0] - entry[i][1]) for w, entry in zip(weights.values(), gains, strict=True))
            for i in range(len(tried[0].gpus))
        ]
        return np.asarray(mean - np.sqrt(sum(off**2 for off in below)) > 1)
    base = tried[0].base
    lost = [
        (loss[base], low)
        for entry, pairs in zip(losses.values(), gains, strict=True)
        for loss, (_, low) in zip(entry, pairs, strict=True)
    ]
    return np.asarray(max(lost, key=lambda pair: pair[0])[1] > 1)


def _total(losses: Mapping[Phase, list[FloatArray]], weights: Mapping[Phase, float], rule: Regret) -> FloatArray:
    if rule is Regret.WORST:
        return np.asarray(np.max([value for values in losses.values() for value in values], axis=0))
    return np.asarray(sum(weights[phase] * np.mean(values, axis=0) for phase, values in losses.items()))


def _changed(points: Points, i: int) -> dict[str, tuple[int, int]]:
    baseline = points.space.baseline
    fields = {name: int(values[i]) for name, values in points.fields().items()}
    return {name: (int(baseline[name]), new) for name, new in fields.items() if baseline[name] != new}
