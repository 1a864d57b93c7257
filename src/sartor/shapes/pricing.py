"""Points with their prices, and the full description of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sartor.cost.price import Estimate
from sartor.cost.uncertainty import Comparison, compare, work_kept
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.quality import QualityGuard, loss_change, quality_of
from sartor.shapes.result import NOISE, Candidate, Changes, FrontPoint, SingleEdit
from sartor.shapes.space import Equal, Points
from sartor.step.coefficients import InRun
from sartor.step.results import WholeStep
from sartor.units import FloatArray, Floats, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """Seconds [N] of the objective by GPU, and of every phase on the first GPU; ``baseline`` is a position."""

    by_gpu: tuple[FloatArray, ...]
    by_phase: Mapping[Phase, FloatArray]
    baseline: int
    work: FloatArray
    """Share of the baseline's work that each point still does (``work_kept``)."""
    equal_by_gpu: tuple[FloatArray, ...]
    """Seconds of the objective by GPU at equal work."""

    @property
    def score(self) -> FloatArray:
        """Time at equal work relative to the baseline's on the first GPU, rounded to ten digits so that ties do not
        depend on summation order."""
        times = self.equal_by_gpu[0]
        return np.asarray(np.round(times / times[self.baseline], 10))

    @property
    def regret(self) -> FloatArray:
        """Each point's largest loss at equal work against the best of any GPU, as a share of that best."""
        losses = np.stack([times / times.min() - 1 for times in self.equal_by_gpu])
        worst: FloatArray = np.round(losses.max(axis=0), 10)
        return worst


def price(
    points: Points, phases: Mapping[Phase, Workload], objective: Phase, gpus: tuple[Gpu, ...], evaluator: Evaluator
) -> _Prices:
    """Every point in every phase on the first GPU, and in the objective's phase on all GPUs."""
    by_phase = {
        phase: evaluator.times(points, workload, gpus if phase is objective else gpus[:1])
        for phase, workload in phases.items()
    }
    baseline_fields = points.space.baseline
    is_own = np.all([values == baseline_fields[name] for name, values in points.fields().items()], axis=0)
    baseline = int(np.flatnonzero(is_own)[0])
    work = work_of(points, phases[objective], evaluator, baseline)
    equal = tuple(times / work for times in by_phase[objective])
    if objective is Phase.TRAIN:
        equal = _of_steps(equal, baseline, gpus, evaluator.runs)
    if Phase.TRAIN in by_phase:
        by_phase[Phase.TRAIN] = _of_steps(by_phase[Phase.TRAIN], baseline, gpus, evaluator.runs)
    return _Prices(
        by_gpu=by_phase[objective],
        by_phase={phase: times[0] for phase, times in by_phase.items()},
        baseline=baseline,
        work=work,
        equal_by_gpu=equal,
    )


def work_of(points: Points, workload: Workload, evaluator: Evaluator, baseline: int) -> FloatArray:
    """Share of the baseline's work that each point still does; at equal loss it counts as all. A shorter attention
    window, changed only on request, does not count as less work: FLOPs are counted with the baseline's windows."""
    if points.equal is Equal.LOSS:
        return np.ones(points.size)
    flops = evaluator.flops(points.with_own("num_full_layers"), workload)
    counts = (points.num_params, points.num_active_params, flops)
    return np.asarray(work_kept(*(count / count[baseline] for count in counts)))


