"""A lower bound from the second clock alone: an integer program far smaller than the schedule, and nearly as tight.

Split operators run alone, so T = Q + M: Q is the sum of their times, M the end of a clock that stops while one of them
runs (`cp_sat`). With y_i = 1 if operator i is split, l_i and q_i its times on one core and on all, c_i its start on
that clock, and N cores of a kind,

    minimise M + sum of q_i y_i
    c_j >= c_i + l_i (1 - y_i)                            i directly before j;  M likewise
    N M, N c_i, N (M - end of i) >= one-core work         of all, of all before i, of all after i; likewise for traffic

Every schedule obeys these rows. What they mainly miss is that nothing else runs beside a split operator: if its place
on the clock is within a one-core operator, the pair gets a binary that orders the two, and the program is solved again.
After a few rounds there are no such pairs; the bound is then nearly always the optimum, and the order optimal. CP-SAT
solves the program in whole numbers, so the bound is exact. The backward pass of an expert layer of DeepSeek-V3 (45
operators), 20 to 50 s of CPU time for CP-SAT on the whole schedule, takes 0.3 s.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sartor.interrupts import asked
from sartor.schedules import cp_sat
from sartor.schedules.split import BlockAnswer, OpBlock, Timetable, bits, crowds, spread

MOST_OPERATORS = 120
ROUNDS = 6
"""Most solves of the program; three were enough for all layers so far."""
MOST_PAIRS = 40
"""Pairs ordered after each solve, those with most overlap."""
MOST_WORK = 0.2
"""CP-SAT's units of work for one solve; the largest layer so far needed 0.07 in all."""


def improve(block: OpBlock, hint: Timetable, lower_bound: int) -> BlockAnswer:
    """``hint`` and ``lower_bound``, or better ones; deterministic."""
    best, proved, program = hint, lower_bound, _Program(block, hint.makespan(block))
    for _ in range(ROUNDS if block.size <= MOST_OPERATORS else 0):
        answer = program.solve()
        if answer is None or asked():
            break
        proved = max(proved, answer.bound)
        table = timetable(block, answer.split, answer.clock)
        table = spread(block, table) if crowds(block, table) else table
        best = min(best, table, key=lambda candidate: candidate.makespan(block))
        if proved >= best.makespan(block) or not program.order_pairs(answer):
            break
    return BlockAnswer(timetable=best, lower_bound=min(proved, best.makespan(block)), interrupted=asked())


class _Found(NamedTuple):
    bound: int
    split: tuple[bool, ...]
    clock: tuple[int, ...]


