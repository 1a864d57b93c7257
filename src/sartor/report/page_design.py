"""One offline HTML page of an answer of ``design``: the best chip with its proof, what it is made of, the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sartor.answers import DesignAnswer
from sartor.designs.detail import ModelDetail, area_parts, model_detail, power_parts
from sartor.designs.result import DesignStatus, Ranked
from sartor.report.charts import FILE, Frame, draw, to_png
from sartor.report.design_points import design_points
from sartor.report.design_shapes import shapes_section
from sartor.report.design_words import (
    AREA_WORDS,
    POWER_WORDS,
    UNITS,
    against_text,
    front_text,
    heading_text,
    headline,
    memory_text,
    notes_of,
    plan_text,
    rate,
    short_chip,
    why_texts,
)
from sartor.report.files import write_atomic
from sartor.report.html import Column, Markup, element, join, table
from sartor.report.page import cards_list, footer, whole_page
from sartor.report.page_sections import bullets, figure
from sartor.units import format_bytes, format_seconds, format_share

LINKS = (("search", "Search"), ("others", "Others"), ("plans", "Plans"), ("chip", "Chip"), ("layer", "A layer"),
         ("pipeline", "Pipeline"), ("reading", "How to read this"))  # fmt: skip

READING = (
    ("proved", "Every other point of the space has a bound, a throughput that no schedule and no placement on it can "
     "exceed, and none of the bounds is above the best point. Nothing is sampled."),
    ("gap", "How much better than the best point something else could still be."),
    ("80% interval", "Eight of ten measured steps are expected inside. No chip of the template has been measured: the "
     "interval is that of analytic predictions. Points share most of their errors, so their order is surer."),
    ("mfu", "FLOPs of products over the dense peak of all devices; recomputation is not counted."),
    ("all cores, alone", "An operator split over all cores of its kind; nothing else runs meanwhile."),
    ("pipeline fills, drains", "What stages wait while the first microbatch comes down and the last one goes up."),
    ("front", "Evaluated points that no other evaluated point beats in objective, area and power at once."),
)  # fmt: skip
MOST_ROWS = 20


def design_page(answer: DesignAnswer, *, date: str = "") -> str:
    """The whole page as a string (UTF-8). ``date`` is printed as given; the page knows no clock.

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


def design_pngs(answer: DesignAnswer, folder: str | Path, frame: Frame = FILE) -> tuple[Path, ...]:
    """Every figure of an answer as ``folder/NAME.png``, drawn without a browser; each file whole or not at all."""
    drawn = {name: to_png(draw(points, frame)) for name, points in design_points(answer).items()}
    return tuple(write_atomic(Path(folder) / f"{name}.png", data) for name, data in drawn.items())


def _sections(answer: DesignAnswer, records: Mapping[str, Any]) -> list[Markup]:
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
        figure(records, "convergence", "The search is over when the lines meet."),
        element("h2", "Other ways to choose", id="others"),
        figure(
            records,
            "points",
            "Diamond: the best point. Squares: other ways to choose. Discs: evaluated points, those of the front dark.",
        ),
        *([_baselines(answer)] if answer.result.baselines else []),
        _front(answer),
        *([shapes_section(answer.shapes, figure(records, "shapes"))] if answer.shapes else []),
        element("h2", "The plans, and where their steps go", id="plans"),
        figure(records, "step", "The rule is the 80% interval."),
        _plans(details),
        *(_stages(each) for each in details if len(each.stages) > 1),
        element("h2", "Where the area goes", id="chip"),
        figure(records, "floor_plan", "Rectangles have the area of each part [mm2], to one scale; no layout is meant."),
        _parts(answer, best),
        element("h2", "One layer on the cores", id="layer"),
        *(figure(records, name, "Cores that do the same share a line.") for name in several),
        element("h2", "The pipeline in time", id="pipeline"),
        *(
            figure(records, name, "From an event simulation that shares nothing with the closed form above.")
            for name in pipelines
        ),
        bullets("Assumed", list(answer.assumptions)),
        _how_to_read(),
    ]


def _nothing(answer: DesignAnswer) -> list[Markup]:
    found = answer.result
    said = headline(answer)
    if found.status is DesignStatus.INFEASIBLE:
        said = f"No point of the space fits. Tightest: {found.tightest}."
    return [element("div", element("p", said), class_="verdict"), bullets("Assumed", list(answer.assumptions))]


