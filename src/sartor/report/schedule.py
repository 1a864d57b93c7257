"""A schedule for the terminal, as JSON, and as a trace for Perfetto."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sartor.json_types import picked
from sartor.report.gantt import SHARED, gantt, gantt_text, label
from sartor.report.grid import GridColumn, grid_of, grid_view, words_column
from sartor.report.trace import Span, trace_json
from sartor.schedules.result import Mode, ScheduleResult
from sartor.units import format_share


def schedule_view(result: ScheduleResult, *, verbose: bool = False) -> RenderableType:
    """Makespan, proof, picture, and if ``verbose`` operators by start time."""
    rest = _operators(result) if verbose or not result.operators else Text("Every operator: --verbose", style="dim")
    return Group(_headline(result), _load(result), Text(), gantt_text(gantt(result)), Text(), rest)


def schedule_trace(result: ScheduleResult, *, us_per_unit: float = 1.0) -> bytes:
    """One track per core; one unit of the instance's time is drawn as ``us_per_unit`` microseconds."""
    types = {op.id: op.core_type.value for op in result.problem.operators}
    spans = [
        Span(
            name=label(row.id),
            process=process,
            track=f"{short} {core}",
            start=row.start,
            duration=row.end - row.start,
            category=row.mode.value,
            args={"id": row.id, "type": types[row.id], "mode": row.mode.value, "start": row.start, "end": row.end},
        )
        for process, short, kind in (("tensor cores", "TC", "tc"), ("vector cores", "VC", "vc"))
        for core in range(result.problem.num_tc if kind == "tc" else result.problem.num_vc)
        for row in result.operators
        if core in (row.tensor_cores if kind == "tc" else row.vector_cores)
    ]
    about = {
        "instance": label(result.problem.name),
        **picked(result, "status", "makespan", "lower_bound"),
        "us_per_unit": us_per_unit,
    }
    return trace_json(spans, us_per_unit=us_per_unit, about=about)


def _headline(result: ScheduleResult) -> Text:
    text = Text(f"makespan {result.makespan:,}", style="bold")
    if result.gap:
        proved = f"no schedule is shorter than {result.lower_bound:,}: gap {100 * result.gap:.3g}%"
    else:
        proved = "proved optimal"
    if result.held_by:
        proved += f"; the operators end before, {SHARED.get(result.held_by, result.held_by)} must move all bytes"
    text.append(f"  {proved}", style="not bold")
    text.append(f"  ({result.solver.value}, {result.solve_s:.2f} s, checked)", style="dim")
    if result.interrupted:
        text.append("\ninterrupted: the best schedule found so far", style="yellow")
    return text


def _load(result: ScheduleResult) -> Text:
    used, problem = result.utilization, result.problem
    split = sum(row.mode is Mode.INTRA_OP for row in result.operators)
    return Text(
        f"{problem.num_tc} tensor cores {format_share(used['tc'])} busy, "
        f"{problem.num_vc} vector cores {format_share(used['vc'])} busy; "
        f"{split} of {len(result.operators)} operators split over all cores",
        style="dim",
    )


def _operators(result: ScheduleResult) -> RenderableType:
    if not result.operators:
        return Text("No operator takes time.", style="dim")
    types = {op.id: op.core_type.value for op in result.problem.operators}
    rows = []
    for row in result.operators:
        cores = [f"{kind} {_span(used)}" for kind, used in (("TC", row.tensor_cores), ("VC", row.vector_cores)) if used]
        mode = "all cores, alone" if row.mode is Mode.INTRA_OP else "one core"
        rows.append((label(row.id), types[row.id], mode, f"{row.start:,}", f"{row.end:,}", ", ".join(cores)))
    names = [words_column(name) for name in ("operator", "type", "mode")]
    columns = (*names, GridColumn(head="start"), GridColumn(head="end"), words_column("cores"))
    return grid_view(grid_of("Operators by start", columns, rows))


def _span(cores: tuple[int, ...]) -> str:
    return str(cores[0]) if len(cores) == 1 else f"{cores[0]}-{cores[-1]}"
