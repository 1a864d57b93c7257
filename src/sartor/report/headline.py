"""The first lines of an answer: what was priced, whether it fits, how fast, and what a value not stated would turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sartor.ask.complete import plan_sentence
from sartor.hardware.alignment import alignment_of
from sartor.report.fit_words import close_text, command, does_not_fit, stated_command
from sartor.report.words import interval_text, printable, unread_text
from sartor.rules.candidates import ragged
from sartor.run.fields import AXES
from sartor.run.run import Origin
from sartor.units import format_bytes, format_change, format_share

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate
    from sartor.rules.rule import Finding


def headline(answer: ModelEstimate, change: str = "") -> Iterator[str]:
    """``my-3b on 8 h100_sxm as dp 8, ZeRO 1, microbatch 2 (the fastest plan that fits): fits, 71 of 75.2 GiB.``, how
    long a step takes, what to change, and what would turn it."""
    yield f"{_subject(answer)}: {_fits(answer)}"
    yield _speed(answer)
    if change and answer.fits and not answer.question.reading.unread:
        yield change
    if unread := unread_text(answer.question.reading):
        yield unread
    for turn in answer.question.depends_on:
        share = turn.figures.get("gain_fraction")
        costs = "" if share is None else f" (costs {format_share(share)})"
        yield f"With {turn.field}={turn.value}, which was not stated: {printable(turn.verdict).rstrip('.')}{costs}."


WORTH_CHANGING = 0.01
"""Least share of the step for which a finding is the change to make first."""
SAME_SIZE = 0.05
"""Largest change of the parameters, as a share, with which it still is the same model."""


def first_change(answer: ModelEstimate, findings: Sequence[Finding], *, further: bool = True) -> str:
    """The finding of the shape that costs most; with ``further``, the command that looks further."""
    if blocking := cannot_run(findings):
        return blocking
    padding = _padding(answer) if further else ""
    fixes = [item for item in findings if item.fix and not item.remark and abs(item.params_change) <= SAME_SIZE]
    costly = [item for item in fixes if (item.gain_fraction or 0) >= WORTH_CHANGING]
    if costly:
        first = max(costly, key=lambda item: item.gain_fraction or 0)
        fix = ", ".join(f"{name}={value}" for name, value in first.fix.items())
        of = "step" if answer.question.held is not None else "pass"
        size = (
            f", {format_change(first.params_change)} parameters" if abs(first.params_change) >= WORTH_CHANGING else ""
        )
        saves = f"which saves {format_share(first.gain_fraction or 0)} of the {of} ({first.rule}{size})"
        why = f"; `{stated_command('lint', answer)}` says why" if further else ""
        return f"Change first: {fix}, {saves}{why}.{padding}"
    tries = f"; `{stated_command('advise', answer)}` tries other shapes"
    if any(answer.question.run.states(name) for name in AXES) and answer.question.held is not None:
        tries = f"; `{command('plan', answer, answer.question.held)}` tries other plans"
    return f"No rule proposes a change of the same size that saves 1%{tries * further}.{padding}"


def cannot_run(findings: Sequence[Finding]) -> str:
    """``It cannot run: num_heads=30 does not split over tp=4.``; empty if nothing keeps it from running."""
    errors = [finding for finding in findings if finding.gain_fraction is None and finding.grade.value == "error"]
    return " ".join(f"It cannot run: {printable(finding.message).rstrip('.')}." for finding in errors[:2])


def _padding(answer: ModelEstimate) -> str:
    """The sentence on a ragged vocabulary that a trainer nobody named pads: on another one it could cost time."""
    question, vocab_size = answer.question, int(answer.question.workload.shape.vocab_size)
    if question.held is None or question.run.states("framework") or question.held.job.shape.vocab_size == vocab_size:
        return ""
    if ragged(vocab_size, alignment_of(question.gpu, question.workload.dtype)) is None:
        return ""
    return (
        f" The trainer was not stated: this one pads the vocabulary of {vocab_size}; lint says what that size costs on"
        " one that does not."
    )


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
