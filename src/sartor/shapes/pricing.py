"""Points with their prices, and the full description of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sartor.cost.compare import compare
from sartor.cost.price import Estimate
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.workload import Phase, Workload
from sartor.shapes.choose import Changes
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.quality import QualityGuard, quality_of
from sartor.shapes.result import Candidate, FrontPoint, SingleEdit
from sartor.shapes.space import Points
from sartor.step.results import WholeStep
from sartor.step.running import InRun
from sartor.units import Floats

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Seconds [N] of the objective by GPU, and of every phase on the first GPU; ``baseline`` is a position."""

    by_gpu: tuple[FloatArray, ...]
    by_phase: Mapping[Phase, FloatArray]
    baseline: int
    score: FloatArray
    """Time relative to the baseline's on the first GPU, rounded to ten digits so that ties do not depend on summation
    order."""

    @property
    def regret(self) -> FloatArray:
        """Each point's largest loss against the best of any GPU, as a share of that best."""
        losses = np.stack([times / times.min() - 1 for times in self.by_gpu])
        worst: FloatArray = np.round(losses.max(axis=0), 10)
        return worst


def price(
    points: Points, phases: Mapping[Phase, Workload], objective: Phase, gpus: tuple[Gpu, ...], evaluator: Evaluator
) -> Prices:
    """Every point in every phase on the first GPU, and in the objective's phase on all GPUs."""
    by_phase = {
        phase: evaluator.times(points, workload, gpus if phase is objective else gpus[:1])
        for phase, workload in phases.items()
    }
    own = points.space.baseline
    is_own = np.all([values == own[name] for name, values in points.fields().items()], axis=0)
    baseline = int(np.flatnonzero(is_own)[0])
    if Phase.TRAIN in by_phase:
        by_phase[Phase.TRAIN] = _of_steps(by_phase[Phase.TRAIN], baseline, gpus, evaluator.runs)
    by_gpu = by_phase[objective]
    return Prices(
        by_gpu=by_gpu,
        by_phase={phase: times[0] for phase, times in by_phase.items()},
        baseline=baseline,
        score=np.round(by_gpu[0] / by_gpu[0][baseline], 10),
    )


def _of_steps(
    times: tuple[FloatArray, ...], baseline: int, gpus: tuple[Gpu, ...], runs: Mapping[str, InRun]
) -> tuple[FloatArray, ...]:
    """Seconds of a microbatch as seconds of the training step it is part of, on the devices whose step is known."""
    return tuple(
        np.asarray(runs[gpu.name].whole.after(each / each[baseline])) if gpu.name in runs else each
        for gpu, each in zip(gpus, times, strict=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The points of one search; its methods describe one point by position."""

    points: Points
    prices: Prices
    found: Changes
    workload: Workload
    gpus: tuple[Gpu, ...]
    evaluator: Evaluator
    guard: QualityGuard
    baseline: Estimate

    def own(self) -> dict[str, int]:
        """The baseline's fields."""
        return {name: int(value) for name, value in self.workload.shape.fields().items()}

    def fields(self, i: int) -> dict[str, int]:
        """All fields of a point in the grid; derived sizes are in its shape."""
        axes = zip(self.points.space.axes, self.points.index, strict=True)
        return self.own() | {n: int(v[index[i]]) for axis, index in axes for n, v in axis.values.items()}

    def changed(self, i: int) -> dict[str, tuple[int, int]]:
        """Field -> (old, new)."""
        own = self.own()
        return {name: (own[name], new) for name, new in self.fields(i).items() if own[name] != new}

    def params_change(self, i: int) -> float:
        counts = self.points.num_params
        return float(counts[i] / counts[self.prices.baseline] - 1)

    def phase_s(self, i: int) -> dict[str, float]:
        return {phase.value: float(times[i]) for phase, times in self.prices.by_phase.items()}

    def per_gpu(self, i: int) -> dict[str, float]:
        base = self.prices.baseline
        return {gpu.name: float(t[base] / t[i]) for gpu, t in zip(self.gpus, self.prices.by_gpu, strict=True)}

    def candidate(self, i: int) -> Candidate:
        """A point in full: priced once more without the grid, with interval, confidence and quality."""
        own = self.own()
        shape = edit(self.workload.shape, **{name: new for name, (_, new) in self.changed(i).items()})
        fields = {name: int(value) for name, value in shape.fields().items()}
        priced = self.evaluator.one(replace(self.workload, shape=shape), self.gpus[0])
        gain, times = compare(self.baseline, priced), (priced.time_s, priced.low_s, priced.high_s)
        gains = [float(each) for each in (gain.speedup, gain.low, gain.high)]
        if self.whole is not None:
            times = self._of_step(self.whole, float(priced.time_s / self.baseline.time_s))
            gains = [self.whole.speedup(each) for each in gains]
        num_params = int(count_params(shape).total)
        return Candidate(
            shape=shape,
            fields=fields,
            changed={name: (own[name], new) for name, new in fields.items() if own[name] != new},
            num_changes=int(self.found.count[i]),
            num_params=num_params,
            params_change=self.params_change(i),
            flops_change=float(priced.matmul_flops / self.baseline.matmul_flops - 1),
            time_s=float(times[0]),
            low_s=float(times[1]),
            high_s=float(times[2]),
            speedup=gains[0],
            speedup_low=gains[1],
            speedup_high=gains[2],
            confidence=float(gain.probability),
            phase_s=self.phase_s(i),
            per_gpu=self.per_gpu(i),
            quality=quality_of(self.guard, fields, own, num_params),
        )

    @property
    def whole(self) -> WholeStep | None:
        """The baseline's training step on the first GPU, where that is the objective and known."""
        run = self.evaluator.runs.get(self.gpus[0].name)
        return run.whole if run and self.workload.phase is Phase.TRAIN else None

    def _of_step(self, whole: WholeStep, ratio: float) -> tuple[Floats, Floats, Floats]:
        """Seconds of the step with their interval, which is as wide as the baseline's."""
        time_s = whole.after(ratio)
        return time_s, time_s * whole.low_s / whole.step_s, time_s * whole.high_s / whole.step_s

    def front_point(self, i: int) -> FrontPoint:
        """A point in a few numbers."""
        return FrontPoint(
            fields=self.fields(i),
            changed=self.changed(i),
            num_changes=int(self.found.count[i]),
            params_change=self.params_change(i),
            phase_s=self.phase_s(i),
            speedup=float(1 / self.prices.score[i]),
        )

    def single_edit(self, field: str, i: int) -> SingleEdit:
        """A point that edits one field."""
        old, new = self.changed(i)[field]
        return SingleEdit(
            field=field,
            old=old,
            new=new,
            changed=self.changed(i),
            speedup=float(1 / self.prices.score[i]),
            params_change=self.params_change(i),
        )


def fastest(times: FloatArray, count: npt.NDArray[np.int64]) -> int:
    """Position of the least time (to ten digits); ties go to the fewest edits, then to grid order."""
    rounded = np.round(times / times.min(), 10)
    best = np.flatnonzero(rounded == rounded.min())
    return int(best[np.argmin(count[best])])
