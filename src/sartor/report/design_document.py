"""``design`` for people: the best chip and its proof, its plans, its parts, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sartor.answers.design import (
    BASELINE,
    DESIGN_STAGE,
    RANKED,
    STEP_TIME,
    DesignAnswer,
    Priced,
    params_change,
    rate,
    shape_loss,
)
from sartor.answers.design_reasons import why_texts
from sartor.answers.field import number, text, through
from sartor.designs.against import AgainstModel
from sartor.designs.candidates import DesignStatus, Ranked
from sartor.designs.detail import ModelDetail, area_parts, model_detail, power_parts
from sartor.designs.question import EQUAL, AreaModel, DesignQuestion
from sartor.designs.sensitivity import Nearby
from sartor.designs.shapes_proved import JointShapes
from sartor.hardware.accelerator import SUSTAINED_SHARES
from sartor.model.workload import Phase
from sartor.report import document as d
from sartor.report.design_points import design_points, rates_grid, regret_grid, shapes_lines
from sartor.report.design_words import (
    AREA_WORDS,
    PHASE_UNITS,
    POWER_WORDS,
    against_text,
    drawn_like,
    headlines,
    job_text,
    memory_text,
    notes_of,
    plan_text,
    short_chip,
    short_chips,
    unit_of,
)
from sartor.report.grid import Grid, field_grid, grid_of, page_column, shares_grid, wide_column, words_column
from sartor.report.verdict import loss_words
from sartor.report.words import count_text, printable
from sartor.step.results import StepEstimate
from sartor.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType


def _plans_grid(details: Sequence[ModelDetail]) -> Grid:
    """Each model's plan on the chip: step with interval, throughput, MFU, memory."""
    rows = (
        (
            detail_of.outcome.name,
            *(format_seconds(s) for s in (detail_of.outcome.step_s, detail_of.low_s, detail_of.high_s)),
            rate(detail_of.outcome.sequences_per_s),
            rate(detail_of.outcome.tokens_per_s),
            format_share(float(detail_of.step.mfu)),
            format_bytes(detail_of.peak_bytes),
            plan_text(detail_of),
        )
        for detail_of in details
    )
    units = dict.fromkeys(
        {Phase.TRAIN: "seq"}.get(detail_of.phase, PHASE_UNITS[detail_of.phase][:-2]) for detail_of in details
    )
    heads = (
        "model",
        "step",
        "80% low",
        "80% high",
        f"{' or '.join(units)}/s",
        page_column("tokens/s"),
        "mfu",
        "memory",
    )
    return grid_of("All models on the best chip", (*heads, words_column("plan")), rows)


def _steps_grid(details: Sequence[ModelDetail]) -> Grid:
    """Each model's step by part."""
    parts = [
        (detail.outcome.name if index == 0 else "", words, seconds, seconds / float(detail.step.step_s))
        for detail in details
        for index, (words, seconds) in enumerate(_step_parts(detail.step))
    ]
    rows = ((name, words, format_seconds(seconds), format_share(share)) for name, words, seconds, share in parts)
    columns = ("model", words_column("part"), "time", "share")
    return grid_of("Parts of the step time", columns, rows, bars=tuple(share for *_, share in parts))


def _step_parts(step: StepEstimate) -> list[tuple[str, float]]:
    """Parts of a step with their seconds; those below 0.1% left out."""
    parts = [(part.words, float(part.read(step))) for part in STEP_TIME]
    return [(words, seconds) for words, seconds in parts if seconds >= 0.001 * float(step.step_s)]


def _area_grid(answer: DesignAnswer, best: Ranked) -> Grid:
    """The die by part, largest first."""
    parts = _largest_first(area_parts(answer.question, best.evaluation.point.accelerator), AREA_WORDS)
    return shares_grid("Area of the die by part", "mm2", parts, best.area_mm2, "{:,.1f}".format)


def _power_grid(best: Ranked) -> Grid:
    """Peak power by part, largest first."""
    parts = _largest_first(power_parts(best.evaluation.point.accelerator), POWER_WORDS)
    return shares_grid("Power with all parts at their peak rates", "W", parts, best.power_w, "{:,.0f}".format)


def _largest_first(parts: Mapping[str, float], words: Mapping[str, str]) -> list[tuple[str, float]]:
    return sorted(((words[name], amount) for name, amount in parts.items() if amount), key=lambda part: -part[1])


