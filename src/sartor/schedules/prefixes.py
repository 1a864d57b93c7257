"""Exact schedules from the front: one more operator at a time, keeping only the prefixes that may still be the best.

A *prefix* has the operators that start first in place. The next one starts when its cores are free and its predecessors
have ended, no earlier than the last one started. A prefix is dropped if another with the same operators is as good
(`dominance`), if its lower bound (`remaining`) is no better than the best schedule, or if another operator would have
fitted, from start to end, into the time before the last start.

Why an optimum survives: complete a kept prefix to one with the least sum of end times. Nothing else fits before its
next operator, so the prefix with that one is made; if it is dropped, another can be completed in the same way.

Prefixes of equally many operators are extended together. Those beyond a number are given up, and their least bound is
remembered, so that a narrow search has a schedule and a bound too; then a wider one begins.

Of two prefixes with the same operators, one is as good as the other if its last start is no later, nor do its cores get
free later, nor the operators end that others wait for. Operators on one path never run at once, so of each kind no more
cores matter than there are paths with operators to come: those that get free first, and, since a split operator needs
all, the one that gets free last.

The time that a schedule still takes is bounded as in `bounds`: with weights of tensor cores, vector cores and one path
that add up to one, each operator to come adds its time on all cores or its weighted time on one, whichever is less;
cores that are still busy add their weighted time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import inf

import numpy as np

from sartor.interrupts import asked
from sartor.schedules.bounds import paths
from sartor.schedules.split import BlockAnswer, OpBlock, Timetable, bits
from sartor.units import BoolArray, IntArray, ceil_div

MOST_OPERATORS = 62
WIDTHS = (4_000, 32_000, 200_000)
"""Most prefixes that each search makes of one number of operators; the last takes up to 1 GB."""
PREFIX_S = 5e-6
"""Seconds that a limit on work counts per prefix made (GPT-3's backward layer on 4 x 4 cores, 2026-11: 4e-6)."""
LONG_S = 1.0
"""Least seconds of work for a block that the second clock leaves open: of 36 of DeepSeek-V3's, 3 stay open, not 7."""
FAR = 1 << 60
"""The start of operators that can't be next."""


def applies(block: OpBlock) -> bool:
    """Whether operators share nothing but cores, and there are not too many."""
    return 1 < block.size <= MOST_OPERATORS and not block.traffic and _fits(block)


def improve(
    block: OpBlock, hint: Timetable, lower_bound: int, limit_s: float = inf, work_s: float = inf
) -> BlockAnswer:
    """A better schedule and bound than ``hint`` and ``lower_bound`` if it `applies`, else these. ``work_s`` limits
    seconds of work, counted equally on every machine."""
    if not applies(block):
        return BlockAnswer(timetable=hint, lower_bound=lower_bound)
    search = _Search(block, hint, lower_bound, time.perf_counter() + limit_s, work_s)
    interrupted = False
    try:
        for width in WIDTHS:
            if search.proved < search.upper and not search.late():
                search.run(width)
    except KeyboardInterrupt:
        interrupted = True
    return BlockAnswer(
        timetable=search.best,
        lower_bound=min(search.proved, search.upper),
        interrupted=interrupted or asked(),
        method="prefix search",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefixes:
    """Prefixes of equally many operators. Times count from ``last`` on, before which nothing else starts.

    [prefixes]: ``begun`` operators as bits, ``last``, the least makespan ``bound``, and how each was made: the row of
    its ``parent``, the operator ``added`` (plus the number of operators if it is split), and its ``start``.
    [prefixes, cores and operators]: ``until`` tensor cores are free, then vector cores, each ascending; then until
    operators end that others wait for. [prefixes, operators]: the earliest ``starts`` of those that can be next.
    """

    begun: IntArray
    last: IntArray
    bound: IntArray
    parent: IntArray
    added: IntArray
    start: IntArray
    until: IntArray
    starts: IntArray

    def only(self, rows: IntArray | BoolArray) -> _Prefixes:
        return _Prefixes(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


class _Search:
    """The best schedule and bound so far, and what is needed to extend prefixes."""

    def __init__(self, block: OpBlock, hint: Timetable, lower_bound: int, deadline: float, work_s: float) -> None:
        self.block, self.deadline, self.work_s = block, deadline, work_s
        self.best, self.upper, self.proved = hint, hint.makespan(block), lower_bound
        self.remaining, self.dominance = _Remaining(block), _Dominance(block)
        self.latency, self.intra = np.array(block.latency), np.array(block.intra_latency)
        self.may_split = np.array(block.may_split)
        self.before, self.covers = np.array(block.before), np.array(block.covers)
        self.cores = block.num_tc + block.num_vc
        tensor, vector = np.array([(kind.needs_tensor_core, kind.needs_vector_core) for kind in block.core_types]).T
        self.kinds = [(slice(0, block.num_tc), tensor), (slice(block.num_tc, self.cores), vector)]
        self.awaits = [
            [kind.start for kind, users in self.kinds if users[j]]
            + [self.cores + i for i, mask in enumerate(block.covers) if mask >> j & 1]
            for j in range(block.size)
        ]
        """Columns of ``until`` that each operator waits for."""

    def late(self) -> bool:
        """Whether time or work is spent, or Ctrl-C was pressed."""
        return self.work_s <= 0 or time.perf_counter() > self.deadline or asked()

    def run(self, width: int) -> None:
        """Extend to schedules, at most ``width`` prefixes of each number of operators."""
        given_up, history = self.upper, list[tuple[IntArray, IntArray, IntArray]]()
        now = self._settled(self._nothing())
        for _ in range(self.block.size):
            if not len(now.last) or self.late():
                break
            single, split = self._choices(now)
            order = np.argsort(now.bound, kind="stable")
            beyond = order[np.cumsum((single.sum(axis=1) + split.sum(axis=1))[order]) > width]
            given_up = min([given_up, *now.bound[beyond].tolist()])
            single[beyond] = split[beyond] = False
            now = self._settled(self._extended(now, single, split))
            now = now.only(self.dominance.undominated(now.begun, now.last, now.until))
            history.append((now.parent, now.added, now.start))
        if len(history) < self.block.size:
            given_up = min([given_up, *now.bound.tolist()])
        elif len(now.last):
            self.best = self._schedule(history, int(now.last.argmin()))
            self.upper = self.best.makespan(self.block)
        self.proved = max(self.proved, given_up)

    def _nothing(self) -> _Prefixes:
        zero = np.zeros(1, dtype=np.int64)
        until = np.zeros((1, self.cores + self.block.size), dtype=np.int64)
        return _Prefixes(
            begun=zero, last=zero, bound=zero, parent=zero, added=zero, start=zero, until=until, starts=until
        )

    def _choices(self, now: _Prefixes) -> tuple[BoolArray, BoolArray]:
        """Which operators [prefixes, operators] may be next on one core, and which split: not if another one, or the
        same on one core, ends before that start."""
        ends = np.where(now.starts < FAR, now.starts + self.latency, FAR)
        first, second = np.partition(ends, 1, axis=1)[:, :2].T[:, :, None]
        is_first = np.arange(self.block.size) == ends.argmin(axis=1)[:, None]
        single = now.starts < np.where(is_first, second, first)
        drained = now.until.max(axis=1, keepdims=True)
        return single, (now.starts < FAR) & self.may_split & (drained < first)

    def _extended(self, now: _Prefixes, single: BoolArray, split: BoolArray) -> _Prefixes:
        """The prefixes with one more operator; their starts are still to be `_settled`."""
        (rows, operators), (others, apart) = np.nonzero(single), np.nonzero(split)
        wait = now.starts[rows, operators]
        until = np.maximum(now.until[rows] - wait[:, None], 0)
        for kind, users in self.kinds:
            mine = np.flatnonzero(users[operators])
            until[mine, kind.start] = self.latency[operators[mine]]
            until[:, kind].sort(axis=1)
        until[np.arange(len(rows)), self.cores + operators] = self.latency[operators]
        parent, added = np.concatenate([rows, others]), np.concatenate([operators, apart])
        start = now.last[parent] + np.concatenate([wait, now.until[others].max(axis=1)])
        self.work_s -= PREFIX_S * len(parent)
        return _Prefixes(
            begun=now.begun[parent] | np.left_shift(1, added),
            last=start + np.concatenate([np.zeros_like(wait), self.intra[apart]]),
            bound=now.bound[parent],
            parent=parent,
            added=np.concatenate([operators, apart + self.block.size]),
            start=start,
            until=np.concatenate([until, np.zeros_like(now.until[others])]),
            starts=now.starts,
        )

    def _settled(self, extended: _Prefixes) -> _Prefixes:
        """With starts of what can be next, times from the earliest of them on, and bounds; without those that are no
        better than the best schedule."""
        begun, which = np.unique(extended.begun, return_inverse=True)
        has = (begun[:, None] >> np.arange(self.block.size) & 1).astype(bool)
        can = ~has & (self.before & ~begun[:, None] == 0)
        awaited = has & (self.covers & ~begun[:, None] != 0)
        until = extended.until.copy()
        until[:, self.cores :] *= awaited[which]
        starts = np.stack([until[:, columns].max(axis=1) for columns in self.awaits], axis=1)
        starts = np.where(can[which], starts, FAR)
        wait = np.minimum(starts.min(axis=1), until.max(axis=1))
        until, starts = np.maximum(until - wait[:, None], 0), np.where(starts < FAR, starts - wait[:, None], FAR)
        last = extended.last + wait
        bound = np.maximum(extended.bound, last + self.remaining.least(has, which, until))
        return replace(extended, last=last, bound=bound, until=until, starts=starts).only(bound < self.upper)

    def _schedule(self, history: list[tuple[IntArray, IntArray, IntArray]], row: int) -> Timetable:
        """The schedule of a complete prefix."""
        size = self.block.size
        starts, split = [0] * size, [False] * size
        for parent, added, start in reversed(history):
            how, i = divmod(int(added[row]), size)
            starts[i], split[i], row = int(start[row]), bool(how), int(parent[row])
        return Timetable(starts=tuple(starts), split=tuple(split))


GRID = 4
"""Weights are multiples of 1 / GRID; 8 and 16 brought nothing on backward layers."""
EXACT = 1 << 60


def _fits(block: OpBlock) -> bool:
    """Whether all sums fit in 64 bits."""
    return _scale(block) * (sum(block.latency) + sum(block.intra_latency)) < EXACT


def _scale(block: OpBlock) -> int:
    return GRID * max(block.num_tc, 1) * max(block.num_vc, 1)


class _Remaining:
    """Arrays [operators, weights], in units of 1 / ``scale``: what each operator adds at least, and what the best path
    that starts with it adds to that."""

    def __init__(self, block: OpBlock) -> None:
        self.scale, self.num_tc, self.cores = _scale(block), block.num_tc, block.num_tc + block.num_vc
        weights = [(t, v, GRID - t - v) for t in range(GRID + 1) for v in range(GRID + 1 - t)]
        tensor, vector, path = self.scale // GRID * np.array(weights, dtype=np.int64).T
        self.tensor, self.vector = tensor // max(block.num_tc, 1), vector // max(block.num_vc, 1)
        single, split = (np.array(times, dtype=np.int64)[:, None] for times in (block.latency, block.intra_latency))
        uses_tensor = np.array([[kind.needs_tensor_core] for kind in block.core_types])
        uses_vector = np.array([[kind.needs_vector_core] for kind in block.core_types])
        work = single * (uses_tensor * self.tensor + uses_vector * self.vector)
        self.each = np.minimum(work, self.scale * split)
        self.path = np.minimum(work + single * path, self.scale * split) - self.each
        for i in reversed(range(block.size)):
            if later := list(bits(block.covers[i])):
                self.path[i] += self.path[later].max(axis=0)

    def least(self, begun: BoolArray, which: IntArray, until: IntArray) -> IntArray:
        """The least time to come [prefixes]: sets of ``begun`` operators [sets, operators], ``which`` set each prefix
        has, and ``until`` when its tensor cores, then its vector cores are busy [prefixes, cores and more]."""
        longest = np.max([np.where(begun[:, i, None], 0, path) for i, path in enumerate(self.path)], axis=0)
        to_come = ~begun @ self.each + longest
        tensor, vector = until[:, : self.num_tc].sum(axis=1), until[:, self.num_tc : self.cores].sum(axis=1)
        busy = np.outer(tensor, self.tensor) + np.outer(vector, self.vector)
        return np.asarray(ceil_div((to_come[which] + busy).max(axis=1), self.scale))


LEADERS = 2000
"""Most prefixes of the same operators that the others are compared with: those with the smallest sums of times."""
AT_ONCE = 64
"""Of those, how many at once."""


class _Dominance:
    """Columns of ``until`` [prefixes, columns], times after ``last``: tensor cores, then vector cores, each kind in the
    order in which they get free; then operators."""

    def __init__(self, block: OpBlock) -> None:
        cover = [sum(1 << i for i in path) for path in paths(block)]
        tensor = sum(kind.needs_tensor_core << i for i, kind in enumerate(block.core_types))
        vector = sum(kind.needs_vector_core << i for i, kind in enumerate(block.core_types))
        self.kinds = [
            (0, block.num_tc, [path & tensor for path in cover]),
            (block.num_tc, block.num_tc + block.num_vc, [path & vector for path in cover]),
        ]

    def undominated(self, begun: IntArray, last: IntArray, until: IntArray) -> IntArray:
        """Rows to keep; of equally good ones the first. ``begun``: the operators of each, as bits."""
        order = np.lexsort(((until.shape[1] + 1) * last + until.sum(axis=1), begun))
        cuts = [*np.flatnonzero(np.diff(begun[order], prepend=-1)).tolist(), len(order)]
        survivors = [order]
        for a, b in pairwise(cuts):
            rows = order[a:b]
            survivors.append(rows[_undominated(self._times(int(begun[rows[0]]), last[rows], until[rows]))])
        return np.concatenate(survivors[1:] or survivors)

    def _times(self, begun: int, last: IntArray, until: IntArray) -> IntArray:
        """What is compared [times, prefixes] of prefixes with the same operators."""
        useful: BoolArray = np.any(until, axis=0)
        for first, end, masks in self.kinds:
            useful[first + sum(mask & ~begun > 0 for mask in masks) : end] = False
        return np.stack([last, last + until.max(axis=1), *(last + until[:, k] for k in np.flatnonzero(useful))])


def _undominated(times: IntArray) -> IntArray:
    """Columns, ascending by their sums, that are in some row smaller than each one before."""
    left, done = np.arange(times.shape[1]), 0
    while done < min(len(left), LEADERS):
        worse = np.triu(np.ones((min(AT_ONCE, len(left) - done), len(left) - done), dtype=bool), 1)
        for end in times[:, done:]:
            worse &= end[: len(worse), None] <= end
        survivors = np.concatenate([np.ones(done, dtype=bool), ~worse.any(axis=0)])
        done += int(survivors[done : done + AT_ONCE].sum())
        left, times = left[survivors], times[:, survivors]
    return left
