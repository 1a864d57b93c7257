"""``sartor calibrate`` as people and scripts call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from records.made_tables import gemm_rows, write_csv
from sartor.cli import run

SHAPES = [(m, n, k) for m in (16, 128, 512, 2048, 8192) for n in (1024, 4096, 8192) for k in (1024, 4096)]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_words(*words: object) -> tuple[int, str, str]:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "mine.csv", gemm_rows(1.2, shapes=SHAPES))


def test_json_has_the_fit_and_its_errors_and_out_is_the_calibration(
    records: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    out = tmp_path / "mine.toml"
    code, text, _ = call("calibrate", records, "--date", "2026-11-21", "--out", out, "--json")
    body = json.loads(text)
    assert (code, body["schema"], body["gpu"], body["dtype"]) == (0, "sartor/calibrate/1", "a100_sxm", "bf16")
    assert {"rows", "mape", "median", "p90", "bias"} <= set(body["held_out"])
    assert body["held_out"]["mape"] < body["before"]["mape"]
    code, text, _ = call("gemm", 4096, 4096, 4096, "--gpu", "a100", "--calibration", out, "--json")
    after = json.loads(text)
    before = json.loads(call("gemm", 4096, 4096, 4096, "--gpu", "a100", "--json")[1])
    assert "error" not in after
    assert json.dumps(after) != json.dumps(before)


def test_people_get_errors_and_what_changed(records: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    out = tmp_path / "mine.toml"
    assert call("calibrate", records, "--out", out)[0] == 0
    code, text, _ = call("calibrate", records, "--compare", out)
    assert code == 0
    assert "held-out regions" in text
    assert "no coefficient changed" in text
    assert max(map(len, text.splitlines())) <= 100
    code, text, _ = call("calibrate", out, "--compare", out, "--json")
    assert all(region["ratio"] == 1 for region in json.loads(text)["compared"]["regions"])


MACHINE = """
name = "my_machine"
vendor = "host"
generation = "cpu"
num_sms = 2
hbm_gib = 16
hbm_gb_per_s = 20.0
l2_mib = 1.0
boost_clock_mhz = 2600.0
tdp_w = 100.0
[peak_dense_tflops]
fp32 = 0.2
[sources]
all = "made for this test, 2026-11-21"
"""


def test_calibrations_of_a_machine_of_ones_own_are_compared_with_its_datasheet(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    sheet, out = tmp_path / "my_machine.toml", tmp_path / "mine.toml"
    sheet.write_text(MACHINE)
    small = [(m, n, k) for m in (16, 128, 512, 1024) for n in (256, 1000, 1024) for k in (256, 768)]
    rows = [
        {**row, "gpu": "my_machine", "dtype": "float32", "latency_us": 5 + 2 * m * n * k / 0.15e6}
        for row, (m, n, k) in zip(gemm_rows(shapes=small), small, strict=True)
    ]
    records = write_csv(tmp_path / "mine.csv", rows)
    assert call("calibrate", records, "--gpu", sheet, "--out", out)[0] == 0
    code, text, _ = call("calibrate", out, "--compare", out, "--gpu", sheet, "--json")
    assert code == 0
    assert json.loads(text)["compared"]["coefficients"] == []
    code, _, said = call("calibrate", out, "--compare", out)
    assert code == 2
    assert "must be the datasheet of my_machine" in said


def test_a_comparison_says_which_driver_and_library_changed(tmp_path: Path, call: Callable[..., Any]) -> None:
    files = []
    for version, slower in (("2.12", 1.0), ("2.13", 1.25)):
        rows = [{**row, "framework": "torch", "framework_version": version} for row in gemm_rows(slower, shapes=SHAPES)]
        files.append(tmp_path / f"{version}.toml")
        records = write_csv(tmp_path / f"{version}.csv", rows)
        assert call("calibrate", records, "--out", files[-1], "--json")[0] == 0
    change = json.loads(call("calibrate", files[1], "--compare", files[0], "--json")[1])["compared"]
    assert change["made_with"] == [{"name": "framework_version", "before": "2.12", "after": "2.13"}]
    assert all(1.0 < region["ratio"] < 1.4 for region in change["regions"])
    assert "framework_version: 2.12 -> 2.13" in call("calibrate", files[1], "--compare", files[0])[1]


def test_records_of_two_devices_are_told_apart_or_refused(tmp_path: Path, call: Callable[..., Any]) -> None:
    mine, other = gemm_rows(1.2, shapes=SHAPES), [{**row, "gpu": "h200_sxm"} for row in gemm_rows(shapes=SHAPES)[:7]]
    records = write_csv(tmp_path / "both.csv", [*mine, *other])
    code, _, said = call("calibrate", records)
    assert code == 2
    assert "holds 2 devices; choose one with --gpu" in said
    body = json.loads(call("calibrate", records, "--gpu", "a100", "--json")[1])
    assert {"reason": "gpu is not a100_sxm", "rows": 7} in body["left_out"]
    assert body["shapes"] == len(SHAPES)


def test_a_file_that_does_worse_than_the_package_is_told(tmp_path: Path, call: Callable[..., Any]) -> None:
    records = write_csv(tmp_path / "as_known.csv", gemm_rows(shapes=SHAPES))
    body = json.loads(call("calibrate", records, "--start", "h200_sxm", "--json")[1])
    assert body["catalogue"]["mape"] < 1e-6 < body["held_out"]["mape"]
    assert any("worse than none" in remark for remark in body["remarks"])


def test_a_plan_is_written_as_csv(tmp_path: Path, call: Callable[..., Any]) -> None:
    out = tmp_path / "shapes.csv"
    code, text, _ = call("calibrate", "--plan", 12, "--gpu", "h200_sxm", "--out", out, "--json")
    assert code == 0
    assert len(json.loads(text)["plan"]) == 12
    assert len(out.read_text(encoding="utf-8").splitlines()) == 13


@pytest.mark.parametrize(
    "words",
    [(), ("none.csv",), ("--plan", 5), ("--plan", 5, "--gpu", "h2000"), ("--plan", 5, "--gpu", "h200", "--dtype", "x")],
)
def test_bad_words_get_one_sentence_and_exit_code_two(words: tuple[Any, ...], call: Callable[..., Any]) -> None:
    code, out, err = call("calibrate", *words)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1


def test_a_date_after_today_is_refused(records: Path, call: Callable[..., Any]) -> None:
    code, _, err = call("calibrate", records, "--date", "2999-01-01")
    assert code == 2
    assert "must not be after today" in err


def test_rows_without_a_time_are_named_with_their_shape_and_what_stands_there(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    rows = gemm_rows(1.2, shapes=SHAPES)
    rows[1]["latency_us"] = -7.5
    m, n, k = SHAPES[1]
    text = call("calibrate", write_csv(tmp_path / "x.csv", rows), "--json")[1]
    assert f"latency_us of {m} x {n} x {k} (-7.5): not a number above 0" in json.loads(text)["remarks"]


def test_a_file_with_one_time_for_all_shapes_is_told_to_be_copied_not_in_another_unit(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    rows = [{**row, "latency_us": 11.617} for row in gemm_rows(shapes=SHAPES)]
    code, _, err = call("calibrate", write_csv(tmp_path / "x.csv", rows))
    assert code == 2
    assert f"{len(SHAPES)} of {len(SHAPES)} rows have the same 11.617 us" in err
