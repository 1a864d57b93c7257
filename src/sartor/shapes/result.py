"""The result of a shape search, and which of the priced points to show.

The range in which a recommendation holds: the same few shapes at other batch sizes, sequence lengths and tp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.price import Estimate
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.editing import edit
from sartor.model.lower import feasible
from sartor.model.shape import TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.mixes import Mix
from sartor.shapes.quality import LossChange, Quality
from sartor.shapes.space import Equal, Points
from sartor.units import FloatArray, IntArray

BATCH_FACTORS = (0.25, 0.5, 1, 2, 4, 8)
LENGTH_FACTORS = (0.25, 0.5, 1, 2, 4)
TP_DEGREES = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityRange:
    """Where the best candidate stays ahead along one axis, with the others as requested.

    ``beats_baseline``: the range around the requested value where it is faster than the baseline; ``stays_best``: where
    no other shown candidate is faster by more than 0.1%. None: not even at the requested value. Shares are of the
    tested values.
    """

    axis: str
    asked: int
    tested: tuple[int, ...]
    speedup: tuple[float, ...]
    """Speedup of the best candidate at every tested value; 0 if it does not split."""
    beats_baseline: tuple[int, int] | None
    stays_best: tuple[int, int] | None
    share_beats: float
    share_best: float

    def __str__(self) -> str:
        if self.beats_baseline is None:
            return f"{self.axis}: the best candidate is not faster at {self.asked}"
        tested = f"tested {self.tested[0]} to {self.tested[-1]}"
        words = f"{self.axis} ({tested}): faster than the baseline {_stretch(self.beats_baseline)}"
        if self.stays_best is not None:
            words += f", still the best of these {_stretch(self.stays_best)}"
        unsplit = [str(value) for value, speedup in zip(self.tested, self.speedup, strict=True) if not speedup]
        words += f"; does not split over {', '.join(unsplit)}" if unsplit else ""
        smallest = min(speedup for speedup in self.speedup if speedup)
        return f"{words} (speedup at least {smallest:.2f}x)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StabilityGrid:
    """Batch sizes x sequence lengths together: shares of all tested pairs."""

    axis: str
    tested: int
    share_beats: float
    share_best: float
    least_speedup: float

    def __str__(self) -> str:
        return (
            f"{self.tested} pairs of {self.axis}: faster than the baseline in {100 * self.share_beats:.0f}%, still the "
            f"best of these in {100 * self.share_best:.0f}% (speedup at least {self.least_speedup:.2f}x)"
        )


def stability(
    workload: Workload,
    gpu: Gpu,
    evaluator: Evaluator,
    candidates: Sequence[Mapping[str, int]],
    work: Sequence[float] | None = None,
) -> tuple[StabilityRange | _StabilityGrid, ...]:
    """Ranges for shapes given as fields, the best first; empty without candidates. ``work`` is the share of the
    baseline's work that each shape does, to compare times at equal work."""
    if not candidates:
        return ()
    fields = _columns(workload, candidates)
    work_factors = np.asarray([1.0, *(work or [1.0] * len(candidates))])
    length = "context_len" if workload.phase is Phase.DECODE else "seq_len"
    batch, seq = int(np.max(workload.microbatch_size)), int(np.max(getattr(workload, length)))
    batches, lengths = _around(batch, BATCH_FACTORS), _around(seq, LENGTH_FACTORS)
    rows, columns = np.asarray(batches)[:, None, None], np.asarray(lengths)[None, :, None]
    varied = replace(workload, microbatch_size=rows)
    varied = replace(varied, context_len=columns) if length == "context_len" else replace(varied, seq_len=columns)
    times = _times(varied, gpu, evaluator, fields, (len(batches), len(lengths))) / work_factors
    by_batch, by_length = times[:, lengths.index(seq)], times[batches.index(batch)]
    return (
        _range("microbatch_size", batch, batches, by_batch),
        _range(length, seq, lengths, by_length),
        *_tp_range(workload, gpu, evaluator, fields, work_factors),
        _grid(f"microbatch_size and {length}", times),
    )


def _columns(workload: Workload, candidates: Sequence[Mapping[str, int]]) -> dict[str, npt.NDArray[np.int64]]:
    """Fields that any candidate changes, as columns: the baseline's value, then the candidates'."""
    values = workload.shape.fields()
    names = [name for name in candidates[0] if any(c[name] != values[name] for c in candidates)]
    return {name: np.asarray([int(values[name]), *(c[name] for c in candidates)]) for name in names}