def _of_steps(
    times: tuple[FloatArray, ...], baseline: int, gpus: tuple[Gpu, ...], runs: Mapping[str, InRun]
) -> tuple[FloatArray, ...]:
    """Seconds of the training step that a microbatch is part of, for devices with a known step; else unchanged."""
    return tuple(
        np.asarray(runs[gpu.name].whole.after(gpu_times / gpu_times[baseline])) if gpu.name in runs else gpu_times
        for gpu, gpu_times in zip(gpus, times, strict=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPoints:
    """The points of one search; its methods describe one point by position."""

    points: Points
    prices: _Prices
    kinds: Changes
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
        baseline = self.own()
        return {name: (baseline[name], new) for name, new in self.fields(i).items() if baseline[name] != new}

    def params_change(self, i: int) -> float:
        counts = self.points.num_params
        return float(counts[i] / counts[self.prices.baseline] - 1)

    def phase_s(self, i: int) -> dict[str, float]:
        return {phase.value: float(times[i]) for phase, times in self.prices.by_phase.items()}

    def per_gpu(self, i: int) -> dict[str, float]:
        base = self.prices.baseline
        return {gpu.name: float(t[base] / t[i]) for gpu, t in zip(self.gpus, self.prices.by_gpu, strict=True)}

    def size_change(self) -> FloatArray:
        """Distance of every point's parameters from the baseline's, as a share of them [N]."""
        counts = self.points.num_params
        return np.asarray(np.abs(counts / counts[self.prices.baseline] - 1))

    def gains(self, priced: Estimate, work: Floats) -> Comparison:
        """Gain in the objective's time at equal work, of the whole training step if it is known."""
        comparison = compare(self.baseline, priced, work)
        if self.whole is None:
            return comparison
        speedup, low, high = (
            self.whole.speedup(ratio) for ratio in (comparison.speedup, comparison.low, comparison.high)
        )
        return replace(comparison, speedup=speedup, low=low, high=high)

    def offered(self, rows: npt.NDArray[np.int64]) -> _Offered:
        """The points among these positions whose gain at equal work has an interval above 1."""
        if len(rows):
            shape = self.points.space.edited(self.points.take(rows).fields())
            priced = self.evaluator.one(replace(self.workload, shape=shape), self.gpus[0])
            rows = rows[np.broadcast_to(self.gains(priced, self.prices.work[rows]).low > 1, rows.shape)]
        return _Offered(
            rows=rows,
            kinds=self.kinds.kinds[rows],
            count=self.kinds.count[rows],
            heads=self.points.index[2][rows],
            score=self.prices.score[rows],
            size_change=self.size_change()[rows],
            deeper=self.points.take(rows).fields()["num_layers"] != self.own()["num_layers"],
        )

    def candidate(self, i: int) -> Candidate:
        """A point in full: priced once more without the grid, with interval, confidence and quality."""
        baseline = self.own()
        shape = edit(self.workload.shape, **{name: new for name, (_, new) in self.changed(i).items()})
        fields = {name: int(value) for name, value in shape.fields().items()}
        priced = self.evaluator.one(replace(self.workload, shape=shape), self.gpus[0])
        whole, equal = self.gains(priced, 1.0), self.gains(priced, float(self.prices.work[i]))
        times = (priced.time_s, priced.low_s, priced.high_s)
        phase_s, per_gpu = self.phase_s(i), self.per_gpu(i)
        if self.whole is not None:
            step_s, longer = self._step_of(shape, float(self.whole.after(priced.time_s / self.baseline.time_s)))
            whole, equal = whole.longer(longer), equal.longer(longer)
            low, high = (step_s * bound_s / self.whole.step_s for bound_s in (self.whole.low_s, self.whole.high_s))
            times = (step_s, low, high)
            phase_s[Phase.TRAIN.value], per_gpu[self.gpus[0].name] = step_s, float(whole.speedup)
        num_params = int(count_params(shape).total)
        return Candidate(
            shape=shape,
            fields=fields,
            changed={name: (baseline[name], new) for name, new in fields.items() if baseline[name] != new},
            num_fields=int(self.kinds.count[i]),
            num_params=num_params,
            params_change=self.params_change(i),
            flops_change=float(priced.matmul_flops / self.baseline.matmul_flops - 1),
            time_s=float(times[0]),
            low_s=float(times[1]),
            high_s=float(times[2]),
            speedup=float(whole.speedup),
            speedup_low=float(whole.low),
            speedup_high=float(whole.high),
            efficiency_gain=float(equal.speedup),
            efficiency_low=float(equal.low),
            efficiency_high=float(equal.high),
            confidence=float(equal.probability),
            phase_s=phase_s,
            per_gpu=per_gpu,
            quality=quality_of(self.guard, fields, baseline, num_params),
            loss=loss_change(shape, self.workload.shape),
        )

    @property
    def whole(self) -> WholeStep | None:
        """The baseline's training step on the first GPU, if the objective is training and the step is known."""
        run = self.evaluator.runs.get(self.gpus[0].name)
        return run.whole if run and self.workload.phase is Phase.TRAIN else None

    def _step_of(self, shape: TransformerShape, scaled_s: float) -> tuple[float, float]:
        """Seconds of the step with a shape, and what they are of ``scaled_s``, which keeps the exposed traffic: faster
        layers hide less of it."""
        step_s = self.evaluator.runs[self.gpus[0].name].step_with(shape, {})
        return (scaled_s, 1.0) if step_s is None else (step_s, step_s / scaled_s)

    def front_point(self, i: int) -> FrontPoint:
        """A point in a few numbers."""
        times = self.prices.by_gpu[0]
        return FrontPoint(
            fields=self.fields(i),
            changed=self.changed(i),
            num_fields=int(self.kinds.count[i]),
            params_change=self.params_change(i),
            phase_s=self.phase_s(i),
            speedup=float(times[self.prices.baseline] / times[i]),
            efficiency_gain=float(1 / self.prices.score[i]),
        )

    def single_edit(self, field: str, i: int) -> SingleEdit:
        """A point that edits one field, priced as a candidate is."""
        old, new = self.changed(i)[field]
        candidate = self.candidate(i)
        return SingleEdit(
            field=field,
            old=old,
            new=new,
            changed=self.changed(i),
            params_change=self.params_change(i),
            speedup=candidate.speedup,
            efficiency_gain=candidate.efficiency_gain,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """Points with an interval above no gain, as columns: positions, sets of edits, fields changed, heads, time at equal
    work relative to the baseline's, and size changes."""

    rows: IntArray
    kinds: IntArray
    count: IntArray
    heads: IntArray
    score: FloatArray
    size_change: FloatArray
    deeper: npt.NDArray[np.bool_]

    def ranked(self) -> list[int]:
        """Rows, best first; scores within ``NOISE`` of a group's best are ties, which go to fewer fields, then to the
        smaller change of size, then to the same depth."""
        left, out = list(np.argsort(self.score, kind="stable")), []
        while left:
            ties = [i for i in left if self.score[i] <= self.score[left[0]] + NOISE]
            ties.sort(
                key=lambda i: (self.count[i], round(float(self.size_change[i]), 4), self.deeper[i], self.score[i])
            )
            out += [int(i) for i in ties]
            left = [i for i in left if self.score[i] > self.score[left[0]] + NOISE]
        return out

    def shown(self, top: int) -> list[int]:
        """At most ``top`` rows, best first: the best of every set of edits, then if there is room the best of every
        combination of heads. Rows are left out if a subset of their edits is as good."""
        ranked = self.ranked()
        firsts = list({int(self.kinds[i]): i for i in reversed(ranked)}.values())
        needed = [i for i in firsts if not self._is_idle(i, firsts)]
        finer = list({(int(self.kinds[i]), int(self.heads[i])): i for i in reversed(ranked)}.values())
        rest = [i for i in finer if i not in needed and not self._is_idle(i, [*firsts, *self._alike(i, finer)])]
        place = {row: position for position, row in enumerate(ranked)}
        chosen = sorted(needed, key=place.__getitem__) + sorted(rest, key=place.__getitem__)
        return sorted(chosen[:top], key=place.__getitem__)

    def _alike(self, i: int, others: list[int]) -> list[int]:
        return [j for j in others if self.heads[j] == self.heads[i]]

    def _is_idle(self, i: int, others: list[int]) -> bool:
        """Whether some edit of row ``i`` gains nothing: one of ``others`` with fewer of its edits is as good."""
        fewer = [j for j in others if self.kinds[j] & self.kinds[i] == self.kinds[j] != self.kinds[i]]
        return any(self.score[j] <= self.score[i] + NOISE for j in fewer)

    def smallest_edit(self, share: float) -> int:
        """The row with the fewest changed fields that has at least ``share`` of the best gain; ties go to the best."""
        ranked = self.ranked()
        enough = share * (1 - self.score[ranked[0]])
        return next(i for i in sorted(ranked, key=lambda i: self.count[i]) if 1 - self.score[i] >= enough)
