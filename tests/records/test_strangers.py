"""Rows that are no measurements of what they say are named, left out and counted; others stay. By `calibrate` and by
`validate`, which read the same file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from sartor.calibrate.calibration_toml import calibrate
from sartor.calibrate.fit import Index, Products, packaged_seconds
from sartor.calibrate.read_records import READ_FAST, read_records
from sartor.cli import run
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType
from sartor.records.tables import read_tables
from sartor.records.targets import targets_of
from sartor.units import FloatArray
from sartor.validate.predictions import predict

LeftOut = Callable[[FloatArray], Mapping[str, int]]
ROWS, ODD = 300, 40


def products(gpu: str) -> Products:
    draw = np.random.default_rng(5)
    sizes: dict[str, Index] = {name: 64 * draw.integers(4, 160, ROWS) for name in ("m", "n", "k")}
    layouts = np.full(ROWS, "TN")
    return Products(gpu=load_gpu(gpu), dtype=DType.BF16, batch=np.ones(ROWS, dtype=np.int64), layouts=layouts, **sizes)


def times(gpu: str, noise: float = 0.04) -> FloatArray:
    draw = np.random.default_rng(6)
    found: FloatArray = packaged_seconds(products(gpu)) * np.exp(noise * draw.standard_normal(ROWS))
    return found


def by_calibrate(path: Path) -> Mapping[str, int]:
    records = read_records(path)
    assert records.rows + sum(records.left_out.values()) == ROWS
    return records.left_out


def by_validate(path: Path) -> Mapping[str, int]:
    predicted = predict(targets_of(read_tables(path, ()).tables))
    counted = np.bincount(predicted.reason, minlength=len(predicted.reasons))
    assert counted.sum() == ROWS
    return {reason: int(count) for reason, count in zip(predicted.reasons, counted, strict=True) if reason and count}


@pytest.fixture(params=[by_calibrate, by_validate])
def left_out(request: pytest.FixtureRequest, tmp_path: Path) -> LeftOut:
    def found(seconds: FloatArray) -> Mapping[str, int]:
        each = products("h200_sxm")
        lines = ["gpu,dtype,m,n,k,latency_us"]
        sizes = zip(each.m, each.n, each.k, seconds, strict=True)
        lines += [f"h200_sxm,bf16,{m},{n},{k},{1e6 * s:.5f}" for m, n, k, s in sizes]
        (tmp_path / "records.csv").write_text("\n".join(lines) + "\n")
        counts: Mapping[str, int] = request.param(tmp_path / "records.csv")
        return counts

    return found


@pytest.mark.parametrize("gpu", ["h200_sxm", "a10"])
def test_a_third_of_rows_in_another_unit_is_told_by_both_also_where_predictions_are_borrowed(
    gpu: str, tmp_path: Path
) -> None:
    seconds, each = times(gpu), products(gpu)
    seconds[::3] *= 1000
    lines = ["gpu,dtype,m,n,k,latency_us"]
    lines += [
        f"{gpu},bf16,{m},{n},{k},{1e6 * s:.5f}" for m, n, k, s in zip(each.m, each.n, each.k, seconds, strict=True)
    ]
    (tmp_path / "records.csv").write_text("\n".join(lines) + "\n")
    expected = {"a time about 1,000 times off the other rows (another unit?)": ROWS // 3}
    assert by_calibrate(tmp_path / "records.csv") == by_validate(tmp_path / "records.csv") == expected


@pytest.mark.parametrize(("factor", "said"), [(1.4, False), (2.0, True), (11.5, True)])
def test_a_file_that_is_slow_throughout_is_said_to_be(factor: float, said: bool, tmp_path: Path) -> None:
    each = products("h200_sxm")
    lines = ["gpu,dtype,m,n,k,latency_us"]
    sizes = zip(each.m, each.n, each.k, factor * times("h200_sxm"), strict=True)
    lines += [f"h200_sxm,bf16,{m},{n},{k},{1e6 * s:.5f}" for m, n, k, s in sizes]
    (tmp_path / "records.csv").write_text("\n".join(lines) + "\n")
    remarks = [each for each in read_records(tmp_path / "records.csv").remarks if "nearly all rows" in each]
    assert bool(remarks) == said


def test_honest_rows_stay_also_where_they_are_noisy_or_all_slower(left_out: LeftOut) -> None:
    assert not left_out(times("h200_sxm"))
    assert not left_out(1.6 * times("h200_sxm", 0.15))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_rows_in_another_unit_are_named_and_counted(left_out: LeftOut, factor: float) -> None:
    seconds = times("h200_sxm")
    seconds[:ODD] *= factor
    assert left_out(seconds) == {"a time about 1,000 times off the other rows (another unit?)": ODD}


def test_rows_of_another_device_are_named_and_counted(left_out: LeftOut) -> None:
    seconds = times("h200_sxm")
    seconds[:ODD] = times("a100_sxm")[:ODD]
    assert left_out(seconds) == {"a time that looks measured on another device (a100_sxm)": ODD}


COPIED = "a time copied from another shape"


@pytest.mark.parametrize("count", [4, ODD, 100])
def test_times_copied_from_other_shapes_are_named_and_counted(left_out: LeftOut, count: int) -> None:
    seconds = times("h200_sxm")
    seconds[:count] = seconds[count : 2 * count]
    assert left_out(seconds)[COPIED] > 0.7 * count


def test_rows_with_one_anothers_times_are_copied_too_though_none_has_its_own(left_out: LeftOut) -> None:
    seconds = times("h200_sxm")
    seconds[:ODD] = np.roll(seconds[:ODD], 1)
    assert left_out(seconds)[COPIED] > 0.7 * ODD


@pytest.mark.parametrize(("count", "rows"), [(2, 12), (3, 30), (6, 60)])
def test_a_few_rows_with_one_anothers_times_are_found_in_a_small_file_too(
    tmp_path: Path, count: int, rows: int
) -> None:
    each, seconds = products("h200_sxm"), times("h200_sxm")[:rows]
    far = np.argsort(seconds)[np.linspace(0, rows - 1, count).astype(int)]  # small, middle and large ones
    seconds[far] = np.roll(seconds[far], 1)
    lines = [f"h200_sxm,bf16,{each.m[i]},{each.n[i]},{each.k[i]},{1e6 * seconds[i]:.5f}" for i in range(rows)]
    (tmp_path / "few.csv").write_text("\n".join(["gpu,dtype,m,n,k,latency_us", *lines]))
    assert read_records(tmp_path / "few.csv").left_out == {COPIED: count}


def test_slow_outliers_are_not_exchanged(left_out: LeftOut) -> None:
    seconds = times("h200_sxm")
    seconds[:8] *= np.linspace(2, 9, 8)
    assert COPIED not in left_out(seconds)


def test_weights_read_faster_than_the_memory_of_the_file_s_device_betray_another(tmp_path: Path) -> None:
    """H200 reads at 4.8 TB/s what H100 reads at 3.35: 470 MB of weights in 110 us."""
    rows = [f"h100_sxm,bf16,{m},4096,4096,{30 + m / 24}" for m in range(64, 4096, 256)]
    rows += ["h100_sxm,bf16,16,28672,8192,109"]
    (tmp_path / "mixed.csv").write_text("\n".join(["gpu,dtype,m,n,k,latency_us", *rows]))
    assert read_records(tmp_path / "mixed.csv").left_out == {READ_FAST: 1}


def test_a_file_too_small_to_tell_another_device_s_rows_says_so(tmp_path: Path) -> None:
    rows = [f"h100_sxm,bf16,{m},4096,4096,{30 + m / 24}" for m in range(64, 4096, 256)]
    rows += [row.replace("4096,4096", "2048,4096") for row in rows]
    for count, said in ((12, True), (24, False)):
        (tmp_path / "few.csv").write_text("\n".join(["gpu,dtype,m,n,k,latency_us", *rows[:count]]))
        found = calibrate(tmp_path / "few.csv").remarks
        assert any("too few to tell whether some are another device's" in remark for remark in found) == said


def test_equal_times_of_a_coarse_clock_are_no_copies(left_out: LeftOut) -> None:
    draw = np.random.default_rng(7)
    seconds = times("h200_sxm", 0.1) * np.where(draw.random(ROWS) < 0.1, 3.0, 1.0)  # some honestly slow
    assert COPIED not in left_out(np.maximum(1.0, np.round(seconds * 1e5)) * 1e-5)


def test_the_command_says_how_many_times_are_copied(
    left_out: LeftOut, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = times("h200_sxm")
    seconds[:ODD] = seconds[ODD : 2 * ODD]
    found = left_out(seconds)[COPIED]
    assert run(["calibrate", str(tmp_path / "records.csv"), "--gpu", "h200_sxm"]) == 0
    assert f"left out {found} rows: {COPIED}" in capsys.readouterr().out


def test_rows_of_another_device_at_shapes_that_the_file_has_too_are_told_before_their_medians(tmp_path: Path) -> None:
    each, lines = products("h200_sxm"), ["gpu,dtype,m,n,k,latency_us"]
    for seconds, some in ((times("h200_sxm"), slice(None)), (times("a100_sxm"), slice(0, ODD))):
        sizes = zip(each.m[some], each.n[some], each.k[some], seconds[some], strict=True)
        lines += [f"h200_sxm,bf16,{m},{n},{k},{1e6 * s:.5f}" for m, n, k, s in sizes]
    (tmp_path / "twice.csv").write_text("\n".join(lines))
    found = read_records(tmp_path / "twice.csv")
    assert found.left_out == {"a time that looks measured on another device (a100_sxm)": ODD}
    assert (found.rows, len(found.products)) == (ROWS, ROWS)


def test_the_same_row_twice_is_no_copy_and_hides_none(tmp_path: Path) -> None:
    each, seconds = products("h200_sxm"), times("h200_sxm")
    seconds[:ODD] = seconds[ODD : 2 * ODD]
    sizes = zip(each.m, each.n, each.k, seconds, strict=True)
    lines = [f"h200_sxm,bf16,{m},{n},{k},{1e6 * s:.5f}" for m, n, k, s in sizes]
    (tmp_path / "double.csv").write_text("\n".join(["gpu,dtype,m,n,k,latency_us", *lines, *lines]))
    found = read_records(tmp_path / "double.csv")
    assert 0.7 * 2 * ODD < found.left_out[COPIED] <= 2 * ODD


def test_calibrate_names_the_shapes_it_leaves_out(left_out: LeftOut, tmp_path: Path) -> None:
    seconds = times("h200_sxm")
    seconds[0] *= 1000
    left_out(seconds)
    each = products("h200_sxm")
    (remark,) = read_records(tmp_path / "records.csv").remarks
    assert remark.startswith(f"latency_us of {each.m[0]} x {each.n[0]} x {each.k[0]}: a time about 1,000 times off")
