"""The first lines of an answer: what was priced, whether it fits, how fast, and what a value not stated would turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from sartor.ask.complete import plan_sentence
from sartor.report.fit_words import close_text, does_not_fit
from sartor.report.words import interval_text, printable, unread_text
from sartor.run.fields import AXES
from sartor.run.run import Origin
from sartor.units import format_bytes, format_share

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate


def headline(answer: ModelEstimate) -> Iterator[str]:
    """``my-3b on 8 h100_sxm as dp 8, ZeRO 1, microbatch 2 (the fastest plan that fits): fits, 71 of 75.2 GiB.``, how
    long a step takes, and what would turn it."""
    yield f"{_subject(answer)}: {_fits(answer)}"
    yield _speed(answer)
    if unread := unread_text(answer.question.reading):
        yield unread
    for turn in answer.question.depends_on:
        share = turn.figures.get("gain_fraction")
        costs = "" if share is None else f" (costs {format_share(share)})"
        yield f"With {turn.field}={turn.value}, which was not stated: {printable(turn.verdict).rstrip('.')}{costs}."


def headline_lines(answer: ModelEstimate) -> list[Text]:
    """The same for the terminal; in red what does not fit."""
    first, *rest = headline(answer)
    return [Text(first, style="" if answer.fits else "bold red"), *map(Text, rest), Text("")]


def _subject(answer: ModelEstimate) -> str:
    question = answer.question
    model = printable(question.reading.shape.name or "the model")
    if question.held is None:
        dims = question.dims
        degrees = " ".join(f"{name} {int(getattr(dims, name))}" for name in ("tp", "ep") if getattr(dims, name) > 1)
        many = int(dims.num_devices)
        return f"{model} on {many} {printable(question.gpu.name)}{f' as {degrees}' if degrees else ''}"
    return f"{model} on {printable(plan_sentence(question.held))}{_chosen(answer)}"


def _chosen(answer: ModelEstimate) -> str:
    """How the plan was chosen, if not everything of it was stated."""
    run = answer.question.run
    if all(run.origin(name) is not Origin.SEARCHED for name in AXES):
        return ""
    stated = [name for name in AXES if run.states(name)]
    best = "the fastest plan that fits" if answer.fits else "the leanest plan"
    dims, held = answer.question.dims, answer.question.held
    unsplit = [
        f"{name}={degree}" for name in ("tp", "ep") if held and (degree := getattr(dims, name)) > held.axes[name]
    ]
    why = f"; {' and '.join(unsplit)} cannot split the model" if unsplit else ""
    return f" ({best}{' with ' + ', '.join(stated) + ' as stated' if stated else ''}{why})"


def _fits(answer: ModelEstimate) -> str:
    if answer.fits:
        sizes = f"{format_bytes(answer.peak_bytes)} of {format_bytes(answer.usable_bytes)}"
        close = close_text(answer.peak_bytes, answer.usable_bytes) if answer.near_limit else ""
        return f"fits, {sizes}{close}."
    words = does_not_fit(answer)
    return words[0].lower() + words[1:]


def _speed(answer: ModelEstimate) -> str:
    question = answer.question
    time = interval_text(float(answer.time_s), float(answer.low_s), float(answer.high_s))
    peak = f"{format_share(float(answer.mfu))} of dense peak (MFU)"
    if question.held is not None:
        job = question.held.job
        return f"A step of {job.global_batch_size:,} x {job.seq_len:,} tokens takes {time}, {peak}."
    work = question.workload
    sequences = int(work.microbatch_size)
    if work.phase.value == "decode":
        return f"A token each of {sequences:,} sequences of {int(work.context_len):,} takes {time}, {peak}."
    return f"A pass over {sequences:,} x {int(work.seq_len):,} tokens takes {time}, {peak}."
