"""What a schedule is: when and where each operator runs, and what is proved about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sartor.schedule.problem import OperatorId, ScheduleProblem


class Solver(StrEnum):
    """Who solves what list scheduling and the bounds leave open."""

    CP_SAT = "cp_sat"
    MILP = "milp"
    GREEDY = "greedy"


class Status(StrEnum):
    """Proved optimal, or the best found. There is always a schedule, so there is no third."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class Mode(StrEnum):
    """On one core (fused: one of each kind), or split over all cores and alone."""

    SINGLE = "single"
    INTRA_OP = "intra_op"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRun:
    """When and where one operator runs, from ``start`` until just before ``end``."""

    id: OperatorId
    start: int
    end: int
    mode: Mode
    tensor_cores: tuple[int, ...]
    vector_cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """A checked schedule, by start, with the proved lower bound on what any schedule could reach."""

    problem: ScheduleProblem = field(repr=False)
    status: Status
    makespan: int
    lower_bound: int
    operators: tuple[OperatorRun, ...]
    checked: bool
    """Code that shares nothing with the solvers has accepted it."""
    solver: Solver
    solve_s: float
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Share of the makespan that is not proved necessary; 0 when optimal."""
        return (self.makespan - self.lower_bound) / self.makespan if self.makespan else 0.0

    @property
    def busy(self) -> dict[str, int]:
        """Core time in use, by kind: sum over operators of their time times their cores."""
        return {
            "tc": sum((row.end - row.start) * len(row.tensor_cores) for row in self.operators),
            "vc": sum((row.end - row.start) * len(row.vector_cores) for row in self.operators),
        }

    @property
    def utilization(self) -> dict[str, float]:
        """``busy`` as a share of makespan times cores; 0 where there are no cores of the kind."""
        room = {"tc": self.makespan * self.problem.num_tc, "vc": self.makespan * self.problem.num_vc}
        return {kind: busy / room[kind] if room[kind] else 0.0 for kind, busy in self.busy.items()}
