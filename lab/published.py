"""Compare predictions with published figures: rates of GEMMs, and any record of cases as a plain-text table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.gpu.gemm import gemm_costs
from sartor.hardware.gpu import Gpu
from sartor.operators import Gemm
from sartor.report.points import Published, published_points
from sartor.units import TERA, Floats

Case = tuple[str, Gemm, float | None]
"""Name, GEMM, and published rate in TFLOP/s (None: not published)."""


def product_rates(title: str, gpu: Gpu, cases: Sequence[Case], *, clock: Clock = Clock.BOOST) -> Published:
    """Predicted rates of GEMMs on a device, in TFLOP/s with 80% intervals, beside the published ones.

    The default is short runs at boost clock, as GEMM tables are usually measured.
    """
    products = [gemm for _, gemm, _ in cases]
    known = load_calibration(gpu)
    costs = gemm_costs(products, gpu, known, clock=clock)
    rows = [
        (label, _tflops(gemm, cost.time_s), _tflops(gemm, cost.high_s), _tflops(gemm, cost.low_s), rate)
        for (label, gemm, rate), cost in zip(cases, costs, strict=True)
    ]
    return published_points(title, "TFLOP/s", rows)


def _tflops(gemm: Gemm, time_s: Floats) -> float:
    """Rate of one GEMM in TFLOP/s."""
    return float(gemm.flops / time_s) / TERA


def published_text(points: Published, *, digits: int = 4) -> str:
    """A fixed-width table: case, predicted, 80% interval, published, error; then the share of intervals that hold."""
    width = max(len("case"), *(len(case) for case in points.cases))
    lines = [f"{'case':<{width}}  {'predicted':>9}  {'80% interval':>17}  {'published':>9}  {'error':>7}"]
    for case, p, low, high, known in zip(
        points.cases,
        points.predicted.tolist(),
        points.low.tolist(),
        points.high.tolist(),
        points.published.tolist(),
        strict=True,
    ):
        interval = f"{low:.{digits}g} to {high:.{digits}g}"
        beside = f"{known:>9.{digits}g}  {100 * (p / known - 1):>+6.1f}%" if np.isfinite(known) else f"{'-':>9}"
        lines.append(f"{case:<{width}}  {p:>9.{digits}g}  {interval:>17}  {beside}".rstrip())
    return "\n".join([*lines, *_summary(points)])


def _summary(points: Published) -> list[str]:
    """Mean and median absolute error in percent and the share of intervals that hold the published figure."""
    known = np.isfinite(points.published)
    if not known.any():
        return []
    error = np.abs(points.predicted[known] / points.published[known] - 1)
    inside = (points.low[known] <= points.published[known]) & (points.published[known] <= points.high[known])
    return [
        f"{known.sum()} published, unit {points.unit}: mean error {100 * error.mean():.1f}%, median "
        f"{100 * np.median(error):.1f}%; {inside.sum()} of {known.sum()} inside their 80% interval"
    ]
