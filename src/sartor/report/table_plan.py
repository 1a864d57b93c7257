"""``sartor plan`` for the terminal: the best plan, its step, memory by stage, other plans, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from sartor.report.grid import grid_view
from sartor.report.plan_grids import devices_grid, parts_grid, rejected_grid, stages_grid, top_grid, why_not_grid
from sartor.report.plan_words import cost_text, heading_text, headline, next_lines, plan_words, why_not_text
from sartor.report.table_estimate import notes, section_title
from sartor.report.words import printable

if TYPE_CHECKING:
    from sartor.answers import PlanAnswer
    from sartor.plans.result import PlanSearch

REASONS = 8
"""Reasons to show; the rest is summed."""


def plan_view(answer: PlanAnswer) -> RenderableType:
    """The whole answer: the best plan and why, or why no plan fits and what would fit."""
    found = answer.search
    parts: list[RenderableType] = [Text(heading_text(answer), style="bold")]
    if found.best is None:
        parts += [*infeasible_view(found), section_title("Rejected plans"), grid_view(rejected_grid(found, REASONS))]
        return Group(*parts, *notes("Assumed", answer.assumptions))
    parts += [Text(headline(answer)), section_title("Where the time goes"), grid_view(parts_grid(found.best))]
    parts += [section_title("Memory by stage"), grid_view(stages_grid(answer.stages))]
    parts += [section_title(f"Best plans by parallel degrees ({len(found.top)} shown)"), grid_view(top_grid(found.top))]
    if answer.why_not is not None:
        parts += [section_title(f"Why not {printable(answer.why_not.asked)}"), Text(why_not_text(answer.why_not))]
        parts += [grid_view(why_not_grid(answer.why_not))] if answer.why_not.plan is not None else []
    if len(answer.searches) > 1:
        parts += [section_title("By number of devices"), grid_view(devices_grid(answer))]
    parts += [section_title("Rejected plans"), grid_view(rejected_grid(found, REASONS))]
    if answer.cost is not None:
        parts += [section_title("Cost"), Text(cost_text(answer))]
    parts += notes("To try next", next_lines(answer))
    return Group(*parts, *notes("Assumed", [printable(line) for line in answer.assumptions]))


def infeasible_view(search: PlanSearch) -> list[RenderableType]:
    """Why no plan fits, and what would fit."""
    assert search.tightest is not None
    lines = [f"{each.change}" for each in search.tightest.relaxations]
    lean = search.tightest.leanest
    words = [Text(printable(search.tightest.message[:1].upper() + search.tightest.message[1:]) + ".", style="bold red")]
    if lean is not None:
        words.append(Text(f"The plan with least memory: {plan_words(lean.plan)}."))
    return [*words, *notes("What would fit", lines)]
