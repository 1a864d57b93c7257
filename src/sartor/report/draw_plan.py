"""Figures of a plan: step by part, memory by stage, plans by time and memory, pipeline timeline."""

from __future__ import annotations

from sartor.report.frame import (
    FILE,
    Chart,
    Frame,
    Sheet,
    columns,
    falling,
    rows_height,
    stacked,
    time_unit,
    unique,
    when,
)
from sartor.report.plan_points import MemoryBars, MemoryFall, MemoryTracks, PipelineBars, PlanCloud, StepBars
from sartor.report.trace import KINDS
from sartor.units import GIB

LABELLED = 260
"""Most tasks that are labelled with their microbatch."""


def draw_step_bars(points: StepBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, the best plan first; the line is the 80% interval of the step."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.high_s.max()))
    labels = unique(points.plans)
    sums = columns(
        label=labels, size=points.time_s.sum(axis=1) * scale, low=points.low_s * scale, high=points.high_s * scale
    )
    tips = sheet.hover("label:N", "part:N", ("size:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"))
    whole = sheet.hover("label:N", *((f"{name}:Q", f"{words} [{unit}]", ".3g") for name, words in WHOLE))
    bars = stacked(labels, points.parts, points.time_s * scale)
    colour = sheet.colour("part", points.parts)
    bar = sheet.stack(bars, labels, sheet.x("size:Q", f"step time [{unit}]"), colour, tips)
    interval = sheet.interval(sums, sheet.names("label", labels), whole)
    return sheet.finish(bar + interval, points.title, height=rows_height(len(labels)))


WHOLE = (("size", "step"), ("low", "80% low"), ("high", "80% high"))


def draw_memory_bars(points: MemoryBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, one per stage (or run of equal stages), and the limit of a device."""
    sheet = Sheet.of(frame)
    bars = stacked(points.stages, points.parts, points.bytes / GIB)
    tips = sheet.hover("label:N", "part:N", ("size:Q", "size [GiB]", ".3g"))
    colour = sheet.colour("part", points.parts)
    bar = sheet.stack(bars, points.stages, sheet.x("size:Q", "memory of a device [GiB]"), colour, tips)
    return sheet.finish(bar + _limit(sheet, points.limit_bytes), points.title, height=rows_height(len(points.stages)))


def _limit(sheet: Sheet, limit_bytes: float, *, across: str = "x") -> Chart:
    """A dashed line at the limit of a device."""
    rows = [{"limit": limit_bytes / GIB, "what": "usable memory of a device"}]
    tips = sheet.hover(("what:N", " "), ("limit:Q", "[GiB]", ".4g"))
    rule = sheet.rows(rows).mark_rule(color=sheet.theme.vermillion, strokeDash=[5, 4], strokeWidth=1.5)
    return rule.encode(**{across: "limit:Q"}, tooltip=tips)


LEVELS = {"theory": "blue", "allocated": "green", "reserved": "orange", "device": "grey"}
"""Colours of the theme by level of memory."""


def draw_memory_fall(points: MemoryFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts at the sum of those before it."""
    sheet, labels = Sheet.of(frame), unique(points.parts)
    rows = falling(part=labels, level=points.levels, what=points.what, size=points.bytes / GIB)
    used = list(dict.fromkeys(points.levels))
    bar = sheet.bars(rows, "part", labels).encode(
        x=sheet.x("from:Q", "memory of a device [GiB]"),
        x2="to:Q",
        color=sheet.colour("level", used, [getattr(sheet.theme, LEVELS[level]) for level in used]),
        tooltip=sheet.hover("part:N", ("size:Q", "size [GiB]", ".3g"), ("to:Q", "sum so far [GiB]", ".4g"), "what:N"),
    )
    crowded = 0.85 * points.limit_bytes / GIB
    words = [
        sheet.rows([row for row in rows if (row["to"] > crowded) is late])
        .mark_text(align="right" if late else "left", dx=-5 if late else 5, color=sheet.theme.muted, fontSize=11)
        .encode(
            y=sheet.names("part", labels),
            x="from:Q" if late else "to:Q",
            text=sheet.alt.Text("size:Q", format=".3~g"),
        )
        for late in (False, True)
    ]
    chart = sheet.alt.layer(bar, *words, _limit(sheet, points.limit_bytes))
    return sheet.finish(chart, points.title, height=rows_height(len(labels)))


def draw_plan_cloud(points: PlanCloud, frame: Frame = FILE) -> Chart:
    """Plans as points of step time and memory, with the Pareto front, best plan and memory limit."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.step_s.max()))
    theme = sheet.theme
    words = [f"tp {degree}" for degree in points.tp.tolist()]
    time, memory = points.step_s * scale, points.device_bytes / GIB
    rows = columns(plan=points.labels, time=time, memory=memory, tp=words, front=points.on_front)
    log = "log" if time.max() / time.min() > 3 else "linear"
    x = sheet.x("time:Q", f"predicted step [{unit}]", 6, type=log, zero=False, nice=True, padding=24)
    y = sheet.y("memory:Q", "fullest device [GiB]", zero=True)
    tips = sheet.hover("plan:N", ("time:Q", f"step [{unit}]", ".4g"), ("memory:Q", "memory [GiB]", ".3g"))
    degrees = [f"tp {degree}" for degree in sorted(set(points.tp.tolist()))]
    cloud = sheet.rows([row for row in rows if not row["front"]]).mark_point(filled=True, size=42, opacity=0.75)
    edge = sheet.rows(sorted((row for row in rows if row["front"]), key=lambda row: float(row["time"])))
    line = edge.mark_line(color=theme.ink, strokeWidth=1.2, interpolate="step-after", opacity=0.7)
    marks = edge.mark_point(color=theme.ink, size=22, opacity=0.9)
    star = sheet.rows([rows[points.best] | {"text": "best"}])
    best = star.mark_point(color=theme.vermillion, filled=True, size=130, shape="diamond", opacity=1)
    label = star.mark_text(align="right", dx=-9, dy=4, color=theme.vermillion, fontWeight="bold", fontSize=12)
    layers = [
        line.encode(x=x, y=y),
        marks.encode(x=x, y=y, tooltip=tips),
        cloud.encode(x=x, y=y, tooltip=tips, color=sheet.colour("tp", degrees)),
        best.encode(x=x, y=y, tooltip=tips),
        label.encode(x=x, y=y, text="text:N"),
        _limit(sheet, points.limit_bytes, across="y"),
    ]
    return sheet.finish(sheet.alt.layer(*layers), points.title, height=320)


def draw_pipeline(points: PipelineBars, frame: Frame = FILE) -> Chart:
    """Stages as rows, tasks as boxes with their microbatch."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.end_s.max()))
    theme, start, end = sheet.theme, points.start_s * scale, points.end_s * scale
    rows = columns(
        line=[f"stage {stage}" for stage in points.stage.tolist()],
        what=points.kind,
        micro=points.microbatch,
        chunk=points.chunk,
        start=start,
        end=end,
        middle=(start + end) / 2,
        took=end - start,
    )
    height = max(min(26, 420 // points.num_stages), 9)
    lines = [f"stage {stage}" for stage in range(points.num_stages)]
    tips = sheet.hover("line:N", "what:N", ("micro:Q", "microbatch"), "chunk:Q", *when(unit))
    used = [kind for kind in KINDS.values() if kind in points.kind]
    x = sheet.x("start:Q", f"time since the step began [{unit}]", 8)
    look = {"height": height - 3, "stroke": theme.surface, "strokeWidth": 0.4}
    chart = sheet.spans(rows, lines, x, sheet.colour("what", used), tips, **look)
    if len(rows) <= LABELLED:
        work = sheet.rows([row for row in rows if row["what"] in ("forward", "backward", "weight gradient")])
        numbers = work.mark_text(fontSize=9, color=theme.surface)
        chart += numbers.encode(y=sheet.names("line", lines), x="middle:Q", text="micro:Q")
    return sheet.finish(chart, points.title, height=max(height * points.num_stages, 60))


def draw_memory_tracks(points: MemoryTracks, frame: Frame = FILE) -> Chart:
    """Memory over the step, and the limit of a device."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(max(float(times[-1]) for times in points.times_s))
    words = [f"stage {stage}" for stage in points.stages]
    rows = [
        row
        for word, times, sizes in zip(words, points.times_s, points.bytes, strict=True)
        for row in columns(stage=[word] * len(times), time=times * scale, memory=sizes / GIB)
    ]
    line = (
        sheet.rows(rows)
        .mark_line(interpolate="step-after", strokeWidth=1.4)
        .encode(
            x=sheet.x("time:Q", f"time since the step began [{unit}]", 8),
            y=sheet.y("memory:Q", "states and activations [GiB]", 4, zero=True),
            color=sheet.colour("stage", words, list(sheet.theme.series[: len(words)])),
            tooltip=sheet.hover("stage:N", ("time:Q", f"at [{unit}]", ".4g"), ("memory:Q", "holds [GiB]", ".3g")),
        )
    )
    return sheet.finish(line + _limit(sheet, points.limit_bytes, across="y"), points.title, height=190)
