"""``design`` for people: the best chip and its proof, its plans, its parts, the alternatives, the Pareto front."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sartor.answers.design import DesignAnswer, rate
from sartor.answers.design_reasons import why_texts
from sartor.designs.detail import ModelDetail, model_detail
from sartor.designs.result import DesignStatus, Ranked
from sartor.report import document as d
from sartor.report.design_grids import (
    alternatives_grid,
    area_grid,
    front_grid,
    gpu_notes,
    gpus_grid,
    plans_grid,
    power_grid,
    stages_grid,
    steps_grid,
)
from sartor.report.design_points import design_points
from sartor.report.design_shapes import joint_lines, rates_grid, regret_grid, shapes_lines
from sartor.report.design_words import (
    front_text,
    heading_text,
    headlines,
    menu_text,
    nearby_texts,
    notes_of,
    unit_of,
)
from sartor.units import format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

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
ROWS = 6
"""Rows of a table on one screen."""
SEARCHED = "searched placement"
"""End of an alternative's name with the best placement of its own, which one screen compares."""
NOT_BUILDABLE = "this chip cannot be built"
"""Start of the warning that the first line has."""
LOSSES = "Share of throughput that each shape loses on a chip, against its own best chip (below 0: gains):"


def design_view(answer: DesignAnswer, *, verbose: bool = False) -> RenderableType:
    """The answer in the terminal: the best chip and plans with proof, or why no point fits; on one screen unless
    ``verbose``."""
    return d.document_text(_blocks(answer, {}), verbose=verbose)


def design_page(answer: DesignAnswer, *, date: str = "") -> str:
    """The offline page (UTF-8). ``date`` is printed as given. Raises ``MissingExtraError`` without the extra
    ``report``."""
    records = design_points(answer)
    document = d.Document(
        title="Accelerator and plan",
        question=heading_text(answer),
        command="design",
        blocks=_blocks(answer, records),
        records=records,
        reading=READING if answer.best else (),
    )
    return d.document_page(document, date)


def _blocks(answer: DesignAnswer, records: dict[str, object]) -> list[d.Block]:
    first, *rest = headlines(answer)
    heading = f"{heading_text(answer)}."
    lines = d.opening([f"{heading} Best: {first}", *rest])
    verdict = d.Block(words=" ".join([first, *rest]), verdict=True, place=d.Place.PAGE)
    warnings = d.bullets_block("Warnings", answer.warnings, d.Place.REST)
    others = [words for words in answer.warnings if not words.startswith(NOT_BUILDABLE)]
    opened = [lines, verdict, d.bullets_block("Warnings", others, d.Place.SHORT), warnings]
    assumed = d.assumed_blocks(answer.assumptions)
    if answer.best is None:
        infeasible = answer.result.status is DesignStatus.INFEASIBLE
        opened[0] = d.opening([first, heading], bad=infeasible)
        return [*(opened[:2] if infeasible else [*opened, *_comparisons(answer)]), *assumed]
    best, question = answer.best, answer.question
    details = [model_detail(question, best.evaluation, m) for m in range(len(question.models))]
    priced = [detail for detail in details if detail is not None]
    return [
        *opened,
        d.Block(words=menu_text(question), style="dim", place=d.Place.LONG),
        d.Block(cards=_cards(answer, best, priced), place=d.Place.PAGE),
        d.section("What the search proved", "search", "Search", d.Place.PAGE),
        d.figure_block("convergence", "The search ends when the lines meet."),
        d.section("Plans", "plans", "Plans"),
        *d.cut_blocks(plans_grid(priced), ROWS),
        d.section("Where the time goes", place=d.Place.REST),
        d.figure_block("step", "The line is the 80% interval."),
        d.grid_block(steps_grid(priced), d.Place.REST),
        *(d.grid_block(stages_grid(detail), d.Place.PAGE) for detail in priced if len(detail.stages) > 1),
        d.section("Where the area goes", "chip", "Chip", d.Place.REST),
        d.figure_block("floor_plan", "Rectangles show the area of each part [mm2] to scale; this is not a layout."),
        d.grid_block(area_grid(answer, best), d.Place.REST),
        d.grid_block(power_grid(best), d.Place.PAGE),
        *_comparisons(answer),
        *_drawings(records),
        *assumed,
    ]


