"""``sartor estimate`` for the terminal, and its tables, which other answers show too.

``sartor serving`` for the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sartor.answers.field import columns_of
from sartor.answers.serving import CHOICE, FRONT_POINT, pools_text
from sartor.cost.cost import Z80, Cost
from sartor.cost.price import Estimate
from sartor.cost.uncertainty import IntervalPart, Narrows
from sartor.model.workload import ParallelDims
from sartor.operators import Gemm, Operator, Pass, kind_name
from sartor.report.document import (
    PageBlock,
    Place,
    assumed_blocks,
    bullets_block,
    document_text,
    grid_block,
    opening,
    section,
)
from sartor.report.fit_words import first_change, headline, serving_words, tight_text
from sartor.report.grid import Grid, GridColumn, field_grid, grid_of, wide_column, words_column
from sartor.report.plan_words import plan_words, step_parts, turn_lines
from sartor.report.words import (
    SMALL_SHARE,
    count_text,
    flops_text,
    interval_text,
    misaligned_text,
    printable,
    short_name,
    size_text,
    three_digits,
    tile_text,
    unread_text,
    workload_text,
)
from sartor.units import format_bytes, format_change, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate
    from sartor.answers.serving import Choice, DeploymentAnswer, ServingAnswer
    from sartor.report.points import OperatorTimes
    from sartor.rules.rule import Finding
    from sartor.step.serving.served import Server, Shortage

PASS_WORDS = {
    Pass.FORWARD: "fwd",
    Pass.DGRAD: "dgrad",
    Pass.WGRAD: "wgrad",
    Pass.BACKWARD: "bwd",
    Pass.RECOMPUTE: "again",
}


LINES = 9
"""Operators on one screen."""


def estimate_view(
    answer: ModelEstimate, findings: Sequence[Finding] | None = None, *, verbose: bool = False
) -> RenderableType:
    """``sartor estimate``: the answer, operators by time, totals, assumptions; on one screen unless ``verbose``."""
    estimate = answer.microbatch
    change = "" if findings is None or answer.cannot_run else first_change(answer, findings)
    blocks = [
        opening(headline(answer, change), bad=not answer.fits),
        PageBlock(view=lambda: Group(Text(""), *_what_is_listed(answer))),
        grid_block(kinds_grid(estimate, small=_share_of(estimate, LINES)), Place.SHORT),
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


def serving_view(answer: ServingAnswer) -> RenderableType:
    """Whether it fits, how fast it is under the largest load and why; one line per load, and the assumptions."""
    tokens = f"{count_text(int(answer.load.input_len), 'token')} in, {int(answer.load.output_len):,} out"
    served = f"{answer.reading.shape.name or 'model'} served on {_devices(answer)}, {tokens}"
    if not answer.fits:
        wider = ", ".join(f"{name}={value}" for name, value in answer.would_fit.items())
        lacks = " ".join(_lacks(answer, lack) for lack in answer.shortages)
        blocks = [opening([served, lacks + (f" It would with {wider}." if wider else "")], bad=True)]
    else:
        from sartor.answers.serving import LOAD  # an estimate shows no loads

        several = int(answer.load.output_len) > 1
        columns = [column for column in columns_of(LOAD) if several or not column.name.startswith("tpot")]
        if not any(load.waits for load in answer.loads):
            columns = [column for column in columns if column.name != "running"]
        most = f"at most {count_text(answer.most_sequences, 'sequence')} in memory, each halfway through its answer"
        lines = [f"{served}: {_fits(answer)}; {most}.", _cache(answer)]
        if unread := unread_text(answer.reading):
            lines = [f"{served}: whether it fits is unknown; without what is not read, {most}.", unread]
        blocks = [opening([*lines, *_speed(answer), *turn_lines(answer.depends_on)]), section("Loads")]
        blocks += [grid_block(field_grid("Loads", columns, answer.loads))]
    return document_text([*blocks, bullets_block("Assumed", answer.assumptions)])


def _fits(answer: ServingAnswer) -> str:
    """``fits``, or that it does only just, where the room for keys and values could vanish."""
    room, one = float(answer.memory.kv_room_bytes), max(answer.whole_sequences, 1)
    return f"fits{tight_text(room - room / one, answer.server.engine.name)}"


def _cache(answer: ServingAnswer) -> str:
    """``vllm has 8.1 GiB per GPU for keys and values beside 55.1 GiB of weights and 7.7 GiB of its own: ...``"""
    memory, load = answer.memory, answer.load
    length = int(np.max(load.input_len)) + int(np.max(load.output_len))
    room, tokens = format_bytes(float(memory.kv_room_bytes)), int(memory.kv_tokens)
    parts = f"{format_bytes(float(memory.param_bytes))} of weights"
    kept = format_bytes(float(memory.workspace_bytes) + float(memory.context_bytes))
    whole = f"{count_text(answer.whole_sequences, 'sequence')} of {length:,}"
    counted = f"{count_text(tokens, 'token')}, " if tokens else ""
    each = " of each copy" if answer.server.copies > 1 or answer.decode_workers > 1 else ""
    room = f"{answer.server.engine.name} has {room} per GPU for keys and values{each}"
    return f"{room} beside {parts} and {kept} of its own: {counted}{whole}, or one of {answer.longest_tokens:,}."


def _lacks(answer: ServingAnswer, lack: Shortage) -> str:
    pool = f" on the servers for {answer.pool_of(lack)}" if answer.prefill else ""
    engine = lack.server.engine.name
    if lack.free_bytes <= 0:
        weights, short = format_bytes(lack.weight_bytes), format_bytes(-lack.free_bytes)
        return (
            f"Does not fit{pool}: weights of {weights} per GPU and what {engine} keeps for a step are {short} too much."
        )
    return (
        f"Does not fit{pool}: keys and values of one sequence of {count_text(lack.tokens, 'token')} take "
        f"{format_bytes(lack.sequence_bytes)} per GPU; {engine} has {format_bytes(lack.free_bytes)} for them, "
        f"enough for at most {count_text(lack.most_tokens, 'token')}."
    )


def _devices(answer: ServingAnswer) -> str:
    found = _of(answer.server, answer.decode_workers if answer.prefill else 1)
    if answer.prefill:
        found = f"{_of(answer.prefill, answer.prefill_workers)} for prompts, {found} for answers"
    return f"{found}, {answer.server.dtype.value}, {answer.server.engine.name}"


def _of(server: Server, workers: int) -> str:
    widths = [
        f"tp={server.tp}",
        *([f"copies={server.copies}"] * (server.copies > 1)),
        *([f"ep={server.ep}"] * (server.ep > 1)),
    ]
    count = f"{workers} x " if workers > 1 else ""
    return f"{count}{server.num_devices} {server.gpu.name} ({', '.join(widths)})"


def _speed(answer: ServingAnswer) -> list[str]:
    """Latencies and throughput under the largest load, and what makes up its time per token beside the smallest."""
    least, last = answer.loads[0], answer.loads[-1]
    first = interval_text(last.ttft_s, last.ttft_low_s, last.ttft_high_s)
    each = f", then a token in {interval_text(last.tpot_s, last.tpot_low_s, last.tpot_high_s)}"
    several, rate = int(answer.load.output_len) > 1, f"{last.output_tokens_per_s:,.0f} tokens/s in all"
    load = f"At {last.concurrency:,} in flight"
    if last.waits:
        limited = answer.server.engine.max_num_seqs == answer.most_sequences
        why = "" if answer.prefill else " for one to end" if limited else " for room in memory"
        run = f"{last.running:,} run{'s' if last.running == 1 else ''} at once"
        load = f"Of {last.concurrency:,} requests {run} and {last.waiting:,.0f} wait{why}:"
    lines = [f"{load} the first token takes {first}{each if several else ''}: {rate}."]
    between = 1 - last.step_s / last.tpot_s
    words = f"A step of {last.running:,} takes {format_seconds(last.step_s)}"
    if answer.prefill is None and math.isfinite(between) and between > 0:
        words += f"; prompts of other requests between two tokens are {between:.0%} of the time per token"
    if least.running < last.running and several:
        words += f". With {least.concurrency:,} in flight a token takes {format_seconds(least.tpot_s)}"
    if last.usd_per_million_tokens is not None:
        price = f"at {answer.run.get('price'):.2f} per device-hour (stated)"
        lines.append(f"{three_digits(last.usd_per_million_tokens)} USD per 1M tokens of answers {price}.")
    return [*lines, f"{words}."]


# -- deployments -------------------------------------------------------------------------------------------------------

_MOST_POINTS = 10
"""Points of a front that the terminal shows."""


def deploy_view(answer: DeploymentAnswer) -> RenderableType:
    """The cheapest deployment and why it is, the next kinds of layouts, and what speed per request costs."""
    best, asked = answer.best, f"{answer.reading.shape.name or 'model'}, {_load_text(answer)}, {_goal_text(answer)}"
    if best is None:
        return document_text(
            [opening([f"{asked}: no deployment.", *_out_of_reach(answer)], bad=True), _refused(answer)]
        )
    first = interval_text(best.ttft_s, *map(float, best.ttft_interval))
    each = interval_text(best.tpot_s, *map(float, best.tpot_interval))
    lines = [
        f"{asked}: {_deployment_text(best)}, the {'cheapest' if best.usd_per_hour else 'fewest GPUs'} of "
        f"{count_text(answer.num_layouts, 'layout')}.",
        f"First token {first}, then a token in {each}: {best.deployment.likely:.0%} likely to meet both; "
        f"{best.deployment.output_tokens_per_s:,.0f} tokens/s{_money_text(best)}. {_BINDING[best.binding]}.",
        *_simpler_text(answer),
    ]
    if unread := unread_text(answer.reading):
        lines.insert(1, unread)
    several = {
        column.name: len({column.text(choice) for choice in answer.choices}) > 1
        for column in columns_of(CHOICE)
        if column.name in ("gpu", "dtype", "kernels")
    }
    columns = [column for column in columns_of(CHOICE) if several.get(column.name, True)]
    front = answer.front[:: max(len(answer.front) // _MOST_POINTS, 1)]
    return document_text(
        [
            opening(lines),
            section("The cheapest of each layout"),
            grid_block(field_grid("Layouts", columns, answer.choices)),
            section(f"Speed of a request against throughput{_first_text(answer)}"),
            grid_block(field_grid("Front", columns_of(FRONT_POINT), front)),
            bullets_block("Start", best.commands),
            _refused(answer),
            bullets_block("Assumed", answer.assumptions),
        ]
    )


_BINDING = {
    "ttft_s": "More requests on a replica would break the first token's objective",
    "tpot_s": "More requests on a replica would break the objective per token",
    "probability": "With more requests on a replica the objectives would be less likely than asked",
    "memory": "Memory for keys and values limits a replica",
}


def _load_text(answer: DeploymentAnswer) -> str:
    load = answer.load
    lengths = f"{count_text(load.input_len, 'token')} in, {load.output_len:,} out"
    if load.users:
        return f"{count_text(load.users, 'request')} in flight of {lengths}"
    return f"{load.requests_per_s:g} requests/s of {lengths}" if load.requests_per_s else f"{lengths}, any load"


def _goal_text(answer: DeploymentAnswer) -> str:
    goal = answer.objective
    words = [
        f"{name} within {format_seconds(limit)}"
        for name, limit in (("first token", goal.ttft_s), ("token", goal.tpot_s))
        if math.isfinite(limit)
    ]
    likely = "" if goal.probability is None else f" with {goal.probability:.0%}"
    return (" and ".join(words) or "no objective stated") + likely


def _first_text(answer: DeploymentAnswer) -> str:
    limit = answer.objective.ttft_s
    return f", first token within {format_seconds(limit)}" if math.isfinite(limit) else ""


def _deployment_text(choice: Choice) -> str:
    made = choice.deployment
    layout = made.layout
    replicas = f"{made.replicas} replicas of " if made.replicas > 1 else ""
    kind = f"{layout.server.dtype.value}, {layout.server.engine.name}"
    return f"{made.num_devices} {layout.server.gpu.name} as {replicas}{pools_text(layout)} ({kind})"


def _money_text(choice: Choice) -> str:
    if not choice.usd_per_hour:
        return ""
    return (
        f", {choice.usd_per_hour:,.2f} USD per hour, {choice.usd_per_million_tokens:.3g} USD per 1M tokens of answers"
    )


def _simpler_text(answer: DeploymentAnswer) -> list[str]:
    if answer.simpler is None or answer.best is None:
        return []
    costs = [choice.usd_per_million_tokens or choice.deployment.num_devices for choice in (answer.simpler, answer.best)]
    return [f"Simpler: {_deployment_text(answer.simpler)} ({format_change(costs[0] / costs[1] - 1)} in cost)."]


def _out_of_reach(answer: DeploymentAnswer) -> list[str]:
    """What could be met, of layouts that hold a request."""
    if not answer.front:
        return [f"No layout of up to {answer.most_devices} devices holds one request."]
    first, quick = min(answer.front, key=lambda point: point.ttft_s), answer.front[0]
    return [
        f"Of {count_text(answer.num_layouts, 'layout')} of up to {answer.most_devices} devices none does: a token "
        f"takes at least {format_seconds(1 / quick.tokens_per_s_per_request)} ({pools_text(quick.layout)}), the first "
        f"about {format_seconds(first.ttft_s)}; one that does both may take more devices (--most-devices)."
    ]


def _refused(answer: DeploymentAnswer) -> PageBlock:
    words = [f"{name}: {why}" for name, why in answer.refused.items()]
    return bullets_block("Not possible", words)
