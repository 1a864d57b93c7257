"""From the problem to solver blocks: contract Nops, close precedence, split where the graph is in series.

If every operator of a first part precedes every operator of the rest (with a cut node, the middle part is one
operator), optimal schedules of the parts one after another are an optimal schedule. The parts are the connected
components of the graph that joins operators which may overlap; a chain splits into single operators and needs no
solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from sartor.schedules.problem import (
    CoreType,
    OperatorId,
    ScheduledOperator,
    ScheduleProblem,
    successors,
    topological_order,
)

CANONICAL_UP_TO = 200
"""Largest block that is put in canonical order, which costs the cube of its operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpBlock:
    """Operators that take time, in topological order, by position. Bit ``j`` of ``after[i]``: ``j`` runs after ``i``.

    ``num_tc`` and ``num_vc`` are never more than the operators that could use them at once. ``traffic``: for each
    shared resource, how long each operator would need all of it. The block has no ids and is hashable: two layers with
    the same operators are the same block.
    """

    num_tc: int
    num_vc: int
    core_types: tuple[CoreType, ...]
    latency: tuple[int, ...]
    intra_latency: tuple[int, ...]
    after: tuple[int, ...]
    traffic: tuple[tuple[int, ...], ...] = ()

    @property
    def size(self) -> int:
        return len(self.latency)

    @property
    def serial(self) -> tuple[int, ...]:
        """The shortest time of each operator alone."""
        return tuple(map(min, self.latency, self.intra_latency))

    @property
    def may_split(self) -> tuple[bool, ...]:
        """Whether running on all cores is faster; if not, one core is at least as good."""
        return tuple(split < single for single, split in zip(self.latency, self.intra_latency, strict=True))

    @property
    def before(self) -> tuple[int, ...]:
        """Bit ``i`` of ``before[j]``: ``i`` runs before ``j``."""
        masks = [0] * self.size
        for i, mask in enumerate(self.after):
            for j in bits(mask):
                masks[j] |= 1 << i
        return tuple(masks)

    @property
    def covers(self) -> tuple[int, ...]:
        """``after`` without what follows from it: the direct successors only."""
        out = []
        for mask in self.after:
            implied = 0
            for j in bits(mask):
                if not implied >> j & 1:
                    implied |= self.after[j]
            out.append(mask & ~implied)
        return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """A schedule of a block by position: start of each operator, and whether it is split over all cores."""

    starts: tuple[int, ...]
    split: tuple[bool, ...]

    def ends(self, block: OpBlock) -> tuple[int, ...]:
        durations = zip(self.split, block.latency, block.intra_latency, strict=True)
        return tuple(
            start + (intra if split else single)
            for start, (split, single, intra) in zip(self.starts, durations, strict=True)
        )

    def makespan(self, block: OpBlock) -> int:
        return max(self.ends(block), default=0)


def contract(problem: ScheduleProblem) -> tuple[OpBlock, tuple[OperatorId, ...]]:
    """The whole problem as one block, and the id at each of its positions.

    Nops, and operators that can run in no time at all, are left out: precedence passes through them.
    """
    operators = {op.id: op for op in problem.operators}
    order = topological_order(problem)
    occupying = tuple(id_ for id_ in order if _occupies(operators[id_]))
    position = {id_: k for k, id_ in enumerate(occupying)}
    direct, reach = successors(problem), dict.fromkeys(order, 0)
    for id_ in reversed(order):
        for target in direct[id_]:
            reach[id_] |= reach[target] | (1 << position[target] if target in position else 0)
    real = [operators[id_] for id_ in occupying]
    block = OpBlock(
        num_tc=min(problem.num_tc, sum(op.core_type.needs_tensor_core for op in real)),
        num_vc=min(problem.num_vc, sum(op.core_type.needs_vector_core for op in real)),
        core_types=tuple(op.core_type for op in real),
        latency=tuple(op.latency for op in real),
        intra_latency=tuple(op.intra_latency for op in real),
        after=tuple(reach[id_] for id_ in occupying),
        traffic=_contended([dict(op.traffic).get(name, 0) for op in real] for name in _shared(real)),
    )
    return block, occupying


def _shared(operators: Sequence[ScheduledOperator]) -> list[str]:
    """Resources that operators name, in a fixed order."""
    return sorted({name for op in operators for name, _ in op.traffic})


