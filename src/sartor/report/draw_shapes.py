"""Figures of shapes: the sawtooth of one field, and candidates between speed and size."""

from __future__ import annotations

import numpy as np

from sartor.json_types import JsonDict
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns
from sartor.report.palette import Theme
from sartor.report.points import Pareto, Sawtooth
from sartor.units import TERA


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
