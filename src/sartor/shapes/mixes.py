"""Mixtures of experts of equal total and active parameters, each with its gain in training and in decoding.

A token uses its experts and the shared ones; the model holds all. With one expert's width w, experts E, experts per
token k and a shared width S, both k w + S and E w + S stay, so none of the fields can change alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from sartor.cost.uncertainty import Comparison, compare, work_kept
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.lower import feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.quality import LossChange, Quality, QualityGuard, allowed, loss_change, quality_of
from sartor.shapes.space import EXPERT_FIELDS, Space
from sartor.units import FloatArray, IntArray

PHASES = (Phase.TRAIN, Phase.DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Another mixture of the model's size; all else stays. ``gains`` are by phase, at equal work."""

    changed: Mapping[str, tuple[int, int]]
    """Field -> (old, new)."""
    params_change: float
    active_change: float
    gains: Mapping[str, Comparison]
    quality: Quality
    loss: LossChange


def priced_mixes(
    space: Space,
    phases: Mapping[Phase, Workload],
    objective: Phase,
    gpu: Gpu,
    evaluator: Evaluator,
    guard: QualityGuard,
) -> tuple[Mix, ...]:
    """The space's mixes that the devices can split and that are near published ones (also coarser ones), ordered by
    their gain in the objective's phase."""
    baseline = {name: int(value) for name, value in space.shape.fields().items()}
    num_params = int(count_params(space.shape).total)
    mixes = _possible(space, baseline, evaluator, replace(guard, coarser=True))
    if not mixes or not next(iter(mixes.values())).size:
        return ()
    shape = edit(space.shape, **mixes)
    total, active = _changes(space.shape, shape)
    gains = {
        phase: _gains(evaluator, workload, replace(workload, shape=shape), gpu)
        for phase, workload in phases.items()
        if phase in PHASES or phase is objective
    }
    rows = [{name: int(values[i]) for name, values in mixes.items()} for i in range(total.size)]
    speedup = np.round(np.asarray(gains[objective].speedup), 6)
    return tuple(
        Mix(
            changed={name: (baseline[name], new) for name, new in rows[i].items() if baseline[name] != new},
            params_change=float(total[i]),
            active_change=float(active[i]),
            gains={phase.value: _at(comparison, i) for phase, comparison in gains.items()},
            quality=quality_of(guard, baseline | rows[i], baseline, num_params),
            loss=loss_change(edit(space.shape, **rows[i]), space.shape),
        )
        for i in sorted(_nearest(rows, np.abs(total) + np.abs(active)), key=lambda i: -speedup[i])
    )


def _changes(before: TransformerShape, after: TransformerShape) -> tuple[FloatArray, FloatArray]:
    """Changes of the total and of the active parameters, as shares [N]."""
    counts, base = count_params(after), count_params(before)
    return np.asarray(counts.total / base.total - 1), np.asarray(counts.active / base.active - 1)


def _nearest(rows: Sequence[Mapping[str, int]], off: FloatArray) -> list[int]:
    """Positions of rows; of rows that differ only in width, the one with the smallest change of size."""
    smallest: dict[tuple[int, ...], int] = {}
    for i in np.argsort(off, kind="stable").tolist():
        smallest.setdefault(tuple(value for name, value in rows[i].items() if "ffn" not in name), i)
    return list(smallest.values())


def _possible(
    space: Space, baseline: Mapping[str, int], evaluator: Evaluator, guard: QualityGuard
) -> dict[str, IntArray]:
    mixes = {name: values[1:] for name, values in space.mixes.items()}  # the first is the baseline
    mask = np.asarray(allowed(guard, {**baseline, **mixes}, baseline)) & np.asarray(
        feasible(edit(space.shape, **mixes), evaluator.dims)
    )
    return {name: values[np.broadcast_to(mask, values.shape)] for name, values in mixes.items()}


def _gains(evaluator: Evaluator, before: Workload, after: Workload, gpu: Gpu) -> Comparison:
    base, priced = evaluator.one(before, gpu), evaluator.one(after, gpu)
    total, active = _changes(before.shape, after.shape)
    comparison = compare(base, priced, work_kept(1 + total, 1 + active, priced.matmul_flops / base.matmul_flops))
    run = evaluator.runs.get(gpu.name)
    if before.phase is not Phase.TRAIN or run is None:
        return comparison
    speedup, low, high = (run.whole.speedup(ratio) for ratio in (comparison.speedup, comparison.low, comparison.high))
    return replace(comparison, speedup=speedup, low=low, high=high)