def _alternatives_grid(answer: DesignAnswer) -> Grid:
    """The alternatives, priced by the same cost model."""
    best = answer.best
    times = number(
        "times", "best vs this", path=lambda pair: best and pair[1].ranked and against_text(best, pair[1].ranked)
    )
    records = [(answer.question, line) for line in answer.result.baselines]
    return field_grid("Priced by the same cost model", (*BASELINE, times), records)


FRONT = 20
"""Points of the front that are shown; the JSON has all of them."""


def _front_grid(answer: DesignAnswer) -> Grid:
    """The first points of the Pareto front."""
    chips = short_chips([ranked.evaluation.point.accelerator for ranked in answer.front[:FRONT]])
    records = [(Priced(answer.question, ranked), chip) for ranked, chip in zip(answer.front, chips, strict=False)]
    columns = (
        text("chip", "tensor cores + vector cores, buffer", path=lambda record: record[1]),
        number("memory", "memory", path=lambda record: record[0].point.hbm_bytes, form=memory_text),
        *through(lambda record: record[0], RANKED),
    )
    grid = field_grid(_front_text(answer), columns, records, marked=0)
    if len(answer.front) <= FRONT:
        return grid
    note = (f"{len(answer.front) - FRONT} more in the JSON", *[""] * (len(grid.columns) - 1))
    return replace(grid, rows=(*grid.rows, note))


def _stages_grid(detail: ModelDetail) -> Grid:
    """The pipeline stages of one model."""
    return field_grid(f"Stages of {detail.outcome.name}", DESIGN_STAGE, detail.stages)


def _gpus_grid(answer: DesignAnswer) -> Grid:
    """Each catalogue GPU on each model: its step, the chip's, and the advantage the chip needs to win."""
    rows = ((against.gpu.name, each.model, *_gpu_cells(each)) for against in answer.against for each in against.models)
    heads = ("step", wide_column("80% interval"), "chip's step", "chip vs GPU", "on one network")
    columns = ("GPU", words_column("model"), *heads, "needs: area", "power", "cost")
    return grid_of("Catalogue GPUs on the same jobs", columns, rows)


def _gpu_cells(model: AgainstModel) -> tuple[str, ...]:
    if model.plan is None:
        return ("no plan fits", *[""] * 7)
    needed = [None] * 3 if model.needed is None else [model.needed.area, model.needed.power, model.needed.cost]
    return (
        format_seconds(model.plan.step_s),
        f"{format_seconds(model.plan.low_s)} to {format_seconds(model.plan.high_s)}",
        "" if model.chip_step_s is None else format_seconds(model.chip_step_s),
        "" if model.ratio is None else f"{model.ratio:.3g}x",
        "" if model.equal_ratio is None else f"{model.equal_ratio:.3g}x",
        *("-" if x is None else f"{x:.3g}x" for x in needed),
    )


GPU_NOTES = (
    "'chip vs GPU' has each on its own network, 'on one network' the GPU on the chip's: as many neighbours, the same "
    "nominal rates, what links sustain of them its own. A network's switches and adapters are not priced.",
    "GPU times are those of the best plan (sartor plan) with the default trainer and the package's calibration; chip "
    "times follow from the template: published steps of GPT-3 on the A100 drawn in it come out 13 to 30% too fast.",
    "'needs' is the factor by which the chip must be faster than predicted to equal the GPU per mm2 of die, per watt "
    "and per dollar of die and memory; below 1 it already wins.",
)


SERVED_NOTE = "Served, a GPU takes batches pass after pass as the chip does, in 16 bits; a step is one pass."


IDEAL_NOTE = (
    "'chip vs GPU' compares ideal rates with measured ones: the chip's arrays, memory and links sustain all of their "
    "peak rates, the GPU's rates are calibrated. To compare alike, lower the chip's with "
    f"{', '.join(SUSTAINED_SHARES)} of a space file, or search --space modern, which sets them as measured on A100."
)
"""For a chip whose rates are those of its datasheet."""


def _ideal(answer: DesignAnswer) -> bool:
    """Whether the best chip sustains all of its peak rates."""
    chip = answer.best.evaluation.point.accelerator if answer.best else None
    return chip is not None and all(float(getattr(chip, name)) == 1 for name in SUSTAINED_SHARES)


