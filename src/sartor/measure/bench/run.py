"""Run cases on a device within a time budget: every timing is written at once, what cannot run is said.

A case already in the file is not run again. Cases whose samples scattered are looked at once more when time is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sartor.measure.bench.cases import Case
from sartor.measure.bench.device import Device, OutOfMemoryOnDevice, UnsupportedCase
from sartor.measure.bench.record import Row, row_of
from sartor.measure.bench.records_file import RecordsFile
from sartor.measure.bench.timing import Policy, time_case


class Stopped(StrEnum):
    """Why a run ended."""

    FINISHED = "finished"
    BUDGET = "time budget"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run is."""

    at: int
    of: int
    spent_s: float
    label: str


@dataclass(slots=True, kw_only=True)
class RunResult:
    """What a run did."""

    cases: int
    measured: int = 0
    kept: int = 0
    """Already in the file."""
    again: int = 0
    """Scattered samples, looked at once more."""
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the cases it kept from running."""
    stopped: Stopped = Stopped.FINISHED
    spent_s: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Cases not come to."""
        return self.cases - self.measured - self.kept - sum(len(labels) for labels in self.skipped.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What all cases of one run share."""

    device: Device
    records: RecordsFile
    suite: str
    date: str
    policy: Policy = field(default_factory=Policy)
    budget_s: float = float("inf")
    progress: Callable[[Progress], None] = lambda _: None


def run(cases: Iterable[Case], session: Session) -> RunResult:
    """Time every case that is not in the file yet; stop at the budget, or at an interrupt, keeping what is done."""
    todo = list({case.key: case for case in cases}.values())
    result = RunResult(cases=len(todo))
    started = session.device.host_s()
    try:
        _pass(todo, session, result, started)
        if result.stopped is Stopped.FINISHED:
            _again([case for case in todo if case.key in session.records.noisy], session, result, started)
    except KeyboardInterrupt:
        result.stopped = Stopped.INTERRUPTED
    result.spent_s = session.device.host_s() - started
    return result


def _pass(todo: Sequence[Case], session: Session, result: RunResult, started: float) -> None:
    for i, case in enumerate(todo):
        spent = session.device.host_s() - started
        if case.key in session.records.done or case.key in session.records.noisy:
            result.kept += 1
            continue
        if spent > session.budget_s:
            result.stopped = Stopped.BUDGET
            return
        session.progress(Progress(at=i, of=len(todo), spent_s=spent, label=case.label))
        if _one(case, session, result):
            result.measured += 1


def _again(scattered: Sequence[Case], session: Session, result: RunResult, started: float) -> None:
    for case in scattered:
        spent = session.device.host_s() - started
        if spent > session.budget_s:
            return
        session.progress(Progress(at=result.cases, of=result.cases, spent_s=spent, label=f"again: {case.label}"))
        result.again += int(_one(case, session, result))


def _one(case: Case, session: Session, result: RunResult) -> bool:
    """Whether a case was timed and written."""
    device = session.device
    try:
        loaded = device.load(case)
        timing = time_case(device, loaded, case.mode, session.policy)
    except OutOfMemoryOnDevice:
        result.skipped.setdefault("out of memory", []).append(case.label)
        return False
    except UnsupportedCase as why:
        result.skipped.setdefault(str(why), []).append(case.label)
        return False
    finally:
        device.free()
    row = row_of(
        case, timing, device.facts, sets=loaded.sets, timer=loaded.timer, suite=session.suite, date=session.date
    )
    session.records.append(row)
    result.rows.append(row)
    return True
