"""``sartor estimate`` for the terminal, and its tables, which other answers show too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sartor.cost.cost import Z80, Cost
from sartor.cost.price import Estimate
from sartor.cost.uncertainty import IntervalPart, Narrows
from sartor.model.workload import ParallelDims
from sartor.operators import Gemm, Operator, Pass, kind_name
from sartor.report.document import (
    PageBlock,
    Place,
    assumed_blocks,
    document_text,
    grid_block,
    opening,
)
from sartor.report.fit_words import first_change, headline, serving_words
from sartor.report.grid import Grid, GridColumn, grid_of, wide_column, words_column
from sartor.report.plan_words import plan_words, step_parts
from sartor.report.words import (
    SMALL_SHARE,
    count_text,
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
    from sartor.report.points import OperatorTimes
    from sartor.rules.rule import Finding

PASS_WORDS = {
    Pass.FORWARD: "fwd",
    Pass.DGRAD: "dgrad",
    Pass.WGRAD: "wgrad",
    Pass.BACKWARD: "bwd",
    Pass.RECOMPUTE: "again",
}


LINES = 9
"""Operators on one screen; three fewer where the answer says what would settle its verdict."""


def estimate_view(
    answer: ModelEstimate, findings: Sequence[Finding] | None = None, *, verbose: bool = False
) -> RenderableType:
    """``sartor estimate``: the answer, operators by time, totals, assumptions; on one screen unless ``verbose``."""
    estimate = answer.microbatch
    change = "" if findings is None or answer.cannot_run else first_change(answer, findings)
    blocks = [
        opening(headline(answer, change), bad=answer.fits is False),
        PageBlock(view=lambda: Group(Text(""), *_what_is_listed(answer))),
        grid_block(
            kinds_grid(estimate, small=_share_of(estimate, LINES - 3 * bool(answer.question.depends_on))), Place.SHORT
        ),
        PageBlock(view=lambda: Group(Text(""), _details(answer, short=True)), place=Place.SHORT),
        grid_block(kinds_grid(estimate), Place.LONG),
        PageBlock(view=lambda: totals_line(answer), place=Place.LONG),
        PageBlock(view=lambda: Group(*_misaligned_lines(answer), *_narrowing_lines(answer)), place=Place.LONG),
        *assumed_blocks(answer.question.assumptions),
    ]
    return document_text(blocks, verbose=verbose)


_MUCH = 0.2
"""Least share of the interval's variance that is worth a line on how to narrow it."""


def _narrowing_lines(answer: ModelEstimate) -> list[Text]:
    """``Interval: 61% of its variance is attention: --kernels sglang|vllm narrows it, to ±9% at best.``"""
    told = [part for part in answer.interval_parts if part.share >= _MUCH and part.narrows is not Narrows.NOTHING]
    words = [f"{_part_of(answer, part)}; {_remedy(part, answer)}, to {_width(part)} at best" for part in told]
    return [Text(f"Interval: {each}", style="dim") for each in words]


def _part_of(answer: ModelEstimate, part: IntervalPart) -> str:
    within = "" if answer.priced is None else " of one microbatch"
    return f"{format_share(part.share)} of the variance{within} is {_KIND_WORDS[part.kind]} ({part.source.value})"


def _remedy(part: IntervalPart, answer: ModelEstimate) -> str:
    if part.narrows is Narrows.KERNELS:
        return f"--kernels {'|'.join(part.kernels)} narrows it"
    suite = "alignment" if part.narrows is Narrows.ALIGNMENT else "quick"
    gpu = printable(answer.question.gpu.name)
    return f"sartor measure --suite {suite} on {gpu}, sartor calibrate and --calibration narrow it"


def _width(part: IntervalPart) -> str:
    return f"±{format_share(float(np.expm1(Z80 * part.log_sigma_without)))}"


