"""Time of a block on a chip: the schedule problem of an operator graph (types of cores, latencies, edges), and the
makespan of its best schedule, or of its operators one after another.

On thousands of accelerators at once its bound is that of `sartor.schedules.bounds` (weights over tensor work, vector
work and paths) on a coarse grid of weights, as arrays over candidates; the graph, which is the same for all, is first
split in series. The result of `sartor.schedules.solve` for a candidate is always between the two bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.chip.operator_latency import Fused, OperatorFloor, operator_floor, operator_latencies
from sartor.errors import InputError
from sartor.hardware.accelerator import ARRAY_FIELDS, IN_LONG_RUNS, Accelerator
from sartor.operators import Attention, Gemm, GroupedGemm, MemoryBound, MemoryBoundKind, Operator, OperatorGraph
from sartor.schedules.problem import CoreType, ScheduledOperator, ScheduleProblem
from sartor.schedules.solve import ScheduleCache, solve
from sartor.schedules.split import OpBlock, bits, part, series
from sartor.units import MICRO, FloatArray, Floats

SCHEDULE_LIMIT_S = 0.05
"""Default limit for proving the schedule of one layer, in seconds of solver work."""


def makespan_s(
    graph: OperatorGraph,
    accelerator: Accelerator,
    limit_s: float = SCHEDULE_LIMIT_S,
    cache: ScheduleCache | None = None,
) -> tuple[float, float]:
    """Proved lower bound and reached makespan of a block on the chip's cores [s]. Raises ``KeyboardInterrupt`` if
    Ctrl-C ended the solver's search."""
    answer = solve(schedule_problem(graph, accelerator), limit_s, cache=cache, by_work=True)
    if answer.interrupted:
        raise KeyboardInterrupt
    return answer.lower_bound * UNIT_S, answer.makespan * UNIT_S


def known_makespan_s(graph: OperatorGraph, accelerator: Accelerator) -> float:
    """`makespan_s` with the default limit; each block of a chip is solved once per process."""
    return _known(_Block(graph, accelerator))[1]


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
def _known(block: _Block) -> tuple[float, float]:
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
    shares = (getattr(a, name) for name in IN_LONG_RUNS if name != "run_factor")
    core = (a.dtype, a.packed_dtype, a.dataflow, a.accumulator_bytes, a.special_cycles, a.load_bytes)
    return (*numbers, a.memory, *core, a.backward_passes, a.buffer_add_share, *shares)


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
class _FusedGraph:
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
    fused = fuse_graph(graph) if fuse else _FusedGraph(operators=graph.operators, edges=_edges(graph))
    count = max(int(np.prod(accelerator.shape, dtype=np.int64)), 1)
    single, split = whole_latencies(fused, accelerator, unit_s)
    shared = _shared_times(fused, accelerator, unit_s)
    tensor = np.broadcast_to(accelerator.num_tensor_cores, accelerator.shape).reshape(-1)
    vector = np.broadcast_to(accelerator.num_vector_cores, accelerator.shape).reshape(-1)
    types = [_core_type(op) for op in fused.operators]
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


def whole_latencies(fused: _FusedGraph, accelerator: Accelerator, unit_s: float = UNIT_S) -> tuple[Any, Any]:
    """Latencies of every operator on one core and on all cores, in whole units: two integer arrays (operators,
    candidates), candidates in the order of the accelerator's flattened arrays. An operator's runs (``count``: the
    kernels of ring attention, say) follow each other."""
    rows = len(fused.operators), max(int(np.prod(accelerator.shape, dtype=np.int64)), 1)
    runs = [np.broadcast_to(np.asarray(op.count, dtype=np.float64), accelerator.shape) for op in fused.operators]
    alone, together = (
        latency * np.reshape(runs, latency.shape) for latency in operator_latencies(fused.operators, accelerator)
    )
    return _units(alone, unit_s).reshape(rows), _units(together, unit_s).reshape(rows)


def _shared_times(fused: _FusedGraph, accelerator: Accelerator, unit_s: float = UNIT_S) -> dict[str, Any]:
    """Time that memory, global buffer and links take at full rate for the operators' traffic: whole units [candidates]
    of each."""
    floors = _operator_floors(fused, accelerator)
    return {name: _units(time_s.reshape(-1), unit_s) for name, time_s in _shared_s(floors, accelerator.shape).items()}


def _operator_floors(fused: _FusedGraph, accelerator: Accelerator) -> list[OperatorFloor]:
    """The floor of all runs of each operator."""
    return [operator_floor(op, accelerator).times(op.count) for op in fused.operators]


