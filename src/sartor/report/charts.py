"""Figures: each draws a record of :mod:`sartor.report.points` with altair (extra ``report``).

One picture serves the page (``PAGE``: as wide as its column, colours named for light and dark) and files
(``FILE``: fixed width, light, with its title inside). Axes carry units; every mark has a tooltip.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sartor.errors import MissingExtraError
from sartor.report.palette import CSS, DARK, LIGHT, Theme
from sartor.report.points import CATEGORIES, Gains, OperatorTimes, Pareto, Published, Roofline, Sawtooth

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
TITLE_WIDTH = 84
"""Characters of a title's line in a file 760 px wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where a figure goes: its colours, its width in px (or as wide as what holds it), whether it shows its title."""

    theme: Theme = LIGHT
    width: int | Literal["container"] = 640
    titled: bool = True


PAGE = Frame(theme=CSS, width="container", titled=False)
FILE = Frame()
FILE_DARK = Frame(theme=DARK)


def draw_operator_times(points: OperatorTimes, frame: Frame = FILE) -> Any:
    """Stacked bars, longest operator first; the rule at a bar's end is the 80% interval of its total."""
    alt = _altair()
    theme, unit, scale = frame.theme, *_time_unit(float(np.max(points.high_s, initial=0.0)))
    shares = points.time_s.sum(axis=1) / points.step_s if points.step_s else np.zeros(len(points.names))
    labels = _unique(f"{name}  {100 * share:.1f}%" for name, share in zip(points.names, shares, strict=True))
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
    y = alt.Y("operator:N", sort=labels, title=None, axis=_names_axis(alt))
    x = alt.X("time:Q", title=f"time per step [{unit}]", axis=alt.Axis(tickCount=7))
    bar = (
        _chart(alt, bars)
        .mark_bar(height=_bar_height(len(labels)))
        .encode(
            y=y,
            x=x,
            color=_colour(alt, "part", used, [colours[c] for c in used]),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("operator:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("time:Q", title=f"time [{unit}]", format=".3g"),
                alt.Tooltip("share:Q", title="share of step", format=".1%"),
            ],
        )
    )
    tips = [
        alt.Tooltip("operator:N"),
        alt.Tooltip("time:Q", title=f"time [{unit}]", format=".3g"),
        alt.Tooltip("low:Q", title=f"80% low [{unit}]", format=".3g"),
        alt.Tooltip("high:Q", title=f"80% high [{unit}]", format=".3g"),
        alt.Tooltip("share:Q", title="share of step", format=".1%"),
    ]
    return _finish(
        alt, bar + _interval(alt, totals, y, theme, tips), points.title, frame, height=_rows_height(len(labels))
    )


