"""Traffic of operators on shared resources: memory, global buffer, links.

The traffic fits within the operators' runs without ever exceeding a resource's rate if and only if, between any start
and any end, the operators that run in between need no more than that time: preemptive scheduling with deadlines on one
machine (Horn, Naval Research Logistics Quarterly 21, 1974).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sartor.schedules.split import OpBlock, Timetable, bits


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