def _comparisons(answer: DesignAnswer) -> list[d.Block]:
    """Alternatives, catalogue GPUs, other shapes and the Pareto front."""
    blocks: list[d.Block] = []
    if answer.result.baselines:
        alternatives = alternatives_grid(answer)
        searched = replace(alternatives, rows=tuple(row for row in alternatives.rows if SEARCHED in str(row[0])))
        blocks += [
            d.section("Alternatives", "others", "Alternatives"),
            d.figure_block(
                "points", "Diamond: the best point. Squares: alternatives. Discs: evaluated points, dark on the Pareto "
                "front.",
            ),
            d.grid_block(searched if searched.rows else alternatives, d.Place.SHORT),
            d.grid_block(alternatives, d.Place.REST),
            d.bullets_block("Notes", notes_of(answer), d.Place.REST),
            d.bullets_block("The best chip against TPUv4-like, model by model", why_texts(answer), d.Place.REST),
        ]  # fmt: skip
    else:
        blocks += [d.section("Evaluated points", "others", "Alternatives", d.Place.PAGE), d.figure_block("points")]
    if answer.against:
        blocks += [d.section("Compared with catalogue GPUs"), d.grid_block(gpus_grid(answer))]
        blocks += [d.bullets_block("Notes", gpu_notes(answer), d.Place.REST)]
    blocks.append(d.bullets_block("How firmly the best stands", nearby_texts(answer.nearby)))
    if answer.joint is not None:
        blocks += [d.section("The model's shape"), *(d.Block(words=line) for line in joint_lines(answer.joint))]
    if answer.shapes is not None:
        blocks += [d.section("Shapes of the same size", "shapes")]
        blocks += [d.Block(words=line) for line in shapes_lines(answer.shapes)]
        blocks += [d.figure_block("shapes"), d.grid_block(rates_grid(answer.shapes), d.Place.PAGE)]
        blocks += [d.Block(words=LOSSES, place=d.Place.TEXT), d.grid_block(regret_grid(answer.shapes), d.Place.TEXT)]
    if len(answer.front) > 1:
        front = [d.section(front_text(answer)), *d.cut_blocks(front_grid(answer), ROWS)]
        blocks += front if answer.proved_front else d.in_full(front)
    return blocks


def _drawings(records: dict[str, object]) -> list[d.Block]:
    """A layer on the cores, and the pipeline, as figures."""
    layers = [name for name in records if name.startswith("layer_")]
    pipelines = [name for name in records if name.startswith("pipeline")]
    return [
        d.section("One layer on the cores", "layer", "A layer", d.Place.PAGE),
        *(d.figure_block(name, "Cores with the same work share a line.") for name in layers),
        d.section("Pipeline timeline", "pipeline", "Pipeline", d.Place.PAGE),
        *(d.figure_block(name, "From an event simulation, independent of the formulas above.") for name in pipelines),
    ]


def _cards(answer: DesignAnswer, best: Ranked, details: list[ModelDetail]) -> list[tuple[str, str, str]]:
    """The key figures."""
    result = answer.result
    optimal = result.status is DesignStatus.OPTIMAL
    proved = "proved optimal" if optimal else f"at most {format_share(result.gap)} below the best"
    cards = [
        ("Objective", rate(best.objective), f"{unit_of(answer.question)}, {proved}"),
        ("Die", f"{best.area_mm2:,.0f} mm2", f"{best.usd:,.0f} USD with memory, {best.power_w:,.0f} W peak"),
        ("Combinations", f"{result.space_size:,}", f"{result.evaluated:,} of {result.num_points:,} points evaluated"),
        ("Search time", format_seconds(result.seconds), "on this machine"),
    ]
    if len(details) == 1:
        detail = details[0]
        interval = f"80%: {format_seconds(detail.low_s)} to {format_seconds(detail.high_s)}"
        cards.insert(1, ("Step time", format_seconds(detail.outcome.step_s), interval))
    return cards
