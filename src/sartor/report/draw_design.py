"""Figures of a design: its points, convergence, dies to scale, the cores of a layer in time."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from types import ModuleType

import numpy as np

from sartor.json_types import JsonDict
from sartor.report.chip_points import Convergence, DesignCloud, FloorPlan
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


HEIGHT = 320
WIDTH = 640
"""Width of the plot [px] assumed when placing labels: a page may be wider, and phones show no labels."""
KINDS = {"best": "best", "front": "front", "evaluated": "evaluated", "baseline": "other way to choose"}
LETTER, LINE, MARK = 6.0, 14.0, 7.0
"""A label's letter and line, and half a mark [px]."""

Row = JsonDict
Box = tuple[float, float, float, float]


def draw_design_cloud(points: DesignCloud, frame: Frame = FILE) -> Chart:
    """The objective against the front's first axis (area by default), by kind of point; a second axis of the front sets
    the size of its discs."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    rows = list(_rows(points))
    x = sheet.x("across:Q", points.axes[0], 8, zero=False, padding=20)
    y = sheet.y("value:Q", points.unit, form="~s", zero=False, padding=14)
    amounts = [("area", "mm2"), ("power", "W"), *_axes(points)]
    tips = sheet.hover(
        ("label:N", "chip"),
        ("value:Q", points.unit, ",.5~g"),
        *((f"{name}:Q", title, ",.4~g") for name, title in amounts),
    )
    looks: dict[str, Row] = {
        "evaluated": {"size": 26, "opacity": 0.45},
        "front": {"size": 56, "opacity": 0.85},
        "baseline": {"size": 70, "opacity": 1, "shape": "square"},
        "best": {"size": 150, "opacity": 1, "shape": "diamond"},
    }
    paint = {"best": theme.vermillion, "front": theme.blue, "evaluated": theme.sky, "baseline": theme.orange}
    used = [kind for kind in KINDS if kind in points.kind]
    legend = sheet.colour("what", [KINDS[kind] for kind in used], [paint[kind] for kind in used])

    def marked(kind: str) -> Chart:
        chart = sheet.rows([row for row in rows if row["kind"] == kind])
        chart = chart.mark_point(filled=True, **looks[kind]).encode(x=x, y=y, tooltip=tips, color=legend)
        return chart.encode(size=_sizes(alt, points)) if kind == "front" and len(points.axes) > 1 else chart

    names = [_names(sheet, labels, align, x, y) for align, labels in _placed(rows).items() if labels]
    chart = alt.layer(*(marked(kind) for kind in looks if kind in used), *names)
    return sheet.finish(chart, points.title, height=HEIGHT)


def _rows(points: DesignCloud) -> Iterator[Row]:
    rows = columns(
        label=points.labels,
        kind=points.kind,
        what=[KINDS[kind] for kind in points.kind],
        area=points.area_mm2,
        power=points.power_w,
        value=points.objective,
        across=points.across,
        shade=points.shade,
    )
    # a die beyond the reticle has no price
    return (row for row in rows if isfinite(row["across"]) and isfinite(row["shade"]))


def _axes(points: DesignCloud) -> list[tuple[str, str]]:
    """The front's axes that tooltips do not show already (area)."""
    return [
        (name, title) for name, title in zip(("across", "shade"), points.axes, strict=False) if "[mm2]" not in title
    ]


def _sizes(alt: ModuleType, points: DesignCloud) -> Chart:
    """Disc sizes for a front's second axis (page colours are CSS names, which cannot be interpolated)."""
    title = f"size in the front: {points.axes[1]}"
    shown = alt.Legend(orient="top", title=title, titleFontWeight="normal", titleLimit=400, tickCount=3)
    return alt.Size("shade:Q", scale=alt.Scale(zero=False, range=[30, 260]), legend=shown)


def _names(sheet: Sheet, rows: list[Row], align: str, x: Chart, y: Chart) -> Chart:
    alt = sheet.alt
    room = alt.condition("width > 480", alt.value(1), alt.value(0))
    text = sheet.rows(rows).mark_text(
        align=align, dx=-9 if align == "right" else 9, fontSize=11, color=sheet.theme.muted
    )
    return text.encode(x=x, y=y, text="words:N", opacity=room)


def _placed(rows: list[Row]) -> dict[str, list[Row]]:
    """The best point and the alternatives, labelled on the left or right where there is room."""
    out: dict[str, list[Row]] = {"left": [], "right": []}
    points = _scaled(rows)
    taken = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in points]
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["kind"] != "best", -rows[i]["value"]))
    for i in order:
        if rows[i]["kind"] not in ("best", "baseline"):
            continue
        words = "best" if rows[i]["kind"] == "best" else str(rows[i]["label"]).partition(" (")[0]
        (x, y), wide = points[i], LETTER * len(words)
        for align, left in (("left", x + 9), ("right", x - 9 - wide)):
            box = (left, y - LINE / 2, left + wide, y + LINE / 2)
            if left >= 0 and left + wide <= WIDTH and not any(_meet(box, neighbour) for neighbour in taken):
                taken.append(box)
                out[align].append(rows[i] | {"words": words})
                break
    return out


def _scaled(rows: list[Row]) -> list[tuple[float, float]]:
    """Approximate positions of the points in the plot [px]."""
    pairs = []
    for name, size, pad in (("across", WIDTH, 20), ("value", HEIGHT, 14)):
        values = [float(row[name]) for row in rows]
        low, span = min(values), (max(values) - min(values)) or 1.0
        pairs.append([pad + (value - low) / span * (size - 2 * pad) for value in values])
    return [(x, HEIGHT - y) for x, y in zip(*pairs, strict=True)]


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
