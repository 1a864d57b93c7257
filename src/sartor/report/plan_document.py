"""``plan`` for people: the best plan, its step, memory by stage, other plans, rejected plans, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.report.document import (
    Block,
    Document,
    Place,
    bullets_block,
    document_page,
    document_text,
    figure_block,
    grid_block,
    section,
)
from sartor.report.plan_grids import devices_grid, parts_grid, rejected_grid, stages_grid, top_grid, why_not_grid
from sartor.report.plan_points import plan_points
from sartor.report.plan_words import cost_text, heading_text, headline, limit_of, next_lines, plan_words, why_not_text
from sartor.units import format_bytes, format_count, format_seconds, format_share, room_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.plan import PlanAnswer
    from sartor.plans.result import PricedPlan

REASONS = 8
"""Reasons of rejected plans that the terminal shows; the rest is summed."""
READING = (
    ("80% interval", "Eight of ten measured steps should fall inside. Plans share most of their errors, so their "
     "order is more certain than their times."),
    ("mfu", "Model FLOP utilization: FLOP/s in matrix multiplications per device over the dense peak, with "
     "attention's backward as its kernel computes it, without layers computed again."),
    ("pipeline bubble", "Idle time of stages while the pipeline fills and drains: (p - 1) / (v m) of the busy time for "
     "p stages, m microbatches and v chunks per device."),
    ("exposed", "Communication that does not overlap with compute."),
    ("theory, allocated, reserved, device", "Memory the plan must keep; the framework's peak allocation; its "
     "allocator's reservation; the value in nvidia-smi."),
    ("Pareto front", "Plans that no other plan beats in both step time and memory."),
    ("rejected", "Plans of the grid, counted under the first condition they violate."),
)  # fmt: skip


def plan_view(answer: PlanAnswer) -> RenderableType:
    """The answer in the terminal: the best plan and why, or why no plan fits and what would fit."""
    return document_text(_blocks(answer), heading_text(answer))


def plan_page(answer: PlanAnswer, *, date: str = "") -> str:
    """The offline page (UTF-8). ``date`` is printed as given. Raises ``MissingExtraError`` without the extra
    ``report``."""
    title, _, question = heading_text(answer).partition(": ")
    document = Document(
        title=title,
        question=question,
        command="plan",
        blocks=_blocks(answer),
        records=plan_points(answer),
        reading=READING if answer.best else (),
    )
    return document_page(document, date)


def _blocks(answer: PlanAnswer) -> list[Block]:
    blocks = _infeasible(answer) if answer.best is None else _feasible(answer, answer.best)
    return [*blocks, bullets_block("Assumed", answer.assumptions)]


def _feasible(answer: PlanAnswer, best: PricedPlan) -> list[Block]:
    search = answer.search
    return [
        Block(words=headline(answer), verdict=True),
        Block(cards=_cards(answer, best), place=Place.PAGE),
        section("Where the time goes", "time", "Time"),
        figure_block(
            "step", "One bar per plan, the best for each set of parallel degrees; the line is the 80% interval."
        ),
        grid_block(parts_grid(best)),
        section("Memory by stage", "memory", "Memory"),
        figure_block(
            "memory_fall", "Parts add up from top to bottom; the dashed line is the memory a process can use."
        ),
        figure_block("memory", "One bar per stage; equal stages share one."),
        grid_block(stages_grid(answer.stages)),
        section("Pipeline timeline", "pipeline", "Pipeline", Place.PAGE),
        figure_block("pipeline", "From an event simulation, independent of the formulas above."),
        figure_block("pipeline_memory", "The dashed line is the memory a process can use."),
        section(f"Best plans by parallel degrees ({len(search.top)} shown)", "plans", "Plans"),
        figure_block(
            "plans", "Circles on a line: Pareto front. Discs: the best plan for each set of parallel degrees."
        ),
        grid_block(top_grid(search.top)),
        *_why_not(answer),
        *([section("By number of devices"), grid_block(devices_grid(answer))] if len(answer.searches) > 1 else []),
        *_rejected(answer),
        section("Cost", "cost", "Cost", Place.BOTH if answer.cost else Place.PAGE),
        Block(words=cost_text(answer)) if answer.cost else Block(words="No token budget given.", place=Place.PAGE),
        bullets_block("To try next", next_lines(answer)),
    ]


def _why_not(answer: PlanAnswer) -> list[Block]:
    """The plan asked about, next to the best."""
    asked = answer.why_not
    if asked is None:
        return []
    grids = [] if asked.plan is None else [grid_block(why_not_grid(asked))]
    return [section(f"Why not {asked.asked}"), Block(words=why_not_text(asked)), *grids]


def _rejected(answer: PlanAnswer) -> list[Block]:
    return [
        section("Rejected plans", "why-not", "Rejected"),
        grid_block(rejected_grid(answer.search, REASONS), Place.TEXT),
        grid_block(rejected_grid(answer.search), Place.PAGE),
    ]


def _infeasible(answer: PlanAnswer) -> list[Block]:
    """Why no plan fits, and what would fit."""
    tightest = answer.search.tightest
    assert tightest is not None
    message = f"{tightest.message[:1].upper()}{tightest.message[1:]}."
    lean = tightest.leanest
    return [
        Block(words=message, verdict=True, style="bold red"),
        *([Block(words=f"The plan with least memory: {plan_words(lean.plan)}.")] if lean else []),
        bullets_block("What would fit", [relaxation.change for relaxation in tightest.relaxations]),
        *_rejected(answer),
    ]


def _cards(answer: PlanAnswer, best: PricedPlan) -> list[tuple[str, str, str]]:
    """The key figures."""
    search, cost = answer.search, answer.cost
    interval = f"80%: {format_seconds(best.low_s)} to {format_seconds(best.high_s)}"
    rate = f"{format_count(float(best.step.tokens_per_s_per_device))} tokens/s per device"
    cards = [
        ("Step time", format_seconds(best.step_s), interval),
        ("Share of dense peak (MFU)", format_share(float(best.step.mfu)), rate),
        ("Fullest device", format_bytes(best.peak_bytes), f"of {room_text(*limit_of(answer))}"),
        ("Plans priced", f"{search.evaluated:,}", f"of {search.space_size:,} in the grid"),
    ]
    if cost is not None:
        money = f"{cost.usd:,.0f} USD" if cost.usd is not None else f"{cost.device_hours:,.0f} device-hours"
        cards.append((f"{format_count(cost.tokens)} tokens", f"{cost.hours / 24:,.1f} days", money))
    return cards