def draw_roofline(points: Roofline, frame: Frame = FILE) -> Any:
    """Log-log: bandwidth slope and compute ceiling, the ridge, GEMMs now (discs) and after (open diamonds)."""
    alt = _altair()
    theme, ridge = frame.theme, points.ridge_flops_per_byte
    peak, bandwidth = points.peak_flops_per_s / 1e12, points.hbm_bytes_per_s / 1e12
    intensity, rate = points.intensity_flops_per_byte, points.achieved_flops_per_s / 1e12
    x_low, x_high = _decade_span([*intensity.tolist(), ridge], low=0.6, high=2.0)
    y_low, y_high = _decade_span([*rate.tolist(), peak], low=0.5, high=1.6)
    x_low = min(x_low, ridge / 4)
    y_low = min(y_low, x_low * bandwidth)
    x_scale = alt.Scale(type="log", domain=[x_low, x_high], nice=False)
    y_scale = alt.Scale(type="log", domain=[y_low, y_high], nice=False)
    x = alt.X(
        "intensity:Q",
        scale=x_scale,
        title="arithmetic intensity [FLOP per byte of HBM traffic]",
        axis=_log_axis(alt, x_low, x_high),
    )
    y = alt.Y("rate:Q", scale=y_scale, title="achieved [TFLOP/s]", axis=_log_axis(alt, y_low, y_high))
    roof = (
        _chart(
            alt,
            [
                {"intensity": x_low, "rate": x_low * bandwidth},
                {"intensity": ridge, "rate": peak},
                {"intensity": x_high, "rate": peak},
            ],
        )
        .mark_line(color=theme.muted, strokeWidth=2)
        .encode(x=x, y=y)
    )
    ridge_rule = (
        _chart(alt, [{"intensity": ridge, "rate": y_low, "top": peak}])
        .mark_rule(color=theme.muted, strokeDash=[3, 4])
        .encode(x=x, y=y, y2="top:Q")
    )
    middle = float(np.sqrt(x_low * ridge))
    roomy = alt.ExprRef(expr="width < 330 ? 0 : 1")
    notes = [
        (
            {"intensity": x_high, "rate": peak, "text": f"peak {peak:,.0f} TFLOP/s ({points.dtype}, dense)"},
            "right",
            -4,
            -9,
            1.0,
        ),
        ({"intensity": ridge, "rate": y_low, "text": f"ridge {ridge:,.0f} FLOP/B"}, "left", 6, -9, 1.0),
        ({"intensity": middle, "rate": middle * bandwidth, "text": f"HBM {bandwidth:.2f} TB/s"}, "left", 10, 4, roomy),
    ]
    texts = [
        _chart(alt, [row])
        .mark_text(align=align, dx=dx, dy=dy, color=theme.muted, fontSize=11, opacity=room)
        .encode(x=x, y=y, text="text:N")
        for row, align, dx, dy, room in notes
    ]
    groups = _top_names(points, limit=6)
    rows = [
        {
            "operator": name,
            "group": name if name in groups else "other",
            "pass": pass_,
            "when": "after" if is_after else "now",
            "intensity": i,
            "rate": r,
            "peak": r / peak,
            "share": s,
        }
        for name, pass_, i, r, s, is_after in zip(
            points.names,
            points.passes,
            intensity.tolist(),
            rate.tolist(),
            points.share.tolist(),
            points.after.tolist(),
            strict=True,
        )
    ]
    domain = [*groups, "other"] if any(row["group"] == "other" for row in rows) else groups
    palette = [*theme.series[:6][: len(groups)], theme.grey]
    tips = [
        alt.Tooltip("operator:N"),
        alt.Tooltip("pass:N"),
        alt.Tooltip("when:N", title="shape"),
        alt.Tooltip("intensity:Q", title="FLOP per byte", format=".4g"),
        alt.Tooltip("rate:Q", title="achieved [TFLOP/s]", format=".4g"),
        alt.Tooltip("peak:Q", title="share of peak", format=".1%"),
        alt.Tooltip("share:Q", title="share of step", format=".1%"),
    ]
    encoding = {"x": x, "y": y, "color": _colour(alt, "group", domain, palette[: len(domain)]), "tooltip": tips}
    now = _chart(alt, [row for row in rows if row["when"] == "now"])
    dots = [now.mark_point(filled=True, size=75, opacity=0.85).encode(**encoding)]
    if points.after.any():
        after = _chart(alt, [row for row in rows if row["when"] == "after"])
        dots.append(after.mark_point(shape="diamond", filled=False, size=190, strokeWidth=1.8).encode(**encoding))
    return _finish(alt, alt.layer(roof, ridge_rule, *texts, *dots), points.title, frame, height=340)


