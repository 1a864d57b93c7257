"""``diagnose`` and ``compare`` for people: the answer in sentences, where the time goes, what would explain it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sartor.answers.diagnosis import (
    CHANGED_BYTES,
    CHANGED_TIME,
    EXPLANATION,
    LOG_MEASURED,
    LOG_PREDICTED,
    MOST_RATIO,
    PRICED_RUN,
    RUN_PART,
    LogDiagnosis,
    LogFacts,
    TraceDiagnosis,
)
from sartor.answers.field import Level, columns_of, text
from sartor.errors import visible
from sartor.operators import Gemm
from sartor.plans.explain import AGREES, nearest
from sartor.report import document as d
from sartor.report.diagnose_words import diagnose_answer
from sartor.report.grid import Grid, field_grid, grid_of
from sartor.report.plan_words import plan_words
from sartor.report.run_points import MOST_OPERATORS, run_points, worst_first
from sartor.report.words import count_text, three_digits
from sartor.units import format_bytes, format_change, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.diagnosis import RunComparison
    from sartor.step.measured_run import RunChange

COMPARED = 15
"""Operators of two runs that are listed."""
FEW = 3
"""Rows of a table on one screen, but that of the parts."""
PARTS = "Parts of the mean steady step"
SHOWN = 8
"""Changed facts and explaining plans that are listed."""
LEAST = 0.001
"""Share of the step below which a part is not listed."""
PLAN = text("plan", "plan", form=plan_words)


def diagnose_view(answer: LogDiagnosis | LogFacts | TraceDiagnosis, *, verbose: bool = False) -> RenderableType:
    """The answer in the terminal, on one screen unless ``verbose``."""
    heading, lines = diagnose_answer(answer)
    return d.document_text(_blocks(answer, lines), heading, verbose=verbose)


def diagnose_page(answer: LogDiagnosis | LogFacts | TraceDiagnosis, *, date: str = "") -> str:
    """The offline page (UTF-8). ``date`` is printed as given. Raises ``MissingExtraError`` without the extra
    ``report``."""
    title, lines = diagnose_answer(answer)
    document = d.Document(
        title=title,
        question="profiler trace" if isinstance(answer, TraceDiagnosis) else "training log",
        command="diagnose",
        blocks=_blocks(answer, lines),
        records=run_points(answer),
        glossary=True,
    )
    return d.document_page(document, date)


def _blocks(answer: LogDiagnosis | LogFacts | TraceDiagnosis, lines: list[str]) -> list[d.PageBlock]:
    return [
        d.PageBlock(lines=lines, verdict=True),
        *_where_time_goes(answer),
        *_open(answer),
        *(_explained(answer) if isinstance(answer, LogDiagnosis) else ()),
        *(_operators(answer) if isinstance(answer, TraceDiagnosis) else ()),
        d.bullets_block("Warnings", answer.warnings),
        d.bullets_block("Units", () if isinstance(answer, TraceDiagnosis) else answer.units, d.Place.REST),
        *d.assumed_blocks(answer.assumptions),
    ]


def _where_time_goes(answer: LogDiagnosis | LogFacts | TraceDiagnosis) -> list[d.PageBlock]:
    assumed = ""
    if isinstance(answer, LogDiagnosis) and answer.open_plan.fields:
        assumed = f", if the plan were {plan_words(answer.predicted.plan)}"
    parts = [part for part in answer.run_parts if abs(part.share) >= LEAST]
    if not parts:
        return []
    known = all(part.points_of_mfu is not None for part in parts)
    short, whole = (
        tuple(column for column in columns if known or column.name != "points_of_mfu")
        for columns in (RUN_PART[:4], columns_of(RUN_PART, Level.PAGE))
    )
    return [
        d.section(f"Where the time goes{assumed}", "time"),
        d.figure_block("fall", "Each part starts where those above it end."),
        d.grid_block(field_grid(PARTS, short, parts), d.Place.SHORT),
        d.grid_block(field_grid(PARTS, whole, parts), d.Place.REST),
    ]


def _open(answer: LogDiagnosis | LogFacts | TraceDiagnosis) -> list[d.PageBlock]:
    """The likeliest plans that would explain the run, where it does not say its own."""
    explaining = () if isinstance(answer, LogFacts) else answer.open_plan.explaining
    if not explaining:
        return []
    caption = "Predicted figures, the likeliest plan first"
    grid = field_grid(caption, (PLAN, *columns_of(PRICED_RUN, Level.PAGE)), explaining[:SHOWN])
    return [d.section("Plans that would explain the run"), *d.cut_blocks(grid, FEW)]


def _explained(answer: LogDiagnosis) -> list[d.PageBlock]:
    """The run beside the prediction of its plan, and beside those of changed plans."""
    if answer.open_plan.fields:
        return []
    tried = answer.explanations[: SHOWN + 1]
    caption = "Predictions with a changed fact of the plan, the nearest first"
    grid = field_grid(caption, columns_of(EXPLANATION, Level.PAGE), tried)
    return [
        *d.in_full([d.section("Measured and predicted"), d.grid_block(_measured_grid(answer))]),
        d.section("What would explain the rest"),
        d.PageBlock(words=_explained_text(answer)),
        *(d.cut_blocks(grid, FEW) if len(tried) > 1 else []),
    ]


def _explained_text(answer: LogDiagnosis) -> str:
    """Which changed fact of the plan would explain the rest."""
    best = nearest(answer.explanations)
    tried = len(answer.explanations) - 1
    if not best and answer.agrees:
        what = "run without stalls" if answer.measured.stall_s else "run"
        return (
            f"No fact of the plan has to be another: the {what} matches the plan {plan_words(answer.predicted.plan)}."
        )
    if not best:
        return f"{count_text(tried, 'single change')} tried, and none explains it: the rest is not due to the plan."
    first, *others = best
    step, reserved = format_seconds(first.priced.step_s), format_bytes(float(first.priced.footprint.reserved_bytes))
    sentence = f"{first.field}={first.value} brings the prediction nearest: {step} and {reserved} reserved"
    if others:
        sentence += f"; {', '.join(f'{each.field}={each.value}' for each in others)} would do as well"
    still = "" if first.misfit < AGREES else " It is still far from the run."
    return f"{sentence}.{still}"


def _measured_grid(answer: LogDiagnosis) -> Grid:
    """Every figure that is both measured and predicted."""
    predicted = {column.name: column for column in LOG_PREDICTED}
    pairs = [(column, predicted[column.name]) for column in columns_of(LOG_MEASURED) if column.name in predicted]
    rows = [
        (
            column.words,
            column.text(answer),
            prediction.text(answer),
            format_change(column.read(answer) / prediction.read(answer) - 1),
        )
        for column, prediction in pairs
        if math.isfinite(column.read(answer))
    ]
    return grid_of("The run and its prediction", ("", "measured", "predicted", "difference"), rows)


def _operators(answer: TraceDiagnosis) -> list[d.PageBlock]:
    rows = [
        (
            kernels.name,
            f"{kernels.count / answer.num_steps:,.3g}",
            format_seconds(kernels.seconds / kernels.count),
            format_seconds(kernels.predicted_s / kernels.count),
            f"{kernels.seconds / kernels.predicted_s:.2f}",
            format_seconds((kernels.seconds - kernels.predicted_s) / answer.num_steps),
        )
        for kernels in worst_first(answer.priced)[:MOST_OPERATORS]
    ]
    columns = ("operator", "calls per step", "measured", "predicted", "ratio", "loses per step")
    operators = [
        d.section("Operators", "operators"),
        d.figure_block("operators", "Sizes that the trace states (record_shapes=True)."),
        *d.cut_blocks(grid_of("Operators against their prediction", columns, rows), FEW),
    ]
    return [
        *(operators if rows else []),
        d.section("Timeline", "timeline", place=d.Place.PAGE),
        d.figure_block("timeline", "Kernels of one kind with no gap between them are one box."),
    ]


def compare_view(answer: RunComparison) -> RenderableType:
    """``sartor compare``: the verdict, then what changed."""
    tables = {
        "Time": (CHANGED_TIME, (answer.total, *answer.parts[:COMPARED])),
        "Memory": (CHANGED_BYTES, answer.memory),
    }
    blocks = [d.PageBlock(words=_verdict(answer), style="bold")]
    for name, (fields, changes) in tables.items():
        grid = field_grid(name, columns_of(fields), [(change, answer.threshold) for change in changes])
        blocks += [d.section(name), d.grid_block(grid)] if changes else []
    operators = [line for change in answer.parts[:COMPARED] if (line := _done_otherwise(change))]
    blocks.append(d.bullets_block("What changed of these operators", operators))
    facts = [f"{name}: {a} in A, {b} in B" for name, (a, b) in answer.facts.items()]
    blocks += [d.bullets_block("Facts that differ", facts), d.bullets_block("Warnings", answer.warnings)]
    return d.document_text(blocks)


def _done_otherwise(change: RunChange) -> str:
    """``aten::mm 64x64 64x64: 1 -> 2 calls per step; by cutlass only in A``; empty where only one run has it, or both
    call it as often and by the same kernels."""
    a, b = change.in_a, change.in_b
    if a is None or b is None:
        return ""
    calls = [three_digits(one.calls) for one in (a, b)]
    lines = [f"{' -> '.join(calls)} calls per step"] if calls[0] != calls[1] else []
    for run, here, there in (("A", a, b), ("B", b, a)):
        if only := [name for name in here.kernels if name not in there.kernels]:
            lines.append(f"by {', '.join(only)} only in {run}")
    return f"{visible(change.name)}: {'; '.join(lines)}" if lines else ""


SAME_WORK = 0.5
"""Least share of both traces' time in operators that both have, with which they are taken for runs of the same work."""


