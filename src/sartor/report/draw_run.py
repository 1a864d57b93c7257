"""Figures of a diagnosed run: waterfall, slow operators, timeline."""

from __future__ import annotations

from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, falling, rows_height, time_unit, unique, when
from sartor.report.run_points import IDEAL, RunFall, RunTimeline, SlowOperators


def draw_run_fall(points: RunFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts where the previous ends; a run faster than predicted steps back."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.seconds.sum()))
    theme, labels = sheet.theme, unique(points.parts)
    levels = [_level(label, seconds, labels[0] == IDEAL) for label, seconds in zip(labels, points.seconds, strict=True)]
    rows = falling(part=labels, level=levels, what=[what or "" for what in points.what], size=points.seconds * scale)
    paint = {IDEAL: theme.blue, "taken": theme.blue, "lost": theme.vermillion, "gained": theme.green}
    used = [level for level in paint if level in levels]
    tips = sheet.hover("part:N", ("size:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"), "what:N")
    bar = sheet.bars(rows, "part", labels).encode(
        x=sheet.x("from:Q", f"step [{unit}]"),
        x2="to:Q",
        color=sheet.colour("level", used, [paint[level] for level in used]),
        tooltip=tips,
    )
    return sheet.finish(bar, points.title, height=rows_height(len(labels)))


def _level(label: str, seconds: float, known: bool) -> str:
    """The colour class of a part, relative to the ideal step if that is known."""
    if label == IDEAL:
        return IDEAL
    return "gained" if seconds < 0 else "lost" if known else "taken"


def draw_slow_operators(points: SlowOperators, frame: Frame = FILE) -> Chart:
    """Measured time as a bar, the prediction as a tick with its 80% interval."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.measured_s.max()))
    alt, theme = sheet.alt, sheet.theme
    labels = unique(points.names)
    rows = columns(
        operator=labels,
        measured=points.measured_s * scale,
        predicted=points.predicted_s * scale,
        low=points.low_s * scale,
        high=points.high_s * scale,
        ratio=points.measured_s / points.predicted_s,
    )
    y = sheet.names("operator", labels)
    tips = sheet.hover(
        "operator:N",
        ("measured:Q", f"measured [{unit}]", ".3g"),
        ("predicted:Q", f"predicted [{unit}]", ".3g"),
        ("ratio:Q", "measured / predicted", ".2f"),
    )
    base = sheet.rows(rows)
    bar = sheet.bars(rows, "operator", labels, theme.blue).encode(
        x=alt.X("measured:Q", title=f"one call [{unit}]: bar measured, tick predicted (80%)"),
        tooltip=tips,
    )
    tick = base.mark_tick(color=theme.vermillion, thickness=3, height=14).encode(y=y, x="predicted:Q", tooltip=tips)
    chart = alt.layer(bar, sheet.interval(rows, y, tips), tick)
    return sheet.finish(chart, points.title, height=rows_height(len(labels)))


def draw_run_timeline(points: RunTimeline, frame: Frame = FILE) -> Chart:
    """One row per lane, one box per activity."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.end_s.max()))
    start, end = points.begin_s * scale, points.end_s * scale
    rows = columns(line=points.lane, what=points.kind, start=start, end=end, took=end - start)
    tips = sheet.hover("line:N", "what:N", *when(unit))
    colour = sheet.colour("what", list(dict.fromkeys(points.kind)))
    x = sheet.x("start:Q", f"time since the step began [{unit}]", 8)
    boxes = sheet.spans(rows, points.lanes, x, colour, tips, height=30)
    return sheet.finish(boxes, points.title, height=44 * len(points.lanes))