def _at(comparison: Comparison, i: int) -> Comparison:
    """The ``i``-th comparison of an array."""
    return Comparison(
        **{
            attribute.name: float(np.asarray(getattr(comparison, attribute.name))[i])
            for attribute in fields(comparison)
        }
    )


MOST_SHARED = 4
"""Most shared experts that a published model counts (DeepSeekMoE's ablation, arXiv 2401.06066, tries 1, 2 and 4)."""


def equal_mixes(
    shape: TransformerShape,
    free: Collection[str],
    *,
    step: int,
    grain: int,
    finest: float,
    tolerance: float,
) -> dict[str, IntArray]:
    """Expert fields of the baseline (first) and of all mixes [N] that keep total and active parameters within
    ``tolerance``: experts in multiples of ``step``, widths in multiples of ``grain``, experts at most ``finest`` times
    narrower or wider; fields that are not ``free`` stay."""
    baseline = {name: int(value) for name, value in shape.fields().items() if name in EXPERT_FIELDS}
    near_mixes = [baseline, *_mixes(baseline, step, grain, finest)]
    rows = [row for row in near_mixes if all(row[name] == baseline[name] for name in baseline if name not in free)]
    mixes = {name: np.asarray([row[name] for row in rows], dtype=np.int64) for name in baseline}
    if len(rows) == 1:
        return mixes
    counts, base = count_params(edit(shape, **mixes)), count_params(shape)
    same = np.ones(len(rows), dtype=np.bool_)
    for count, before in ((counts.total, base.total), (counts.active, base.active)):
        same &= np.abs(count / before - 1) <= tolerance
    same[0] = True
    return {name: values[same] for name, values in mixes.items()}


def _mixes(baseline: Mapping[str, int], step: int, grain: int, finest: float) -> Iterator[dict[str, int]]:
    """Mixes near the two equations, rounded to whole steps and grains."""
    experts, k, width = (baseline[name] for name in EXPERT_FIELDS[:3])
    for chosen in range(1, math.floor(finest * k) + 1):
        for shared, wide in _shared(baseline, chosen):
            for expert_width in _near(wide, grain):
                if not 1 / finest <= expert_width / width <= finest:
                    continue
                shared_total = shared.get("num_shared_experts", 0) * expert_width + shared.get(
                    "shared_ffn_hidden_size", 0
                )
                for count in _near((experts * width + _shared_width(baseline) - shared_total) / expert_width, step):
                    row = dict(zip(EXPERT_FIELDS, (count, chosen, expert_width), strict=False)) | shared
                    if count >= chosen and row != baseline:
                        yield row


def _shared(baseline: Mapping[str, int], chosen: int) -> Iterator[tuple[dict[str, int], float]]:
    """Shared experts with ``chosen`` routed ones, and the expert width that keeps the active parameters."""
    k, width = baseline["experts_per_token"], baseline["expert_ffn_hidden_size"]
    active = k * width + _shared_width(baseline)
    if "num_shared_experts" in baseline:
        for count in range(1, max(MOST_SHARED, baseline["num_shared_experts"]) + 1):
            yield {"num_shared_experts": count}, active / (chosen + count)
    elif "shared_ffn_hidden_size" in baseline:
        for moved in range(1 - k, k):
            if (wide := baseline["shared_ffn_hidden_size"] + moved * width) > 0:
                yield {"shared_ffn_hidden_size": wide}, (active - wide) / chosen
    else:
        yield {}, active / chosen


def _shared_width(baseline: Mapping[str, int]) -> int:
    return baseline.get("num_shared_experts", 0) * baseline["expert_ffn_hidden_size"] + baseline.get(
        "shared_ffn_hidden_size", 0
    )


def _near(value: float, step: int) -> tuple[int, ...]:
    """The multiples of ``step`` around a positive value."""
    low = math.floor(value / step) * step
    return tuple(multiple for multiple in dict.fromkeys((low, math.ceil(value / step) * step)) if multiple > 0)
