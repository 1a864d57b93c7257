"""The verdict of ``advise``: its first lines, and where the time goes, what costs time, what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sartor.report.fit_words import cannot_run, headline
from sartor.report.points import OperatorTimes, operator_times
from sartor.report.words import change_text, printable, speedup_text, three_digits
from sartor.rules.rule import Grade
from sartor.shapes.result import NOISE
from sartor.shapes.space import Equal
from sartor.units import format_change, format_count, format_share

if TYPE_CHECKING:
    from sartor.answers.advice import Advice, Worth
    from sartor.answers.estimate import ModelEstimate
    from sartor.rules.rule import Finding, Fix
    from sartor.shapes.quality import LossChange, Quality
    from sartor.shapes.search import Candidate, CoDesign, ShapeSearch

MATTERS = 0.01
"""Least share of the step for a finding to be mentioned (rules grade smaller ones as info)."""


def advice_lines(advice: Advice) -> Iterator[str]:
    """The first lines: whether it fits, how fast, what to change and what it gains, what would turn that."""
    costs, (change, *_) = _what_costs_time(_of_what_runs(advice)), _what_to_change(advice, brief=True)
    yield from headline(advice.base, change if costs == NO_COSTS else f"{costs} {change}")


def verdict_parts(advice: Advice) -> tuple[str, str, str]:
    """Three parts: where the time goes, what costs time, what to change."""
    unread = advice.base.question.reading.unread
    costs = _what_costs_time(_of_what_runs(advice)) + (f" {printable(unread)}." if unread else "")
    return _where_time_goes(advice), costs, " ".join(_what_to_change(advice))


def _of_what_runs(advice: Advice) -> list[Finding]:
    """The findings but for degrees that do not divide the model, which the first line says."""
    return [item for item in advice.findings if not (advice.base.cannot_run and item.axis)]


def _where_time_goes(advice: Advice) -> str:
    """Whether it fits, the step time, and the operators that take it."""
    return f"{' '.join(headline(advice.base))} {_shares(operator_times(advice.base.microbatch))}"


def takes(base: ModelEstimate) -> str:
    """Start of the sentence: ``A training step of Llama 3.1 8B on 64 x h100_sxm takes``."""
    question = base.question
    model = printable(question.reading.shape.name or "the model")
    if question.held is not None and not question.held.job.trains_weights:
        model = f"{model} with frozen weights"
    many = "" if base.priced is None else f"{int(base.priced.plan.num_devices):,} x "
    word = {"train": "A training step", "prefill": "Prefill", "decode": "One decoding step"}[
        question.workload.phase.value
    ]
    return f"{word} of {model} on {many}{printable(question.gpu.name)} takes"


def _shares(times: OperatorTimes) -> str:
    forward, dgrad, wgrad, attention, memory, network = (times.time_s.sum(axis=0) / times.step_s).tolist()
    gemm = forward + dgrad + wgrad
    parts = [f"GEMMs take {format_share(gemm)} of the operator time"]
    parts += [f"attention {format_share(attention)}"] if attention > 0 else []
    parts += [f"memory-bound kernels {format_share(memory)}"] if memory > 0 else []
    parts += [f"collectives {format_share(network)}"] if network > 0 else []
    longest = f"the longest operator is {times.names[0]} ({format_share(float(times.time_s[0].sum()) / times.step_s)})"
    return f"{', '.join(parts)}; {longest}."


NO_COSTS = "No finding costs 1% of the step or more."


def _what_costs_time(findings: Sequence[Finding]) -> str:
    """The findings that cost time, each with its share of the step; remarks on the architecture are left out."""
    findings = [f for f in findings if not f.remark]
    blocking = cannot_run(findings)
    costly = [f for f in findings if (f.gain_fraction or 0.0) >= MATTERS]
    costly.sort(key=lambda f: -(f.gain_fraction or 0.0))
    sentences = [blocking] if blocking else []
    if costly:
        shown = ", ".join(f"{' and '.join(f.rules)} ({format_share(f.gain_fraction or 0.0)})" for f in costly[:3])
        more = f" and {len(costly) - 3} more" if len(costly) > 3 else ""
        noun = "finding costs" if len(costly) == 1 else "findings cost"
        sentences.append(f"{len(costly)} {noun} at least 1% of the step: {shown}{more}.")
    elif not blocking:
        sentences.append(NO_COSTS)
    return " ".join(sentences)


def _what_to_change(advice: Advice, *, brief: bool = False) -> list[str]:
    """The smallest edit with most of the gain, and the best candidate if different; or why to keep the shape."""
    search = advice.search
    if advice.codesign is not None:
        return [codesign_words(advice.codesign)]
    if not search.candidates:
        return [why_to_keep(advice, brief=brief)]
    best, first = search.candidates[0], search.smallest_edit or search.candidates[0]
    if advice.worth is not None and float(first.loss.low_nats) > advice.worth.gained_nats:
        tried = f"the fastest tried, {change_text(first.changed)}, is {_gain_words(first, search.equal)}"
        buys = f"{advice.worth.gained_nats:.3f} nats over {_length(advice.worth)}"
        return [f"Keep this shape: {tried}; its speed buys {buys}, less than that costs."]
    sentences = [f"Change first: {change_text(first.changed)}; this is {_gain_words(first, search.equal)}."]
    if search.minimax is not None and search.minimax.changed != first.changed:
        devices = f"On the {len(advice.gpus)} devices together {change_text(search.minimax.changed)} loses least"
        sentences.append(f"{devices}: at most {format_share(search.regret)} against each device's best.")
    if first.changed != best.changed:
        sentences.append(f"The best shape found, {change_text(best.changed)}, is {_gain_words(best, search.equal)}.")
    single = max(search.single_edits, key=lambda edit: edit.efficiency_gain, default=None)
    if first.num_fields > 1 and single is not None and single.efficiency_gain > 1 + NOISE:
        alone = f"{change_text(single.changed)} ({speedup_text(single.efficiency_gain)})"
        sentences.append(f"The best change of a single size is {alone}.")
    return sentences


def codesign_words(design: CoDesign) -> str:
    """What to change for all phases and devices together."""
    phases = " and ".join(dict.fromkeys(want.phase for want in design.wants))
    devices = len({want.gpu for want in design.wants})
    together = f"{phases} together" + (f" on {devices} devices" if devices > 1 else "")
    if not design.changed:
        return f"Keep this shape for {together} ({design.rule.value} regret {format_share(design.regret)})."
    regret = (
        f"{design.rule.value} regret {format_share(design.regret)}, {format_share(design.baseline_regret)} as it is"
    )
    return f"Change for {together}: {change_text(design.changed)} ({regret}); {loss_words(design.loss)}."


def why_to_keep(advice: Advice, *, brief: bool = False) -> str:
    """Why to keep the shape, but for what lint calls an error, and the best alternative tried; ``brief``: its gain
    alone."""
    faults = [f for f in _of_what_runs(advice) if f.grade is Grade.ERROR and f.fix]
    fixes = " and ".join(_set_text(fault.fix) for fault in faults)
    keep = f"Set {fixes}, as lint calls the present value an error, and keep the rest" if faults else "Keep this shape"
    doubted = next((f for f in advice.findings if f.doubt and (f.gain_fraction or 0.0) >= MATTERS), None)
    but = f" Not {_set_text(doubted.fix)} ({doubted.rule}): {doubted.doubt}." if doubted else ""
    return f"{keep}: {_kept(advice.search, brief)}{but}"


def _set_text(fix: Fix) -> str:
    return ", ".join(f"{name}={value}" for name, value in fix.items())


def _kept(search: ShapeSearch, brief: bool) -> str:
    others = search.evaluated - 1
    alike = "of the same size" if search.equal is Equal.WORK else "with surely no higher loss"
    if not others:
        return f"no other {alike} is within the tolerance."
    if search.unsure is None:
        tried = "the only other shape" if others == 1 else f"none of {others:,} other shapes"
        gains = "gains less than" if others == 1 else "gains"
        return f"{tried} {alike} {gains} {format_share(NOISE)} at equal {search.equal.value}."
    best, equal = search.unsure, search.equal
    if brief:
        gain, sure = speedup_text(best.efficiency_gain), _sure_text(float(best.confidence))
        return f"of {others:,} others {alike} none is surely faster (the best: {gain}, {sure} sure)."
    return (
        f"no other {alike} is surely faster. The best of {others:,} tried, "
        f"{change_text(best.changed)}, may be no gain (its interval includes 1): it is {_gain_words(best, equal)}."
    )


def _gain_words(candidate: Candidate, equal: Equal) -> str:
    """``1.07x as fast at equal work (80%: 1.03x to 1.10x; 99% sure)``, the extra speedup if it is smaller, and what is
    known of its loss."""
    low, high = speedup_text(candidate.efficiency_low), speedup_text(candidate.efficiency_high)
    sure = f"{_sure_text(float(candidate.confidence))} sure"
    gain = speedup_text(candidate.efficiency_gain)
    return f"{gain} as fast at equal {equal.value} (80%: {low} to {high}; {sure}){_rest(candidate)}"


def _sure_text(probability: float) -> str:
    """``84%``, at most ``>99%``."""
    return ">99%" if probability > 0.99 else f"{100 * float(probability):.0f}%"


def _rest(candidate: Candidate) -> str:
    """``, with as many parameters``; if it is smaller, the extra speedup."""
    change = format_change(float(candidate.params_change), 2)
    more = "fewer" if change.startswith("-") else "more"
    size = "as many parameters" if change == "0.00%" else f"{change.lstrip('+-')} {more} parameters"
    whole = speedup_text(candidate.speedup)
    added = "" if whole == speedup_text(candidate.efficiency_gain) else f" ({whole} with the work it saves)"
    return f", with {size}{added}; {loss_words(candidate.loss)}{_evidence(candidate.quality)}{_kept_text(candidate)}"


def _kept_text(candidate: Candidate) -> str:
    """``; served, a token keeps 2x the keys and values``; empty where that stays or falls."""
    sizes = (candidate.changed.get(name, (1, 1)) for name in ("num_layers", "num_kv_heads", "head_dim"))
    grows = math.prod(new / old for old, new in sizes)
    return f"; served, a token keeps {three_digits(grows)}x the keys and values" if grows > 1 + NOISE else ""


def loss_words(loss: LossChange) -> str:
    """``the loss is expected to change by +0.003 nats (80%: +0.002 to +0.004)``."""
    if round(max(abs(float(loss.low_nats)), abs(float(loss.high_nats))), 3) == 0:
        return "the loss is expected to stay"
    nats, low, high = (f"{float(value):+z.3f}" for value in (loss.nats, loss.low_nats, loss.high_nats))
    return f"the loss is expected to change by {nats} nats ({low} to {high})"


def worth_words(advice: Advice) -> Iterator[str]:
    """What the recommended shape is worth over the training run; nothing in inference."""
    worth, edit = advice.worth, advice.search.smallest_edit or next(iter(advice.search.candidates), None)
    if worth is None or edit is None or advice.codesign is not None:  # the latter has a shape of its own
        return
    money = "" if worth.usd is None else f", {worth.usd:,.0f} USD"
    hours = f"{three_digits(worth.device_hours)} device-hours{money}"
    dear = float(edit.loss.high_nats) > worth.gained_nats
    but = ", which the shape may cost" if dear else ""
    yield (
        f"Over {_length(worth)} the smallest edit saves {format_share(worth.share)} of the run: {hours}, or "
        f"{worth.gained_nats:.3f} nats of loss if spent on more tokens{but}. A run that has begun is worth restarting "
        f"only before {format_count(worth.restart_tokens)} tokens."
    )


def _length(worth: Worth) -> str:
    """``161B tokens (20 per parameter; yours: --tokens)``: the training run, and how its length is known."""
    return f"{format_count(worth.tokens)} tokens{'' if worth.stated else ' (20 per parameter; yours: --tokens)'}"


def _evidence(quality: Quality) -> str:
    """``; quality extrapolated from studies of at most 336M parameters``."""
    if quality.adverse:
        return "; controlled studies found such a change worse for quality"
    if quality.evidence.value == "known":
        return ""
    if quality.evidence.value == "outside":
        return "; quality outside the range of published evidence"
    if not quality.studied_params:
        return "; quality as in published models, not studied at fixed size"
    return f"; quality extrapolated from studies of at most {format_count(quality.studied_params)} parameters"
