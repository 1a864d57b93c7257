"""Schedules as pictures: they fit the terminal, keep to their cores, and open in Perfetto."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sartor.answers.field import to_json
from sartor.answers.measured import SCHEDULE
from sartor.errors import InputError
from sartor.report.design_points import core_bars
from sartor.report.solved import MAX_LINES, draw_gantt, gantt, gantt_text, schedule_trace, schedule_view, write_gantt
from sartor.report.trace import Span, trace_json
from sartor.schedules import CoreType, ScheduledOperator, ScheduleProblem, ScheduleResult, solve


def result(num_tc: int = 3, num_vc: int = 2, size: int = 12, name: str = "op{}") -> ScheduleResult:
    rng = random.Random(size)
    operators = tuple(
        ScheduledOperator(
            id=name.format(k),
            core_type=rng.choice((CoreType.TC, CoreType.VC, CoreType.FUSED)),
            latency=rng.randint(1, 90),
            intra_latency=rng.randint(1, 60),
        )
        for k in range(size)
    )
    edges = tuple((operators[k].id, operators[k + 3].id) for k in range(size - 3))
    return solve(ScheduleProblem(num_tc=num_tc, num_vc=num_vc, operators=operators, edges=edges), 0)


def shown(renderable: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=100, highlight=False).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize(
    "found",
    [
        result(),
        result(4096, 4096, 5),
        result(1, 1, 1),
        result(8, 2, 150),
        result(name="a very long operator name that no bar can ever hold {}"),
        result(size=0),
    ],
)
def test_the_picture_fits_100_columns(found: ScheduleResult) -> None:
    text = shown(schedule_view(found))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("TC ") + text.count("VC ") >= (2 if found.makespan else 0)


def test_bars_are_drawn_to_scale_and_idle_cores_are_shown() -> None:
    operators = (
        ScheduledOperator(id="x", core_type=CoreType.TC, latency=36, intra_latency=36),
        ScheduledOperator(id="y", core_type=CoreType.VC, latency=72, intra_latency=72),
    )
    found = solve(ScheduleProblem(num_tc=1, num_vc=1, operators=operators))
    lines = shown(gantt_text(gantt(found))).splitlines()
    assert lines[0] == "TC 0 |" + "x".center(35, "=") + "." * 36
    assert lines[1] == "VC 0 |" + "y".center(71, "=")
    assert lines[2].split() == ["0", "72"]


def test_many_cores_are_counted_not_drawn() -> None:
    points = gantt(result(100, 50))
    assert len(points.cores) == 2 * MAX_LINES
    assert points.left_out == 150 - 2 * MAX_LINES
    assert "more cores not drawn" in gantt_text(points).plain


def test_names_cannot_move_the_cursor() -> None:
    text = shown(schedule_view(result(name="\x1b[31m\n{}")))
    assert "\x1b" not in text


def test_the_trace_has_every_operator_on_every_core_it_holds() -> None:
    found = result()
    document = json.loads(schedule_trace(found, us_per_unit=0.5))
    bars = [event for event in document["traceEvents"] if event["ph"] == "X"]
    held = sum(len(row.tensor_cores) + len(row.vector_cores) for row in found.operators)
    assert len(bars) == held
    assert max(event["ts"] + event["dur"] for event in bars) == found.makespan * 0.5
    names = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {"tensor cores", "vector cores"}
    assert document["otherData"]["makespan"] == found.makespan


def test_bars_of_one_track_do_not_overlap() -> None:
    document = json.loads(schedule_trace(result(8, 2, 60)))
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for bars in tracks.values():
        bars.sort()
        assert all(one[1] <= two[0] for one, two in zip(bars, bars[1:], strict=False))  # noqa: RUF007


def test_a_trace_of_nothing_is_a_trace() -> None:
    assert json.loads(trace_json([]))["traceEvents"] == []
    span = Span(name="a", process="p", track="t", start=0, duration=1)
    assert trace_json([span]) == trace_json([span])


def test_the_json_has_the_contracts_keys_and_no_surprises() -> None:
    body = to_json(result(), SCHEDULE)
    assert list(body)[:6] == ["status", "makespan", "lower_bound", "gap", "operators", "checked"]
    assert "solve_s" in body
    assert list(body["operators"][0]) == ["id", "start", "end", "mode", "cores"]
    assert json.loads(json.dumps(body, allow_nan=False)) == body


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_the_figure_is_written_in_the_format_of_its_name(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="extra report is not installed")
    path = write_gantt(result(), tmp_path / f"x{suffix}")
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>"}
    assert path.read_bytes().lstrip().startswith(starts[suffix])


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in \.svg, \.png, \.html"):
        write_gantt(result(), tmp_path / "x.bmp")


def test_the_figure_has_a_bar_per_core_held() -> None:
    pytest.importorskip("altair", reason="extra report is not installed")
    points = gantt(result())
    document = draw_gantt(points).to_dict()
    assert len(document["layer"][0]["data"]["values"]) == len(points.bars)


def test_a_schedule_that_waits_for_shared_bytes_says_which() -> None:
    problem = result().problem
    free = solve(problem, 0)
    held = solve(replace(problem, shared=(("hbm", free.makespan + 7), ("links", 3))), 0)
    assert gantt(held).title.endswith("proved optimal: HBM must move all bytes")
    assert "HBM must move all bytes" in " ".join(shown(schedule_view(held)).split())
    points = core_bars(held, "Backward")
    assert points.title.endswith("as long as HBM takes for the bytes")
    assert (points.lines[-1], points.mode[-1]) == ("HBM", "shared")
    assert "HBM" not in core_bars(free, "Backward").lines
