"""A schedule: when and where each operator runs, and its proof."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sartor.schedules.problem import OperatorId, ScheduleProblem


class Solver(StrEnum):
    """The solver for blocks that list scheduling and the bounds leave open."""

    CP_SAT = "cp_sat"
    MILP = "milp"
    GREEDY = "greedy"


class Status(StrEnum):
    """Proved optimal, or the best found. A schedule always exists."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class Mode(StrEnum):
    """On one core (fused: one of each kind), or split over all cores and alone."""

    SINGLE = "single"
    INTRA_OP = "intra_op"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRun:
    """Cores and times of one operator, from ``start`` until just before ``end``."""

    id: OperatorId
    start: int
    end: int
    mode: Mode
    tensor_cores: tuple[int, ...]
    vector_cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """A checked schedule, sorted by start, with the proved lower bound."""

    problem: ScheduleProblem = field(repr=False)
    status: Status
    makespan: int
    lower_bound: int
    operators: tuple[OperatorRun, ...]
    checked: bool
    """An independent checker has accepted it."""
    solver: Solver
    solve_s: float
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Share of the makespan that is not proved necessary; 0 when optimal."""
        return (self.makespan - self.lower_bound) / self.makespan if self.makespan else 0.0

    @property
    def held_by(self) -> str:
        """The shared resource that takes longer for all traffic than the schedule of operators; usually none."""
        end = max((row.end for row in self.operators), default=0)
        time, name = max(((time, name) for name, time in self.problem.shared), default=(0, ""))
        return name if time > end else ""

    @property
    def busy(self) -> dict[str, int]:
        """Busy core time by kind: sum over operators of time times cores."""
        return {
            "tc": sum((row.end - row.start) * len(row.tensor_cores) for row in self.operators),
            "vc": sum((row.end - row.start) * len(row.vector_cores) for row in self.operators),
        }

    @property
    def utilization(self) -> dict[str, float]:
        """``busy`` as a share of makespan times cores; 0 where there are no cores of the kind."""
        room = {"tc": self.makespan * self.problem.num_tc, "vc": self.makespan * self.problem.num_vc}
        return {kind: busy / room[kind] if room[kind] else 0.0 for kind, busy in self.busy.items()}
