"""Text for a plan, its step and its cost, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sartor.answers.plan import PARTS
from sartor.hardware.cluster import price_text
from sartor.model.plan import phrases
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.plans.next import CLOSE, RIGHT
from sartor.plans.search import room_bytes
from sartor.report.words import count_text, fitting, interval_text, printable, three_digits, unknown_fit, unread_text
from sartor.run.fields import Origin, arguments_unsaid
from sartor.step.footprint import in_doubt, likely_text, usable_bytes
from sartor.step.pipeline import devices_of_pools
from sartor.units import format_bytes, format_change, format_count, format_seconds, format_share, room_text

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate
    from sartor.answers.plan import PlanAnswer
    from sartor.hardware.cluster import Cluster
    from sartor.json_types import JsonMap
    from sartor.model.workload import ModelReading
    from sartor.plans.next import DividedBatch, Simpler, WhyNot
    from sartor.plans.result import PricedPlan
    from sartor.rules.plan.rule import PlanFinding
    from sartor.run.fields import Run, Turn
    from sartor.step.run_cost import RunCost

SAME = 0.01
"""Relative difference in step time below which two plans count as equally fast."""
PART_WORDS = {part.name: part.words for part in PARTS}
SMALL = 0.001
"""Least share of the step at which a part is shown."""


def subject_text(name: str, job: TrainingJob) -> str:
    """The model, and whether its weights are frozen; ``name`` is its name, if it has one."""
    model = printable(name or "the model")
    bits = f" in {job.frozen_bits} bits" if job.frozen_bits != 16 else ""
    adapters = f" and adapters of rank {job.lora_rank}" if job.lora_rank else ""
    return model if job.trains_weights else f"Fine-tuning of {model} with frozen weights{bits}{adapters}"


def devices_text(cluster: Cluster, num_devices: int) -> str:
    """``64 h100_sxm``; every pool of a mixed cluster."""
    counts = devices_of_pools(cluster.pools, num_devices)
    pools = [f"{n:,} {printable(pool.gpu.name)}" for pool, n in zip(cluster.pools, counts, strict=True) if n]
    return " and ".join(pools)


def divided_lines(
    answer: ModelEstimate | PlanAnswer, run: Run, reading: ModelReading, num_devices: int, what: str = "step"
) -> Iterator[str]:
    """``As stated it cannot run: tp=8 does not split num_heads=28 (24 and 32 do). ...``, and what each change costs."""
    if not answer.cannot_run:
        return
    yield f"As stated it cannot run: {answer.cannot_run}. What would run:"
    split = [f"{name}={run.get(name)}" for name in ("tp", "ep") if run.origin(name) is Origin.IMPLIED]
    for divided in answer.divided:
        estimate = divided.answer
        words = ", ".join(f"{name}={value}" for name, value in divided.change.items())
        if words in (reading.shape.name or ""):
            continue  # the whole answer is of this change
        times = interval_text(float(estimate.time_s), float(estimate.low_s), float(estimate.high_s))
        memory = f"{format_bytes(estimate.peak_bytes)} of {format_bytes(estimate.usable_bytes)}"
        many = devices_priced(estimate)
        where = "" if many == num_devices else f" on {count_text(many, 'device')}"
        fits = {True: "fits", None: "may fit", False: "does not fit"}[estimate.fits]
        yield f"- {words}: a {what} of {times}{where}; {fits}, {memory}."
    if split:
        yield f"The rest of this answer is with {' and '.join(split)}:"


def devices_priced(answer: ModelEstimate) -> int:
    """The devices of the run, or of one instance in inference."""
    return int((answer.question.dims if answer.priced is None else answer.priced.plan).num_devices)


def plan_lines(answer: PlanAnswer) -> Iterator[str]:
    """The first lines: the best plan and whether it fits, how fast it is, what to change and what would turn it."""
    search, best, job = answer.search, answer.search.best, answer.job
    assert best is not None
    yield from divided_lines(answer, answer.run, answer.reading, search.num_devices)
    model, devices = subject_text(answer.reading.shape.name, job), devices_text(answer.cluster, search.num_devices)
    trainer = printable(job.trainer.name) + ("" if answer.run.states("framework") else ", which is assumed")
    among = "the only plan that fits" if search.fitting == 1 else f"the fastest of {search.fitting:,} that fit"
    among += fitting(answer.reading)
    among += f", of those that files of {answer.writer} can say," if answer.writer else ""
    memory = room_words(best.peak_bytes, answer.cluster, search.headroom, float(best.footprint.reserved_bytes))
    fits = f"fits{if_turned(answer.depends_on, fits=True, memory=memory)}"
    if answer.reading.unread_sizes:
        fits = unknown_fit(answer.reading, memory)
    where = f"{devices} ({printable(answer.cluster.name)})"
    yield f"{model} on {where} as {plan_words(best.plan)} ({among} on {trainer}): {fits}."
    yield (
        f"A step of {job.global_batch_size:,} x {job.seq_len:,} tokens in {job.recipe.value} takes "
        f"{interval_text(best.step_s, best.low_s, best.high_s)}, {format_share(float(best.step.mfu))} of dense peak "
        f"(MFU), {format_count(float(best.step.tokens_per_s_per_device))} tokens/s per device."
    )
    if unread := unread_text(answer.reading):
        yield unread
    yield " ".join([_change(answer, best), *_beside(answer, best)])
    yield from turn_lines(answer.depends_on)


def _change(answer: PlanAnswer, best: PricedPlan) -> str:
    """The change that gains most; else the largest loss."""
    if answer.batches:
        return batches_text(answer.batches).strip()
    if answer.next_steps:
        first = max(answer.next_steps, key=lambda step: step.speedup)
        return f"Try next: {first.change}: {first.speedup:.2f}x tokens per second."
    return f"No change of job or trainer that was tried gains. {bound_text(best)}"


def _beside(answer: PlanAnswer, best: PricedPlan) -> Iterator[str]:
    """Plans to take instead: where memory may run out, and one that could be as fast, the simpler or the next one."""
    if answer.roomier is not None:
        yield f"If memory runs out: {plan_words(answer.roomier.plan, short=True)} ({_slower(answer.roomier, best)})."
    simple, slowest_s = answer.simpler, (1 + CLOSE) * best.step_s
    close = next((plan for plan in answer.search.top if best.step_s < plan.step_s < slowest_s), None)
    name, close = ("Close behind", close) if simple is None else (f"Simpler, {_without(simple)}", simple.priced)
    if close is not None:
        right = f"pairs of plans this close are ranked correctly {RIGHT:.0%} of the time"
        yield f"{name}: {plan_words(close.plan, short=True)} ({_slower(close, best)}; {right})."


def _slower(plan: PricedPlan, best: PricedPlan) -> str:
    return format_change(plan.step_s / best.step_s - 1)


def _without(simple: Simpler) -> str:
    return f"without {', '.join(simple.without)}"


def batches_text(batches: Sequence[DividedBatch]) -> str:
    """``A batch of 480 would train 1.42x as many tokens per second (dp 60, ...); 540: 1.42x.``"""
    if not batches:
        return ""
    first, *rest = batches
    also = "".join(f"; {batch.global_batch_size:,}: {batch.speedup:.2f}x" for batch in rest)
    return (
        f"A batch of {first.global_batch_size:,} would train {first.speedup:.2f}x as many tokens per second "
        f"({plan_words(first.priced.plan, short=True)}){also}. "
    )


def turn_lines(turns: Sequence[Turn]) -> Iterator[str]:
    """What another value of something not stated would change (memory stands beside the verdict: `if_turned`), and
    what would settle it."""
    for turn in (turn for turn in turns if not turn.of_memory and (not turn.usual or "ratio" not in turn.figures)):
        share = turn.figures.get("gain_fraction")
        costs = "" if share is None else f" (costs {format_share(share)})"
        instead = f" instead of {turn.usual}" if turn.usual else ""
        value = f"With {turn.field}={turn.value}{instead}, which was not stated"
        yield f"{value}: {printable(turn.verdict).rstrip('.')}{costs}."
    moved = sorted((turn for turn in turns if turn.usual and "ratio" in turn.figures), key=_least_moving)[-MOST_NAMED:]
    full = {(turn.field, turn.value) for turn in turns if turn.verdict.startswith("does not fit")}
    times = [
        f"{turn.field}={turn.value} ({format_seconds(turn.figures['time_s'])}"
        f"{', if it had the memory' if (turn.field, turn.value) in full else ''})"
        for turn in reversed(moved)
    ]
    if times:
        yield printable(f"Not stated, within the interval: {', '.join(times)}.")
    if settled := dict.fromkeys(turn.settled_by for turn in turns if turn.settled_by and turn.of_memory):
        yield printable(f"What would settle it: {'; '.join(settled)}.")


def _least_moving(turn: Turn) -> float:
    return abs(turn.figures["ratio"] - 1)


MOST_NAMED = 2
"""Values that move the time that the first lines name; JSON has all."""
UNSAID, FILE_UNSAID = "it was not stated", "the file does not say"


def unpriced_text(turns: Sequence[Turn]) -> str:
    """Sentences about switches of a launch that have no price, and arguments that it does not show, which may turn
    whether it fits."""
    unpriced = [turn for turn in turns if "change_bytes" in turn.figures]
    return "".join(
        f" {arguments_unsaid(name) if turn.of_arguments else f'{name} has no price here'}: the run {turn.verdict}."
        for turn in unpriced
        for name in [printable(turn.field)]
    )


def if_turned(turns: Sequence[Turn], *, fits: bool, memory: str, unsaid: str = UNSAID) -> str:
    """``with grad_dtype=fp32 (84 GiB of 75.2 GiB), but fits with bf16 (70 GiB): it was not stated``; ``memory`` alone
    where no other plausible value turns whether it fits."""
    turned = [turn for turn in turns if "peak_bytes" in turn.figures]
    if not turned:
        return f", {memory}"
    alone = len({turn.field for turn in turned}) == 1
    several = "," in turned[0].field  # which stand with their names
    usual = turned[0].usual if several else f"{turned[0].field}={turned[0].usual}" if alone else "what is usual"
    known = [part for part in memory.split(", ") if not part.endswith("likely to fit")]  # that depends on the value too
    others = [
        f"{'' if alone else turn.field + '='}{turn.value} ({format_bytes(turn.figures['peak_bytes'])})"
        for turn in turned
    ]
    word = turned[0].verdict.partition(",")[0]
    word = word.replace("may fit", "may fit, by the error of a predicted peak,")
    but = f", {'perhaps ' * ('error' in word)}not with" if fits else f", but {word} with"
    same = " on the same plan" if unsaid == UNSAID else ""
    return printable(f" with {usual} ({', '.join(known)}){but} {' or '.join(others)}{same}: {unsaid}")


def room_words(peak_bytes: float, cluster: Cluster, headroom: float, reserved_bytes: float = 0.0) -> str:
    """``61.2 GiB of 79.2 GiB, 98% likely to fit``; ``headroom``, the share of memory that stays free, is said where it
    is not the usual one, and what the allocator reserves where that is clearly more."""
    room = room_bytes(cluster, headroom)
    words = f"{format_bytes(peak_bytes)} of {room_text(room, 1 - room / usable_bytes(cluster))}"
    if cluster.gpu.accelerator is not None or not (peak_bytes <= room or in_doubt(peak_bytes, cluster)):
        return words
    if reserved_bytes > WORTH_SAYING * peak_bytes:
        words += f", the allocator will reserve {format_bytes(reserved_bytes)}"
    return f"{words}, {likely_text(peak_bytes, cluster)}"


WORTH_SAYING = 1.02
"""Bytes that the allocator reserves, relative to those needed, from which they are said."""


def beside_best(plan: PricedPlan, best: PricedPlan | None) -> str:
    """End of a sentence that gives the best plan's MFU next to this plan's; empty if no best plan is known."""
    if best is None:
        return ""
    if best.step_s > (1 - SAME) * plan.step_s:
        return ", and no other plan is predicted to be faster by more than 1%"
    return f", {format_share(float(best.step.mfu))} for the best plan ({plan_words(best.plan)})"


def plan_words(plan: TrainingPlan, *, short: bool = False) -> str:
    """``tp 4, pp 8 with 12 chunks per device, dp 16, 48 microbatches of 2 sequences, ZeRO 1, no recomputation``."""
    dims = plan.dims
    words = [f"{name} {int(value)}" for name, value in (("tp", dims.tp), ("pp", dims.pp)) if int(value) > 1]
    if int(plan.virtual_stages) > 1:
        chunks = f"{int(plan.virtual_stages)} chunks per device"
        words = [*words[:-1], f"{words[-1]} with {chunks}"] if int(dims.pp) > 1 else [*words, chunks]
    if plan.schedule != PipelineSchedule.ONE_F_ONE_B:
        words.append(PipelineSchedule(int(plan.schedule)).word.replace("_", " "))
    words += [f"{n} {int(v)}" for n, v in (("cp", dims.cp), ("dp", dims.dp), ("ep", dims.ep)) if int(v) > 1]
    words.append(microbatches_text(int(plan.num_microbatches), int(plan.microbatch_size)))
    if int(plan.zero_stage):
        group = f" within sets of {int(plan.shard_group)}" if int(plan.shard_group) else ""
        words.append(f"ZeRO {int(plan.zero_stage)}{group}")
    if short:
        return ", ".join(words)
    if dims.sequence_parallel and int(dims.tp) > 1:
        words.append("sequence parallel")
    if plan.optimizer_offload:
        words.append("optimizer in host memory")
    words.append(_recompute_words(plan))
    words += phrases(plan.columns)
    if plan.stage_layers is not None:
        words.append(f"layers per pipeline chunk {_layers_text(plan.stage_layers)}")
    return ", ".join(words)


def microbatches_text(count: int, size: int) -> str:
    """``16 microbatches of 1 sequence``."""
    return f"{count} microbatch{'es' if count != 1 else ''} of {size} sequence{'s' if size != 1 else ''}"


def _recompute_words(plan: TrainingPlan) -> str:
    kind, layers = Recompute(int(plan.recompute)), int(plan.recompute_layers)
    if kind is Recompute.FULL:
        some = f"{layers} layer{'s' if layers > 1 else ''} per stage recomputed"
        return "every layer recomputed" if layers < 0 else some
    return "selective recomputation" if kind is Recompute.SELECTIVE else "no recomputation"


def _layers_text(layers: Sequence[int]) -> str:
    """``4, 6x5, 3`` for (4, 5, 5, 5, 5, 5, 5, 3)."""
    out: list[list[int]] = []
    for n in layers:
        if out and out[-1][1] == n:
            out[-1][0] += 1
        else:
            out.append([1, n])
    return ", ".join(f"{count}x{n}" if count > 1 else str(n) for count, n in out)


def step_parts(best: PricedPlan) -> list[tuple[str, float]]:
    """Parts of the step with their seconds, longest first; those below 0.1% left out."""
    parts = [(words, float(best.step.parts[name])) for name, words in PART_WORDS.items()]
    shown = [(words, seconds) for words, seconds in parts if seconds >= SMALL * best.step_s]
    return sorted(shown, key=lambda part: -part[1])


def bound_text(best: PricedPlan) -> str:
    """Share of compute in the step, and the largest loss."""
    parts = step_parts(best)
    losses = [part for part in parts if part[0] != "compute"]
    compute = next((seconds for words, seconds in parts if words == "compute"), 0.0)
    text = f"Compute takes {format_share(compute / best.step_s)} of the step"
    if not losses:
        return text + "."
    words, seconds = losses[0]
    return f"{text}; the largest loss: {words} ({format_share(seconds / best.step_s)})."


def _price_text(cost: RunCost, *, brief: bool = False) -> str:
    return printable(price_text(cost.usd_per_device_hour or 0.0, cost.price_source, cost.price_date, brief=brief))


def money_text(before: str, cost: RunCost | None) -> str:
    """``before`` and ``0.325 USD per 1M tokens at 12.29 per device-hour (2024-12)``; empty without a price."""
    if cost is None or cost.usd_per_million_tokens is None:
        return ""
    return f"{before}{three_digits(cost.usd_per_million_tokens)} USD per 1M tokens at {_price_text(cost, brief=True)}"


def cost_text(answer: PlanAnswer, *, brief: bool = False) -> str:
    """Days, device-hours, money and energy of the token budget, with their assumptions; ``brief``: without energy."""
    cost = answer.cost
    assert cost is not None
    days = cost.hours / 24
    text = (
        f"{format_count(cost.tokens)} tokens take {days:,.1f} days (80%: {cost.low_hours / 24:,.1f} to "
        f"{cost.high_hours / 24:,.1f}) and {three_digits(cost.device_hours)} device-hours"
    )
    if cost.usd is not None:
        text += f", which cost {three_digits(cost.usd)} USD at {_price_text(cost, brief=brief)}"
    else:
        text += " (no price known for these devices)"
    if brief:
        return f"{text}; with failures and checkpoints {cost.run_hours / 24:,.1f} days."
    return (
        f"{text}. The devices alone use {three_digits(cost.energy_j / 3.6e9)} MWh at"
        f" {format_share(cost.power_share)} of TDP, {three_digits(cost.co2_kg / 1000)} t of CO2 at the world's mean "
        f"mix. {_goodput_text(cost)} Evaluation and idle time are not counted."
    )


def _goodput_text(cost: RunCost) -> str:
    """The time that failures and checkpoints add."""
    lasting = cost.goodput
    return (
        f"With a failure every {_spell(lasting.failure_every_s)} (Llama 3's rate), restarts of "
        f"{_spell(lasting.restart_s)} and a checkpoint of {format_bytes(lasting.checkpoint_bytes)} every "
        f"{_spell(lasting.checkpoint_every_s)}, {format_share(lasting.share)} of the time is training that "
        f"lasts: {cost.run_hours / 24:,.1f} days."
    )


def _spell(seconds: float) -> str:
    """A duration in minutes or hours."""
    return f"{three_digits(seconds / 60)} minutes" if seconds < 7200 else f"{three_digits(seconds / 3600)} hours"


def why_not_text(asked: WhyNot) -> str:
    """Why the plan given in ``why_not`` is not the best: it cannot run, does not fit, or is slower."""
    plan = asked.plan
    if plan is None:
        return f"{asked.asked}: {asked.reason}."
    slower = plan.step_s / asked.best.step_s - 1
    if asked.reason is None:
        compared = "as fast as the best" if abs(slower) < 5e-4 else f"{100 * slower:.1f}% slower than the best"
        return f"{plan_words(plan.plan)}: {compared}, and fits."
    named = "=" in asked.reason.split(" ", 1)[0]  # a name=value at the start stays as written
    reason = asked.reason if named else asked.reason[:1].upper() + asked.reason[1:]
    return f"{printable(reason)}. Compared below: {plan_words(plan.plan)}."


def cannot_run_text(findings: Iterable[PlanFinding]) -> str:
    """``As stated it cannot run: virtual stages need a pipeline. Priced as if it ran:``; empty for a plan that runs."""
    findings = [finding for finding in findings if finding.rule == "cannot_run"]
    reasons = "; ".join(str(f.value) if f.field == "plan" else f.message for f in findings)
    return printable(f"As stated it cannot run: {reasons}. Priced as if it ran:") if reasons else ""


def first_plan_change(findings: Iterable[PlanFinding]) -> str:
    """``Change first: dp_overlap=true: saves 11.7% of the step, the most of any single change.``, or that it is the
    best plan; of a plan that cannot run what makes it run; empty if no finding has a fix."""
    fixes = [finding for finding in findings if finding.fix]
    fixes = [finding for finding in fixes if finding.rule == "cannot_run"] or fixes
    first = max(fixes, key=lambda finding: finding.gain_fraction or 0.0, default=None)
    if first is None:
        return ""
    whole, saves = first.rule == "slower_than_best", (first.gain_fraction or 0.0) >= 0.0005
    which = ", as the best plan on these devices" if whole else ", the most of any single change" if saves else ""
    return f"Change first: {plan_gain_text(first)}{which}."


def plan_gain_text(finding: PlanFinding) -> str:
    """``tp=8 dp=16: saves 28.7% of the step, frees 2.1 GiB``"""
    if not finding.fix:
        return ""
    fix = _fix_text(finding.fix)
    parts = []
    if finding.gain_fraction is None:
        parts.append(f"fits, with a step of {format_seconds(finding.step_s)}" if finding.step_s else "fits")
    elif finding.gain_fraction >= 0.0005:
        parts.append(f"saves {format_share(finding.gain_fraction)} of the step")
    elif finding.gain_fraction <= -0.0005:
        parts.append(f"costs {format_share(-finding.gain_fraction)} of the step")
    if finding.gain_fraction is not None and finding.saves_bytes > 2**28:
        parts.append(f"frees {format_bytes(finding.saves_bytes)}")
    return f"{printable(fix)}: {', '.join(parts)}" if parts else printable(fix)


def _fix_text(fix: JsonMap) -> str:
    """``pp=2 virtual_stages=2 with layers per pipeline chunk 4, 6x5``: what ``--fix`` takes, then the rest in words.
    The number of microbatches follows from the batch; all layers are recomputed unless a number is named."""
    not_typed = ("num_microbatches", "stage_layers", "global_batch_size")
    said = {name: value for name, value in fix.items() if name not in not_typed}
    typed = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in said.items()
        if (name, value) != ("recompute_layers", -1)
    )
    cuts = f"layers per pipeline chunk {_layers_text(fix['stage_layers'])}" if "stage_layers" in fix else ""
    batch = f"--global-batch-size {fix['global_batch_size']}" if "global_batch_size" in fix else ""
    return " with ".join(filter(None, (typed, " and ".join(filter(None, (batch, cuts)))))) or "every layer recomputed"
