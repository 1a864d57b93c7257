"""Figures of operators and of shapes: the roofline, bars of time, gain and published values, a sweep, candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sartor.json_types import JsonDict
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, rows_height, stacked, time_unit, unique
from sartor.report.palette import Theme
from sartor.report.points import CATEGORIES, Gains, OperatorTimes, Pareto, Published, Roofline, Sawtooth
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


def draw_sawtooth(points: Sawtooth, frame: Frame = FILE) -> Chart:
    """FLOP rate against one field, with the model's value before and after the change marked on the curve."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    rates = points.flops_per_s / TERA
    rows = columns(value=points.values, rate=rates, time=points.time_s * 1e3)
    low, high = float(rates.min()), float(rates.max())
    pad = max(0.08 * (high - low), 1e-3 * high)
    values = [float(points.values.min()), float(points.values.max())]
    x = sheet.x("value:Q", points.field, 6, ",d", domain=values, nice=False)
    room = [max(low - pad, 0.0), high + 3.5 * pad]
    y = sheet.y("rate:Q", "achieved [TFLOP/s]", 5, domain=room, nice=False, zero=False)
    tips = sheet.hover(
        ("value:Q", points.field, ",d"), ("rate:Q", "achieved [TFLOP/s]", ".4g"), ("time:Q", "time [ms]", ",.4g")
    )
    base = sheet.rows(rows)
    dense = len(rows) > 120
    line = base.mark_line(color=theme.blue, strokeWidth=0.7 if dense else 1.3, opacity=0.35 if dense else 0.75)
    line = line.encode(x=x, y=y)
    dots = base.mark_point(color=theme.blue, filled=True, size=16).encode(x=x, y=y, tooltip=tips)
    layers = [line, dots]
    low_value, span = values[0], values[1] - values[0] or 1.0
    marked = [("now", points.now, theme.vermillion), ("after", points.after, theme.green)]
    marks = sorted(((value, word, paint) for word, value, paint in marked if value is not None), key=lambda w: w[0])
    for place, (value, word, paint) in enumerate(marks):
        index = int(np.argmin(np.abs(points.values - value)))
        row = rows[index] | {"text": f"{word}: {rows[index]['value']:,.0f}"}
        side = _label_side((value - low_value) / span, place, len(marks))
        spot = sheet.rows([row])
        layers.append(spot.mark_rule(color=paint, strokeDash=[3, 3], opacity=0.7).encode(x=x))
        layers.append(spot.mark_point(color=paint, filled=True, size=110, opacity=1).encode(x=x, y=y, tooltip=tips))
        layers.append(
            spot.mark_text(color=paint, fontWeight="bold", fontSize=12, **side).encode(
                x=x, y=alt.value(9), text="text:N"
            )
        )
    return sheet.finish(alt.layer(*layers), points.title, height=260)


def _label_side(position: float, place: int, count: int) -> JsonDict:
    """Placement of a marked value's label at the top of its rule: away from its neighbour and inside the plot."""
    outward_left = place == 0 if count > 1 else position > 0.5
    if count > 1 and outward_left and position < 0.22:
        return {"align": "left", "dx": 7, "dy": 16}
    if count > 1 and not outward_left and position > 0.78:
        return {"align": "right", "dx": -7, "dy": 16}
    return {"align": "right", "dx": -7} if outward_left else {"align": "left", "dx": 7}


def draw_pareto(points: Pareto, frame: Frame = FILE) -> Chart:
    """Gain at equal work against change in parameters; colour counts the fields changed."""
    sheet = Sheet.of(frame)
    alt = sheet.alt
    rows = _candidate_rows(points)
    x, y = _candidate_axes(sheet, points)
    tips = sheet.hover(
        "change:N",
        ("gain:Q", None, ".3f"),
        ("low:Q", "80% low", ".3f"),
        ("high:Q", "80% high", ".3f"),
        ("params:Q", "parameters", "+.2%"),
        ("fields:N", "changed"),
    )
    middle = sum(_params_span(points)) / 2
    rule, *mark = _today(sheet, middle, x, y)
    dots = _dots(sheet, points, rows).encode(x=x, y=y, tooltip=tips)
    layers = [rule, dots, *mark]
    for index, word, dy in _named(points):
        layers += _named_layers(sheet, rows[index] | {"text": word}, dy, middle, x, y, tips)
    return sheet.finish(alt.layer(*layers), points.title, height=320)


