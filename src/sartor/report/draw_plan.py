"""Figures of a plan: step by part, memory by stage, plans by time and memory, pipeline timeline."""

from __future__ import annotations

import numpy as np

from sartor.report.frame import FILE, Chart, Frame, Sheet, rows_height, time_unit, unique
from sartor.report.plan_points import MemoryBars, MemoryFall, MemoryTracks, PipelineBars, PlanCloud, StepBars
from sartor.report.plan_trace import KINDS
from sartor.units import GIB

LABELLED = 260
"""Most tasks that are labelled with their microbatch."""


def draw_step_bars(points: StepBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, the best plan first; the line is the 80% interval of the step."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.high_s.max()))
    alt = sheet.alt
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
    y = sheet.names("plan", labels)
    tips = sheet.hover("plan:N", "part:N", ("time:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"))
    bar = sheet.bars(bars, "plan", labels).encode(
        x=alt.X("time:Q", title=f"step time [{unit}]", axis=alt.Axis(tickCount=7)),
        color=sheet.colour("part", list(points.parts)),
        order=alt.Order("order:Q"),
        tooltip=tips,
    )
    whole = [
        alt.Tooltip("plan:N"),
        *(alt.Tooltip(f"{n}:Q", title=f"{w} [{unit}]", format=".3g") for n, w in WHOLE),
    ]
    return sheet.finish(bar + sheet.interval(sums, y, whole), points.title, height=rows_height(len(labels)))


WHOLE = (("time", "step"), ("low", "80% low"), ("high", "80% high"))


def draw_memory_bars(points: MemoryBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, one per stage (or run of equal stages), and the limit of a device."""
    sheet = Sheet.of(frame)
    alt = sheet.alt
    rows = [
        {"stage": stage, "part": part, "order": j, "size": float(size) / GIB}
        for stage, sizes in zip(points.stages, points.bytes, strict=True)
        for j, (part, size) in enumerate(zip(points.parts, sizes, strict=True))
        if size > 0
    ]
    bar = sheet.bars(rows, "stage", points.stages).encode(
        x=alt.X("size:Q", title="memory of a device [GiB]", axis=alt.Axis(tickCount=7)),
        color=sheet.colour("part", list(points.parts)),
        order=alt.Order("order:Q"),
        tooltip=sheet.hover("stage:N", "part:N", ("size:Q", "size [GiB]", ".3g")),
    )
    return sheet.finish(bar + _limit(sheet, points.limit_bytes), points.title, height=rows_height(len(points.stages)))


def _limit(sheet: Sheet, limit_bytes: float, *, across: str = "x") -> Chart:
    """A dashed line at the limit of a device."""
    rows = [{"limit": limit_bytes / GIB, "what": "usable memory of a device"}]
    tips = sheet.hover(("what:N", " "), ("limit:Q", "[GiB]", ".4g"))
    rule = sheet.rows(rows).mark_rule(color=sheet.theme.vermillion, strokeDash=[5, 4], strokeWidth=1.5)
    return rule.encode(**{across: "limit:Q"}, tooltip=tips)


def draw_memory_fall(points: MemoryFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts at the sum of those before it."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
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
    y = sheet.names("part", labels)
    bar = sheet.bars(rows, "part", labels).encode(
        x=alt.X("from:Q", title="memory of a device [GiB]", axis=alt.Axis(tickCount=7)),
        x2="to:Q",
        color=sheet.colour("level", used, [paint[level] for level in used]),
        tooltip=sheet.hover("part:N", ("size:Q", "size [GiB]", ".3g"), ("to:Q", "sum so far [GiB]", ".4g"), "what:N"),
    )
    crowded = 0.85 * points.limit_bytes / GIB
    words = [
        sheet.rows([row for row in rows if (float(str(row["to"])) > crowded) is late])
        .mark_text(align="right" if late else "left", dx=-5 if late else 5, color=theme.muted, fontSize=11)
        .encode(y=y, x="from:Q" if late else "to:Q", text=alt.Text("size:Q", format=".3~g"))
        for late in (False, True)
    ]
    return sheet.finish(
        alt.layer(bar, *words, _limit(sheet, points.limit_bytes)),
        points.title,
        height=rows_height(len(labels)),
    )


def draw_plan_cloud(points: PlanCloud, frame: Frame = FILE) -> Chart:
    """Step time against memory, with Pareto front, best plan and memory limit."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.step_s.max()))
    alt, theme = sheet.alt, sheet.theme
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
    tips = sheet.hover("plan:N", ("time:Q", f"step [{unit}]", ".4g"), ("memory:Q", "memory [GiB]", ".3g"))
    front = sorted((row for row in rows if row["front"]), key=lambda row: float(str(row["time"])))
    cloud = sheet.rows([row for row in rows if not row["front"]])
    dots = cloud.mark_point(filled=True, size=42, opacity=0.75).encode(
        x=x, y=y, tooltip=tips, color=sheet.colour("tp", words)
    )
    edge = sheet.rows(front)
    line = edge.mark_line(color=theme.ink, strokeWidth=1.2, interpolate="step-after", opacity=0.7).encode(x=x, y=y)
    marks = edge.mark_point(color=theme.ink, size=22, opacity=0.9).encode(x=x, y=y, tooltip=tips)
    star = sheet.rows([rows[points.best] | {"text": "best"}])
    best = star.mark_point(color=theme.vermillion, filled=True, size=130, shape="diamond", opacity=1)
    label = star.mark_text(align="right", dx=-9, dy=4, color=theme.vermillion, fontWeight="bold", fontSize=12)
    layers = [
        line,
        marks,
        dots,
        best.encode(x=x, y=y, tooltip=tips),
        label.encode(x=x, y=y, text="text:N"),
        _limit(sheet, points.limit_bytes, across="y"),
    ]
    return sheet.finish(alt.layer(*layers), points.title, height=320)


def draw_pipeline(points: PipelineBars, frame: Frame = FILE) -> Chart:
    """Stages as rows, tasks as boxes with their microbatch."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.end_s.max()))
    alt, theme = sheet.alt, sheet.theme
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
    y = sheet.names("stage", stages)
    base = sheet.rows(rows)
    boxes = base.mark_bar(height=height - 3, stroke=theme.surface, strokeWidth=0.4).encode(
        y=y,
        x=alt.X("start:Q", title=f"time since the step began [{unit}]", axis=alt.Axis(tickCount=8)),
        x2="end:Q",
        color=sheet.colour("what", used),
        tooltip=sheet.hover(
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
        chart = boxes + sheet.rows(work).mark_text(fontSize=9, color=theme.surface).encode(
            y=y, x="middle:Q", text="micro:Q"
        )
    return sheet.finish(chart, points.title, height=max(height * points.num_stages, 60))


def draw_memory_tracks(points: MemoryTracks, frame: Frame = FILE) -> Chart:
    """Memory over the step, and the limit of a device."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(max(float(t[-1]) for t in points.times_s))
    alt, theme = sheet.alt, sheet.theme
    words = [f"stage {s}" for s in points.stages]
    rows = [
        {"stage": word, "time": float(t) * scale, "memory": float(b) / GIB}
        for word, times, held in zip(words, points.times_s, points.bytes, strict=True)
        for t, b in zip(times, held, strict=True)
    ]
    line = (
        sheet.rows(rows)
        .mark_line(interpolate="step-after", strokeWidth=1.4)
        .encode(
            x=alt.X("time:Q", title=f"time since the step began [{unit}]", axis=alt.Axis(tickCount=8)),
            y=alt.Y("memory:Q", title="states and activations [GiB]", scale=alt.Scale(zero=True)),
            color=sheet.colour("stage", words, list(theme.series[: len(words)])),
            tooltip=sheet.hover("stage:N", ("time:Q", f"at [{unit}]", ".4g"), ("memory:Q", "holds [GiB]", ".3g")),
        )
    )
    return sheet.finish(line + _limit(sheet, points.limit_bytes, across="y"), points.title, height=190)