def draw_sawtooth(points: Sawtooth, frame: Frame = FILE) -> Any:
    """FLOP rate against one field: the model's value now, and after the change, stand on the curve."""
    alt = _altair()
    theme = frame.theme
    rows = [
        {"value": v, "rate": r, "time": t * 1e3}
        for v, r, t in zip(
            points.values.tolist(), (points.flops_per_s / 1e12).tolist(), points.time_s.tolist(), strict=True
        )
    ]
    low, high = (float(edge) / 1e12 for edge in (points.flops_per_s.min(), points.flops_per_s.max()))
    pad = max(0.08 * (high - low), 1e-3 * high)
    x = alt.X(
        "value:Q",
        title=points.field,
        scale=alt.Scale(domain=[float(points.values.min()), float(points.values.max())], nice=False),
        axis=alt.Axis(format=",d", tickCount=6),
    )
    y = alt.Y(
        "rate:Q",
        title="achieved [TFLOP/s]",
        scale=alt.Scale(domain=[max(low - pad, 0.0), high + 3.5 * pad], nice=False, zero=False),
        axis=alt.Axis(tickCount=5),
    )
    tips = [
        alt.Tooltip("value:Q", title=points.field, format=",d"),
        alt.Tooltip("rate:Q", title="achieved [TFLOP/s]", format=".4g"),
        alt.Tooltip("time:Q", title="time [ms]", format=",.4g"),
    ]
    base = _chart(alt, rows)
    dense = len(rows) > 120
    line = base.mark_line(color=theme.blue, strokeWidth=0.7 if dense else 1.3, opacity=0.35 if dense else 0.75)
    line = line.encode(x=x, y=y)
    dots = base.mark_point(color=theme.blue, filled=True, size=16).encode(x=x, y=y, tooltip=tips)
    layers = [line, dots]
    low_value, span = float(points.values.min()), float(np.ptp(points.values)) or 1.0
    marked = [("now", points.now, theme.vermillion), ("after", points.after, theme.green)]
    wanted = sorted(((value, word, colour) for word, value, colour in marked if value is not None), key=lambda w: w[0])
    for place, (value, word, colour) in enumerate(wanted):
        at = int(np.argmin(np.abs(points.values - value)))
        row = rows[at] | {"text": f"{word}: {rows[at]['value']:,.0f}"}
        side = _label_side((value - low_value) / span, place, len(wanted))
        spot = _chart(alt, [row])
        layers.append(spot.mark_rule(color=colour, strokeDash=[3, 3], opacity=0.7).encode(x=x))
        layers.append(spot.mark_point(color=colour, filled=True, size=110, opacity=1).encode(x=x, y=y, tooltip=tips))
        layers.append(
            spot.mark_text(color=colour, fontWeight="bold", fontSize=12, **side).encode(
                x=x, y=alt.value(9), text="text:N"
            )
        )
    return _finish(alt, alt.layer(*layers), points.title, frame, height=260)


def _label_side(position: float, place: int, of: int) -> dict[str, Any]:
    """Where a marked value's label stands at the top of its rule: away from its neighbour's and inside the plot."""
    outward_left = place == 0 if of > 1 else position > 0.5
    if of > 1 and outward_left and position < 0.22:
        return {"align": "left", "dx": 7, "dy": 16}
    if of > 1 and not outward_left and position > 0.78:
        return {"align": "right", "dx": -7, "dy": 16}
    return {"align": "right", "dx": -7} if outward_left else {"align": "left", "dx": 7}