def _candidate_rows(points: Pareto) -> list[JsonDict]:
    return columns(
        change=points.labels,
        params=points.params_change,
        gain=points.gain,
        low=[float(low) if np.isfinite(low) else None for low in points.low],
        high=[float(high) if np.isfinite(high) else None for high in points.high],
        fields=[f"{count} field{'s' if count != 1 else ''}" for count in points.num_changed],
        front=points.on_front,
    )


def _params_span(points: Pareto) -> tuple[float, float]:
    changes = [*points.params_change.tolist(), 0.0]
    return float(np.min(changes)), float(np.max(changes))


def _candidate_axes(sheet: Sheet, points: Pareto) -> tuple[Chart, Chart]:
    """Axes wide enough for every candidate, the current shape and the intervals of named candidates."""
    low, high = _params_span(points)
    margin = max(0.08 * (high - low), 0.001)
    named = [index for index, _, _ in _named(points)]
    top = float(np.max([*points.gain.tolist(), *points.high[named].tolist(), 1.0]))
    floor = float(np.min([*points.gain.tolist(), *points.low[named].tolist(), 1.0]))
    span = max(top - floor, 0.01)
    changes = [low - margin, high + margin]
    x = sheet.x("params:Q", "change in parameters", 5, "+.1%", domain=changes, nice=False)
    gains = [floor - 0.06 * span, top + 0.2 * span]
    y = sheet.y("gain:Q", "gain at equal work", 6, ".2f", domain=gains, zero=False, nice=False)
    return x, y


def _today(sheet: Sheet, middle: float, x: Chart, y: Chart) -> list[Chart]:
    """A rule at a gain of 1, and a labelled cross for the current shape."""
    theme = sheet.theme
    today = sheet.rows([{"params": 0.0, "gain": 1.0, "text": "today"}])
    side = {"align": "left", "dx": 9} if middle >= 0 else {"align": "right", "dx": -9}
    text = today.mark_text(**side, dy=10, color=theme.muted, fontSize=11)
    return [
        today.mark_rule(color=theme.muted, strokeDash=[3, 4]).encode(y=y),
        today.mark_point(shape="cross", filled=True, size=80, color=theme.ink).encode(x=x, y=y),
        text.encode(x=x, y=y, text="text:N"),
    ]


def _dots(sheet: Sheet, points: Pareto, rows: list[JsonDict]) -> Chart:
    """Every candidate; those with most fields changed are drawn behind the others."""
    alt, theme = sheet.alt, sheet.theme
    largest_edits_first = sorted(range(len(rows)), key=lambda i: -int(points.num_changed[i]))
    domain = sorted({row["fields"] for row in rows}, key=lambda word: int(word.split()[0]))
    return (
        sheet.rows([rows[i] for i in largest_edits_first])
        .mark_point(filled=True, size=80, stroke=theme.surface, strokeWidth=0.8)
        .encode(
            color=sheet.colour("fields", domain, _by_count(theme, len(domain))),
            opacity=alt.condition("datum.front", alt.value(0.95), alt.value(0.35)),
        )
    )


def _named_layers(
    sheet: Sheet, row: JsonDict, dy: int, middle: float, x: Chart, y: Chart, tips: list[Chart]
) -> list[Chart]:
    """One candidate's label, interval and ring."""
    alt, theme, spot = sheet.alt, sheet.theme, sheet.rows([row])
    side = {"align": "left", "dx": 11} if row["params"] <= middle else {"align": "right", "dx": -11}
    text = spot.mark_text(color=theme.ink, fontWeight="bold", fontSize=12, dy=dy, **side)
    rule = spot.mark_rule(color=theme.ink, opacity=0.45)
    ring = spot.mark_point(filled=False, size=170, color=theme.ink, strokeWidth=1.4)
    return [
        text.encode(x=x, y=y, text="text:N"),
        rule.encode(x=x, y=alt.Y("low:Q", title="gain at equal work"), y2="high:Q", tooltip=tips),
        ring.encode(x=x, y=y, tooltip=tips),
    ]


def _by_count(theme: Theme, entries: int) -> list[str]:
    """Colours from calm to loud as more fields change."""
    colours = [theme.green, theme.blue, theme.sky, theme.orange, theme.vermillion, theme.purple]
    return [colours[min(i, len(colours) - 1)] for i in range(entries)]


def _named(points: Pareto) -> list[tuple[int, str, int]]:
    if points.best < 0:
        return [(points.smallest_edit, "smallest edit", 0)] if points.smallest_edit >= 0 else []
    if points.smallest_edit in (-1, points.best):
        return [(points.best, "best" if points.smallest_edit < 0 else "best, and smallest edit", -9)]
    return [(points.best, "best", -9), (points.smallest_edit, "smallest edit", 11)]
