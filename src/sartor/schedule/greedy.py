"""List scheduling: good schedules at once, as an upper bound, a hint for the exact solvers and a fallback.

An operator starts when its predecessors have ended and its cores are free; who goes first is a priority, which mode
an operator runs in is decided beforehand. Several priorities and mode choices are tried and the best is improved by
changing one mode at a time; the same block always gives the same schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from sartor.schedule.bounds import tails
from sartor.schedule.split import Block, Timetable, bits

TRIES_PER_STEP = 6
"""Values of a threshold that are tried; quantiles where there are more."""
IMPROVE_WORK = 60_000
"""Bound on operators placed while improving, so that its time does not grow with the block."""


def best_greedy(block: Block) -> Timetable:
    """The best schedule found; never longer than running everything one after another in its shorter mode."""
    if block.size == 1:
        return Timetable(starts=(0,), split=block.may_split)
    ranks = tuple(_ranks(block))
    tries = [(modes, rank, drain) for modes in _mode_choices(block) for rank in ranks for drain in (False, True)]
    found = [list_schedule(block, modes, rank, drain=drain) for modes, rank, drain in tries]
    best = min(range(len(tries)), key=lambda k: found[k].makespan(block))
    return _improved(block, found[best], tries[best][1], drain=tries[best][2])


def list_schedule(block: Block, split: Sequence[bool], rank: Sequence[int], *, drain: bool) -> Timetable:
    """Operators by ascending ``rank`` as cores allow; ``split`` ones alone.

    When one that is split comes next while others run, ``drain`` holds the rest back for it; otherwise it waits.
    """
    covers, waiting = block.covers, [0] * block.size
    for mask in covers:
        for j in bits(mask):
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
            for j in bits(covers[i]):
                waiting[j] -= 1
                if not waiting[j]:
                    left.append(j)
        ready = sorted(left, key=rank.__getitem__)
    return Timetable(starts=tuple(starts), split=tuple(split))


def _ranks(block: Block) -> Iterator[list[int]]:
    """Who goes first: the longest path ahead (shorter modes, then one-core times), the longest operator."""
    for keys in (tails(block, block.serial), tails(block, block.latency), list(block.serial)):
        order = sorted(range(block.size), key=lambda i: (-keys[i], i))
        rank = [0] * block.size
        for place, i in enumerate(order):
            rank[i] = place
        yield rank


def _mode_choices(block: Block) -> list[tuple[bool, ...]]:
    """All split that gain, none, those longer than a threshold, those that gain more than a threshold."""
    gains = [i for i, may in enumerate(block.may_split) if may]
    choices = {block.may_split: None, (False,) * block.size: None}
    for key in (lambda i: block.latency[i], lambda i: block.latency[i] / block.intra_latency[i]):
        values = sorted({key(i) for i in gains})
        for value in values[:: max(1, len(values) // TRIES_PER_STEP)]:
            chosen = {i for i in gains if key(i) > value}
            choices[tuple(i in chosen for i in range(block.size))] = None
    return list(choices)


def _improved(block: Block, found: Timetable, rank: Sequence[int], *, drain: bool) -> Timetable:
    """Change one operator's mode at a time while that shortens the schedule."""
    may, tries = [i for i, may in enumerate(block.may_split) if may], IMPROVE_WORK // block.size**2
    best, makespan, position, since = found, found.makespan(block), 0, 0
    while may and tries > 0 and since < len(may):
        i = may[position % len(may)]
        flipped = (*best.split[:i], not best.split[i], *best.split[i + 1 :])
        other = list_schedule(block, flipped, rank, drain=drain)
        position, tries, since = position + 1, tries - 1, since + 1
        if other.makespan(block) < makespan:
            best, makespan, since = other, other.makespan(block), 0
    return best
