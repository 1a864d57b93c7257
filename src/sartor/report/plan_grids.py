"""The tables of a plan, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from sartor.answers.field import through
from sartor.answers.plan import MEMORY, PRICED, STAGE, sourced
from sartor.cost.cost import Source
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
from sartor.report.plan_words import PART_WORDS, SMALL, plan_words, step_parts
from sartor.report.words import three_digits
from sartor.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers.plan import PlanAnswer
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.plans.why_not import WhyNot
    from sartor.step.stage_table import StageRow


def parts_grid(best: PricedPlan) -> Grid:
    """Parts of the step, longest first."""
    return shares_grid("Parts of the step time", "time", step_parts(best), best.step_s, format_seconds)


def stages_grid(stages: Iterable[StageRow]) -> Grid:
    """Pipeline ranks, equal neighbours on one line: layers, time of a microbatch, memory."""
    alike = [tuple(group) for _, group in groupby(stages, key=lambda stage: (stage.layers, stage.chunks, stage.holds))]
    columns = (replace(STAGE[0], shown=_span), *through(_fullest, STAGE[1:]))
    return field_grid("Pipeline ranks; equal neighbours share a line", columns, alike)


def _span(stages: Sequence[StageRow]) -> str:
    first, last = stages[0].stage, stages[-1].stage
    return f"{first}" if first == last else f"{first}-{last}"


def _fullest(stages: Sequence[StageRow]) -> StageRow:
    return max(stages, key=lambda stage: stage.device_bytes)


def top_grid(top: Iterable[PricedPlan]) -> Grid:
    """The best plan for each set of parallel degrees: settings, predicted step, MFU, memory."""
    caption = "The best plan for each set of parallel degrees, fastest first"
    return field_grid(caption, PRICED, sourced(top, Source.ANALYTIC), marked=0)


def devices_grid(answer: PlanAnswer) -> Grid:
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


def why_not_grid(asked: WhyNot) -> Grid:
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


def rejected_grid(search: PlanSearch) -> Grid:
    """Why plans were rejected, the most common reason first."""
    reasons = [*search.rejected.items(), ("fits", search.fitting)]
    rows = ((reason, f"{count:,}", format_share(count / search.space_size)) for reason, count in reasons)
    caption = f"All {search.space_size:,} plans of the grid, by the first condition they violate"
    return grid_of(caption, ("reason", "plans", page_column("share")), rows)
