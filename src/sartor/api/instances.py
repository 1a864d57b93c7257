"""Solvers for an instance given as a file: placement of layers on devices, and schedule of operators on cores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sartor.api.words import word_of
from sartor.errors import InputError
from sartor.interrupts import report

if TYPE_CHECKING:
    from sartor.answers.measured import PlacementAnswer, ScheduleAnswer


def place(instance: str | Path, *, terms: str | Path | None = None) -> PlacementAnswer:
    """The optimal placement of the layers of ``instance`` on its devices: stages, copies, widths.

    Parameters
    ----------
    instance
        A JSON file (docs/json.md).
    terms
        A file of further costs: link tiers, gradient reduction, device types, interleaving, ZeRO.

    Returns
    -------
    PlacementAnswer
        Stages and the time of the slowest, in the unit of the instance; where nothing fits, what would.

    Raises
    ------
    InputError
        For a file that is not an instance, in one sentence that names the field.

    Examples
    --------
    >>> place("examples/placement/encoder_decoder.json").status.value
    'optimal'
    """
    from sartor.answers.measured import PlacementAnswer
    from sartor.placement.place import place as solve
    from sartor.read.problems_json import read_placement, read_terms

    read = read_placement(_path("instance", instance))
    placement = solve(read, None if terms is None else read_terms(_path("terms", terms)))
    return PlacementAnswer.holding(placement)


def schedule(instance: str | Path, *, time_limit: float = 20.0, solver: str = "cp_sat") -> ScheduleAnswer:
    """The shortest schedule found for the operators of ``instance`` on its cores, with a lower bound.

    Parameters
    ----------
    instance
        A JSON file (docs/json.md).
    time_limit
        Most seconds of search; 0 returns a list schedule at once.
    solver
        ``cp_sat``, ``milp`` or ``greedy``.

    Returns
    -------
    ScheduleAnswer
        Start and core of every operator, the makespan and its lower bound, in the unit of the instance.

    Raises
    ------
    InputError
        For a file that is not an instance, or a solver that is not installed.

    Examples
    --------
    >>> schedule("examples/schedule/decoder_backward.json", solver="greedy").status.value
    'feasible'
    """
    from sartor.answers.measured import ScheduleAnswer
    from sartor.read.problems_json import read_schedule_problem
    from sartor.schedules.problem import Solver
    from sartor.schedules.solve import solve

    problem = read_schedule_problem(_path("instance", instance))
    report("scheduling", left_s=time_limit)
    return ScheduleAnswer.holding(solve(problem, time_limit, word_of(Solver, "solver", solver)))


def _path(field: str, value: object) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(field, value, "must be the path of a JSON file")
    return Path(value)
