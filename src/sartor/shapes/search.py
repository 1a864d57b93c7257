"""Search for shapes of the same size that run faster, on one device or on several devices and phases together.

``search_shapes`` reads from top to bottom: the space around the baseline, its points of the same size, their times on
every device; then the choice, with intervals, quality notes and sensitivity. docs/concepts/shape-search.md has the
definitions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.uncertainty import compare
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.lower.setting import Kernels
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.pareto import is_pareto
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.mixes import Mix, priced_mixes
from sartor.shapes.near import build_space, grain_of
from sartor.shapes.pricing import PricedPoints, price, work_of
from sartor.shapes.quality import LossChange, QualityGuard, freed_guard, loss_change
from sartor.shapes.result import (
    NOISE,
    Candidate,
    Changes,
    FrontPoint,
    ShapeSearch,
    SingleEdit,
    best_of_each,
    shortlist,
    stability,
)
from sartor.shapes.space import TOLERANCE, Equal, Points, Space, comparable, is_coupled, same_size
from sartor.step.coefficients import InRun
from sartor.units import FloatArray, IntArray

__all__ = ["Candidate", "FrontPoint", "ShapeSearch", "SingleEdit", "phase_workload", "search_shapes"]

SMALLEST_EDIT_SHARE = 0.7
"""The smallest edit changes the fewest fields among shapes with this share of the best gain at equal work."""

SHORTLIST = 400
"""Most points priced again with their intervals."""


def search_shapes(
    workload: Workload,
    gpus: Sequence[Gpu],
    dims: ParallelDims | None = None,
    *,
    objective: Phase | None = None,
    params_tolerance: float = TOLERANCE[Equal.WORK],
    freeze: Sequence[str] = (),
    free: Sequence[str] = (),
    top: int = 10,
    guard: QualityGuard | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
    sigma_factor: float = 1.0,
    space: Space | None = None,
    runs: Mapping[str, InRun] | None = None,
    kernels: Kernels | None = None,
    equal: Equal = Equal.WORK,
) -> ShapeSearch:
    """Find shapes of the same size as ``workload.shape`` that take less time for the same work.

    Exact within the grid: every combination of the space's values whose parameters are within ``params_tolerance`` (a
    share) is priced, for the ``objective`` (default: the workload's phase) on every GPU. ``freeze`` names fields that
    stay, ``free`` those that may change although they stay by default (``num_layers``); ``guard`` bounds what matters
    for quality; ``calibrations`` are by GPU name (default: looked up); ``sigma_factor`` widens intervals; ``space``
    replaces the default grid; ``runs`` are by GPU name the training runs that a microbatch is part of: seconds are
    then those of their steps; ``kernels`` are of the engine that runs inference; ``equal`` says at what shapes are
    compared. The same input gives the same output. Raises ``InputError``.

    Examples
    --------
    >>> found = search_shapes(workload, [load_gpu("a100")], ParallelDims())     # doctest: +SKIP
    >>> found.candidates[0].changed                                             # doctest: +SKIP
    {'num_heads': (32, 20), 'num_kv_heads': (32, 20), 'head_dim': (80, 128)}
    """
    started = time.perf_counter()
    if top < 1:
        raise InputError("top", top, "must be a positive integer", "10")
    guard, dims = freed_guard(guard or QualityGuard(), free), dims or ParallelDims()
    objective = objective or workload.phase
    devices, phases = _distinct(gpus), _phases(workload, objective)
    objective_workload = phases[objective]
    evaluator = Evaluator(
        dims=dims, calibrations=calibrations or {}, sigma_factor=sigma_factor, runs=runs or {}, kernels=kernels
    )
    space = space or build_space(
        objective_workload, dims, guard, freeze, free, grain=grain_of(devices), tolerance=params_tolerance
    )
    points = comparable(space, dims, params_tolerance, guard, equal)
    if points.size == 1 and equal is Equal.WORK:
        _refuse_too_narrow(space, dims, params_tolerance, guard)
    priced = PricedPoints(
        points=points,
        prices=price(points, phases, objective, devices, evaluator),
        kinds=_changes(points),
        workload=objective_workload,
        gpus=devices,
        evaluator=evaluator,
        guard=guard,
        baseline=evaluator.one(objective_workload, devices[0]),
    )
    mixes = priced_mixes(space, phases, objective, devices[0], evaluator, guard)
    return _answer(
        priced, mixes, top, started, (*space.assumptions, *_assumptions(phases, objective_workload, devices))
    )


def _distinct(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    if not gpus:
        raise InputError("gpu", "", "must name at least one device")
    return tuple({gpu.name: gpu for gpu in gpus}.values())


def _phases(workload: Workload, objective: Phase) -> dict[Phase, Workload]:
    """The workload in every phase its model has."""
    if workload.shape.encoder_only and objective is Phase.DECODE:
        raise InputError("objective", "decode", "an encoder-only model does not decode", "train or prefill")
    usual = (Phase.TRAIN, Phase.PREFILL) if workload.shape.encoder_only else tuple(Phase)
    return {phase: phase_workload(workload, phase) for phase in usual}


def phase_workload(workload: Workload, phase: Phase) -> Workload:
    """The same sequences in another phase; decoding adds one token after ``context_len`` (or else ``seq_len``)."""
    if phase is workload.phase:
        return workload
    if phase is Phase.DECODE:
        return replace(workload, phase=phase, context_len=workload.seq_len)
    seq_len = workload.context_len if workload.phase is Phase.DECODE else workload.seq_len
    return replace(workload, phase=phase, seq_len=seq_len or workload.seq_len, context_len=0)


def _refuse_too_narrow(space: Space, dims: ParallelDims, tolerance: float, guard: QualityGuard) -> None:
    """Raise if the requested tolerance is so narrow that it leaves only the model's own shape."""
    others = same_size(space, dims, TOLERANCE[Equal.WORK], guard)
    if tolerance >= TOLERANCE[Equal.WORK] or others.size == 1:
        return
    change = np.abs(others.num_params / int(count_params(space.shape).total) - 1)
    nearest = float(np.ceil(change[change > 0].min() * 1e6) / 1e6)
    must = "no other shape is that near in size"
    raise InputError("params_tolerance", tolerance, must, f"{nearest:g}")


def _answer(
    priced: PricedPoints, mixes: tuple[Mix, ...], top: int, started: float, assumptions: tuple[str, ...]
) -> ShapeSearch:
    """The priced points to report."""
    prices, kinds = priced.prices, priced.kinds
    tried = shortlist(priced.points, kinds, prices.score, priced.size_change(), SHORTLIST)
    offered = priced.offered(tried)
    chosen = [int(offered.rows[row]) for row in offered.shown(top)]
    smallest = [int(offered.rows[offered.smallest_edit(SMALLEST_EDIT_SHARE)])] if chosen else []
    unsure = [] if chosen else [int(i) for i in tried[:1]]
    own_best = {
        gpu.name: _fastest(times, kinds.count) for gpu, times in zip(priced.gpus, prices.equal_by_gpu, strict=True)
    }
    fair = _fastest(1 + prices.regret, kinds.count)
    candidates = {i: priced.candidate(i) for i in sorted({*chosen, *own_best.values(), fair, *smallest, *unsure})}
    sure = [i for i in (*chosen, *unsure) if candidates[i].efficiency_low > 1]
    unsure = [] if sure else [i for i in (*chosen, *unsure) if candidates[i].efficiency_gain > 1][:1]
    smallest = [i for i in (*smallest, *sure[:1]) if i in sure]
    chosen = sure
    single = _single_edits(kinds, prices.score)
    return ShapeSearch(
        workload=priced.workload,
        gpus=priced.gpus,
        baseline=priced.baseline,
        candidates=tuple(candidates[i] for i in chosen),
        front=_front(priced),
        smallest_edit=candidates[smallest[0]] if smallest else None,
        unsure=candidates[unsure[0]] if unsure else None,
        minimax=candidates[fair] if len(priced.gpus) > 1 else None,
        regret=float(prices.regret[fair]),
        best_per_gpu={name: candidates[i] for name, i in own_best.items()},
        mixes=mixes,
        single_edits=tuple(priced.single_edit(name, i) for name, i in single.items()),
        stability=stability(
            priced.workload,
            priced.gpus[0],
            priced.evaluator,
            [priced.fields(i) for i in chosen],
            [float(prices.work[i]) for i in chosen],
        ),
        equal=priced.points.equal,
        grid_size=priced.points.space.size,
        evaluated=priced.points.size,
        wall_s=time.perf_counter() - started,
        assumptions=assumptions,
    )


def _single_edits(edits: Changes, score: FloatArray) -> Mapping[str, int]:
    """For every name, the fastest point that changes only this name."""
    out = {}
    for bit, name in enumerate(edits.fields):
        alone = np.flatnonzero(edits.kinds == 1 << bit)
        if len(alone):
            out[name] = int(alone[np.argmin(score[alone])])
    return out


def _fastest(times: FloatArray, count: npt.NDArray[np.int64]) -> int:
    """Position of the least time (to ten digits); ties go to the fewest edits, then to grid order."""
    rounded = np.round(times / times.min(), 10)
    best = np.flatnonzero(rounded == rounded.min())
    return int(best[np.argmin(count[best])])


def _front(priced: PricedPoints) -> tuple[FrontPoint, ...]:
    """Points that no other beats in training time, decode time, |parameter change| and changed fields, fastest
    first."""
    prices = priced.prices
    base = prices.baseline
    times = [
        np.round(seconds / seconds[base], 10)
        for phase, seconds in prices.by_phase.items()
        if phase in (Phase.TRAIN, Phase.DECODE)
    ]
    size = np.abs(priced.points.num_params - priced.points.num_params[base])
    front = np.flatnonzero(is_pareto(np.column_stack([*times, size, priced.kinds.count])))
    order = front[np.lexsort((priced.kinds.count[front], times[0][front]))]
    return tuple(priced.front_point(int(i)) for i in order)


def _assumptions(
    phases: Mapping[Phase, Workload], objective_workload: Workload, gpus: tuple[Gpu, ...]
) -> tuple[str, ...]:
    """Assumptions of the answer beyond those of the question."""
    others = [phase.value for phase in phases if phase is not objective_workload.phase]
    notes = (
        [f"{' and '.join(others)} times are for the same {objective_workload.microbatch_size} sequences"]
        if others
        else []
    )
    if len(gpus) > 1:
        notes.append(f"candidates are ranked for {gpus[0].name}, the first GPU; see per_gpu and minimax for the others")
    if "num_shared_experts" in objective_workload.shape.fields():
        notes.append("shared experts are as wide as routed ones")
    return tuple(notes)


MOST_COMPARED = 100
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
    loss: LossChange
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
    equal: Equal = Equal.WORK,
) -> CoDesign:
    """The shape of the same size with the least regret over every device and phase, if the interval of its gain over
    the unchanged shape is above 1; ties go to fewer changed fields."""
    guard = freed_guard(guard, free)
    main = workloads[max(weights, key=lambda phase: weights[phase])]
    grain = grain_of(tuple(gpus))
    space = build_space(main, dims, guard, freeze, free, grain=grain, tolerance=params_tolerance)
    points = comparable(space, dims, params_tolerance, guard, equal)
    baseline = space.baseline
    base = int(np.flatnonzero(np.all([v == baseline[n] for n, v in points.fields().items()], axis=0))[0])
    tried = [
        _Tried(points=points, workload=workloads[phase], gpus=tuple(gpus), evaluator=evaluator, base=base)
        for phase in weights
    ]
    scores = dict(zip(weights, (entry.scores() for entry in tried), strict=True))
    losses = {phase: [entry / entry.min() - 1 for entry in outcomes] for phase, outcomes in scores.items()}
    total, outcomes = _total(losses, weights, rule), _changes(points)
    size_change = np.abs(points.num_params / points.num_params[base] - 1)
    better = np.flatnonzero(total < total[base] - NOISE)
    hopeful = better[best_of_each(outcomes.kinds[better], total[better], size_change[better])[:MOST_COMPARED]]
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
        loss=_loss(points, best),
        wants=tuple(wants),
    )


