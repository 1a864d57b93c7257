"""Bounds on the makespan without a solver: from below, and from above by list scheduling.

Operators split over all cores run alone, so a makespan T is the sum of their times plus the time M in which only
single-core operators run: T = sum of q_i over the split ones + M. M is at least the one-core time on any path, and
at least the one-core work of either kind over its cores; so it is at least any average of these. With weights a_tc,
a_vc, and a_p for some paths p, that add up to one,

    T >= sum over operators of min(q_i, l_i w_i),    w_i = a_tc [tensor] / N_tc + a_vc [vector] / N_vc + sum of a_p

with the last sum over the paths through i. Shared resources (memory, buffer, links) count like a kind of core, with an
operator's traffic in place of l_i / N. Weights are multiples of 1 / GRID; paths are found one after the other, each
time the one that raises the bound most. All arithmetic is in integers, so there is no rounding.

List scheduling gives good schedules quickly: an upper bound, a hint for the exact solvers and a fallback. An operator
starts when its predecessors have ended and its cores are free. A priority decides who goes first; modes are decided
beforehand. Several priorities and mode choices are tried, and the best is improved by changing one mode at a time; the
result is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sartor.schedules.split import OpBlock, Timetable, bits, crowds, spread
from sartor.units import ceil_div

GRIDS = ((60, 16), (300, 8), (2000, 4))
"""(largest block, resolution of the weights): the number of weights grows with the square, the work with the cube."""
ROUNDS = 4
"""Rounds of ruling out modes."""

Modes: TypeAlias = tuple[tuple[bool, bool], ...]
"""For each operator, whether running on one core, and on all cores, can be part of a better schedule."""
Whole: TypeAlias = Any
"""Whole numbers [operators, weights]: of 64 bits where all that is summed fits, else Python's."""
EXACT = 1 << 60
"""Largest sum that is left to 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MakespanBound:
    """A lower bound on the makespan, and the modes that a better schedule than the known one may still use."""

    value: int
    modes: Modes


def lower_bound(block: OpBlock, upper: int) -> _MakespanBound:
    """The best bound over all weights, given a schedule of makespan ``upper``; at most ``upper``.

    A mode that would raise the bound to ``upper`` cannot be part of a better schedule. Ruling it out raises the bounds
    further, for a few rounds; the optimum is at least the smaller of ``upper`` and the result.
    """
    covers = [list(bits(mask)) for mask in block.covers]
    modes: Modes = tuple((True, may) for may in block.may_split)
    weighted, value = _Weighted.of(block), 0
    for _ in range(ROUNDS):
        total, single, split = _over_weights(weighted, covers, modes)
        value = max(value, total)
        useful = tuple(
            (may_single and single[i] < upper, may_split and split[i] < upper)
            for i, (may_single, may_split) in enumerate(modes)
        )
        if value >= upper or not all(map(any, useful)):
            return _MakespanBound(value=upper, modes=modes)
        if useful == modes:
            break
        modes = useful
    return _MakespanBound(value=value, modes=modes)


def tails(block: OpBlock, durations: Sequence[int]) -> list[int]:
    """For each operator, the longest path that starts with it, itself included, for given durations."""
    covers, out = block.covers, [0] * block.size
    for i in reversed(range(block.size)):
        out[i] = durations[i] + max((out[j] for j in bits(covers[i])), default=0)
    return out


def paths(block: OpBlock) -> list[list[int]]:
    """Operators covered by paths of the precedence graph, longest first, none in two of them."""
    left, out = set(range(block.size)), []
    while left:
        length: dict[int, int] = {}
        following: dict[int, int] = {}
        for i in sorted(left, reverse=True):
            later = [j for j in bits(block.after[i]) if j in left]
            if later:
                following[i] = max(later, key=length.__getitem__)
            length[i] = 1 + (length[following[i]] if later else 0)
        node = max(left, key=length.__getitem__)
        path = [node]
        while path[-1] in following:
            path.append(following[path[-1]])
        out.append(path)
        left.difference_update(path)
    return out


class _Weights(NamedTuple):
    """Weights of tensor cores, vector cores, a shared resource (its traffic) and paths, as multiples of 1 / grid."""

    grid: int
    tensor: int
    vector: int
    paths: int
    shared: int = 0
    traffic: tuple[int, ...] = ()


def _weights(block: OpBlock) -> Iterator[_Weights]:
    """The grid of weights; a shared resource is only combined with one of the others."""
    grid = next(grid for size, grid in GRIDS if block.size <= size)
    for tensor in range(grid + 1 if block.num_tc else 1):
        for vector in range(grid + 1 - tensor if block.num_vc else 1):
            yield _Weights(grid, tensor, vector, grid - tensor - vector)
    for traffic in block.traffic:
        for shared in range(1, grid + 1):
            rest = grid - shared
            for tensor, vector in ((0, 0), (rest, 0), (0, rest)) if rest else ((0, 0),):
                yield _Weights(grid, tensor, vector, rest - tensor - vector, shared, traffic)


@dataclass(frozen=True, slots=True)
class _Weighted:
    """A block under every set of weights, those with most weight on paths first. Everything is times grid * N_tc *
    N_vc, so that it stays whole."""

    scale: int
    step: Whole
    """What an operator on a path counts for, one unit of weight [operators, 1]."""
    alone: Whole
    """Seconds of a split operator [operators, 1]."""
    work: Whole
    paths: list[int]

    @classmethod
    def of(cls, block: OpBlock) -> _Weighted:
        weights = sorted(_weights(block), key=lambda weight: -weight.paths)
        num_tc, num_vc, grid = max(block.num_tc, 1), max(block.num_vc, 1), weights[0].grid
        whole = num_tc * num_vc
        scale = grid * whole
        fits = 4 * scale * (sum(block.latency) + sum(block.intra_latency)) < EXACT
        kind: Any = np.int64 if fits else object

        def column(values: Sequence[int]) -> Whole:
            return np.array(values, dtype=kind)[:, None]

        tensor = column([weight.needs_tensor_core for weight in block.core_types])
        vector = column([weight.needs_vector_core for weight in block.core_types])
        of_tensor, of_vector, of_shared = (
            np.array([getattr(weight, name) * factor for weight in weights], dtype=kind)
            for name, factor in (("tensor", num_vc), ("vector", num_tc), ("shared", whole))
        )
        work = column(block.latency) * (tensor * of_tensor + vector * of_vector)
        if block.traffic:
            moved = np.array([weight.traffic or (0,) * block.size for weight in weights], dtype=kind).T
            work = work + of_shared * moved
        step, alone = whole * column(block.latency), scale * column(block.intra_latency)
        return cls(scale, step, alone, work, [weight.paths for weight in weights])


def _over_weights(weighted: _Weighted, covers: list[list[int]], modes: Modes) -> tuple[int, list[int], list[int]]:
    """The best bound over all weights, and the best with each operator on one core, and with each split."""
    huge = 4 * EXACT
    barred = np.array([[0 if single else huge] for single, _ in modes], dtype=weighted.step.dtype)
    split = np.where([[may] for _, may in modes], weighted.alone, huge)

    def least_of(work: Whole) -> Whole:
        return np.minimum(np.maximum(work, barred), split)

    work, least_work = weighted.work.copy(), least_of(weighted.work)
    with_single, with_split = _through_each(weighted, covers, least_work, least_of)
    for taken in range(weighted.paths[0]):
        count = sum(entry > taken for entry in weighted.paths)
        heavier = work[:, :count] + weighted.step
        more_least = least_of(heavier)
        on_path = _best_path(covers, more_least - least_work[:, :count])
        work[:, :count] = np.where(on_path, heavier, work[:, :count])
        least_work[:, :count] = np.where(on_path, more_least, least_work[:, :count])
    total = least_work.sum(axis=0)
    with_single = np.maximum(with_single, total - least_work + work).max(axis=1)
    with_split = np.maximum(with_split, total - least_work + weighted.alone).max(axis=1)
    single, apart = ([ceil_div(int(x), weighted.scale) for x in entry] for entry in (with_single, with_split))
    return ceil_div(int(total.max()), weighted.scale), single, apart


def _through_each(
    weighted: _Weighted, covers: list[list[int]], least_work: Whole, least_of: Callable[[Whole], Whole]
) -> tuple[Whole, Whole]:
    """The bounds with the whole weight on one path through each operator, on one core and split."""
    on_path = weighted.work + np.array(weighted.paths, dtype=weighted.step.dtype) * weighted.step
    gain = least_of(on_path) - least_work
    ahead, behind = np.zeros_like(gain), gain.copy()
    for i, targets in enumerate(covers):
        for j in targets:
            ahead[j] = np.maximum(ahead[j], ahead[i] + gain[i])
    for i in reversed(range(len(gain))):
        if covers[i]:
            behind[i] += behind[covers[i]].max(axis=0)
    others = least_work.sum(axis=0) - least_work + ahead + behind - gain
    return others + on_path, others + weighted.alone


def _best_path(covers: list[list[int]], gains: Whole) -> Whole:
    """Which operators are on the path with the largest sum of gains, under each set of weights."""
    ahead, following = gains.copy(), np.full(gains.shape, -1)
    for i in reversed(range(len(gains))):
        below = covers[i]
        if len(below) == 1:
            following[i] = below[0]
            ahead[i] += ahead[below[0]]
        elif below:
            those = ahead[below]
            following[i] = np.array(below)[those.argmax(axis=0)]
            ahead[i] += those.max(axis=0)
    node, on = ahead.argmax(axis=0), np.zeros(gains.shape, dtype=bool)
    for i in range(len(gains)):
        on[i] = node == i
        node = np.where(on[i], following[i], node)
    return on


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
