"""Figures of a plan, with their records: step by part, memory by stage, plans by time and memory, pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sartor.answers.field import Fields
from sartor.answers.plan import PARTS as STEP_PARTS
from sartor.model.training import TrainingPlan
from sartor.report.frame import (
    FILE,
    Chart,
    Frame,
    Sheet,
    columns,
    falling,
    rows_height,
    stacked,
    time_unit,
    unique,
    when,
)
from sartor.report.plan_words import plan_words
from sartor.report.trace import KINDS
from sartor.step.footprint import usable_bytes
from sartor.step.stage_table import StageMemory, Waterfall, waterfall
from sartor.step.timeline import Timeline, timeline
from sartor.units import GIB, format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers.plan import PlanAnswer
    from sartor.designs.detail import ModelDetail
    from sartor.plans.result import PricedPlan

Numbers = npt.NDArray[np.float64]

MOST_BARS = 8
"""Most plans in the figure of steps."""
MOST_STAGES = 16
"""Most stages drawn; above that, equal neighbours share a bar."""
MOST_DRAWN = 2400
"""Most tasks of a pipeline drawn; microbatches in the middle of the step are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBars:
    """Steps of plans, best first: ``time_s`` [plans, parts], with the 80% interval of their sums."""

    title: str
    plans: tuple[str, ...]
    parts: tuple[str, ...]
    time_s: Numbers
    low_s: Numbers
    high_s: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBars:
    """Bytes of pipeline stages by part [stages, parts], and the limit of a device."""

    title: str
    stages: tuple[str, ...]
    parts: tuple[str, ...]
    bytes: Numbers
    limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFall:
    """One stage's bytes as steps of a waterfall, with the level (theory, allocated, ...) each part belongs to."""

    title: str
    parts: tuple[str, ...]
    levels: tuple[str, ...]
    what: tuple[str, ...]
    bytes: Numbers
    limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCloud:
    """Step time and memory of the fullest device for all plans that fit; ``best`` is the position of the best."""

    title: str
    labels: tuple[str, ...]
    step_s: Numbers
    device_bytes: Numbers
    tp: npt.NDArray[np.int64]
    on_front: npt.NDArray[np.bool_]
    best: int
    limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBars:
    """Start and end of each stage's tasks, one row per event."""

    title: str
    stage: npt.NDArray[np.int64]
    kind: tuple[str, ...]
    microbatch: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int64]
    start_s: Numbers
    end_s: Numbers
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTracks:
    """Memory of some stages over a step."""

    title: str
    stages: tuple[int, ...]
    times_s: tuple[Numbers, ...]
    bytes: tuple[Numbers, ...]
    limit_bytes: float


def step_bars(
    title: str, labels: Iterable[str], bars: Sequence[PricedPlan | ModelDetail], parts: Fields, least: float
) -> StepBars:
    """Steps by part; parts below a share of ``least`` in every step are left out."""
    table = np.array([[float(part.read(bar.step)) for part in parts] for bar in bars])
    keep = (table / table.sum(axis=1, keepdims=True)).max(axis=0) >= least
    return StepBars(
        title=title,
        plans=tuple(labels),
        parts=tuple(part.words for part, shown in zip(parts, keep, strict=True) if shown),
        time_s=table[:, keep],
        low_s=np.array([bar.low_s for bar in bars]),
        high_s=np.array([bar.high_s for bar in bars]),
    )


def _best_steps(top: Sequence[PricedPlan]) -> StepBars:
    best, shown = top[0], top[:MOST_BARS]
    compute = format_share(float(best.step.parts["compute_s"]) / best.step_s)
    title = f"Compute takes {compute} of the best plan's step of {format_seconds(best.step_s)}"
    return step_bars(title, (_degrees_text(plan.plan) for plan in shown), shown, STEP_PARTS, 0.005)


def _degrees_text(plan: TrainingPlan, *, microbatch: bool = True) -> str:
    """``tp 2 pp 8x6 dp 2 cp 2 mb 1``: degrees above 1 (pp with its chunks), and the microbatch."""
    d, v = plan.dims, int(plan.virtual_stages)
    words = [f"tp {int(d.tp)}"] if int(d.tp) > 1 else []
    words += [f"pp {int(d.pp)}" + (f"x{v}" if v > 1 else "")] if int(d.pp) > 1 else []
    words += [f"{name} {int(n)}" for name, n in (("dp", d.dp), ("cp", d.cp), ("ep", d.ep)) if int(n) > 1]
    return "  ".join([*words, f"mb {int(plan.microbatch_size)}"] if microbatch else words or ["one device"])


