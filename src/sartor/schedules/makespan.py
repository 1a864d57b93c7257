"""Time of a block on a chip: the schedule problem of an operator graph (types of cores, latencies, edges), and the
makespan of its best schedule, or of its operators one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sartor.cost.chip.operator_latency import Fused, OperatorFloor, operator_floor, operator_latencies
from sartor.errors import InputError
from sartor.hardware.accelerator import ARRAY_FIELDS, SUSTAINED_SHARES, Accelerator
from sartor.operators import Attention, Gemm, GroupedGemm, MemoryBound, MemoryBoundKind, Operator, OperatorGraph
from sartor.schedules.problem import CoreType, ScheduledOperator, ScheduleProblem
from sartor.schedules.solve import ScheduleCache, solve
from sartor.units import MICRO, Floats

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

    def __eq__(self, block: object) -> bool:
        return isinstance(block, _Block) and self.key == block.key


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


FUSED_KINDS = (
    MemoryBoundKind.ACTIVATION,
    MemoryBoundKind.RESIDUAL,
    MemoryBoundKind.ROTARY,
    MemoryBoundKind.CAST,
)
"""Elementwise kinds that a GEMM can fuse; norms and softmax need whole rows first."""
UNIT_S = 0.01 * MICRO
"""One unit of time in the problems: 10 ns, about ten clock cycles."""
MOST_UNITS = 2**52
"""Longest operator [units] that floating point represents exactly: 521 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGraph:
    """Operators of a graph, some of them fused, with edges between positions."""

    operators: tuple[Operator | Fused, ...]
    edges: tuple[tuple[int, int], ...]


def schedule_problem(
    graph: OperatorGraph, accelerator: Accelerator, *, fuse: bool = True, unit_s: float = UNIT_S, name: str = ""
) -> ScheduleProblem:
    """The problem of scheduling ``graph`` on one accelerator, times in units of ``unit_s``, rounded up.

    GEMMs need a tensor core, streaming operators a vector core, fused ones and attention one of each. A collective runs
    on the links, so it is a vector-core operator with two equal latencies, as in the published instances: it holds one
    vector core that real hardware would leave free. Memory, global buffer and links bound the schedule as a whole: it
    is never shorter than they take for the traffic of all operators. A graph without edges is a chain.
    """
    if accelerator.shape:
        raise InputError("accelerator", accelerator.shape, "must be one accelerator; schedule_problems takes many")
    return next(schedule_problems(graph, accelerator, fuse=fuse, unit_s=unit_s, name=name))


def schedule_problems(
    graph: OperatorGraph, accelerator: Accelerator, *, fuse: bool = True, unit_s: float = UNIT_S, name: str = ""
) -> Iterator[ScheduleProblem]:
    """One problem per candidate of ``accelerator``, in the order of its flattened arrays; all priced in one call."""
    fused = fuse_graph(graph) if fuse else FusedGraph(operators=graph.operators, edges=_edges(graph))
    count = max(int(np.prod(accelerator.shape, dtype=np.int64)), 1)
    single, split = whole_latencies(fused, accelerator, unit_s)
    shared = shared_times(fused, accelerator, unit_s)
    tensor = np.broadcast_to(accelerator.num_tensor_cores, accelerator.shape).reshape(-1)
    vector = np.broadcast_to(accelerator.num_vector_cores, accelerator.shape).reshape(-1)
    types = [core_type(op) for op in fused.operators]
    names = [op.name for op in fused.operators]
    for i in range(count):
        yield ScheduleProblem(
            num_tc=int(tensor[i]),
            num_vc=int(vector[i]),
            operators=tuple(
                ScheduledOperator(
                    id=names[j],
                    core_type=kind if single[j, i] else CoreType.NOP,
                    latency=int(single[j, i]),
                    intra_latency=int(split[j, i]),
                )
                for j, kind in enumerate(types)
            ),
            edges=tuple((names[a], names[b]) for a, b in fused.edges),
            name=name,
            shared=tuple((what, int(times[i])) for what, times in shared.items() if times[i]),
        )


def whole_latencies(fused: FusedGraph, accelerator: Accelerator, unit_s: float = UNIT_S) -> tuple[Any, Any]:
    """Latencies of every operator on one core and on all cores, in whole units: two integer arrays (operators,
    candidates), candidates in the order of the accelerator's flattened arrays. An operator's runs (``count``: the
    kernels of ring attention, say) follow each other."""
    rows = len(fused.operators), max(int(np.prod(accelerator.shape, dtype=np.int64)), 1)
    runs = [np.broadcast_to(np.asarray(op.count, dtype=np.float64), accelerator.shape) for op in fused.operators]
    alone, together = (
        latency * np.reshape(runs, latency.shape) for latency in operator_latencies(fused.operators, accelerator)
    )
    return _units(alone, unit_s).reshape(rows), _units(together, unit_s).reshape(rows)


