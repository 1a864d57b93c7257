"""The records of a design's figures by name: steps, cores of a layer, pipelines, shapes against chips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.answers.design import STEP_TIME, DesignAnswer, rate
from sartor.designs.baselines import NamedChip
from sartor.designs.candidates import Ranked
from sartor.designs.detail import ModelDetail, layer_schedule, model_detail
from sartor.designs.question import DesignQuestion
from sartor.designs.shapes import ShapeDesign
from sartor.json_types import JsonDict
from sartor.model.training import PipelineSchedule
from sartor.report.chip_points import convergence, design_cloud, floor_plan
from sartor.report.design_words import memory_text, plan_text, short_chip
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, time_unit, when
from sartor.report.grid import Grid, GridColumn, grid_of
from sartor.report.plan_points import PipelineBars, StepBars, step_bars
from sartor.report.solved import SHARED
from sartor.report.words import printable
from sartor.schedules.makespan import UNIT_S
from sartor.schedules.problem import Mode, ScheduleResult
from sartor.step.mechanisms.gradient_reduction import GRADIENT_REDUCTION
from sartor.step.mechanisms.mechanism import BUBBLE
from sartor.step.mechanisms.optimizer import OPTIMIZER_STEP
from sartor.step.orders import PipelineTimes, simulate
from sartor.units import format_seconds, format_share


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretMatrix:
    """Share of throughput each shape loses on each chip against its own best chip [shapes, chips]."""

    title: str
    shapes: tuple[str, ...]
    chips: tuple[str, ...]
    regret: npt.NDArray[np.float64]
    reached: npt.NDArray[np.float64]


def shapes_lines(design: ShapeDesign) -> list[str]:
    """The best pair, the best chip for all shapes, the best shape for all chips."""
    index, value = design.best
    original = next((i for i, variant in enumerate(design.variants) if not variant.changed), 0)
    chip, (robust, worst) = design.chips[design.chip_for_family], design.fleet_shape
    worst_of_chip = float(design.chip_regret[:, design.chip_for_family].max())
    gain = value / float(design.best_rate[original]) if design.best_rate[original] else 1.0
    where = "the fleet" if any(design.fleet) else "all of these chips"
    return [
        f"Best pair: {design.variants[index].name} on its own best chip, {rate(value)} sequences/s "
        f"({gain:.2f}x the unchanged model on its best chip).",
        f"Best chip for all shapes: {_chip_label(chip)}; no shape loses more than {format_share(worst_of_chip)} on it.",
        f"Best shape for {where}: {design.variants[robust].name}; it loses at most {format_share(worst)} against the "
        "best shape of each.",
    ]


def regret_grid(design: ShapeDesign) -> Grid:
    """Throughput lost on a chip against the shape's own best chip."""
    count = len(design.variants)
    rows: list[tuple[str, ...]] = [
        (_chip_label(chip), *(_loss(design, shape, c) for shape in range(count))) for c, chip in enumerate(design.chips)
    ]
    rows.append(("seq/s on its best chip", *(rate(float(reached)) for reached in design.best_rate)))
    rows += [(f"shape {i + 1}: {variant.name}", *[""] * count) for i, variant in enumerate(design.variants)]
    return grid_of("Throughput lost", ("chip", *(f"shape {i + 1}" for i in range(count))), rows)


def _loss(design: ShapeDesign, shape: int, chip: int) -> str:
    return format_share(float(design.chip_regret[shape, chip])) if design.reached[shape, chip] else "no fit"


def rates_grid(design: ShapeDesign) -> Grid:
    """Throughput of every shape on every chip."""
    columns = [GridColumn(head=f"shape {i + 1}", explains=shape.name) for i, shape in enumerate(design.variants)]
    rows = [
        (
            _chip_label(chip),
            ", ".join(memory_text(size) for size in chip.hbm_bytes),
            *(rate(float(reached)) if reached else "no fit" for reached in design.reached[:, c]),
        )
        for c, chip in enumerate(design.chips)
    ]
    caption = "Sequences per second of every shape on every chip, with searched placement"
    return grid_of(caption, ("chip", "memory", *columns), rows)


def _chip_label(chip: NamedChip) -> str:
    """``16x256x128 + 32x256, 96 MiB (best for all shapes)``."""
    name = "best for all shapes" if chip.for_all_shapes else chip.name.replace(" and shape ", ", ")
    return f"{short_chip(chip.accelerator)} ({printable(name)})"


def _regret_points(design: ShapeDesign) -> RegretMatrix:
    """The regret matrix as the record of its figure."""
    fits = design.reached > 0
    smallest = float(design.chip_regret[:, design.chip_for_family].max())
    return RegretMatrix(
        title=f"On the best chip for all shapes, no shape loses more than {format_share(smallest)}",
        shapes=tuple(f"{i + 1}: {printable(entry.name)}" for i, entry in enumerate(design.variants)),
        chips=tuple(_chip_label(entry) for entry in design.chips),
        regret=np.where(fits, design.chip_regret, np.nan),
        reached=design.reached,
    )


