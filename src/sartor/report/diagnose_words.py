"""A diagnosed run in sentences, and a launch that was not run yet: speed, certainty, memory, what loses time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from sartor.answers.diagnosis import LogDiagnosis, LogFacts, drift_fix, part_words, pauses_fix, pauses_text
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
from sartor.report.words import count_text, interval_text, printable, unknown_fit
from sartor.step.measured_run import LEAST_UNEVEN
from sartor.units import format_bytes, format_change, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.diagnosis import TraceDiagnosis
    from sartor.answers.plan import LaunchAnswer
    from sartor.model.training import TrainingJob, TrainingPlan
    from sartor.rules.plan.rule import PlanFinding
    from sartor.step.measured_run import MeasuredRun, TracePart


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
    if answer.reading is not None and answer.fits is None:
        return f"W{unknown_fit(answer.reading, memory)[1:]}.{unpriced}"
    if any("peak_bytes" in turn.figures for turn in answer.depends_on):
        word = "It fits" if answer.fits else "It may not fit" if answer.near_limit else "It does not fit"
        turned = if_turned(answer.depends_on, fits=bool(answer.fits), memory=memory, unsaid=FILE_UNSAID)
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


def diagnose_answer(answer: LogDiagnosis | LogFacts | TraceDiagnosis) -> tuple[str, list[str]]:
    """A heading, and the answer: of a log what it shows, then its speed, certainty, memory and TFLOP/s beside the
    prediction; of a trace a sentence, then the losses by number."""
    if isinstance(answer, LogFacts):
        return _facts_heading(answer), [*_shown(answer), *_asked(answer)]
    if isinstance(answer, LogDiagnosis):
        lines = [*_shown(answer), _log_headline(answer), _certainty(answer), *_memory(answer)]
        lines += [*_advice(answer), *_rate(answer)]
        return _log_heading(answer), lines
    losses = [f"{number}. {_loss(answer, loss)}" for number, loss in enumerate(answer.losses, start=1)]
    return _trace_heading(answer), [_trace_headline(answer), *losses]


# ---------------------------------------------------------------------------------------------------- a log


def _shown(answer: LogDiagnosis | LogFacts) -> Iterator[str]:
    """What the log itself shows: step and pauses, rates and memory, what the loss does, ranks."""
    run = answer.measured
    yield from run.events
    yield from _no_number(run)
    steps = "mean of the whole run, its start and checkpoints included" if run.is_whole else ""
    steps = steps or f"{'mean' if run.is_mean else 'median'} of {count_text(run.num_steps, 'printed step')}"
    steps += f", 90% within {format_seconds(run.p90_s)}" if run.p90_s > 0 and not run.is_mean else ""
    steps += f", {count_text(run.warm_up, 'warm-up step')} left out" if run.warm_up else ""
    change = f"{format_share(abs(run.drift))} from the first third to the last"
    pace = "Steady at" if run.spread < STEADY else "Uneven:"
    pace = f"Getting {'slower' if run.drift > 0 else 'faster'} ({change}):" if run.drift else pace
    if run.step_s > 0:
        pace = "The running mean is" if not run.p90_s > 0 else pace if run.num_steps >= LEAST_UNEVEN else "It prints"
        text = f"{'Over all,' if run.is_whole else pace} {format_seconds(run.usual_step_s)} a step ({steps})"
        yield f"{text}." if run.is_whole else f"{text}; {_pauses_words(run)}."
    if run.drift > 0:
        yield f"Why it gets slower: {drift_fix(run)}."
    if rates := [*_rates_words(run)]:
        yield f"The log gives {', '.join(rates)}."
    yield from _loss_words(run)
    if run.rank_skew > LEAST_SKEW:
        yield (
            f"The slowest rank computes {format_share(run.rank_skew)} longer than the fastest, and the others wait: "
            "look for a slow GPU, uneven data or uneven pipeline stages."
        )
    if run.slow_rank is not None:
        yield f"Rank {run.slow_rank} is slower than the others."


STEADY = 0.03
"""Spread of single steps up to which a run is called steady."""
LEAST_PAUSED = 0.005
"""Share of the time in pauses that is worth a word."""
LEAST_SKEW = 0.05
"""Difference of ranks' compute that is worth a word."""


def _pauses_words(run: MeasuredRun) -> str:
    """``16% of 6.5 min goes to pauses: 5 of 9 s, every 50 steps (checkpoint)``."""
    if not run.wall_s > 0 or not run.num_steps >= LEAST_UNEVEN:
        return "too few steps to say whether it pauses"
    if run.paused_s < LEAST_PAUSED * run.wall_s or not run.pauses:
        return "no long pauses"
    share = format_share(run.paused_s / run.wall_s)
    return f"{share} of {_long_time(run.wall_s)} goes to pauses: {pauses_text(run)}. To do: {pauses_fix(run)}"


