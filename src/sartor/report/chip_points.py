"""Figures of a design, with their records: points and their Pareto front, bound and incumbent over time, dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.answers.design import DesignAnswer, rate
from sartor.designs.candidates import Ranked
from sartor.designs.detail import area_parts
from sartor.designs.front import value_of
from sartor.json_types import JsonDict
from sartor.report.design_words import AREA_WORDS, against_text, short_chips, unit_of
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns
from sartor.report.words import printable
from sartor.units import GIGA, format_seconds, format_share

Numbers = npt.NDArray[np.float64]

MOST_CLOUD = 1500
"""Most evaluated points drawn, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCloud:
    """Evaluated points as cost against objective, with the Pareto front marked and the alternatives named.

    ``across`` and ``shade`` are the first two axes of the requested front, named in ``axes`` with their units; by
    default, area alone.
    """

    title: str
    unit: str
    labels: tuple[str, ...]
    area_mm2: Numbers
    power_w: Numbers
    objective: Numbers
    kind: tuple[str, ...]
    """``best``, ``front``, ``evaluated`` or ``baseline``."""
    axes: tuple[str, ...]
    across: Numbers
    shade: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Upper bound and best value while the search runs."""

    title: str
    unit: str
    seconds: Numbers
    bound: Numbers
    incumbent: Numbers
    evaluated: npt.NDArray[np.int64]


def convergence(answer: DesignAnswer) -> Convergence | None:
    """Bound and incumbent over time; None with fewer than two steps."""
    steps = [step for step in answer.result.trajectory if step.bound > 0 and np.isfinite(step.bound)]
    if len(steps) < 2:
        return None
    result = answer.result
    return Convergence(
        title=proof_title(steps[-1].seconds, result.gap, result.evaluated, result.pruned),
        unit=unit_of(answer.question),
        seconds=np.array([step.seconds for step in steps]),
        bound=np.array([step.bound for step in steps]),
        incumbent=np.array([step.incumbent for step in steps]),
        evaluated=np.array([step.evaluated for step in steps]),
    )


def proof_title(seconds: float, gap: float, evaluated: int, pruned: int) -> str:
    """What a search has proved by now."""
    proof = f"After {format_seconds(seconds)}, no point can be more than {format_share(gap)} better"
    proof = proof if gap else f"Proved optimal after {format_seconds(seconds)}"
    return f"{proof}; {evaluated:,} of {evaluated + pruned:,} points evaluated"


def design_cloud(answer: DesignAnswer) -> DesignCloud | None:
    """Evaluated points by area; None for a single one."""
    best = answer.best
    ranked = [design for design in answer.result.ranked[:MOST_CLOUD] if design.objective > 0]
    if answer.proved_front is not None and best is not None:
        ranked += [design for design in answer.front if design.objective < best.objective]
    others = [(design.name, design.ranked) for design in answer.result.baselines if design.ranked is not None]
    if best is None or len(ranked) + len(others) < 2:
        return None
    front = {id(design) for design in answer.front}
    kinds = ["best" if design is best else "front" if id(design) in front else "evaluated" for design in ranked]
    everything = [*ranked, *(reference for _, reference in others)]
    axes = answer.proved_front.axes if answer.proved_front is not None else ("area_mm2",)
    return DesignCloud(
        title=f"The best point reaches {against_text(best, others[0][1])} the objective of {printable(others[0][0])}"
        if others
        else cloud_title(best.objective, best.area_mm2),
        unit=unit_of(answer.question),
        labels=(
            *short_chips([design.evaluation.point.accelerator for design in ranked]),
            *(printable(name) for name, _ in others),
        ),
        area_mm2=np.array([design.area_mm2 for design in everything]),
        power_w=np.array([design.power_w for design in everything]),
        objective=np.array([design.objective for design in everything]),
        kind=(*kinds, *("baseline" for _ in others)),
        axes=tuple(AXES[axis][0] for axis in axes[:2]),
        across=_on(everything, axes[0]),
        shade=_on(everything, axes[-1] if len(axes) < 2 else axes[1]),
    )


AXES = {
    "area_mm2": ("die [mm2]", 1.0),
    "power_w": ("peak power [W]", 1.0),
    "hbm_bytes": ("memory [GB]", GIGA),
    "usd": ("die and memory [USD]", 1.0),
}
"""The axes of a front: title, and scale from the SI unit."""


def _on(ranked: Sequence[Ranked], axis: str) -> Numbers:
    values = [value_of(design, axis) for design in ranked]
    return np.array(values, dtype=np.float64) / AXES[axis][1]


def cloud_title(objective: float, area_mm2: float) -> str:
    """The best point, where there is nothing to compare it with."""
    return f"The best point reaches {rate(objective)} on {area_mm2:,.0f} mm2"


MOST_CELLS = 64
"""Most arrays drawn one by one on a die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """Dies side by side to scale, parts as rectangles of their area [mm]; a sketch, not a layout."""

    title: str
    die: tuple[str, ...]
    part: tuple[str, ...]
    area_mm2: Numbers
    share: Numbers
    left: Numbers
    top: Numbers
    right: Numbers
    bottom: Numbers
    names: tuple[tuple[str, float, float], ...]
    """For each die: name, left edge, side."""


