"""``sartor measure``: run a suite on a device within a time budget, and write its records.

A case already in the file is not run again. Cases with noisy samples, or with visits that disagree, are timed again
while time is left.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from sartor.bench.cases import BenchCase
from sartor.bench.collectives import collective_cases
from sartor.bench.machine import Scale, is_catalogued, look, machine_toml, stand_in
from sartor.bench.records_file import Pair, RecordsFile, pairs, row_key
from sartor.bench.suites import BUDGET_S, suite
from sartor.bench.timing import Device, OutOfMemoryOnDevice, Policy, Row, UnsupportedCase, row_of, time_case
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.interrupts import point
from sartor.json_types import JsonDict, picked
from sartor.operators import OperatorGraph


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
        if spent > session.budget_s and result.rows:  # one case at least, also where the device took all of it to open
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


HOST_POLICY = Policy(warmup_s=0.01, sample_s=0.002, samples=9, most_s=1.0)
"""Samples shorter than the OS scheduler's time slice, so that some are undisturbed on a shared host."""

GPU_POLICY = Policy(warmup_s=0.01, sample_s=0.004, samples=9, most_s=3.0, rest_s=0.004)


LEAST_LOOK_S, SHARE_OF_FIRST = 0.1, 0.7
"""Every case may take at least ``LEAST_LOOK_S`` seconds; first visits take at most ``SHARE_OF_FIRST`` of the budget,
the rest is for repeating noisy cases."""


def _policy(usual: Policy, budget_s: float, cases: int) -> Policy:
    """The usual policy, with less time per case if many cases share the budget."""
    budget_of_case = max(LEAST_LOOK_S, SHARE_OF_FIRST * budget_s / max(cases, 1))
    return replace(usual, most_s=min(usual.most_s, budget_of_case))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of a run, and all rows that the file now holds."""

    scale: Scale
    suite: str
    result: RunResult
    path: Path
    rows: Sequence[Any]
    cases: Sequence[BenchCase]
    machine: str = ""
    """The machine's datasheet as TOML; empty if the catalogue has the device or the rows do not suffice."""
    no_machine: str = ""
    """Why there is no datasheet, if the catalogue lacks the device."""

    def gpu(self) -> Gpu:
        """The device for the cost model: the catalogue's, or the datasheet just measured."""
        facts = self.scale.facts
        return load_gpu(facts.gpu) if is_catalogued(facts) else stand_in(self.scale)

    def pairs(self, gpu: Gpu, calibration: Calibration | None = None) -> list[Pair]:
        """Predicted and measured time of every case."""
        return pairs(self.cases, self.rows, gpu, calibration)


def measure(
    device: Device,
    suite_name: str,
    out: str | Path,
    *,
    graph: OperatorGraph | None = None,
    resume: bool = False,
    budget_s: float | None = None,
    rounds: int | None = None,
    date: str = "",
    progress: Callable[[SuiteProgress], None] = lambda _: None,
    collect: Collect | None = None,
) -> Measured:
    """Run a suite on a device and append its rows to ``out``. Raises ``InputError``.

    ``collect`` times collectives, if the suite has them and there are several devices (on CPUs: two processes).
    ``budget_s`` stops between cases (default: the suite's own); ``rounds`` is how often each case is visited (default:
    twice on a host, once elsewhere).
    """
    if suite_name not in BUDGET_S:
        raise InputError("suite", suite_name, f"must be one of {', '.join(BUDGET_S)}", "quick")
    return measure_cases(
        device,
        suite_name,
        lambda scale: suite(suite_name, scale, graph),
        out,
        resume=resume,
        budget_s=BUDGET_S[suite_name] if budget_s is None else budget_s,
        rounds=rounds,
        date=date,
        progress=progress,
        collect=collect if suite_name == "collectives" or _has_peers(device, suite_name) else None,
    )


Collect = Callable[[Sequence[BenchCase], str], list[Row]]
"""Times collectives in processes of their own; the date goes into the rows."""


def _has_peers(device: Device, suite_name: str) -> bool:
    return suite_name == "full" and device.facts.num_devices > 1


def measure_cases(
    device: Device,
    name: str,
    make: Callable[[Scale], Sequence[BenchCase]],
    out: str | Path,
    *,
    resume: bool = False,
    budget_s: float,
    rounds: int | None = None,
    date: str = "",
    progress: Callable[[SuiteProgress], None] = lambda _: None,
    collect: Collect | None = None,
) -> Measured:
    """Like ``measure`` for cases that ``make`` builds from the device's scale; ``name`` is the rows' ``suite``."""
    started = device.host_s()
    on_host = device.facts.backend == "cpu"
    with RecordsFile(out, device.facts, resume=resume) as records:
        scale, cases = _begun(look(device), make, records, name)
        left_s = budget_s - (device.host_s() - started)
        session = Session(
            device=device,
            records=records,
            suite=name,
            date=date or datetime.date.today().isoformat(),
            policy=_policy(HOST_POLICY if on_host else GPU_POLICY, left_s, len(cases)),
            budget_s=left_s,
            rounds=rounds or (2 if on_host else 1),
            progress=progress,
        )
        result = run(cases, session)
        if collect is not None:
            _collectives(collect, session, result)
    machine, why = _machine(records, session.date, device)
    return Measured(
        scale=scale,
        suite=name,
        result=result,
        path=Path(out),
        rows=records.rows,
        cases=cases,
        machine=machine,
        no_machine=why,
    )


