"""The scheduling problem, and a schedule: when and where each operator runs, and its proof.

Times are integers in any unit (clock cycles, microseconds), because the solvers are exact.

Every schedule is checked here, independently of the solvers, before it is returned.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeAlias

from sartor.errors import InputError, quoted

OperatorId: TypeAlias = int | str

MAX_OPERATORS = 2000
"""Most operators of one problem; one decoder layer, forward and backward, has 30 to 130."""
MAX_TOTAL_LATENCY = 2**50
"""Largest sum of latencies, so that products with core counts stay exact in 64 bits."""
MAX_CORES = 2**20
"""Most cores of a kind; the published search space ends at 4096."""


class CoreType(StrEnum):
    """The cores an operator needs (names of PHAZE's operator graphs)."""

    TC = "TC"
    VC = "VC"
    FUSED = "TCandVC"
    NOP = "Nop"

    def __init__(self, word: str) -> None:
        self.needs_tensor_core = word in ("TC", "TCandVC")
        self.needs_vector_core = word in ("VC", "TCandVC")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOperator:
    """One operator: ``latency`` on one core (fused: one of each), ``intra_latency`` split over every core it can use.

    A ``Nop`` takes no time and no core, whatever its latencies; it only passes precedence on.

    ``traffic`` has, for each resource shared with concurrent operators (memory, buffer, links), the time for which it
    would need the whole resource; at most either latency. Its rate may vary during its run, but all operators together
    never exceed a resource's rate.
    """

    id: OperatorId
    core_type: CoreType
    latency: int
    intra_latency: int
    traffic: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "core_type", _core_type(self.id, self.core_type))
        for name in ("latency", "intra_latency"):
            _check_whole(f"operator {_show_id(self.id)} {name}", getattr(self, name), lowest=0)
        for name, time in self.traffic:
            _check_traffic(f"operator {_show_id(self.id)} traffic.{name}", time, min(self.latency, self.intra_latency))

    @property
    def takes_time(self) -> bool:
        return self.core_type is not CoreType.NOP


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProblem:
    """Operators with precedence ``edges`` (a before b, by id) on ``num_tc`` tensor and ``num_vc`` vector cores.

    ``shared``: time for which all operators together need each shared resource (memory, buffer, links) at its full
    rate. No schedule is shorter. Unlike the operators' ``traffic``, it does not limit parts of the schedule.

    Raises `InputError` on ids given twice or unknown, cycles, wrong numbers, and operators whose cores do not exist.
    """

    num_tc: int
    num_vc: int
    operators: tuple[ScheduledOperator, ...]
    edges: tuple[tuple[OperatorId, OperatorId], ...] = ()
    name: str = ""
    shared: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_tc", "num_vc"):
            _check_whole(name, getattr(self, name), lowest=0)
            if getattr(self, name) > MAX_CORES:
                raise InputError(name, getattr(self, name), f"must be at most {MAX_CORES} cores", str(MAX_CORES))
        if len(self.operators) > MAX_OPERATORS:
            raise InputError("ops", len(self.operators), f"must be at most {MAX_OPERATORS}; give one layer at a time")
        ids = _check_ids(self.operators)
        _check_cores(self)
        _check_edges(self.edges, ids)
        topological_order(self)
        for name, time in self.shared:
            _check_whole(f"shared.{name}", time, lowest=0)
        total = sum(op.latency + op.intra_latency for op in self.operators if op.takes_time)
        if total > MAX_TOTAL_LATENCY:
            raise InputError("ops", total, f"latencies must sum to at most {MAX_TOTAL_LATENCY}; use a coarser unit")

    @property
    def shared_time(self) -> int:
        """The longest time of a shared resource."""
        return max((time for _, time in self.shared), default=0)


