"""The result of a study: predicted and measured time and speedup of every arm over its group's baseline.

Arms that do different amounts of work are compared by rate (``Arm.work``), others by time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sartor.bench.compare import Pair, pairs
from sartor.bench.studies import Arm, Study
from sartor.cost.correction.calibration import Calibration
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm. Times are sums over its parts, NaN if a part was not timed."""

    arm: Arm
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    source: str
    predicted_speedup: float = float("nan")
    measured_speedup: float = float("nan")

    @property
    def points(self) -> float:
        """Predicted minus measured speedup, in percentage points."""
        return 100 * (self.predicted_speedup - self.measured_speedup)


def study_results(study: Study, rows: Sequence[JsonMap], gpu: Gpu, calibration: Calibration | None) -> list[ArmResult]:
    """Every arm of a study, in its order."""
    by_key = {pair.case.key: pair for pair in pairs(study.cases, rows, gpu, calibration)}
    results = [_arm(arm, by_key) for arm in study.arms]
    base = {result.arm.group: result for result in results if result.arm.is_baseline}
    return [_against(result, base.get(result.arm.group)) for result in results]


def _arm(arm: Arm, by_key: Mapping[tuple[str, ...], Pair]) -> ArmResult:
    parts = [(by_key.get(case.key), count) for case, count in arm.parts]

    def total(name: str) -> float:
        return sum(count * (getattr(pair, name) if pair else float("nan")) for pair, count in parts)

    sources = {pair.source for pair, _ in parts if pair}
    return ArmResult(
        arm=arm,
        predicted_s=total("predicted_s"),
        low_s=total("low_s"),
        high_s=total("high_s"),
        measured_s=total("measured_s"),
        source="calibrated" if sources == {"calibrated"} else "analytic",
    )


def _against(result: ArmResult, base: ArmResult | None) -> ArmResult:
    if base is None:
        return result
    return ArmResult(
        arm=result.arm,
        predicted_s=result.predicted_s,
        low_s=result.low_s,
        high_s=result.high_s,
        measured_s=result.measured_s,
        source=result.source,
        predicted_speedup=base.predicted_s / result.predicted_s * (result.arm.work / base.arm.work),
        measured_speedup=base.measured_s / result.measured_s * (result.arm.work / base.arm.work),
    )


def study_body(study: Study, results: Sequence[ArmResult], size: str) -> JsonDict:
    """The ``study`` object of the JSON: all arms, and how far predicted and measured speedups differ."""
    apart = np.asarray([abs(result.points) for result in results if not result.arm.is_baseline])
    apart = apart[np.isfinite(apart)]
    return {
        "name": study.name,
        "question": study.question,
        "axis": study.axis,
        "size": size,
        "arms": [_arm_body(result) for result in results],
        "not_timed": sum(not np.isfinite(result.measured_s) for result in results),
        "median_points_apart": float(np.median(apart)) if apart.size else None,
        "most_points_apart": float(apart.max()) if apart.size else None,
        "within_5_points": int((apart <= 5).sum()),
        "compared": int(apart.size),
        "direction_agrees": _same_direction(results),
    }


def _same_direction(results: Sequence[ArmResult]) -> float | None:
    """Share of arms measured more than 2% off the baseline for which the prediction has the same direction."""
    agreements = [
        (result.predicted_speedup, result.measured_speedup)
        for result in results
        if not result.arm.is_baseline
        and np.isfinite(result.measured_speedup)
        and abs(result.measured_speedup - 1) > 0.02
    ]
    return sum((p > 1) == (m > 1) for p, m in agreements) / len(agreements) if agreements else None


def _arm_body(result: ArmResult) -> JsonDict:
    values = {
        "predicted_s": result.predicted_s,
        "low_s": result.low_s,
        "high_s": result.high_s,
        "measured_s": result.measured_s,
        "predicted_speedup": result.predicted_speedup,
        "measured_speedup": result.measured_speedup,
        "points_apart": result.points,
    }
    return {
        "arm": result.arm.name,
        "group": result.arm.group,
        "x": result.arm.x,
        "is_baseline": result.arm.is_baseline,
        **{name: value if np.isfinite(value) else None for name, value in values.items()},
        "source": result.source,
        "work": result.arm.work,
        "parts": [{"table": case.table, **case.columns, "count": count} for case, count in result.arm.parts],
    }
