"""``sartor design`` for the terminal: the chip, a plan per model, area, alternatives, Pareto front."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sartor.answers import DesignAnswer
from sartor.answers.design_reasons import why_texts
from sartor.designs.detail import model_detail
from sartor.designs.result import DesignStatus
from sartor.report.design_grids import (
    alternatives_grid,
    area_grid,
    front_grid,
    gpu_notes,
    gpus_grid,
    plans_grid,
    steps_grid,
)
from sartor.report.design_shapes import joint_view, shapes_view
from sartor.report.design_words import (
    front_text,
    heading_text,
    headline,
    menu_text,
    nearby_texts,
    notes_of,
    nothing_text,
)
from sartor.report.grid import grid_view
from sartor.report.table_estimate import notes, section_title
from sartor.report.words import printable

MOST_ROWS = 8
"""Points of the front to show; the JSON has all of them."""


def design_view(answer: DesignAnswer) -> RenderableType:
    """The whole answer: the best chip and plans with proof, or why no point fits."""
    found = answer.result
    parts: list[RenderableType] = [Text(heading_text(answer), style="bold")]
    if found.status is DesignStatus.INFEASIBLE:
        parts.append(Text(nothing_text(answer), style="bold red"))
        return Group(*parts, *notes("Assumed", answer.assumptions))
    parts.append(Text(headline(answer)))
    if answer.best is not None:
        parts.append(Text(menu_text(answer.question), style="dim"))
    parts += notes("Warnings", answer.warnings)
    if answer.best is not None:
        details = [model_detail(answer.question, answer.best.evaluation, m) for m in range(len(answer.question.models))]
        known = [each for each in details if each is not None]
        parts += [
            section_title("Plans"),
            grid_view(plans_grid(known)),
            section_title("Where the time goes"),
            grid_view(steps_grid(known)),
        ]
        parts += [section_title("Where the area goes"), grid_view(area_grid(answer, answer.best))]
    if found.baselines:
        parts += [
            section_title("Alternatives"),
            grid_view(alternatives_grid(answer)),
            *notes("Notes", notes_of(answer)),
        ]
        parts += notes("The best chip against TPUv4-like, model by model", why_texts(answer))
    if answer.against:
        parts += [
            section_title("Compared with catalogue GPUs"),
            grid_view(gpus_grid(answer)),
            *notes("Notes", gpu_notes(answer)),
        ]
    parts += notes("How firmly the best stands", nearby_texts(answer.nearby))
    if answer.joint is not None:
        parts.append(joint_view(answer.joint))
    if answer.shapes is not None:
        parts.append(shapes_view(answer.shapes))
    if len(answer.front) > 1:
        parts += [section_title(front_text(answer)), grid_view(front_grid(answer, MOST_ROWS))]
    return Group(*parts, *notes("Assumed", [printable(line) for line in answer.assumptions]))
