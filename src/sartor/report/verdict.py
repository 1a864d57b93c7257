"""The verdict of ``advise`` in one paragraph of plain words: where the time goes, what is broken, what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sartor.report.points import OperatorTimes, operator_times
from sartor.report.words import change_text, interval_text, printable, signed_share, speedup_text, sure_text
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers import Advice
    from sartor.rules.rule import Finding
    from sartor.shapes.search import Candidate

WORTH = 0.002
"""Least gain of a single edit that is worth a sentence."""

SURE = 0.75
"""Probability of being faster below which a change is not recommended."""

MATTERS = 0.01
"""Share of the step below which a finding is not worth a sentence (reference rules demote it to info)."""


def verdict(advice: Advice) -> str:
    """One paragraph: time, faults, the change to make first, the best found."""
    return " ".join(verdict_parts(advice))


def verdict_parts(advice: Advice) -> tuple[str, str, str]:
    """The verdict's three parts: where the time goes, what is broken, what to change."""
    return where_time_goes(advice), what_is_broken(advice.findings), what_to_change(advice)


def where_time_goes(advice: Advice) -> str:
    """How long the step is and what takes it."""
    estimate, question = advice.base.estimate, advice.base.question
    times = operator_times(estimate)
    step = interval_text(float(estimate.time_s), float(estimate.low_s), float(estimate.high_s))
    model = printable(question.reading.shape.name or "The model")
    word = {"train": "A training step", "prefill": "Prefill", "decode": "One decoding step"}[
        question.workload.phase.value
    ]
    return (
        f"{word} of {model} on {printable(question.gpu.name)} takes {step}, at {format_share(float(estimate.mfu))} of "
        f"the device's dense peak. {_shares(times)}"
    )


def _shares(times: OperatorTimes) -> str:
    gemm, attention, memory, network = (
        float(part) / times.step_s
        for part in (
            times.time_s[:, :3].sum(),
            times.time_s[:, 3].sum(),
            times.time_s[:, 4].sum(),
            times.time_s[:, 5].sum(),
        )
    )
    parts = [f"GEMMs take {format_share(gemm)} of it"]
    parts += [f"attention {format_share(attention)}"] if attention > 0 else []
    parts += [f"memory-bound kernels {format_share(memory)}"] if memory > 0 else []
    parts += [f"collectives {format_share(network)}"] if network > 0 else []
    longest = f"the longest is {times.names[0]} ({format_share(float(times.time_s[0].sum()) / times.step_s)})"
    return f"{', '.join(parts)}; {longest}."


def what_is_broken(findings: Sequence[Finding]) -> str:
    """The findings that cost something, with what each costs."""
    blocking = [f for f in findings if f.gain_fraction is None and f.grade.value == "error"]
    costly = [f for f in findings if (f.gain_fraction or 0.0) >= MATTERS]
    costly.sort(key=lambda f: -(f.gain_fraction or 0.0))
    sentences = [f"It cannot run as asked: {printable(f.message).rstrip('.')}." for f in blocking[:2]]
    if costly:
        shown = ", ".join(f"{f.rule} ({format_share(f.gain_fraction or 0.0)})" for f in costly[:3])
        more = f" and {len(costly) - 3} more" if len(costly) > 3 else ""
        noun = "finding costs" if len(costly) == 1 else "findings cost"
        sentences.append(f"{len(costly)} {noun} at least 1% of it: {shown}{more}.")
    elif not blocking:
        sentences.append("No rule is broken at a cost of 1% or more.")
    return " ".join(sentences)


def what_to_change(advice: Advice) -> str:
    """The smallest edit that gets most of the gain, and the best candidate where that is another one."""
    search = advice.search
    if not search.candidates:
        return "No shape of the same size is predicted to be faster: keep this one."
    best, first = search.candidates[0], search.smallest_edit or search.candidates[0]
    if best.confidence < SURE:
        return f"No shape of the same size is clearly faster. The best found is {change_text(best.changed)}: " + (
            f"{gain_words(best)}."
        )
    sentences = [f"Change first: {change_text(first.changed)}: {gain_words(first)}."]
    if first.changed != best.changed:
        sentences.append(f"The best found is {change_text(best.changed)}: {gain_words(best)}.")
    single = max(search.single_edits, key=lambda edit: edit.speedup, default=None)
    if first.num_changes > 1 and single is not None and single.speedup * min(1, 1 + single.params_change) > 1 + WORTH:
        alone = f"{change_text(single.changed)}: {speedup_text(single.speedup)}"
        sentences.append(f"Changing one field alone, the most is gained by {alone}.")
    return " ".join(sentences)


def gain_words(candidate: Candidate) -> str:
    """``1.17x as fast (80%: 1.08x to 1.27x), parameters +0.00%``."""
    low, high = speedup_text(candidate.speedup_low), speedup_text(candidate.speedup_high)
    same = signed_share(float(candidate.params_change), 2)
    size = "the same parameters" if same == "0.00%" else f"{same} parameters"
    sure = f"{sure_text(float(candidate.confidence))} sure to be faster"
    outside = "" if candidate.quality.within_evidence else ", outside what published evidence on quality covers"
    return f"{speedup_text(candidate.speedup)} as fast (80%: {low} to {high}; {sure}) with {size}{outside}"
