"""The default solver: constraint programming over optional intervals (OR-Tools CP-SAT, extra ``solve``).

Every operator has one fixed-size interval per useful mode. Proofs are fast because of a second clock. Split operators
run alone, so T = Q + M: Q is the sum of their times, M the time in which only single-core operators run. On a clock
that stops while a split operator runs, precedence holds with one-core times only, and its end M obeys the same limits
of work per core. These redundant rows cut off no solution, but they show the linear relaxation what splitting one
operator costs all others, which cumulative constraints alone do not. The true backward graph of a GPT-3 layer, open
after 140 s without them, is proved in less than a second.

Shared resources (memory, buffer, links) can serve all traffic if no set of operators needs more time than from its
first start to its last end. Few sets come close to this: constraints are added only for sets that a solution overloads,
and the model is solved again.

The second clock alone gives a lower bound (`improve`): an integer program far smaller than the schedule, and nearly as
tight. With y_i = 1 if operator i is split, l_i and q_i its times on one core and on all, c_i its start on
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
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from sartor.errors import MissingExtraError
from sartor.interrupts import asked
from sartor.schedules.bounds import paths
from sartor.schedules.split import BlockAnswer, Crowd, OpBlock, Timetable, bits, crowds, spread

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntervalVar, IntVar

WORKERS = 8
"""CP-SAT's search portfolio needs eight workers even on one core (docs/dependencies.md)."""
SEED = 1
WORK_PER_S = 0.2
"""CP-SAT's deterministic units per second of a limit that counts work. Of 31 blocks of GPT-2 XL, Llama-2-7B and
Mixtral-8x7B, one worker proved 28 within 0.01 units (2026-11)."""
ALONE_S = 0.05
"""Seconds of work before the second clock is tried: by then most is proved of what will be."""
SHARED_S = 1.0
"""Least seconds of work for a block with shared resources: of 9 layers on chips with little memory bandwidth that were
open after 0.05, 0.4 proved 6 and 1.0 all (2026-11)."""
PATIENCE_S, PATIENCE = 300.0, 20.0
"""Wall-clock limit of a solve that is limited by work, for busy machines: in seconds, and as a multiple of the work."""
HEADS_UP_TO = 120
"""Largest block in which each operator also gets rows for the work before and after it: quadratically many terms."""


def solve_block(block: OpBlock, hint: Timetable, lower_bound: int, time_limit_s: float) -> BlockAnswer:
    """The best schedule found within the limit, starting from ``hint``, and the best bound proved.

    Loading OR-Tools and writing the model count against the limit.
    """
    begin = time.perf_counter()
    model = _Model(block, hint, lower_bound)
    if (time_limit_s := time_limit_s - (time.perf_counter() - begin)) <= 0:
        return BlockAnswer(timetable=hint, lower_bound=lower_bound)
    return _answer(model, hint, lower_bound, WORKERS, time_limit_s)


def solve_block_by_work(block: OpBlock, hint: Timetable, lower_bound: int, limit_s: float) -> BlockAnswer:
    """Like `solve_block`, but limited by the solver's own units of work, with one deterministic worker: the answer does
    not depend on how busy the machine is."""
    model = _Model(block, hint, lower_bound)
    return _answer(model, hint, lower_bound, 1, max(PATIENCE_S, PATIENCE * limit_s), limit_s * WORK_PER_S)


def _least(model: CpModel, work: float) -> tuple[int, Callable[[Any], int] | None]:
    """Lower bound of a model's objective, and the values of the best solution found within ``work``, if any."""
    cp = cp_model()
    solver = _solver(cp, 1, PATIENCE_S, work)
    # All rows in the linear relaxation: of 53 layers of DeepSeek-V3 it proved all, 3 stayed open with the default.
    solver.parameters.linearization_level = 2
    status, _ = _run(solver, model)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return 0, None
    return round(solver.best_objective_bound), solver.value