NAMED = 3
"""Changed operators that the first line names."""


def _changed_text(answer: RunComparison) -> str:
    """The parts that changed beyond noise and threshold, the largest changes first."""
    changed = [change for change in answer.parts if change.beyond(answer.threshold)]
    if not changed:
        return "" if answer.total.significant else "No change beyond noise."
    words = ["new" if not each.a else "gone" if not each.b else format_change(each.ratio - 1) for each in changed]
    names = [f"{visible(each.name)} ({how})" for each, how in zip(changed[:NAMED], words[:NAMED], strict=True)]
    more = f" and {len(changed) - NAMED:,} more" if len(changed) > NAMED else ""
    return f"Beyond noise changed {', '.join(names)}{more}."


def _verdict(answer: RunComparison) -> str:
    total, limit = answer.total, format_share(answer.threshold)
    what = "All kernels take" if total.name == "kernels" else f"A {total.name} takes"
    a, b = (format_share(share) for share in answer.alike)
    other = f"Not the same work (another model, batch or phase): operators of equal shapes take {a} of A and {b} of B. "
    what = other * (min(answer.alike) < SAME_WORK) + what
    said = f"{what} {format_seconds(total.a)} in A and {format_seconds(total.b)} in B"
    interval = format_change(total.ratio - 1)
    if total.high < MOST_RATIO:
        interval += f" ({format_change(total.low - 1)} to {format_change(total.high - 1)})"
    if not total.significant:
        return f"{said}: {interval}, within noise. {_changed_text(answer)}"
    faster = "slower" if total.ratio > 1 else "faster"
    beyond = (
        f"beyond the threshold of {limit}" if total.beyond(answer.threshold) else f"within the threshold of {limit}"
    )
    return f"{said}: {interval}. B is {faster}, more than noise, {beyond}. {_changed_text(answer)}".rstrip()


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
