"""``sartor estimate`` for the terminal, and the pieces other views share: tables, bars, titles, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from rich.console import Group, OverflowMethod, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sartor.cost.cost import Cost
from sartor.cost.price import Estimate
from sartor.model.workload import ParallelDims, Workload
from sartor.operators import Gemm, Operator, Pass, kind_name
from sartor.report.fit_words import narrowing_lines, serving_words
from sartor.report.grid import Grid, GridColumn, grid_of, share_bar, words_column
from sartor.report.headline import headline_lines
from sartor.report.plan_words import plan_words, step_parts
from sartor.report.points import SMALL_SHARE, OperatorTimes
from sartor.report.words import (
    count_text,
    efficiency,
    flops_text,
    interval_text,
    misaligned_text,
    printable,
    short_name,
    size_text,
    tile_text,
    workload_text,
)
from sartor.units import format_bytes, format_change, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate
    from sartor.rules.rule import Finding

PASS_WORDS = {
    Pass.FORWARD: "fwd",
    Pass.DGRAD: "dgrad",
    Pass.WGRAD: "wgrad",
    Pass.BACKWARD: "bwd",
    Pass.RECOMPUTE: "again",
}


LINES = 9
"""Operators on one screen."""
IN_THE_FIRST_LINE = ("plan: ", "from the zoo")
"""Starts of assumptions that the first line of an answer has."""


def estimate_view(
    answer: ModelEstimate, findings: Sequence[Finding] | None = None, *, verbose: bool = False
) -> RenderableType:
    """``sartor estimate``: the answer, operators by time, totals, assumptions; on one screen unless ``verbose``."""
    assumed = answer.question.assumptions
    if not verbose:
        table = operators_table(answer.estimate, small=_share_of(answer.estimate, LINES), narrow=True)
        rest = "; ".join(printable(words) for words in assumed if not words.startswith(IN_THE_FIRST_LINE))
        said = Text(f"Assumed: {rest}. More: --verbose", style="dim")
        first = headline_lines(answer, findings)
        return Group(*first, *_what_is_listed(answer), table, Text(""), _details(answer, short=True), said)
    return Group(
        *headline_lines(answer, findings),
        *_what_is_listed(answer),
        operators_table(answer.estimate),
        totals_line(answer),
        *_misaligned_lines(answer),
        *narrowing_lines(answer),
        *notes("Assumed", assumed),
    )


def _share_of(estimate: Estimate, count: int) -> float:
    """The share of the time that ``count`` operators have at least."""
    shares = sorted((row.share for row in _rows(estimate)), reverse=True)
    return max(shares[: count + 1][-1], SMALL_SHARE)


def _what_is_listed(answer: ModelEstimate) -> list[RenderableType]:
    """Notes: operators are those of one of several devices, or, in training, of one microbatch."""
    priced, size = answer.priced, workload_text(answer.question.workload)
    if priced is None:
        chip = answer.question.gpu.accelerator is not None
        turns = [f"{IN_TURN}, as `sartor design` counts and the time here does not"] if chip else []
        return [
            Text(line, style="dim") for line in (f"One pass ({size})", *_devices_words(answer.question.dims), *turns)
        ]
    where = f" on the slowest of {int(priced.plan.dims.pp)} stages" if int(priced.plan.dims.pp) > 1 else ""
    time = format_seconds(float(answer.estimate.time_s))
    words = f"One of {count_text(int(priced.plan.num_microbatches), 'microbatch', 'microbatches')} ({size}){where}"
    gaps = 1.0 if answer.run is None else max(answer.run.compute_factors)
    longer = f"; in the step its layers take {gaps:.3g} times as long, for gaps between kernels"
    beside = longer if gaps >= 1.005 else ""
    lines = [f"{words}: {time}{beside}"]
    if answer.question.held is not None and answer.question.held.job.trainer.lockstep:
        lines.append(f"{IN_TURN}, as the step time counts")
    return [Text(line, style="dim") for line in lines]


def _devices_words(dims: ParallelDims) -> list[str]:
    """The devices in all, of inference with expert parallelism."""
    if int(dims.ep) == 1:
        return []
    tp, ep = int(dims.tp), int(dims.ep)
    return [
        f"One of {ep} groups, each with a batch like this one, on {int(dims.num_devices)} devices (tp {tp} x ep {ep})"
    ]


IN_TURN = "Operators are listed one after another; those of a layer overlap on the chip's cores"
"""Why the list of a chip adds up to more than its step."""


MISALIGNED_SHARE = 0.02
"""Least share of the time at which a misaligned GEMM is worth a line."""


def _misaligned_lines(answer: ModelEstimate) -> list[Text]:
    """``Misaligned: logits dgrad: k=50257 (contiguous in A) is odd and aligns rows to 2 bytes, not 16``"""
    found = answer.estimate
    least = MISALIGNED_SHARE * float(found.time_s)
    told = [
        f"{short_name(op)} {PASS_WORDS[op.pass_]}: {words}"
        for op, cost in zip(found.graph.operators, found.costs, strict=True)
        if isinstance(op, Gemm) and cost.details.get("alignment", 1.0) < 1 and float(op.count * cost.time_s) >= least
        if (words := misaligned_text(op))
    ]
    return [Text(f"Misaligned: {each}", style="dim") for each in told]


def heading(model: str, gpu: str, workload: Workload) -> RenderableType:
    text = Text(printable(model), style="bold")
    text.append(f" on {printable(gpu)}", style="bold")
    text.append(f"  {workload_text(workload)}", style="dim")
    return Group(text, Rule(style="dim", characters="-"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One operator with all its executions together."""

    operator: Operator
    cost: Cost
    kind: str
    time_s: float
    share: float


