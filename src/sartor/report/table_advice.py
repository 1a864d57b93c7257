"""``sartor advise`` for the terminal: verdict, where the time goes, findings, faster shapes, sensitivity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.report.lint_formats import REMARKS, also, split_remarks, verdict_without_findings
from sartor.report.points import operator_times
from sartor.report.table_estimate import heading, notes, plain_table, section_title, times_table, totals_line
from sartor.report.verdict import verdict, why_to_keep
from sartor.report.words import (
    EVIDENCE_WORDS,
    printable,
    short_change,
    signed_share,
    speedup_text,
    sure_text,
)
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers import Advice
    from sartor.rules.rule import Finding
    from sartor.shapes.codesign import CoDesign
    from sartor.shapes.mixes import Mix
    from sartor.shapes.quality import Quality
    from sartor.shapes.search import Candidate, ShapeSearch

GRADE_STYLES = {"error": "bold red", "warn": "yellow", "info": "cyan"}


def advice_view(advice: Advice) -> RenderableType:
    """``sartor advise``: verdict, where the time goes, findings, candidates, devices, sensitivity, notes."""
    base = advice.base.question
    search = advice.search
    parts: list[RenderableType] = [
        heading(base.reading.shape.name or "model", base.gpu.name, base.workload),
        Text(verdict(advice)),
        section_title("Where the time goes"),
        times_table(operator_times(advice.base.estimate, small=0.02)),
        totals_line(advice.base),
        section_title("Findings, and what each costs"),
        *findings_view(advice.findings, base.reading.unread),
        section_title("Shapes that gain at equal work"),
        candidates_table(search),
        *_legend(search),
    ]
    if search.mixes:
        parts += [section_title("Mixtures of experts of this size"), mixes_table(search.mixes)]
        parts.append(Text(f"{MIXES}; worse = {WORSE}", style="dim"))
    if len(advice.gpus) > 1 and search.candidates:
        parts += [section_title("On each device"), per_gpu_table(advice)]
    if advice.codesign is not None:
        parts += [section_title("One shape for all"), *codesign_view(advice.codesign)]
    parts += notes("For other settings", [printable(str(line)) for line in search.stability])
    parts += notes("Assumed", [*base.assumptions, *search.assumptions])
    return Group(*parts)


def codesign_view(found: CoDesign) -> list[RenderableType]:
    """The common shape, next to the best shape for each device and phase alone."""
    shape = short_change(found.changed) if found.changed else "keep this shape"
    words = f"{shape}: {found.rule.value} regret {format_share(found.regret)}"
    if found.changed:
        words += f", against {format_share(found.baseline_regret)} as it is"
    table = plain_table("alone it would want", "device", "phase", "weight", "gain alone", "gain here", "regret")
    for want in found.wants:
        table.add_row(
            Text(short_change(want.alone) if want.alone else "this shape"),
            printable(want.gpu),
            want.phase,
            f"{want.weight:g}",
            speedup_text(want.alone_gain),
            speedup_text(want.common_gain),
            format_share(want.regret),
        )
    return [Text(words, style="bold"), table]


def findings_view(findings: Iterable[Finding], unread: str) -> list[RenderableType]:
    """Each finding: grade, gain, message, rules and fix; then remarks under their own heading."""
    faults, remarks = split_remarks(findings)
    parts: list[RenderableType] = [_findings_table(faults) if faults else Text(verdict_without_findings(unread))]
    return parts + ([section_title(REMARKS), _findings_table(remarks)] if remarks else [])


def _findings_table(findings: Iterable[Finding]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for finding in findings:
        grade = finding.grade.value
        words = Text(printable(finding.message))
        words.append(f"  [{finding.rule} {finding.code}]", style="dim")
        for reason in also(finding):
            words.append(f"\n{printable(reason)}")
        if finding.fix:
            words.append(f"\nfix: {fix_text(finding)}", style="green")
        table.add_row(Text(grade, style=GRADE_STYLES.get(grade, "")), Text(gain_text(finding)), words)
    return table


def fix_text(finding: Finding) -> str:
    return printable(", ".join(f"{name}={value}" for name, value in finding.fix.items()))


def gain_text(finding: Finding) -> str:
    """``6.1%``; a dash if the model cannot run, so there is no time to save."""
    return "-" if finding.gain_fraction is None else format_share(finding.gain_fraction)


def candidates_table(search: ShapeSearch) -> RenderableType:
    """Shapes of the same size, best first: gain at equal work with interval, confidence, change in parameters, and
    total speedup (a smaller model adds to the gain)."""
    if not search.candidates:
        return Text(why_to_keep(search))
    table = plain_table("change", "gain", "80% interval", "sure", "params", "speedup", "quality")
    for each in with_candidate(search.candidates, search.smallest_edit):
        table.add_row(
            _marked(each, search.smallest_edit, "smallest edit"),
            speedup_text(each.efficiency_gain),
            f"{float(each.efficiency_low):.2f}-{float(each.efficiency_high):.2f}",
            sure_text(float(each.confidence)),
            signed_share(float(each.params_change), 2),
            speedup_text(each.speedup),
            quality_word(each.quality),
        )
    return table


def _legend(search: ShapeSearch) -> list[RenderableType]:
    """The meaning of the columns."""
    if not search.candidates:
        return []
    worse = f", worse = {WORSE}" if any(each.quality.adverse for each in search.candidates) else ""
    words = (
        "gain: speedup at equal parameters and FLOPs; sure: probability of a gain; speedup: with what a smaller model "
        f"adds; quality: {EVIDENCE_WORDS}{worse}"
    )
    return [Text(words, style="dim")]


SHOWN_MIXES = 8

MIXES = "Equal total and active parameters, all else as it is; gains at equal work with their 80% intervals"
WORSE = "controlled studies found such a change worse"


def mixes_table(mixes: Sequence[Mix]) -> RenderableType:
    """Other mixtures of experts: gain in training and in decoding, and evidence on quality."""
    phases = list(mixes[0].gains)
    table = plain_table("change", *phases, "active", "quality")
    for mix in shown_mixes(mixes):
        cells = (gain_in(mix, phase) for phase in phases)
        table.add_row(
            Text(short_change(mix.changed)), *cells, signed_share(mix.active_change, 2), quality_word(mix.quality)
        )
    return table


def gain_in(mix: Mix, phase: str) -> str:
    """``1.08x (0.98-1.19)``."""
    gain = mix.gains[phase]
    return f"{speedup_text(gain.speedup)} ({float(gain.low):.2f}-{float(gain.high):.2f})"


def quality_word(quality: Quality) -> str:
    return "worse" if quality.adverse else quality.evidence.value


def shown_mixes(mixes: Sequence[Mix]) -> list[Mix]:
    """The first few, which gain most in the objective's phase, and the best of every other phase."""
    best = [max(mixes, key=lambda mix: mix.gains[phase].speedup) for phase in mixes[0].gains]
    chosen = [*mixes[: SHOWN_MIXES - 1], *best]
    return [mix for mix in mixes if any(mix is each for each in chosen)]