def _loss(points: Points, i: int) -> LossChange:
    """The expected change of loss at one point, as numbers."""
    new = {name: after for name, (_, after) in _changed(points, i).items()}
    return loss_change(edit(points.space.shape, **new), points.space.shape)


def _changes(points: Points) -> Changes:
    """The changes of every point against the space's baseline."""
    fields, baseline = points.fields(), points.space.baseline
    edits = {name: values != baseline[name] for name, values in fields.items()}
    if "num_kv_heads" in baseline and baseline["num_kv_heads"] == baseline["num_heads"]:
        edits["num_kv_heads"] &= fields["num_kv_heads"] != fields["num_heads"]
    if "head_dim" in baseline:
        width, kv_width = (_width(fields, name) == _width(baseline, name) for name in ("num_heads", "num_kv_heads"))
        edits["num_kv_heads"] &= ~(edits["head_dim"] & kv_width)
        edits["head_dim"] &= ~width & ~(is_coupled(baseline) & is_coupled(fields))
    table = np.stack(list(edits.values())).astype(np.int64)
    bits = 1 << np.arange(len(edits))
    return Changes(fields=tuple(edits), kinds=bits @ table, count=table.sum(axis=0))


def _width(fields: JsonMap, heads: str) -> Any:
    """Width of all queries, or of all keys, of a token [elements]."""
    return fields[heads] * fields["head_dim"]


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
