"""One offline HTML page of an answer of ``plan``: verdict, where the step and the memory go, others, why not, cost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor.report.charts import FILE, Frame, draw, to_png
from sartor.report.files import write_atomic
from sartor.report.html import Column, Markup, element, join, table
from sartor.report.page import cards_list, footer, whole_page
from sartor.report.page_sections import bullets, figure
from sartor.report.plan_points import degrees_text, plan_points
from sartor.report.plan_words import (
    cost_text,
    heading_text,
    headline,
    next_lines,
    plan_words,
    recompute_text,
    step_parts,
)
from sartor.step.footprint import usable_bytes
from sartor.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import PlanAnswer
    from sartor.step.stage_table import StageRow

LINKS = (("time", "Time"), ("memory", "Memory"), ("pipeline", "Pipeline"), ("plans", "Plans"), ("why-not", "Why not"),
         ("cost", "Cost"), ("reading", "How to read this"))  # fmt: skip

READING = (
    ("80% interval", "Eight of ten measured steps are expected inside. Plans share most of their errors, so their "
     "order is surer than their times."),
    ("mfu", "FLOPs of products per second and device over the dense peak; recomputation is not counted."),
    ("pipeline bubble", "What stages wait while the pipeline fills and drains: (p - 1) / (v m) of the work's time for "
     "p stages, m microbatches and v chunks per device."),
    ("not hidden", "Communication that nothing runs beside; what compute hides is not shown."),
    ("theory, allocated, reserved, device", "What the plan must keep; what the framework hands out at its peak; what "
     "its allocator holds; what nvidia-smi shows."),
    ("front", "Plans no other beats in step time and memory at once."),
    ("struck out", "Points of the grid counted under the first condition they break; none is left out silently."),
)  # fmt: skip


def plan_page(answer: PlanAnswer, *, date: str = "") -> str:
    """The whole page as a string (UTF-8). ``date`` is printed as given; the page knows no clock.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    records = plan_points(answer)
    title = heading_text(answer)
    header = element(
        "header",
        element("h1", title.partition(": ")[0]),
        element("p", title.partition(": ")[2], class_="question"),
        element("nav", *(element("a", word, href=f"#{at}") for at, word in LINKS), aria_label="Sections"),
    )
    main = element("main", *(_sections(answer, records) if answer.best else _infeasible(answer)))
    return whole_page(f"{title.partition(': ')[0]}: sartor plan", (header, main, footer(date)), records)


def plan_pngs(answer: PlanAnswer, folder: str | Path, frame: Frame = FILE) -> tuple[Path, ...]:
    """Every figure of an answer as ``folder/NAME.png``, drawn without a browser; each file whole or not at all."""
    drawn = {name: to_png(draw(points, frame)) for name, points in plan_points(answer).items()}
    return tuple(write_atomic(Path(folder) / f"{name}.png", data) for name, data in drawn.items())


def _sections(answer: PlanAnswer, records: Mapping[str, Any]) -> list[Markup]:
    fall = "Each part stands on those before it; the dashed line is what a process can fill of the device."
    return [
        element("div", element("p", headline(answer)), class_="verdict"),
        _numbers(answer),
        element("h2", "Where the step goes", id="time"),
        figure(records, "step", "One bar a plan, the best of each set of degrees; the rule is the 80% interval."),
        _parts(answer),
        element("h2", "Where the memory goes", id="memory"),
        figure(records, "memory_fall", fall),
        figure(records, "memory", "One bar a stage; stages alike share one."),
        _stages(answer.stages),
        element("h2", "The pipeline in time", id="pipeline"),
        figure(records, "pipeline", "From an event simulation that shares nothing with the closed forms above."),
        figure(records, "pipeline_memory", "The dashed line is what a process can fill of the device."),
        element("h2", "Other plans", id="plans"),
        figure(records, "plans", "Circles joined by a line: the front. Discs: the best plan of each set of degrees."),
        _top(answer),
        *([_devices(answer)] if len(answer.searches) > 1 else []),
        element("h2", "Why not the others", id="why-not"),
        _rejected(answer),
        element("h2", "What it costs", id="cost"),
        element("p", cost_text(answer) if answer.cost else "No token budget was given."),
        bullets("To try next", next_lines(answer)),
        bullets("Assumed", list(answer.assumptions)),
        _how_to_read(),
    ]


def _infeasible(answer: PlanAnswer) -> list[Markup]:
    tightest = answer.search.tightest
    said = tightest.message if tightest else "no plan fits"
    lean = tightest.leanest if tightest else None
    return [
        element("div", element("p", said[:1].upper() + said[1:] + "."), class_="verdict"),
        *([element("p", f"The leanest plan: {plan_words(lean.plan)}.")] if lean else []),
        bullets("What would fit", [each.change for each in tightest.relaxations] if tightest else []),
        element("h2", "Why not", id="why-not"),
        _rejected(answer),
        bullets("Assumed", list(answer.assumptions)),
    ]


