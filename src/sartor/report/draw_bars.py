"""Bar figures: time by operator, gain by finding, predicted and published values by case."""

from __future__ import annotations

import numpy as np

from sartor.report.frame import FILE, Chart, Frame, Sheet, rows_height, time_unit, unique
from sartor.report.points import CATEGORIES, Gains, OperatorTimes, Published


def draw_operator_times(points: OperatorTimes, frame: Frame = FILE) -> Chart:
    """Stacked bars, longest operator first; the line at the end is the 80% interval of the total."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(np.max(points.high_s, initial=0.0)))
    alt, theme = sheet.alt, sheet.theme
    shares = points.time_s.sum(axis=1) / points.step_s if points.step_s else np.zeros(len(points.names))
    labels = unique(f"{name}  {100 * share:.1f}%" for name, share in zip(points.names, shares, strict=True))
    used = [c for c, total in zip(CATEGORIES, points.time_s.sum(axis=0), strict=True) if total > 0]
    colours = dict(
        zip(
            CATEGORIES,
            (theme.blue, theme.sky, theme.green, theme.vermillion, theme.orange, theme.purple),
            strict=True,
        )
    )
    bars = [
        {
            "operator": label,
            "part": part,
            "order": j,
            "time": float(row[j]) * scale,
            "share": float(row[j]) / points.step_s,
        }
        for label, row in zip(labels, points.time_s, strict=True)
        for j, part in enumerate(CATEGORIES)
        if row[j] > 0
    ]
    totals = [
        {"operator": label, "time": t * scale, "low": lo * scale, "high": hi * scale, "share": t / points.step_s}
        for label, t, lo, hi in zip(
            labels, points.time_s.sum(axis=1).tolist(), points.low_s.tolist(), points.high_s.tolist(), strict=True
        )
    ]
    y = sheet.names("operator", labels)
    x = alt.X("time:Q", title=f"time per microbatch [{unit}]", axis=alt.Axis(tickCount=7))
    bar = sheet.bars(bars, "operator", labels).encode(
        x=x,
        color=sheet.colour("part", used, [colours[c] for c in used]),
        order=alt.Order("order:Q"),
        tooltip=sheet.hover("operator:N", "part:N", ("time:Q", f"time [{unit}]", ".3g"), ("share:Q", "share", ".1%")),
    )
    tips = sheet.hover(
        "operator:N",
        ("time:Q", f"time [{unit}]", ".3g"),
        ("low:Q", f"80% low [{unit}]", ".3g"),
        ("high:Q", f"80% high [{unit}]", ".3g"),
        ("share:Q", "share", ".1%"),
    )
    return sheet.finish(bar + sheet.interval(totals, y, tips), points.title, height=rows_height(len(labels)))


def draw_gains(points: Gains, frame: Frame = FILE) -> Chart:
    """One bar per finding: predicted share of the step that its fix saves."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    colours = {"error": theme.vermillion, "warn": theme.orange, "info": theme.sky}
    labels = unique(points.rules)
    rows = [
        {"finding": label, "grade": grade, "message": message, "share": share}
        for label, grade, message, share in zip(
            labels, points.grades, points.messages, points.gain_fraction.tolist(), strict=True
        )
    ]
    used = [grade for grade in colours if grade in points.grades]
    bars = sheet.bars(rows, "finding", labels).encode(
        x=alt.X("share:Q", title="share of the step that the fix saves", axis=alt.Axis(format=".1~%", tickCount=5)),
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
    ours = [
        {"case": case, "value": p, "low": lo, "high": hi, "what": "predicted"}
        for case, p, lo, hi in zip(
            labels, points.predicted.tolist(), points.low.tolist(), points.high.tolist(), strict=True
        )
    ]
    theirs = [
        {"case": case, "value": v, "what": "published"}
        for case, v in zip(labels, points.published.tolist(), strict=True)
        if np.isfinite(v)
    ]
    words = ["predicted", "published"] if theirs else ["predicted"]
    x = alt.X("value:Q", title=points.unit, scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(tickCount=6))
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
