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


def study_results(asked: Study, rows: Sequence[JsonMap], gpu: Gpu, calibration: Calibration | None) -> list[ArmResult]:
    """Every arm of a study, in its order."""
    by_key = {pair.case.key: pair for pair in pairs(asked.cases, rows, gpu, calibration)}
    found = [_arm(arm, by_key) for arm in asked.arms]
    base = {each.arm.group: each for each in found if each.arm.is_baseline}
    return [_against(each, base.get(each.arm.group)) for each in found]


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


def _against(each: ArmResult, base: ArmResult | None) -> ArmResult:
    if base is None:
        return each
    return ArmResult(
        arm=each.arm,
        predicted_s=each.predicted_s,
        low_s=each.low_s,
        high_s=each.high_s,
        measured_s=each.measured_s,
        source=each.source,
        predicted_speedup=base.predicted_s / each.predicted_s * (each.arm.work / base.arm.work),
        measured_speedup=base.measured_s / each.measured_s * (each.arm.work / base.arm.work),
    )


def study_body(asked: Study, results: Sequence[ArmResult], size: str) -> JsonDict:
    """The ``study`` object of the JSON: all arms, and how far predicted and measured speedups differ."""
    apart = np.asarray([abs(each.points) for each in results if not each.arm.is_baseline])
    apart = apart[np.isfinite(apart)]
    return {
        "name": asked.name,
        "question": asked.question,
        "axis": asked.axis,
        "size": size,
        "arms": [_arm_body(each) for each in results],
        "not_timed": sum(not np.isfinite(each.measured_s) for each in results),
        "median_points_apart": float(np.median(apart)) if apart.size else None,
        "most_points_apart": float(apart.max()) if apart.size else None,
        "within_5_points": int((apart <= 5).sum()),
        "compared": int(apart.size),
        "direction_agrees": _same_direction(results),
    }


def _same_direction(results: Sequence[ArmResult]) -> float | None:
    """Share of arms measured more than 2% off the baseline for which the prediction has the same direction."""
    told = [
        (each.predicted_speedup, each.measured_speedup)
        for each in results
        if not each.arm.is_baseline and np.isfinite(each.measured_speedup) and abs(each.measured_speedup - 1) > 0.02
    ]
    return sum((p > 1) == (m > 1) for p, m in told) / len(told) if told else None


def _arm_body(each: ArmResult) -> JsonDict:
    values = {
        "predicted_s": each.predicted_s,
        "low_s": each.low_s,
        "high_s": each.high_s,
        "measured_s": each.measured_s,
        "predicted_speedup": each.predicted_speedup,
        "measured_speedup": each.measured_speedup,
        "points_apart": each.points,
    }
    return {
        "arm": each.arm.name,
        "group": each.arm.group,
        "x": each.arm.x,
        "is_baseline": each.arm.is_baseline,
        **{name: value if np.isfinite(value) else None for name, value in values.items()},
        "source": each.source,
        "work": each.arm.work,
        "parts": [{"table": case.table, **case.columns, "count": count} for case, count in each.arm.parts],
    }