class _Program:
    """Columns y, c, M, then a binary per ordered pair; rows ``sum of coefficient * column >= least``."""

    def __init__(self, block: OpBlock, horizon: int) -> None:
        # Some slack, as in `cp_sat`: "infeasible" was wrong once at a horizon of exactly the optimum.
        self.block, self.horizon, size = block, horizon + max(1, horizon // 50), block.size
        self.end, self.num_columns = 2 * size, 2 * size + 1
        self.rows: list[tuple[dict[int, int], int]] = []
        self.related = [after | before for after, before in zip(block.after, block.before, strict=True)]
        self.pairs: set[tuple[int, int]] = set()
        types, ahead, behind = block.core_types, block.before, block.after
        needs: list[tuple[dict[int, int], int]] = [
            ({i: time for i, time in enumerate(block.latency) if types[i].needs_tensor_core}, block.num_tc),
            ({i: time for i, time in enumerate(block.latency) if types[i].needs_vector_core}, block.num_vc),
            *(({i: time for i, time in enumerate(row) if time}, 1) for row in block.traffic),
        ]
        for i, time in enumerate(block.latency):
            for after in (*(size + j for j in bits(block.covers[i])), self.end):
                self._row({after: 1, size + i: -1, i: time}, time)
            for users, count in needs:
                earlier, later = ({k: users[k] for k in bits(mask) if k in users} for mask in (ahead[i], behind[i]))
                self._work_fits(earlier, {size + i: count}, 0)
                self._work_fits(later, {self.end: count, size + i: -count, i: count * time}, count * time)
        for users, count in needs:
            self._work_fits(users, {self.end: count}, 0)

    def _row(self, row: dict[int, int], lowest: int) -> None:
        self.rows.append((row, lowest))

    def _work_fits(self, work: Mapping[int, int], room: dict[int, int], taken: int) -> None:
        """A row that fits the one-core ``work`` of operators into ``room`` minus ``taken``."""
        if work:
            self._row({**room, **work}, taken + sum(work.values()))

    def order_pairs(self, solution: _Found) -> bool:
        """Add constraints for split operators that are inside a one-core one; returns whether any were added."""
        block, clock = self.block, solution.clock
        inside = []
        for i in (i for i, split in enumerate(solution.split) if split):
            for k in (k for k, split in enumerate(solution.split) if not split):
                deep = min(clock[i] - clock[k], clock[k] + block.latency[k] - clock[i])
                if deep > 0 and not self.related[i] >> k & 1 and (i, k) not in self.pairs:
                    inside.append((-deep, i, k))
        for _, i, k in sorted(inside)[:MOST_PAIRS]:
            self._order(i, k)
        return bool(inside)

    def _order(self, i: int, k: int) -> None:
        """If i is split and k on one core, k ends before i or starts after it."""
        size, far, time, first = self.block.size, self.horizon, self.block.latency[k], self.num_columns
        self._row({size + i: 1, size + k: -1, k: time, first: -far, i: -far}, time - 2 * far)
        self._row({size + k: 1, size + i: -1, first: far, i: -far, k: far}, -far)
        self.pairs.add((i, k))
        self.num_columns += 1

    def solve(self) -> _Found | None:
        """The best modes and clock with their bound; None if the limit came first."""
        model, size = cp_sat.cp_model().CpModel(), self.block.size
        modes = [model.new_bool_var("") if may else model.new_constant(0) for may in self.block.may_split]
        clock = [model.new_int_var(0, self.horizon, "") for _ in range(size + 1)]
        pairs = [model.new_bool_var("") for _ in self.pairs]
        columns = (*modes, *clock, *pairs)
        for row, lowest in self.rows:
            model.add(sum(value * columns[column] for column, value in row.items()) >= lowest)
        model.minimize(clock[-1] + sum(time * mode for time, mode in zip(self.block.intra_latency, modes, strict=True)))
        bound, value = cp_sat.least(model, MOST_WORK)
        if value is None:
            return None
        return _Found(bound, tuple(bool(value(mode)) for mode in modes), tuple(map(value, clock[:size])))


def timetable(block: OpBlock, split: Sequence[bool], clock: Sequence[int]) -> Timetable:
    """The schedule with these modes in the order of ``clock``: a split operator waits for all earlier ones and later
    ones wait for it; others start as soon as a core is free."""
    keys = [(moment, not alone, i) for i, (moment, alone) in enumerate(zip(clock, split, strict=True))]
    waiting = [before.bit_count() for before in block.before]
    ready = [keys[i] for i in range(block.size) if not waiting[i]]
    heapq.heapify(ready)
    starts, ends, running = [0] * block.size, [0] * block.size, list[int]()
    barrier = alone_s = 0
    while ready:
        i = heapq.heappop(ready)[2]
        if split[i]:
            barrier = max([barrier, *(ends[k] for k in running)])
            starts[i] = ends[i] = barrier
            starts[i] += alone_s
            alone_s += block.intra_latency[i]
        else:
            first = max([barrier, *(ends[k] for k in bits(block.before[i]))])
            moment = _free_from(block, i, first, [(ends[k] - block.latency[k], ends[k], k) for k in running])
            starts[i], ends[i] = moment + alone_s, moment + block.latency[i]
            running.append(i)
        for j in bits(block.after[i]):
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, keys[j])
    return Timetable(starts=tuple(starts), split=tuple(map(bool, split)))


def _free_from(block: OpBlock, i: int, first: int, running: Sequence[tuple[int, int, int]]) -> int:
    """The earliest time from ``first`` on with free cores for operator i; ``running`` are the intervals already
    placed."""
    time = block.latency[i]
    for moment in sorted({first, *(end for _, end, _ in running if end > first)}):
        beside = [(a, b, k) for a, b, k in running if a < moment + time and b > moment]
        moments = {moment, *(a for a, _, _ in beside if a > moment)}
        if all(_fits(block, i, [k for a, b, k in beside if a <= t < b]) for t in moments):
            return moment
    return max(end for _, end, _ in running)


def _fits(block: OpBlock, i: int, running: Sequence[int]) -> bool:
    together = [block.core_types[k] for k in (i, *running)]
    tensor, vector = (sum(k.needs_tensor_core for k in together), sum(k.needs_vector_core for k in together))
    cores = tensor <= block.num_tc and vector <= block.num_vc
    return cores