PARTS = ("weights", "narrow weights", "gradients", "optimizer", "activations", "loss", "workspace", "gaps", "context")
"""Parts of memory; everything allocated beyond theory is ``workspace``."""


def _memory_bars(found: Waterfall) -> MemoryBars:
    """All stages by part; equal neighbours share a bar."""
    names = [name for name in PARTS if any(_part(stage, name) for stage in found.stages)]
    groups: list[list[StageMemory]] = []
    for stage in found.stages:
        if groups and _alike(groups[-1][0], stage, names):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    if len(groups) > MOST_STAGES:
        fullest = found.fullest.stage
        groups = [g for k, g in enumerate(groups) if k < MOST_STAGES - 2 or g[0].stage <= fullest <= g[-1].stage]
    full = found.fullest
    of = f"{format_bytes(full.total_bytes())} of {format_bytes(found.usable_bytes)}"
    return MemoryBars(
        title=f"Stage {full.stage} is fullest: {of}",
        stages=tuple(_stages_text(group) for group in groups),
        parts=tuple(names),
        bytes=np.array([[_part(group[0], name) for name in names] for group in groups]),
        limit_bytes=found.usable_bytes,
    )


def _alike(one: StageMemory, other: StageMemory, names: list[str]) -> bool:
    return all(abs(_part(one, n) - _part(other, n)) <= 0.002 * one.total_bytes() for n in names)


def _part(stage: StageMemory, name: str) -> float:
    return sum(part.size_bytes for part in stage.parts if (part.name if part.name in PARTS else "workspace") == name)


def _stages_text(group: list[StageMemory]) -> str:
    first, last = group[0].stage, group[-1].stage
    return f"stage {first}" if first == last else f"stages {first}-{last}"


def _memory_fall(found: Waterfall) -> MemoryFall:
    """The parts of the fullest stage."""
    full = found.fullest
    parts = [part for part in full.parts if part.size_bytes > 0]
    return MemoryFall(
        title=f"Memory of stage {full.stage} at its peak ({full.moment})",
        parts=tuple(part.name for part in parts),
        levels=tuple(part.level.value for part in parts),
        what=tuple(part.what for part in parts),
        bytes=np.array([part.size_bytes for part in parts]),
        limit_bytes=found.usable_bytes,
    )


def _plan_cloud(answer: PlanAnswer) -> PlanCloud | None:
    """The best plan for each set of parallel degrees that fits, and the Pareto front; None for fewer than two."""
    points, best = answer.search.points, answer.best
    if best is None or len(points.step_s) < 2:
        return None
    rows = points.rows
    labels = [
        ", ".join(f"{name} {int(rows[name][i])}" for name in ("tp", "pp", "dp", "cp", "ep") if int(rows[name][i]) > 1)
        or "one device"
        for i in range(len(points.step_s))
    ]
    ahead = list(answer.search.front)
    if not any(p.step_s == best.step_s and p.peak_bytes == best.peak_bytes for p in ahead):
        ahead.append(best)  # not in the grid, because its layers are placed unevenly
    front = [(p.step_s, p.peak_bytes) for p in ahead]
    step = np.concatenate([points.step_s, [t for t, _ in front]])
    held = np.concatenate([points.device_bytes, [b for _, b in front]])
    labels += [plan_words(p.plan, short=True) for p in ahead]
    tp = np.concatenate([np.asarray(rows["tp"], dtype=np.int64), [int(p.plan.dims.tp) for p in ahead]])
    leanest = min((b for _, b in front), default=best.peak_bytes)
    return PlanCloud(
        title=f"Memory against time: plans that fit need {format_bytes(leanest)} to {format_bytes(float(held.max()))}",
        labels=tuple(labels),
        step_s=step.astype(np.float64),
        device_bytes=held.astype(np.float64),
        tp=tp.astype(np.int64),
        on_front=np.arange(len(step)) >= len(points.step_s),
        best=len(points.step_s) + front.index((best.step_s, best.peak_bytes)),
        limit_bytes=usable_bytes(answer.cluster),
    )


