"""The records of a design's figures by name: steps, cores of a layer, pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.answers.design import STEP_TIME, DesignAnswer
from sartor.designs.detail import ModelDetail, layer_schedule, model_detail
from sartor.designs.question import DesignQuestion
from sartor.designs.result import Ranked
from sartor.json_types import JsonDict
from sartor.model.training import PipelineSchedule
from sartor.report.chip_points import convergence, design_cloud, floor_plan
from sartor.report.design_shapes import regret_points
from sartor.report.design_words import plan_text
from sartor.report.gantt import SHARED
from sartor.report.plan_points import PipelineBars, StepBars, step_bars
from sartor.report.words import printable
from sartor.schedules.makespan import UNIT_S
from sartor.schedules.result import Mode, ScheduleResult
from sartor.step.mechanisms.gradient_reduction import GRADIENT_REDUCTION
from sartor.step.mechanisms.mechanism import BUBBLE
from sartor.step.mechanisms.optimizer import OPTIMIZER_STEP
from sartor.step.simulation import PipelineTimes, simulate
from sartor.units import format_seconds, format_share

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
        "shapes": None if answer.shapes is None else regret_points(answer.shapes),
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