def operators_table(estimate: Estimate, *, small: float = SMALL_SHARE, narrow: bool = False) -> Table:
    """Operators by kind, longest first; those below ``small`` of the step on one line; ``narrow``: without tiles."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", collapse_padding=True)
    long: OverflowMethod = "ellipsis" if narrow else "fold"
    table.add_column("operator", overflow=long, no_wrap=narrow, min_width=14, max_width=24 if narrow else None)
    table.add_column("pass", overflow="fold")
    table.add_column("" if narrow else "count", justify="right", overflow="fold")
    table.add_column(
        "(batch x) m x n x k", overflow=long, no_wrap=narrow, min_width=22, max_width=24 if narrow else None
    )
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for name, justify in () if narrow else TILES:
        table.add_column(name, justify=justify, no_wrap=True)
    rows = _rows(estimate)
    totals = {kind: sum(r.time_s for r in rows if r.kind == kind) for kind in {r.kind for r in rows}}
    shown = [row for row in rows if row.share >= small]
    shown.sort(key=lambda r: (-totals[r.kind], r.kind, -r.time_s))
    step = float(estimate.time_s)
    for kind, group in groupby(shown, key=lambda r: r.kind):
        members = list(group)
        if len(members) > 1:
            _add_total(table, kind, totals[kind], totals[kind] / step)
        for row in members:
            _add_row(table, row, indent=len(members) > 1)
    rest = [row for row in rows if row.share < small]
    if rest:
        time_s = sum(row.time_s for row in rest)
        _add_total(table, f"{len(rest)} smaller", time_s, time_s / step)
    return table


NARROW = 7
"""Columns of a narrow table of operators."""
TILES: tuple[tuple[str, Literal["left", "right"]], ...] = (("tile", "left"), ("waves", "right"), ("eff", "right"))


def _rows(estimate: Estimate) -> list[_Row]:
    step = float(estimate.time_s) or 1.0
    return [
        _Row(
            operator=op,
            cost=cost,
            kind=kind_name(op),
            time_s=float(cost.time_s) * float(op.count),
            share=float(cost.time_s) * float(op.count) / step,
        )
        for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True)
        if float(op.count) > 0
    ]


def _add_total(table: Table, word: str, time_s: float, share: float) -> None:
    cells = (printable(word), "", "", "", format_seconds(time_s), format_share(share))
    table.add_row(*(Text(cell, style="bold") for cell in cells))


def _add_row(table: Table, row: _Row, *, indent: bool) -> None:
    op, cost = row.operator, row.cost
    share = efficiency(op, cost)
    waves = cost.details.get("waves")
    cells = (
        (" " if indent else "") + _breakable(short_name(op)),
        PASS_WORDS[op.pass_],
        str(int(op.count)) if len(table.columns) > NARROW else "",
        size_text(op),
        format_seconds(row.time_s),
        format_share(row.share),
        cost.bound_by.value,
        tile_text(cost),
        "" if waves is None else f"{float(waves):.0f}",
        "" if share is None else f"{100 * share:.0f}%",
    )
    table.add_row(*(Text(cell) for cell in cells[: len(table.columns)]))


def _breakable(name: str) -> str:
    """A collective's long name with spaces, so that narrow columns can break it: ``mlp grad all_gather``."""
    return name.replace(".", " ").replace("grad_", "grad ").replace("input_", "input ") if "." in name else name


