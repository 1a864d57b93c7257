"""``sartor place`` and ``sartor schedule``: which layers form which stage, with how many copies and what
tensor-parallel width; when each operator of a layer runs, and on which cores."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.interrupts import asked, patient


def place(
    instance: Annotated[
        Path, typer.Argument(metavar="INSTANCE.json", help="A placement instance.", show_default=False)
    ],
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms",
            metavar="FILE.json",
            help="Add cost terms: link tiers, gradient reduction of every stage, device types, interleaving, ZeRO.",
        ),
    ] = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Find the optimal placement of an instance (layers with times and bytes) on identical devices.

    Exits with 3 if nothing fits, naming the least memory and the fewest devices that would do.

    Example: `sartor place examples/placement/encoder_decoder.json`
    """
    from sartor import api
    from sartor.report.solved import placement_view

    result = api.place(instance, terms=terms)
    c.answer("place", result.to_dict, as_json=json, out=out)
    if not json:
        c.show(placement_view(result))
    if result.plan is None:
        if json and result.tightest:
            c.say(f"sartor: {result.tightest.message}")
        raise c.Exit(3)


def schedule(
    instance: Annotated[
        Path, typer.Argument(metavar="INSTANCE.json", help="A scheduling instance.", show_default=False)
    ],
    time_limit: o.TimeLimit = 20.0,
    solver: Annotated[
        str,
        typer.Option("--solver", metavar="cp_sat|milp|greedy", help="milp: the published integer program, on HiGHS."),
    ] = "cp_sat",
    trace: o.TraceFile = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", metavar="FILE", callback=o.writable, help="Write the Gantt chart as .svg, .png or .html."
        ),
    ] = None,
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Find the shortest schedule of one layer's operators on tensor and vector cores, with a lower bound.

    Ctrl-C ends the search and answers with the best schedule found so far (exit code 130).

    Example: `sartor schedule examples/schedule/decoder_backward.json --time-limit 5`
    """
    from sartor import api
    from sartor.report.solved import schedule_trace, schedule_view
    from sartor.schedules.problem import Solver

    if solver not in tuple(Solver):
        raise InputError("--solver", solver, f"must be one of {', '.join(Solver)}", "cp_sat")
    if figure:
        from sartor.report.solved import check_figure_name, write_gantt

        check_figure_name(figure)
    with patient():
        result = api.schedule(instance, time_limit=time_limit, solver=solver)
    c.answer("schedule", result.to_dict, as_json=json, out=out)
    if trace:
        from sartor.files import write_atomic

        write_atomic(trace, schedule_trace(result))
    if figure:
        write_gantt(result, figure)
    if not json:
        c.show(schedule_view(result, verbose=verbose))
    if result.interrupted or asked():
        raise c.Exit(128 + signal.SIGINT)
