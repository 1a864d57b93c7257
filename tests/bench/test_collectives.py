"""Collectives: cases, and two processes on the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.fake_device import FakeDevice
from sartor.bench.cases import BenchCase
from sartor.bench.collectives import KINDS, collective_cases
from sartor.bench.journey import measure
from sartor.bench.timing import Policy, Row, row_of, time_case
from sartor.records.tables import read_tables


def faked(cases: list[BenchCase], date: str) -> list[Row]:
    device = FakeDevice()
    timing = time_case(device, device.load(cases[0]), cases[0].mode, Policy())
    return [row_of(c, timing, device.facts, sets=1, timer="host", suite="collectives", date=date) for c in cases]


def test_every_kind_is_timed_at_growing_messages() -> None:
    cases = collective_cases(4, small=False)
    assert {case.columns["op"] for case in cases} == {kind.value for kind in KINDS}
    assert max(case.columns["bytes"] for case in cases) == 2**30
    assert len({case.key for case in cases}) == len(cases)


def test_the_suite_writes_a_table_that_validate_reads_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    first = measure(FakeDevice(), "collectives", path, date="2026-11-21", collect=faked)  # type: ignore[arg-type]
    assert first.result.measured == first.result.cases > 0
    (table,) = read_tables(path).tables
    assert table.kind.name == "collectives"
    again = measure(FakeDevice(), "collectives", path, date="2026-11-21", collect=faked, resume=True)  # type: ignore[arg-type]
    assert (again.result.measured, again.result.kept) == (0, first.result.cases)


@pytest.mark.torch
def test_two_processes_exchange_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed: make test-torch")
    out = tmp_path / "r.csv"
    code = "from sartor.cli import main; main()"
    words = ["measure", "--suite", "collectives", "--device", "cpu", "--threads", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert all(f",{kind.value}," in text for kind in KINDS)