def _contended(traffic: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The traffic rows without those that only one operator uses."""
    return tuple(tuple(row) for row in traffic if len(row) - row.count(0) > 1)


def _occupies(op: ScheduledOperator) -> bool:
    """Whether an operator takes a core for any time in its shortest mode."""
    return op.takes_time and min(op.latency, op.intra_latency) > 0


def series(block: OpBlock) -> tuple[tuple[int, ...], ...]:
    """Positions of each part, in order: all of a part run before all of the next."""
    everything = (1 << block.size) - 1
    parts: list[tuple[int, ...]] = []
    begin, common, seen = 0, everything, 0
    for i, mask in enumerate(block.after):
        common &= mask
        seen |= 1 << i
        if not everything & ~seen & ~common:
            parts.append(tuple(range(begin, i + 1)))
            begin = i + 1
    return tuple(parts)


def part(block: OpBlock, positions: tuple[int, ...]) -> OpBlock:
    """The block of some consecutive positions."""
    first, size = positions[0], len(positions)
    types = block.core_types[first : first + size]
    return OpBlock(
        num_tc=min(block.num_tc, sum(kind.needs_tensor_core for kind in types)),
        num_vc=min(block.num_vc, sum(kind.needs_vector_core for kind in types)),
        core_types=types,
        latency=block.latency[first : first + size],
        intra_latency=block.intra_latency[first : first + size],
        after=tuple(mask >> first & (1 << size) - 1 for mask in block.after[first : first + size]),
        traffic=_contended(row[first : first + size] for row in block.traffic),
    )


def coarsest(block: OpBlock) -> tuple[OpBlock, int]:
    """The block in the largest unit that keeps all times whole, and that unit."""
    unit = gcd(*block.latency, *block.intra_latency, *(time for row in block.traffic for time in row)) or 1
    latency, intra_latency = ([time // unit for time in times] for times in (block.latency, block.intra_latency))
    traffic = tuple(tuple(time // unit for time in row) for row in block.traffic)
    return replace(block, latency=tuple(latency), intra_latency=tuple(intra_latency), traffic=traffic), unit


def canonical(block: OpBlock) -> tuple[OpBlock, tuple[int, ...]]:
    """The block in a canonical operator order, independent of the given one, and that order.

    Colour refinement (Weisfeiler and Leman 1968) tells operators apart by their surroundings; ties keep their
    order, so equal graphs nearly always, and unequal ones never, become the same block.
    """
    before, after, positions = block.before, block.after, range(block.size)
    if block.size > CANONICAL_UP_TO:
        return block, tuple(positions)

    def around(mask: int, colour: list[int]) -> tuple[int, ...]:
        return tuple(sorted(colour[j] for j in bits(mask)))

    # The number of predecessors comes first: it grows along every edge, so the order stays topological.
    columns = zip(block.core_types, block.latency, block.intra_latency, *block.traffic, strict=True)
    colour = _ranked([(mask.bit_count(), *key) for mask, key in zip(before, columns, strict=True)])
    for _ in positions:
        finer = _ranked([(colour[i], around(before[i], colour), around(after[i], colour)) for i in positions])
        if max(finer, default=0) == max(colour, default=0):
            break
        colour = finer
    order = tuple(sorted(positions, key=colour.__getitem__))
    return _permuted(block, order), order


def _permuted(block: OpBlock, order: tuple[int, ...]) -> OpBlock:
    new = {old: k for k, old in enumerate(order)}
    return replace(
        block,
        core_types=tuple(block.core_types[i] for i in order),
        latency=tuple(block.latency[i] for i in order),
        intra_latency=tuple(block.intra_latency[i] for i in order),
        after=tuple(sum(1 << new[j] for j in bits(block.after[i])) for i in order),
        traffic=tuple(tuple(row[i] for i in order) for row in block.traffic),
    )


def _ranked(keys: list[tuple[Any, ...]]) -> list[int]:
    rank = {key: k for k, key in enumerate(sorted(set(keys)))}
    return [rank[key] for key in keys]


def bits(mask: int) -> Iterator[int]:
    """Positions of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAnswer:
    """A schedule of a block and the best proved bound on its makespan; ``interrupted`` by the user before its limit."""

    timetable: Timetable
    lower_bound: int
    interrupted: bool = False
