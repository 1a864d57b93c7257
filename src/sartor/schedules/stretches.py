"""Exact schedules of narrow blocks: the shortest path over downsets, refining only the stretches that matter.

Every stretch starts with a lower bound (`downsets`). In each round the stretches on the shortest paths get a tighter
bound and a schedule: first by list scheduling, then by CP-SAT, which searches only for times that would help: shorter
than the operators one after another, and on a path shorter than the best schedule. A stretch takes at least as long as
any stretch it contains, so one bound serves many. When no shorter path is left, the best schedule is proved.

Backward layers with perfect splitting, after 20 s of one core: BERT is proved on 2 x 2 and 4 x 4 cores; GPT-3 has a
gap of 0.6 and 1.9% (CP-SAT alone: 0.8 and 5%).
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import ceil, inf

import numpy as np

from sartor.interrupts import asked
from sartor.schedules import cp_sat, greedy
from sartor.schedules.answer import BlockAnswer
from sartor.schedules.downsets import FAR, Edges, Lattice, downsets, together
from sartor.schedules.split import OpBlock, Timetable, bits
from sartor.units import IntArray

MOST_OPERATORS = 62
MOST_DOWNSETS = 8000
"""Time grows with its square: all pairs are compared."""
AT_A_TIME = 32
"""Stretches refined per round."""
LOOKS = (0.02, 0.1, 0.5, 2.0)
"""CP-SAT's units of work the first times a stretch is refined; then four times as much each time."""
PAIR_S, EDGE_S, LISTS_S, SOLVER_S = 1e-7, 1e-6, 1e-3, 0.02
"""Seconds that a limit on work counts: per pair of downsets, per edge and round, per stretch scheduled by lists, and
per stretch given to CP-SAT beyond its units."""


def narrow(block: OpBlock) -> list[int] | None:
    """The downsets of the block; None if there are too many or the operators share memory or links."""
    few = block.size <= MOST_OPERATORS and not block.traffic
    return downsets(block, MOST_DOWNSETS) if few else None


def improve(
    block: OpBlock, hint: Timetable, lower_bound: int, limit_s: float = inf, work_s: float = inf
) -> BlockAnswer:
    """A better schedule and bound than ``hint`` and ``lower_bound`` if the block is `narrow`, else these. ``work_s``
    limits seconds of work, counted equally on every machine."""
    deadline, masks = time.perf_counter() + limit_s, narrow(block)
    if masks is None or limit_s <= 0 or len(masks) ** 2 * PAIR_S > work_s:
        return BlockAnswer(timetable=hint, lower_bound=lower_bound)
    ways = _Ways(Lattice(block, masks), hint, lower_bound, deadline, work_s - len(masks) ** 2 * PAIR_S)
    while ways.open() and not ways.late() and ways.look():
        pass
    return BlockAnswer(timetable=ways.best, lower_bound=min(ways.proved, ways.upper), interrupted=asked())


