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
from sartor.plans.explain import AGREES, Explanation, OpenPlan, nearest
from sartor.report.grid import Grid, grid_of, grid_view
from sartor.report.plan_words import beside_best, devices_text, plan_words
from sartor.report.table_estimate import notes, plain_table, section_title
from sartor.report.words import count_text, interval_text, printable, signed_share
from sartor.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import LogDiagnosis
    from sartor.plans.result import PricedPlan

SHOWN = 5
"""Changes that the terminal lists."""
NAMED = 3
"""Plans that the sentence about an open plan names."""
EXPLAINING = "Plans that would explain the run"


# ---------------------------------------------------------------------------------------------------- terminal


def log_view(answer: LogDiagnosis) -> RenderableType:
    """The answer first: measured and predicted speed, certainty; then memory, TFLOP/s, and what would explain it."""
    heading, lines = log_answer(answer)
    parts: list[RenderableType] = [Text(heading, style="bold"), *(Text(line) for line in lines)]
    if not answer.open_plan.fields:
        parts += [section_title("Measured and predicted"), _table(answer), *_explained(answer)]
    elif answer.open_plan.explaining:
        parts += [section_title(EXPLAINING), grid_view(open_grid(answer.open_plan, SHOWN))]
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
    impossible = " (impossible: see the warnings)" if answer.mfu > 1 else ""
    aim, end = (
        f"this plan{beside_best(predicted, answer.best)}",
        f"; predicted {interval_text(predicted.step_s, predicted.low_s, predicted.high_s)}",
    )
    if answer.open_plan.fields:
        predicted, end = answer.best or predicted, ""
        aim = f"the best plan ({plan_words(predicted.plan)})" if answer.best else ""
    share = f"; {format_share(float(predicted.step.mfu))} is predicted for {aim}" if aim else ""
    return (
        f"You reach {format_share(answer.mfu)} MFU{impossible}{share}. A training step takes "
        f"{format_seconds(run.step_s)} ({steps}, spread {format_share(run.spread)}{left}){end}."
    )


def _stalls(answer: LogDiagnosis) -> list[str]:
    run = answer.measured
    if not run.stall_s:
        return []
    share = format_share(run.stall_s / run.step_s)
    return [f"Stalls take {format_seconds(run.stall_s)} ({share}) of it: {answer.stalls}. Look at {STALLS_FIX}."]


def _certainty(answer: LogDiagnosis) -> str:
    run, predicted = answer.measured, answer.predicted
    has_memory = math.isfinite(run.allocated_bytes) or math.isfinite(run.reserved_bytes)
    if answer.open_plan.fields:
        return open_text(answer.open_plan, "log", "step and memory" if has_memory else "step")
    ratio = run.stall_free_s / predicted.step_s - 1
    faster = "slower" if ratio > 0 else "faster"
    which = "Without stalls the run" if run.stall_s else "The run"
    text = f"{which} is {format_share(abs(ratio))} {faster} than predicted, "
    if answer.inside and answer.explanations[0].misfit <= AGREES:
        agree = "step and memory agree" if has_memory else "the step agrees"
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


def open_text(plan: OpenPlan, what: str, figures: str) -> str:
    """What ``what`` (log, trace) does not say of its plan, which plans would give its ``figures``, and what tells."""
    text = (
        f"none of the {plan.num_plans:,} plans that it could have gives this {figures}. Model, GPUs, batch, precision "
        "or trainer are not those assumed, or the run loses time."
    )
    if plan.explaining:
        words = "; ".join(plan_words(each.plan) for each in plan.explaining[:NAMED])
        text = f"{plan.num_explaining:,} of {plan.num_plans:,} plans would give this {figures}, among them {words}."
    if plan.agreed:
        text += f" All of these have {', '.join(f'{name}={value}' for name, value in plan.agreed.items())}."
    settles = "To compare the run with its own plan, give it with --launch or --fix."
    return f"The {what} does not say {', '.join(plan.fields)}: {text} {settles}"


def _memory(answer: LogDiagnosis) -> list[str]:
    held, unknown = answer.predicted.footprint, bool(answer.open_plan.fields)
    pairs = (
        ("allocated", answer.measured.allocated_bytes, float(held.allocated_bytes)),
        ("reserved", answer.measured.reserved_bytes, float(held.reserved_bytes)),
    )
    said = [
        f"{format_bytes(seen)} {word}"
        + ("" if unknown else f" ({format_bytes(told)} predicted, {signed_share(seen / told - 1)})")
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
    rows = [
        (f"{each.field} {each.value}".strip() or "as said", *_figures(each.priced), f"{each.misfit:.1f}")
        for each in (answer.explanations[0], *tried[:SHOWN])
    ]
    return [*parts, grid_view(grid_of("", ("if it were", *FIGURES, "misfit"), rows))]


FIGURES = ("step", "allocated", "reserved")


def _figures(priced: PricedPlan) -> tuple[str, str, str]:
    held = priced.footprint
    return (
        format_seconds(priced.step_s),
        format_bytes(float(held.allocated_bytes)),
        format_bytes(float(held.reserved_bytes)),
    )


def open_grid(plan: OpenPlan, most: int | None = None) -> Grid:
    """The likeliest explaining plans with their predicted figures."""
    rows = [(plan_words(each.plan), *_figures(each)) for each in plan.explaining[:most]]
    return grid_of("Predicted figures, the likeliest plan first", ("plan", *FIGURES), rows)


def _verdict(answer: LogDiagnosis, best: tuple[Explanation, ...]) -> str:
    tried = len(answer.explanations) - 1
    if not best and answer.inside and answer.explanations[0].misfit <= AGREES:
        what = "run without stalls" if answer.measured.stall_s else "run"
        return f"Nothing has to change: the {what} matches the plan {plan_words(answer.predicted.plan)}."
    if not best:
        return f"{count_text(tried, 'single change')} tried, and none explains it: the rest is not due to the plan."
    first, *others = best
    step_s, _, reserved = _figures(first.priced)
    sentence = f"{first.field}={first.value} brings the prediction nearest: {step_s} and {reserved} reserved"
    if others:
        sentence += f"; {', '.join(f'{each.field}={each.value}' for each in others)} would do as well"
    still = "" if first.misfit < AGREES else " It is still far from the run."
    return f"{sentence}.{still}"
