"""The roofline: a device's bandwidth and peak, and the GEMMs of a step against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sartor.json_types import JsonDict
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns
from sartor.report.points import Roofline
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
