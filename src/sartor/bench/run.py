"""Run cases on a device within a time budget: every timing is written at once, cases that cannot run are reported.

A case already in the file is not run again. Cases with noisy samples, or with visits that disagree, are timed again
while time is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sartor.bench.cases import BenchCase
from sartor.bench.device import Device, OutOfMemoryOnDevice, UnsupportedCase
from sartor.bench.records_file import RecordsFile
from sartor.bench.timing import Policy, Row, row_of, time_case
from sartor.interrupts import point


class Stopped(StrEnum):
    """Why a run ended."""

    FINISHED = "finished"
    BUDGET = "time budget"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteProgress:
    """Progress of a run."""

    at: int
    of: int
    spent_s: float
    label: str


@dataclass(slots=True, kw_only=True)
class RunResult:
    """Counts and rows of a run."""

    cases: int
    measured: int = 0
    kept: int = 0
    """Already in the file."""
    again: int = 0
    """Repeated timings of cases timed before."""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> cases that could not run."""
    cannot: set[tuple[str, ...]] = field(default_factory=set)
    """Keys of the skipped cases."""
    stopped: Stopped = Stopped.FINISHED
    spent_s: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Cases not reached."""
        return self.cases - self.measured - self.kept - sum(len(labels) for labels in self.skipped.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Device, file and policy that all cases of one run share."""

    device: Device
    records: RecordsFile
    suite: str
    date: str
    policy: Policy = field(default_factory=Policy)
    budget_s: float = float("inf")
    rounds: int = 1
    """Timings of every case, minutes apart because other processes may disturb a host."""
    progress: Callable[[SuiteProgress], None] = lambda _: None


def run(cases: Iterable[BenchCase], session: Session) -> RunResult:
    """Time every case that is not in the file yet; stop at the budget, or at an interrupt, keeping what is done."""
    todo = list({case.key: case for case in cases}.values())
    recorded = {case.key for case in todo if session.records.visits(case)}
    result = RunResult(cases=len(todo), kept=len(recorded))
    started = session.device.host_s()
    try:
        for visits in range(1, session.rounds + 1):
            due = [case for case in todo if session.records.visits(case) < visits]
            _pass(due, session, result, started)
        for _ in range(MOST_LOOKS):
            unsettled = [case for case in todo if session.records.visits(case) and not session.records.is_settled(case)]
            _pass(unsettled, session, result, started)
    except KeyboardInterrupt:
        result.stopped = Stopped.INTERRUPTED
    result.spent_s = session.device.host_s() - started
    return result


MOST_LOOKS = 2
"""Repeated timings of a noisy case, while time is left."""


def _pass(due: Sequence[BenchCase], session: Session, result: RunResult, started: float) -> None:
    """Time cases in turn until the budget is spent; those that cannot run are not tried again."""
    for i, case in enumerate(due):
        spent = session.device.host_s() - started
        if spent > session.budget_s:
            if not session.records.visits(case):
                result.stopped = Stopped.BUDGET
            return
        point()
        if case.key in result.cannot:
            continue
        again = session.records.visits(case) > 0
        label = f"again: {case.label}" if again else case.label
        session.progress(SuiteProgress(at=i, of=len(due), spent_s=spent, label=label))
        if _one(case, session, result):
            result.again += int(again)
            result.measured += int(not again)


def _one(case: BenchCase, session: Session, result: RunResult) -> bool:
    """Time one case and write its row; False if it cannot run."""
    device = session.device
    try:
        loaded = device.load(case)
        timing = time_case(device, loaded, case.mode, session.policy)
    except (OutOfMemoryOnDevice, UnsupportedCase) as why:
        reason = "out of memory" if isinstance(why, OutOfMemoryOnDevice) else str(why)
        result.cannot.add(case.key)
        result.skipped.setdefault(reason, []).append(case.label)
        return False
    finally:
        device.free()
    row = row_of(
        case, timing, device.facts, sets=loaded.sets, timer=loaded.timer, suite=session.suite, date=session.date
    )
    session.records.append(row)
    result.rows.append(row)
    return True
