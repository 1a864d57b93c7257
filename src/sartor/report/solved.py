"""Solved instances for the terminal: a schedule (also as a trace for Perfetto) and a placement."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sartor.answers.field import integer, through
from sartor.answers.solved import PLACED_STAGE
from sartor.json_types import picked
from sartor.placement.plan import Placement, Plan
from sartor.report.gantt import SHARED, gantt, gantt_text, label
from sartor.report.grid import Grid, GridColumn, field_grid, grid_of, grid_view, words_column
from sartor.report.trace import Span, trace_json
from sartor.schedules.result import Mode, ScheduleResult
from sartor.units import format_seconds, format_share


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


# ---------------------------------------------------------------------------------------------------- a placement

PICTURE = 78
"""Width of the pipeline picture in characters."""
SHADES = "█▓"
"""Fill characters of alternate stages."""


def placement_view(found: Placement) -> RenderableType:
    """The plan in a sentence, its stages in a table, and the path of a microbatch as a picture."""
    if found.plan is None:
        reason = found.tightest.message if found.tightest else "nothing fits"
        return Group(Text("infeasible", style="bold red"), Text(reason))
    stages = grid_view(_stages_grid(found.plan))
    return Group(_plan_headline(found.plan), stages, _picture(found.plan), _against_expert(found))


def _plan_headline(plan: Plan) -> Text:
    text = Text(f"{format_seconds(plan.time_per_batch_s)} per batch", style="bold")
    text.append(
        f"  {plan.num_stages} stages x {plan.data_parallel} copies, tensor parallel {plan.tensor_parallel}: "
        f"{plan.num_devices} devices",
        style="not bold",
    )
    further = {
        "context parallel": plan.context_parallel - 1 and plan.context_parallel,
        "expert parallel": plan.expert_parallel - 1 and plan.expert_parallel,
        "chunks per device": plan.virtual_stages - 1 and plan.virtual_stages,
        "ZeRO": plan.zero_stage,
    }
    degrees = ", ".join(f"{name} {value}" for name, value in further.items() if value)
    text.append(f", {degrees}" if degrees else "", style="not bold")
    return text


def _stages_grid(plan: Plan) -> Grid:
    """The stages from 1 on; bars are shares of the slowest."""
    slowest = max(stage.load_s for stage in plan.stages) or 1.0
    number = integer("stage", "stage", path=lambda pair: pair[0])
    columns = (number, *through(lambda pair: pair[1], PLACED_STAGE))
    bars = tuple(stage.load_s / slowest for stage in plan.stages)
    return field_grid("Stages", columns, enumerate(plan.stages, 1), bars=bars)


def _picture(plan: Plan) -> Text:
    """Stage times side by side, to scale."""
    total = sum(stage.load_s for stage in plan.stages)
    text, until, drawn = Text("\n"), 0.0, 0
    for number, stage in enumerate(plan.stages):
        until += stage.load_s
        columns = round(PICTURE * until / (total or 1.0)) - drawn
        drawn += columns
        text.append(SHADES[number % len(SHADES)] * columns)
    text.append(f"\none microbatch through all stages: {format_seconds(total)}", style="dim")
    return text


def _against_expert(found: Placement) -> Text:
    assert found.plan is not None
    expert = found.fixed_strategy_time_per_batch_s
    if expert is None:
        return Text("expert strategy: none given, or it does not fit", style="dim")
    ratio = expert / found.plan.time_per_batch_s if found.plan.time_per_batch_s else 1.0
    return Text(f"expert strategy: {format_seconds(expert)} per batch; the plan is {ratio:.3f}x as fast", style="dim")
