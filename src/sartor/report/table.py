"""Answers for the terminal, as rich renderables that fit 100 columns and are never cut.

Everything a reader sees goes through :func:`~sartor.report.words.printable` into ``Text``: names come from files of
unknown authors and must neither colour nor move anything. Printing is the command line's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sartor.cost.cost import Cost
from sartor.cost.estimate import Estimate
from sartor.model.workload import Workload
from sartor.operators import Operator, Pass, kind_name
from sartor.report.points import SMALL_SHARE, OperatorTimes, operator_times
from sartor.report.verdict import verdict
from sartor.report.words import (
    efficiency,
    interval_text,
    printable,
    short_change,
    short_name,
    signed_share,
    size_text,
    speedup_text,
    sure_text,
    tile_text,
    workload_text,
)
from sartor.units import format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import Advice, GemmAnswer, ModelEstimate
    from sartor.rules.rule import Finding
    from sartor.search.shapes import Candidate, ShapeSearch

WIDTH = 100
"""Columns that every view fits into."""

BAR = 24
"""Characters of the longest bar."""

GRADE_STYLES = {"error": "bold red", "warn": "yellow", "info": "cyan"}
PASS_WORDS = {
    Pass.FORWARD: "fwd",
    Pass.DGRAD: "dgrad",
    Pass.WGRAD: "wgrad",
    Pass.BACKWARD: "bwd",
    Pass.OPTIMIZER: "optim",
}


def estimate_view(answer: ModelEstimate) -> RenderableType:
    """``sartor estimate``: the question, operators by time, totals, what was assumed."""
    question = answer.question
    return Group(
        _heading(question.reading.shape.name or "model", question.gpu.name, question.workload),
        operators_table(answer.estimate),
        totals_line(answer.estimate),
        *_notes("Assumed", question.assumptions),
    )


def _heading(model: str, gpu: str, workload: Workload) -> RenderableType:
    text = Text(printable(model), style="bold")
    text.append(f" on {printable(gpu)}", style="bold")
    text.append(f"  {workload_text(workload)}", style="dim")
    return Group(text, Rule(style="dim", characters="-"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One operator as shown: all its executions together."""

    operator: Operator
    cost: Cost
    kind: str
    time_s: float
    share: float


def operators_table(estimate: Estimate, *, small: float = SMALL_SHARE) -> Table:
    """Operators grouped by kind, the longest kind and operator first; those below ``small`` of the step in one line."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("operator", overflow="fold", min_width=14)
    table.add_column("pass", overflow="fold")
    table.add_column("count", justify="right", overflow="fold")
    table.add_column("(batch x) m x n x k", overflow="fold", min_width=22)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    table.add_column("tile", no_wrap=True)
    table.add_column("waves", justify="right", no_wrap=True)
    table.add_column("eff", justify="right", no_wrap=True)
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
    cells = (printable(word), "", "", "", format_seconds(time_s), format_share(share), "", "", "", "")
    table.add_row(*(Text(cell, style="bold") for cell in cells))


def _add_row(table: Table, row: _Row, *, indent: bool) -> None:
    op, cost = row.operator, row.cost
    share = efficiency(op, cost)
    waves = cost.details.get("waves")
    cells = (
        (" " if indent else "") + short_name(op),
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
    table.add_row(*(Text(cell) for cell in cells))


def times_table(times: OperatorTimes) -> Table:
    """Operators with all their passes together, longest first: time, its 80% interval, share, and a bar."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    for name in ("time", "80% low", "80% high", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    totals = times.time_s.sum(axis=1)
    longest = max(totals.max(initial=0.0), 1e-30)
    for name, total, low, high in zip(times.names, totals, times.low_s, times.high_s, strict=True):
        bar = Text("#" * max(round(BAR * total / longest), 1), style="blue")
        cells = (format_seconds(total), format_seconds(low), format_seconds(high), format_share(total / times.step_s))
        table.add_row(Text(name), *cells, bar)
    return table


