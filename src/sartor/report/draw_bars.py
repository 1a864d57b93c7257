"""Bar figures: time by operator, gain by finding, predicted and published values by case."""

from __future__ import annotations

import numpy as np

from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, rows_height, stacked, time_unit, unique
from sartor.report.points import CATEGORIES, Gains, OperatorTimes, Published


def draw_operator_times(points: OperatorTimes, frame: Frame = FILE) -> Chart:
    """Stacked bars, longest operator first; the line at the end is the 80% interval of the total."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(np.max(points.high_s, initial=0.0)))
    theme = sheet.theme
    shares = points.time_s.sum(axis=1) / points.step_s if points.step_s else np.zeros(len(points.names))
    labels = unique(f"{name}  {100 * share:.1f}%" for name, share in zip(points.names, shares, strict=True))
    used = [c for c, total in zip(CATEGORIES, points.time_s.sum(axis=0), strict=True) if total > 0]
    paint = (theme.blue, theme.sky, theme.green, theme.vermillion, theme.orange, theme.purple)
    colours = dict(zip(CATEGORIES, paint, strict=True))
    sums = points.time_s.sum(axis=1)
    bars = [
        row | {"share": row["size"] / scale / points.step_s}
        for row in stacked(labels, CATEGORIES, points.time_s * scale)
    ]
    totals = columns(
        label=labels, size=sums * scale, low=points.low_s * scale, high=points.high_s * scale, share=shares
    )
    time, share = ("size:Q", f"time [{unit}]", ".3g"), ("share:Q", "share", ".1%")
    x = sheet.x("size:Q", f"time per microbatch [{unit}]")
    colour = sheet.colour("part", used, [colours[category] for category in used])
    bar = sheet.stack(bars, labels, x, colour, sheet.hover("label:N", "part:N", time, share))
    ends = ((f"{end}:Q", f"80% {end} [{unit}]", ".3g") for end in ("low", "high"))
    interval = sheet.interval(totals, sheet.names("label", labels), sheet.hover("label:N", time, *ends, share))
    return sheet.finish(bar + interval, points.title, height=rows_height(len(labels)))


def draw_gains(points: Gains, frame: Frame = FILE) -> Chart:
    """One bar per finding: predicted share of the step that its fix saves."""
    sheet = Sheet.of(frame)
    theme = sheet.theme
    colours = {"error": theme.vermillion, "warn": theme.orange, "info": theme.sky}
    labels = unique(points.rules)
    rows = columns(finding=labels, grade=points.grades, message=points.messages, share=points.gain_fraction)
    used = [grade for grade in colours if grade in points.grades]
    bars = sheet.bars(rows, "finding", labels).encode(
        x=sheet.x("share:Q", "share of the step that the fix saves", 5, ".1~%"),
        color=sheet.colour("grade", used, [colours[grade] for grade in used]),
        tooltip=sheet.hover("finding:N", "grade:N", ("share:Q", "of the step", ".2%"), "message:N"),
    )
    return sheet.finish(bars, points.title, height=rows_height(len(labels)))


def draw_published(points: Published, frame: Frame = FILE) -> Chart:
    """Predicted values (discs, with 80% interval) and published ones (diamonds), one line per case."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    labels = unique(points.cases)
    y = sheet.names("case", labels)
    what = ["predicted"] * len(labels)
    ours = columns(case=labels, value=points.predicted, low=points.low, high=points.high, what=what)
    cited = columns(case=labels, value=points.published, what=["published"] * len(labels))
    theirs = [row for row in cited if np.isfinite(row["value"])]
    words = ["predicted", "published"] if theirs else ["predicted"]
    x = sheet.x("value:Q", points.unit, 6, zero=False, padding=12)
    dots = (
        sheet.rows([*ours, *theirs])
        .mark_point(filled=True, size=85, opacity=1, stroke=theme.surface, strokeWidth=0.8)
        .encode(
            y=y,
            x=x,
            color=sheet.colour("what", words, [theme.blue, theme.vermillion][: len(words)]),
            shape=alt.Shape(
                "what:N", scale=alt.Scale(domain=words, range=["circle", "diamond"][: len(words)]), legend=None
            ),
            tooltip=sheet.hover("case:N", "what:N", ("value:Q", None, ".4g")),
        )
    )
    rules = (
        sheet.rows(ours)
        .mark_rule(color=theme.blue, strokeWidth=2, opacity=0.55)
        .encode(y=y, x=alt.X("low:Q", title=points.unit), x2="high:Q")
    )
    return sheet.finish(rules + dots, points.title, height=rows_height(len(labels)))
