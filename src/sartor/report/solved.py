"""Solved instances: a placement, and a schedule as text, JSON, trace and Gantt chart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from sartor.answers.field import integer, through
from sartor.answers.measured import PLACED_STAGE
from sartor.errors import InputError
from sartor.files import write_atomic
from sartor.json_types import JsonDict, picked
from sartor.placement.problem import Placement, Plan
from sartor.report.frame import FILE, Chart, Frame, Sheet, to_png, to_svg, vl_convert
from sartor.report.grid import Grid, GridColumn, field_grid, grid_of, grid_view, words_column
from sartor.report.trace import Span, trace_json
from sartor.report.words import printable
from sartor.schedules.problem import Mode, OperatorId, ScheduleResult
from sartor.units import format_seconds, format_share

COLUMNS = 72
"""Characters of the time axis; with core names a line fits in 80 columns."""
MAX_LINES = 16
"""Cores drawn of each kind; the others are only counted."""
FILLS = {Mode.SINGLE: "=", Mode.INTRA_OP: "#"}
SHARED = {"hbm": "HBM", "buffer": "the global buffer", "links": "the links"}
WORDS = {Mode.SINGLE: "on one core", Mode.INTRA_OP: "split over all cores, alone"}
FORMATS = (".svg", ".png", ".html")
STYLES = ("cyan", "green", "magenta", "blue")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One operator on one core."""

    name: str
    core: str
    start: int
    end: int
    mode: Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gantt:
    """Bars by start time, the drawn cores from top to bottom, and the number left out."""

    title: str
    cores: tuple[str, ...]
    bars: tuple[_Bar, ...]
    makespan: int
    left_out: int


def gantt(result: ScheduleResult) -> _Gantt:
    """The bars of a schedule on the cores of either kind, the first ``MAX_LINES`` of each."""
    problem = result.problem
    num_tc, num_vc = min(problem.num_tc, MAX_LINES), min(problem.num_vc, MAX_LINES)
    bars = tuple(
        _Bar(name=_label(row.id), core=f"{kind} {core}", start=row.start, end=row.end, mode=row.mode)
        for row in result.operators
        for kind, used, shown in (("TC", row.tensor_cores, num_tc), ("VC", row.vector_cores, num_vc))
        for core in used
        if core < shown and row.end > row.start
    )
    proved = "proved optimal" if not result.gap else f"within {100 * result.gap:.3g}% of the best possible"
    if result.held_by:
        proved += f": {SHARED.get(result.held_by, result.held_by)} must move all bytes"
    return _Gantt(
        title=f"{len(result.operators)} operators in {result.makespan:,}, {proved}",
        cores=(*(f"TC {core}" for core in range(num_tc)), *(f"VC {core}" for core in range(num_vc))),
        bars=bars,
        makespan=result.makespan,
        left_out=problem.num_tc - num_tc + problem.num_vc - num_vc,
    )


def gantt_text(points: _Gantt) -> Text:
    """The chart in characters: ``=`` one core, ``#`` split over all, ``.`` idle; names where they fit."""
    text, width = Text(), max((len(core) for core in points.cores), default=0)
    for core in points.cores if points.makespan else ():
        text.append(f"{core:<{width}} ", style="bold")
        cells: list[tuple[str, str]] = [(".", "dim")] * COLUMNS
        for number, bar in enumerate(bar for bar in points.bars if bar.core == core):
            begin, end = (time * COLUMNS // points.makespan for time in (bar.start, bar.end))
            room = end - begin
            cells[begin:end] = [(char, STYLES[number % len(STYLES)]) for char in _cells(bar, room)]
        for char, style in cells:
            text.append(char, style=style)
        text.append("\n")
    if points.left_out:
        text.append(f"{points.left_out} more cores not drawn\n", style="dim")
    text.append(f"{'':<{width}} 0{points.makespan:>{COLUMNS - 1},}\n", style="dim")
    text.append(f"{'':<{width}} = one core   # all cores, alone   . idle", style="dim")
    return text


def _cells(bar: _Bar, room: int) -> str:
    """A bar in ``room`` characters: its start, its name if that fits, its mode."""
    fill = FILLS[bar.mode]
    mark = "|" if room > 1 else ""
    inside = room - len(mark)
    return mark + (f"{bar.name:{fill}^{inside}}" if len(bar.name) <= inside else fill * inside)


def draw_gantt(points: _Gantt, frame: Frame = FILE) -> Chart:
    """Bars by core, coloured by mode (altair, extra ``report``)."""
    sheet = Sheet.of(frame)
    rows: list[JsonDict] = [
        {**picked(bar, "start", "end"), "operator": bar.name, "line": bar.core, "middle": (bar.start + bar.end) / 2,
         "mode": WORDS[bar.mode]}
        for bar in points.bars
    ]  # fmt: skip
    x = sheet.x("start:Q", "time [unit of the instance]", domain=[0, max(points.makespan, 1)], nice=False)
    tips = sheet.hover("operator:N", "mode:N", "start:Q", "end:Q")
    modes = sheet.colour("mode", list(WORDS.values()), [sheet.theme.sky, sheet.theme.orange])
    look = {"stroke": sheet.theme.surface, "strokeWidth": 1, "height": 15}
    bars = sheet.spans(rows, points.cores, x, modes, tips, **look)
    wide = sheet.rows([row for row in rows if (row["end"] - row["start"]) * 24 > points.makespan])
    names = wide.mark_text(fontSize=9, color="#1b1f24", limit=60)
    names = names.encode(x="middle:Q", y=sheet.names("line", points.cores), text="operator:N")
    return sheet.finish(bars + names, points.title, height=max(22 * len(points.cores), 60))


def write_gantt(result: ScheduleResult, path: Path) -> Path:
    """Write the figure in the format its name ends in: ``.svg``, ``.png``, or ``.html`` (one offline page)."""
    check_figure_name(path)
    chart = draw_gantt(gantt(result))
    if path.suffix.lower() == ".png":
        return write_atomic(path, to_png(chart))
    if path.suffix.lower() == ".svg":
        return write_atomic(path, to_svg(chart).encode())
    return write_atomic(path, str(vl_convert().vegalite_to_html(json.dumps(chart.to_dict()), bundle=True)).encode())


def check_figure_name(path: Path) -> None:
    """Raise `InputError` if the name does not end in a figure format."""
    if path.suffix.lower() not in FORMATS:
        raise InputError("figure", str(path), f"must end in {', '.join(FORMATS)}", f"{path.stem}.svg")


def _label(id_: OperatorId) -> str:
    """An operator's id, safe to print and at most 30 characters."""
    text = printable(str(id_))
    return text if len(text) <= 30 else text[:27] + "..."


def schedule_view(result: ScheduleResult, *, verbose: bool = False) -> RenderableType:
    """Makespan, proof, picture, and if ``verbose`` operators by start time."""
    rest = _operators(result) if verbose or not result.operators else Text("Every operator: --verbose", style="dim")
    return Group(_headline(result), _load(result), Text(), gantt_text(gantt(result)), Text(), rest)


def schedule_trace(result: ScheduleResult, *, us_per_unit: float = 1.0) -> bytes:
    """One track per core; one unit of the instance's time is drawn as ``us_per_unit`` microseconds."""
    types = {op.id: op.core_type.value for op in result.problem.operators}
    spans = [
        Span(
            name=_label(row.id),
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
        "instance": _label(result.problem.name),
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
    text.append(f"  ({result.method}, {result.solve_s:.2f} s, checked)", style="dim")
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
        rows.append((_label(row.id), types[row.id], mode, f"{row.start:,}", f"{row.end:,}", ", ".join(cores)))
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
