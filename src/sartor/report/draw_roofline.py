"""Figures of operators: the roofline, and bars of time, gain and published values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sartor.json_types import JsonDict
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, rows_height, stacked, time_unit, unique
from sartor.report.points import CATEGORIES, Gains, OperatorTimes, Published, Roofline
from sartor.units import TERA

TOP = 6
"""Operators that get a colour of their own."""


def draw_roofline(points: Roofline, frame: Frame = FILE) -> Chart:
    """Log-log: bandwidth slope and compute ceiling, the ridge, GEMMs now (discs) and after (open diamonds)."""
    sheet = Sheet.of(frame)
    alt = sheet.alt
    plot = _Plot.of(sheet, points)
    layers = [_roof(plot), _ridge(plot), *_notes(plot), *_products(plot)]
    return sheet.finish(alt.layer(*layers), points.title, height=340)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """Shared by all layers: the device in TFLOP/s and TB/s, the two axes and their ranges."""

    sheet: Sheet
    points: Roofline
    peak: float
    bandwidth: float
    x_span: tuple[float, float]
    y_low: float
    x: Chart
    y: Chart

    @classmethod
    def of(cls, sheet: Sheet, points: Roofline) -> _Plot:
        peak, bandwidth = points.peak_flops_per_s / TERA, points.hbm_bytes_per_s / TERA
        ridge, rate = points.ridge_flops_per_byte, points.achieved_flops_per_s / TERA
        x_low, x_high = _decade_span([*points.intensity_flops_per_byte.tolist(), ridge], low=0.6, high=2.0)
        y_low, y_high = _decade_span([*rate.tolist(), peak], low=0.5, high=1.6)
        x_low = min(x_low, ridge / 4)
        y_low = min(y_low, x_low * bandwidth)
        x_title = "arithmetic intensity [FLOP per byte of HBM traffic]"
        return cls(
            sheet=sheet,
            points=points,
            peak=peak,
            bandwidth=bandwidth,
            x_span=(x_low, x_high),
            y_low=y_low,
            x=_log(sheet.alt, sheet.alt.X, "intensity:Q", x_title, (x_low, x_high), sheet.log_axis(x_low, x_high)),
            y=_log(
                sheet.alt,
                sheet.alt.Y,
                "rate:Q",
                "achieved [TFLOP/s]",
                (y_low, y_high),
                sheet.log_axis(y_low, y_high, "~g"),
            ),
        )


def _log(alt: ModuleType, channel: Chart, field: str, title: str, domain: tuple[float, float], axis: Chart) -> Chart:
    return channel(field, scale=alt.Scale(type="log", domain=list(domain), nice=False), title=title, axis=axis)


def _roof(plot: _Plot) -> Chart:
    low, high = plot.x_span
    corners = [(low, low * plot.bandwidth), (plot.points.ridge_flops_per_byte, plot.peak), (high, plot.peak)]
    rows = [{"intensity": intensity, "rate": rate} for intensity, rate in corners]
    return plot.sheet.rows(rows).mark_line(color=plot.sheet.theme.muted, strokeWidth=2).encode(x=plot.x, y=plot.y)


def _ridge(plot: _Plot) -> Chart:
    row = {"intensity": plot.points.ridge_flops_per_byte, "rate": plot.y_low, "top": plot.peak}
    rule = plot.sheet.rows([row]).mark_rule(color=plot.sheet.theme.muted, strokeDash=[3, 4])
    return rule.encode(x=plot.x, y=plot.y, y2="top:Q")


def _notes(plot: _Plot) -> Iterator[Chart]:
    """Labels of the peak, the ridge and (where there is room) the bandwidth."""
    ridge, peak, bandwidth = plot.points.ridge_flops_per_byte, plot.peak, plot.bandwidth
    middle = float(np.sqrt(plot.x_span[0] * ridge))
    side, aside = ("left", 6) if ridge < float(np.sqrt(plot.x_span[0] * plot.x_span[1])) else ("right", -6)
    roomy = plot.sheet.alt.ExprRef(expr="width < 330 ? 0 : 1")
    words = f"peak {peak:,.0f} TFLOP/s ({plot.points.dtype}, dense)"
    for x, y, text, align, dx, dy, opacity in (
        (plot.x_span[1], peak, words, "right", -4, -9, 1.0),
        (ridge, plot.y_low, f"ridge {ridge:,.0f} FLOP/B", side, aside, -9, 1.0),
        (middle, middle * bandwidth, f"HBM {bandwidth:.2f} TB/s", "left", 10, 4, roomy),
    ):
        mark = plot.sheet.rows([{"intensity": x, "rate": y, "text": text}]).mark_text(
            align=align, dx=dx, dy=dy, color=plot.sheet.theme.muted, fontSize=11, opacity=opacity
        )
        yield mark.encode(x=plot.x, y=plot.y, text="text:N")


def _products(plot: _Plot) -> list[Chart]:
    """One disc per GEMM; open diamonds for those of the proposed shape."""
    sheet, rows, groups = plot.sheet, _rows(plot), _top_names(plot.points, TOP)
    domain = [*groups, "other"] if any(row["group"] == "other" for row in rows) else groups
    palette = [*sheet.theme.series[:TOP][: len(groups)], sheet.theme.grey]
    encoding = {
        "x": plot.x,
        "y": plot.y,
        "color": sheet.colour("group", domain, palette[: len(domain)]),
        "tooltip": sheet.hover(
            "operator:N",
            "pass:N",
            ("when:N", "shape"),
            ("intensity:Q", "FLOP per byte", ".4g"),
            ("rate:Q", "achieved [TFLOP/s]", ".4g"),
            ("peak:Q", "share of peak", ".1%"),
            ("share:Q", "share of step", ".1%"),
        ),
    }
    now, after = ([row for row in rows if row["when"] == when] for when in ("now", "after"))
    layers = [sheet.rows(now).mark_point(filled=True, size=75, opacity=0.85).encode(**encoding)]
    if after:
        open_ = sheet.rows(after).mark_point(shape="diamond", filled=False, size=190, strokeWidth=1.8)
        layers.append(open_.encode(**encoding))
    return layers


def _rows(plot: _Plot) -> list[JsonDict]:
    points, groups = plot.points, _top_names(plot.points, TOP)
    rates = points.achieved_flops_per_s / TERA
    return columns(
        operator=points.names,
        group=[name if name in groups else "other" for name in points.names],
        **{"pass": points.passes},
        when=["after" if after else "now" for after in points.after],
        intensity=points.intensity_flops_per_byte,
        rate=rates,
        peak=rates / plot.peak,
        share=points.share,
    )


def _top_names(points: Roofline, limit: int) -> list[str]:
    """The operators that take most of the step, which get their own colours."""
    totals: dict[str, float] = {}
    for name, share, after in zip(points.names, points.share.tolist(), points.after.tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + (0.0 if after else share)
    return sorted(totals, key=lambda name: -totals[name])[:limit]


def _decade_span(values: Iterable[float], *, low: float, high: float) -> tuple[float, float]:
    positive = [v for v in values if v > 0]
    return low * min(positive), high * max(positive)


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
