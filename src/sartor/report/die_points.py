"""The floor plan record: rectangles with the areas of a die's parts, packed nearly square."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.answers.design import DesignAnswer
from sartor.designs.detail import area_parts
from sartor.report.design_words import (
    AREA_WORDS,
)
from sartor.report.words import printable
from sartor.units import format_share

Numbers = npt.NDArray[np.float64]

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
