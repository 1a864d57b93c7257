"""The figure of a design's points: objective against cost, with the Pareto front and named alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from types import ModuleType

from sartor.json_types import JsonDict
from sartor.report.chip_points import DesignCloud
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns

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
