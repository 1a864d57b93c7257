"""The harness on a fake clock: timing, budget, resume, what cannot run, and the file of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fake_device import FACTS, FakeDevice
from sartor.bench.cases import BenchCase, ClockMode, StackRun
from sartor.bench.journey import Session, Stopped, measure, measured_body, run
from sartor.bench.records_file import RecordsFile, read_rows, row_key
from sartor.bench.timing import CHOSEN_KERNEL, NOISY, SUSTAINED, Policy, time_case
from sartor.errors import InputError
from sartor.operators import Attention, DType, Gemm, Layout
from sartor.records.tables import read_tables


def product(m: int = 256, n: int = 512, k: int = 1024, layout: Layout = Layout.TN) -> BenchCase:
    return BenchCase(work=Gemm(name="gemm", m=m, n=n, k=k, layout=layout))


CASES = [product(m=m) for m in (64, 128, 256, 512, 1024)]


def session(device: FakeDevice, path: Path, resume: bool = False, **changes: object) -> Session:
    records = RecordsFile(path, device.facts, resume=resume)
    return Session(device=device, records=records, suite="test", date="2026-11-21", **changes)  # type: ignore[arg-type]


@given(
    noise=st.floats(0, 0.2),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-6, 1e-4, 1e-2]),
    samples=st.integers(3, 9),
)
def test_the_median_lies_between_the_percentiles_and_near_the_truth(
    noise: float, seed: int, scale: float, samples: int
) -> None:
    device = FakeDevice(seconds=lambda _: scale, noise=noise, seed=seed)
    timing = time_case(device, device.load(product()), ClockMode.BURST, Policy(samples=samples))
    assert timing.p10_s <= timing.median_s <= timing.p90_s
    assert timing.samples == samples
    assert abs(np.log(timing.median_s / scale)) <= 4 * noise + 1e-9


def test_a_sample_holds_as_many_launches_as_fill_its_time() -> None:
    device = FakeDevice(seconds=lambda _: 1e-4)
    timing = time_case(device, device.load(product()), ClockMode.BURST, Policy(sample_s=0.01))
    assert timing.launches == 100


def test_samples_in_which_others_took_the_cores_are_set_aside() -> None:
    every_other = FakeDevice(seconds=lambda _: 1e-3, disturb=lambda call: 0.02 * (call % 2))
    timing = time_case(every_other, every_other.load(product()), ClockMode.BURST, Policy())
    assert timing.quiet
    assert timing.set_aside > 0
    assert timing.median_s == pytest.approx(1e-3)


def test_a_device_that_is_never_quiet_is_timed_all_the_same_and_flagged(tmp_path: Path) -> None:
    device = FakeDevice(disturb=lambda call: 0.02)
    result = run(CASES[:1], session(device, tmp_path / "r.csv"))
    assert all(row["flag"] & NOISY for row in result.rows)
    assert result.again == 2  # looked at again, twice at most


def test_a_sustained_case_works_before_it_is_timed_and_its_row_says_so(tmp_path: Path) -> None:
    device = FakeDevice(seconds=lambda _: 1e-3)
    result = run([replace(CASES[0], mode=ClockMode.SUSTAINED)], session(device, tmp_path / "r.csv"))
    assert device.now > 1.5
    assert result.rows[0]["flag"] == SUSTAINED
    assert result.rows[0]["mode"] == "sustained"


def test_a_short_run_rests_between_samples() -> None:
    device = FakeDevice()
    time_case(device, device.load(product()), ClockMode.BURST, Policy(rest_s=0.5, samples=4))
    assert device.rested_s == pytest.approx(2.0)


def test_a_run_stops_at_its_budget_and_a_resumed_one_does_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    first = run(CASES, session(FakeDevice(seconds=lambda _: 0.1), path, budget_s=2.0))
    assert first.stopped is Stopped.BUDGET
    assert 0 < first.measured < len(CASES)
    assert first.left == len(CASES) - first.measured
    second = run(CASES, session(FakeDevice(seconds=lambda _: 0.1), path, resume=True))
    assert second.stopped is Stopped.FINISHED
    assert (second.kept, second.measured) == (first.measured, len(CASES) - first.measured)
    assert len(read_rows(path)) == len(CASES)


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    result = run(CASES, session(FakeDevice(interrupt_at=3), path))
    assert result.stopped is Stopped.INTERRUPTED
    assert len(read_rows(path)) == result.measured == 3


def test_a_row_cut_off_in_writing_is_dropped_and_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    run(CASES, session(FakeDevice(), path))
    text = path.read_text()
    path.write_text(text[: text.rindex("2026-11-21") - 30])
    assert run(CASES, session(FakeDevice(), path, resume=True)).measured == 1
    assert len(read_rows(path)) == len(CASES)


def test_out_of_memory_in_mid_suite_is_skipped_and_said_and_the_rest_kept(tmp_path: Path) -> None:
    device = FakeDevice(too_large=lambda case: case.work.m == 256, unsupported=lambda c: "no kernel" * (c.work.m == 64))
    result = run(CASES, session(device, tmp_path / "r.csv", rounds=2))
    assert result.measured == 3
    assert result.skipped == {"no kernel": [CASES[0].label], "out of memory": [CASES[2].label]}
    assert result.left == 0
    assert device.freed == len(device.loads)


def test_cases_of_a_shared_host_are_visited_twice_and_once_more_where_visits_differ(tmp_path: Path) -> None:
    device = FakeDevice()
    device.seconds = lambda case: 2e-3 if len(device.loads) == 2 else 1e-3
    result = run(CASES[:1], session(device, tmp_path / "r.csv", rounds=2))
    assert (result.measured, result.again) == (1, 2)


def test_a_kernel_asked_for_is_another_case_and_no_target(tmp_path: Path) -> None:
    work = Attention(name="a", batch=1, num_heads=8, num_kv_heads=8, seq_q=64, seq_kv=64, head_dim=64, v_head_dim=64)
    result = run([BenchCase(work=work), BenchCase(work=work, kernel="math")], session(FakeDevice(), tmp_path / "r.csv"))
    assert [row["flag"] for row in result.rows] == [0, CHOSEN_KERNEL]


def test_a_case_and_its_row_have_one_key(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    device = FakeDevice()
    found = measure(device, "full", path, date="2026-11-21", budget_s=1e9)
    assert {row_key(row) for row in read_rows(path)} == {case.key for case in found.cases}


def test_rows_of_another_device_or_software_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    run(CASES[:1], session(FakeDevice(), path))
    other = FakeDevice(facts=replace(FACTS, driver="2.0"))
    with pytest.raises(InputError, match=r"driver=1\.0.*differs from this run's 2\.0"):
        session(other, path, resume=True)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    run(CASES[:1], session(FakeDevice(), path))
    with pytest.raises(InputError, match="--resume"):
        session(FakeDevice(), path)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00\x01"])
def test_a_file_that_holds_no_records_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text)
    if text:
        with pytest.raises(InputError):
            session(FakeDevice(), path, resume=True)
    else:
        assert session(FakeDevice(), path, resume=True).records.rows == []


def test_parquet_and_csv_hold_the_same_and_both_resume(tmp_path: Path) -> None:
    for name in ("r.csv", "r.parquet"):
        for resume in (False, True):
            asked = session(FakeDevice(), tmp_path / name, resume=resume)
            with asked.records:
                run(CASES[: 2 + 3 * resume], asked)
    latencies = [sorted(row["latency_us"] for row in read_rows(tmp_path / name)) for name in ("r.csv", "r.parquet")]
    assert latencies[0] == latencies[1]
    assert not list(tmp_path.glob("*.part*"))


def test_every_table_of_a_full_suite_is_read_by_validate(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    found = measure(FakeDevice(), "full", path, date="2026-11-21", budget_s=1e9)
    tables = {table.kind.name: table for table in read_tables(path).tables}
    assert set(tables) == {"gemm", "attention", "memory_bound", "layer_and_model"}
    assert measured_body(found, None)["rows"] == {name: table.num_rows for name, table in sorted(tables.items())}


def test_a_stack_counts_its_weights() -> None:
    run_ = StackRun(
        name="s",
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_hidden_size=256,
        gated=True,
        num_layers=3,
    )
    assert run_.num_params == 3 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 256)
    assert BenchCase(work=replace(run_, dtype=DType.FP32)).columns["dtype"] == "float32"
