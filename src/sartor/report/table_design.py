"""``sartor design`` for the terminal: the chip, a plan per model, area, alternatives, Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.answers import DesignAnswer
from sartor.designs.against import AgainstModel
from sartor.designs.detail import ModelDetail, area_parts, model_detail
from sartor.designs.question import AreaModel
from sartor.designs.result import DesignStatus, Ranked
from sartor.report.design_shapes import shapes_view
from sartor.report.design_words import (
    AREA_WORDS,
    against_text,
    front_text,
    heading_text,
    headline,
    memory_text,
    notes_of,
    plan_text,
    rate,
    short_chip,
    step_parts,
    why_texts,
)
from sartor.report.table_estimate import notes, plain_table, section_title, share_bar
from sartor.report.words import printable
from sartor.units import format_bytes, format_seconds, format_share

MOST_ROWS = 8
"""Points of the front to show; the JSON has all of them."""


def design_view(answer: DesignAnswer) -> RenderableType:
    """The whole answer: the best chip and plans with proof, or why no point fits."""
    found = answer.result
    parts: list[RenderableType] = [Text(heading_text(answer), style="bold")]
    if found.status is DesignStatus.INFEASIBLE:
        parts.append(
            Text(f"No point of the space fits. Tightest constraint: {printable(found.tightest)}.", style="bold red")
        )
        return Group(*parts, *notes("Assumed", answer.assumptions))
    parts.append(Text(headline(answer)))
    if answer.best is not None:
        details = [model_detail(answer.question, answer.best.evaluation, m) for m in range(len(answer.question.models))]
        known = [each for each in details if each is not None]
        parts += [section_title("Plans"), plans_table(known), section_title("Where the time goes"), steps_table(known)]
        parts += [section_title("Where the area goes"), area_table(answer, answer.best)]
    if found.baselines:
        parts += [section_title("Alternatives"), baselines_table(answer), *notes("Notes", notes_of(answer))]
        parts += notes("The best chip against TPUv4-like, model by model", why_texts(answer))
    if answer.against:
        parts += [section_title("Beside catalogue GPUs"), against_table(answer), *notes("Notes", against_notes(answer))]
    if answer.shapes is not None:
        parts.append(shapes_view(answer.shapes))
    if len(answer.front) > 1:
        parts += [section_title(front_text(answer)), front_table(answer.front)]
    return Group(*parts, *notes("Assumed", [printable(line) for line in answer.assumptions]))


def plans_table(details: Sequence[ModelDetail]) -> Table:
    """Each model's plan on the chip: step with interval, throughput, MFU, memory."""
    table = plain_table("model", "step", "80% low", "80% high", "seq/s", "mfu", "memory", "plan")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for each in details:
        outcome = each.outcome
        table.add_row(
            Text(printable(outcome.name)),
            *(format_seconds(s) for s in (outcome.step_s, each.low_s, each.high_s)),
            rate(outcome.sequences_per_s),
            format_share(each.mfu),
            format_bytes(each.peak_bytes),
            plan_text(each),
        )
    return table


def steps_table(details: Sequence[ModelDetail]) -> Table:
    table = plain_table("model", "part", "time", "share", "")
    table.columns[1].justify = table.columns[4].justify = "left"
    for each in details:
        name = printable(each.outcome.name)
        for words, seconds in step_parts(each.time):
            share = seconds / each.time.total_s
            table.add_row(Text(name), words, format_seconds(seconds), format_share(share), share_bar(share))
            name = ""
    return table


def area_table(answer: DesignAnswer, best: Ranked) -> Table:
    """The die by part, largest first."""
    table = plain_table("part", "mm2", "share", "")
    table.columns[-1].justify = "left"
    parts: Mapping[str, float] = area_parts(answer.question, best.evaluation.point.accelerator)
    for name, area in sorted(parts.items(), key=lambda part: -part[1]):
        share = area / best.area_mm2
        table.add_row(AREA_WORDS[name], f"{area:,.1f}", format_share(share), share_bar(share))
    return table


def baselines_table(answer: DesignAnswer) -> Table:
    """The alternatives, priced by the same cost model."""
    best = answer.best
    table = plain_table("alternative", "objective", "best vs this", "mm2", "W", "points", "search")
    for each in answer.result.baselines:
        other = each.ranked
        cells = ("-", "", "", "")
        if other is not None:
            times = against_text(best, other) if best else ""
            cells = (rate(other.objective), times, f"{other.area_mm2:,.0f}", f"{other.power_w:,.0f}")
        took = format_seconds(each.seconds)
        table.add_row(Text(printable(each.name)), *cells, f"{each.evaluations:,}", took)
    return table


def front_table(front: Sequence[Ranked]) -> Table:
    table = plain_table("chip", "memory", "objective", "mm2", "W", "USD with memory")
    for each in front[:MOST_ROWS]:
        point = each.evaluation.point
        table.add_row(
            short_chip(point.accelerator),
            memory_text(point.hbm_bytes),
            rate(each.objective),
            f"{each.area_mm2:,.1f}",
            f"{each.power_w:,.0f}",
            f"{each.usd:,.0f}",
        )
    if len(front) > MOST_ROWS:
        table.add_row(f"{len(front) - MOST_ROWS} more in the JSON", "", "", "", "", "")
    return table


AGAINST_NOTES = (
    "Times of a GPU are of the plan that sartor plan would choose, with its default trainer and the package's "
    "calibration; the chip runs in lockstep, by the template.",
    "'to win' is how many times as fast as predicted the chip must be to equal the GPU per mm2 of die, per watt and "
    "per dollar of die and memory; below 1 it already wins.",
)


def against_notes(answer: DesignAnswer) -> tuple[str, ...]:
    if answer.question.costs.area is AreaModel.DIE:
        return AGAINST_NOTES
    return (
        *AGAINST_NOTES,
        "The chip's area here is of cores and buffers alone; --area-model die counts the whole die.",
    )


def against_table(answer: DesignAnswer) -> RenderableType:
    """Each GPU on each model: its step with its interval, the chip's, and what the chip needs to win."""
    table = plain_table("GPU", "model", "step", "80% interval", "chip", "chip is", "to win: area", "power", "cost")
    for found in answer.against:
        for each in found.models:
            table.add_row(found.gpu.name, printable(each.model), *_against_cells(each))
    return table


def _against_cells(each: AgainstModel) -> list[str]:
    if each.plan is None:
        return ["fits no plan", "", "", "", "", "", ""]
    interval = f"{format_seconds(each.plan.low_s)} to {format_seconds(each.plan.high_s)}"
    chip = "" if each.chip_step_s is None else format_seconds(each.chip_step_s)
    ratio = "" if each.ratio is None else f"{each.ratio:.3g}x as fast"
    needed = [None] * 3 if each.needed is None else [each.needed.area, each.needed.power, each.needed.cost]
    return [
        format_seconds(each.plan.step_s),
        interval,
        chip,
        ratio,
        *("-" if x is None else f"{x:.3g}x" for x in needed),
    ]
