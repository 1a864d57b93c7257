"""The tables of a plan, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from sartor.report.grid import Grid, GridColumn, grid_of, page_column, words_column
from sartor.report.plan_words import plan_words, recompute_text, step_parts
from sartor.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import PlanAnswer
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.step.stage_table import StageRow


def parts_grid(best: PricedPlan) -> Grid:
    """Parts of the step, longest first."""
    parts = step_parts(best)
    longest = max(seconds for _, seconds in parts)
    rows = ((words, format_seconds(s), format_share(s / best.step_s)) for words, s in parts)
    bars = tuple(seconds / longest for _, seconds in parts)
    return grid_of("Parts of the step time", ("part", "time", "share"), rows, bars=bars)


def stages_grid(stages: Iterable[StageRow]) -> Grid:
    """Pipeline ranks, equal neighbours on one line: layers, time of a microbatch, memory."""
    columns = (
        "stage",
        "layers",
        GridColumn(head="microbatch", explains="busy time of one microbatch, forward and backward"),
        GridColumn(head="states", explains="weights, gradients, optimizer"),
        GridColumn(head="activations", explains="kept for the backward pass"),
        "workspace",
        "total",
        GridColumn(head="full", explains="share of usable memory"),
        words_column(""),
    )
    rows = []
    for _, group in groupby(stages, key=lambda s: (s.layers, s.chunks, s.holds)):
        same = list(group)
        full = max(same, key=lambda s: s.device_bytes)
        first, last = same[0].stage, same[-1].stage
        sizes = (full.state_bytes, full.stash_bytes, full.workspace_bytes, full.device_bytes)
        rows.append(
            (
                f"{first}" if first == last else f"{first}-{last}",
                f"{full.layers}" + (f" in {len(full.chunks)}" if len(full.chunks) > 1 else ""),
                format_seconds(full.load_s),
                *(format_bytes(size) for size in sizes),
                f"{100 * full.device_bytes / full.limit_bytes:.0f}%",
                ", ".join(full.holds),
            )
        )
    return grid_of("Pipeline ranks; equal neighbours share a line", columns, rows)


def top_grid(top: Iterable[PricedPlan]) -> Grid:
    """The best plan for each set of parallel degrees: settings, predicted step, MFU, memory."""
    degrees = (GridColumn(head="tp"), "pp", "dp", "cp", "ep")
    columns = (*degrees, "chunks", "batch", "zero", "sp", "recompute", "step", page_column("80%"), "mfu", "memory")
    rows = []
    for each in top:
        plan, dims = each.plan, each.plan.dims
        rows.append(
            (
                *(str(int(n)) for n in (dims.tp, dims.pp, dims.dp, dims.cp, dims.ep, plan.virtual_stages)),
                f"{int(plan.microbatch_size)}x{int(plan.num_microbatches)}",
                str(int(plan.zero_stage)),
                "yes" if dims.sequence_parallel and int(dims.tp) > 1 else "no",
                recompute_text(plan),
                format_seconds(each.step_s),
                f"{format_seconds(each.low_s)} to {format_seconds(each.high_s)}",
                format_share(float(each.step.mfu)),
                format_bytes(each.peak_bytes),
            )
        )
    return grid_of("The best plan for each set of parallel degrees, fastest first", columns, rows, marked=0)


def devices_grid(answer: PlanAnswer) -> Grid:
    """The best plan for each number of devices."""
    rows: list[tuple[str, ...]] = []
    for search in answer.searches:
        best = search.best
        if best is None:
            rows.append((f"{search.num_devices:,}", "none fits", *[""] * 5))
            continue
        rows.append(
            (
                f"{search.num_devices:,}",
                *(format_seconds(s) for s in (best.step_s, best.low_s, best.high_s)),
                format_share(float(best.step.mfu)),
                f"{best.step_s * search.num_devices:,.0f}",
                plan_words(best.plan, short=True),
            )
        )
    columns = ("devices", "step", "80% low", "80% high", "mfu", "device-s per step", words_column("plan"))
    return grid_of("By number of devices", columns, rows)


def rejected_grid(search: PlanSearch, most: int | None = None) -> Grid:
    """Why plans were rejected, the commonest reason first; reasons beyond ``most`` are summed."""
    reasons = list(search.rejected.items())
    if most is not None and len(reasons) > most:
        rest = sum(count for _, count in reasons[most:])
        reasons = [*reasons[:most], (f"{len(reasons) - most} other reasons", rest)]
    else:
        reasons.append(("fits", search.fitting))
    rows = ((reason, f"{count:,}", format_share(count / search.space_size)) for reason, count in reasons)
    caption = f"All {search.space_size:,} plans of the grid, by the first condition they violate"
    return grid_of(caption, ("reason", "plans", page_column("share")), rows)