def _solver(cp: ModuleType, workers: int, time_limit_s: float, work: float) -> CpSolver:
    solver: CpSolver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = SEED
    # Work per core as a propagator: layers whose GEMMs gain nothing from splitting are proved 5 times as fast.
    solver.parameters.use_overload_checker_in_cumulative = True
    solver.parameters.catch_sigint_signal = False
    return solver


def _answer(
    model: _Model, hint: Timetable, lower_bound: int, workers: int, time_limit_s: float, work: float = math.inf
) -> BlockAnswer:
    """The solver's result, never worse than the hint. Traffic on shared resources is checked afterwards; overloads are
    spread and the model is solved again, as long as time and work are left."""
    deadline, block, best = time.perf_counter() + time_limit_s, model.block, hint
    while True:
        solver = _solver(model.cp, workers, max(deadline - time.perf_counter(), 0.0), max(work, 0.0))
        status, interrupted = _run(solver, model.model)
        if status not in (model.cp.OPTIMAL, model.cp.FEASIBLE):
            # Time ran out, or a wrong "infeasible" (the hint is a schedule), which is ignored.
            return BlockAnswer(timetable=best, lower_bound=lower_bound, interrupted=interrupted, method="cp_sat")
        work -= solver.response_proto.deterministic_time
        table = model.read(solver)
        proved = table.makespan(block) if status == model.cp.OPTIMAL else round(solver.best_objective_bound)
        crowded = crowds(block, table)
        roomy = spread(block, table) if crowded else table
        best = min(roomy, best, key=lambda timetable: timetable.makespan(block))
        lower_bound = max(lower_bound, min(proved, best.makespan(block)))
        if not crowded or interrupted or lower_bound == best.makespan(block):
            return BlockAnswer(timetable=best, lower_bound=lower_bound, interrupted=interrupted, method="cp_sat")
        model.narrow(best, lower_bound)
        for crowd in crowded:
            model.spread(crowd)


def _run(solver: CpSolver, model: CpModel) -> tuple[Any, bool]:
    """Solve in a second thread, so that Ctrl-C stops the search and keeps its best result.

    Waits for an event, not for the thread: an interrupted ``Thread.join`` marks the thread as finished.
    """
    done, status, interrupted = Event(), [], False

    def search() -> None:
        try:
            status.append(solver.solve(model))
        finally:
            done.set()

    Thread(target=search, daemon=True).start()
    while not done.is_set():
        try:
            done.wait(timeout=0.2)
        except KeyboardInterrupt:
            interrupted = True
        interrupted = interrupted or asked()
        if interrupted:  # repeated, since a stop before the search has begun is lost
            solver.stop_search()
    if not status:
        raise RuntimeError("CP-SAT ended without a status")
    return status[0], interrupted


