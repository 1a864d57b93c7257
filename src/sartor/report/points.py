"""The records behind the figures: plain arrays, each titled with the figure's message.

:mod:`sartor.report.charts` draws them. All values are SI; names are shown as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.cost.price import Estimate
from sartor.operators import Attention, Collective, DType, Gemm, GroupedGemm, Operator, Pass
from sartor.report.words import SMALL_SHARE, short_name
from sartor.units import format_seconds, format_share

Numbers = npt.NDArray[np.float64]

CATEGORIES = ("GEMM forward", "GEMM dgrad", "GEMM wgrad", "attention", "memory-bound", "collective")
"""The categories of a step's time, in stacking order."""


def _category(operator: Operator) -> str:
    """The category of an operator's time."""
    if isinstance(operator, (Gemm, GroupedGemm)):
        passes = {Pass.DGRAD: "GEMM dgrad", Pass.WGRAD: "GEMM wgrad"}
        return passes.get(operator.pass_, "GEMM forward")
    if isinstance(operator, Attention):
        return "attention"
    return "collective" if isinstance(operator, Collective) else "memory-bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Time of a pass by operator (longest first) and category: ``time_s`` [operators, categories], totals with 80%."""

    title: str
    names: tuple[str, ...]
    time_s: Numbers
    low_s: Numbers
    high_s: Numbers
    step_s: float


def operator_times(estimate: Estimate, *, small: float = SMALL_SHARE, most: int | None = None) -> OperatorTimes:
    """All executions of each of at most ``most`` operators of at least ``small`` of the step; the rest as one."""
    sums: dict[str, Numbers] = {}
    for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True):
        row = sums.setdefault(short_name(op), np.zeros(len(CATEGORIES) + 2))
        row[CATEGORIES.index(_category(op))] += op.count * float(cost.time_s)
        row[-2:] += op.count * np.asarray([float(cost.low_s), float(cost.high_s)])
    step = float(estimate.time_s)
    large = sorted((n for n in sums if sums[n][:-2].sum() >= small * step), key=lambda n: -sums[n][:-2].sum())[:most]
    rest = [name for name in sums if name not in set(large)]
    names = (*large, f"{len(rest)} smaller") if rest else tuple(large)
    rows = [sums[name] for name in large] + ([np.sum([sums[name] for name in rest], axis=0)] if rest else [])
    table = np.asarray(rows).reshape(-1, len(CATEGORIES) + 2)
    return OperatorTimes(
        title=_where_time_goes(names, table[:, :-2], step, _what_is_timed(estimate)),
        names=names,
        time_s=table[:, :-2],
        low_s=table[:, -2],
        high_s=table[:, -1],
        step_s=step,
    )


def _what_is_timed(estimate: Estimate) -> str:
    trains = any(op.pass_ is not Pass.FORWARD for op in estimate.graph.operators)
    return "one microbatch" if trains else "the pass"


def _where_time_goes(names: Sequence[str], time_s: Numbers, step_s: float, of: str) -> str:
    if not len(names):
        return "No operators"
    shares = time_s.sum(axis=0) / step_s
    gemm, other = shares[:3].sum(), shares[4]
    longest = format_share(time_s[0].sum() / step_s)
    return (
        f"{names[0]} takes {longest} of the {format_seconds(step_s)} of {of}; "
        f"all GEMMs {format_share(gemm)}, attention {format_share(shares[3])}, memory-bound {format_share(other)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """GEMMs on their device's roofline: intensity [FLOP/byte], achieved rate [FLOP/s], one entry per operator.

    ``after`` marks the operators of the changed shape; ``share`` is their share of that shape's step.
    """

    title: str
    device: str
    dtype: str
    peak_flops_per_s: float
    hbm_bytes_per_s: float
    names: tuple[str, ...]
    passes: tuple[str, ...]
    intensity_flops_per_byte: Numbers
    achieved_flops_per_s: Numbers
    share: Numbers
    after: npt.NDArray[np.bool_]

    @property
    def ridge_flops_per_byte(self) -> float:
        return self.peak_flops_per_s / self.hbm_bytes_per_s


def roofline_points(estimate: Estimate, after: Estimate | None = None) -> Roofline:
    """The GEMMs of a step, and of the step ``after`` a change, on the device's roofline."""
    rows = [(*row, False) for row in _products(estimate)]
    rows += [(*row, True) for row in _products(after)] if after is not None else []
    names, passes, intensity, achieved, share, is_after = zip(*rows, strict=True) if rows else ((),) * 6
    dtype = _main_dtype(estimate)
    return Roofline(
        title=_roofline_title(estimate, after),
        device=estimate.device.name,
        dtype=dtype.value,
        peak_flops_per_s=peak_flops_per_s(estimate.device, dtype),
        hbm_bytes_per_s=estimate.device.hbm_bytes_per_s,
        names=names,
        passes=passes,
        intensity_flops_per_byte=np.asarray(intensity, dtype=float),
        achieved_flops_per_s=np.asarray(achieved, dtype=float),
        share=np.asarray(share, dtype=float),
        after=np.asarray(is_after, dtype=bool),
    )


def _products(estimate: Estimate) -> list[tuple[str, str, float, float, float]]:
    return [
        (
            short_name(op),
            op.pass_.value,
            float(op.flops) / float(op.bytes_moved),
            float(op.flops) / float(cost.time_s),
            float(op.count) * float(cost.time_s) / float(estimate.time_s),
        )
        for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True)
        if isinstance(op, (Gemm, GroupedGemm)) and float(op.flops) > 0 and float(op.count) > 0
    ]


