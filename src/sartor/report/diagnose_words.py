"""A diagnosed run in sentences, and a launch that was not run yet: speed, certainty, memory, what loses time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from sartor.answers.diagnosis import STALLS_FIX, LogDiagnosis, part_words
from sartor.cost.cost import interval_80
from sartor.plans.explain import MEMORY_SIGMA, OpenPlan
from sartor.report.document import PageBlock, bullets_block, document_text, grid_block, opening, section
from sartor.report.grid import Grid, grid_of
from sartor.report.lint_formats import GRADE_STYLES
from sartor.report.plan_document import parts_grid
from sartor.report.plan_words import (
    FILE_UNSAID,
    beside_best,
    bound_text,
    cannot_run_text,
    devices_text,
    first_plan_change,
    if_turned,
    money_text,
    plan_gain_text,
    plan_words,
    room_words,
    turn_lines,
    unpriced_text,
)
from sartor.report.words import count_text, interval_text, printable
from sartor.units import format_bytes, format_change, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.diagnosis import TraceDiagnosis
    from sartor.answers.plan import LaunchAnswer
    from sartor.model.training import TrainingJob, TrainingPlan
    from sartor.rules.plan.rule import PlanFinding
    from sartor.step.measured_run import TracePart


def launch_view(answer: LaunchAnswer) -> RenderableType:
    """The launch, where its step goes, memory by stage, findings, and unknown arguments."""
    blocks = [
        opening(_lines(answer), bad=answer.status == "infeasible"),
        section("Where the time goes"),
        grid_block(parts_grid(answer.priced)),
        section("Memory by stage"),
        grid_block(_memory_grid(answer)),
        *([section("Findings")] if answer.findings else []),
        *(PageBlock(view=partial(_finding_text, finding)) for finding in answer.findings),
        bullets_block("Unknown arguments, not priced", answer.unknown),
        bullets_block("Known arguments without a price", answer.unpriced),
        PageBlock(words=_ignored(answer) if answer.ignored else "", style="dim"),
        bullets_block("Assumed", answer.assumptions),
    ]
    return document_text(blocks)


def _run_heading(name: str, trainer: str, answer: LaunchAnswer | LogDiagnosis, plan: TrainingPlan) -> str:
    """``run.sh: megatron-lm on 64 h100_sxm (dgx-h100), global batch 512 x 8,192 tokens, bf16``."""
    job, cluster = answer.job, answer.cluster
    return (
        f"{printable(name)}: {trainer} on {devices_text(cluster, int(plan.num_devices))} "
        f"({printable(cluster.name)}), global batch {job.global_batch_size:,} x {job.seq_len:,} tokens, "
        f"{job.recipe.value}{_frozen(job)}"
    )


def _frozen(job: TrainingJob | None) -> str:
    return "" if job is None or job.trains_weights else ", fine-tuning with frozen weights"


def _lines(answer: LaunchAnswer) -> Iterator[str]:
    """What is launched and whether it fits, how fast it is, and the change that gains most."""
    priced = answer.priced
    reserved_bytes = float(priced.footprint.reserved_bytes)
    memory = room_words(priced.peak_bytes, answer.cluster, answer.headroom, reserved_bytes)
    heading = _run_heading(answer.path, answer.framework, answer, priced.plan)
    if stopped := cannot_run_text(answer.findings):
        yield stopped
    yield f"{heading}, as {plan_words(priced.plan)}. {_fits(answer, memory)}"
    rate = format_count(float(priced.step.tokens_per_s_per_device))
    yield (
        f"A step takes {interval_text(priced.step_s, priced.low_s, priced.high_s)}, "
        f"{format_share(float(priced.step.mfu))} of dense peak (MFU), {rate} tokens/s per device"
        f"{money_text(', ', answer.cost)}. {bound_text(priced)}"
    )
    yield first_plan_change(answer.findings) or "No rule about launches proposes a change."
    yield from turn_lines(answer.depends_on)


def _fits(answer: LaunchAnswer, memory: str) -> str:
    """Whether it fits, as strongly as the launch's switches without a price allow."""
    unpriced = unpriced_text(answer.depends_on)
    if any("peak_bytes" in turn.figures for turn in answer.depends_on):
        word = "It fits" if answer.fits else "It may not fit" if answer.near_limit else "It does not fit"
        turned = if_turned(answer.depends_on, fits=answer.fits, memory=memory, unsaid=FILE_UNSAID)
        return f"{word}{turned}.{unpriced}"
    stops = "IT MAY NOT FIT" if answer.near_limit else "IT DOES NOT FIT"
    needs = "The fullest device needs" if answer.fits else f"{stops}: a device would need"
    as_priced = "AS PRICED " if unpriced and not answer.fits else ""
    return f"{as_priced}{needs} {memory}.{unpriced}"