def _model_texts(answer: DesignAnswer) -> tuple[str, ...]:
    """How much of each GPU's comparison is the model: what the same GPU gains when it is drawn as a chip."""
    best, texts = answer.best, []
    if best is None:
        return ()
    for against in answer.against:
        like = drawn_like(answer, against.gpu.name)
        rates = zip(against.models, like.evaluation.rates if like else (), best.evaluation.rates, strict=False)
        shares = [each.ratio * mine / theirs for each, mine, theirs in rates if each.ratio and mine]
        if shares:
            many = " to ".join(dict.fromkeys(f"{share:.3g}x" for share in (min(shares), max(shares))))
            texts.append(
                f"Against {against.gpu.name} the model itself favours chips {many}: the same GPU drawn as a chip is "
                "priced that much faster than as measured."
            )
    if answer.against and not texts:
        ideal = "at ideal rates" if _ideal(answer) else "by its template"
        texts.append(f"The chip is priced {ideal}, the GPU as measured: expect less than 'chip vs GPU' says.")
    return tuple(texts)


def _gpu_notes(answer: DesignAnswer) -> tuple[str, ...]:
    """How to read the table of GPUs."""
    served = any(model.served for model in answer.question.models)
    notes = (*([IDEAL_NOTE] if _ideal(answer) else []), *GPU_NOTES, *([SERVED_NOTE] if served else []))
    if answer.question.costs.area is AreaModel.DIE:
        return notes
    return (*notes, "The chip's area is that of cores and buffers only; --space modern counts whole dies.")


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
        question=_heading_text(answer),
        command="design",
        blocks=_blocks(answer, records),
        records=records,
        glossary=bool(answer.best),
    )
    return d.document_page(document, date)


def _blocks(answer: DesignAnswer, records: dict[str, object]) -> list[d.PageBlock]:
    first, *rest = headlines(answer)
    heading = f"{_heading_text(answer)}."
    lines = d.opening([f"{heading} Best: {first[0].lower()}{first[1:]}", *rest])
    verdict = d.PageBlock(words=" ".join([first, *rest]), verdict=True, place=d.Place.PAGE)
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
        d.PageBlock(words=_menu_text(question), style="dim", place=d.Place.LONG),
        d.PageBlock(cards=_cards(answer, best, priced), place=d.Place.PAGE),
        d.section("What the search proved", "search", "Search", d.Place.PAGE),
        d.figure_block("convergence", "The search ends when the lines meet."),
        d.section("Plans", "plans", "Plans"),
        *d.cut_blocks(_plans_grid(priced), ROWS),
        d.section("Where the time goes", place=d.Place.REST),
        d.figure_block("step", "The line is the 80% interval."),
        d.grid_block(_steps_grid(priced), d.Place.REST),
        *(d.grid_block(_stages_grid(detail), d.Place.PAGE) for detail in priced if len(detail.stages) > 1),
        d.section("Where the area goes", "chip", "Chip", d.Place.REST),
        d.figure_block("floor_plan", "Rectangles show the area of each part [mm2] to scale; this is not a layout."),
        d.grid_block(_area_grid(answer, best), d.Place.REST),
        d.grid_block(_power_grid(best), d.Place.PAGE),
        *_comparisons(answer),
        *_drawings(records),
        *assumed,
    ]


def _menu_text(question: DesignQuestion) -> str:
    """The sizes of plans that the proof is about."""
    menus = [("tp", tuple(dict.fromkeys(width for model in question.models for width in model.widths)))]
    if not all(model.served for model in question.models):
        menus += [("cp", question.context_widths), ("chunks per device", question.virtual_stages)]
        menus += [("microbatches of", question.whole_microbatches)]
    menus += [
        ("batches of", sizes) for sizes in dict.fromkeys(model.batch_sizes for model in question.models if model.served)
    ]
    return "Plans tried: " + "; ".join(f"{name} {', '.join(f'{n:,}' for n in sizes)}" for name, sizes in menus) + "."


def _heading_text(answer: DesignAnswer) -> str:
    """``GPT-3 175B (sequence length 2,048) on 1,024 devices: global batch 4,096, design space modern``."""
    question = answer.question
    names = ", ".join(job_text(model.name, model.phase, model.seq_len, model.context_len) for model in question.models)
    batch = "" if question.batch is None else f"global batch {question.batch:,}, "
    return (
        f"{names} on {count_text(question.num_devices, 'device')}: {batch}design space {printable(answer.space.name)}"
    )


