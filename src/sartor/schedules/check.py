"""Check a schedule against the problem's definition, independently of the solvers.

Every schedule is checked here before it is returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from sartor.schedules.problem import CoreType, OperatorId, OperatorRun, ScheduledOperator, ScheduleProblem


def violations(problem: ScheduleProblem, times: Sequence[OperatorRun], makespan: int) -> tuple[str, ...]:
    """The faults of a schedule as sentences; empty for a valid schedule of the stated makespan."""
    operators = {op.id: op for op in problem.operators}
    faults = list(_each_once(operators, times))
    if faults:
        return tuple(faults)
    faults += _durations(operators, times)
    faults += _order(problem, times)
    faults += _alone(times)
    faults += _cores(problem, operators, times)
    faults += _shared(operators, times, makespan)
    faults += (
        f"{name} needs {time}, longer than the makespan {makespan}" for name, time in problem.shared if time > makespan
    )
    last = max((row.end for row in times), default=0)
    if max(last, problem.shared_time) != makespan:
        faults.append(f"the last operator ends at {last}, not at the stated makespan {makespan}")
    return tuple(faults)


def _each_once(operators: dict[OperatorId, ScheduledOperator], times: Iterable[OperatorRun]) -> Iterable[str]:
    count: dict[OperatorId, int] = defaultdict(int)
    for row in times:
        count[row.id] += 1
    for id_ in count.keys() - operators.keys():
        yield f"{id_!r} is not an operator of the problem"
    for id_, op in operators.items():
        expected_runs = 0 if op.core_type == CoreType.NOP else 1
        if count[id_] != expected_runs:
            yield f"operator {id_!r} runs {count[id_]} times, not {expected_runs}"


def _durations(operators: dict[OperatorId, ScheduledOperator], times: Iterable[OperatorRun]) -> Iterable[str]:
    for row in times:
        expected = {"single": operators[row.id].latency, "intra_op": operators[row.id].intra_latency}[row.mode]
        if row.start < 0:
            yield f"operator {row.id!r} starts at {row.start}, before 0"
        if row.end - row.start != expected:
            yield f"operator {row.id!r} takes {row.end - row.start} in mode {row.mode}, not {expected}"


def _order(problem: ScheduleProblem, times: Iterable[OperatorRun]) -> Iterable[str]:
    """Follow the edges: a Nop is done when its predecessors are, any other operator at its end."""
    row_of = {row.id: row for row in times}
    preds: dict[OperatorId, set[OperatorId]] = defaultdict(set)
    for a, b in problem.edges:
        preds[b].add(a)
    done: dict[OperatorId, int] = {}
    pending = [op.id for op in problem.operators]
    while pending:
        later = []
        for id_ in pending:
            if any(a not in done for a in preds[id_]):
                later.append(id_)
                continue
            allowed = max((done[a] for a in preds[id_]), default=0)
            if id_ in row_of and row_of[id_].start < allowed:
                yield f"operator {id_!r} starts at {row_of[id_].start}, before its predecessors end at {allowed}"
            done[id_] = row_of[id_].end if id_ in row_of else allowed
        if len(later) == len(pending):
            yield "the edges go in a circle"
            return
        pending = later


def _alone(times: Sequence[OperatorRun]) -> Iterable[str]:
    """An operator in intra-op mode overlaps nothing of any type; empty intervals overlap nothing."""
    rows = sorted((row for row in times if row.end > row.start), key=lambda row: (row.start, row.end))
    running: list[OperatorRun] = []
    for row in rows:
        running = [earlier for earlier in running if earlier.end > row.start]
        for earlier in running:
            if "intra_op" in (row.mode, earlier.mode):
                yield f"operators {earlier.id!r} and {row.id!r} overlap, and one of them must run alone"
        running.append(row)


def _cores(
    problem: ScheduleProblem, operators: dict[OperatorId, ScheduledOperator], times: Iterable[OperatorRun]
) -> Iterable[str]:
    """Each operator has the cores its type and mode need, and no core runs two at once."""
    busy: dict[tuple[str, int], list[OperatorRun]] = defaultdict(list)
    for row in times:
        kind = operators[row.id].core_type
        for name, cores, total, user in (
            ("tensor", row.tensor_cores, problem.num_tc, kind in ("TC", "TCandVC")),
            ("vector", row.vector_cores, problem.num_vc, kind in ("VC", "TCandVC")),
        ):
            expected = (total if row.mode == "intra_op" else 1) if user else 0
            if len(set(cores)) != expected or len(cores) != expected or any(not 0 <= c < total for c in cores):
                yield f"operator {row.id!r} holds {name} cores {list(cores)}; it needs {expected} of {total}"
            for core in cores:
                busy[name, core].append(row)
    for (name, core), rows in busy.items():
        rows = sorted((row for row in rows if row.end > row.start), key=lambda row: row.start)
        for first, two in pairwise(rows):
            if two.start < first.end:
                yield f"{name} core {core} serves operators {first.id!r} and {two.id!r} at once"


def _shared(
    operators: dict[OperatorId, ScheduledOperator], times: Sequence[OperatorRun], makespan: int
) -> Iterable[str]:
    """Between any two moments, the operators that run in between must not move more than a shared resource allows."""
    for name in sorted({name for op in operators.values() for name, _ in op.traffic}):
        moved = {row.id: dict(operators[row.id].traffic).get(name, 0) for row in times}
        if (whole := sum(moved.values())) > makespan:
            yield f"{name} needs {whole} for all that is moved, longer than the makespan {makespan}"
        for begin in sorted({row.start for row in times}):
            for end in sorted({row.end for row in times}):
                needed = sum(moved[row.id] for row in times if begin <= row.start and row.end <= end)
                if needed > max(end - begin, 0):
                    yield f"{name} needs {needed} for what is moved from {begin} to {end}"