def _begun(
    scale: Scale, make: Callable[[Scale], Sequence[BenchCase]], records: RecordsFile, name: str
) -> tuple[Scale, Sequence[BenchCase]]:
    """The cases of this scale or, if the file has others, of the neighbouring scale that matches the file best: a
    resumed run keeps its cases although the machine now seems a step faster or slower."""
    cases = make(scale)
    recorded = {row_key(row) for row in records.rows if row.get("suite") == name}
    if recorded <= {case.key for case in cases}:
        return scale, cases

    def in_file(size: Scale) -> int:
        return sum(case.key in recorded for case in make(size))

    begun = max(_neighbours(scale), key=in_file)
    return begun, make(begun)


def _neighbours(scale: Scale) -> list[Scale]:
    """This scale first, then those with the memory rate, and the rates of all types or of one, off by a factor of 2."""
    steps = (1.0, 0.5, 2.0)
    all_rates = [dict.fromkeys(scale.flops_per_s, step) for step in steps]
    single = [{name: step} for name in scale.flops_per_s for step in steps[1:]]
    return [
        replace(
            scale,
            flops_per_s={name: rate * rates.get(name, 1.0) for name, rate in scale.flops_per_s.items()},
            bytes_per_s=scale.bytes_per_s * memory,
        )
        for rates in (*all_rates, *single)
        for memory in steps
    ]


def _collectives(collect: Collect, session: Session, result: RunResult) -> None:
    """Time the collectives that are not in the file yet."""
    facts = session.device.facts
    on_host = facts.backend == "cpu"
    cases = collective_cases(max(2, facts.num_devices), small=on_host)
    due = [case for case in cases if not session.records.visits(case)]
    rows = collect(due, session.date) if due else []
    for row in rows:
        session.records.append(row)
    result.cases += len(cases)
    result.kept += len(cases) - len(due)
    result.measured += len(rows)
    if len(rows) < len(due):
        result.skipped["the library does not support this collective"] = [case.label for case in due][
            : len(due) - len(rows)
        ]


def _machine(records: RecordsFile, date: str, device: Device) -> tuple[str, str]:
    """The datasheet, and the reason if there is none."""
    if is_catalogued(device.facts):
        return "", ""
    try:
        return machine_toml(records.rows, device.facts, date), ""
    except InputError as error:
        return "", f"records {error.must}"


def measured_body(measured: Measured, machine: str | None, compared: Sequence[Pair] = ()) -> JsonDict:
    """The JSON of ``sartor measure``."""
    facts, result = measured.scale.facts, measured.result
    tables: dict[str, int] = {}
    for row in measured.rows:
        tables[row["table"]] = tables.get(row["table"], 0) + 1
    return {
        "device": {name: getattr(facts, name) for name in facts.__slots__},
        "dtype": measured.scale.dtype.value,
        "suite": measured.suite,
        "file": str(measured.path),
        "machine_file": machine,
        "no_machine_file": measured.no_machine or None,
        **picked(result, "stopped", "cases", "measured", "kept", "again", "left"),
        "skipped": [
            {"reason": reason, "count": len(labels), "cases": labels[:10]} for reason, labels in result.skipped.items()
        ],
        "spent_s": round(result.spent_s, 3),
        "rows": dict(sorted(tables.items())),
        "compared": [_pair_body(pair) for pair in compared],
        "errors": _summary(compared),
    }


def _pair_body(pair: Pair) -> JsonDict:
    """A pair in JSON."""
    words = {name: value for name, value in pair.case.columns.items() if value != ""}
    return {
        "table": pair.case.table,
        **words,
        **dict(pair.case.tags),
        **picked(pair, "predicted_s", "low_s", "high_s", "source", "measured_s", "ratio"),
    }


def _summary(compared: Sequence[Pair]) -> JsonDict:
    """Errors |predicted / measured - 1|, per table and overall."""
    tables = ["all", *sorted({pair.case.table for pair in compared})]
    return {
        table: _errors([pair.ratio for pair in compared if table in ("all", pair.case.table)])
        for table in tables
        if compared
    }


def _errors(ratios: list[float]) -> dict[str, float]:
    error = np.abs(np.asarray(ratios) - 1)
    return {
        "cases": len(ratios),
        "mape": float(error.mean()),
        "median_error": float(np.median(error)),
        "p90_error": float(np.quantile(error, 0.9)),
        "bias": float(np.median(ratios)),
    }
