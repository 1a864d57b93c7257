"""Gantt charts of schedules, one line per core, for the terminal and as a figure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from sartor.errors import InputError
from sartor.files import write_atomic
from sartor.json_types import JsonDict, picked
from sartor.report.frame import FILE, Chart, Frame, Sheet, to_png, to_svg, vl_convert
from sartor.report.words import printable
from sartor.schedules.problem import OperatorId
from sartor.schedules.result import Mode, ScheduleResult

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
class Bar:
    """One operator on one core."""

    name: str
    core: str
    start: int
    end: int
    mode: Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """Bars by start time, the drawn cores from top to bottom, and the number left out."""

    title: str
    cores: tuple[str, ...]
    bars: tuple[Bar, ...]
    makespan: int
    left_out: int


def gantt(result: ScheduleResult) -> Gantt:
    """The bars of a schedule on the cores of either kind, the first ``MAX_LINES`` of each."""
    problem = result.problem
    num_tc, num_vc = min(problem.num_tc, MAX_LINES), min(problem.num_vc, MAX_LINES)
    bars = tuple(
        Bar(name=label(row.id), core=f"{kind} {core}", start=row.start, end=row.end, mode=row.mode)
        for row in result.operators
        for kind, used, shown in (("TC", row.tensor_cores, num_tc), ("VC", row.vector_cores, num_vc))
        for core in used
        if core < shown and row.end > row.start
    )
    proved = "proved optimal" if not result.gap else f"within {100 * result.gap:.3g}% of the best possible"
    if result.held_by:
        proved += f": {SHARED.get(result.held_by, result.held_by)} must move all bytes"
    return Gantt(
        title=f"{len(result.operators)} operators in {result.makespan:,}, {proved}",
        cores=(*(f"TC {core}" for core in range(num_tc)), *(f"VC {core}" for core in range(num_vc))),
        bars=bars,
        makespan=result.makespan,
        left_out=problem.num_tc - num_tc + problem.num_vc - num_vc,
    )


def gantt_text(points: Gantt) -> Text:
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


def _cells(bar: Bar, room: int) -> str:
    """A bar in ``room`` characters: its start, its name if that fits, its mode."""
    fill = FILLS[bar.mode]
    mark = "|" if room > 1 else ""
    inside = room - len(mark)
    return mark + (f"{bar.name:{fill}^{inside}}" if len(bar.name) <= inside else fill * inside)


def draw_gantt(points: Gantt, frame: Frame = FILE) -> Chart:
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


def label(id_: OperatorId) -> str:
    """An operator's id, safe to print and at most 30 characters."""
    text = printable(str(id_))
    return text if len(text) <= 30 else text[:27] + "..."
