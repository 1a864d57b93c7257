"""Contributions to an interval by kind of kernel, and what would narrow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sartor.cost.correction.attention import frameworks_of
from sartor.cost.correction.calibration import ANY, Calibration
from sartor.cost.correction.gemm import frameworks_of_gemms
from sartor.cost.cost import Cost, Source, weakest_source
from sartor.cost.price import Estimate
from sartor.operators import KIND_NAMES, DType, Gemm


class Narrows(Enum):
    """What would narrow an interval: naming the framework's kernels, measuring this device, or nothing."""

    KERNELS = "kernels"
    MEASURE = "measure"
    ALIGNMENT = "alignment"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPart:
    """The contribution of one kind of kernel to the interval of a total."""

    kind: str
    share: float
    """Share of the variance of ln time."""
    source: Source
    """The weakest source of these kernels; assumed if that dominates their share."""
    narrows: Narrows
    kernels: tuple[str, ...] = ()
    """Frameworks to choose from, if the kernels' framework is not specified."""
    log_sigma_without: float
    """Standard deviation of ln time that would remain if this part were known exactly."""


def interval_parts(estimate: Estimate, calibration: Calibration) -> tuple[IntervalPart, ...]:
    """Kinds of kernels by their contribution to the interval, largest first."""
    kinds: dict[str, list[tuple[float, Cost]]] = {}
    for op, cost, share in zip(estimate.graph.operators, estimate.costs, estimate.variance_shares, strict=True):
        kinds.setdefault(KIND_NAMES.get(type(op), "memory_bound"), []).append((share, cost))
    sigma = float(np.mean(estimate.log_sigma))
    measurable = _MEASURED if estimate.device.accelerator is None else ()
    dtypes = tuple(dict.fromkeys(op.dtype for op in estimate.graph.operators if type(op) is Gemm))
    parts = [_part(kind, members, calibration, dtypes, sigma, measurable) for kind, members in kinds.items()]
    return tuple(sorted(parts, key=lambda part: -part.share))


def _part(
    kind: str,
    members: list[tuple[float, Cost]],
    calibration: Calibration,
    dtypes: Sequence[DType],
    sigma: float,
    measurable: Sequence[str],
) -> IntervalPart:
    share = sum(variance for variance, _ in members)
    source = _weakest(members, share)
    frameworks = _frameworks(kind, calibration, dtypes)
    if frameworks:
        narrows = Narrows.KERNELS
    elif source is Source.ASSUMED and kind == "gemm":
        narrows = Narrows.ALIGNMENT
    elif source is Source.ANALYTIC and kind in measurable:
        narrows = Narrows.MEASURE
    else:
        narrows = Narrows.NOTHING
    left = sigma * max(1 - share, 0.0) ** 0.5
    return IntervalPart(
        kind=kind, share=share, source=source, narrows=narrows, kernels=frameworks, log_sigma_without=left
    )


def _weakest(members: list[tuple[float, Cost]], share: float) -> Source:
    parts = [(bool(np.all(cost.fitted)), bool(np.any(cost.assumed)), kind) for kind, cost in members]
    return Source(str(weakest_source(parts, share)))


def _frameworks(kind: str, calibration: Calibration, dtypes: Sequence[DType]) -> tuple[str, ...]:
    """What the user could name: a framework if none is named, and one of its families of grouped kernels where it has
    several."""
    families = {
        "attention": frameworks_of(calibration),
        "grouped_gemm": tuple(calibration.grouped_families),
        "gemm": tuple(name for dtype in dtypes for name in frameworks_of_gemms(calibration, dtype)),
    }
    members: dict[str, dict[str, None]] = {}
    for name in families.get(kind, ()):
        members.setdefault(name.partition("_")[0], {})[name] = None
    several = {framework: tuple(names) if len(names) > 1 else (framework,) for framework, names in members.items()}
    if calibration.kernels == ANY:
        return tuple(name for names in several.values() for name in names)
    return tuple(name for name in several.get(calibration.kernels, ()) if name != calibration.kernels)


_MEASURED = ("gemm", "attention", "memory_bound")
"""Kinds that ``sartor measure`` times and ``sartor calibrate`` fits; neither measures a template chip."""