def shared_times(fused: FusedGraph, accelerator: Accelerator, unit_s: float = UNIT_S) -> dict[str, Any]:
    """Time that memory, global buffer and links take at full rate for the operators' traffic: whole units [candidates]
    of each."""
    floors = operator_floors(fused, accelerator)
    return {name: _units(time_s.reshape(-1), unit_s) for name, time_s in shared_s(floors, accelerator.shape).items()}


def operator_floors(fused: FusedGraph, accelerator: Accelerator) -> list[OperatorFloor]:
    """The floor of all runs of each operator."""
    return [operator_floor(op, accelerator).times(op.count) for op in fused.operators]


def shared_s(floors: Iterable[OperatorFloor], shape: tuple[int, ...]) -> dict[str, npt.NDArray[np.float64]]:
    """`shared_times` in seconds [candidates]."""
    return {
        name: np.asarray(sum((getattr(floor, field) for floor in floors), np.zeros(shape)))
        for name, field in (("hbm", "memory_s"), ("buffer", "buffer_s"), ("links", "link_s"))
    }


def core_type(op: Operator | Fused) -> CoreType:
    """Which cores an operator needs."""
    if isinstance(op, Fused | Attention):
        return CoreType.FUSED
    return CoreType.TC if isinstance(op, Gemm | GroupedGemm) else CoreType.VC


def fuse_graph(graph: OperatorGraph) -> FusedGraph:
    """Each GEMM fuses an elementwise operator that follows it, if that has no dependencies the GEMM lacks and nothing
    else depends on the GEMM's own result."""
    edges = _edges(graph)
    after: dict[int, set[int]] = {i: set() for i in range(len(graph.operators))}
    before: dict[int, set[int]] = {i: set() for i in range(len(graph.operators))}
    for a, b in edges:
        after[a].add(b)
        before[b].add(a)
    ancestors = _ancestors(before)
    into: dict[int, int] = {}
    for i, op in enumerate(graph.operators):
        if isinstance(op, Gemm) and len(after[i]) == 1:
            (j,) = after[i]
            successor = graph.operators[j]
            elementwise = (
                isinstance(successor, MemoryBound) and successor.kind in FUSED_KINDS and successor.count == op.count
            )
            if elementwise and j not in into and before[j] - {i} <= ancestors[i]:
                into[j] = i
    return _merged(graph, edges, into)


def _merged(graph: OperatorGraph, edges: tuple[tuple[int, int], ...], into: dict[int, int]) -> FusedGraph:
    absorbed = {i: j for j, i in into.items()}
    remaining = [i for i in range(len(graph.operators)) if i not in into]
    place = {i: position for position, i in enumerate(remaining)}
    operators: list[Operator | Fused] = []
    for i in remaining:
        op = graph.operators[i]
        if i in absorbed:
            epilogue = graph.operators[absorbed[i]]
            assert isinstance(op, Gemm)
            assert isinstance(epilogue, MemoryBound)
            operators.append(Fused(product=op, epilogue=epilogue))
        else:
            operators.append(op)
    moved = ((place[into.get(a, a)], place[into.get(b, b)]) for a, b in edges)
    return FusedGraph(operators=tuple(operators), edges=tuple(dict.fromkeys((a, b) for a, b in moved if a != b)))


def _ancestors(before: dict[int, set[int]]) -> dict[int, set[int]]:
    """All predecessors of each operator; operators are numbered so that edges go up."""
    ancestors: dict[int, set[int]] = {}
    for i in sorted(before):
        ancestors[i] = set().union(before[i], *(ancestors[a] for a in before[i]))
    return ancestors


def _edges(graph: OperatorGraph) -> tuple[tuple[int, int], ...]:
    return graph.edges or tuple((i, i + 1) for i in range(len(graph.operators) - 1))


def _units(seconds: Floats, unit_s: float) -> Any:
    """Whole units, rounded up except for floating-point noise."""
    if not np.isfinite(seconds).all():
        raise InputError("num_links", 0, "must be above 0: a collective has no link to run on", "1")
    if (longest := float(np.max(seconds, initial=0.0))) > MOST_UNITS * unit_s:
        must = f"must be at most {MOST_UNITS * unit_s:.3g}; raise the rate that is near 0 (clock, memory or links)"
        raise InputError("seconds of one operator", f"{longest:.3g}", must)
    return np.ceil(seconds / unit_s * (1 - 1e-12)).astype(np.int64)
