"""Figures of a plan: step by part, memory by stage, plans by time and memory, pipeline timeline."""

from __future__ import annotations

import numpy as np

from sartor.report.frame import (
    FILE,
    Altair,
    Chart,
    Frame,
    altair,
    bar_height,
    colour,
    finish,
    hover,
    interval,
    names_axis,
    rows_chart,
    rows_height,
    time_unit,
    unique,
)
from sartor.report.palette import Theme, painted
from sartor.report.plan_points import MemoryBars, MemoryFall, MemoryTracks, PipelineBars, PlanCloud, StepBars
from sartor.report.plan_trace import KINDS
from sartor.units import GIB

LABELLED = 260
"""Most tasks that are labelled with their microbatch."""


def draw_step_bars(points: StepBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, the best plan first; the line is the 80% interval of the step."""
    alt = altair()
    theme, unit, scale = frame.theme, *time_unit(float(points.high_s.max()))
    labels = unique(points.plans)
    bars = [
        {"plan": label, "part": part, "order": j, "time": float(t) * scale, "share": float(t / row.sum())}
        for label, row in zip(labels, points.time_s, strict=True)
        for j, (part, t) in enumerate(zip(points.parts, row, strict=True))
        if t > 0
    ]
    sums = [
        {"plan": label, "time": float(row.sum()) * scale, "low": float(lo) * scale, "high": float(hi) * scale}
        for label, row, lo, hi in zip(labels, points.time_s, points.low_s, points.high_s, strict=True)
    ]
    y = alt.Y("plan:N", sort=labels, title=None, axis=names_axis(alt))
    tips = hover(alt, "plan:N", "part:N", ("time:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"))
    bar = (
        rows_chart(alt, bars)
        .mark_bar(height=bar_height(len(labels)))
        .encode(
            y=y,
            x=alt.X("time:Q", title=f"step time [{unit}]", axis=alt.Axis(tickCount=7)),
            color=colour(alt, "part", list(points.parts), painted(theme, points.parts)),
            order=alt.Order("order:Q"),
            tooltip=tips,
        )
    )
    whole = [
        alt.Tooltip("plan:N"),
        *(alt.Tooltip(f"{n}:Q", title=f"{w} [{unit}]", format=".3g") for n, w in WHOLE),
    ]
    return finish(alt, bar + interval(alt, sums, y, theme, whole), points.title, frame, height=rows_height(len(labels)))


WHOLE = (("time", "step"), ("low", "80% low"), ("high", "80% high"))


def draw_memory_bars(points: MemoryBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, one per stage (or run of equal stages), and the limit of a device."""
    alt = altair()
    theme = frame.theme
    rows = [
        {"stage": stage, "part": part, "order": j, "size": float(size) / GIB}
        for stage, sizes in zip(points.stages, points.bytes, strict=True)
        for j, (part, size) in enumerate(zip(points.parts, sizes, strict=True))
        if size > 0
    ]
    bar = (
        rows_chart(alt, rows)
        .mark_bar(height=bar_height(len(points.stages)))
        .encode(
            y=alt.Y("stage:N", sort=list(points.stages), title=None, axis=names_axis(alt)),
            x=alt.X("size:Q", title="memory of a device [GiB]", axis=alt.Axis(tickCount=7)),
            color=colour(alt, "part", list(points.parts), painted(theme, points.parts)),
            order=alt.Order("order:Q"),
            tooltip=hover(alt, "stage:N", "part:N", ("size:Q", "size [GiB]", ".3g")),
        )
    )
    return finish(
        alt, bar + _limit(alt, points.limit_bytes, theme), points.title, frame, height=rows_height(len(points.stages))
    )


def _limit(alt: Altair, limit_bytes: float, theme: Theme, *, across: str = "x") -> Chart:
    """A dashed line at the limit of a device."""
    rows = [{"limit": limit_bytes / GIB, "what": "usable memory of a device"}]
    at = alt.X("limit:Q") if across == "x" else alt.Y("limit:Q")
    tips = hover(alt, ("what:N", " "), ("limit:Q", "[GiB]", ".4g"))
    rule = rows_chart(alt, rows).mark_rule(color=theme.vermillion, strokeDash=[5, 4], strokeWidth=1.5)
    return rule.encode(**{across: at}, tooltip=tips)


def draw_memory_fall(points: MemoryFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts at the sum of those before it."""
    alt = altair()
    theme = frame.theme
    ends = np.cumsum(points.bytes) / GIB
    labels = unique(points.parts)
    rows = [
        {"part": label, "level": level, "what": what, "from": float(end - size / GIB), "to": float(end),
         "size": float(size) / GIB}
        for label, level, what, end, size in zip(labels, points.levels, points.what, ends, points.bytes, strict=True)
    ]  # fmt: skip
    used = list(dict.fromkeys(points.levels))
    paint = {
        "theory": theme.blue,
        "allocated": theme.green,
        "reserved": theme.orange,
        "device": theme.grey,
    }
    base = rows_chart(alt, rows)
    y = alt.Y("part:N", sort=labels, title=None, axis=names_axis(alt))
    bar = base.mark_bar(height=bar_height(len(labels))).encode(
        y=y,
        x=alt.X("from:Q", title="memory of a device [GiB]", axis=alt.Axis(tickCount=7)),
        x2="to:Q",
        color=colour(alt, "level", used, [paint[level] for level in used]),
        tooltip=hover(alt, "part:N", ("size:Q", "size [GiB]", ".3g"), ("to:Q", "sum so far [GiB]", ".4g"), "what:N"),
    )
    crowded = 0.85 * points.limit_bytes / GIB
    words = [
        rows_chart(alt, [row for row in rows if (float(str(row["to"])) > crowded) is late])
        .mark_text(align="right" if late else "left", dx=-5 if late else 5, color=theme.muted, fontSize=11)
        .encode(y=y, x="from:Q" if late else "to:Q", text=alt.Text("size:Q", format=".3~g"))
        for late in (False, True)
    ]
    return finish(
        alt,
        alt.layer(bar, *words, _limit(alt, points.limit_bytes, theme)),
        points.title,
        frame,
        height=rows_height(len(labels)),
    )


def draw_plan_cloud(points: PlanCloud, frame: Frame = FILE) -> Chart:
    """Step time against memory, with Pareto front, best plan and memory limit."""
    alt = altair()
    theme, unit, scale = frame.theme, *time_unit(float(points.step_s.max()))
    words = [f"tp {n}" for n in sorted(set(points.tp.tolist()))]
    rows = [
        {"plan": label, "time": t * scale, "memory": b / GIB, "tp": f"tp {tp}", "front": bool(f)}
        for label, t, b, tp, f in zip(
            points.labels,
            points.step_s.tolist(),
            points.device_bytes.tolist(),
            points.tp.tolist(),
            points.on_front.tolist(),
            strict=True,
        )
    ]
    low, high = float(points.step_s.min()) * scale, float(points.step_s.max()) * scale
    log = high / low > 3
    x = alt.X(
        "time:Q",
        title=f"predicted step [{unit}]",
        scale=alt.Scale(type="log" if log else "linear", zero=False, nice=True, padding=24),
        axis=alt.Axis(tickCount=6),
    )
    y = alt.Y("memory:Q", title="fullest device [GiB]", scale=alt.Scale(zero=True))
    tips = hover(alt, "plan:N", ("time:Q", f"step [{unit}]", ".4g"), ("memory:Q", "memory [GiB]", ".3g"))
    front = sorted((row for row in rows if row["front"]), key=lambda row: float(str(row["time"])))
    cloud = rows_chart(alt, [row for row in rows if not row["front"]])
    dots = cloud.mark_point(filled=True, size=42, opacity=0.75).encode(
        x=x, y=y, tooltip=tips, color=colour(alt, "tp", words, painted(theme, words))
    )
    edge = rows_chart(alt, front)
    line = edge.mark_line(color=theme.ink, strokeWidth=1.2, interpolate="step-after", opacity=0.7).encode(x=x, y=y)
    marks = edge.mark_point(color=theme.ink, size=22, opacity=0.9).encode(x=x, y=y, tooltip=tips)
    star = rows_chart(alt, [rows[points.best] | {"text": "best"}])
    best = star.mark_point(color=theme.vermillion, filled=True, size=130, shape="diamond", opacity=1)
    label = star.mark_text(align="right", dx=-9, dy=4, color=theme.vermillion, fontWeight="bold", fontSize=12)
    layers = [
        line,
        marks,
        dots,
        best.encode(x=x, y=y, tooltip=tips),
        label.encode(x=x, y=y, text="text:N"),
        _limit(alt, points.limit_bytes, theme, across="y"),
    ]
    return finish(alt, alt.layer(*layers), points.title, frame, height=320)


def draw_pipeline(points: PipelineBars, frame: Frame = FILE) -> Chart:
    """Stages as rows, tasks as boxes with their microbatch."""
    alt = altair()
    theme, unit, scale = frame.theme, *time_unit(float(points.end_s.max()))
    stages = [f"stage {k}" for k in range(points.num_stages)]
    rows = [
        {"stage": stages[s], "what": k, "micro": m, "chunk": c, "start": a * scale, "end": b * scale,
         "middle": (a + b) / 2 * scale, "took": (b - a) * scale}
        for s, k, m, c, a, b in zip(
            points.stage.tolist(), points.kind, points.microbatch.tolist(), points.chunk.tolist(),
            points.start_s.tolist(), points.end_s.tolist(), strict=True,
        )
    ]  # fmt: skip
    used = [kind for kind in KINDS.values() if kind in points.kind]
    height = max(min(26, 420 // points.num_stages), 9)
    y = alt.Y("stage:N", sort=stages, title=None, axis=names_axis(alt))
    base = rows_chart(alt, rows)
    boxes = base.mark_bar(height=height - 3, stroke=theme.surface, strokeWidth=0.4).encode(
        y=y,
        x=alt.X("start:Q", title=f"time since the step began [{unit}]", axis=alt.Axis(tickCount=8)),
        x2="end:Q",
        color=colour(alt, "what", used, painted(theme, used)),
        tooltip=hover(
            alt,
            "stage:N",
            "what:N",
            ("micro:Q", "microbatch"),
            "chunk:Q",
            ("start:Q", f"starts [{unit}]", ".4g"),
            ("took:Q", f"takes [{unit}]", ".3g"),
        ),
    )
    chart: Chart = boxes
    if len(rows) <= LABELLED:
        work = [row for row in rows if row["what"] in ("forward", "backward", "weight gradient")]
        chart = boxes + rows_chart(alt, work).mark_text(fontSize=9, color=theme.surface).encode(
            y=y, x="middle:Q", text="micro:Q"
        )
    return finish(alt, chart, points.title, frame, height=max(height * points.num_stages, 60))


def draw_memory_tracks(points: MemoryTracks, frame: Frame = FILE) -> Chart:
    """Memory over the step, and the limit of a device."""
    alt = altair()
    theme, unit, scale = frame.theme, *time_unit(max(float(t[-1]) for t in points.times_s))
    words = [f"stage {s}" for s in points.stages]
    rows = [
        {"stage": word, "time": float(t) * scale, "memory": float(b) / GIB}
        for word, times, held in zip(words, points.times_s, points.bytes, strict=True)
        for t, b in zip(times, held, strict=True)
    ]
    line = (
        rows_chart(alt, rows)
        .mark_line(interpolate="step-after", strokeWidth=1.4)
        .encode(
            x=alt.X("time:Q", title=f"time since the step began [{unit}]", axis=alt.Axis(tickCount=8)),
            y=alt.Y("memory:Q", title="states and activations [GiB]", scale=alt.Scale(zero=True)),
            color=colour(alt, "stage", words, list(theme.series[: len(words)])),
            tooltip=hover(alt, "stage:N", ("time:Q", f"at [{unit}]", ".4g"), ("memory:Q", "holds [GiB]", ".3g")),
        )
    )
    return finish(alt, line + _limit(alt, points.limit_bytes, theme, across="y"), points.title, frame, height=190)
