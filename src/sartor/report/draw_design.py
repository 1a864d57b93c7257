"""Figures of a design: convergence, dies to scale, the cores of a layer in time."""

from __future__ import annotations

import numpy as np

from sartor.report.chip_points import Convergence, FloorPlan
from sartor.report.design_points import CoreBars
from sartor.report.design_words import AREA_WORDS
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, time_unit, when

SIDE = 260
"""Height of the floor plan [px]."""
WIDEST = 2.7
"""Its width over its height, about: squares look square."""


def draw_convergence(points: Convergence, frame: Frame = FILE) -> Chart:
    """The upper bound, falling, and the best point so far, rising, over time."""
    sheet = Sheet.of(frame)
    theme = sheet.theme
    words = ["no point can exceed", "best so far"]
    rows = [
        row
        for word, values in zip(words, (points.bound, points.incumbent), strict=True)
        for row in columns(seconds=points.seconds, value=values, what=[word] * len(values), evaluated=points.evaluated)
        if row["value"] > 0
    ]
    base = sheet.rows(rows).encode(
        x=sheet.x("seconds:Q", "time since the search began [s]", 8, zero=True),
        y=sheet.y("value:Q", points.unit, form="~s", zero=False),
        color=sheet.colour("what", words, [theme.vermillion, theme.blue]),
        tooltip=sheet.hover(
            "what:N",
            ("value:Q", points.unit, ",.5~g"),
            ("seconds:Q", "after [s]", ".3g"),
            ("evaluated:Q", "points evaluated"),
        ),
    )
    chart = base.mark_line(interpolate="step-after", strokeWidth=1.8) + base.mark_point(size=14, filled=True)
    return sheet.finish(chart, points.title, height=240)


def draw_floor_plan(points: FloorPlan, frame: Frame = FILE) -> Chart:
    """Rectangles of each part's area; dies stand side by side at one scale."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    rows = columns(
        die=points.die,
        part=points.part,
        area=points.area_mm2,
        share=points.share,
        left=points.left,
        top=points.top,
        right=points.right,
        bottom=points.bottom,
        x=(points.left + points.right) / 2,
        y=(points.top + points.bottom) / 2,
        words=[f"{area:,.0f}" for area in points.area_mm2],
        room=np.minimum(points.right - points.left, points.bottom - points.top),
    )
    used = [part for part in AREA_WORDS.values() if part in points.part]
    tall = max(points.bottom.tolist())
    wide = max(*points.right.tolist(), tall * WIDEST)
    plain = alt.Axis(tickCount=8, grid=False)
    x = alt.X("left:Q", title="mm", scale=alt.Scale(domain=[0, wide], nice=False), axis=plain)
    y = alt.Y("top:Q", title=None, scale=alt.Scale(domain=[tall, -tall / 9], nice=False), axis=None)
    base = sheet.rows(rows)
    boxes = base.mark_rect(stroke=theme.surface, strokeWidth=1.5).encode(
        x=x,
        x2="right:Q",
        y=y,
        y2="bottom:Q",
        color=sheet.colour("part", used),
        tooltip=sheet.hover("die:N", "part:N", ("area:Q", "mm2", ",.3~g"), ("share:Q", "of the die", ".1%")),
    )
    roomy = sheet.rows([row for row in rows if row["room"] > wide / 22])
    sizes = roomy.mark_text(fontSize=11, color=theme.surface, fontWeight="bold").encode(
        x=alt.X("x:Q", title="mm"), y="y:Q", text="words:N"
    )
    heads = sheet.rows([{"name": name, "x": at, "y": -tall / 22} for name, at, _ in points.names])
    names = heads.mark_text(align="left", fontSize=11, color=theme.ink).encode(x="x:Q", y="y:Q", text="name:N")
    return sheet.finish(alt.layer(boxes, sizes, names), points.title, height=SIDE)


def draw_core_bars(points: CoreBars, frame: Frame = FILE) -> Chart:
    """Operators on cores over time, coloured by how they were split."""
    sheet, last = Sheet.of(frame), float(points.end_s.max()) if len(points.end_s) else 1.0
    unit, scale = time_unit(last)
    start, end = points.start_s * scale, points.end_s * scale
    rows = columns(
        line=points.line,
        operator=points.operator,
        mode=points.mode,
        start=start,
        end=end,
        took=end - start,
        middle=(start + end) / 2,
    )
    modes = [mode for mode in ("all cores, alone", "one core", "shared") if mode != "shared" or mode in points.mode]
    x = sheet.x("start:Q", f"time [{unit}]", 12, domain=[0, last * scale], nice=False)
    tips = sheet.hover("operator:N", ("line:N", "cores"), "mode:N", *when(unit))
    look = {"stroke": sheet.theme.surface, "strokeWidth": 0.8, "height": 18}
    bars = sheet.spans(rows, points.lines, x, sheet.colour("mode", modes), tips, **look)
    wide = sheet.rows([row for row in rows if row["took"] * 11 > last * scale])
    names = wide.mark_text(fontSize=9, color="#1b1f24", limit=80)
    names = names.encode(x="middle:Q", y=sheet.names("line", points.lines), text="operator:N")
    return sheet.finish(bars + names, points.title, height=max(26 * len(points.lines), 60))
