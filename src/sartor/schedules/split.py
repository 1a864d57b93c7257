"""From the problem to solver blocks: contract Nops, close precedence, split, and traffic on shared resources.

If every operator of a first part precedes every operator of the rest (with a cut node, the middle part is one
operator), optimal schedules of the parts one after another are an optimal schedule. The parts are the connected
components of the graph that joins operators which may overlap; a chain splits into single operators and needs no
solver.

The traffic fits within the operators' runs without ever exceeding a resource's rate if and only if, between any start
and any end, the operators that run in between need no more than that time: preemptive scheduling with deadlines on one
machine (Horn, Naval Research Logistics Quarterly 21, 1974).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
    method: str = "list scheduling"
    """What searched last."""


class Crowd(NamedTuple):
    """Operators that all run between two moments, with traffic that needs more time than that."""

    operators: tuple[int, ...]
    begin: int
    needed: int


def crowds(block: OpBlock, timetable: Timetable) -> tuple[Crowd, ...]:
    """The first crowd from every start; empty if all traffic fits."""
    ends = timetable.ends(block)
    return tuple(dict.fromkeys(_crowds(block, timetable.starts, ends, range(block.size))))


def _crowds(block: OpBlock, starts: Sequence[int], ends: Sequence[int], among: Sequence[int]) -> Iterator[Crowd]:
    by_end = sorted(among, key=ends.__getitem__)
    for row in block.traffic:
        for begin in sorted({starts[i] for i in by_end if row[i]}):
            needed, within = 0, []
            for i in by_end:
                if row[i] and starts[i] >= begin:
                    within.append(i)
                    needed += row[i]
                    if needed > ends[i] - begin:
                        yield Crowd(tuple(sorted(within)), begin, needed)
                        break


def spread(block: OpBlock, crowded: Timetable) -> Timetable:
    """The schedule with operators in the same order and modes, each as early as cores and traffic allow."""
    starts, ends, placed, barrier = [0] * block.size, [0] * block.size, list[int](), 0
    before, split = block.before, crowded.split
    for i in sorted(range(block.size), key=lambda k: (crowded.starts[k], not split[k], k)):
        last = max((ends[k] for k in placed), default=0)
        if split[i]:
            starts[i], ends[i] = last, last + block.intra_latency[i]
            barrier = ends[i]
        else:
            first = max([barrier, *(ends[k] for k in bits(before[i]))])
            starts[i] = _first_room(block, starts, ends, placed, i, first, last)
            ends[i] = starts[i] + block.latency[i]
        placed.append(i)
    return Timetable(starts=tuple(starts), split=split)


def _first_room(
    block: OpBlock, starts: list[int], ends: list[int], placed: list[int], i: int, first: int, last: int
) -> int:
    """The first moment found, from ``first`` on, with free cores and room for the traffic of operator i; at ``last``,
    after all placed operators, there is always room."""
    moment, time = first, block.latency[i]
    while moment < last:
        beside = [k for k in placed if starts[k] < moment + time and ends[k] > moment]
        if not _cores(block, i, [(starts[k], ends[k], k) for k in beside], moment):
            moment = min(ends[k] for k in beside)
            continue
        starts[i], ends[i] = moment, moment + time
        later = [crowd.begin + crowd.needed - time for crowd in _crowds(block, starts, ends, [*placed, i])]
        if not later:
            return moment
        moment = max(moment + 1, *later)
    return last


def _cores(block: OpBlock, i: int, beside: list[tuple[int, int, int]], start: int) -> bool:
    for moment in {start, *(begin for begin, _, _ in beside if begin > start)}:
        kinds = [block.core_types[k] for k in (i, *(k for begin, end, k in beside if begin <= moment < end))]
        if sum(kind.needs_tensor_core for kind in kinds) > block.num_tc:
            return False
        if sum(kind.needs_vector_core for kind in kinds) > block.num_vc:
            return False
    return True
