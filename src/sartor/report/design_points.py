"""The numbers behind a design's figures: points and front, convergence, steps, the die, a layer's cores, pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.answers import DesignAnswer
from sartor.model.training import PipelineSchedule
from sartor.report.design_shapes import regret_points
from sartor.report.design_words import (
    AREA_WORDS,
    STEP_WORDS,
    UNITS,
    against_text,
    plan_text,
    rate,
    short_chip,
)
from sartor.report.plan_points import PipelineBars, StepBars
from sartor.report.words import printable
from sartor.schedule.from_graph import UNIT_S
from sartor.schedule.solve import Mode, ScheduleResult
from sartor.search.joint_detail import ModelDetail, area_parts, layer_schedule, model_detail
from sartor.search.joint_pareto import value_of
from sartor.search.joint_question import DesignQuestion
from sartor.search.joint_result import Ranked
from sartor.training.simulation import PipelineTimes, simulate
from sartor.units import GIGA, format_seconds, format_share

Numbers = npt.NDArray[np.float64]

MOST_TASKS = 1200
"""Tasks of a pipeline that are drawn."""
MOST_LAYERS = 3
"""Models whose layers and pipelines are drawn, in the order given."""
MOST_CELLS = 64
"""Arrays that are drawn one by one on a die."""
MOST_CLOUD = 1500
"""Evaluated points that are drawn, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCloud:
    """Evaluated points as a cost against the objective, the front told apart, and other ways to choose by name.

    ``across`` and ``shade`` are the first two axes of the front that was asked for, named in ``axes`` with their units;
    without one, area alone.
    """

    title: str
    unit: str
    labels: tuple[str, ...]
    area_mm2: Numbers
    power_w: Numbers
    objective: Numbers
    kind: tuple[str, ...]
    """``best``, ``front``, ``evaluated`` or ``baseline``."""
    axes: tuple[str, ...]
    across: Numbers
    shade: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """What is proved and what is reached while the search runs."""

    title: str
    unit: str
    seconds: Numbers
    bound: Numbers
    incumbent: Numbers
    evaluated: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """Dies side by side at one scale, parts as rectangles of their area [mm]; a sketch, not a layout."""

    title: str
    die: tuple[str, ...]
    part: tuple[str, ...]
    area_mm2: Numbers
    share: Numbers
    left: Numbers
    top: Numbers
    right: Numbers
    bottom: Numbers
    names: tuple[tuple[str, float, float], ...]
    """Of each die: name, left edge, side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreBars:
    """When which cores work on which operator of a layer [s]; cores that do the same share a line."""

    title: str
    lines: tuple[str, ...]
    operator: tuple[str, ...]
    line: tuple[str, ...]
    mode: tuple[str, ...]
    start_s: Numbers
    end_s: Numbers


def design_points(answer: DesignAnswer) -> dict[str, Any]:
    """Records by the name of their figure, in the order they are read; empty where there is no best point."""
    best, asked = answer.best, answer.question
    if best is None:
        return {}
    details = _details(asked, best)
    found: dict[str, Any] = {
        "convergence": convergence(answer),
        "points": design_cloud(answer),
        "shapes": None if answer.shapes is None else regret_points(answer.shapes),
        "step": step_bars(details),
        "floor_plan": floor_plan(answer),
    }
    for m, detail in enumerate(details[:MOST_LAYERS]):
        suffix = "" if len(details) == 1 else f"_{m + 1}"
        found |= {f"{name}{suffix}": record for name, record in layer_bars(asked, best, detail)}
        found[f"pipeline{suffix}"] = pipeline_bars(detail)
    return {name: record for name, record in found.items() if record is not None}


def _details(asked: DesignQuestion, ranked: Ranked) -> list[ModelDetail]:
    found = (model_detail(asked, ranked.evaluation, m) for m in range(len(asked.models)))
    return [each for each in found if each is not None]


# --------------------------------------------------------------------------------------------------- the search


def convergence(answer: DesignAnswer) -> Convergence | None:
    """Bound and incumbent over time; None where there was nothing to watch."""
    steps = [step for step in answer.result.trajectory if step.bound > 0 and np.isfinite(step.bound)]
    if len(steps) < 2:
        return None
    found = answer.result
    last = steps[-1].seconds
    if found.gap:
        said = f"After {format_seconds(last)} no point can be more than {format_share(found.gap)} better"
    else:
        said = f"Proved after {format_seconds(last)}: nothing in the space is better"
    return Convergence(
        title=f"{said}; {found.evaluated:,} of {found.evaluated + found.pruned:,} points evaluated",
        unit=UNITS[answer.question.objective],
        seconds=np.array([step.seconds for step in steps]),
        bound=np.array([step.bound for step in steps]),
        incumbent=np.array([step.incumbent for step in steps]),
        evaluated=np.array([step.evaluated for step in steps]),
    )


def design_cloud(answer: DesignAnswer) -> DesignCloud | None:
    """Evaluated points by area; None where there is one alone."""
    best = answer.best
    ranked = [each for each in answer.result.ranked[:MOST_CLOUD] if each.objective > 0]
    if answer.proved_front is not None and best is not None:
        ranked += [each for each in answer.front if each.objective < best.objective]
    others = [(each.name, each.ranked) for each in answer.result.baselines if each.ranked is not None]
    if best is None or len(ranked) + len(others) < 2:
        return None
    front = {id(each) for each in answer.front}
    kinds = ["best" if each is best else "front" if id(each) in front else "evaluated" for each in ranked]
    everything = [*ranked, *(other for _, other in others)]
    axes = answer.proved_front.axes if answer.proved_front is not None else ("area_mm2",)
    return DesignCloud(
        title=_cloud_title(best, others),
        unit=UNITS[answer.question.objective],
        labels=(
            *(short_chip(each.evaluation.point.accelerator) for each in ranked),
            *(printable(name) for name, _ in others),
        ),
        area_mm2=np.array([each.area_mm2 for each in everything]),
        power_w=np.array([each.power_w for each in everything]),
        objective=np.array([each.objective for each in everything]),
        kind=(*kinds, *("baseline" for _ in others)),
        axes=tuple(AXES[axis][0] for axis in axes[:2]),
        across=_on(everything, axes[0]),
        shade=_on(everything, axes[-1] if len(axes) < 2 else axes[1]),
    )


AXES = {
    "area_mm2": ("die [mm2]", 1.0),
    "power_w": ("power at most [W]", 1.0),
    "hbm_bytes": ("memory [GB]", GIGA),
    "usd": ("die and memory [USD]", 1.0),
}
"""What a front may be over: its title, and what of the SI unit is one."""


def _on(ranked: Sequence[Ranked], axis: str) -> Numbers:
    values = [value_of(each, axis) for each in ranked]
    return np.array(values, dtype=np.float64) / AXES[axis][1]


def _cloud_title(best: Ranked, others: Sequence[tuple[str, Ranked]]) -> str:
    if not others:
        return f"The best point reaches {rate(best.objective)} on {best.area_mm2:,.0f} mm2"
    name, first = others[0]
    return f"The best point reaches {against_text(best, first)} of {printable(name)}"


# ---------------------------------------------------------------------------------------------------- the winner


def step_bars(details: Sequence[ModelDetail]) -> StepBars:
    """Every model's step by part."""
    table = np.array([[float(getattr(each.time, name)) for name in STEP_WORDS] for each in details])
    keep = (table / table.sum(axis=1, keepdims=True)).max(axis=0) >= 0.001
    busy = table[:, 0] / table.sum(axis=1)
    slow = details[int(busy.argmin())]
    of = "" if len(details) == 1 else f" of {printable(slow.outcome.name)}"
    return StepBars(
        title=f"{format_share(float(busy.min()))} of the step{of} is work on microbatches",
        plans=tuple(printable(each.outcome.name) for each in details),
        parts=tuple(words for words, kept in zip(STEP_WORDS.values(), keep, strict=True) if kept),
        time_s=table[:, keep],
        low_s=np.array([each.low_s for each in details]),
        high_s=np.array([each.high_s for each in details]),
    )