def draw_pareto(points: Pareto, frame: Frame = FILE) -> Any:
    """Speedup against change in parameters; colour counts the fields changed; the best and the smallest edit named."""
    alt = _altair()
    theme = frame.theme
    rows = [
        {
            "change": label,
            "params": p,
            "speedup": s,
            "low": lo if np.isfinite(lo) else None,
            "high": hi if np.isfinite(hi) else None,
            "fields": f"{n} field{'s' if n != 1 else ''}",
            "front": bool(f),
        }
        for label, p, s, lo, hi, n, f in zip(
            points.labels,
            points.params_change.tolist(),
            points.speedup.tolist(),
            points.low.tolist(),
            points.high.tolist(),
            points.num_changed.tolist(),
            points.on_front.tolist(),
            strict=True,
        )
    ]
    largest_edits_first = sorted(range(len(rows)), key=lambda i: -int(points.num_changed[i]))
    domain = sorted({row["fields"] for row in rows}, key=lambda word: int(word.split()[0]))
    least, most = (float(edge([*points.params_change.tolist(), 0.0])) for edge in (np.min, np.max))
    margin = max(0.08 * (most - least), 0.001)
    named = [index for index, _, _ in _named(points)]
    top = float(np.max([*points.speedup.tolist(), *points.high[named].tolist(), 1.0]))
    floor = float(np.min([*points.speedup.tolist(), *points.low[named].tolist(), 1.0]))
    span = max(top - floor, 0.01)
    x = alt.X(
        "params:Q",
        title="change in parameters",
        scale=alt.Scale(domain=[least - margin, most + margin], nice=False),
        axis=alt.Axis(format="+.1%", tickCount=5),
    )
    y = alt.Y(
        "speedup:Q",
        title="speedup",
        scale=alt.Scale(domain=[floor - 0.06 * span, top + 0.2 * span], zero=False, nice=False),
        axis=alt.Axis(format=".2f", tickCount=6),
    )
    tips = [
        alt.Tooltip("change:N"),
        alt.Tooltip("speedup:Q", format=".3f"),
        alt.Tooltip("low:Q", title="80% low", format=".3f"),
        alt.Tooltip("high:Q", title="80% high", format=".3f"),
        alt.Tooltip("params:Q", title="parameters", format="+.2%"),
        alt.Tooltip("fields:N", title="changed"),
    ]
    today = _chart(alt, [{"params": 0.0, "speedup": 1.0, "text": "today"}])
    base_rule = today.mark_rule(color=theme.muted, strokeDash=[3, 4]).encode(y=y)
    base_dot = today.mark_point(shape="cross", filled=True, size=80, color=theme.ink).encode(x=x, y=y)
    base_text = today.mark_text(align="left", dx=9, dy=10, color=theme.muted, fontSize=11).encode(
        x=x, y=y, text="text:N"
    )
    dots = (
        _chart(alt, [rows[i] for i in largest_edits_first])
        .mark_point(filled=True, size=80, stroke=theme.surface, strokeWidth=0.8)
        .encode(
            x=x,
            y=y,
            color=_colour(alt, "fields", domain, _by_count(theme, len(domain))),
            opacity=alt.condition("datum.front", alt.value(0.95), alt.value(0.35)),
            tooltip=tips,
        )
    )
    layers = [base_rule, dots, base_dot, base_text]
    for index, word, dy in _named(points):
        row = rows[index] | {"text": word}
        side = {"align": "left", "dx": 11} if row["params"] <= (least + most) / 2 else {"align": "right", "dx": -11}
        layers.append(
            _chart(alt, [row])
            .mark_text(color=theme.ink, fontWeight="bold", fontSize=12, dy=dy, **side)
            .encode(x=x, y=y, text="text:N")
        )
        layers.append(
            _chart(alt, [row])
            .mark_rule(color=theme.ink, opacity=0.45)
            .encode(x=x, y=alt.Y("low:Q", title="speedup"), y2="high:Q", tooltip=tips)
        )
        layers.append(
            _chart(alt, [row])
            .mark_point(filled=False, size=170, color=theme.ink, strokeWidth=1.4)
            .encode(x=x, y=y, tooltip=tips)
        )
    return _finish(alt, alt.layer(*layers), points.title, frame, height=320)


def _by_count(theme: Theme, entries: int) -> list[str]:
    """From calm to loud: more fields changed, a larger intervention."""
    colours = [theme.green, theme.blue, theme.sky, theme.orange, theme.vermillion, theme.purple]
    return [colours[min(i, len(colours) - 1)] for i in range(entries)]


def _named(points: Pareto) -> list[tuple[int, str, int]]:
    if points.best < 0:
        return [(points.smallest_edit, "smallest edit", 0)] if points.smallest_edit >= 0 else []
    if points.smallest_edit in (-1, points.best):
        return [(points.best, "best" if points.smallest_edit < 0 else "best, and smallest edit", -9)]
    return [(points.best, "best", -9), (points.smallest_edit, "smallest edit", 11)]


