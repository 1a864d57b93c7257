"""The tables of a design, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sartor.answers.design import BASELINE, DESIGN_STAGE, RANKED, DesignAnswer, Priced, rate
from sartor.answers.field import number, text, through
from sartor.designs.against import AgainstModel
from sartor.designs.detail import ModelDetail, area_parts, power_parts
from sartor.designs.question import AreaModel
from sartor.designs.result import Ranked
from sartor.hardware.accelerator import SUSTAINED_SHARES
from sartor.model.workload import Phase
from sartor.report.design_words import (
    AREA_WORDS,
    PHASE_UNITS,
    POWER_WORDS,
    against_text,
    front_text,
    memory_text,
    plan_text,
    short_chips,
    step_parts,
)
from sartor.report.grid import Grid, field_grid, grid_of, page_column, shares_grid, wide_column, words_column
from sartor.units import format_bytes, format_seconds, format_share


def plans_grid(details: Sequence[ModelDetail]) -> Grid:
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


def steps_grid(details: Sequence[ModelDetail]) -> Grid:
    """Each model's step by part."""
    parts = [
        (detail.outcome.name if index == 0 else "", words, seconds, seconds / float(detail.step.step_s))
        for detail in details
        for index, (words, seconds) in enumerate(step_parts(detail.step))
    ]
    rows = ((name, words, format_seconds(seconds), format_share(share)) for name, words, seconds, share in parts)
    columns = ("model", words_column("part"), "time", "share")
    return grid_of("Parts of the step time", columns, rows, bars=tuple(share for *_, share in parts))


def area_grid(answer: DesignAnswer, best: Ranked) -> Grid:
    """The die by part, largest first."""
    parts = _largest_first(area_parts(answer.question, best.evaluation.point.accelerator), AREA_WORDS)
    return shares_grid("Area of the die by part", "mm2", parts, best.area_mm2, "{:,.1f}".format)


def power_grid(best: Ranked) -> Grid:
    """Peak power by part, largest first."""
    parts = _largest_first(power_parts(best.evaluation.point.accelerator), POWER_WORDS)
    return shares_grid("Power with all parts at their peak rates", "W", parts, best.power_w, "{:,.0f}".format)


def _largest_first(parts: Mapping[str, float], words: Mapping[str, str]) -> list[tuple[str, float]]:
    return sorted(((words[name], amount) for name, amount in parts.items()), key=lambda part: -part[1])


def alternatives_grid(answer: DesignAnswer) -> Grid:
    """The alternatives, priced by the same cost model."""
    best = answer.best
    times = number(
        "times", "best vs this", path=lambda pair: best and pair[1].ranked and against_text(best, pair[1].ranked)
    )
    records = [(answer.question, line) for line in answer.result.baselines]
    return field_grid("Priced by the same cost model", (*BASELINE, times), records)


FRONT = 20
"""Points of the front that are shown; the JSON has all of them."""


def front_grid(answer: DesignAnswer) -> Grid:
    """The first points of the Pareto front."""
    chips = short_chips([ranked.evaluation.point.accelerator for ranked in answer.front[:FRONT]])
    records = [(Priced(answer.question, ranked), chip) for ranked, chip in zip(answer.front, chips, strict=False)]
    columns = (
        text("chip", "tensor cores + vector cores, buffer", path=lambda record: record[1]),
        number("memory", "memory", path=lambda record: record[0].point.hbm_bytes, form=memory_text),
        *through(lambda record: record[0], RANKED),
    )
    grid = field_grid(front_text(answer), columns, records, marked=0)
    if len(answer.front) <= FRONT:
        return grid
    note = (f"{len(answer.front) - FRONT} more in the JSON", *[""] * (len(grid.columns) - 1))
    return replace(grid, rows=(*grid.rows, note))


def stages_grid(detail: ModelDetail) -> Grid:
    """The pipeline stages of one model."""
    return field_grid(f"Stages of {detail.outcome.name}", DESIGN_STAGE, detail.stages)


def gpus_grid(answer: DesignAnswer) -> Grid:
    """Each catalogue GPU on each model: its step, the chip's, and the advantage the chip needs to win."""
    rows = ((against.gpu.name, each.model, *_gpu_cells(each)) for against in answer.against for each in against.models)
    heads = ("step", wide_column("80% interval"), "chip's step", "chip vs GPU", "needs: area", "power", "cost")
    return grid_of("Catalogue GPUs on the same jobs", ("GPU", words_column("model"), *heads), rows)


def _gpu_cells(model: AgainstModel) -> tuple[str, ...]:
    if model.plan is None:
        return ("no plan fits", *[""] * 6)
    needed = [None] * 3 if model.needed is None else [model.needed.area, model.needed.power, model.needed.cost]
    return (
        format_seconds(model.plan.step_s),
        f"{format_seconds(model.plan.low_s)} to {format_seconds(model.plan.high_s)}",
        "" if model.chip_step_s is None else format_seconds(model.chip_step_s),
        "" if model.ratio is None else f"{model.ratio:.3g}x",
        *("-" if x is None else f"{x:.3g}x" for x in needed),
    )


GPU_NOTES = (
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


def gpu_notes(answer: DesignAnswer) -> tuple[str, ...]:
    """How to read the table of GPUs."""
    served = any(model.served for model in answer.question.models)
    notes = (*([IDEAL_NOTE] if _ideal(answer) else []), *GPU_NOTES, *([SERVED_NOTE] if served else []))
    if answer.question.costs.area is AreaModel.DIE:
        return notes
    return (*notes, "The chip's area is that of cores and buffers only; --area-model die counts the whole die.")
