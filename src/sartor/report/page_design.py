"""The offline HTML page of ``design``: the best chip and its proof, its plans, its parts, the alternatives."""

from __future__ import annotations

from sartor.answers import DesignAnswer
from sartor.answers.design_reasons import why_texts
from sartor.designs.detail import ModelDetail, model_detail
from sartor.designs.result import DesignStatus, Ranked
from sartor.json_types import JsonMap
from sartor.report.design_grids import (
    alternatives_grid,
    area_grid,
    front_grid,
    gpu_notes,
    gpus_grid,
    plans_grid,
    power_grid,
    stages_grid,
)
from sartor.report.design_points import design_points
from sartor.report.design_shapes import joint_lines, shapes_section
from sartor.report.design_words import heading_text, headline, notes_of, nothing_text, rate, unit_of
from sartor.report.html import Markup, element, grid_table, join
from sartor.report.page import cards_list, footer, whole_page
from sartor.report.page_notes import how_to_read
from sartor.report.page_sections import bullets, figure
from sartor.units import format_seconds, format_share

LINKS = (("search", "Search"), ("others", "Alternatives"), ("plans", "Plans"), ("chip", "Chip"), ("layer", "A layer"),
         ("pipeline", "Pipeline"), ("reading", "How to read this"))  # fmt: skip

READING = (
    ("proved", "Every other point of the space has an upper bound that no schedule and no placement on it can "
     "exceed, and no bound is above the best point. Nothing is sampled."),
    ("gap", "How much better than the best point another one could still be."),
    ("80% interval", "Eight of ten measured steps should fall inside. No chip of the template has been measured, so"
    " this is "
     "the interval of analytic predictions. Points share most errors, so their order is more certain."),
    ("mfu", "Model FLOP utilization: FLOP/s in matrix multiplications over the dense peak of all devices, with "
     "attention's backward as its kernel computes it, without layers computed again."),
    ("all cores, alone", "An operator split over all cores of its kind, with nothing else running."),
    ("pipeline fill and drain", "Idle time of stages while the first microbatch enters and the last one leaves."),
    ("Pareto front", "Evaluated points that no other evaluated point beats in objective, area and power."),
)  # fmt: skip
MOST_ROWS = 20


def design_page(answer: DesignAnswer, *, date: str = "") -> str:
    """The whole page as a string (UTF-8). ``date`` is printed as given.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    records = design_points(answer)
    title = heading_text(answer)
    links = LINKS if answer.best else ()
    header = element(
        "header",
        element("h1", "Accelerator and plan"),
        element("p", title, class_="question"),
        element("nav", *(element("a", word, href=f"#{at}") for at, word in links), aria_label="Sections"),
    )
    main = element("main", *(_sections(answer, records) if answer.best else _nothing(answer)))
    return whole_page(f"{title.partition(':')[0]}: sartor design", (header, main, footer(date)), records)


def _sections(answer: DesignAnswer, records: JsonMap) -> list[Markup]:
    best = answer.best
    assert best is not None
    asked = answer.question
    found = [model_detail(asked, best.evaluation, m) for m in range(len(asked.models))]
    details = [each for each in found if each is not None]
    several = [name for name in records if name.startswith("layer_")]
    pipelines = [name for name in records if name.startswith("pipeline")]
    return [
        element("div", element("p", headline(answer)), class_="verdict"),
        _numbers(answer, best, details),
        element("h2", "What the search proved", id="search"),
        figure(records, "convergence", "The search ends when the lines meet."),
        element("h2", "Alternatives", id="others"),
        figure(
            records,
            "points",
            "Diamond: the best point. Squares: alternatives. Discs: evaluated points, dark on the Pareto front.",
        ),
        *([_alternatives(answer)] if answer.result.baselines or answer.against else []),
        grid_table(front_grid(answer, MOST_ROWS)),
        *([bullets("The model's shape", joint_lines(answer.joint))] if answer.joint else []),
        *([shapes_section(answer.shapes, figure(records, "shapes"))] if answer.shapes else []),
        element("h2", "Plans, and where their time goes", id="plans"),
        figure(records, "step", "The line is the 80% interval."),
        grid_table(plans_grid(details)),
        *(grid_table(stages_grid(each)) for each in details if len(each.stages) > 1),
        element("h2", "Where the area goes", id="chip"),
        figure(records, "floor_plan", "Rectangles show the area of each part [mm2] to scale; this is not a layout."),
        grid_table(area_grid(answer, best)),
        grid_table(power_grid(best)),
        element("h2", "One layer on the cores", id="layer"),
        *(figure(records, name, "Cores with the same work share a line.") for name in several),
        element("h2", "Pipeline timeline", id="pipeline"),
        *(figure(records, name, "From an event simulation, independent of the formulas above.") for name in pipelines),
        *([bullets("Warnings", list(answer.warnings))] if answer.warnings else []),
        bullets("Assumed", list(answer.assumptions)),
        how_to_read(READING),
    ]


def _nothing(answer: DesignAnswer) -> list[Markup]:
    return [
        element("div", element("p", nothing_text(answer)), class_="verdict"),
        bullets("Assumed", list(answer.assumptions)),
    ]


def _numbers(answer: DesignAnswer, best: Ranked, details: list[ModelDetail]) -> Markup:
    found, asked = answer.result, answer.question
    optimal = found.status is DesignStatus.OPTIMAL
    proved = "proved optimal" if optimal else f"at most {format_share(found.gap)} below the best"
    cards = [
        ("Objective", rate(best.objective), f"{unit_of(asked)}, {proved}"),
        ("Die", f"{best.area_mm2:,.0f} mm2", f"{best.usd:,.0f} USD with memory, {best.power_w:,.0f} W peak"),
        ("Combinations", f"{found.space_size:,}", f"{found.evaluated:,} of {found.num_points:,} points evaluated"),
        ("Search time", format_seconds(found.seconds), "on this machine"),
    ]
    if len(details) == 1:
        one = details[0]
        low, high = format_seconds(one.low_s), format_seconds(one.high_s)
        cards.insert(1, ("Step time", format_seconds(one.outcome.step_s), f"80%: {low} to {high}"))
    return cards_list(cards)


def _alternatives(answer: DesignAnswer) -> Markup:
    why = bullets("The best chip against TPUv4-like, model by model", why_texts(answer))
    gpus = [grid_table(gpus_grid(answer)), bullets("Notes", gpu_notes(answer))] if answer.against else []
    return join([grid_table(alternatives_grid(answer)), why, bullets("Notes", notes_of(answer)), *gpus])
