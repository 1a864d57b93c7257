"""An existing launch for the terminal: predicted step and memory, findings, unknown arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from sartor.report.document import PageBlock, bullets_block, document_text, grid_block, opening, section
from sartor.report.grid import Grid, grid_of
from sartor.report.lint_formats import GRADE_STYLES
from sartor.report.plan_document import parts_grid
from sartor.report.plan_words import (
    FILE_UNSAID,
    bound_text,
    close_text,
    devices_text,
    if_turned,
    plan_words,
    turn_lines,
    unpriced_text,
)
from sartor.report.words import count_text, interval_text, printable
from sartor.units import format_bytes, format_count, format_seconds, format_share, room_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.diagnosis import LogDiagnosis
    from sartor.answers.plan import LaunchAnswer
    from sartor.model.training import TrainingPlan
    from sartor.rules.plan.rule import PlanFinding


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


def run_heading(name: str, trainer: str, answer: LaunchAnswer | LogDiagnosis, plan: TrainingPlan) -> str:
    """``run.sh: megatron-lm on 64 h100_sxm (dgx-h100), global batch 512 x 8,192 tokens, bf16``."""
    job, cluster = answer.job, answer.cluster
    return (
        f"{printable(name)}: {trainer} on {devices_text(cluster, int(plan.num_devices))} "
        f"({printable(cluster.name)}), global batch {job.global_batch_size:,} x {job.seq_len:,} tokens, "
        f"{job.recipe.value}"
    )


def _lines(answer: LaunchAnswer) -> Iterator[str]:
    """What is launched and whether it fits, how fast it is, and the change that gains most."""
    priced, limit = answer.priced, (1 - answer.headroom) * answer.usable_bytes
    memory = f"{format_bytes(priced.peak_bytes)} of {room_text(limit, answer.headroom)}"
    heading = run_heading(answer.path, answer.framework, answer, priced.plan)
    yield f"{heading}, as {plan_words(priced.plan)}. {_fits(answer, memory)}"
    rate = format_count(float(priced.step.tokens_per_s_per_device))
    yield (
        f"A step takes {interval_text(priced.step_s, priced.low_s, priced.high_s)}, "
        f"{format_share(float(priced.step.mfu))} of dense peak (MFU), {rate} tokens/s per device. {bound_text(priced)}"
    )
    fixes = [finding for finding in answer.findings if finding.fix]
    first = max(fixes, key=lambda finding: finding.gain_fraction or 0.0, default=None)
    yield "No rule about launches proposes a change." if first is None else f"Change first: {_gain_text(first)}."
    yield from turn_lines(answer.depends_on)


def _fits(answer: LaunchAnswer, memory: str) -> str:
    """Whether it fits, as strongly as the launch's switches without a price allow."""
    close = close_text(answer.priced.peak_bytes, (1 - answer.headroom) * answer.usable_bytes)
    unpriced = unpriced_text(answer.depends_on)
    if any("peak_bytes" in turn.figures for turn in answer.depends_on):
        word = "It fits" if answer.fits else "It does not fit"
        turned = if_turned(answer.depends_on, fits=answer.fits, memory=f"{memory}{close}", unsaid=FILE_UNSAID)
        return f"{word}{turned}.{unpriced}"
    needs = "The fullest device needs" if answer.fits else "IT DOES NOT FIT: a device would need"
    as_priced = "AS PRICED " if unpriced and not answer.fits else ""
    return f"{as_priced}{needs} {memory}{close}.{unpriced}"


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
    if gain := _gain_text(finding):
        line.append(f"\n      {gain}")
    return line


def _gain_text(finding: PlanFinding) -> str:
    """``tp=8 dp=16 saves 28.7% of the step (18 s); frees 2.1 GiB``."""
    if not finding.fix:
        return ""
    fix = " ".join(f"{name}={_value(value)}" for name, value in finding.fix.items())
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


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _ignored(answer: LaunchAnswer) -> str:
    count = len(answer.ignored)
    shown = ", ".join(printable(name) for name in answer.ignored[:6])
    rest = f" and {count - 6} more" if count > 6 else ""
    return f"{count_text(count, 'argument')} without effect on time and memory: {shown}{rest}"