def _numbers(answer: DesignAnswer, best: Ranked, details: list[ModelDetail]) -> Markup:
    found, asked = answer.result, answer.question
    proved = "proved best" if found.status is DesignStatus.OPTIMAL else f"at most {format_share(found.gap)} below best"
    cards = [
        ("Objective", rate(best.objective), f"{UNITS[asked.objective]}, {proved}"),
        ("Die", f"{best.area_mm2:,.0f} mm2", f"{best.usd:,.0f} USD with memory, {best.power_w:,.0f} W at most"),
        ("Combinations", f"{found.space_size:,}", f"{found.evaluated:,} points evaluated, the rest ruled out"),
        ("Took", format_seconds(found.seconds), "on this machine"),
    ]
    if len(details) == 1:
        one = details[0]
        low, high = format_seconds(one.low_s), format_seconds(one.high_s)
        cards.insert(1, ("Step", format_seconds(one.outcome.step_s), f"80%: {low} to {high}"))
    return cards_list(cards)


def _baselines(answer: DesignAnswer) -> Markup:
    best, rows = answer.best, []
    for each in answer.result.baselines:
        other = each.ranked
        cells = ("-", "", "", "")
        if other is not None and best is not None:
            cells = (
                rate(other.objective),
                against_text(best, other),
                f"{other.area_mm2:,.0f}",
                f"{other.power_w:,.0f}",
            )
        rows.append((each.name, *cells, f"{each.evaluations:,}", format_seconds(each.seconds)))
    heads = ("objective", "best is", "mm2", "W", "points", "took")
    columns = [Column(head="way", number=False), *(Column(head=head) for head in heads)]
    caption = "All priced by the same cost model as the best"
    why = bullets("The best against TPUv4-like, model by model", why_texts(answer))
    return join([table(columns, rows, caption=caption), why, bullets("Of these", notes_of(answer))])


def _front(answer: DesignAnswer) -> Markup:
    rows = []
    for each in answer.front[:MOST_ROWS]:
        point = each.evaluation.point
        rows.append(
            (
                short_chip(point.accelerator),
                memory_text(point.hbm_bytes),
                rate(each.objective),
                f"{each.area_mm2:,.1f}",
                f"{each.power_w:,.0f}",
                f"{each.usd:,.0f}",
            )
        )
    heads = ("memory", "objective", "mm2", "W", "USD with memory")
    columns = [Column(head="tensor cores + vector cores, buffer", number=False), *(Column(head=head) for head in heads)]
    more = len(answer.front) - MOST_ROWS
    caption = front_text(answer)
    return table(columns, rows, caption=caption + (f" (and {more} more in the JSON)" if more > 0 else ""), highlight=0)


def _plans(details: list[ModelDetail]) -> Markup:
    rows = []
    for each in details:
        outcome = each.outcome
        rows.append(
            (
                outcome.name,
                format_seconds(outcome.step_s),
                f"{format_seconds(each.low_s)} to {format_seconds(each.high_s)}",
                rate(outcome.sequences_per_s),
                rate(outcome.tokens_per_s),
                format_share(each.mfu),
                format_bytes(each.peak_bytes),
                plan_text(each),
            )
        )
    heads = ("step", "80% interval", "sequences/s", "tokens/s", "mfu", "fullest device")
    columns = [Column(head="model", number=False), *(Column(head=head) for head in heads)]
    return table([*columns, Column(head="plan", number=False)], rows, caption="Every model on the best chip")


def _stages(detail: ModelDetail) -> Markup:
    rows = [
        (
            str(k),
            str(stage.num_layers),
            str(stage.devices),
            format_seconds(stage.forward_s),
            format_seconds(stage.load_s),
            format_bytes(stage.peak_bytes),
            ", ".join(stage.holds),
        )
        for k, stage in enumerate(detail.stages)
    ]
    heads = ("layers", "devices", "forward", "microbatch, both ways", "a device holds")
    columns = [Column(head="stage", number=False), *(Column(head=head) for head in heads)]
    caption = f"Stages of {detail.outcome.name}"
    return table([*columns, Column(head="holds", number=False)], rows, caption=caption)


def _parts(answer: DesignAnswer, best: Ranked) -> Markup:
    accelerator = best.evaluation.point.accelerator
    area, watts = area_parts(answer.question, accelerator), power_parts(accelerator)
    rows = [
        (AREA_WORDS[name], f"{value:,.1f}", format_share(value / best.area_mm2))
        for name, value in sorted(area.items(), key=lambda part: -part[1])
    ]
    powers = [
        (POWER_WORDS[name], f"{value:,.0f}", format_share(value / best.power_w))
        for name, value in sorted(watts.items(), key=lambda part: -part[1])
    ]
    part = Column(head="part", number=False)
    return join(
        [
            table([part, Column(head="mm2"), Column(head="share")], rows, caption="Area of the die by part"),
            table(
                [part, Column(head="W"), Column(head="share")],
                powers,
                caption="Power with every part at its peak rate at once",
            ),
        ]
    )


def _how_to_read() -> Markup:
    items = [item for term, words in READING for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])
