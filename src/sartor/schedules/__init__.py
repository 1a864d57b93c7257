"""Schedule one layer on one accelerator: which operator runs when and on which cores, with a proved bound."""

from sartor.schedules.problem import (
    CoreType,
    Mode,
    OperatorId,
    OperatorRun,
    ScheduledOperator,
    ScheduleProblem,
    ScheduleResult,
    Solver,
    Status,
)
from sartor.schedules.solve import solve

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
