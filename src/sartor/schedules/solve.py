"""From a problem to its result: contract, split, bound, solve open blocks, assemble, check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd

from sartor.errors import InputError
from sartor.interrupts import asked
from sartor.schedules import bounds, cp_sat, milp, prefixes
from sartor.schedules.problem import (
    CoreType,
    Mode,
    OperatorId,
    OperatorRun,
    ScheduledOperator,
    ScheduleProblem,
    ScheduleResult,
    Solver,
    Status,
    successors,
    topological_order,
    violations,
)
from sartor.schedules.split import BlockAnswer, OpBlock, Timetable, canonical, contract, crowds, part, series, spread

TIME_LIMIT_S = 20.0
SHARE = 0.5
"""Most of a limit on the clock for the search by prefixes, before CP-SAT."""
LONGEST_LIMIT_S = 1_000_000


@dataclass(frozen=True, slots=True)
class ScheduleCache:
    """Proved schedules by block, so that callers with many problems solve equal layers once."""

    proved: dict[OpBlock, BlockAnswer] = field(default_factory=dict)


def solve(
    problem: ScheduleProblem,
    time_limit_s: float = TIME_LIMIT_S,
    solver: Solver = Solver.CP_SAT,
    cache: ScheduleCache | None = None,
    *,
    by_work: bool = False,
) -> ScheduleResult:
    """The shortest schedule found within a time limit [s], with its lower bound.

    ``by_work``: the limit counts CP-SAT's work instead of the clock, equally for every open block, so that the result
    does not depend on the machine's load. A limit of 0 gives list scheduling and the bounds that need no solver.
    Raises `InputError` on a bad limit, `MissingExtraError` if the solver is not installed. Ctrl-C ends the search and
    returns the result so far.

    >>> from sartor.schedules import CoreType, ScheduledOperator, ScheduleProblem, solve
    >>> ops = [ScheduledOperator(id=k, core_type=CoreType.TC, latency=8, intra_latency=5) for k in range(2)]
    >>> result = solve(ScheduleProblem(num_tc=2, num_vc=0, operators=tuple(ops)))
    >>> result.makespan, result.lower_bound, str(result.status)
    (8, 8, 'optimal')
    """
    if not 0 <= time_limit_s <= LONGEST_LIMIT_S:
        raise InputError("time_limit", time_limit_s, f"must be a number of seconds from 0 to {LONGEST_LIMIT_S}", "20")
    begin, solver = time.perf_counter(), Solver(solver)
    block, ids = contract(problem)
    pieces = series(block)
    blocks = [part(block, positions) for positions in pieces]
    work = time_limit_s if by_work and solver is Solver.CP_SAT else None
    answers = _answers(blocks, begin + time_limit_s, solver, cache or ScheduleCache(), work)
    chosen, end = _in_series(blocks, answers, ids)
    operators = _operator_times(problem, chosen)
    lower_bound = max(sum(answer.lower_bound for answer in answers), problem.shared_time)
    makespan = max(end, problem.shared_time)
    wrong = violations(problem, operators, makespan)
    if wrong or lower_bound > makespan:
        raise AssertionError(f"{solver} returned an invalid schedule: {'; '.join(wrong[:3]) or 'bound above value'}")
    return ScheduleResult(
        problem=problem,
        status=Status.OPTIMAL if lower_bound == makespan else Status.FEASIBLE,
        makespan=makespan,
        lower_bound=lower_bound,
        operators=operators,
        checked=True,
        solver=solver,
        method=", ".join(dict.fromkeys(answer.method for answer in answers)) or "list scheduling",
        solve_s=time.perf_counter() - begin,
        interrupted=any(answer.interrupted for answer in answers),
    )


def _answers(
    blocks: list[OpBlock], deadline: float, solver: Solver, cache: ScheduleCache, work: float | None
) -> list[BlockAnswer]:
    """The result of every block; equal ones are solved once, and the remaining time is shared among open ones."""
    scaled = [_coarsest(block) for block in blocks]
    ordered = [canonical(block) for block, _ in scaled]
    answers: dict[OpBlock, BlockAnswer] = {}
    for block in dict.fromkeys(block for block, _ in ordered):
        proved = cache.proved.get(block)
        answers[block] = proved or _without_solver(block)
    still_open = [block for block, answer in answers.items() if _open(block, answer)]
    for k, block in enumerate(sorted(still_open, key=lambda block: block.size)):
        limit_s = (deadline - time.perf_counter()) / (len(still_open) - k)
        if asked():
            answers[block] = replace(answers[block], interrupted=True)
        interrupted = any(answer.interrupted for answer in answers.values())
        if work and not interrupted:
            answers[block] = _by_work(block, answers[block], work)
        elif solver is not Solver.GREEDY and limit_s > 0 and not interrupted:
            ask = _by_clock if solver is Solver.CP_SAT else milp.solve_block
            answers[block] = ask(block, answers[block].timetable, answers[block].lower_bound, limit_s)
    cache.proved.update((block, answer) for block, answer in answers.items() if not _open(block, answer))
    return [_restored(answers[block], order, unit) for (block, order), (_, unit) in zip(ordered, scaled, strict=True)]


def _coarsest(block: OpBlock) -> tuple[OpBlock, int]:
    """The block in the largest unit that keeps all times whole, and that unit."""
    unit = gcd(*block.latency, *block.intra_latency, *(time for row in block.traffic for time in row)) or 1
    latency, intra_latency = ([time // unit for time in times] for times in (block.latency, block.intra_latency))
    traffic = tuple(tuple(time // unit for time in row) for row in block.traffic)
    return replace(block, latency=tuple(latency), intra_latency=tuple(intra_latency), traffic=traffic), unit


def _by_clock(block: OpBlock, hint: Timetable, lower_bound: int, limit_s: float) -> BlockAnswer:
    """The search by prefixes, then CP-SAT if the result is still open."""
    begin = time.perf_counter()
    prefix_answer = _by_prefixes(block, hint, lower_bound, SHARE * limit_s)
    left_s = limit_s - (time.perf_counter() - begin)
    if prefix_answer.interrupted or not _open(block, prefix_answer) or left_s <= 0:
        return prefix_answer
    return cp_sat.solve_block(block, prefix_answer.timetable, prefix_answer.lower_bound, left_s)


def _by_prefixes(block: OpBlock, hint: Timetable, lower_bound: int, limit_s: float) -> BlockAnswer:
    """With traffic, the search forgets it: its bound holds, and its schedule once there is room for the traffic."""
    if not block.traffic:
        return prefixes.improve(block, hint, lower_bound, limit_s)
    free = prefixes.improve(replace(block, traffic=()), hint, lower_bound, limit_s)
    roomy = spread(block, free.timetable) if crowds(block, free.timetable) else free.timetable
    return replace(free, timetable=min(hint, roomy, key=lambda timetable: timetable.makespan(block)))


def _by_work(block: OpBlock, answer: BlockAnswer, work: float) -> BlockAnswer:
    """A short search by prefixes (a short CP-SAT run where they don't apply), the second clock, a longer search, then
    CP-SAT with all the allowed work (more with shared resources), each only if the result is still open."""
    rest = max(work, cp_sat.SHARED_S) if block.traffic else work if work > cp_sat.ALONE_S else 0.0
    first_s = min(work, cp_sat.ALONE_S)
    ways: list[Callable[[OpBlock, Timetable, int], BlockAnswer]] = [
        partial(prefixes.improve, work_s=first_s)
        if prefixes.applies(block)
        else partial(cp_sat.solve_block_by_work, limit_s=first_s),
        cp_sat.improve,
        partial(prefixes.improve, work_s=max(work, prefixes.LONG_S)),
        partial(cp_sat.solve_block_by_work, limit_s=rest),
    ]
    for way in ways if rest else ways[:3]:
        if _open(block, answer) and not answer.interrupted:
            answer = way(block, answer.timetable, answer.lower_bound)
    return answer


def _without_solver(block: OpBlock) -> BlockAnswer:
    """List scheduling and the bounds, which are the whole answer if they meet."""
    timetable = bounds.best_greedy(block)
    return BlockAnswer(timetable=timetable, lower_bound=bounds.lower_bound(block, timetable.makespan(block)).value)


def _open(block: OpBlock, answer: BlockAnswer) -> bool:
    return answer.lower_bound < answer.timetable.makespan(block)


def _restored(answer: BlockAnswer, order: tuple[int, ...], unit: int) -> BlockAnswer:
    """A result in the order and unit of the original problem."""
    starts, split = [0] * len(order), [False] * len(order)
    for k, i in enumerate(order):
        starts[i], split[i] = answer.timetable.starts[k] * unit, answer.timetable.split[k]
    timetable = Timetable(starts=tuple(starts), split=tuple(split))
    return replace(answer, timetable=timetable, lower_bound=answer.lower_bound * unit)


def _in_series(
    blocks: list[OpBlock], answers: list[BlockAnswer], ids: tuple[OperatorId, ...]
) -> tuple[dict[OperatorId, tuple[int, bool]], int]:
    """Start and mode of every operator when blocks run one after another, and the end of the last one."""
    chosen: dict[OperatorId, tuple[int, bool]] = {}
    offset, remaining = 0, iter(ids)
    for block, answer in zip(blocks, answers, strict=True):
        for start, split in zip(answer.timetable.starts, answer.timetable.split, strict=True):
            chosen[next(remaining)] = (offset + start, split)
        offset += answer.timetable.makespan(block)
    return chosen, offset


def _operator_times(problem: ScheduleProblem, chosen: dict[OperatorId, tuple[int, bool]]) -> tuple[OperatorRun, ...]:
    """Rows by start. Operators that take no time run as soon as their predecessors have ended."""
    operators, done = {op.id: op for op in problem.operators}, dict.fromkeys((op.id for op in problem.operators), 0)
    after, rows = successors(problem), []
    for id_ in topological_order(problem):
        op = operators[id_]
        start, split = chosen.get(id_, (done[id_], op.intra_latency < op.latency))
        end = start + (op.intra_latency if split else op.latency) if op.takes_time else start
        for target in after[id_]:
            done[target] = max(done[target], end)
        if op.takes_time:
            rows.append((op, start, end, split))
    rows.sort(key=lambda row: row[1:3])
    cores = _assign_cores(problem.num_tc, problem.num_vc, rows)
    return tuple(
        OperatorRun(
            id=op.id,
            start=start,
            end=end,
            mode=Mode.INTRA_OP if split else Mode.SINGLE,
            tensor_cores=tensor,
            vector_cores=vector,
        )
        for (op, start, end, split), (tensor, vector) in zip(rows, cores, strict=True)
    )


Rows = Sequence[tuple[ScheduledOperator, int, int, bool]]
"""Operators with start, end and whether they are split over all cores."""


def _assign_cores(num_tc: int, num_vc: int, rows: Rows) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Tensor and vector cores of each row, lowest index first unless pairing decides."""
    out: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())] * len(rows)
    free_at = {"tensor": [0] * num_tc, "vector": [0] * num_vc}
    # Of operators that start together, fused ones first: pairs are scarcer than cores.
    order = sorted(range(len(rows)), key=lambda k: (rows[k][1], rows[k][0].core_type is not CoreType.FUSED, k))
    for k in order:
        op, start, end, split = rows[k]
        kind = op.core_type
        if split or end == start:
            tensor = range(num_tc) if split else range(1)
            vector = range(num_vc) if split else range(1)
            out[k] = (
                tuple(tensor) if kind.needs_tensor_core else (),
                tuple(vector) if kind.needs_vector_core else (),
            )
            continue
        out[k] = _one_core(kind, *(_free(free_at[name], start) for name in ("tensor", "vector")))
        for name, cores in zip(("tensor", "vector"), out[k], strict=True):
            for core in cores:
                free_at[name][core] = end
    return out


def _free(free_at: Iterable[int], start: int) -> list[int]:
    """Free cores; the first one if none is free, which the checker will reject."""
    return [core for core, time in enumerate(free_at) if time <= start] or [0]


def _one_core(kind: CoreType, tensor: list[int], vector: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One core of each kind needed, among those free."""
    pairs = sorted(set(tensor) & set(vector))
    if kind is CoreType.FUSED:
        return (pairs[0] if pairs else tensor[0],), (pairs[0] if pairs else vector[0],)
    if kind is CoreType.TC:
        return (next((c for c in tensor if c not in pairs), tensor[-1]),), ()
    return (), (next((c for c in vector if c not in pairs), vector[-1]),)