class _Ways:
    """Paths that may be shorter than the best schedule. Arrays [stretches]: ``masks`` of operators, ``least`` and
    ``most`` time, ``looks``: how often each was refined."""

    def __init__(self, lattice: Lattice, hint: Timetable, lower_bound: int, deadline: float, work_s: float) -> None:
        self.lattice, self.block, self.deadline, self.work_s = lattice, lattice.block, deadline, work_s
        self.best, self.upper, self.proved = hint, hint.makespan(self.block), lower_bound
        self.steps, self.alone = lattice.steps()
        self.edges, cost = lattice.stretches(self.upper)
        for bound in (lattice.longest_chains, lattice.busy):
            cost = np.maximum(cost, bound(self.edges))
            kept = cost <= self._helps(cost)[0]
            self.edges, cost = self.edges.only(kept), cost[kept]
        masks = lattice.masks[self.edges.after] & ~lattice.masks[self.edges.before]
        self.masks, which = np.unique(masks, return_inverse=True)
        self.which: IntArray = which.reshape(-1)
        self.least = np.zeros(len(self.masks), dtype=np.int64)
        np.maximum.at(self.least, self.which, cost)
        self.most, self.looks = np.full(len(self.masks), FAR), np.zeros(len(self.masks), dtype=np.int64)
        self.tables: dict[int, Timetable] = {}

    def open(self) -> bool:
        return self.proved < self.upper

    def late(self) -> bool:
        """Whether time or work is spent, or Ctrl-C was pressed."""
        return self.work_s <= 0 or time.perf_counter() > self.deadline or asked()

    def look(self) -> bool:
        """Refine the stretches on the shortest paths; False if none is left."""
        self.work_s -= EDGE_S * len(self.edges.before)
        self._shortest()
        helps, rest = self._helps(self.least[self.which])
        kept = self.least[self.which] <= helps
        self.edges, self.which, helps, rest = self.edges.only(kept), self.which[kept], helps[kept], rest[kept]
        longest, shortest = np.full(len(self.masks), -1), np.full(len(self.masks), FAR)
        np.maximum.at(longest, self.which, helps)
        np.minimum.at(shortest, self.which, rest + self.least[self.which])
        some = np.flatnonzero((shortest < FAR) & (self.least < self.most))
        # A stretch that was refined in vain waits until others on equally short paths had their turn.
        wait = np.maximum(self.looks[some] - 1, 0) * max((self.upper - self.proved) // 8, 1)
        for s in some[np.argsort(shortest[some] + wait, kind="stable")][:AT_A_TIME].tolist():
            if self.least[s] <= longest[s] and not self.late():
                self._time(s, int(longest[s]))
        return bool(len(some))

    def _helps(self, least: IntArray) -> tuple[IntArray, IntArray]:
        """The longest time [edges] of each stretch with which a path may be shorter than the best schedule, and the
        rest of the shortest path through it, from the stretches' ``least`` times."""
        every, order = together(self.edges, self.steps)
        cost = np.concatenate([least, self.alone])[order]
        ahead, behind = every.ahead(cost, len(self.lattice)), every.behind(cost, len(self.lattice))
        self.proved = max(self.proved, min(int(ahead[-1]), self.upper))
        in_turn = self.lattice.serial[self.edges.after] - self.lattice.serial[self.edges.before]
        rest = ahead[self.edges.before] + behind[self.edges.after]
        return np.minimum(self.upper - rest, in_turn) - 1, rest

    def _shortest(self) -> None:
        """Keep the schedule along the shortest path of reached times, if it is better."""
        every, order = together(self.edges, self.steps)
        cost = np.concatenate([self.most[self.which], self.alone])[order]
        ahead = every.ahead(cost, len(self.lattice))
        if ahead[-1] < self.upper:
            self.best, self.upper = self._along(every, cost, ahead), int(ahead[-1])

    def _along(self, every: Edges, cost: IntArray, ahead: IntArray) -> Timetable:
        """The schedule of a shortest path, built from its end."""
        starts, split, at = [0] * self.block.size, [False] * self.block.size, len(ahead) - 1
        while at:
            mine = np.flatnonzero(every.after == at)
            edge = mine[np.argmin(ahead[every.before[mine]] + cost[mine])]
            last, at = at, int(every.before[edge])
            mask = int(self.lattice.masks[last] & ~self.lattice.masks[at])
            operators, table = list(bits(mask)), self.tables.get(mask)
            for k, i in enumerate(operators):
                starts[i] = int(ahead[at]) + (table.starts[k] if table else 0)
                split[i] = table is None and self.block.may_split[i]
        return Timetable(starts=tuple(starts), split=tuple(split))

    def _time(self, s: int, longest: int) -> None:
        """A better bound for a stretch and for those that contain it, and a schedule within ``longest`` if found."""
        mask, looked = int(self.masks[s]), int(self.looks[s])
        block = stretch(self.block, mask)
        if looked:
            work = LOOKS[min(looked, len(LOOKS)) - 1] * 4 ** max(looked - len(LOOKS), 0)
            work = min(work, self.work_s * cp_sat.WORK_PER_S)
            least, table, spent = cp_sat.solve_stretch(block, self.tables[mask], int(self.least[s]), longest, work)
            self.work_s -= SOLVER_S + spent / cp_sat.WORK_PER_S
        else:
            self.work_s -= LISTS_S
            least, table = lower_bound(block), min(greedy.by_lists(block), key=lambda each: each.makespan(block))
        wider = (self.masks & self.masks[s]) == self.masks[s]
        self.least = np.maximum(self.least, np.where(wider, least, 0))
        self.looks[s] += 1
        if table.makespan(block) < self.most[s]:
            self.most[s], self.tables[mask] = table.makespan(block), table


def stretch(block: OpBlock, mask: int) -> OpBlock:
    """Some operators of a block, each on one core."""
    chosen = list(bits(mask))
    new = {old: k for k, old in enumerate(chosen)}
    types, latency = tuple(block.core_types[i] for i in chosen), tuple(block.latency[i] for i in chosen)
    return replace(
        block,
        num_tc=min(block.num_tc, sum(kind.needs_tensor_core for kind in types)),
        num_vc=min(block.num_vc, sum(kind.needs_vector_core for kind in types)),
        core_types=types,
        latency=latency,
        intra_latency=latency,
        after=tuple(sum(1 << new[j] for j in bits(block.after[i] & mask)) for i in chosen),
    )


def lower_bound(block: OpBlock) -> int:
    """Lower bound of a stretch: longest paths, and work per kind of core with the least time before and after."""
    heads, tails = _heads_and_tails(block)
    best = max(head + tail for head, tail in zip(heads, tails, strict=True))
    later = [tail - time for tail, time in zip(tails, block.latency, strict=True)]
    for count, users in cp_sat.users_of(block):
        for head in {heads[i] for i in users}:
            behind = [i for i in users if heads[i] >= head]
            for tail in {later[i] for i in behind}:
                between = [block.latency[i] for i in behind if later[i] >= tail]
                best = max(best, head + _packed(between, count) + tail)
    return best


def _packed(times: list[int], count: int) -> int:
    """Lower bound of ``times`` on N cores: the mean load; and of the k N + 1 longest, some core has k + 1."""
    falling = sorted(times, reverse=True)
    rounds = range(ceil(len(times) / count))
    return max(-(-sum(times) // count), *(sum(falling[k * count - k : k * count + 1]) for k in rounds))


def _heads_and_tails(block: OpBlock) -> tuple[list[int], list[int]]:
    """The longest path before each operator, and the longest that starts with it."""
    heads, tails = [0] * block.size, list(block.latency)
    for i, mask in enumerate(block.covers):
        for j in bits(mask):
            heads[j] = max(heads[j], heads[i] + block.latency[i])
    for i in reversed(range(block.size)):
        tails[i] += max((tails[j] for j in bits(block.covers[i])), default=0)
    return heads, tails
