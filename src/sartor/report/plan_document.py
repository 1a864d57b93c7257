"""``plan`` for people: the best plan, its step, memory by stage, other plans, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from sartor.answers.field import through
from sartor.answers.plan import MEMORY, PRICED, STAGE, sourced
from sartor.cost.cost import Source
from sartor.report import document as d
from sartor.report.grid import (
    Grid,
    GridColumn,
    field_grid,
    grid_of,
    page_column,
    shares_grid,
    wide_column,
    words_column,
)
from sartor.report.plan_points import plan_points
from sartor.report.plan_words import (
    PART_WORDS,
    SMALL,
    cost_text,
    devices_text,
    divided_lines,
    if_turned,
    plan_lines,
    plan_words,
    room_words,
    step_parts,
    subject_text,
    turn_lines,
    why_not_text,
)
from sartor.report.words import printable, three_digits
from sartor.step.footprint import usable_bytes
from sartor.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.plan import PlanAnswer
    from sartor.plans.next import WhyNot
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.step.stage_table import StageRow


def parts_grid(best: PricedPlan) -> Grid:
    """Parts of the step, longest first."""
    return shares_grid("Parts of the step time", "time", step_parts(best), best.step_s, format_seconds)


def _stages_grid(stages: Iterable[StageRow]) -> Grid:
    """Pipeline ranks, equal neighbours on one line: layers, time of a microbatch, memory."""
    alike = [tuple(group) for _, group in groupby(stages, key=lambda stage: (stage.layers, stage.chunks, stage.holds))]
    columns = (replace(STAGE[0], shown=_span), *through(_fullest, STAGE[1:]))
    return field_grid("Pipeline ranks; equal neighbours share a line", columns, alike)


def _span(stages: Sequence[StageRow]) -> str:
    first, last = stages[0].stage, stages[-1].stage
    return f"{first}" if first == last else f"{first}-{last}"


def _fullest(stages: Sequence[StageRow]) -> StageRow:
    return max(stages, key=lambda stage: stage.device_bytes)


def _top_grid(top: Iterable[PricedPlan]) -> Grid:
    """The best plan for each set of parallel degrees: settings, predicted step, MFU, memory."""
    caption = "The best plan for each set of parallel degrees, fastest first"
    return field_grid(caption, PRICED, sourced(top, Source.ANALYTIC), marked=0)


def _devices_grid(answer: PlanAnswer) -> Grid:
    """The best plan for each number of devices: its step, scaling efficiency, and the cost of the token budget."""
    rows: list[tuple[str, ...]] = []
    first = next((each for each in answer.searches if each.best is not None), None)
    for search, cost in zip_longest(answer.searches, answer.costs):
        best = search.best
        if best is None or cost is None or first is None or first.best is None:
            rows.append((f"{search.num_devices:,}", "none fits", *[""] * 8))
            continue
        efficiency = first.best.step_s * first.num_devices / (best.step_s * search.num_devices)
        rows.append(
            (
                f"{search.num_devices:,}",
                *(format_seconds(s) for s in (best.step_s, best.low_s, best.high_s)),
                format_share(float(best.step.mfu)),
                format_share(efficiency),
                f"{cost.run_hours / 24:,.1f}",
                "" if cost.usd is None else three_digits(cost.usd),
                three_digits(cost.energy_j / 3.6e9),
                plan_words(best.plan, short=True),
            )
        )
    columns = (
        *("devices", "step", wide_column("80% low"), wide_column("80% high"), "mfu"),
        GridColumn(head="scaling", explains="speed per device, of the first row's"),
        GridColumn(head="days", explains="of the token budget, with failures and checkpoints"),
        GridColumn(head="USD", explains="of the token budget"),
        wide_column("MWh", "of the devices alone"),
        words_column("plan"),
    )
    return grid_of("By number of devices", columns, rows)


def _why_not_grid(asked: WhyNot) -> Grid:
    """Step and memory of the plan given in ``why_not`` next to the best plan's, term by term."""
    best, plan = asked.best, asked.plan
    assert plan is not None
    rows: list[tuple[str, ...]] = []
    seconds = [("step", best.step_s, plan.step_s)]
    seconds += [
        (words, float(best.step.parts[name]), float(plan.step.parts[name])) for name, words in PART_WORDS.items()
    ]
    for words, one, other in seconds:
        if max(one, other) >= SMALL * best.step_s:
            rows.append((words, format_seconds(one), format_seconds(other), _signed(other - one, format_seconds)))
    for name, words in MEMORY_WORDS.items():
        one, other = float(getattr(best.footprint, name)), float(getattr(plan.footprint, name))
        if max(one, other) > 0:
            rows.append((words, format_bytes(one), format_bytes(other), _signed(other - one, format_bytes)))
    return grid_of("The best plan and the one asked about", ("part", "best", "asked", "difference"), rows)


