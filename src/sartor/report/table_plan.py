"""``sartor plan`` for the terminal: the best plan, its step, memory by stage, other plans, cost."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.report.plan_words import (
    cost_text,
    heading_text,
    headline,
    next_lines,
    plan_words,
    recompute_text,
    step_parts,
)
from sartor.report.table_estimate import notes, plain_table, section_title, share_bar
from sartor.report.words import printable
from sartor.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import PlanAnswer
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.step.stage_table import StageRow

REASONS = 8
"""Reasons to show; the rest is summed."""


def plan_view(answer: PlanAnswer) -> RenderableType:
    """The whole answer: the best plan and why, or why nothing fits and what would fit."""
    found = answer.search
    parts: list[RenderableType] = [Text(heading_text(answer), style="bold")]
    if found.best is None:
        parts += [*infeasible_view(found), section_title("Rejected plans"), rejected_table(found)]
        return Group(*parts, *notes("Assumed", answer.assumptions))
    parts += [Text(headline(answer)), section_title("Where the time goes"), parts_table(found.best)]
    parts += [section_title("Memory by stage"), stages_table(answer.stages)]
    parts += [section_title(f"Best plans by parallel degrees ({len(found.top)} shown)"), top_table(found.top)]
    if len(answer.searches) > 1:
        parts += [section_title("By number of devices"), devices_table(answer)]
    parts += [section_title("Rejected plans"), rejected_table(found)]
    if answer.cost is not None:
        parts += [section_title("Cost"), Text(cost_text(answer))]
    parts += notes("To try next", next_lines(answer))
    return Group(*parts, *notes("Assumed", [printable(line) for line in answer.assumptions]))


def parts_table(best: PricedPlan) -> Table:
    """Parts of the step, longest first, with a bar."""
    table = plain_table("part", "time", "share", "")
    table.columns[-1].justify = "left"
    parts = step_parts(best)
    longest = max(seconds for _, seconds in parts)
    for words, seconds in parts:
        share = format_share(seconds / best.step_s)
        table.add_row(words, format_seconds(seconds), share, share_bar(seconds / longest, least=1))
    return table


def stages_table(stages: Iterable[StageRow]) -> Table:
    """Pipeline ranks, equal neighbours on one line: layers, time of a microbatch, memory."""
    table = plain_table("stage", "layers", "microbatch", "states", "activations", "workspace", "total", "full")
    table.add_column("", no_wrap=True)
    for _, group in groupby(stages, key=lambda s: (s.layers, s.chunks, s.holds)):
        same = list(group)
        full = max(same, key=lambda s: s.device_bytes)
        first, last = same[0].stage, same[-1].stage
        table.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            f"{full.layers}" + (f" in {len(full.chunks)}" if len(full.chunks) > 1 else ""),
            format_seconds(full.load_s),
            format_bytes(full.state_bytes),
            format_bytes(full.stash_bytes),
            format_bytes(full.workspace_bytes),
            format_bytes(full.device_bytes),
            f"{100 * full.device_bytes / full.limit_bytes:.0f}%",
            ", ".join(full.holds),
        )
    return table


def top_table(top: Iterable[PricedPlan]) -> Table:
    """The best plan for each set of parallel degrees: settings, predicted step, MFU, memory."""
    columns = ("pp", "dp", "cp", "ep", "chunks", "batch", "zero", "sp", "recompute", "step", "mfu", "memory")
    table = plain_table("tp", *columns)
    for each in top:
        plan, dims = each.plan, each.plan.dims
        table.add_row(
            *(str(int(n)) for n in (dims.tp, dims.pp, dims.dp, dims.cp, dims.ep, plan.virtual_stages)),
            f"{int(plan.microbatch_size)}x{int(plan.num_microbatches)}",
            str(int(plan.zero_stage)),
            "yes" if dims.sequence_parallel and int(dims.tp) > 1 else "no",
            recompute_text(plan),
            format_seconds(each.step_s),
            format_share(float(each.step.mfu)),
            format_bytes(each.peak_bytes),
        )
    return table


def devices_table(answer: PlanAnswer) -> Table:
    """The best plan for each number of devices."""
    table = plain_table("devices", "step", "80% low", "80% high", "mfu", "device-s per step", "plan")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for search in answer.searches:
        best = search.best
        if best is None:
            table.add_row(str(search.num_devices), "none fits", "", "", "", "", "")
            continue
        seconds = (best.step_s, best.low_s, best.high_s)
        table.add_row(
            str(search.num_devices),
            *(format_seconds(s) for s in seconds),
            format_share(float(best.step.mfu)),
            f"{best.step_s * search.num_devices:,.0f}",
            plan_words(best.plan, short=True),
        )
    return table


def rejected_table(search: PlanSearch) -> Table:
    """Why plans were rejected, the commonest reason first."""
    table = plain_table("reason", "plans")
    reasons = list(search.rejected.items())
    for reason, count in reasons[:REASONS]:
        table.add_row(Text(printable(reason)), f"{count:,}")
    if len(reasons) > REASONS:
        rest = sum(count for _, count in reasons[REASONS:])
        table.add_row(f"{len(reasons) - REASONS} other reasons", f"{rest:,}")
    return table


def infeasible_view(search: PlanSearch) -> list[RenderableType]:
    """Why nothing fits, and what would fit."""
    assert search.tightest is not None
    lines = [f"{each.change}" for each in search.tightest.relaxations]
    lean = search.tightest.leanest
    words = [Text(printable(search.tightest.message[:1].upper() + search.tightest.message[1:]) + ".", style="bold red")]
    if lean is not None:
        words.append(Text(f"The plan with least memory: {plan_words(lean.plan)}."))
    return [*words, *notes("What would fit", lines)]