def with_candidate(candidates: Sequence[Candidate], other: Candidate | None) -> list[Candidate]:
    """The candidates, and ``other`` if it is not among them."""
    return [*candidates] if other is None or position(candidates, other) >= 0 else [*candidates, other]


def position(candidates: Sequence[Candidate], wanted: Candidate | None) -> int:
    """Position of a candidate in the list, -1 if absent."""
    return next((i for i, c in enumerate(candidates) if wanted is not None and c.changed == wanted.changed), -1)


def _marked(candidate: Candidate, special: Candidate | None, words: str) -> Text:
    """A candidate's change, with a mark on the special one."""
    text = Text(short_change(candidate.changed))
    if special is not None and candidate.changed == special.changed:
        text.append(f"  <- {words}", style="green")
    return text


def per_gpu_table(advice: Advice) -> Table:
    """Speedup of each candidate on each device; the one with least regret is marked."""
    names = [gpu.name for gpu in advice.gpus]
    table = plain_table("change", *(printable(name) for name in names))
    for each in with_candidate(advice.search.candidates, advice.search.minimax):
        cells = (speedup_text(each.per_gpu[n]) if n in each.per_gpu else "-" for n in names)
        table.add_row(_marked(each, advice.search.minimax, "least regret"), *cells)
    return table
