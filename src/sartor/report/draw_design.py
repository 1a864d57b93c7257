"""Figures of a design: convergence, dies to scale, the cores of a layer in time."""

from __future__ import annotations

from sartor.json_types import JsonDict
from sartor.report.design_points import CoreBars
from sartor.report.design_words import AREA_WORDS
from sartor.report.die_points import FloorPlan
from sartor.report.frame import FILE, Chart, Frame, Sheet, time_unit
from sartor.report.search_points import Convergence

SIDE = 260
"""Height of the floor plan [px]."""
WIDEST = 2.7
"""Its width over its height, about: squares look square."""


def draw_convergence(points: Convergence, frame: Frame = FILE) -> Chart:
    """The upper bound, falling, and the best point so far, rising, over time."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    words = ["no point can exceed", "best so far"]
    rows = [
        {"seconds": s, "value": v, "what": word, "evaluated": n}
        for word, values in zip(words, (points.bound.tolist(), points.incumbent.tolist()), strict=True)
        for s, v, n in zip(points.seconds.tolist(), values, points.evaluated.tolist(), strict=True)
        if v > 0
    ]
    base = sheet.rows(rows).encode(
        x=alt.X(
            "seconds:Q", title="time since the search began [s]", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=8)
        ),
        y=alt.Y("value:Q", title=points.unit, scale=alt.Scale(zero=False), axis=alt.Axis(format="~s")),
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
    rows = [
        {"die": d, "part": p, "area": a, "share": s, "left": x, "top": y, "right": x2, "bottom": y2,
         "x": (x + x2) / 2, "y": (y + y2) / 2, "words": f"{a:,.0f}", "room": min(x2 - x, y2 - y)}
        for d, p, a, s, x, y, x2, y2 in zip(
            points.die, points.part, points.area_mm2.tolist(), points.share.tolist(), points.left.tolist(),
            points.top.tolist(), points.right.tolist(), points.bottom.tolist(), strict=True,
        )
    ]  # fmt: skip
    used = [part for part in AREA_WORDS.values() if part in points.part]
    tall = max(points.bottom.tolist())
    wide = max(*points.right.tolist(), tall * WIDEST)
    x = alt.X(
        "left:Q", title="mm", scale=alt.Scale(domain=[0, wide], nice=False), axis=alt.Axis(tickCount=8, grid=False)
    )
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
    roomy = sheet.rows([row for row in rows if float(str(row["room"])) > wide / 22])
    sizes = roomy.mark_text(fontSize=11, color=theme.surface, fontWeight="bold").encode(
        x=alt.X("x:Q", title="mm"), y="y:Q", text="words:N"
    )
    heads = sheet.rows([{"name": name, "x": at, "y": -tall / 22} for name, at, _ in points.names])
    names = heads.mark_text(align="left", fontSize=11, color=theme.ink).encode(x="x:Q", y="y:Q", text="name:N")
    return sheet.finish(alt.layer(boxes, sizes, names), points.title, height=SIDE)


def draw_core_bars(points: CoreBars, frame: Frame = FILE) -> Chart:
    """Operators on cores over time, coloured by how they were split."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    end = float(points.end_s.max()) if len(points.end_s) else 1.0
    unit, scale = time_unit(end)
    modes = [mode for mode in ("all cores, alone", "one core", "shared") if mode != "shared" or mode in points.mode]
    rows: list[JsonDict] = [
        {"line": line, "operator": op, "mode": mode, "start": a * scale, "end": b * scale, "took": (b - a) * scale,
         "middle": (a + b) / 2 * scale}
        for line, op, mode, a, b in zip(
            points.line, points.operator, points.mode, points.start_s.tolist(), points.end_s.tolist(), strict=True
        )
    ]  # fmt: skip
    y = sheet.names("line", points.lines)
    x = alt.X("start:Q", title=f"time [{unit}]", scale=alt.Scale(domain=[0, end * scale], nice=False))
    bars = (
        sheet.rows(rows)
        .mark_bar(stroke=theme.surface, strokeWidth=0.8, height=18)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=sheet.colour("mode", modes),
            tooltip=sheet.hover(
                "operator:N",
                ("line:N", "cores"),
                "mode:N",
                ("start:Q", f"starts [{unit}]", ".4g"),
                ("took:Q", f"takes [{unit}]", ".3g"),
            ),
        )
    )
    wide = [row for row in rows if row["took"] * 11 > end * scale]
    names = (
        sheet.rows(wide).mark_text(fontSize=9, color="#1b1f24", limit=80).encode(x="middle:Q", y=y, text="operator:N")
    )
    return sheet.finish(bars + names, points.title, height=max(26 * len(points.lines), 60))
