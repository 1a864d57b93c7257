"""List scheduling: good schedules quickly, as an upper bound, a hint for the exact solvers and a fallback.

An operator starts when its predecessors have ended and its cores are free. A priority decides who goes first; modes are
decided beforehand. Several priorities and mode choices are tried, and the best is improved by changing one mode at a
time; the result is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias

from sartor.schedules.bounds import tails
from sartor.schedules.split import OpBlock, Timetable, bits, crowds, spread

Successors: TypeAlias = Sequence[Sequence[int]]

TRIES_PER_STEP = 6
"""Most values of a threshold that are tried; quantiles if there are more."""
COMPANY_UP_TO = 100
"""Largest block in which each operator is tried on one core together with operators that may overlap it."""
FEWEST_TRIES, TRY_WORK = 6, 2_000_000
"""Most operators placed before improving, so that large blocks get fewer tries."""
STARTS = 4
"""Number of schedules to improve."""
IMPROVE_WORK = 60_000
"""Most operators placed while improving one, so that its time does not grow with the block."""


def best_greedy(block: OpBlock) -> Timetable:
    """The best schedule found; never longer than running operators one after another in their shorter modes."""
    if block.size == 1:
        return Timetable(starts=(0,), split=block.may_split)
    if block.traffic:
        packed = best_greedy(replace(block, traffic=()))
        roomy = spread(block, packed) if crowds(block, packed) else packed
        return min(roomy, _in_turn(block), key=lambda timetable: timetable.makespan(block))
    ahead, behind = _best_forward(block), _best_forward(_reversed(block))
    return ahead if ahead.makespan(block) <= behind.makespan(_reversed(block)) else _mirrored(block, behind)


def _in_turn(block: OpBlock) -> Timetable:
    """Operators one after another."""
    return Timetable(starts=(0, *accumulate(block.serial))[:-1], split=block.may_split)


def _reversed(block: OpBlock) -> OpBlock:
    """The block with time reversed: positions, precedence and all."""
    last = block.size - 1
    return replace(
        block,
        core_types=block.core_types[::-1],
        latency=block.latency[::-1],
        intra_latency=block.intra_latency[::-1],
        after=tuple(sum(1 << last - i for i in bits(mask)) for mask in reversed(block.before)),
    )


def _mirrored(block: OpBlock, backwards: Timetable) -> Timetable:
    """The schedule of a block from a schedule of its reverse."""
    turned = _reversed(block)
    makespan, ends = backwards.makespan(turned), backwards.ends(turned)
    return Timetable(starts=tuple(makespan - end for end in reversed(ends)), split=backwards.split[::-1])


def _best_forward(block: OpBlock) -> Timetable:
    direct = [tuple(bits(mask)) for mask in block.covers]
    ranks = tuple(_ranks(block))
    tries = [(modes, rank, drain) for modes in _mode_choices(block) for rank in ranks for drain in (False, True)]
    tries = tries[: max(FEWEST_TRIES, TRY_WORK // block.size**2)]
    schedules = [_list_schedule(block, direct, modes, rank, drain=drain) for modes, rank, drain in tries]
    best = sorted(range(len(tries)), key=lambda k: schedules[k].makespan(block))[:STARTS]
    improved = (_improved(block, direct, schedules[k], tries[k][1], drain=tries[k][2]) for k in best)
    return min(improved, key=lambda timetable: timetable.makespan(block))


def _list_schedule(
    block: OpBlock, direct: Successors, split: Sequence[bool], rank: Sequence[int], *, drain: bool
) -> Timetable:
    """Operators by ascending ``rank`` as cores allow; ``split`` ones alone. ``direct`` are the direct successors.

    When a split operator is next while others run, ``drain`` holds the rest back for it; otherwise it waits.
    """
    waiting = [0] * block.size
    for targets in direct:
        for j in targets:
            waiting[j] += 1
    ready = sorted((i for i in range(block.size) if not waiting[i]), key=rank.__getitem__)
    running: list[tuple[int, int]] = []
    starts, now, free_tc, free_vc = [0] * block.size, 0, block.num_tc, block.num_vc
    while ready or running:
        left: list[int] = []
        blocked = bool(running) and split[running[0][1]]
        for i in ready:
            kind = block.core_types[i]
            fits = not running if split[i] else kind.needs_tensor_core <= free_tc and kind.needs_vector_core <= free_vc
            if blocked or not fits:
                left.append(i)
                blocked = blocked or (drain and split[i])
                continue
            starts[i] = now
            heapq.heappush(running, (now + (block.intra_latency[i] if split[i] else block.latency[i]), i))
            blocked = split[i]
            free_tc -= kind.needs_tensor_core
            free_vc -= kind.needs_vector_core
        now = running[0][0]
        while running and running[0][0] == now:
            i = heapq.heappop(running)[1]
            free_tc += block.core_types[i].needs_tensor_core
            free_vc += block.core_types[i].needs_vector_core
            for j in direct[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    left.append(j)
        ready = sorted(left, key=rank.__getitem__)
    return Timetable(starts=tuple(starts), split=tuple(split))


def _ranks(block: OpBlock) -> Iterator[list[int]]:
    """Priorities: the longest path ahead (shorter modes, then one-core times), the longest operator."""
    for keys in (tails(block, block.serial), tails(block, block.latency), list(block.serial)):
        order = sorted(range(block.size), key=lambda i: (-keys[i], i))
        rank = [0] * block.size
        for place, i in enumerate(order):
            rank[i] = place
        yield rank


def _mode_choices(block: OpBlock) -> list[tuple[bool, ...]]:
    """Mode choices: all operators split that gain from it, none, those above a threshold, all but one and its
    neighbours."""
    gains = [i for i, may in enumerate(block.may_split) if may]
    choices = {block.may_split: None, (False,) * block.size: None}
    related = [after | before for after, before in zip(block.after, block.before, strict=True)]
    for key in (lambda i: block.latency[i], lambda i: block.latency[i] / block.intra_latency[i]):
        values = sorted({key(i) for i in gains})
        for value in values[:: max(1, len(values) // TRIES_PER_STEP)]:
            chosen = {i for i in gains if key(i) > value}
            choices[tuple(i in chosen for i in range(block.size))] = None
    for i in gains if block.size <= COMPANY_UP_TO else ():
        for longer in (1, 2):
            beside = {j for j in gains if not related[i] >> j & 1 and block.latency[j] <= longer * block.latency[i]}
            choices[tuple(may and j not in beside for j, may in enumerate(block.may_split))] = None
    return list(choices)


def _improved(
    block: OpBlock, direct: Successors, timetable: Timetable, rank: Sequence[int], *, drain: bool
) -> Timetable:
    """Change one operator's mode at a time as long as that shortens the schedule."""
    may, tries = [i for i, may in enumerate(block.may_split) if may], IMPROVE_WORK // block.size**2
    best, makespan, position, since = timetable, timetable.makespan(block), 0, 0
    while may and tries > 0 and since < len(may):
        i = may[position % len(may)]
        flipped = (*best.split[:i], not best.split[i], *best.split[i + 1 :])
        alternative = _list_schedule(block, direct, flipped, rank, drain=drain)
        position, tries, since = position + 1, tries - 1, since + 1
        if alternative.makespan(block) < makespan:
            best, makespan, since = alternative, alternative.makespan(block), 0
    return best
