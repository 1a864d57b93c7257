"""Figures: ``draw`` draws any record of :mod:`sartor.report.points` with altair (extra ``report``).

One picture serves the page (``PAGE``: as wide as its column, colours named for light and dark) and files
(``FILE``: fixed width, light, with its title inside). Axes carry units; every mark has a tooltip.

>>> to_png(draw(roofline_points(estimate)))      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sartor.json_types import JsonDict, plain
from sartor.report.chip_points import (
    Convergence,
    DesignCloud,
    FloorPlan,
    draw_convergence,
    draw_design_cloud,
    draw_floor_plan,
)
from sartor.report.design_points import CoreBars, RegretMatrix, draw_core_bars, draw_regrets
from sartor.report.draw_roofline import (
    draw_gains,
    draw_operator_times,
    draw_pareto,
    draw_published,
    draw_roofline,
    draw_sawtooth,
)
from sartor.report.frame import FILE, FILE_DARK, PAGE, Frame, to_png, to_svg
from sartor.report.plan_points import (
    MemoryBars,
    MemoryFall,
    MemoryTracks,
    PipelineBars,
    PlanCloud,
    StepBars,
    draw_memory_bars,
    draw_memory_fall,
    draw_memory_tracks,
    draw_pipeline,
    draw_plan_cloud,
    draw_step_bars,
)
from sartor.report.points import Gains, OperatorTimes, Pareto, Published, Roofline, Sawtooth
from sartor.report.run_points import (
    RunFall,
    RunTimeline,
    SlowOperators,
    draw_run_fall,
    draw_run_timeline,
    draw_slow_operators,
)
from sartor.report.table_serving import ServedFront, draw_served_front

FIGURES: Mapping[type, Any] = {
    OperatorTimes: draw_operator_times,
    Roofline: draw_roofline,
    Sawtooth: draw_sawtooth,
    Pareto: draw_pareto,
    Gains: draw_gains,
    Published: draw_published,
    StepBars: draw_step_bars,
    MemoryBars: draw_memory_bars,
    MemoryFall: draw_memory_fall,
    PlanCloud: draw_plan_cloud,
    ServedFront: draw_served_front,
    PipelineBars: draw_pipeline,
    MemoryTracks: draw_memory_tracks,
    Convergence: draw_convergence,
    DesignCloud: draw_design_cloud,
    FloorPlan: draw_floor_plan,
    CoreBars: draw_core_bars,
    RegretMatrix: draw_regrets,
    RunFall: draw_run_fall,
    SlowOperators: draw_slow_operators,
    RunTimeline: draw_run_timeline,
}
"""Which function draws which record."""


def draw(points: object, frame: Frame = FILE) -> Any:
    """Draw any record of :mod:`sartor.report.points`."""
    return FIGURES[type(points)](points, frame)


def drawn(points: Any) -> JsonDict:
    """A record drawn for a page: its title, and its Vega-Lite specification."""
    return {"title": points.title, "spec": plain(draw(points, PAGE).to_dict())}


__all__ = [
    "FIGURES",
    "FILE",
    "FILE_DARK",
    "PAGE",
    "Frame",
    "draw",
    "draw_gains",
    "draw_operator_times",
    "draw_pareto",
    "draw_published",
    "draw_roofline",
    "draw_sawtooth",
    "to_png",
    "to_svg",
]