def _comparisons(answer: DesignAnswer) -> list[d.PageBlock]:
    """Alternatives, catalogue GPUs, other shapes and the Pareto front."""
    blocks: list[d.PageBlock] = []
    if answer.result.baselines:
        alternatives = _alternatives_grid(answer)
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
        blocks += [d.section("Compared with catalogue GPUs"), d.grid_block(_gpus_grid(answer))]
        blocks += [d.PageBlock(words=words) for words in _model_texts(answer)]
        blocks += [d.bullets_block("Notes", _gpu_notes(answer), d.Place.REST)]
    blocks.append(d.bullets_block("How firmly the best stands", _nearby_texts(answer.nearby)))
    if answer.joint is not None:
        blocks += [d.section("The model's shape"), *(d.PageBlock(words=line) for line in _joint_lines(answer.joint))]
    if answer.shapes is not None:
        blocks += [d.section("Shapes of the same size", "shapes")]
        blocks += [d.PageBlock(words=line) for line in shapes_lines(answer.shapes)]
        blocks += [d.figure_block("shapes"), d.grid_block(rates_grid(answer.shapes), d.Place.PAGE)]
        blocks += [
            d.PageBlock(words=LOSSES, place=d.Place.TEXT),
            d.grid_block(regret_grid(answer.shapes), d.Place.TEXT),
        ]
    if len(answer.front) > 1:
        front = [d.section(_front_text(answer)), *d.cut_blocks(_front_grid(answer), ROWS)]
        blocks += front if answer.proved_front else d.in_full(front)
    return blocks


def _front_text(answer: DesignAnswer) -> str:
    """The heading of the front."""
    front = answer.proved_front
    if front is None:
        return "Pareto front of objective, area and power (evaluated points)"
    names = " and ".join(_FRONT_WORDS[axis] for axis in front.axes)
    if not front.num_budgets:
        within = f" by more than {format_share(front.tolerance)}" if front.tolerance > 1e-9 else ""
        kind = "Proved over the whole space" if front.proved else "Best found over the whole space"
        return f"{kind}: no point beats these in objective, {names}{within}"
    kind = "Proved best" if front.proved else "Best found"
    return f"{kind} under each of {front.num_budgets} budgets on {names}, and other undominated points"


_FRONT_WORDS = {"area_mm2": "area", "power_w": "power", "hbm_bytes": "memory", "usd": "price"}


def _nearby_texts(nearby: Nearby | None) -> tuple[str, ...]:
    """Ranges within 1% of the best, and whether the best chip stays best when each assumption changes."""
    if nearby is None:
        return ()
    ranges = ", ".join(f"{axis} {low:g} to {high:g}" for axis, (low, high) in nearby.near_best.items() if low < high)
    alone = [f"within 1% of the best, one axis changed at a time: {ranges or 'no other value of any axis'}"]
    for swing in nearby.swings:
        best = (
            "still the best"
            if swing.survives
            else f"another chip is {swing.best_objective / swing.objective - 1:.1%} better"
        )
        alone.append(
            f"{swing.assumption} {swing.change:+.0%}: {swing.objective:,.4g}, {best} (of {swing.num_rivals + 1} priced)"
        )
    return tuple(alone)


def _joint_lines(joint: JointShapes) -> list[str]:
    """The best shapes, and the gain from searching them together with the chip."""
    before, several = joint.as_it_is.best, len(joint.shapes) > 1
    if before is None:
        return []
    chip = short_chip(before.evaluation.point.accelerator)
    lines = [
        f"Best shape{f' of {shape.model}' if several else ''}: {shape.variant.name} ({params_change(shape):+.1%} "
        f"parameters; {loss_words(shape_loss(shape))}); the other shapes of this size ({shape.axes.num_shapes:,} in "
        f"all) reduce to {len(shape.axes.variants):,}, as a wider one is never faster."
        for shape in joint.shapes
    ]
    others = "" if joint.result.waiting else ", the others ruled out by their upper bounds"
    as_it_is = "the models as they are with their" if several else "the model as it is with its"
    lines.append(
        f"This is {joint.gain:.3f}x {as_it_is} best chip ({chip}); {joint.searched:,} shapes were searched{others}."
    )
    if (gain := joint.gain_over_turns) is not None:
        alone = "gains nothing" if gain <= 1 + EQUAL else f"gains {gain - 1:.2%}"
        lines.append(f"Searching shape and chip together {alone} over the chip first and then the shape for it.")
    return lines


def _drawings(records: dict[str, object]) -> list[d.PageBlock]:
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
