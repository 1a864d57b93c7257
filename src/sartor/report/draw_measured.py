"""Figures of measurements: predicted against measured, error by size, arms of a case study."""

from __future__ import annotations

from collections.abc import Sequence

from sartor.json_types import JsonDict, JsonMap
from sartor.report.frame import FILE, Chart, Frame, Sheet
from sartor.report.words import printable


def draw_scatter(title: str, rows: Sequence[JsonMap], frame: Frame = FILE) -> Chart:
    """Predicted over measured time, log-log; the line is where both agree. Rows: gpu, measured_s, predicted_s."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    scale_s, unit = (1.0, "s") if max((r["measured_s"] for r in rows), default=0.0) > 1 else (1e6, "us")
    points = [
        {"gpu": r["gpu"], "measured": r["measured_s"] * scale_s, "predicted": r["predicted_s"] * scale_s} for r in rows
    ]
    seen = [value for point in points for value in (point["measured"], point["predicted"])] or [1.0, 10.0]
    domain = [min(seen) / 1.2, max(seen) * 1.2]
    scale = {"type": "log", "domain": domain, "nice": False}
    x = sheet.x("measured:Q", f"measured [{unit}]", 6, "~s", **scale)
    y = sheet.y("predicted:Q", f"predicted [{unit}]", 6, "~s", **scale)
    agree = sheet.rows([{"measured": v, "predicted": v} for v in domain]).mark_line(color=theme.muted)
    names = sorted({point["gpu"] for point in points})
    colours = [theme.series[i % len(theme.series)] for i in range(len(names))]
    tips = sheet.hover(
        "gpu:N", ("measured:Q", f"measured [{unit}]", ",.4g"), ("predicted:Q", f"predicted [{unit}]", ",.4g")
    )
    colour = alt.Color("gpu:N", scale=alt.Scale(domain=names, range=colours), legend=sheet.legend(4))
    dots = sheet.rows(points).mark_point(filled=True, size=9, opacity=0.45)
    chart = alt.layer(agree.encode(x=x, y=y), dots.encode(x=x, y=y, color=colour, tooltip=tips))
    return sheet.finish(chart, title, height=420)


def draw_error_by_size(title: str, rows: Sequence[JsonMap], frame: Frame = FILE) -> Chart:
    """Median and 90th percentile of the error against each size, a line per size (m, n, k, ...).

    Rows: axis, size, targets, median_error, p90_error, bias.
    """
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    data = [
        {**row, "error": row[key], "which": word}
        for row in rows
        for key, word in (("median_error", "median"), ("p90_error", "90th percentile"))
    ]
    colours = [theme.series[i % len(theme.series)] for i in range(len(axes))]
    tips = sheet.hover(
        ("axis:N", "size"),
        ("size:Q", "from", ",d"),
        ("targets:Q", "shapes", ",d"),
        ("median_error:Q", "median error", ".1%"),
        ("p90_error:Q", "90th percentile", ".1%"),
        ("bias:Q", "bias", "+.1%"),
    )
    chart = (
        sheet.rows(data)
        .mark_line(point=alt.OverlayMarkDef(size=22))
        .encode(
            x=sheet.x("size:Q", "size, from", 8, ",d", type="log", base=2),
            y=alt.Y("error:Q", title="|predicted / measured - 1|", axis=alt.Axis(format=".0%")),
            color=alt.Color("axis:N", scale=alt.Scale(domain=axes, range=colours), legend=sheet.legend(len(axes))),
            strokeDash=alt.StrokeDash(
                "which:N",
                scale=alt.Scale(domain=["median", "90th percentile"], range=[[1, 0], [4, 3]]),
                legend=alt.Legend(
                    orient="top",
                    title=None,
                    symbolType="stroke",
                    symbolSize=200,
                    symbolStrokeWidth=2,
                    symbolFillColor="transparent",
                    symbolStrokeColor=theme.ink,
                ),
            ),
            tooltip=tips,
        )
    )
    return sheet.finish(chart, title, height=300)


WORDS = ("measured", "predicted")


def draw_study(body: JsonMap, device: str, frame: Frame = FILE) -> Chart:
    """Speedups of a study's arms; ``body`` is the ``study`` object of the JSON. Arms on a size axis are joined by
    lines, named arms are points; groups are stacked vertically."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    rows = study_rows(body)
    named = body["axis"] in ("model", "parameters")
    field = "arm:N" if named else "x:Q"
    names = list(dict.fromkeys(row["arm"] for row in rows))
    x = (
        alt.X(field, title=None, sort=names)
        if named
        else alt.X(field, title=body["axis"], scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format=",d"))
    )
    tips = sheet.hover("arm:N", "which:N", ("speedup:Q", None, ".3f"), ("seconds:Q", "time [s]", ".4g"))
    colour = alt.Color(
        "which:N",
        scale=alt.Scale(domain=list(WORDS), range=[theme.series[0], theme.series[1]]),
        legend=alt.Legend(orient="top", title=None),
    )
    y = alt.Y("speedup:Q", title="speedup", scale=alt.Scale(zero=False), axis=alt.Axis(format=".2f", tickCount=5))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    base = sheet.rows(rows)
    marks = base.mark_point(size=60, filled=True) if named else base.mark_line(point=alt.OverlayMarkDef(size=34))
    chart = marks.encode(x=x, y=y, color=colour, tooltip=tips)
    if len(groups) > 1:
        header = alt.Header(title=None, labelOrient="top", labelAnchor="start", labelColor=theme.ink)
        chart = chart.encode(row=alt.Row("group:N", sort=groups, header=header)).resolve_scale(y="independent")
    title = f"{printable(body['question'])} ({printable(device)})"
    return sheet.finish(chart, title, height=300 if len(groups) == 1 else 130)


def study_rows(body: JsonMap) -> list[JsonDict]:
    """Two rows per arm, predicted and measured; arms that were not timed are left out."""
    return [
        {"arm": arm["arm"], "group": arm["group"], "x": arm["x"], "which": which, "speedup": speedup,
         "seconds": arm[f"{which}_s"]}
        for arm in body["arms"]
        for which in WORDS
        if (speedup := arm[f"{which}_speedup"]) is not None
    ]  # fmt: skip