def floor_plan(answer: DesignAnswer) -> FloorPlan:
    """The best die beside the first baseline's, to scale."""
    best = answer.best
    assert best is not None
    dies = [("best", best)]
    for each in answer.result.baselines:
        other = each.ranked
        if other is not None and other.evaluation.point.accelerator.name not in ("", *(n for n, _ in dies)):
            dies.append((other.evaluation.point.accelerator.name, other))
    rows: list[tuple[Any, ...]] = []
    names: list[tuple[str, float, float]] = []
    at = 0.0
    for name, ranked in dies[:3]:
        parts = area_parts(answer.question, ranked.evaluation.point.accelerator)
        order = sorted(parts.items(), key=lambda part: -part[1])
        side = float(np.sqrt(sum(parts.values())))
        cores = int(ranked.evaluation.point.accelerator.num_tensor_cores)
        for (part, area), box in zip(order, squarified([area for _, area in order], side), strict=True):
            cells = _cells(box, cores if part == "arrays_mm2" and cores <= MOST_CELLS else 1)
            for left, top, right, bottom in cells:
                one = area / len(cells), area / side**2
                rows.append((name, AREA_WORDS[part], *one, at + left, top, at + right, bottom))
        names.append((f"{printable(name)}: {side**2:,.0f} mm2", at, side))
        at += side * 1.08
    columns = list(zip(*rows, strict=True))
    largest = max((row for row in rows if row[0] == "best"), key=lambda row: row[3])
    return FloorPlan(
        title=f"{format_share(largest[3])} of the best die's {best.area_mm2:,.0f} mm2 are its {largest[1]}",
        die=columns[0],
        part=columns[1],
        area_mm2=np.array(columns[2]),
        share=np.array(columns[3]),
        left=np.array(columns[4]),
        top=np.array(columns[5]),
        right=np.array(columns[6]),
        bottom=np.array(columns[7]),
        names=tuple(names),
    )


