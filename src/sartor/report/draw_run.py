"""Figures of a diagnosed run: waterfall, slow operators, timeline."""

from __future__ import annotations

import numpy as np

from sartor.report.frame import FILE, Chart, Frame, Sheet, rows_height, time_unit, unique
from sartor.report.run_points import IDEAL, RunFall, RunTimeline, SlowOperators


def draw_run_fall(points: RunFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts where the previous ends; a run faster than predicted steps back."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.seconds.sum()))
    alt, theme = sheet.alt, sheet.theme
    ends = np.cumsum(points.seconds) * scale
    labels = unique(points.parts)
    known = labels[0] == IDEAL
    rows = [
        {"part": label, "level": _level(label, took, known), "what": what or "", "from": float(end - took * scale),
         "to": float(end), "time": float(took) * scale, "share": float(took / points.seconds.sum())}
        for label, what, end, took in zip(labels, points.what, ends, points.seconds, strict=True)
    ]  # fmt: skip
    paint = {IDEAL: theme.blue, "taken": theme.blue, "lost": theme.vermillion, "gained": theme.green}
    used = [level for level in paint if any(row["level"] == level for row in rows)]
    tips = sheet.hover("part:N", ("time:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"), "what:N")
    bar = sheet.bars(rows, "part", labels).encode(
        x=alt.X("from:Q", title=f"step [{unit}]", axis=alt.Axis(tickCount=7)),
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
    columns = zip(labels, points.measured_s, points.predicted_s, points.low_s, points.high_s, strict=True)
    rows = [
        {"operator": label, "measured": float(took) * scale, "predicted": float(told) * scale,
         "low": float(low) * scale, "high": float(high) * scale, "ratio": float(took / told)}
        for label, took, told, low, high in columns
    ]  # fmt: skip
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
    alt = sheet.alt
    rows = [
        {"lane": lane, "what": kind, "start": a * scale, "end": b * scale, "took": (b - a) * scale}
        for lane, kind, a, b in zip(
            points.lane, points.kind, points.begin_s.tolist(), points.end_s.tolist(), strict=True
        )
    ]
    kinds = list(dict.fromkeys(points.kind))
    boxes = (
        sheet.rows(rows)
        .mark_bar(height=30)
        .encode(
            y=sheet.names("lane", points.lanes),
            x=alt.X("start:Q", title=f"time since the step began [{unit}]", axis=alt.Axis(tickCount=8)),
            x2="end:Q",
            color=sheet.colour("what", kinds),
            tooltip=sheet.hover(
                "lane:N", "what:N", ("start:Q", f"starts [{unit}]", ".4g"), ("took:Q", f"takes [{unit}]", ".3g")
            ),
        )
    )
    return sheet.finish(boxes, points.title, height=44 * len(points.lanes))
