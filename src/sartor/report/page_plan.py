"""The offline HTML page of ``plan``: verdict, step, memory, pipeline, other plans, rejected plans, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.json_types import JsonMap
from sartor.report.html import Markup, element, grid_table
from sartor.report.page import cards_list, footer, whole_page
from sartor.report.page_notes import how_to_read
from sartor.report.page_sections import bullets, figure
from sartor.report.plan_grids import devices_grid, parts_grid, rejected_grid, stages_grid, top_grid
from sartor.report.plan_points import plan_points
from sartor.report.plan_words import cost_text, heading_text, headline, limit_of, next_lines, plan_words
from sartor.units import format_bytes, format_count, format_seconds, format_share, room_text

if TYPE_CHECKING:
    from sartor.answers import PlanAnswer

LINKS = (("time", "Time"), ("memory", "Memory"), ("pipeline", "Pipeline"), ("plans", "Plans"), ("why-not", "Rejected"),
         ("cost", "Cost"), ("reading", "How to read this"))  # fmt: skip

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


def plan_page(answer: PlanAnswer, *, date: str = "") -> str:
    """The whole page as a string (UTF-8). ``date`` is printed as given.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    records = plan_points(answer)
    title = heading_text(answer)
    header = element(
        "header",
        element("h1", title.partition(": ")[0]),
        element("p", title.partition(": ")[2], class_="question"),
        element("nav", *(element("a", word, href=f"#{at}") for at, word in LINKS), aria_label="Sections"),
    )
    main = element("main", *(_sections(answer, records) if answer.best else _infeasible(answer)))
    return whole_page(f"{title.partition(': ')[0]}: sartor plan", (header, main, footer(date)), records)


def _sections(answer: PlanAnswer, records: JsonMap) -> list[Markup]:
    assert answer.best is not None
    fall = "Parts add up from top to bottom; the dashed line is the memory a process can use."
    return [
        element("div", element("p", headline(answer)), class_="verdict"),
        _numbers(answer),
        element("h2", "Where the time goes", id="time"),
        figure(
            records,
            "step",
            "One bar per plan, the best for each set of parallel degrees; the line is the 80% interval.",
        ),
        grid_table(parts_grid(answer.best)),
        element("h2", "Where the memory goes", id="memory"),
        figure(records, "memory_fall", fall),
        figure(records, "memory", "One bar per stage; equal stages share one."),
        grid_table(stages_grid(answer.stages)),
        element("h2", "Pipeline timeline", id="pipeline"),
        figure(records, "pipeline", "From an event simulation, independent of the formulas above."),
        figure(records, "pipeline_memory", "The dashed line is the memory a process can use."),
        element("h2", "Other plans", id="plans"),
        figure(
            records, "plans", "Circles on a line: Pareto front. Discs: the best plan for each set of parallel degrees."
        ),
        grid_table(top_grid(answer.search.top)),
        *([grid_table(devices_grid(answer))] if len(answer.searches) > 1 else []),
        element("h2", "Rejected plans", id="why-not"),
        grid_table(rejected_grid(answer.search)),
        element("h2", "Cost", id="cost"),
        element("p", cost_text(answer) if answer.cost else "No token budget given."),
        bullets("To try next", next_lines(answer)),
        bullets("Assumed", list(answer.assumptions)),
        how_to_read(READING),
    ]


def _infeasible(answer: PlanAnswer) -> list[Markup]:
    tightest = answer.search.tightest
    message = tightest.message if tightest else "no plan fits"
    lean = tightest.leanest if tightest else None
    return [
        element("div", element("p", message[:1].upper() + message[1:] + "."), class_="verdict"),
        *([element("p", f"The plan with least memory: {plan_words(lean.plan)}.")] if lean else []),
        bullets("What would fit", [each.change for each in tightest.relaxations] if tightest else []),
        element("h2", "Rejected plans", id="why-not"),
        grid_table(rejected_grid(answer.search)),
        bullets("Assumed", list(answer.assumptions)),
    ]


def _numbers(answer: PlanAnswer) -> Markup:
    best, found = answer.best, answer.search
    assert best is not None
    step = best.step
    cost = answer.cost
    cards = [
        (
            "Step time",
            format_seconds(best.step_s),
            f"80%: {format_seconds(best.low_s)} to {format_seconds(best.high_s)}",
        ),
        (
            "Share of dense peak (MFU)",
            format_share(float(step.mfu)),
            f"{format_count(float(step.tokens_per_s_per_device))} tokens/s per device",
        ),
        ("Fullest device", format_bytes(best.peak_bytes), f"of {room_text(*limit_of(answer))}"),
        ("Plans priced", f"{found.evaluated:,}", f"of {found.space_size:,} in the grid"),
    ]
    if cost is not None:
        money = f"{cost.usd:,.0f} USD" if cost.usd is not None else f"{cost.device_hours:,.0f} device-hours"
        cards.append((f"{format_count(cost.tokens)} tokens", f"{cost.hours / 24:,.1f} days", money))
    return cards_list(cards)