def _long_time(seconds: float) -> str:
    """``6.5 min``, ``2.4 h``."""
    return next(
        (f"{seconds / size:.1f} {unit}" for size, unit in ((3600, "h"), (60, "min")) if seconds >= 2 * size),
        format_seconds(seconds),
    )


def _rates_words(run: MeasuredRun) -> Iterator[str]:
    """Rates and memory as the log has them."""
    if run.device_tokens_per_s > 0:
        yield f"{format_count(run.device_tokens_per_s)} tokens/s per GPU"
    elif run.tokens_per_s > 0:
        yield f"{format_count(run.tokens_per_s)} tokens/s in all"
    if run.printed_mfu > 0:
        yield f"{format_share(run.printed_mfu)} MFU as the trainer counts it"
    if run.flops_per_s > 0:
        yield f"{run.flops_per_s / 1e12:.3g} TFLOP/s per GPU"
    memory = ((run.allocated_bytes, "allocated"), (run.reserved_bytes, "reserved"))
    if peaks := [f"{format_bytes(peak)} {word}" for peak, word in memory if peak > 0]:
        yield f"a peak of {' and '.join(peaks)}"
    if not (run.no_number or run.jumps) and run.losses:
        yield f"a loss from {run.losses[0]:.3g} to {run.losses[1]:.3g}"


def _no_number(run: MeasuredRun) -> Iterator[str]:
    """From which step on the loss is not a number, or at how many it is not."""
    if not run.no_number:
        return
    steps = count_text(len(run.no_number), "step")
    to_end = run.no_number[-1] == run.last_step
    when = f"from step {run.no_number[0]:,} to the end" if to_end else f"first at step {run.no_number[0]:,}"
    yield (
        f"The loss is nan {when} ({steps}): what they compute is of no use. To do: resume from a checkpoint before; "
        "look at the batch there; lower the learning rate, clip gradients, and check the loss scale in fp16."
    )


def _loss_words(run: MeasuredRun) -> Iterator[str]:
    """What is wrong with the loss."""
    if run.jumps:
        more = f" and {len(run.jumps) - 1:,} more" if len(run.jumps) > 1 else ""
        yield f"The loss jumps at step {run.jumps[0]:,}{more}."
    if run.skipped:
        yield f"{count_text(run.skipped, 'update')} skipped (gradients overflow)."


def _facts_heading(answer: LogFacts) -> str:
    run = f", run {answer.run} of {answer.num_runs}" if answer.num_runs > 1 else ""
    said = answer.said
    part = int(said.get("trainable_params", 0)) / int(said.get("num_params", 0) or 1)
    job = f"fine-tuning {format_share(part)} of the weights" if 0 < part < 1 else "training"
    words = {
        "model": f" of {said.get('model')}",
        "dtype": f" in {said.get('dtype')}",
        "num_devices": f" on {said.get('num_devices')} {said.get('gpu', 'devices')}",
        "global_batch_size": f", global batch {int(said.get('global_batch_size', 0)):,}",
        "seq_len": f", {int(said.get('seq_len', 0)):,} tokens long",
    }
    plan = [f"{name} {said[name]}" for name in ("tp", "pp", "cp", "ep", "zero_stage") if said.get(name, 1) != 1]
    stated = "".join(text for name, text in words.items() if name in said)
    return printable(f"{answer.path}{run}: {answer.trainer}, {', '.join([job + stated, *plan])}")


def _asked(answer: LogFacts) -> Iterator[str]:
    """What a prediction needs besides, and what it would add."""
    if not answer.missing:
        return
    *first, last = (fact.what for fact in answer.missing)
    what = f"{', '.join(first)} and {last}" if first else last
    yield (
        f"To compare it with a prediction (step, memory, MFU, which plans explain it, the best plan), state {what}: "
        f"{printable(str(answer.command))}"
    )


def _log_heading(answer: LogDiagnosis) -> str:
    run = f", run {answer.run} of {answer.num_runs}" if answer.num_runs > 1 else ""
    heading = _run_heading(f"{answer.path}{run}", answer.trainer, answer, answer.predicted.plan)
    return heading if "seq_len" in answer.said else f"{heading}. The length is assumed: state --seq-len"


def _log_headline(answer: LogDiagnosis) -> str:
    predicted = answer.predicted
    impossible = " (impossible: see the warnings)" if answer.mfu > 1 else ""
    aim, end = (
        f"this plan{beside_best(predicted, answer.best)}",
        f" A step of {interval_text(predicted.step_s, predicted.low_s, predicted.high_s)} is predicted.",
    )
    if answer.open_plan.fields:
        predicted, end = answer.best or predicted, ""
        aim = f"the best plan ({plan_words(predicted.plan)})" if answer.best else ""
    share = f"; {format_share(float(predicted.step.mfu))} is predicted for {aim}" if aim else ""
    return f"You reach {format_share(answer.mfu)} MFU{impossible}{share}{money_text(COSTS, answer.cost)}.{end}"