def draw_regrets(points: RegretMatrix, frame: Frame = FILE) -> Chart:
    """Cells by shape and chip; darker cells lose more throughput."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    count, losses = len(points.chips), points.regret.ravel().tolist()
    rows = columns(
        shape=[f"shape {i + 1}" for i in range(len(points.shapes)) for _ in points.chips],
        what=[shape for shape in points.shapes for _ in points.chips],
        chip=points.chips * len(points.shapes),
        regret=[loss if np.isfinite(loss) else None for loss in losses],
        rate=points.reached.ravel(),
        words=[f"{100 * loss:.1f}%" if np.isfinite(loss) else "no fit" for loss in losses],
    )
    x = alt.X("shape:N", title=None, axis=alt.Axis(labelAngle=0))
    y = sheet.names("chip", points.chips)
    shade = alt.Opacity("regret:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.9]), legend=None)
    tips = sheet.hover(("what:N", "shape"), "chip:N", ("regret:Q", "lost", ".2%"), ("rate:Q", "sequences/s", ",.5~g"))
    cells = sheet.rows(rows).mark_rect(stroke=theme.surface, strokeWidth=2, color=theme.vermillion).encode(
        x=x, y=y, opacity=shade, tooltip=tips
    )  # fmt: skip
    words = sheet.rows(rows).mark_text(fontSize=11, color=theme.ink).encode(x=x, y=y, text="words:N")
    return sheet.finish(cells + words, points.title, height=max(34 * count, 80))


Numbers = npt.NDArray[np.float64]

MOST_TASKS = 1200
"""Most tasks of a pipeline drawn."""
MOST_LAYERS = 3
"""Most models whose layers and pipelines are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreBars:
    """Operators of a layer by core and time [s]; cores with the same work share a line."""

    title: str
    lines: tuple[str, ...]
    operator: tuple[str, ...]
    line: tuple[str, ...]
    mode: tuple[str, ...]
    start_s: Numbers
    end_s: Numbers


def design_points(answer: DesignAnswer) -> JsonDict:
    """Records by figure name, in reading order; empty without a best point."""
    best, question = answer.best, answer.question
    if best is None:
        return {}
    details = _details(question, best)
    points: JsonDict = {
        "convergence": convergence(answer),
        "points": design_cloud(answer),
        "shapes": None if answer.shapes is None else _regret_points(answer.shapes),
        "step": _steps(details),
        "floor_plan": floor_plan(answer),
    }
    for m, detail in enumerate(details[:MOST_LAYERS]):
        suffix = "" if len(details) == 1 else f"_{m + 1}"
        points |= {f"{name}{suffix}": record for name, record in layer_bars(question, best, detail)}
        points[f"pipeline{suffix}"] = pipeline_bars(detail)
    return {name: record for name, record in points.items() if record is not None}


def _details(question: DesignQuestion, ranked: Ranked) -> list[ModelDetail]:
    details = (model_detail(question, ranked.evaluation, m) for m in range(len(question.models)))
    return [detail for detail in details if detail is not None]


def _steps(details: Sequence[ModelDetail]) -> StepBars:
    busy = [float(STEP_TIME[0].read(detail.step) / detail.step.step_s) for detail in details]
    slow = printable(details[int(np.argmin(busy))].outcome.name)
    title = f"{format_share(min(busy))} of the step{f' of {slow}' * (len(details) > 1)} is spent on microbatches"
    return step_bars(title, (printable(detail.outcome.name) for detail in details), details, STEP_TIME, 0.001)


def layer_bars(question: DesignQuestion, ranked: Ranked, detail: ModelDetail) -> Iterator[tuple[str, CoreBars]]:
    """The schedule of the most frequent layer, forward and backward."""
    schedule = layer_schedule(question, ranked.evaluation.point, detail.outcome)
    subtitle = f"one of {schedule.count} layers of {printable(detail.outcome.name)}"
    for way, result in (("forward", schedule.forward), ("backward", schedule.backward)):
        yield f"layer_{way}", core_bars(result, f"{way.capitalize()} through {subtitle}")


