"""The range in which a recommendation holds: the same few shapes at other batch sizes, sequence lengths and tp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.editing import edit
from sartor.model.lower import feasible
from sartor.model.workload import Phase, Workload
from sartor.shapes.evaluate import Evaluator

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
class StabilityGrid:
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
) -> tuple[StabilityRange | StabilityGrid, ...]:
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


def _grid(axis: str, times: npt.NDArray[np.float64]) -> StabilityGrid:
    beats, best, speedup = _verdicts(times)
    return StabilityGrid(
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