def draw_gains(points: Gains, frame: Frame = FILE) -> Any:
    """One bar for each finding: the share of the step its fix would save, as predicted."""
    alt = _altair()
    theme = frame.theme
    colours = {"error": theme.vermillion, "warn": theme.orange, "info": theme.sky}
    labels = _unique(points.rules)
    rows = [
        {"finding": label, "grade": grade, "message": message, "share": share, "time": seconds * 1e3}
        for label, grade, message, share, seconds in zip(
            labels, points.grades, points.messages, points.gain_fraction.tolist(), points.gain_s.tolist(), strict=True
        )
    ]
    used = [grade for grade in colours if grade in points.grades]
    bars = (
        _chart(alt, rows)
        .mark_bar(height=_bar_height(len(labels)))
        .encode(
            y=alt.Y("finding:N", sort=labels, title=None, axis=_names_axis(alt)),
            x=alt.X("share:Q", title="share of the step its fix saves", axis=alt.Axis(format=".1~%", tickCount=5)),
            color=_colour(alt, "grade", used, [colours[grade] for grade in used]),
            tooltip=[
                alt.Tooltip("finding:N"),
                alt.Tooltip("grade:N"),
                alt.Tooltip("share:Q", title="of the step", format=".2%"),
                alt.Tooltip("time:Q", title="saves [ms]", format=".3g"),
                alt.Tooltip("message:N"),
            ],
        )
    )
    return _finish(alt, bars, points.title, frame, height=_rows_height(len(labels)))


def draw_published(points: Published, frame: Frame = FILE) -> Any:
    """Predicted (disc, with its 80% interval) beside published (diamond), one line a case."""
    alt = _altair()
    theme = frame.theme
    labels = _unique(points.cases)
    y = alt.Y("case:N", sort=labels, title=None, axis=_names_axis(alt))
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
        _chart(alt, [*ours, *theirs])
        .mark_point(filled=True, size=85, opacity=1, stroke=theme.surface, strokeWidth=0.8)
        .encode(
            y=y,
            x=x,
            color=_colour(alt, "what", words, [theme.blue, theme.vermillion][: len(words)]),
            shape=alt.Shape(
                "what:N", scale=alt.Scale(domain=words, range=["circle", "diamond"][: len(words)]), legend=None
            ),
            tooltip=[alt.Tooltip("case:N"), alt.Tooltip("what:N"), alt.Tooltip("value:Q", format=".4g")],
        )
    )
    rules = (
        _chart(alt, ours)
        .mark_rule(color=theme.blue, strokeWidth=2, opacity=0.55)
        .encode(y=y, x=alt.X("low:Q", title=points.unit), x2="high:Q")
    )
    return _finish(alt, rules + dots, points.title, frame, height=_rows_height(len(labels)))


def to_png(chart: Any, *, scale: float = 2.0) -> bytes:
    """The chart as PNG bytes, without a browser."""
    return bytes(_vl_convert().vegalite_to_png(json.dumps(chart.to_dict()), scale=scale))


def to_svg(chart: Any) -> str:
    """The chart as an SVG document, without a browser."""
    return str(_vl_convert().vegalite_to_svg(json.dumps(chart.to_dict())))


def _altair() -> Any:
    try:
        import altair
    except ImportError as error:
        raise MissingExtraError("figures (altair)", "report") from error
    return altair


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError("figures (vl-convert-python)", "report") from error
    return vl_convert


def _chart(alt: Any, rows: list[dict[str, Any]]) -> Any:
    return alt.Chart(alt.Data(values=rows))


def _interval(alt: Any, rows: list[dict[str, Any]], y: Any, theme: Theme, tips: list[Any]) -> Any:
    """A thin rule from low to high with end ticks."""
    base = _chart(alt, rows).encode(y=y, tooltip=tips)
    rule = base.mark_rule(color=theme.ink, strokeWidth=1.2).encode(x="low:Q", x2="high:Q")
    ends = [base.mark_tick(color=theme.ink, thickness=1.2, height=7).encode(x=f"{end}:Q") for end in ("low", "high")]
    return alt.layer(rule, *ends)


