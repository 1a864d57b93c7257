"""A training log compared with its prediction, for the terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.answers.diagnosis import STALLS_FIX
from sartor.answers.plan import PARTS
from sartor.plans.explain import EQUAL, Explanation, nearest
from sartor.report.plan_words import beside_best, devices_text, plan_words
from sartor.report.table_estimate import notes, plain_table, section_title
from sartor.report.words import count_text, interval_text, printable, signed_share
from sartor.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import LogDiagnosis

SHOWN = 5
"""Changes that the terminal lists."""
AGREES = 4.0
"""Misfit up to which a prediction agrees with a run: two standard deviations, in step time and memory combined."""


# ---------------------------------------------------------------------------------------------------- terminal


def log_view(answer: LogDiagnosis) -> RenderableType:
    """The answer first: measured and predicted speed, certainty; then memory, TFLOP/s, and what would explain it."""
    heading, lines = log_answer(answer)
    parts: list[RenderableType] = [Text(heading, style="bold"), *(Text(line) for line in lines)]
    parts += [section_title("Measured and predicted"), _table(answer)]
    parts += _explained(answer)
    parts += notes("Warnings", answer.warnings)
    parts += notes("Units", answer.units)
    return Group(*parts, *notes("Assumed", [printable(line) for line in answer.assumptions]))


def log_answer(answer: LogDiagnosis) -> tuple[str, list[str]]:
    """A heading, and the answer: speed, certainty, memory, TFLOP/s."""
    return _heading(answer), [_headline(answer), *_stalls(answer), _certainty(answer), *_memory(answer), *_rate(answer)]


def _heading(answer: LogDiagnosis) -> str:
    job, plan = answer.job, answer.predicted.plan
    run = f", run {answer.run} of {answer.num_runs}" if answer.num_runs > 1 else ""
    return (
        f"{printable(answer.path)}{run}: {answer.trainer} on {devices_text(answer.cluster, int(plan.num_devices))} "
        f"({printable(answer.cluster.name)}), global batch {job.global_batch_size:,} x {job.seq_len:,} tokens, "
        f"{job.recipe.value}"
    )


def _headline(answer: LogDiagnosis) -> str:
    run, predicted = answer.measured, answer.predicted
    steps = f"{'mean' if run.is_mean else 'median'} of {count_text(run.num_steps, 'steady step')}"
    left = f"; {count_text(run.warm_up, 'warm-up step')} left out" if run.warm_up else ""
    told = interval_text(predicted.step_s, predicted.low_s, predicted.high_s)
    plan = f"this plan{beside_best(predicted, answer.best)}"
    impossible = " (impossible: see the warnings)" if answer.mfu > 1 else ""
    return (
        f"You reach {format_share(answer.mfu)} MFU{impossible}; {format_share(float(predicted.step.mfu))} is predicted "
        f"for {plan}. A training step takes {format_seconds(run.step_s)} ({steps}, spread "
        f"{format_share(run.spread)}{left}); predicted {told}."
    )


def _stalls(answer: LogDiagnosis) -> list[str]:
    run = answer.measured
    if not run.stall_s:
        return []
    share = format_share(run.stall_s / run.step_s)
    return [f"Stalls take {format_seconds(run.stall_s)} ({share}) of it: {answer.stalls}. Look at {STALLS_FIX}."]


def _certainty(answer: LogDiagnosis) -> str:
    run, predicted = answer.measured, answer.predicted
    ratio = run.stall_free_s / predicted.step_s - 1
    faster = "slower" if ratio > 0 else "faster"
    which = "Without stalls the run" if run.stall_s else "The run"
    text = f"{which} is {format_share(abs(ratio))} {faster} than predicted, "
    if answer.inside and answer.explanations[0].misfit <= AGREES:
        agree = "step and memory agree" if _memory_said(answer) else "the step agrees"
        return f"{text}inside the 80% interval: {agree} with the plan."
    if answer.inside:
        return f"{text}inside the 80% interval, but the memory does not match this plan."
    why = (
        "Either the run loses time, or its plan is not the one given."
        if ratio > 0
        else "Either its plan, model or GPUs are not those given, or the prediction is too slow here."
    )
    chance = math.erfc(abs(answer.deviation) / math.sqrt(2))
    rare = f"1 in {1 / chance:,.0f}" if chance > 1e-6 else "less than 1 in a million"
    return (
        f"{text}{abs(answer.deviation):.1f} standard deviations outside: {rare} runs of exactly this plan would be as "
        f"far off. {why}"
    )


def _memory_said(answer: LogDiagnosis) -> bool:
    return math.isfinite(answer.measured.allocated_bytes) or math.isfinite(answer.measured.reserved_bytes)


def _memory(answer: LogDiagnosis) -> list[str]:
    held = answer.predicted.footprint
    pairs = (
        ("allocated", answer.measured.allocated_bytes, float(held.allocated_bytes)),
        ("reserved", answer.measured.reserved_bytes, float(held.reserved_bytes)),
    )
    said = [
        f"{format_bytes(seen)} {word} ({format_bytes(told)} predicted, {signed_share(seen / told - 1)})"
        for word, seen, told in pairs
        if math.isfinite(seen)
    ]
    return [f"Peak memory: {', '.join(said)}."] if said else ["The log does not say its memory."]


def _rate(answer: LogDiagnosis) -> list[str]:
    run = answer.measured
    if not math.isfinite(run.flops_per_s):
        return []
    printed = f"The {run.flops_per_s / 1e12:.3g} TFLOP/s per GPU that {answer.trainer} prints"
    if not answer.conventions:
        return [f"{printed} follow no convention that is known: they are not this model's FLOPs at this length."]
    first, *others = answer.conventions
    own = float(answer.predicted.step.model_flops) / answer.job.tokens_per_step
    factor = first.factor(own)
    also = f" (or: {'; '.join(each.words for each in others[:2])})" if others else ""
    return [
        f"{printed} count {first.words}{also}. Counted as sartor does (attention as its kernel computes it, no layer "
        f"twice) they are {run.flops_per_s / factor / 1e12:.3g} TFLOP/s."
    ]


def _table(answer: LogDiagnosis) -> Table:
    run, predicted = answer.measured, answer.predicted
    table = plain_table("", "measured", "predicted", "difference")
    rows: list[tuple[str, float, float, Callable[[float], str]]] = [
        ("step", run.step_s, predicted.step_s, format_seconds)
    ]
    rows += [("tokens/s", run.tokens_per_s, answer.job.tokens_per_step / predicted.step_s, format_count)]
    rows += [("MFU", answer.mfu, float(predicted.step.mfu), format_share)]
    for name, seen, told, words in rows:
        if math.isfinite(seen):
            table.add_row(name, words(seen), words(told), signed_share(seen / told - 1))
    if run.stall_s:
        table.add_row("  of it stalls", format_seconds(run.stall_s), "", "")
    for part in PARTS:
        seconds = float(part.read(predicted.step))
        if seconds > 0.005 * predicted.step_s:
            table.add_row(f"  of it {part.words}", "", format_seconds(seconds), "")
    return table


def _explained(answer: LogDiagnosis) -> list[RenderableType]:
    best, tried = nearest(answer.explanations), answer.explanations[1:]
    parts: list[RenderableType] = [section_title("What would explain the rest"), Text(_verdict(answer, best))]
    if not tried:
        return parts
    table = plain_table("if it were", "step", "allocated", "reserved", "misfit")
    for each in (answer.explanations[0], *tried[:SHOWN]):
        held = each.priced.footprint
        table.add_row(
            f"{each.field} {each.value}" if each.field else "as said",
            format_seconds(each.priced.step_s),
            format_bytes(float(held.allocated_bytes)),
            format_bytes(float(held.reserved_bytes)),
            f"{each.misfit:.1f}",
        )
    return [*parts, table]


def _verdict(answer: LogDiagnosis, best: tuple[Explanation, ...]) -> str:
    tried = len(answer.explanations) - 1
    if not best and answer.explanations[0].misfit <= AGREES:
        what = "run without stalls" if answer.measured.stall_s else "run"
        return f"Nothing has to change: the {what} matches the plan {plan_words(answer.predicted.plan)}."
    if not best and not tried:
        return "The launch says all that would be tried: the rest is not due to the plan."
    if not best:
        return f"None of the {tried} single changes that were tried explains it; the rest is not due to the plan."
    first, *others = best
    least = min(each.misfit for each in best)
    nearer = [each for each in answer.explanations[1:] if each.misfit < least - EQUAL]
    does = "is the likeliest explanation" if nearer else "brings the prediction nearest"
    sentence = (
        f"{first.field}={first.value} {does}: {format_seconds(first.priced.step_s)} and "
        f"{format_bytes(float(first.priced.footprint.reserved_bytes))} reserved"
    )
    if others:
        sentence += f"; {', '.join(f'{each.field}={each.value}' for each in others)} would do as well"
    still = "" if first.misfit < AGREES else " It is still far from the run."
    if nearer:
        closer = " or ".join(f"{each.field}={each.value}" for each in nearer[:2])
        still += f" {closer} would come nearer, but logs seldom leave that out."
    return f"{sentence}.{still} Say it with --fix or --launch if it is so."