Box = tuple[float, float, float, float]


def _cells(box: Box, count: int) -> list[Box]:
    """A rectangle in ``count`` equal ones, as square as whole rows allow."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    shapes = [(n, count // n) for n in range(1, count + 1) if count % n == 0]
    across, down = min(shapes, key=lambda each: abs(np.log(width / each[0] * each[1] / height)))
    w, h = width / across, height / down
    return [
        (left + i * w, top + j * h, left + (i + 1) * w, top + (j + 1) * h) for i in range(across) for j in range(down)
    ]


def squarified(areas: Sequence[float], side: float) -> list[Box]:
    """Rectangles of the given areas (largest first) that fill a square: rows laid along the shorter edge, each closed
    when one more would make its rectangles longer (Bruls, Huizing and van Wijk, Squarified Treemaps, 2000)."""
    boxes: list[Box] = []
    left, top, right, bottom = 0.0, 0.0, side, side
    rest = list(areas)
    while rest:
        short = min(right - left, bottom - top)
        taken = 1
        while taken < len(rest) and _longest(rest[: taken + 1], short) <= _longest(rest[:taken], short):
            taken += 1
        row, rest = rest[:taken], rest[taken:]
        thick = sum(row) / short if short else 0.0
        across = right - left >= bottom - top
        at = top if across else left
        for area in row:
            step = area / thick if thick else 0.0
            boxes.append((left, at, left + thick, at + step) if across else (at, top, at + step, top + thick))
            at += step
        left, top = (left + thick, top) if across else (left, top + thick)
    return boxes


def _longest(row: Sequence[float], short: float) -> float:
    """The largest aspect ratio in a row along an edge."""
    thick = sum(row) / short
    if not thick:
        return float("inf")
    return max(max(thick**2 / area, area / thick**2) if area else 1.0 for area in row)


def layer_bars(asked: DesignQuestion, ranked: Ranked, detail: ModelDetail) -> Iterator[tuple[str, CoreBars]]:
    """The schedule of the commonest layer, forward and backward."""
    found = layer_schedule(asked, ranked.evaluation.point, detail.outcome)
    of = f"one of {found.count} layers of {printable(detail.outcome.name)}"
    for way, result in (("forward", found.forward), ("backward", found.backward)):
        yield f"layer_{way}", core_bars(result, f"{way.capitalize()} through {of}")


def core_bars(result: ScheduleResult, what: str) -> CoreBars:
    """Cores by what they do, those that do the same as one line."""
    work: dict[str, list[tuple[str, str, float, float]]] = {}
    problem = result.problem
    for kind, total in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        groups: dict[tuple[Any, ...], list[int]] = {}
        of: dict[int, list[tuple[Any, ...]]] = {core: [] for core in range(total)}
        for row in result.operators:
            for core in row.tensor_cores if kind == "TC" else row.vector_cores:
                of[core].append((str(row.id), row.mode, row.start * UNIT_S, row.end * UNIT_S))
        for core, bars in of.items():
            groups.setdefault(tuple(bars), []).append(core)
        for same, cores in groups.items():
            work[f"{kind} {_span(cores)}"] = [
                (name, "all cores, alone" if mode is Mode.INTRA_OP else "one core", start, end)
                for name, mode, start, end in same
            ]
    flat = [(line, *bar) for line, bars in work.items() for bar in bars]
    gap = f", within {100 * result.gap:.2g}% of the best possible" if result.gap else ", proved shortest"
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
    more = len(cores) - (last - first + 1)
    return f"{text} and {more} more" if more else text


def pipeline_bars(detail: ModelDetail) -> PipelineBars:
    """One copy's step in time from an event simulation of its stages, with the end of the step as one box a stage."""
    stages, count = detail.stages, detail.num_microbatches
    drawn = min(count, max(MOST_TASKS // (2 * len(stages)), len(stages) + 2))
    forward = np.array([[stage.forward_s] for stage in stages])
    backward = np.array([[stage.load_s - stage.forward_s] for stage in stages])
    times = PipelineTimes(forward_s=forward, dgrad_s=backward, wgrad_s=np.zeros_like(backward))
    events = [e for e in simulate(PipelineSchedule.ONE_F_ONE_B, times, drawn) if not str(e.kind).startswith("send")]
    rows = [
        (e.device, "forward" if str(e.kind) == "F" else "backward", e.microbatch, e.start_s, e.end_s) for e in events
    ]
    done = max(row[4] for row in rows)
    for stage in range(len(stages)):
        at = done
        for kind, seconds in (("reduce gradients", detail.time.resync_s), ("optimizer step", detail.time.optimizer_s)):
            if seconds > 0:
                rows.append((stage, kind, 0, at, at + seconds))
            at += seconds
    few = f" (drawn with {drawn} of its {count} microbatches)" if drawn < count else ""
    idle = detail.time.fill_s / detail.time.total_s
    name = printable(detail.outcome.name)
    said = f"{name}: {format_share(idle)} of the step fills and drains the pipeline" if len(stages) > 1 else ""
    return PipelineBars(
        title=(said or f"{name}: {plan_text(detail)}") + few,
        stage=np.array([row[0] for row in rows]),
        kind=tuple(row[1] for row in rows),
        microbatch=np.array([row[2] for row in rows]),
        chunk=np.zeros(len(rows), dtype=np.int64),
        start_s=np.array([row[3] for row in rows]),
        end_s=np.array([row[4] for row in rows]),
        num_stages=len(stages),
    )