def topological_order(problem: ScheduleProblem) -> tuple[OperatorId, ...]:
    """Ids with every operator after its predecessors, ties in the order given. Raises `InputError` on a cycle."""
    after = successors(problem)
    waiting = dict.fromkeys(after, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    order = [id_ for id_, count in waiting.items() if not count]
    for id_ in order:
        for target in after[id_]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    if len(order) < len(after):
        cycle = _a_cycle({id_: after[id_] for id_, count in waiting.items() if count})
        must = f"must be free of cycles; these operators wait for each other: {_way(cycle)}"
        raise InputError("edges", cycle[:2], must)
    return tuple(order)


def successors(problem: ScheduleProblem) -> dict[OperatorId, tuple[OperatorId, ...]]:
    """The direct successors of every operator, each once, in the order given."""
    after: dict[OperatorId, dict[OperatorId, None]] = {op.id: {} for op in problem.operators}
    for source, target in problem.edges:
        after[source][target] = None
    return {id_: tuple(targets) for id_, targets in after.items()}


def _show_id(id_: object) -> str:
    """An id that is safe to print: control characters escaped, long ones cut."""
    text = ascii(id_)
    return text if len(text) <= 40 else text[:37] + "..."


def _core_type(id_: OperatorId, word: Any) -> CoreType:
    try:
        return CoreType(word)
    except (ValueError, TypeError):
        names = [kind.value for kind in CoreType]
        lower = {name.lower(): name for name in names}
        near = difflib.get_close_matches(str(word).lower(), lower, n=1, cutoff=0.0) if isinstance(word, str) else []
        must = f"must be one of {', '.join(names)}"
        raise InputError(f"operator {_show_id(id_)} type", word, must, lower[near[0]] if near else "") from None


def _check_whole(field: str, value: object, *, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        near = str(max(round(value), lowest)) if isinstance(value, float) and abs(value) < 1e15 else ""
        raise InputError(field, quoted(value), f"must be a whole number of at least {lowest}", near)
    if value < lowest:
        raise InputError(field, value, f"must be a whole number of at least {lowest}", str(lowest))


def _check_traffic(field: str, time: Any, latency: int) -> None:
    _check_whole(field, time, lowest=0)
    if time > latency:
        raise InputError(field, time, "must be at most its shorter latency, which includes moving it", str(latency))


def _check_ids(operators: Iterable[ScheduledOperator]) -> set[OperatorId]:
    seen: set[OperatorId] = set()
    for op in operators:
        if isinstance(op.id, bool) or not isinstance(op.id, int | str):
            raise InputError("operator id", op.id, "must be a whole number or a text")
        if op.id in seen:
            raise InputError("operator id", op.id, "must be given once; another operator has it too")
        seen.add(op.id)
    return seen


def _check_cores(problem: ScheduleProblem) -> None:
    for name, count in (("num_tc", problem.num_tc), ("num_vc", problem.num_vc)):
        if count:
            continue
        kind = "tensor" if name == "num_tc" else "vector"
        for op in problem.operators:
            if op.core_type.needs_tensor_core if kind == "tensor" else op.core_type.needs_vector_core:
                must = f"must be at least 1: operator {_show_id(op.id)} of type {op.core_type} needs a {kind} core"
                raise InputError(name, count, must, "1")


def _check_edges(edges: Iterable[tuple[OperatorId, OperatorId]], ids: set[OperatorId]) -> None:
    for edge in edges:
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise InputError("edges", edge, "must be pairs [a, b]: a before b")
        for end in edge:
            if isinstance(end, bool) or not isinstance(end, int | str) or end not in ids:
                near = difflib.get_close_matches(str(end), [str(id_) for id_ in ids], n=1, cutoff=0.6)
                raise InputError(
                    "edges", list(edge), f"{_show_id(end)} is not an operator's id", near[0] if near else ""
                )


def _a_cycle(after: Mapping[OperatorId, Sequence[OperatorId]]) -> list[OperatorId]:
    """One cycle, with the first id repeated at its end, among operators that wait for each other."""
    before = {target: source for source, targets in after.items() for target in targets if target in after}
    node, seen = next(iter(before)), []
    while node not in seen:
        seen.append(node)
        node = before[node]
    return [node, *reversed(seen[seen.index(node) :])]


def _way(ids: Sequence[OperatorId]) -> str:
    shown = [_show_id(id_) for id_ in ids]
    return " -> ".join(shown if len(shown) <= 12 else [*shown[:6], "...", *shown[-5:]])


class Solver(StrEnum):
    """The solver for blocks that list scheduling and the bounds leave open."""

    CP_SAT = "cp_sat"
    MILP = "milp"
    GREEDY = "greedy"


class Status(StrEnum):
    """Proved optimal, or the best found. A schedule always exists."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class Mode(StrEnum):
    """On one core (fused: one of each kind), or split over all cores and alone."""

    SINGLE = "single"
    INTRA_OP = "intra_op"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRun:
    """Cores and times of one operator, from ``start`` until just before ``end``."""

    id: OperatorId
    start: int
    end: int
    mode: Mode
    tensor_cores: tuple[int, ...]
    vector_cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """A checked schedule, sorted by start, with the proved lower bound."""

    problem: ScheduleProblem = field(repr=False)
    status: Status
    makespan: int
    lower_bound: int
    operators: tuple[OperatorRun, ...]
    checked: bool
    """An independent checker has accepted it."""
    solver: Solver
    """Allowed for what list scheduling and the bounds leave open."""
    method: str
    """What found the schedule: list scheduling, prefix search, cp_sat, milp."""
    solve_s: float
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Share of the makespan that is not proved necessary; 0 when optimal."""
        return (self.makespan - self.lower_bound) / self.makespan if self.makespan else 0.0

    @property
    def held_by(self) -> str:
        """The shared resource that takes longer for all traffic than the schedule of operators; usually none."""
        end = max((row.end for row in self.operators), default=0)
        time, name = max(((time, name) for name, time in self.problem.shared), default=(0, ""))
        return name if time > end else ""

    @property
    def busy(self) -> dict[str, int]:
        """Busy core time by kind: sum over operators of time times cores."""
        return {
            "tc": sum((row.end - row.start) * len(row.tensor_cores) for row in self.operators),
            "vc": sum((row.end - row.start) * len(row.vector_cores) for row in self.operators),
        }

    @property
    def utilization(self) -> dict[str, float]:
        """``busy`` as a share of makespan times cores; 0 where there are no cores of the kind."""
        room = {"tc": self.makespan * self.problem.num_tc, "vc": self.makespan * self.problem.num_vc}
        return {kind: busy / room[kind] if room[kind] else 0.0 for kind, busy in self.busy.items()}


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
