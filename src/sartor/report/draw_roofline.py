"""The roofline: a device's bandwidth and peak, and the products of a step against them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sartor.report.frame import FILE, Frame, altair, colour, finish, log_axis, rows_chart
from sartor.report.points import Roofline


def draw_roofline(points: Roofline, frame: Frame = FILE) -> Any:
    """Log-log: bandwidth slope and compute ceiling, the ridge, GEMMs now (discs) and after (open diamonds)."""
    alt = altair()
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
        axis=log_axis(alt, x_low, x_high),
    )
    y = alt.Y("rate:Q", scale=y_scale, title="achieved [TFLOP/s]", axis=log_axis(alt, y_low, y_high, "~g"))
    roof = (
        rows_chart(
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
        rows_chart(alt, [{"intensity": ridge, "rate": y_low, "top": peak}])
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
        rows_chart(alt, [row])
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
    encoding = {"x": x, "y": y, "color": colour(alt, "group", domain, palette[: len(domain)]), "tooltip": tips}
    now = rows_chart(alt, [row for row in rows if row["when"] == "now"])
    dots = [now.mark_point(filled=True, size=75, opacity=0.85).encode(**encoding)]
    if points.after.any():
        after = rows_chart(alt, [row for row in rows if row["when"] == "after"])
        dots.append(after.mark_point(shape="diamond", filled=False, size=190, strokeWidth=1.8).encode(**encoding))
    return finish(alt, alt.layer(roof, ridge_rule, *texts, *dots), points.title, frame, height=340)


def _top_names(points: Roofline, limit: int) -> list[str]:
    """Operators that take most of the step, which get a colour of their own."""
    totals: dict[str, float] = {}
    for name, share, after in zip(points.names, points.share.tolist(), points.after.tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + (0.0 if after else share)
    return sorted(totals, key=lambda name: -totals[name])[:limit]


def _decade_span(values: Iterable[float], *, low: float, high: float) -> tuple[float, float]:
    positive = [v for v in values if v > 0]
    return low * min(positive), high * max(positive)
