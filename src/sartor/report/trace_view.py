"""A profiler trace divided into parts, for the terminal and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.operators import Gemm
from sartor.report.grid import grid_view
from sartor.report.log_view import EXPLAINING, SHOWN, open_grid, open_text
from sartor.report.plan_words import beside_best, plan_words
from sartor.report.table_estimate import notes, plain_table, section_title
from sartor.report.words import count_text, interval_text, printable
from sartor.units import format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import TraceDiagnosis
    from sartor.step.parts import TracePart

WORDS = {
    "matmul": "matrix multiplications",
    "slow_compute": "compute slower than predicted",
    "shape": "ragged sizes",
    "tiles": "part-filled tiles and waves",
    "attention": "attention",
    "convolution": "convolutions",
    "embedding": "embedding tables",
    "memory_bound": "memory-bound kernels",
    "unfused": "unfused memory-bound kernels",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "communication": "exposed communication",
    "bubble": "pipeline bubble",
    "slow_link": "exposed communication, beyond what the links allow",
    "straggler": "waiting for a slow rank",
    "copies": "copies",
    "host_gap": "host gaps (nothing runs)",
    "unknown": "kernels of no known kind",
}
NARROW = 40
"""Characters of evidence in the table."""
SAME = 0.02
"""Share of the step within which a run counts as fast as predicted."""
LEAST = 0.001
"""Share of the step below which a part is not shown."""


def trace_view(answer: TraceDiagnosis) -> RenderableType:
    """The answer first, then the losses with their evidence, then all parts."""
    heading, lines = trace_answer(answer)
    parts: list[RenderableType] = [Text(heading, style="bold"), Text(lines[0])]
    for line, loss in zip(lines[1:], answer.losses, strict=True):
        parts.append(Text(line))
        parts += [Text(f"     {printable(line)}", style="dim") for line in loss.evidence]
    parts += [section_title("Where the time goes"), _table(answer)]
    if answer.open_plan.explaining:
        parts += [section_title(EXPLAINING), grid_view(open_grid(answer.open_plan, SHOWN))]
    return Group(
        *parts, *notes("Warnings", answer.warnings), *notes("Assumed", [printable(line) for line in answer.assumptions])
    )


def trace_answer(answer: TraceDiagnosis) -> tuple[str, list[str]]:
    """A heading, and the answer: a sentence, then the losses by number."""
    losses = [f"{number}. {_loss(answer, loss)}" for number, loss in enumerate(answer.losses, start=1)]
    return _heading(answer), [_headline(answer), *losses]


def gemm_records(answer: TraceDiagnosis, date: str) -> str:
    """A trace's matrix multiplications in the data type of the longest one, as CSV records for ``sartor calibrate``."""
    lines = ["table,gpu,dtype,date,batch,m,n,k,latency_us"]
    products = [each for each in answer.priced if isinstance(each.operator, Gemm)]
    for each in products:
        op = each.operator
        if isinstance(op, Gemm) and op.dtype is products[0].operator.dtype:
            sizes = ",".join(str(int(size)) for size in (op.batch, op.m, op.n, op.k))
            took = 1e6 * each.seconds / each.count
            lines.append(f"gemm,{answer.device},{op.dtype.value},{date},{sizes},{took:.3f}")
    return "\n".join([*lines, ""])


def _heading(answer: TraceDiagnosis) -> str:
    rank = "" if answer.rank is None else f", rank {answer.rank}"
    world = f" of {answer.world_size}" if answer.rank is not None and answer.world_size else ""
    more = f" ({answer.num_ranks} ranks read)" if answer.num_ranks > 1 else ""
    steps = count_text(answer.num_steps, "steady step")
    return f"{printable(answer.path)}: {printable(answer.gpu) or 'GPU not named'}{rank}{world}{more}, {steps}"


def _headline(answer: TraceDiagnosis) -> str:
    text = f"A step takes {format_seconds(answer.step_s)}."
    if math.isfinite(answer.mfu):
        text = f"You reach {format_share(answer.mfu)} MFU: a step takes {format_seconds(answer.step_s)}."
    if answer.open_plan.fields:
        text += f" {open_text(answer.open_plan, 'trace', 'step')}"
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
    if not answer.losses:
        return f"{text} No loss of 2.5% of the step or more was found."
    gain = sum(loss.gain_s for loss in answer.losses) / answer.step_s
    found = count_text(len(answer.losses), "loss", "losses")
    return f"{text}{_points(answer)} {found.capitalize()} of {format_share(gain)} of the step together:"


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
        said.append(f"{points * taken / beyond:.1f} {WORDS[loss.kind.value]}")
        left -= taken
    rest = [f"{points * left / beyond:.1f} unexplained"] if left > 0 else []
    return f" Of the {points:.1f} points between them: {', '.join([*said, *rest])}."


def _loss(answer: TraceDiagnosis, loss: TracePart) -> str:
    share = format_share(loss.gain_s / answer.step_s)
    words = WORDS[loss.kind.value]
    return f"{words[0].upper()}{words[1:]}: {share} of the step ({format_seconds(loss.gain_s)}). To do: {loss.fix}."


def _table(answer: TraceDiagnosis) -> Table:
    table = plain_table("part", "time", "share", "points of MFU", "mostly")
    for part in answer.parts:
        if part.seconds < LEAST * answer.step_s:
            continue
        table.add_row(
            WORDS[part.kind.value],
            format_seconds(part.seconds),
            format_share(part.seconds / answer.step_s),
            f"{answer.points_of_mfu(part):.1f}",
            printable(part.evidence[0])[:NARROW] if part.evidence else "",
        )
    return table