def _memory_grid(answer: LaunchAnswer) -> Grid:
    """Stages with their parts; at most eight, always including the fullest."""
    stages = list(answer.memory.stages)
    names = list(dict.fromkeys(part.name for stage in stages for part in stage.parts))
    big = [n for n in names if max(s.part_bytes(n) for s in stages) >= 0.02 * answer.usable_bytes]
    big = sorted(sorted(big, key=lambda n: -max(s.part_bytes(n) for s in stages))[:4], key=names.index)
    fullest, rows = answer.memory.fullest.stage, list[tuple[object, ...]]()
    for stage in [s for s in stages if s.stage < 7 or s.stage in (fullest, len(stages) - 1)]:
        total = stage.total_bytes()
        sizes = [stage.part_bytes(name) for name in big]
        parts = (format_bytes(size) if size else "" for size in sizes)
        rest = format_bytes(total - sum(sizes))
        rows.append((str(stage.stage), *parts, rest, format_bytes(total), format_share(total / answer.usable_bytes)))
    return grid_of("Memory by stage", ("stage", *big, "other", "total", "full"), rows)


def _finding_text(finding: PlanFinding) -> Text:
    line = Text()
    line.append(f"{finding.grade.value:5} ", style=GRADE_STYLES[finding.grade.value])
    line.append(f"{finding.rule} ({finding.code}): ", style="bold")
    line.append(printable(finding.message))
    if gain := plan_gain_text(finding):
        line.append(f"\n      {gain}")
    return line


def _ignored(answer: LaunchAnswer) -> str:
    count = len(answer.ignored)
    shown = ", ".join(printable(name) for name in answer.ignored[:6])
    rest = f" and {count - 6} more" if count > 6 else ""
    return f"{count_text(count, 'argument')} without effect on time and memory: {shown}{rest}"


COSTS = "; training costs "
NAMED = 3
"""Plans that the sentence about an open plan names."""
OTHER_MEMORY = 1.5
"""Measured over predicted memory, either way, beyond which a run is of another plan rather than a rare one of this."""
MEMORY_80 = " to ".join(format_change(float(bound) - 1) for bound in interval_80(1.0, MEMORY_SIGMA))
"""The 80% interval of predicted memory, in words."""
SAME = 0.02
"""Share of the step within which a run counts as fast as predicted."""


def diagnose_answer(answer: LogDiagnosis | TraceDiagnosis) -> tuple[str, list[str]]:
    """A heading, and the answer: of a log its speed, certainty, memory and TFLOP/s; of a trace a sentence, then the
    losses by number."""
    if isinstance(answer, LogDiagnosis):
        lines = [_log_headline(answer), *_stalls(answer), _certainty(answer), *_memory(answer)]
        lines += [*_advice(answer), *_rate(answer)]
        return _log_heading(answer), lines
    losses = [f"{number}. {_loss(answer, loss)}" for number, loss in enumerate(answer.losses, start=1)]
    return _trace_heading(answer), [_trace_headline(answer), *losses]


# ---------------------------------------------------------------------------------------------------- a log


def _log_heading(answer: LogDiagnosis) -> str:
    run = f", run {answer.run} of {answer.num_runs}" if answer.num_runs > 1 else ""
    heading = _run_heading(f"{answer.path}{run}", answer.trainer, answer, answer.predicted.plan)
    return heading if "seq_len" in answer.said else f"{heading}. The length is assumed: state --seq-len"


def _log_headline(answer: LogDiagnosis) -> str:
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
        f"{format_seconds(run.step_s)} ({steps}, spread {format_share(run.spread)}{left}){end}"
        f"{money_text(COSTS, answer.cost)}."
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
        return _open_text(answer.open_plan, "log", "step and memory" if has_memory else "step", run.stall_free_s)
    ratio = run.stall_free_s / predicted.step_s - 1
    faster = "slower" if ratio > 0 else "faster"
    which = "Without stalls the run" if run.stall_s else "The run"
    text = f"{which} is {format_share(abs(ratio))} {faster} than predicted, "
    if answer.agrees:
        agree = "step and memory agree" if has_memory else "the step agrees"
        return f"{text}inside the 80% interval: {agree} with the plan."
    if answer.inside:
        return f"{text}inside the 80% interval, but the memory is outside its own ({MEMORY_80}) for this plan."
    why = (
        "Either the run loses time, or its plan is not the one given."
        if ratio > 0
        else "Either its plan, model or GPUs are not those given, or the prediction is too slow here."
    )
    off = run.reserved_bytes / float(predicted.footprint.reserved_bytes)
    if math.isfinite(off) and not 1 / OTHER_MEMORY < off < OTHER_MEMORY:
        return f"{text}and reserves {off:.2g} times the predicted memory: it is no run of exactly this plan. {why}"
    chance = math.erfc(abs(answer.deviation) / math.sqrt(2))
    rare = f"1 in {1 / chance:,.0f}" if chance > 1e-6 else "less than 1 in a million"
    return (
        f"{text}{abs(answer.deviation):.1f} standard deviations outside: {rare} runs of exactly this plan would be as "
        f"far off. {why}"
    )