def floor_plan(answer: DesignAnswer) -> FloorPlan:
    """The best die to scale, next to those of the baselines' chips."""
    best = answer.best
    assert best is not None
    dies = [("best", best)]
    for baseline in answer.result.baselines:
        design = baseline.ranked
        if design is not None and design.evaluation.point.accelerator.name not in ("", *(n for n, _ in dies)):
            dies.append((design.evaluation.point.accelerator.name, design))
    rows: list[tuple[Any, ...]] = []
    names: list[tuple[str, float, float]] = []
    left_mm = 0.0
    for name, ranked in dies[:3]:
        parts = area_parts(answer.question, ranked.evaluation.point.accelerator)
        order = sorted(((part, area) for part, area in parts.items() if area), key=lambda part: -part[1])
        side = float(np.sqrt(sum(parts.values())))
        cores = int(ranked.evaluation.point.accelerator.num_tensor_cores)
        for (part, area), box in zip(order, squarified([area for _, area in order], side), strict=True):
            cells = _cells(box, cores if part == "arrays_mm2" and cores <= MOST_CELLS else 1)
            for left, top, right, bottom in cells:
                cell_area = area / len(cells), area / side**2
                rows.append((name, AREA_WORDS[part], *cell_area, left_mm + left, top, left_mm + right, bottom))
        names.append((f"{printable(name)}: {side**2:,.0f} mm2", left_mm, side))
        left_mm += side * 1.08
    columns = list(zip(*rows, strict=True))
    largest = max((row for row in rows if row[0] == "best"), key=lambda row: row[3])
    return FloorPlan(
        title=f"{format_share(largest[3])} of the best die's {best.area_mm2:,.0f} mm2 are {largest[1]}",
        die=columns[0],
        part=columns[1],
        area_mm2=np.array(columns[2]),
        share=np.array(columns[3]),
        left=np.array(columns[4]),
        top=np.array(columns[5]),
        right=np.array(columns[6]),
        bottom=np.array(columns[7]),
        names=tuple(names),
    )


Box = tuple[float, float, float, float]


def _cells(box: Box, count: int) -> list[Box]:
    """A rectangle divided into ``count`` equal ones, as square as whole rows allow."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    shapes = [(n, count // n) for n in range(1, count + 1) if count % n == 0]
    across, down = min(shapes, key=lambda cells: abs(np.log(width / cells[0] * cells[1] / height)))
    w, h = width / across, height / down
    return [
        (left + i * w, top + j * h, left + (i + 1) * w, top + (j + 1) * h) for i in range(across) for j in range(down)
    ]


def squarified(areas: Sequence[float], side: float) -> list[Box]:
    """Rectangles of the given areas (largest first) that fill a square: rows laid along the shorter edge, each closed
    when one more would make its rectangles longer (Bruls, Huizing and van Wijk, Squarified Treemaps, 2000)."""
    boxes: list[Box] = []
    left, top, right, bottom = 0.0, 0.0, side, side
    rest = list(areas)
    while rest:
        short = min(right - left, bottom - top)
        taken = 1
        while taken < len(rest) and _longest(rest[: taken + 1], short) <= _longest(rest[:taken], short):
            taken += 1
        row, rest = rest[:taken], rest[taken:]
        thick = sum(row) / short if short else 0.0
        across = right - left >= bottom - top
        corner = top if across else left
        for area in row:
            step = area / thick if thick else 0.0
            boxes.append(
                (left, corner, left + thick, corner + step) if across else (corner, top, corner + step, top + thick)
            )
            corner += step
        left, top = (left + thick, top) if across else (left, top + thick)
    return boxes


def _longest(row: Sequence[float], short: float) -> float:
    """The largest aspect ratio in a row along an edge."""
    thick = sum(row) / short
    if not thick:
        return float("inf")
    return max(max(thick**2 / area, area / thick**2) if area else 1.0 for area in row)


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
        **{name: getattr(points, name) for name in ("die", "part", "share", "left", "top", "right", "bottom")},
        area=points.area_mm2,
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


HEIGHT = 320
WIDTH = 640
"""Width of the plot [px] assumed when placing labels: a page may be wider, and phones show no labels."""
KINDS = {"best": "best", "front": "front", "evaluated": "evaluated", "baseline": "other way to choose"}
LETTER, LINE, MARK = 6.0, 14.0, 7.0
"""A label's letter and line, and half a mark [px]."""

_Row = JsonDict


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
    looks: dict[str, _Row] = {
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


def _rows(points: DesignCloud) -> Iterator[_Row]:
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


def _names(sheet: Sheet, rows: list[_Row], align: str, x: Chart, y: Chart) -> Chart:
    alt = sheet.alt
    room = alt.condition("width > 480", alt.value(1), alt.value(0))
    text = sheet.rows(rows).mark_text(
        align=align, dx=-9 if align == "right" else 9, fontSize=11, color=sheet.theme.muted
    )
    return text.encode(x=x, y=y, text="words:N", opacity=room)


def _placed(rows: list[_Row]) -> dict[str, list[_Row]]:
    """The best point and the alternatives, labelled on the left or right where there is room."""
    out: dict[str, list[_Row]] = {"left": [], "right": []}
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


def _scaled(rows: list[_Row]) -> list[tuple[float, float]]:
    """Approximate positions of the points in the plot [px]."""
    pairs = []
    for name, size, pad in (("across", WIDTH, 20), ("value", HEIGHT, 14)):
        values = [float(row[name]) for row in rows]
        low, span = min(values), (max(values) - min(values)) or 1.0
        pairs.append([pad + (value - low) / span * (size - 2 * pad) for value in values])
    return [(x, HEIGHT - y) for x, y in zip(*pairs, strict=True)]


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
