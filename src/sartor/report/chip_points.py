"""Records of a design's figures: points with their Pareto front, bound and incumbent over time, dies to scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.answers.design import DesignAnswer, rate
from sartor.designs.candidates import Ranked
from sartor.designs.detail import area_parts
from sartor.designs.front import value_of
from sartor.report.design_words import AREA_WORDS, against_text, short_chips, unit_of
from sartor.report.words import printable
from sartor.units import GIGA, format_seconds, format_share

Numbers = npt.NDArray[np.float64]

MOST_CLOUD = 1500
"""Most evaluated points drawn, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCloud:
    """Evaluated points as cost against objective, with the Pareto front marked and the alternatives named.

    ``across`` and ``shade`` are the first two axes of the requested front, named in ``axes`` with their units; by
    default, area alone.
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
    """Upper bound and best value while the search runs."""

    title: str
    unit: str
    seconds: Numbers
    bound: Numbers
    incumbent: Numbers
    evaluated: npt.NDArray[np.int64]


def convergence(answer: DesignAnswer) -> Convergence | None:
    """Bound and incumbent over time; None with fewer than two steps."""
    steps = [step for step in answer.result.trajectory if step.bound > 0 and np.isfinite(step.bound)]
    if len(steps) < 2:
        return None
    result = answer.result
    last = steps[-1].seconds
    if result.gap:
        proof = f"After {format_seconds(last)}, no point can be more than {format_share(result.gap)} better"
    else:
        proof = f"Proved optimal after {format_seconds(last)}"
    return Convergence(
        title=f"{proof}; {result.evaluated:,} of {result.evaluated + result.pruned:,} points evaluated",
        unit=unit_of(answer.question),
        seconds=np.array([step.seconds for step in steps]),
        bound=np.array([step.bound for step in steps]),
        incumbent=np.array([step.incumbent for step in steps]),
        evaluated=np.array([step.evaluated for step in steps]),
    )


def design_cloud(answer: DesignAnswer) -> DesignCloud | None:
    """Evaluated points by area; None for a single one."""
    best = answer.best
    ranked = [design for design in answer.result.ranked[:MOST_CLOUD] if design.objective > 0]
    if answer.proved_front is not None and best is not None:
        ranked += [design for design in answer.front if design.objective < best.objective]
    others = [(design.name, design.ranked) for design in answer.result.baselines if design.ranked is not None]
    if best is None or len(ranked) + len(others) < 2:
        return None
    front = {id(design) for design in answer.front}
    kinds = ["best" if design is best else "front" if id(design) in front else "evaluated" for design in ranked]
    everything = [*ranked, *(reference for _, reference in others)]
    axes = answer.proved_front.axes if answer.proved_front is not None else ("area_mm2",)
    return DesignCloud(
        title=_cloud_title(best, others),
        unit=unit_of(answer.question),
        labels=(
            *short_chips([design.evaluation.point.accelerator for design in ranked]),
            *(printable(name) for name, _ in others),
        ),
        area_mm2=np.array([design.area_mm2 for design in everything]),
        power_w=np.array([design.power_w for design in everything]),
        objective=np.array([design.objective for design in everything]),
        kind=(*kinds, *("baseline" for _ in others)),
        axes=tuple(AXES[axis][0] for axis in axes[:2]),
        across=_on(everything, axes[0]),
        shade=_on(everything, axes[-1] if len(axes) < 2 else axes[1]),
    )


AXES = {
    "area_mm2": ("die [mm2]", 1.0),
    "power_w": ("peak power [W]", 1.0),
    "hbm_bytes": ("memory [GB]", GIGA),
    "usd": ("die and memory [USD]", 1.0),
}
"""The axes of a front: title, and scale from the SI unit."""


def _on(ranked: Sequence[Ranked], axis: str) -> Numbers:
    values = [value_of(design, axis) for design in ranked]
    return np.array(values, dtype=np.float64) / AXES[axis][1]


def _cloud_title(best: Ranked, others: Sequence[tuple[str, Ranked]]) -> str:
    if not others:
        return f"The best point reaches {rate(best.objective)} on {best.area_mm2:,.0f} mm2"
    name, first = others[0]
    return f"The best point reaches {against_text(best, first)} the objective of {printable(name)}"


MOST_CELLS = 64
"""Most arrays drawn one by one on a die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """Dies side by side to scale, parts as rectangles of their area [mm]; a sketch, not a layout."""

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
    """For each die: name, left edge, side."""


def floor_plan(answer: DesignAnswer) -> FloorPlan:
    """The best die to scale, next to those of the baselines' chips."""
    best = answer.best
    assert best is not None
    dies = [("best", best)]
    for baseline in answer.result.baselines:
        design = baseline.ranked
        if design is not None and design.evaluation.point.accelerator.name not in ("", *(n for n, _ in dies)):
            dies.append((design.evaluation.point.accelerator.name, design))
    rows: list[tuple[Any, ...]] = []
    names: list[tuple[str, float, float]] = []
    left_mm = 0.0
    for name, ranked in dies[:3]:
        parts = area_parts(answer.question, ranked.evaluation.point.accelerator)
        order = sorted(parts.items(), key=lambda part: -part[1])
        side = float(np.sqrt(sum(parts.values())))
        cores = int(ranked.evaluation.point.accelerator.num_tensor_cores)
        for (part, area), box in zip(order, squarified([area for _, area in order], side), strict=True):
            cells = _cells(box, cores if part == "arrays_mm2" and cores <= MOST_CELLS else 1)
            for left, top, right, bottom in cells:
                cell_area = area / len(cells), area / side**2
                rows.append((name, AREA_WORDS[part], *cell_area, left_mm + left, top, left_mm + right, bottom))
        names.append((f"{printable(name)}: {side**2:,.0f} mm2", left_mm, side))
        left_mm += side * 1.08
    columns = list(zip(*rows, strict=True))
    largest = max((row for row in rows if row[0] == "best"), key=lambda row: row[3])
    return FloorPlan(
        title=f"{format_share(largest[3])} of the best die's {best.area_mm2:,.0f} mm2 are {largest[1]}",
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
    """A rectangle divided into ``count`` equal ones, as square as whole rows allow."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    shapes = [(n, count // n) for n in range(1, count + 1) if count % n == 0]
    across, down = min(shapes, key=lambda cells: abs(np.log(width / cells[0] * cells[1] / height)))
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
        corner = top if across else left
        for area in row:
            step = area / thick if thick else 0.0
            boxes.append(
                (left, corner, left + thick, corner + step) if across else (corner, top, corner + step, top + thick)
            )
            corner += step
        left, top = (left + thick, top) if across else (left, top + thick)
    return boxes


def _longest(row: Sequence[float], short: float) -> float:
    """The largest aspect ratio in a row along an edge."""
    thick = sum(row) / short
    if not thick:
        return float("inf")
    return max(max(thick**2 / area, area / thick**2) if area else 1.0 for area in row)