MEMORY_WORDS = {"device_bytes": "memory", **{part.name: part.words for part in MEMORY}}


def _signed(value: float, shown: Callable[[float], str]) -> str:
    return "" if value == 0 else ("+" if value > 0 else "-") + shown(abs(value))


def _rejected_grid(search: PlanSearch) -> Grid:
    """Why plans were rejected, the most common reason first."""
    reasons = [*search.rejected.items(), ("fits", search.fitting)]
    rows = ((reason, f"{count:,}", format_share(count / search.space_size)) for reason, count in reasons)
    caption = f"All {search.space_size:,} plans of the grid, by the first condition they violate"
    return grid_of(caption, ("reason", "plans", page_column("share")), rows)


ROWS = 5
"""Rows of a table on one screen."""


def plan_view(answer: PlanAnswer, *, verbose: bool = False) -> RenderableType:
    """The answer in the terminal: the best plan and why, or why no plan fits and what would fit; on one screen unless
    ``verbose``."""
    return d.document_text(_blocks(answer), verbose=verbose)


def plan_page(answer: PlanAnswer, *, date: str = "") -> str:
    """The offline page (UTF-8). ``date`` is printed as given. Raises ``MissingExtraError`` without the extra
    ``report``."""
    title, _, question = _heading_text(answer).partition(": ")
    document = d.Document(
        title=title,
        question=question,
        command="plan",
        blocks=_blocks(answer),
        records=plan_points(answer),
        glossary=bool(answer.best),
    )
    return d.document_page(document, date)


def _blocks(answer: PlanAnswer) -> list[d.PageBlock]:
    blocks = _infeasible(answer) if answer.best is None else _feasible(answer, answer.best)
    return [*blocks, *d.assumed_blocks(answer.assumptions)]


def _feasible(answer: PlanAnswer, best: PricedPlan) -> list[d.PageBlock]:
    top = _top_grid(answer.search.top)
    compares = answer.why_not is not None or len(answer.searches) > 1
    lines = list(plan_lines(answer))
    time = [
        d.section("Where the time goes", "time", "Time"),
        d.figure_block(
            "step", "One bar per plan, the best for each set of parallel degrees; the line is the 80% interval."
        ),
        *d.cut_blocks(parts_grid(best), ROWS),
    ]
    plans = [
        d.section("Best plans by parallel degrees", "plans", "Plans"),
        d.figure_block(
            "plans", "Circles on a line: Pareto front. Discs: the best plan for each set of parallel degrees."
        ),
        *d.cut_blocks(top, ROWS - 1),
    ]
    return [
        d.opening(lines),
        d.PageBlock(words=" ".join(lines), verdict=True, place=d.Place.PAGE),
        d.PageBlock(cards=_cards(answer, best), place=d.Place.PAGE),
        *(d.in_full(time) if compares else time),
        d.section("Memory by stage", "memory", "Memory", d.Place.REST),
        d.figure_block(
            "memory_fall", "Parts add up from top to bottom; the dashed line is the memory a process can use."
        ),
        d.figure_block("memory", "One bar per stage; equal stages share one."),
        d.grid_block(_stages_grid(answer.stages), d.Place.REST),
        d.section("Pipeline timeline", "pipeline", "Pipeline", d.Place.PAGE),
        d.figure_block("pipeline", "From an event simulation, independent of the formulas above."),
        d.figure_block("pipeline_memory", "The dashed line is the memory a process can use."),
        *(d.in_full(plans) if compares else plans),
        *_why_not(answer),
        *([d.section("By number of devices"), d.grid_block(_devices_grid(answer))] if len(answer.searches) > 1 else []),
        *_rejected(answer),
        d.section("Cost", "cost", "Cost", d.Place.BOTH if answer.cost else d.Place.PAGE),
        *_cost(answer),
        d.bullets_block("To try next", _next_lines(answer), d.Place.REST),
    ]


