"""Time of a block on a chip: the makespan of its best schedule, or of its operators one after another."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sartor.cost.chip.operator_latency import operator_latencies
from sartor.hardware.accelerator import ARRAY_FIELDS, SUSTAINED_SHARES, Accelerator
from sartor.operators import OperatorGraph
from sartor.schedules.from_graph import UNIT_S, schedule_problem
from sartor.schedules.solve import ScheduleCache, solve

SCHEDULE_LIMIT_S = 0.05
"""Default limit for proving the schedule of one layer, in seconds of solver work."""


class Makespan(NamedTuple):
    """Seconds of a block: proved lower bound, and reached."""

    lower_bound_s: float
    time_s: float


def makespan_s(
    graph: OperatorGraph,
    accelerator: Accelerator,
    limit_s: float = SCHEDULE_LIMIT_S,
    cache: ScheduleCache | None = None,
) -> Makespan:
    """Makespan of a block on the chip's cores [s]. Raises ``KeyboardInterrupt`` if Ctrl-C ended the solver's search."""
    answer = solve(schedule_problem(graph, accelerator), limit_s, cache=cache, by_work=True)
    if answer.interrupted:
        raise KeyboardInterrupt
    return Makespan(answer.lower_bound * UNIT_S, answer.makespan * UNIT_S)


def known_makespan_s(graph: OperatorGraph, accelerator: Accelerator) -> float:
    """`makespan_s` with the default limit; each block of a chip is solved once per process."""
    return _known(_Block(graph, accelerator)).time_s


class _Block:
    """A graph on a chip; two are equal if the operators and everything their times depend on are equal."""

    __slots__ = ("accelerator", "graph", "key")

    def __init__(self, graph: OperatorGraph, accelerator: Accelerator) -> None:
        self.graph, self.accelerator = graph, accelerator
        self.key = (graph.operators, graph.edges, timing_fields(accelerator))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Block) and self.key == other.key


@lru_cache(maxsize=4096)
def _known(block: _Block) -> Makespan:
    return makespan_s(block.graph, block.accelerator)


def known_in_turn_s(graph: OperatorGraph, accelerator: Accelerator) -> float:
    """`in_turn_s` of one chip, each block worked out once in a process."""
    return _known_in_turn(_Block(graph, accelerator))


@lru_cache(maxsize=4096)
def _known_in_turn(block: _Block) -> float:
    return float(in_turn_s(block.graph, block.accelerator))


def timing_fields(a: Accelerator) -> tuple[object, ...]:
    """Fields that the time of an operator depends on: all but the memory's capacity."""
    numbers = (getattr(a, name) for name in ARRAY_FIELDS if name != "stack_bytes")
    shares = (getattr(a, name) for name in SUSTAINED_SHARES)
    return (*numbers, a.memory, a.dtype, a.packed_dtype, a.dataflow, a.accumulator_bytes, *shares)


def in_turn_s(graph: OperatorGraph, accelerator: Accelerator) -> npt.NDArray[np.float64]:
    """Seconds [candidates] of operators one after another, each on one core or on all, whichever is quicker."""
    if not graph.operators:
        return np.zeros(accelerator.shape)
    single, split = operator_latencies(graph, accelerator)
    counts = np.array([float(op.count) for op in graph.operators]).reshape(-1, *([1] * len(accelerator.shape)))
    return np.asarray((np.minimum(single, split) * counts).sum(axis=0))
