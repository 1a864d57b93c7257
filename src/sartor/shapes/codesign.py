"""One shape for several devices and phases, by its regret against what each of them alone would want."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.parallel import ParallelDims
from sartor.model.workload import Phase, Workload
from sartor.shapes.choose import NOISE, changes
from sartor.shapes.evaluate import Evaluator, FloatArray
from sartor.shapes.near import build_space, grain_of
from sartor.shapes.pricing import work_of
from sartor.shapes.quality import QualityGuard, freed_guard
from sartor.shapes.space import Points, same_size


class Regret(Enum):
    """``WEIGHTED``: the mean loss, phases by their weights and devices alike. ``WORST``: the largest loss."""

    WEIGHTED = "weighted"
    WORST = "worst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What one device in one phase would choose alone, and what the common shape is worth there; gains are speedups at
    equal parameters and FLOPs."""

    gpu: str
    phase: str
    weight: float
    alone: Mapping[str, tuple[int, int]]
    alone_gain: float
    common_gain: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoDesign:
    """The common shape's changed fields (none: keep the shape), its regret, and that of the shape as it is."""

    rule: Regret
    changed: Mapping[str, tuple[int, int]]
    regret: float
    baseline_regret: float
    wants: tuple[Want, ...]


def objective_weights(text: str) -> dict[Phase, float]:
    """``train:0.7,decode:0.3`` -> weights by phase. Raises ``InputError`` where they are not positive or do not sum to
    one."""
    words = [word.partition(":") for word in text.split(",")]
    names = {phase.value: phase for phase in Phase}
    try:
        weights = {names[name.strip()]: float(value) for name, _, value in words}
    except (KeyError, ValueError):
        must = "must read PHASE:WEIGHT,... with train, prefill and decode"
        raise InputError("objective", text, must, "train:0.7,decode:0.3") from None
    total = sum(weights.values())
    if not all(math.isfinite(w) and w > 0 for w in weights.values()) or len(weights) != len(words):
        raise InputError("objective", text, "must name each phase once, with a weight above 0", "train:0.7,decode:0.3")
    if abs(total - 1) > 1e-6:
        near = ",".join(f"{phase.value}:{w / total:.3g}" for phase, w in weights.items())
        raise InputError("objective", text, f"weights must sum to 1, not {total:g}", near)
    return weights


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
    """The shape of the same size with the least regret over every device and phase; alike ones go to fewer fields."""
    guard = freed_guard(guard, free)
    main = workloads[max(weights, key=lambda phase: weights[phase])]
    grain = grain_of(tuple(gpus))
    space = build_space(main, dims, guard, freeze, free, grain=grain, tolerance=params_tolerance)
    points = same_size(space, dims, params_tolerance, guard)
    own = space.baseline
    base = int(np.flatnonzero(np.all([v == own[n] for n, v in points.fields().items()], axis=0))[0])
    scores = {phase: _scores(points, workloads[phase], tuple(gpus), evaluator, base) for phase in weights}
    losses = {phase: [each / each.min() - 1 for each in found] for phase, found in scores.items()}
    total = _total(losses, weights, rule)
    count = changes(points).count
    near = np.flatnonzero(total <= total.min() + NOISE)
    best = int(near[np.lexsort((total[near], count[near]))[0]])
    wants = [
        Want(
            gpu=gpu.name,
            phase=phase.value,
            weight=weights[phase],
            alone=_changed(points, int(score.argmin())),
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


def _scores(
    points: Points, workload: Workload, gpus: tuple[Gpu, ...], evaluator: Evaluator, base: int
) -> list[FloatArray]:
    """Time at equal work relative to the baseline's, by device."""
    work = work_of(points, workload, evaluator, base)
    equal = [times / work for times in evaluator.times(points, workload, gpus)]
    runs = evaluator.runs if workload.phase is Phase.TRAIN else {}
    ratios = [times / times[base] for times in equal]
    return [
        np.asarray(runs[gpu.name].whole.after(each) / runs[gpu.name].whole.step_s) if gpu.name in runs else each
        for gpu, each in zip(gpus, ratios, strict=True)
    ]


def _total(losses: Mapping[Phase, list[FloatArray]], weights: Mapping[Phase, float], rule: Regret) -> FloatArray:
    if rule is Regret.WORST:
        return np.asarray(np.max([each for found in losses.values() for each in found], axis=0))
    return np.asarray(sum(weights[phase] * np.mean(found, axis=0) for phase, found in losses.items()))


def _changed(points: Points, i: int) -> dict[str, tuple[int, int]]:
    own = points.space.baseline
    fields = {name: int(values[i]) for name, values in points.fields().items()}
    return {name: (int(own[name]), new) for name, new in fields.items() if own[name] != new}