def _colour(alt: Any, field: str, domain: list[str], colours: list[str]) -> Any:
    legend = _legend(alt, len(domain)) if len(domain) > 1 else None
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain, range=colours), legend=legend)


def _legend(alt: Any, entries: int) -> Any:
    """Above the plot, in as many columns as there is room for."""
    narrow = alt.ExprRef(expr=f"width < 330 ? 2 : width < 520 ? 3 : {entries}")
    return alt.Legend(orient="top", title=None, columns=narrow, symbolOpacity=1, direction="horizontal")


def _names_axis(alt: Any) -> Any:
    return alt.Axis(labelLimit=alt.ExprRef(expr="width < 330 ? 150 : 240"), ticks=False, domain=False, labelPadding=8)


def _log_axis(alt: Any, low: float, high: float) -> Any:
    """Ticks at 1, 2 and 5 of every decade."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return alt.Axis(format="~s", values=[float(f"{t:.6g}") for t in ticks if low <= t <= high], labelFlush=False)


def _top_names(points: Roofline, limit: int) -> list[str]:
    """Operators that take most of the step, which get a colour of their own."""
    totals: dict[str, float] = {}
    for name, share, after in zip(points.names, points.share.tolist(), points.after.tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + (0.0 if after else share)
    return sorted(totals, key=lambda name: -totals[name])[:limit]


def _decade_span(values: Iterable[float], *, low: float, high: float) -> tuple[float, float]:
    positive = [v for v in values if v > 0]
    return low * min(positive), high * max(positive)


def _unique(names: Iterable[str]) -> list[str]:
    """Names as labels, told apart by a number where one is there twice."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _bar_height(rows: int) -> int:
    return 15 if rows > 6 else 18


def _rows_height(rows: int) -> int:
    return max(24 * rows, 60)


def _time_unit(largest_s: float) -> tuple[str, float]:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if largest_s * scale >= 1:
            return unit, scale
    return "us", 1e6


def _finish(alt: Any, chart: Any, title: str, frame: Frame, *, height: int) -> Any:
    """Size, title and look: the same for every figure."""
    theme = frame.theme
    chart = chart.properties(width=frame.width, height=height)
    if frame.titled:
        chart = chart.properties(title=alt.TitleParams(text=textwrap.wrap(title, TITLE_WIDTH) or [""]))
    if frame.width == "container":
        chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    text = {"labelColor": theme.muted, "titleColor": theme.muted, "labelFont": FONT, "titleFont": FONT}
    axis = text | {
        "gridColor": theme.grid,
        "domainColor": theme.line,
        "tickColor": theme.line,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelOverlap": True,
    }
    return chart.configure(
        background=theme.surface if frame.titled else "transparent",
        padding=12 if frame.titled else 2,
        font=FONT,
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(**axis),
        axisY=alt.AxisConfig(labelColor=theme.ink),
        legend=alt.LegendConfig(labelColor=theme.ink, labelFont=FONT, labelFontSize=11, labelLimit=150, symbolSize=80),
        title=alt.TitleConfig(
            color=theme.ink,
            font=FONT,
            fontSize=14,
            fontWeight=600,
            anchor="start",
            frame="bounds",
            offset=14,
            lineHeight=19,
        ),
        text=alt.MarkConfig(font=FONT),
    )


FIGURES: Mapping[type, Any] = {
    OperatorTimes: draw_operator_times,
    Roofline: draw_roofline,
    Sawtooth: draw_sawtooth,
    Pareto: draw_pareto,
    Gains: draw_gains,
    Published: draw_published,
}
"""Which function draws which record."""


def draw(points: Any, frame: Frame = FILE) -> Any:
    """Draw any record of :mod:`sartor.report.points`."""
    return FIGURES[type(points)](points, frame)
