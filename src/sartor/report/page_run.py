"""The offline HTML page of ``diagnose``: the answer, the waterfall from the ideal step, parts, operators, timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sartor.answers import LogDiagnosis
from sartor.answers.diagnosis import RUN_PART, RunPart
from sartor.answers.field import columns_of
from sartor.json_types import JsonDict, JsonMap
from sartor.report.grid import Grid, field_grid, grid_of
from sartor.report.html import Markup, element, grid_table
from sartor.report.log_view import EXPLAINING, log_answer, open_grid
from sartor.report.page import bullets, figure, footer, whole_page
from sartor.report.page_notes import how_to_read
from sartor.report.plan_words import plan_words
from sartor.report.run_points import MOST_OPERATORS, fall_points, part_words, trace_points, worst_first
from sartor.report.trace_view import trace_answer
from sartor.report.words import printable
from sartor.units import format_seconds

if TYPE_CHECKING:
    from sartor.answers import TraceDiagnosis

READING = (
    ("points of MFU", "What a part takes of the 100 points that the step would reach at the dense peak. The parts add "
     "up to the measured step."),
    ("predicted", "By the calibrated model of the device, for the sizes that the run states."),
    ("exposed", "Communication that does not overlap with compute."),
)  # fmt: skip


def diagnose_page(answer: LogDiagnosis | TraceDiagnosis, *, date: str = "") -> str:
    """The whole page as a string (UTF-8). ``date`` is printed as given.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    of_log = isinstance(answer, LogDiagnosis)
    measured_s = answer.measured.step_s if isinstance(answer, LogDiagnosis) else answer.step_s
    records: JsonDict = {"fall": fall_points(measured_s, answer.run_parts)}
    title, lines = log_answer(answer) if isinstance(answer, LogDiagnosis) else trace_answer(answer)
    more, assumed = list[Markup](), ""
    if answer.open_plan.explaining:
        more += [element("h2", EXPLAINING), grid_table(open_grid(answer.open_plan))]
    if not isinstance(answer, LogDiagnosis):
        records = trace_points(answer)
        more += _of_trace(answer, records)
    elif answer.open_plan.fields:
        assumed = f", if the plan were {plan_words(answer.predicted.plan)}"
    header = element("header", element("h1", title), element("p", "training log" if of_log else "profiler trace"))
    main = element(
        "main",
        element("div", *(element("p", line) for line in lines), class_="verdict"),
        element("h2", f"Where the time goes{assumed}"),
        figure(records, "fall", "Each part starts where those above it end."),
        grid_table(parts_grid(answer.run_parts, to_do=not of_log)),
        *more,
        bullets("Warnings", [printable(line) for line in answer.warnings]),
        bullets("Assumed", [printable(line) for line in answer.assumptions]),
        how_to_read(READING),
    )
    return whole_page(f"{title}: sartor diagnose", (header, main, footer(date)), records)


def parts_grid(parts: Sequence[RunPart], *, to_do: bool) -> Grid:
    """Every part with its evidence and (``to_do``) what to change."""
    columns = [column for column in columns_of(RUN_PART) if to_do or column.name != "fix"]
    kinds = [replace(column, form=part_words) if column.name == "kind" else column for column in columns]
    return field_grid("Parts of the mean steady step", kinds, parts)


def _of_trace(answer: TraceDiagnosis, records: JsonMap) -> list[Markup]:
    worst = worst_first(answer.priced)[:MOST_OPERATORS]
    rows = [
        (
            printable(each.name),
            f"{each.count:,}",
            format_seconds(each.seconds / each.count),
            format_seconds(each.predicted_s / each.count),
            f"{each.seconds / each.predicted_s:.2f}",
            format_seconds((each.seconds - each.predicted_s) / answer.num_steps),
        )
        for each in worst
    ]
    columns = ("operator", "calls", "measured", "predicted", "ratio", "loses per step")
    operators = [
        element("h2", "Operators"),
        figure(records, "operators", "Sizes that the trace states (record_shapes=True)."),
        grid_table(grid_of("Operators against their prediction", columns, rows)),
    ]
    return [
        *(operators if rows else []),
        element("h2", "Timeline"),
        figure(records, "timeline", "Kernels of one kind with no gap between them are one box."),
    ]