def totals_line(estimate: Estimate) -> RenderableType:
    """One paragraph: the step with its interval, throughput, utilisation, FLOPs and where the numbers come from."""
    text = Text("Step ", style="bold")
    text.append(interval_text(float(estimate.time_s), float(estimate.low_s), float(estimate.high_s)), style="bold")
    text.append(
        f"; {format_count(float(estimate.tokens_per_s))} tokens/s; {format_share(float(estimate.mfu))} of dense peak "
        f"(mfu); {float(estimate.matmul_flops) / 1e12:,.3g} TFLOP of products; {estimate.source.value}"
    )
    return Padding(text, (1, 0, 0, 0), expand=False)


def _notes(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """A titled list; nothing where it is empty."""
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


def gemm_view(answer: GemmAnswer) -> RenderableType:
    """``sartor gemm``: one product, why it takes as long as it does, and the tiles that were considered."""
    gemm, cost = answer.gemm, answer.cost
    achieved = float(gemm.flops) / float(cost.time_s)
    head = Text(f"{size_text(gemm)} ", style="bold")
    head.append(f"({gemm.dtype.value}, {gemm.layout.value}) on {printable(answer.gpu.name)}", style="bold")
    line = Text(interval_text(float(cost.time_s), float(cost.low_s), float(cost.high_s)), style="bold")
    line.append(f"; {achieved / 1e12:,.4g} TFLOP/s; bound by {cost.bound_by.value}; {cost.source.value}")
    return Group(head, Rule(style="dim", characters="-"), line, Text(gemm_reason(answer)), Text(), tiles_table(answer))


def gemm_reason(answer: GemmAnswer) -> str:
    """Why, in words: tiles, waves, what is wasted in them, alignment, and the terms."""
    gemm, cost, gpu = answer.gemm, answer.cost, answer.gpu
    d = cost.details
    terms = ", ".join(
        f"{word} {format_seconds(float(term))}"
        for word, term in (("matrix", cost.compute_s), ("memory", cost.memory_s), ("overhead", cost.overhead_s))
    )
    intensity = float(gemm.flops) / float(gemm.bytes_moved)
    return (
        f"Tiles of {tile_text(cost)} over {gpu.num_sms} SMs make {float(d.get('waves', 0)):.0f} waves: "
        f"{format_share(float(d.get('tile_efficiency', 1)))} of the tiles and "
        f"{format_share(float(d.get('wave_efficiency', 1)))} of the waves do useful work; operand alignment lets the "
        f"main loop run at {format_share(float(d.get('alignment', 1)))}. Terms: {terms}. "
        f"It does {intensity:,.0f} FLOP per byte; the ridge is at {_ridge(answer):,.0f}."
    )


def _ridge(answer: GemmAnswer) -> float:
    peaks = answer.gpu.peak_flops_per_s
    return peaks.get(answer.gemm.dtype, max(peaks.values())) / answer.gpu.hbm_bytes_per_s


def tiles_table(answer: GemmAnswer, *, limit: int = 12) -> Table:
    """The alternatives, fastest first, with what each loses in tiles and waves."""
    table = _plain_table("tile", "split k", "waves", "tile eff", "wave eff", "matrix", "memory", "time", "slower by")
    best = float(_get(answer.alternatives[0], "time_s")) if answer.alternatives else 1.0
    for each in list(answer.alternatives)[:limit]:
        time_s = float(_get(each, "time_s"))
        table.add_row(
            f"{int(_get(each, 'tile_m'))}x{int(_get(each, 'tile_n'))}",
            str(int(_get(each, "split_k"))),
            f"{float(_get(each, 'waves')):.0f}",
            format_share(float(_get(each, "tile_efficiency"))),
            format_share(float(_get(each, "wave_efficiency"))),
            format_seconds(float(_get(each, "compute_s"))),
            format_seconds(float(_get(each, "memory_s"))),
            format_seconds(time_s),
            "chosen" if each is answer.alternatives[0] else signed_share(time_s / best - 1),
        )
    return table


def _get(record: Any, name: str) -> Any:
    return record[name] if isinstance(record, dict) else getattr(record, name)


def _plain_table(first: str, *others: str) -> Table:
    """Names on the left (folded where long), numbers on the right (never wrapped)."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def advice_view(advice: Advice) -> RenderableType:
    """``sartor advise``: the verdict in words, where the time goes, findings, candidates, devices, stability, notes."""
    base = advice.base.question
    search = advice.search
    parts: list[RenderableType] = [
        _heading(base.reading.shape.name or "model", base.gpu.name, base.workload),
        Text(verdict(advice)),
        _title("Where the time goes"),
        times_table(operator_times(advice.base.estimate, small=0.02)),
        totals_line(advice.base.estimate),
        _title("What is broken, and what it costs"),
        findings_view(advice.findings),
        _title("Faster shapes of the same size"),
        candidates_table(search),
        *_legend(search),
    ]
    if len(advice.gpus) > 1 and search.candidates:
        parts += [_title("On each device"), per_gpu_table(advice)]
    parts += _notes("How stable this is", [printable(str(line)) for line in stability_lines(search.stability)])
    parts += _notes("Assumed", [*base.assumptions, *search.assumptions])
    return Group(*parts)


def _title(words: str) -> RenderableType:
    return Padding(Text(words, style="bold underline"), (1, 0, 0, 0), expand=False)


def findings_view(findings: Iterable[Finding]) -> RenderableType:
    """Each finding: its grade, rule and gain, then what is wrong and the fix."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    found = list(findings)
    if not found:
        return Text("No rule is broken.")
    for finding in found:
        grade = finding.grade.value
        words = Text(printable(finding.message))
        words.append(f"  [{finding.rule} {finding.code}]", style="dim")
        if finding.fix:
            words.append(f"\nfix: {fix_text(finding)}", style="green")
        table.add_row(Text(grade, style=GRADE_STYLES.get(grade, "")), Text(gain_text(finding)), words)
    return table


def fix_text(finding: Finding) -> str:
    return printable(", ".join(f"{name}={value}" for name, value in finding.fix.items()))


def gain_text(finding: Finding) -> str:
    """``6.1%``; a dash where the model cannot run as asked, so that there is no time to save."""
    return "-" if finding.gain_fraction is None else format_share(finding.gain_fraction)


def candidates_table(search: ShapeSearch) -> RenderableType:
    """Same-size shapes, best first: speedup with 80% interval, how sure, what it costs in parameters and FLOPs."""
    if not search.candidates:
        return Text("Nothing within the tolerance is faster: keep the shape.")
    table = _plain_table("change", "speedup", "80% interval", "sure", "params", "flops", "quality")
    for each in with_candidate(search.candidates, search.smallest_edit):
        table.add_row(
            _marked(each, search.smallest_edit, "smallest edit"),
            speedup_text(each.speedup),
            f"{float(each.speedup_low):.2f}-{float(each.speedup_high):.2f}",
            sure_text(float(each.confidence)),
            signed_share(float(each.params_change), 2),
            signed_share(float(each.flops_change), 1),
            "known" if each.quality.within_evidence else "check",
        )
    return table


def _legend(search: ShapeSearch) -> list[RenderableType]:
    """What the quality column's words mean, where there is one."""
    if not search.candidates:
        return []
    return [Text("quality: known = within what published evidence covers; check = outside it", style="dim")]


def with_candidate(candidates: Sequence[Candidate], other: Candidate | None) -> list[Candidate]:
    """The candidates, and one more where it is not among them."""
    return [*candidates] if other is None or position(candidates, other) >= 0 else [*candidates, other]


def position(candidates: Sequence[Candidate], wanted: Candidate | None) -> int:
    """Where a candidate stands in the list, -1 where it does not."""
    return next((i for i, c in enumerate(candidates) if wanted is not None and c.changed == wanted.changed), -1)


def _marked(candidate: Candidate, special: Candidate | None, words: str) -> Text:
    """What a candidate changes, and a remark where it is the special one."""
    text = Text(short_change(candidate.changed))
    if special is not None and candidate.changed == special.changed:
        text.append(f"  <- {words}", style="green")
    return text


def per_gpu_table(advice: Advice) -> Table:
    """Speedup of each candidate on each device, and the one that regrets least."""
    names = [gpu.name for gpu in advice.gpus]
    table = _plain_table("change", *(printable(name) for name in names))
    for each in with_candidate(advice.search.candidates, advice.search.minimax):
        cells = (speedup_text(each.per_gpu[n]) if n in each.per_gpu else "-" for n in names)
        table.add_row(_marked(each, advice.search.minimax, "least regret"), *cells)
    return table


def stability_lines(stability: Iterable[Any]) -> list[str]:
    """Stability records as sentences (they know their own words)."""
    return [str(line) for line in stability]