def _certainty(answer: LogDiagnosis) -> str:
    run, predicted = answer.measured, answer.predicted
    has_memory = math.isfinite(run.allocated_bytes) or math.isfinite(run.reserved_bytes)
    if answer.open_plan.fields:
        return _open_text(
            answer.open_plan, "log", "step and memory" if has_memory else "step", run.stall_free_s, answer.job
        )
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


def _open_text(plan: OpenPlan, what: str, figures: str, step_s: float, job: TrainingJob | None) -> str:
    """What ``what`` (log, trace) does not say of its plan, which plans would give its ``figures`` and how near their
    steps are to the measured ``step_s``, and what tells."""
    text = (
        f"none of the {plan.num_plans:,} plans that it could have gives this {figures}. Model, GPUs, batch, precision "
        "or trainer are not those assumed, or the run loses time."
    )
    if plan.explaining:
        plain = [each for each in plan.explaining if int(each.plan.dims.dp) == int(each.plan.num_devices)]
        words = "; ".join(
            f"{plan_words(each.plan)} (step {format_change(each.step_s / step_s - 1)})"
            for each in (plain or plan.explaining)[:NAMED]
        )
        several = (
            f"{plan.num_explaining:,} of {plan.num_plans:,} plans would give this {figures} within their 80% intervals"
        )
        title = job.trainer.title or job.trainer.name if job and plan.first_is_usual else ""
        first = f"first what {title} does by default" if title else "the simplest" if plain else "among them"
        text = f"{several}, {first}: {words}."
    if plan.agreed:
        text += f" All of these have {', '.join(f'{name}={value}' for name, value in plan.agreed.items())}."
    settles = "To compare the run with its own plan, give it with --launch or --fix."
    return f"The {what} does not say {', '.join(plan.fields)}: {text} {settles}"


def _memory(answer: LogDiagnosis) -> list[str]:
    if answer.open_plan.fields:
        return []
    held = answer.predicted.footprint
    pairs = (
        ("allocated", answer.measured.allocated_bytes, float(held.allocated_bytes)),
        ("reserved", answer.measured.reserved_bytes, float(held.reserved_bytes)),
    )
    said = [
        f"{format_bytes(told)} {word} predicted, {format_bytes(seen)} measured ({format_change(seen / told - 1)})"
        for word, seen, told in pairs
        if math.isfinite(seen)
    ]
    return [f"Peak memory: {', '.join(said)}."] if said else ["The log does not say its memory."]


def _advice(answer: LogDiagnosis) -> list[str]:
    part = answer.advice
    if part is None or part.kind == "stalls":  # pauses have a sentence of their own
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
    if answer.kind.tokens:
        text += f" It decodes {answer.kind.tokens:,} tokens: {answer.kind.tokens / answer.step_s:,.0f} tokens/s."
    if answer.kind.read_bytes:
        text += (
            " Its matrix multiplications are memory-bound: they read "
            f"{format_bytes(answer.kind.read_bytes)} of weights, so more sequences a step or narrower weights (fp8, 4 "
            "bits) gain on these, and MFU says nothing."
        )
    if answer.open_plan.fields:
        text += f" {_open_text(answer.open_plan, 'trace', 'step', answer.step_s, answer.job)}"
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
    gain = sum(loss.gain_s for loss in answer.losses if loss.seconds) / answer.step_s
    found = count_text(len(answer.losses), "loss", "losses").capitalize()
    saved = f"; {format_share(gain)} of the step can be saved in all" if gain else ""
    return f"{text}{_points(answer)} {found}{saved}:"


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
    for loss in (loss for loss in answer.losses if loss.seconds):
        taken = min(loss.gain_s, left)
        said.append(f"{points * taken / beyond:.1f} {part_words(loss.kind.value)}")
        left -= taken
    rest = [f"{points * left / beyond:.1f} unexplained"] if left > 0 else []
    return f" Of the {points:.1f} points between them: {', '.join([*said, *rest])}."


def _loss(answer: TraceDiagnosis, loss: TracePart) -> str:
    words, gain = part_words(loss.kind.value), _of_step(answer, loss.gain_s)
    if not loss.seconds:
        gain = loss.evidence[0]
    elif loss.gain_s < 0.99 * loss.seconds:  # the table of parts has all of it
        gain = f"{_of_step(answer, loss.seconds)}, of which {gain} can be saved"
    return f"{words[0].upper()}{words[1:]}: {gain}. To do: {loss.fix}."


def _of_step(answer: TraceDiagnosis, seconds: float) -> str:
    return f"{format_share(seconds / answer.step_s)} of the step ({format_seconds(seconds)})"