def _around(requested: int, factors: Sequence[float]) -> list[int]:
    return sorted({max(1, round(requested * factor)) for factor in factors} | {requested})


def _times(
    workload: Workload, gpu: Gpu, evaluator: Evaluator, fields: JsonMap, extent: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Seconds [..., 1 + candidates]; infinite where a shape does not split over the ranks."""
    shape = edit(workload.shape, **fields)
    time = evaluator.one(replace(workload, shape=shape), gpu).time_s
    whole = np.where(feasible(shape, evaluator.dims), time, np.inf)
    return np.broadcast_to(whole, (*extent, len(next(iter(fields.values())))))


def _tp_range(
    workload: Workload,
    gpu: Gpu,
    evaluator: Evaluator,
    fields: JsonMap,
    work_factors: npt.NDArray[np.float64],
) -> tuple[StabilityRange, ...]:
    """Degrees within a node that the baseline also splits over."""
    requested = int(np.max(evaluator.dims.tp))
    rows = {}
    for tp in sorted({*TP_DEGREES, requested}):
        dims = replace(evaluator.dims, tp=tp)
        if tp == requested or (tp <= gpu.devices_per_node and feasible(workload.shape, dims)):
            rows[tp] = _times(workload, gpu, replace(evaluator, dims=dims), fields, ()) / work_factors
    return (_range("tp", requested, list(rows), np.stack(list(rows.values()))),) if len(rows) > 1 else ()


def _range(axis: str, requested: int, tested: list[int], times: npt.NDArray[np.float64]) -> StabilityRange:
    beats, best, speedup = _verdicts(times)
    return StabilityRange(
        axis=axis,
        asked=requested,
        tested=tuple(tested),
        speedup=tuple(float(s) for s in speedup),
        beats_baseline=_around_asked(beats, tested, requested),
        stays_best=_around_asked(best, tested, requested),
        share_beats=float(beats.mean()),
        share_best=float(best.mean()),
    )


def _grid(axis: str, times: npt.NDArray[np.float64]) -> _StabilityGrid:
    beats, best, speedup = _verdicts(times)
    return _StabilityGrid(
        axis=axis,
        tested=int(beats.size),
        share_beats=float(beats.mean()),
        share_best=float(best.mean()),
        least_speedup=float(speedup.min()),
    )


def _verdicts(times: npt.NDArray[np.float64]) -> tuple[Any, Any, Any]:
    """Where the first candidate beats the baseline, where no other shown one is 0.1% faster, and the speedup."""
    baseline, first, others = times[..., 0], times[..., 1], times[..., 1:]
    beats = first < baseline
    best = np.isfinite(first) & (first <= 1.001 * others.min(axis=-1))
    return beats, best, baseline / first


def _around_asked(holds: npt.NDArray[np.bool_], tested: list[int], requested: int) -> tuple[int, int] | None:
    """The contiguous range of tested values around the requested one."""
    index = tested.index(requested)
    if not holds[index]:
        return None
    low, high = index, index
    while low > 0 and holds[low - 1]:
        low -= 1
    while high + 1 < len(tested) and holds[high + 1]:
        high += 1
    return tested[low], tested[high]


def _stretch(span: tuple[int, int]) -> str:
    return f"at {span[0]}" if span[0] == span[1] else f"from {span[0]} to {span[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One shape of the baseline's size. Times are of the objective on the first GPU unless stated otherwise."""

    shape: TransformerShape = field(repr=False)
    fields: Mapping[str, int] = field(repr=False)
    changed: Mapping[str, tuple[int, int]]
    """Field -> (old, new)."""
    num_fields: int
    """Number of changed fields, without derived ones (``shapes.choose.Changes``)."""
    num_params: int
    params_change: float
    """Relative to the baseline's parameters."""
    flops_change: float
    """Relative to the baseline's FLOPs in the objective's workload."""
    time_s: float
    low_s: float
    high_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency_gain: float
    """The part of the speedup that is not due to a smaller model: speedup at equal parameters and FLOPs
    (``cost.uncertainty.work_kept``), with its 80% interval."""
    efficiency_low: float
    efficiency_high: float
    confidence: float
    """Probability that it takes less time than the baseline at equal work on the first GPU."""
    phase_s: Mapping[str, float] = field(repr=False)
    """Seconds by phase (train, prefill, decode) on the first GPU."""
    per_gpu: Mapping[str, float]
    """Speedup by GPU."""
    quality: Quality = field(repr=False)
    loss: LossChange = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point that no other beats in training time, decode time, parameter change and number of changed fields."""

    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    num_fields: int
    params_change: float
    phase_s: Mapping[str, float]
    speedup: float
    efficiency_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEdit:
    """The best value of one field changed alone, at the same size."""

    field: str
    old: int
    new: int
    changed: Mapping[str, tuple[int, int]]
    speedup: float
    efficiency_gain: float
    params_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSearch:
    """The result of a search. ``candidates`` gain at equal work with an interval above 1, best first; ties go to fewer
    changed fields, then to the smaller change of size."""

    workload: Workload = field(repr=False)
    gpus: tuple[Gpu, ...] = field(repr=False)
    baseline: Estimate = field(repr=False)
    candidates: tuple[Candidate, ...] = field(repr=False)
    front: tuple[FrontPoint, ...] = field(repr=False)
    smallest_edit: Candidate | None
    """Fewest changed fields for at least 70% of the best gain at equal work; None without candidates."""
    unsure: Candidate | None = field(repr=False)
    """If there are no candidates, the shape with the best gain (its interval includes 1); None if none gains."""
    minimax: Candidate | None = field(repr=False)
    """With several GPUs: the shape with the smallest worst-case loss against each GPU's best."""
    regret: float
    """That worst-case loss, as a share of the GPU's best time; 0 with one GPU."""
    best_per_gpu: Mapping[str, Candidate] = field(repr=False)
    mixes: tuple[Mix, ...] = field(repr=False)
    """Other mixtures of experts at equal total and active parameters, also coarser ones; empty without experts."""
    single_edits: tuple[SingleEdit, ...] = field(repr=False)
    stability: tuple[StabilityRange | _StabilityGrid, ...] = field(repr=False)
    equal: Equal
    grid_size: int
    """Combinations of the grid, all sizes."""
    evaluated: int
    """Shapes of the baseline's size; all are priced."""
    wall_s: float = field(compare=False)
    assumptions: tuple[str, ...]

    @property
    def evaluated_per_s(self) -> float:
        return self.evaluated / self.wall_s if self.wall_s else 0.0


NOISE = 5e-3
"""Share of time: gains that differ by less are ties, and smaller gains count as none. Repeated runs of one training
step differ by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The fields each point changes.

    ``kinds`` [N]: one bit per field of ``fields`` that counts as an edit. Fields that follow from others do not count:
    key/value heads of a multi-head model, the head dimension if heads x head_dim is the hidden size before and after,
    and fields that split the same total width of queries, or of keys and values, into other heads.
    """

    fields: tuple[str, ...]
    kinds: IntArray
    count: IntArray
    """Edits per point [N]."""


def _worth(points: Points, score: FloatArray) -> npt.NDArray[np.bool_]:
    """Mask of the points that save ``NOISE`` of the time at equal work. ``score`` is that time relative to the
    baseline's."""
    mask: npt.NDArray[np.bool_] = score <= 1 - NOISE
    return mask


def best_of_each(key: IntArray, score: FloatArray, size_change: FloatArray) -> IntArray:
    """One position per distinct key, best first: among points within ``NOISE`` of the key's least score, the one with
    the smallest change of size. Ties go to the earlier point."""
    _, group = np.unique(key, return_inverse=True)
    best_score = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(best_score, group, score)
    close = np.flatnonzero(score <= best_score[group] + NOISE)
    order = close[np.lexsort((score[close], size_change[close], group[close]))]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = group[order][1:] != group[order][:-1]
    best = order[first]
    return best[np.argsort(score[best], kind="stable")]


def shortlist(points: Points, edits: Changes, score: FloatArray, size_change: FloatArray, count: int) -> IntArray:
    """Positions to price with intervals, at most ``count``: the best of every set of edits, then the best of every
    combination of heads within those sets."""
    better = np.flatnonzero(_worth(points, score))
    kinds, times, sizes = edits.kinds[better], score[better], size_change[better]
    heads = points.index[2][better]
    finer = kinds * (int(points.index[2].max()) + 1) + heads
    chosen = [*best_of_each(kinds, times, sizes), *best_of_each(finer, times, sizes)]
    return better[np.asarray(list(dict.fromkeys(map(int, chosen)))[:count], dtype=np.int64)]