def core_bars(result: ScheduleResult, what: str) -> CoreBars:
    """Cores by their work; equal ones share a line."""
    work: dict[str, list[tuple[str, str, float, float]]] = {}
    problem = result.problem
    for kind, total in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        groups: dict[tuple[Any, ...], list[int]] = {}
        bars_of: dict[int, list[tuple[Any, ...]]] = {core: [] for core in range(total)}
        for row in result.operators:
            for core in row.tensor_cores if kind == "TC" else row.vector_cores:
                bars_of[core].append((str(row.id), row.mode, row.start * UNIT_S, row.end * UNIT_S))
        for core, bars in bars_of.items():
            groups.setdefault(tuple(bars), []).append(core)
        for same, cores in groups.items():
            work[f"{kind} {_span(cores)}"] = [
                (name, "all cores, alone" if mode is Mode.INTRA_OP else "one core", start, end)
                for name, mode, start, end in same
            ]
    if name := SHARED.get(result.held_by, result.held_by):
        work[name] = [("bytes of all operators at full rate", "shared", 0.0, result.makespan * UNIT_S)]
    flat = [(line, *bar) for line, bars in work.items() for bar in bars]
    gap = f", within {100 * result.gap:.2g}% of the best possible" if result.gap else ", proved optimal"
    if name:
        gap += f", as long as {name} takes for the bytes"
    return CoreBars(
        title=f"{what}: {format_seconds(result.makespan * UNIT_S)}{gap}",
        lines=tuple(work),
        line=tuple(row[0] for row in flat),
        operator=tuple(printable(row[1]) for row in flat),
        mode=tuple(row[2] for row in flat),
        start_s=np.array([row[3] for row in flat]),
        end_s=np.array([row[4] for row in flat]),
    )


def _span(cores: Sequence[int]) -> str:
    """``0-3``, ``5``, or ``0-3 and 2 more``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and runs[-1][1] == core - 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    first, last = runs[0]
    text = str(first) if first == last else f"{first}-{last}"
    hidden = len(cores) - (last - first + 1)
    return f"{text} and {hidden} more" if hidden else text


def pipeline_bars(detail: ModelDetail) -> PipelineBars:
    """Timeline of one replica from an event simulation, with the end of the step as one box per stage."""
    plan, count = detail.outcome.plan, detail.num_microbatches
    num_stages = plan.num_stages
    drawn = min(count, max(MOST_TASKS // (2 * len(detail.stages)), num_stages + 2))
    drawn = min(count, drawn - drawn % -num_stages) if plan.virtual_stages > 1 else drawn  # whole rounds
    forward, load = (
        np.array([getattr(each, name) for each in detail.stages]).reshape(plan.virtual_stages, num_stages).T
        for name in ("forward_s", "load_s")
    )
    backward = load - forward
    times = PipelineTimes(forward_s=forward, dgrad_s=backward, wgrad_s=np.zeros_like(backward))
    events = [e for e in simulate(PipelineSchedule.ONE_F_ONE_B, times, drawn) if not str(e.kind).startswith("send")]
    rows = [
        (e.device, "forward" if str(e.kind) == "F" else "backward", e.microbatch, e.start_s, e.end_s, e.chunk)
        for e in events
    ]
    done = max(row[4] for row in rows)
    for stage in range(num_stages):
        start = done
        for mechanism in (GRADIENT_REDUCTION, OPTIMIZER_STEP):
            seconds = float(detail.step.parts[mechanism.part.key])
            if seconds > 0:
                rows.append((stage, mechanism.event, 0, start, start + seconds, 0))
            start += seconds
    few = f" (drawn with {drawn} of its {count} microbatches)" if drawn < count else ""
    idle = float(detail.step.parts[BUBBLE.key] / detail.step.step_s)
    name = printable(detail.outcome.name)
    bubble = f"{name}: the pipeline bubble takes {format_share(idle)} of the step" if num_stages > 1 else ""
    return PipelineBars(
        title=(bubble or f"{name}: {plan_text(detail)}") + few,
        stage=np.array([row[0] for row in rows]),
        kind=tuple(row[1] for row in rows),
        microbatch=np.array([row[2] for row in rows]),
        chunk=np.array([row[5] for row in rows]),
        start_s=np.array([row[3] for row in rows]),
        end_s=np.array([row[4] for row in rows]),
        num_stages=num_stages,
    )


def draw_core_bars(points: CoreBars, frame: Frame = FILE) -> Chart:
    """Operators on cores over time, coloured by how they were split."""
    sheet, last = Sheet.of(frame), float(points.end_s.max()) if len(points.end_s) else 1.0
    unit, scale = time_unit(last)
    start, end = points.start_s * scale, points.end_s * scale
    rows = columns(
        line=points.line,
        operator=points.operator,
        mode=points.mode,
        start=start,
        end=end,
        took=end - start,
        middle=(start + end) / 2,
    )
    modes = [mode for mode in ("all cores, alone", "one core", "shared") if mode != "shared" or mode in points.mode]
    x = sheet.x("start:Q", f"time [{unit}]", 12, domain=[0, last * scale], nice=False)
    tips = sheet.hover("operator:N", ("line:N", "cores"), "mode:N", *when(unit))
    look = {"stroke": sheet.theme.surface, "strokeWidth": 0.8, "height": 18}
    bars = sheet.spans(rows, points.lines, x, sheet.colour("mode", modes), tips, **look)
    wide = sheet.rows([row for row in rows if row["took"] * 11 > last * scale])
    names = wide.mark_text(fontSize=9, color="#1b1f24", limit=80)
    names = names.encode(x="middle:Q", y=sheet.names("line", points.lines), text="operator:N")
    return sheet.finish(bars + names, points.title, height=max(26 * len(points.lines), 60))