def _drawn_timeline(answer: PlanAnswer, most: int) -> tuple[Timeline, int]:
    """The best plan's timeline with as many microbatches as fit in ``most`` tasks, and their number."""
    assert answer.best is not None
    plan = answer.best.plan
    count = drawable(plan, most)
    fewer = replace(plan, num_microbatches=count)
    return timeline(answer.job, fewer, answer.cluster, answer.calibration), count


def drawable(plan: TrainingPlan, most: int = MOST_DRAWN) -> int:
    """The number of microbatches to draw: whole rounds of the pipeline if it interleaves."""
    pp, virtual, count = int(plan.dims.pp), int(plan.virtual_stages), int(plan.num_microbatches)
    rounds = max(most // (3 * pp * virtual), 1)
    if count <= rounds:
        return count
    return max(rounds // pp * pp, pp) if pp > 1 else rounds


def _pipeline_bars(line: Timeline, best: PricedPlan, drawn: int) -> PipelineBars:
    """All tasks of all stages, with the first ``drawn`` microbatches."""
    from sartor.report.trace import KINDS

    shown = [e for e in line.events if not str(e.kind).startswith("send")]
    count, pp = int(best.plan.num_microbatches), int(best.plan.dims.pp)
    few = f" (drawn with {drawn} of its {count} microbatches)" if drawn < count else ""
    idle = float(best.step.parts["pp_bubble_s"]) / best.step_s
    what = f"The pipeline bubble takes {format_share(idle)} of the step" if pp > 1 else "Timeline of one device"
    return PipelineBars(
        title=what + few,
        stage=np.array([e.device for e in shown]),
        kind=tuple(KINDS.get(str(e.kind), str(e.kind)) for e in shown),
        microbatch=np.array([e.microbatch for e in shown]),
        chunk=np.array([e.chunk for e in shown]),
        start_s=np.array([e.start_s for e in shown]),
        end_s=np.array([e.end_s for e in shown]),
        num_stages=len(line.memory),
    )


def _memory_tracks(line: Timeline, limit_bytes: float) -> MemoryTracks:
    """Memory of the first, the last and the fullest stage over the step."""
    fullest = max(line.memory, key=lambda track: track.peak_bytes).device
    chosen = sorted({0, fullest, len(line.memory) - 1})
    tracks = [line.memory[device] for device in chosen]
    peak = max(track.peak_bytes for track in tracks)
    return MemoryTracks(
        title=f"States and activations peak at {format_bytes(peak)} on stage {fullest}",
        stages=tuple(chosen),
        times_s=tuple(np.append(track.times_s, line.step_s) for track in tracks),
        bytes=tuple(np.append(track.bytes_held, track.bytes_held[-1]) for track in tracks),
        limit_bytes=limit_bytes,
    )


def plan_points(answer: PlanAnswer, most_drawn: int = MOST_DRAWN) -> dict[str, object]:
    """Records by figure name, in reading order; empty if no plan fits. ``most_drawn``: tasks of the timeline."""
    if answer.best is None:
        return {}
    memory = waterfall(answer.job, answer.best.plan, answer.cluster)
    line, drawn = _drawn_timeline(answer, most_drawn)
    found: dict[str, object | None] = {
        "step": _best_steps(answer.search.top),
        "memory": _memory_bars(memory) if len(memory.stages) > 1 else None,
        "memory_fall": _memory_fall(memory),
        "plans": _plan_cloud(answer),
        "pipeline": _pipeline_bars(line, answer.best, drawn),
        "pipeline_memory": _memory_tracks(line, usable_bytes(answer.cluster)),
    }
    return {name: points for name, points in found.items() if points is not None}


LABELLED = 260
"""Most tasks that are labelled with their microbatch."""


def draw_step_bars(points: StepBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, the best plan first; the line is the 80% interval of the step."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.high_s.max()))
    labels = unique(points.plans)
    sums = columns(
        label=labels, size=points.time_s.sum(axis=1) * scale, low=points.low_s * scale, high=points.high_s * scale
    )
    tips = sheet.hover("label:N", "part:N", ("size:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"))
    whole = sheet.hover("label:N", *((f"{name}:Q", f"{words} [{unit}]", ".3g") for name, words in WHOLE))
    bars = stacked(labels, points.parts, points.time_s * scale)
    colour = sheet.colour("part", points.parts)
    bar = sheet.stack(bars, labels, sheet.x("size:Q", f"step time [{unit}]"), colour, tips)
    interval = sheet.interval(sums, sheet.names("label", labels), whole)
    return sheet.finish(bar + interval, points.title, height=rows_height(len(labels)))


WHOLE = (("size", "step"), ("low", "80% low"), ("high", "80% high"))


def draw_memory_bars(points: MemoryBars, frame: Frame = FILE) -> Chart:
    """Stacked bars, one per stage (or run of equal stages), and the limit of a device."""
    sheet = Sheet.of(frame)
    bars = stacked(points.stages, points.parts, points.bytes / GIB)
    tips = sheet.hover("label:N", "part:N", ("size:Q", "size [GiB]", ".3g"))
    colour = sheet.colour("part", points.parts)
    bar = sheet.stack(bars, points.stages, sheet.x("size:Q", MEMORY), colour, tips)
    return sheet.finish(bar + _limit(sheet, points.limit_bytes), points.title, height=rows_height(len(points.stages)))


def _limit(sheet: Sheet, limit_bytes: float, *, across: str = "x") -> Chart:
    """A dashed line at the limit of a device, with its words where they have room."""
    rows = [{"limit": limit_bytes / GIB, "what": f"usable {format_bytes(limit_bytes)}"}]
    line, tips = sheet.rows(rows).encode(**{across: "limit:Q"}), sheet.hover(("what:N", " "))
    rule = line.mark_rule(color=sheet.theme.vermillion, strokeDash=[5, 4], strokeWidth=1.5).encode(tooltip=tips)
    if across == "x":
        return rule
    words = line.mark_text(align="right", dy=-7, fontSize=11, color=sheet.theme.muted)
    return rule + words.encode(x=sheet.alt.value("width"), text="what:N")


MEMORY = "memory of a device [GiB]; dashed: usable"
LEVELS = {"theory": "blue", "allocated": "green", "needed": "orange", "device": "grey"}
"""Colours of the theme by level of memory."""


def draw_memory_fall(points: MemoryFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts at the sum of those before it."""
    sheet, labels = Sheet.of(frame), unique(points.parts)
    rows = falling(part=labels, level=points.levels, what=points.what, size=points.bytes / GIB)
    used = list(dict.fromkeys(points.levels))
    bar = sheet.bars(rows, "part", labels).encode(
        x=sheet.x("from:Q", MEMORY),
        x2="to:Q",
        color=sheet.colour("level", used, [getattr(sheet.theme, LEVELS[level]) for level in used]),
        tooltip=sheet.hover("part:N", ("size:Q", "size [GiB]", ".3g"), ("to:Q", "sum so far [GiB]", ".4g"), "what:N"),
    )
    crowded = 0.85 * points.limit_bytes / GIB
    words = [
        sheet.rows([row for row in rows if (row["to"] > crowded) is late])
        .mark_text(align="right" if late else "left", dx=-5 if late else 5, color=sheet.theme.muted, fontSize=11)
        .encode(
            y=sheet.names("part", labels),
            x="from:Q" if late else "to:Q",
            text=sheet.alt.Text("size:Q", format=".3~g"),
        )
        for late in (False, True)
    ]
    chart = sheet.alt.layer(bar, *words, _limit(sheet, points.limit_bytes))
    return sheet.finish(chart, points.title, height=rows_height(len(labels)))


def draw_plan_cloud(points: PlanCloud, frame: Frame = FILE) -> Chart:
    """Plans as points of step time and memory, with the Pareto front, best plan and memory limit."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.step_s.max()))
    theme = sheet.theme
    words = [f"tp {degree}" for degree in points.tp.tolist()]
    time, memory = points.step_s * scale, points.device_bytes / GIB
    rows = columns(plan=points.labels, time=time, memory=memory, tp=words, front=points.on_front)
    kind = {"type": "log"} if time.max() / time.min() > 3 else {"type": "linear", "zero": False}
    x = sheet.x("time:Q", f"predicted step [{unit}]", 6, nice=True, padding=24, **kind)
    y = sheet.y("memory:Q", "fullest device [GiB]", zero=True)
    tips = sheet.hover("plan:N", ("time:Q", f"step [{unit}]", ".4g"), ("memory:Q", "memory [GiB]", ".3g"))
    degrees = [f"tp {degree}" for degree in sorted(set(points.tp.tolist()))]
    cloud = sheet.rows([row for row in rows if not row["front"]]).mark_point(filled=True, size=42, opacity=0.75)
    edge = sheet.rows(sorted((row for row in rows if row["front"]), key=lambda row: float(row["time"])))
    line = edge.mark_line(color=theme.ink, strokeWidth=1.2, interpolate="step-after", opacity=0.7)
    marks = edge.mark_point(color=theme.ink, size=22, opacity=0.9)
    last = max((row for row in rows if row["front"]), key=lambda row: float(row["time"])) | {"text": "Pareto front"}
    name = sheet.rows([last]).mark_text(align="right", dy=-10, color=theme.muted, fontSize=11)
    star = sheet.rows([rows[points.best] | {"text": "best"}])
    best = star.mark_point(color=theme.vermillion, filled=True, size=130, shape="diamond", opacity=1)
    label = star.mark_text(align="right", dx=-9, dy=4, color=theme.vermillion, fontWeight="bold", fontSize=12)
    layers = [
        line.encode(x=x, y=y),
        marks.encode(x=x, y=y, tooltip=tips),
        cloud.encode(x=x, y=y, tooltip=tips, color=sheet.colour("tp", degrees)),
        best.encode(x=x, y=y, tooltip=tips),
        label.encode(x=x, y=y, text="text:N"),
        name.encode(x=x, y=y, text="text:N"),
        _limit(sheet, points.limit_bytes, across="y"),
    ]
    return sheet.finish(sheet.alt.layer(*layers), points.title, height=320)


def draw_pipeline(points: PipelineBars, frame: Frame = FILE) -> Chart:
    """Stages as rows, tasks as boxes with their microbatch."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.end_s.max()))
    theme, start, end = sheet.theme, points.start_s * scale, points.end_s * scale
    rows = columns(
        line=[f"stage {stage}" for stage in points.stage.tolist()],
        what=points.kind,
        micro=points.microbatch,
        chunk=points.chunk,
        start=start,
        end=end,
        middle=(start + end) / 2,
        took=end - start,
    )
    height = max(min(26, 420 // points.num_stages), 9)
    lines = [f"stage {stage}" for stage in range(points.num_stages)]
    tips = sheet.hover("line:N", "what:N", ("micro:Q", "microbatch"), "chunk:Q", *when(unit))
    used = [kind for kind in KINDS.values() if kind in points.kind]
    x = sheet.x("start:Q", f"time since the step began [{unit}]", 8)
    look = {"height": height - 3, "stroke": theme.surface, "strokeWidth": 0.4}
    chart = sheet.spans(rows, lines, x, sheet.colour("what", used), tips, **look)
    if len(rows) <= LABELLED:
        work = sheet.rows([row for row in rows if row["what"] in ("forward", "backward", "weight gradient")])
        numbers = work.mark_text(fontSize=9, color=theme.surface)
        chart += numbers.encode(y=sheet.names("line", lines), x="middle:Q", text="micro:Q")
    return sheet.finish(chart, points.title, height=max(height * points.num_stages, 60))


def draw_memory_tracks(points: MemoryTracks, frame: Frame = FILE) -> Chart:
    """Memory over the step, and the limit of a device."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(max(float(times[-1]) for times in points.times_s))
    words = [f"stage {stage}" for stage in points.stages]
    rows = [
        row
        for word, times, sizes in zip(words, points.times_s, points.bytes, strict=True)
        for row in columns(stage=[word] * len(times), time=times * scale, memory=sizes / GIB)
    ]
    line = (
        sheet.rows(rows)
        .mark_line(interpolate="step-after", strokeWidth=1.4)
        .encode(
            x=sheet.x("time:Q", f"time since the step began [{unit}]", 8),
            y=sheet.y("memory:Q", "states and activations [GiB]", 4, zero=True),
            color=sheet.colour("stage", words, list(sheet.theme.series[: len(words)])),
            tooltip=sheet.hover("stage:N", ("time:Q", f"at [{unit}]", ".4g"), ("memory:Q", "holds [GiB]", ".3g")),
        )
    )
    return sheet.finish(line + _limit(sheet, points.limit_bytes, across="y"), points.title, height=190)
