"""Solvers for an instance given as a file: placement of layers on devices, and schedule of operators on cores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sartor.api.words import word_of
from sartor.errors import InputError

if TYPE_CHECKING:
    from sartor.answers.measured import PlacementAnswer, ScheduleAnswer


def place(instance: str | Path, *, terms: str | Path | None = None) -> PlacementAnswer:
    """The optimal placement of the layers of ``instance`` (a JSON file) on its devices: stages, copies, widths.

    ``terms`` is a file of further costs: link tiers, gradient reduction, device types, interleaving, ZeRO. Raises
    ``InputError``; where nothing fits, the answer says what would.
    """
    from sartor.answers.measured import PlacementAnswer
    from sartor.placement.place import place as solve
    from sartor.read.problems_json import read_placement, read_terms

    read = read_placement(_path("instance", instance))
    placement = solve(read, None if terms is None else read_terms(_path("terms", terms)))
    return PlacementAnswer.holding(placement)


def schedule(instance: str | Path, *, time_limit: float = 20.0, solver: str = "cp_sat") -> ScheduleAnswer:
    """The shortest schedule found for the operators of ``instance`` (a JSON file) on its cores, with a lower bound.

    ``time_limit`` in seconds; 0 returns a list schedule at once. ``solver`` is ``cp_sat``, ``milp`` or ``greedy``.
    Raises ``InputError``.
    """
    from sartor.answers.measured import ScheduleAnswer
    from sartor.read.problems_json import read_schedule_problem
    from sartor.schedules.problem import Solver
    from sartor.schedules.solve import solve

    problem = read_schedule_problem(_path("instance", instance))
    return ScheduleAnswer.holding(solve(problem, time_limit, word_of(Solver, "solver", solver)))


def _path(field: str, value: object) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(field, value, "must be the path of a JSON file")
    return Path(value)