def _main_dtype(estimate: Estimate) -> DType:
    flops: dict[DType, float] = {}
    for op in estimate.graph.operators:
        if isinstance(op, (Gemm, GroupedGemm)):
            flops[op.dtype] = flops.get(op.dtype, 0.0) + float(op.flops) * float(op.count)
    return max(flops, key=lambda dtype: flops[dtype], default=DType.BF16)


def _achieved_share(estimate: Estimate) -> float:
    """FLOP-weighted share of peak that the GEMMs of a step reach."""
    pairs = [
        (float(op.flops * op.count), float(cost.time_s * op.count))
        for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True)
        if isinstance(op, (Gemm, GroupedGemm))
    ]
    flops, time_s = np.asarray(pairs).reshape(-1, 2).sum(axis=0)
    return float(flops / time_s / peak_flops_per_s(estimate.device, _main_dtype(estimate))) if time_s else 0.0


def _roofline_title(estimate: Estimate, after: Estimate | None) -> str:
    now = f"GEMMs reach {format_share(_achieved_share(estimate))} of {estimate.device.name}'s dense peak"
    if after is None:
        return now
    then = format_share(_achieved_share(after))
    same = then == format_share(_achieved_share(estimate))
    return f"{now}, before and after the change" if same else f"{now}; {then} after the change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sawtooth:
    """Step time against one field: the sawtooth of tiles, waves and alignment."""

    title: str
    field: str
    values: Numbers
    time_s: Numbers
    flops_per_s: Numbers
    """FLOPs of the step's matrix multiplications over its time."""
    now: float
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """Candidates: gain at equal work, change in parameters, number of changed fields, whether on the Pareto front."""

    title: str
    labels: tuple[str, ...]
    gain: Numbers
    low: Numbers
    high: Numbers
    params_change: Numbers
    num_changed: npt.NDArray[np.int64]
    on_front: npt.NDArray[np.bool_]
    best: int = -1
    """Position of the recommended one; -1: none."""
    smallest_edit: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """The time each finding's fix saves, as a share of the step, largest first."""

    title: str
    rules: tuple[str, ...]
    grades: tuple[str, ...]
    messages: tuple[str, ...]
    gain_fraction: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Predictions with 80% intervals and published values, one entry per case; NaN if unpublished."""

    title: str
    unit: str
    cases: tuple[str, ...]
    predicted: Numbers
    low: Numbers
    high: Numbers
    published: Numbers

    def __post_init__(self) -> None:
        lengths = {len(self.cases), *(len(a) for a in (self.predicted, self.low, self.high, self.published))}
        assert len(lengths) == 1, "one entry per case"


def published_points(title: str, unit: str, rows: Sequence[tuple[str, float, float, float, float | None]]) -> Published:
    """Rows of (case, predicted, low, high, published or None) as a record."""
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * 5
    numbers = [np.asarray([np.nan if v is None else v for v in column], dtype=float) for column in columns[1:]]
    return Published(
        title=f"{title}: {_agreement(unit, *numbers)}",
        unit=unit,
        cases=tuple(columns[0]),
        predicted=numbers[0],
        low=numbers[1],
        high=numbers[2],
        published=numbers[3],
    )


def _agreement(unit: str, predicted: Numbers, low: Numbers, high: Numbers, published: Numbers) -> str:
    """How near the predictions are to the published values; without any, what they span."""
    known = np.isfinite(published)
    if not known.any():
        return f"{predicted.min():.2g} to {predicted.max():.2g} {unit} predicted" if predicted.size else "no case"
    error = float(np.median(np.abs(predicted[known] / published[known] - 1)))
    inside = int(((low <= published) & (published <= high)).sum())
    return f"{format_share(error)} off at the median, {inside} of {known.sum()} published within the 80% interval"