def _shared_s(floors: Iterable[OperatorFloor], shape: tuple[int, ...]) -> dict[str, npt.NDArray[np.float64]]:
    """`_shared_times` in seconds [candidates]."""
    return {
        name: np.asarray(sum((getattr(floor, field) for floor in floors), np.zeros(shape)))
        for name, field in (("hbm", "memory_s"), ("buffer", "buffer_s"), ("links", "link_s"))
    }


def _core_type(op: Operator | Fused) -> CoreType:
    """Which cores an operator needs."""
    if isinstance(op, Fused | Attention):
        return CoreType.FUSED
    return CoreType.TC if isinstance(op, Gemm | GroupedGemm) else CoreType.VC


def fuse_graph(graph: OperatorGraph) -> _FusedGraph:
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


def _merged(graph: OperatorGraph, edges: tuple[tuple[int, int], ...], into: dict[int, int]) -> _FusedGraph:
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
    return _FusedGraph(operators=tuple(operators), edges=tuple(dict.fromkeys((a, b) for a, b in moved if a != b)))


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


GRID = 8
"""Resolution of the weights: 45 combinations of tensor work, vector work and paths."""
ROUNDS = 2
"""Rounds of ruling out modes."""
WHOLE = 1e-9
"""Relative slack before a bound is rounded up: sums of doubles are exact to far less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Makespans:
    """Bounds on the makespan of each candidate, in whole units of the schedule: integer arrays [candidates]."""

    lower: npt.NDArray[np.int64]
    upper: npt.NDArray[np.int64]
    """One operator after another, each in its shorter mode."""


def makespan_bounds(graph: OperatorGraph, accelerator: Accelerator, unit_s: float = UNIT_S) -> _Makespans:
    """Bounds for every candidate of ``accelerator`` (flattened), operators fused as ``schedule_problems`` fuses them.

    Raises ``InputError`` if a collective has no link to run on.
    """
    fused = fuse_graph(graph)
    single, split = whole_latencies(fused, accelerator, unit_s)
    shape = accelerator.shape
    tensor = np.broadcast_to(accelerator.num_tensor_cores, shape).reshape(-1).astype(np.float64)
    vector = np.broadcast_to(accelerator.num_vector_cores, shape).reshape(-1).astype(np.float64)
    upper = np.minimum(single, split).sum(axis=0)
    lower = np.zeros_like(upper)
    for positions, block in _parts(fused):
        rows = list(positions)
        lower += _part_bound(block, single[rows], split[rows], tensor, vector)
    lower = np.maximum.reduce([lower, *_shared_times(fused, accelerator, unit_s).values()])
    return _Makespans(lower=lower, upper=upper)


def makespan_floors(graph: OperatorGraph, accelerator: Accelerator) -> FloatArray:
    """A looser bound [candidates, seconds], a hundred times cheaper: tensor work, vector work, or the longest path of
    each part of the series; or the traffic on shared resources."""
    fused = fuse_graph(graph)
    floors = _operator_floors(fused, accelerator)
    total: Floats = np.zeros(accelerator.shape)
    for positions, block in _parts(fused):
        mine = [floors[i] for i in positions]
        if len(mine) == 1:
            total = total + mine[0].least_s
            continue
        covers = [tuple(bits(mask)) for mask in block.covers]
        ahead: list[Any] = [floor.least_s for floor in mine]
        for i in reversed(range(len(mine))):
            below = [ahead[j] for j in covers[i]]
            ahead[i] = ahead[i] + (np.maximum.reduce(np.broadcast_arrays(*below)) if below else 0.0)
        longest = np.maximum.reduce(np.broadcast_arrays(*ahead))
        work = np.maximum(sum(floor.tensor_s for floor in mine), sum(floor.vector_s for floor in mine))
        total = total + np.maximum(longest, work)
    return np.asarray(np.maximum.reduce([np.asarray(total), *_shared_s(floors, accelerator.shape).values()]))


def _parts(fused: _FusedGraph) -> Iterator[tuple[tuple[int, ...], OpBlock]]:
    """The graph split in series: positions of each part, and the part (its latencies are placeholders)."""
    size = len(fused.operators)
    after = [0] * size
    below: list[list[int]] = [[] for _ in range(size)]
    for a, b in fused.edges:
        below[a].append(b)
    for i in reversed(range(size)):
        for j in below[i]:
            after[i] |= after[j] | 1 << j
    whole = OpBlock(
        num_tc=size,
        num_vc=size,
        core_types=tuple(map(_core_type, fused.operators)),
        latency=(1,) * size,
        intra_latency=(1,) * size,
        after=tuple(after),
    )
    return ((positions, part(whole, positions)) for positions in series(whole))


def _part_bound(
    block: OpBlock, single: Any, split: Any, num_tc: FloatArray, num_vc: FloatArray
) -> npt.NDArray[np.int64]:
    """Lower bounds for one part: integers [candidates] from latencies [operators, candidates].

    ``block`` gives kinds of cores and precedence; its own latencies are not used.
    """
    serial: npt.NDArray[np.int64] = np.minimum(single, split).sum(axis=0)
    if block.size == 1:
        return serial
    kinds = block.core_types
    cores_tc = np.minimum(num_tc, max(sum(kind.needs_tensor_core for kind in kinds), 1))
    cores_vc = np.minimum(num_vc, max(sum(kind.needs_vector_core for kind in kinds), 1))
    p = _Part(
        covers=[tuple(bits(mask)) for mask in block.covers],
        single=single.astype(np.float64),
        split=np.where(split < single, split, np.inf),
        tensor=_needs(kinds, tensor=True) / cores_tc,
        vector=_needs(kinds, tensor=False) / cores_vc,
    )
    allowed = np.ones(single.shape, dtype=bool), np.isfinite(p.split)
    best = np.zeros(serial.shape)
    for _ in range(ROUNDS):
        value, with_single, with_split = _over_weights(p, allowed)
        best = np.maximum(best, value)
        useful = allowed[0] & (with_single < serial), allowed[1] & (with_split < serial)
        if all(np.array_equal(a, b) for a, b in zip(useful, allowed, strict=True)):
            break
        allowed = useful
        hopeless = ~(useful[0] | useful[1]).all(axis=0)  # nothing shorter than running in turn is left
        best = np.where(hopeless, serial, best)
        allowed = useful[0] | hopeless, useful[1]
    rounded: npt.NDArray[np.int64] = np.ceil(best * (1 - WHOLE)).astype(np.int64)
    return np.minimum(rounded, serial)


@dataclass(frozen=True, slots=True)
class _Part:
    """Arrays [operators, candidates]; ``tensor`` and ``vector``: share of all such cores that an operator takes."""

    covers: Sequence[tuple[int, ...]]
    single: FloatArray
    split: FloatArray
    tensor: FloatArray
    vector: FloatArray


Allowed = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


def _needs(kinds: Sequence[CoreType], *, tensor: bool) -> FloatArray:
    return np.array([[float(kind.needs_tensor_core if tensor else kind.needs_vector_core)] for kind in kinds])


def _over_weights(p: _Part, allowed: Allowed) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The best bound, and the bounds with each operator on one core, and with each split."""
    shape = p.single.shape
    value, with_single, with_split = np.zeros(shape[1]), np.zeros(shape), np.zeros(shape)
    split = np.where(allowed[1], p.split, np.inf)
    for tensor, vector in _weights():
        work = p.single * (p.tensor * (tensor / GRID) + p.vector * (vector / GRID))
        least_time = _least(work, split, allowed[0])
        for _ in range(GRID - tensor - vector):
            heavier = work + p.single / GRID
            gain = _least(heavier, split, allowed[0]) - least_time
            work = np.where(_best_path(p.covers, gain), heavier, work)
            least_time = _least(work, split, allowed[0])
        total = least_time.sum(axis=0)
        np.maximum(value, total, out=value)
        rest = total - least_time
        np.maximum(with_single, np.ceil((rest + work) * (1 - WHOLE)), out=with_single)
        np.maximum(with_split, np.ceil((rest + p.split) * (1 - WHOLE)), out=with_split)
    return value, with_single, with_split


def _weights() -> Iterator[tuple[int, int]]:
    for tensor in range(GRID + 1):
        for vector in range(GRID + 1 - tensor):
            yield tensor, vector


def _least(work: FloatArray, split: FloatArray, may_be_single: npt.NDArray[np.bool_]) -> FloatArray:
    return np.minimum(np.where(may_be_single, work, np.inf), split)


def _best_path(covers: Sequence[tuple[int, ...]], gain: FloatArray) -> npt.NDArray[np.bool_]:
    """The operators on the path with the largest sum of gains, for every candidate."""
    size, count = gain.shape
    ahead, following = gain.copy(), np.full((size, count), -1, dtype=np.int16)
    for i in reversed(range(size)):
        below = list(covers[i])
        if len(below) == 1:
            following[i] = below[0]
            ahead[i] += ahead[below[0]]
        elif below:
            those = ahead[below]
            following[i] = np.asarray(below, dtype=np.int16)[those.argmax(axis=0)]
            ahead[i] += those.max(axis=0)
    node = ahead.argmax(axis=0)
    on = np.zeros((size, count), dtype=bool)
    for i in range(size):
        on[i] = node == i
        node = np.where(on[i], following[i], node)
    return on