_KIND_WORDS = {
    "gemm": "GEMMs",
    "grouped_gemm": "experts' GEMMs",
    "attention": "attention",
    "memory_bound": "memory-bound kernels",
    "collective": "collectives",
}


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
    time = format_seconds(float(answer.microbatch.time_s))
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
    found = answer.microbatch
    least = MISALIGNED_SHARE * float(found.time_s)
    told = [
        f"{short_name(op)} {PASS_WORDS[op.pass_]}: {words}"
        for op, cost in zip(found.graph.operators, found.costs, strict=True)
        if isinstance(op, Gemm) and cost.details.get("alignment", 1.0) < 1 and float(op.count * cost.time_s) >= least
        if (words := misaligned_text(op))
    ]
    return [Text(f"Misaligned: {each}", style="dim") for each in told]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One operator with all its executions together."""

    operator: Operator
    cost: Cost
    kind: str
    time_s: float
    share: float


def kinds_grid(estimate: Estimate, *, small: float = SMALL_SHARE) -> Grid:
    """Operators by kind, longest first; those below ``small`` of the step on one line."""
    rows, step = sorted(_rows(estimate), key=lambda row: -row.time_s), float(estimate.time_s)
    totals: dict[str, float] = {}
    for row in rows:
        totals[row.kind] = totals.get(row.kind, 0.0) + row.time_s
    lines: list[tuple[str, ...]] = []
    for kind in sorted(totals, key=lambda kind: -totals[kind]):
        members = [row for row in rows if row.kind == kind and row.share >= small]
        lines += [_total(kind, totals[kind], step)] if len(members) > 1 else []
        lines += [_cells(row, " " * (len(members) > 1)) for row in members]
    rest = [row.time_s for row in rows if row.share < small]
    lines += [_total(f"{len(rest)} smaller", sum(rest), step)] if rest else []
    return grid_of("Operators by kind", KIND_COLUMNS, lines)


KIND_COLUMNS = (
    words_column("operator"),
    words_column("pass"),
    wide_column("count"),
    words_column("(batch x) m x n x k"),
    *("time", "share"),
    words_column("bound by"),
    GridColumn(head="tile", number=False, wide_only=True),
    *(wide_column("waves"), wide_column("eff")),
)


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


def _total(word: str, time_s: float, step_s: float) -> tuple[str, ...]:
    return (word, "", "", "", format_seconds(time_s), format_share(time_s / step_s), "", "", "", "")


def _cells(row: _Row, indent: str = "") -> tuple[str, ...]:
    op, cost = row.operator, row.cost
    share, waves = _efficiency(op, cost), cost.details.get("waves")
    return (
        indent + _breakable(short_name(op)),
        PASS_WORDS[op.pass_],
        str(int(op.count)),
        size_text(op),
        format_seconds(row.time_s),
        format_share(row.share),
        cost.bound_by.value,
        tile_text(cost),
        "" if waves is None else f"{float(waves):.0f}",
        "" if share is None else f"{100 * share:.0f}%",
    )


def _breakable(name: str) -> str:
    """A collective's long name with spaces, so that narrow columns can break it: ``mlp grad all_gather``."""
    return name.replace(".", " ").replace("grad_", "grad ").replace("input_", "input ") if "." in name else name


def times_grid(times: OperatorTimes) -> Grid:
    """Operators with all passes together, longest first: time, 80% interval, share, and a bar."""
    totals = times.time_s.sum(axis=1)
    rows = [
        (name, *map(format_seconds, seconds), format_share(seconds[0] / times.step_s))
        for name, *seconds in zip(times.names, totals, times.low_s, times.high_s, strict=True)
    ]
    bars = tuple((totals / max(totals.max(initial=0.0), 1e-30)).tolist())
    return grid_of(times.title, ("operator", "time", "80% low", "80% high", "share"), rows, bars=bars)


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
    estimate, priced, text = answer.microbatch, answer.priced, Text()
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
    rows = []
    for row in sorted(_rows(estimate), key=lambda row: -row.time_s):
        _, pass_, count, size, time, *middle, waves, _ = _cells(row)
        count_of, ends = float(row.operator.count), (row.cost.low_s, row.cost.high_s)
        seconds = (format_seconds(count_of * float(end_s)) for end_s in ends)
        useful = _efficiency(row.operator, row.cost)
        share = "" if useful is None else format_share(useful)
        rows.append((short_name(row.operator), row.kind, pass_, count, size, time, *seconds, *middle, waves, share))
    step = interval_text(float(estimate.time_s), float(estimate.low_s), float(estimate.high_s))
    return grid_of(f"One microbatch, or one pass of inference: {step}; {estimate.source.value}", columns, rows)


def _efficiency(operator: Operator, cost: Cost) -> float | None:
    """Tile efficiency times wave efficiency of a GEMM; None for other operators."""
    tile, wave = cost.details.get("tile_efficiency"), cost.details.get("wave_efficiency")
    return None if tile is None or wave is None else float(tile) * float(wave)
