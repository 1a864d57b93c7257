"""Schedule one layer on one accelerator: which operator runs when and on which cores, with a proved bound."""

from sartor.schedule.problem import CoreType, OperatorId, ScheduledOperator, ScheduleProblem
from sartor.schedule.result import Mode, OperatorRun, ScheduleResult, Solver, Status
from sartor.schedule.solve import solve

__all__ = [
    "CoreType",
    "Mode",
    "OperatorId",
    "OperatorRun",
    "ScheduleProblem",
    "ScheduleResult",
    "ScheduledOperator",
    "Solver",
    "Status",
    "solve",
]