class _Model:
    """CP-SAT's variables and constraints for a block, by position."""

    def __init__(self, block: OpBlock, hint: Timetable, lower_bound: int) -> None:
        self.block, self.cp = block, cp_model()
        self.model, self.covers, self.before = self.cp.CpModel(), block.covers, block.before
        upper = hint.makespan(block)
        # A horizon of exactly the optimum was once answered INFEASIBLE (reference/scheduling): leave some slack.
        self.horizon = upper + max(1, upper // 50)
        self.makespan = self._time(lower_bound)
        self.starts = [self._time() for _ in range(block.size)]
        self.split = [self._mode(i) for i in range(block.size)]
        self._cores()
        self._precedence()
        self._second_clock()
        self._twins()
        self._hint(hint)
        self.model.minimize(self.makespan)

    def read(self, solver: CpSolver) -> Timetable:
        """The solver's schedule."""
        split = [mode if isinstance(mode, int) else solver.value(mode) for mode in self.split]
        return Timetable(starts=tuple(solver.value(start) for start in self.starts), split=tuple(map(bool, split)))

    def narrow(self, best: Timetable, lower_bound: int) -> None:
        """Start from the best schedule known, between it and the bound proved so far."""
        self.model.clear_hints()
        self._hint(best)
        self.model.add(self.makespan >= lower_bound)
        self.model.add(self.makespan <= best.makespan(self.block))

    def spread(self, crowd: Crowd) -> None:
        """Require enough time for the crowd's traffic between its first start and its last end, whichever they are."""
        far_apart = []
        for i in crowd.operators:
            for j in crowd.operators:
                if i != j and not self.block.after[j] >> i & 1:
                    apart = self.model.new_bool_var("")
                    self.model.add(self._end(j) - self.starts[i] >= crowd.needed).only_enforce_if(apart)
                    far_apart.append(apart)
        self.model.add_bool_or(far_apart)

    def _time(self, lowest: int = 0) -> IntVar:
        time: IntVar = self.model.new_int_var(lowest, self.horizon, "")
        return time

    def _mode(self, i: int) -> IntVar | int:
        """Split (1) or not (0): a variable if both modes are useful, else a constant."""
        if not self.block.may_split[i]:
            return 0
        return 1 if self.block.latency[i] > self.horizon else self.model.new_bool_var("")

    def _single(self, i: int) -> Any:
        """One-core time of an operator, 0 when it is split."""
        return self.block.latency[i] * (1 - self.split[i])

    def _split(self, i: int) -> Any:
        """Time of an operator on all cores, 0 when it runs on one."""
        return self.block.intra_latency[i] * self.split[i]

    def _end(self, i: int) -> Any:
        return self.starts[i] + self._split(i) + self._single(i)

    def _intervals(self, *, split: bool) -> dict[int, IntervalVar]:
        """Fixed-size intervals of one mode, of the operators that may run in it."""
        block, fixed = self.block, self.model.new_optional_fixed_size_interval_var
        times, out = block.intra_latency if split else block.latency, {}
        for i, mode in enumerate(self.split):
            if not isinstance(mode, int):
                out[i] = fixed(self.starts[i], times[i], mode if split else mode.negated(), "")
            elif mode == split:
                out[i] = fixed(self.starts[i], times[i], True, "")
        return out

    def _cores(self) -> None:
        """Never use more cores than there are; a split operator takes all cores of both kinds.

        Single-core operators on one path never overlap, nor does anything overlap a split one: with each path of a
        cover, the split ones form a disjunctive constraint, which prunes more than the cumulative ones.
        """
        single, alone = self._intervals(split=False), self._intervals(split=True)
        types = self.block.core_types
        for count, users in (
            (self.block.num_tc, [i for i in single if types[i].needs_tensor_core]),
            (self.block.num_vc, [i for i in single if types[i].needs_vector_core]),
        ):
            intervals = [*(single[i] for i in users), *alone.values()]
            demands = [1] * len(users) + [max(count, 1)] * len(alone)
            self.model.add_cumulative(intervals, demands, max(count, 1))
        for path in paths(self.block):
            self.model.add_no_overlap([*alone.values(), *(single[i] for i in path if i in single)])

    def _precedence(self) -> None:
        for i, mask in enumerate(self.covers):
            self.model.add(self._end(i) <= self.makespan)
            for j in bits(mask):
                self.model.add(self._end(i) <= self.starts[j])

    def _second_clock(self) -> None:
        """Constraints on the clock that stops while a split operator runs."""
        block, everything = self.block, range(self.block.size)
        clock_end = self._time()
        clock = [self._time() for _ in everything]
        self.model.add(self.makespan == clock_end + sum(self._split(i) for i in everything))
        self._work_fits(everything, clock_end)
        for i in everything:
            clock_i_end = clock[i] + self._single(i)
            self.model.add(clock_i_end <= clock_end)
            self.model.add(clock[i] <= self.starts[i])
            for j in bits(self.covers[i]):
                self.model.add(clock_i_end <= clock[j])
            if block.size <= HEADS_UP_TO:
                earlier, later = list(bits(self.before[i])), list(bits(block.after[i]))
                self._work_fits(earlier, clock[i])
                self._work_fits(later, clock_end - clock_i_end)
                self.model.add(self.starts[i] >= clock[i] + sum(self._split(k) for k in earlier))

    def _work_fits(self, operators: Iterable[int], room: Any) -> None:
        """One-core work of these operators on either kind of core, and their traffic on each shared resource, must fit
        into ``room`` on the second clock."""
        types, block = self.block.core_types, self.block
        tensor = [self._single(k) for k in operators if types[k].needs_tensor_core]
        vector = [self._single(k) for k in operators if types[k].needs_vector_core]
        for work, count in ((tensor, block.num_tc), (vector, block.num_vc)):
            if len(work) > 1:
                self.model.add(count * room >= sum(work))
        for row in block.traffic:
            if len(moved := [row[k] * (1 - self.split[k]) for k in operators if row[k]]) > 1:
                self.model.add(room >= sum(moved))

    def _twins(self) -> None:
        """Identical operators start in the given order."""
        for i, j in _twins(self.block):
            self.model.add(self.starts[i] <= self.starts[j])

    def _hint(self, hint: Timetable) -> None:
        starts, split = list(hint.starts), list(hint.split)
        for i, j in _twins(self.block):
            if starts[i] > starts[j]:
                starts[i], starts[j], split[i], split[j] = starts[j], starts[i], split[j], split[i]
        for i, start in enumerate(self.starts):
            self.model.add_hint(start, starts[i])
            if not isinstance(self.split[i], int):
                self.model.add_hint(self.split[i], split[i])
        self.model.add_hint(self.makespan, hint.makespan(self.block))


def _twins(block: OpBlock) -> list[tuple[int, int]]:
    """Pairs of neighbours among operators with the same type, times, predecessors and successors."""
    last: dict[tuple[object, ...], int] = {}
    pairs = []
    keys = zip(
        block.core_types, block.latency, block.intra_latency, block.before, block.after, *block.traffic, strict=True
    )
    for i, key in enumerate(keys):
        if key in last:
            pairs.append((last[key], i))
        last[key] = i
    return pairs


def cp_model() -> ModuleType:
    try:
        from ortools.sat.python import cp_model as module
    except ImportError:
        raise MissingExtraError("solver cp_sat (OR-Tools)", "solve") from None
    return module


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
    return BlockAnswer(
        timetable=best, lower_bound=min(proved, best.makespan(block)), interrupted=asked(), method="cp_sat"
    )


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
            ({i: latency for i, latency in enumerate(block.latency) if types[i].needs_tensor_core}, block.num_tc),
            ({i: latency for i, latency in enumerate(block.latency) if types[i].needs_vector_core}, block.num_vc),
            *(({i: time for i, time in enumerate(row) if time}, 1) for row in block.traffic),
        ]
        for i, latency in enumerate(block.latency):
            for after in (*(size + j for j in bits(block.covers[i])), self.end):
                self._row({after: 1, size + i: -1, i: latency}, latency)
            for users, count in needs:
                earlier, later = ({k: users[k] for k in bits(mask) if k in users} for mask in (ahead[i], behind[i]))
                self._work_fits(earlier, {size + i: count}, 0)
                self._work_fits(later, {self.end: count, size + i: -count, i: count * latency}, count * latency)
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
        model, size = cp_model().CpModel(), self.block.size
        modes = [model.new_bool_var("") if may else model.new_constant(0) for may in self.block.may_split]
        clock = [model.new_int_var(0, self.horizon, "") for _ in range(size + 1)]
        pairs = [model.new_bool_var("") for _ in self.pairs]
        columns = (*modes, *clock, *pairs)
        for row, lowest in self.rows:
            model.add(sum(value * columns[column] for column, value in row.items()) >= lowest)
        model.minimize(clock[-1] + sum(time * mode for time, mode in zip(self.block.intra_latency, modes, strict=True)))
        bound, value = _least(model, MOST_WORK)
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