def _open_text(plan: OpenPlan, what: str, figures: str, step_s: float) -> str:
    """What ``what`` (log, trace) does not say of its plan, which plans would give its ``figures`` and how near their
    steps are to the measured ``step_s``, and what tells."""
    text = (
        f"none of the {plan.num_plans:,} plans that it could have gives this {figures}. Model, GPUs, batch, precision "
        "or trainer are not those assumed, or the run loses time."
    )
    if plan.explaining:
        words = "; ".join(
            f"{plan_words(each.plan)} (step {format_change(each.step_s / step_s - 1)})"
            for each in plan.explaining[:NAMED]
        )
        several = f"{plan.num_explaining:,} of {plan.num_plans:,} plans would give this {figures}"
        text = f"{several} within their 80% intervals, among them {words}."
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
        + ("" if unknown else f" ({format_bytes(told)} predicted, {format_change(seen / told - 1)})")
        for word, seen, told in pairs
        if math.isfinite(seen)
    ]
    return [f"Peak memory: {', '.join(said)}."] if said else ["The log does not say its memory."]


def _advice(answer: LogDiagnosis) -> list[str]:
    part = answer.advice
    if part is None or part.kind == "stalls":  # stalls have a line of their own
        return []
    of_step = f"{format_share(part.share)} of the step ({format_seconds(part.seconds)})"
    return [f"The largest part with a remedy: {part_words(part.kind)}, {of_step}. To do: {part.fix}."]


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


# ---------------------------------------------------------------------------------------------------- a trace


def _trace_heading(answer: TraceDiagnosis) -> str:
    rank = "" if answer.rank is None else f", rank {answer.rank}"
    world = f" of {answer.world_size}" if answer.rank is not None and answer.world_size else ""
    more = f" ({answer.num_ranks} ranks read)" if answer.num_ranks > 1 else ""
    steps = count_text(answer.num_steps, "steady step")
    device = printable(answer.gpu) or "GPU not named"
    job = f"{answer.kind.words} on " if answer.kind.words else ""
    stated = "" if "frozen" in job else _frozen(answer.job)
    return f"{printable(answer.path)}: {job}{device}{rank}{world}{more}, {steps}{stated}"


def _trace_headline(answer: TraceDiagnosis) -> str:
    takes = f"takes {format_seconds(answer.step_s)}{money_text(COSTS, answer.cost)}."
    reached = math.isfinite(answer.mfu)
    text = f"You reach {format_share(answer.mfu)} MFU: a step {takes}" if reached else f"A step {takes}"
    if answer.open_plan.fields:
        text += f" {_open_text(answer.open_plan, 'trace', 'step', answer.step_s)}"
    elif answer.predicted is not None:
        p = answer.predicted
        told = interval_text(p.step_s, p.low_s, p.high_s)
        plan = f"{plan_words(p.plan)}{beside_best(p, answer.best)}"
        text += f" {format_share(float(p.step.mfu))} and {told} are predicted for {plan}."
    if math.isfinite(answer.median_ratio):
        text += (
            f" Matrix multiplications and attention take {answer.median_ratio:.2f} times their predicted time at the "
            f"median ({format_share(answer.priced_share)} of their time has a prediction)."
        )
    if not answer.priced:
        text += (
            " Nothing could be priced, so what matrix multiplications, attention and links lose cannot be said (see "
            "the warnings)."
        )
    if not answer.losses:
        what = "No loss" if answer.priced else "Of what needs no price (gaps, unfused kernels, communication), none"
        return f"{text} {what} of 2.5% of the step or more was found."
    gain = sum(loss.gain_s for loss in answer.losses) / answer.step_s
    found = count_text(len(answer.losses), "loss", "losses")
    return f"{text}{_points(answer)} {found.capitalize()}; {format_share(gain)} of the step can be saved in all:"


def _points(answer: TraceDiagnosis) -> str:
    """How each loss contributes to the gap between predicted and reached MFU; empty if the run is as predicted, or its
    plan is not known."""
    if answer.predicted is None or answer.open_plan.fields or not math.isfinite(answer.mfu):
        return ""
    beyond = left = answer.step_s - answer.predicted.step_s
    points = 100 * (float(answer.predicted.step.mfu) - answer.mfu)
    if beyond < SAME * answer.step_s or points < 1:
        return ""
    said = []
    for loss in answer.losses:
        taken = min(loss.gain_s, left)
        said.append(f"{points * taken / beyond:.1f} {part_words(loss.kind.value)}")
        left -= taken
    rest = [f"{points * left / beyond:.1f} unexplained"] if left > 0 else []
    return f" Of the {points:.1f} points between them: {', '.join([*said, *rest])}."


def _loss(answer: TraceDiagnosis, loss: TracePart) -> str:
    words, gain = part_words(loss.kind.value), _of_step(answer, loss.gain_s)
    if loss.gain_s < 0.99 * loss.seconds:  # the table of parts has all of it
        gain = f"{_of_step(answer, loss.seconds)}, of which {gain} can be saved"
    return f"{words[0].upper()}{words[1:]}: {gain}. To do: {loss.fix}."


def _of_step(answer: TraceDiagnosis, seconds: float) -> str:
    return f"{format_share(seconds / answer.step_s)} of the step ({format_seconds(seconds)})"