def _next_lines(answer: PlanAnswer) -> list[str]:
    """What to try next, with predicted speedups."""
    best = answer.search.best
    assert best is not None
    lines = []
    room = answer.roomier
    if room is not None:
        full, share = best.peak_bytes / usable_bytes(answer.cluster), room.step_s / best.step_s - 1
        lines.append(
            f"the best plan fills {format_share(full)} of memory; to leave more free: {plan_words(room.plan)}, "
            f"{format_bytes(room.peak_bytes)}, step {format_seconds(room.step_s)} (+{format_share(share)})"
        )
    lines += [f"{each.change}: {each.speedup:.2f}x tokens per second" for each in answer.next_steps]
    return lines


def _cost(answer: PlanAnswer) -> list[d.PageBlock]:
    if not answer.cost:
        return [d.PageBlock(words="No token budget given.", place=d.Place.PAGE)]
    brief = cost_text(answer, brief=True)
    return [d.PageBlock(words=brief, place=d.Place.SHORT), d.PageBlock(words=cost_text(answer), place=d.Place.REST)]


def _why_not(answer: PlanAnswer) -> list[d.PageBlock]:
    """The plan asked about, next to the best."""
    asked = answer.why_not
    if asked is None:
        return []
    grids = [] if asked.plan is None else [d.grid_block(_why_not_grid(asked))]
    return [d.section(f"Why not {asked.asked}"), d.PageBlock(words=why_not_text(asked)), *grids]


def _rejected(answer: PlanAnswer) -> list[d.PageBlock]:
    grid = _rejected_grid(answer.search)
    return d.in_full([d.section("Rejected plans", "why-not", "Rejected"), d.grid_block(grid)])


def _infeasible(answer: PlanAnswer) -> list[d.PageBlock]:
    """Why no plan fits, and what would fit."""
    tightest = answer.search.tightest
    assert tightest is not None
    message, lean = f"{tightest.message[:1].upper()}{tightest.message[1:]}.", tightest.leanest
    if lean and any(turn.of_memory for turn in answer.depends_on):
        turned = if_turned(answer.depends_on, fits=False, memory=format_bytes(lean.peak_bytes))
        message = f"Open: the leanest plan does not fit{turned}. {message}"
    divided = divided_lines(answer, answer.run, answer.reading, answer.search.num_devices)
    return [
        d.opening([*divided, message, f"{_heading_text(answer)}.", *turn_lines(answer.depends_on)], bad=True),
        d.PageBlock(words=message, verdict=True, place=d.Place.PAGE),
        *([d.PageBlock(words=f"The plan with least memory: {plan_words(lean.plan)}.")] if lean else []),
        d.bullets_block("What would fit", [relaxation.change for relaxation in tightest.relaxations]),
        *_rejected(answer),
    ]


def _heading_text(answer: PlanAnswer) -> str:
    """``Llama 3.1 8B on 64 h100_sxm (dgx-h100): global batch 512 x 8,192 tokens, bf16``."""
    job, cluster = answer.job, answer.cluster
    return (
        f"{subject_text(answer.reading.shape.name, job)} on "
        f"{devices_text(cluster, answer.search.num_devices)} ({printable(cluster.name)}): "
        f"global batch {job.global_batch_size:,} x {job.seq_len:,} tokens, {job.recipe.value}"
    )


def _cards(answer: PlanAnswer, best: PricedPlan) -> list[tuple[str, str, str]]:
    """The key figures."""
    search, cost = answer.search, answer.cost
    interval = f"80%: {format_seconds(best.low_s)} to {format_seconds(best.high_s)}"
    rate = f"{format_count(float(best.step.tokens_per_s_per_device))} tokens/s per device"
    peak, _, room = room_words(best.peak_bytes, answer.cluster, search.headroom).partition(" of ")
    cards = [
        ("Step time", format_seconds(best.step_s), interval),
        ("Share of dense peak (MFU)", format_share(float(best.step.mfu)), rate),
        ("Fullest device", peak, f"of {room}"),
        ("Plans priced", f"{search.evaluated:,}", f"of {search.space_size:,} in the grid"),
    ]
    if cost is not None:
        money = f"{cost.usd:,.0f} USD" if cost.usd is not None else f"{cost.device_hours:,.0f} device-hours"
        cards.append((f"{format_count(cost.tokens)} tokens", f"{cost.hours / 24:,.1f} days", money))
    return cards