def times_table(times: OperatorTimes) -> Table:
    """Operators with all passes together, longest first: time, 80% interval, share, and a bar."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    for name in ("time", "80% low", "80% high", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    totals = times.time_s.sum(axis=1)
    longest = max(totals.max(initial=0.0), 1e-30)
    for name, total, low, high in zip(times.names, totals, times.low_s, times.high_s, strict=True):
        cells = (format_seconds(total), format_seconds(low), format_seconds(high), format_share(total / times.step_s))
        table.add_row(Text(name), *cells, share_bar(total / longest))
    return table


def totals_line(answer: ModelEstimate) -> RenderableType:
    """One paragraph: step or pass time with interval, throughput, utilization, memory and source."""
    text = Text("Time " if answer.priced is None else "Step time ", style="bold")
    text.append(interval_text(float(answer.time_s), float(answer.low_s), float(answer.high_s)), style="bold")
    text.append("; ").append(_details(answer))
    if answer.priced is not None:
        text.append(f". Plan: {plan_words(answer.priced.plan)}")
    return Padding(text, (1, 0, 0, 0), expand=False)


def _details(answer: ModelEstimate, *, short: bool = False) -> Text:
    """Throughput, source and parts of a step or pass; unless ``short``, what the first lines have too."""
    estimate, priced, text = answer.estimate, answer.priced, Text()
    if answer.serving is not None:
        text.append(serving_words(answer, answer.serving))
    else:
        text.append(f"{format_count(float(answer.tokens_per_s_per_device))} tokens/s per device")
        text.append("" if short else f"; {format_share(float(answer.mfu))} of dense peak (MFU)")
    if priced is not None and not short:
        text.append(f"; {format_bytes(priced.peak_bytes)} on the fullest device")
    each = "; " if priced is None else ". Each microbatch: "
    text.append(f"{each}{flops_text(float(estimate.matmul_flops))} in matrix multiplications; {answer.source.value}")
    moved = float(estimate.time_s) / max(float(estimate.formula_time_s), 1e-30) - 1
    if abs(moved) >= SMALL_SHARE:
        text.append(f" (calibration changed the analytic estimate by {format_change(moved)})")
    if priced is not None:
        parts = ", ".join(f"{words} {format_seconds(seconds)}" for words, seconds in step_parts(priced) if seconds > 0)
        text.append(f". Parts of the step: {parts}")
    return text


def section_title(words: str) -> RenderableType:
    """A heading with an empty line above it."""
    return Padding(Text(words, style="bold underline"), (1, 0, 0, 0), expand=False)


def notes(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """A titled list; nothing if it is empty."""
    if not lines:
        return []
    items = [_bullet(Text(printable(line))) for line in lines]
    return [Padding(Text(f"{title}:", style="bold"), (1, 0, 0, 0), expand=False), *items]


def _bullet(text: Text, mark: str = "-") -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style="dim"), text)
    return grid


def operators_grid(estimate: Estimate) -> Grid:
    """All operators with their terms, longest first."""
    columns = (
        words_column("operator"),
        words_column("kind"),
        words_column("pass"),
        GridColumn(head="count"),
        GridColumn(head="size", explains="(batch x) m x n x k of C[m,n] = A[m,k] B[k,n]"),
        GridColumn(head="time", explains="all executions of one step"),
        GridColumn(head="80% low"),
        GridColumn(head="80% high"),
        GridColumn(head="share", explains="of the step"),
        GridColumn(head="bound by", number=False, explains="the largest term"),
        GridColumn(head="tile", number=False, explains="output tile / split of k"),
        GridColumn(head="waves", explains="ceil(tiles / SMs, or / tensor cores of an accelerator)"),
        GridColumn(head="efficiency", explains="tile efficiency x wave efficiency"),
    )
    pairs = sorted(
        zip(estimate.graph.operators, estimate.costs, strict=True),
        key=lambda pair: -float(pair[0].count) * float(pair[1].time_s),
    )
    rows = []
    for op, cost in pairs:
        count, useful = float(op.count), efficiency(op, cost)
        waves = cost.details.get("waves")
        rows.append(
            (
                short_name(op),
                kind_name(op),
                PASS_WORDS[op.pass_],
                f"{count:.0f}",
                size_text(op),
                format_seconds(count * float(cost.time_s)),
                format_seconds(count * float(cost.low_s)),
                format_seconds(count * float(cost.high_s)),
                format_share(count * float(cost.time_s) / float(estimate.time_s)),
                cost.bound_by.value,
                tile_text(cost),
                "" if waves is None else f"{float(waves):.0f}",
                "" if useful is None else format_share(useful),
            )
        )
    step = interval_text(float(estimate.time_s), float(estimate.low_s), float(estimate.high_s))
    return grid_of(f"One microbatch, or one pass of inference: {step}; {estimate.source.value}", columns, rows)