def _numbers(answer: PlanAnswer) -> Markup:
    best, found = answer.best, answer.search
    assert best is not None
    limit = usable_bytes(answer.cluster)
    step = best.step
    cost = answer.cost
    cards = [
        ("Step", format_seconds(best.step_s), f"80%: {format_seconds(best.low_s)} to {format_seconds(best.high_s)}"),
        (
            "Share of dense peak",
            format_share(float(step.mfu)),
            f"{format_count(float(step.tokens_per_s_per_device))} tokens/s per device",
        ),
        ("Fullest device", format_bytes(best.peak_bytes), f"{format_share(best.peak_bytes / limit)} of what fits"),
        ("Plans priced", f"{found.evaluated:,}", f"of {found.space_size:,} points of the grid"),
    ]
    if cost is not None:
        money = f"{cost.usd:,.0f} USD" if cost.usd is not None else f"{cost.device_hours:,.0f} device-hours"
        cards.append((f"{format_count(cost.tokens)} tokens", f"{cost.hours / 24:,.1f} days", money))
    return cards_list(cards)


def _parts(answer: PlanAnswer) -> Markup:
    assert answer.best is not None
    rows = [(words, format_seconds(s), format_share(s / answer.best.step_s)) for words, s in step_parts(answer.best)]
    columns = [Column(head="part", number=False), Column(head="time"), Column(head="share")]
    return table(columns, rows, caption="Parts of the best plan's step; they add up to it")


def _stages(stages: tuple[StageRow, ...]) -> Markup:
    columns = [
        Column(head="stage", number=False),
        Column(head="layers"),
        Column(head="microbatch", explains="busy time of one microbatch, forward and backward"),
        Column(head="states", explains="weights, gradients, optimizer"),
        Column(head="stash", explains="activations kept for backward"),
        Column(head="at work"),
        Column(head="device"),
        Column(head="of"),
        Column(head="holds", number=False),
    ]
    rows = []
    for _, group in groupby(stages, key=lambda s: (s.layers, s.chunks, s.holds)):
        same = list(group)
        full = max(same, key=lambda s: s.device_bytes)
        first, last = same[0].stage, same[-1].stage
        rows.append(
            (
                str(first) if first == last else f"{first} to {last}",
                str(full.layers),
                format_seconds(full.load_s),
                format_bytes(full.state_bytes),
                format_bytes(full.stash_bytes),
                format_bytes(full.workspace_bytes),
                format_bytes(full.device_bytes),
                format_share(full.device_bytes / full.limit_bytes),
                ", ".join(full.holds),
            )
        )
    return table(columns, rows, caption="Pipeline ranks; neighbours alike share a line")


def _top(answer: PlanAnswer) -> Markup:
    heads = ("microbatch", "ZeRO", "sequence parallel", "recompute", "step", "80%", "mfu", "memory")
    rows = []
    for each in answer.search.top:
        plan, dims = each.plan, each.plan.dims
        rows.append(
            (
                degrees_text(plan, microbatch=False),
                f"{int(plan.microbatch_size)} x {int(plan.num_microbatches)}",
                str(int(plan.zero_stage)),
                "yes" if dims.sequence_parallel and int(dims.tp) > 1 else "no",
                recompute_text(plan),
                format_seconds(each.step_s),
                f"{format_seconds(each.low_s)} to {format_seconds(each.high_s)}",
                format_share(float(each.step.mfu)),
                format_bytes(each.peak_bytes),
            )
        )
    tip = "degrees above 1; 4x2: pipeline stages of two chunks each"
    columns = [Column(head="plan", number=False, explains=tip), *(Column(head=head) for head in heads)]
    return table(columns, rows, caption="The best plan of each set of degrees, fastest first", highlight=0)


def _devices(answer: PlanAnswer) -> Markup:
    rows = []
    for search in answer.searches:
        best = search.best
        rows.append(
            (f"{search.num_devices:,}", "none fits", "", "", "")
            if best is None
            else (
                f"{search.num_devices:,}",
                format_seconds(best.step_s),
                format_share(float(best.step.mfu)),
                f"{best.step_s * search.num_devices:,.0f}",
                plan_words(best.plan, short=True),
            )
        )
    columns = [Column(head=h, number=h != "devices") for h in ("devices", "step", "mfu", "device-seconds per step")]
    return table([*columns, Column(head="plan", number=False)], rows, caption="By number of devices")


def _rejected(answer: PlanAnswer) -> Markup:
    found = answer.search
    rows = [(reason, f"{count:,}", format_share(count / found.space_size)) for reason, count in found.rejected.items()]
    rows.append(("fits", f"{found.fitting:,}", format_share(found.fitting / found.space_size)))
    columns = [Column(head="reason", number=False), Column(head="points"), Column(head="share")]
    return table(
        columns, rows, caption=f"All {found.space_size:,} points of the grid, by the first condition they break"
    )


def _how_to_read() -> Markup:
    items = [item for term, words in READING for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])
