"""A calibration from few GEMMs: known coefficients come back, files survive the round trip, bad records are named."""

from __future__ import annotations

import csv
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sartor.api import estimate, gemm
from sartor.calibrate.calibration_toml import _errors, as_toml, calibrate, compare_calibrations, starting_point
from sartor.calibrate.fit import Products, Unknowns, fit, seconds
from sartor.calibrate.read_records import read_records
from sartor.calibrate.samples import as_csv, choose, grid, plan_samples, regions
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.calibration_file import load_own_calibration, read_calibration_file
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType

GPU, DTYPE = load_gpu("h200_sxm"), DType.BF16


def start() -> GemmCoefficients:
    return starting_point(load_gpu("b200_sxm"), DTYPE)


def truth() -> GemmCoefficients:
    """Coefficients of no device: the start's, each moved."""
    c = start()
    tiles = tuple((m, n, share * (0.8 + 0.1 * (i % 2))) for i, (m, n, share) in enumerate(c.tiles))
    return replace(c, tiles=tiles, launch_s=c.launch_s * 1.8, hbm_share=0.7, wave_s=c.wave_s * 2, tile_s=c.tile_s * 0.7)


def aligned() -> Products:
    pool = grid(GPU, DTYPE)
    return pool.part(np.flatnonzero((pool.n % 64 == 0) & (pool.k % 64 == 0)))


def write(path: Path, products: Products, measured_s: Any, **columns: Any) -> Path:
    names = ("gpu", "dtype", "batch", "m", "n", "k", "layout", "latency_us", *columns)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(names)
        for i in range(len(products)):
            sizes = (getattr(products, name)[i] for name in ("batch", "m", "n", "k", "layouts"))
            own = (value[i] if isinstance(value, list) else value for value in columns.values())
            table.writerow([products.gpu.name, products.dtype.value, *sizes, repr(float(measured_s[i] * 1e6)), *own])
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 products of the known coefficients, with 1% of noise."""
    pool = aligned()
    some = pool.part(np.random.default_rng(1).permutation(len(pool))[:400])
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(400))
    days = ["2026-03-01", "2026-03-02"] * 200
    return write(tmp_path_factory.mktemp("records") / "made.csv", some, seconds(some)(truth()) * noise, date=days)


@pytest.fixture(scope="module")
def written(made: Path) -> Path:
    path = made.with_name("made.toml")
    path.write_text(as_toml(calibrate(made, samples=100, start="b200_sxm")), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------- the fit


def test_a_hundred_products_of_known_coefficients_predict_unseen_ones_within_three_percent() -> None:
    pool = aligned()
    fold = regions(pool)
    inside, unseen = np.flatnonzero(fold != 0), np.flatnonzero(fold == 0)
    picked = inside[choose(pool.part(inside), 100)]
    known_s = seconds(pool)(truth())
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(100))
    before = _errors(seconds(pool.part(unseen))(start()), known_s[unseen])["mape"]
    began = time.process_time()
    found = fit(pool.part(picked), known_s[picked] * noise, start())
    assert time.process_time() - began < 10
    after = _errors(seconds(pool.part(unseen))(found), known_s[unseen])["mape"]
    assert before > 0.10
    assert after < 0.03


def test_records_that_agree_with_the_start_leave_it_where_it_is() -> None:
    pool = aligned()
    some = pool.part(choose(pool, 60))
    found = fit(some, seconds(some)(start()), start())
    unknowns = Unknowns.of(start(), penalties=False)
    assert found == unknowns.coefficients(np.zeros(unknowns.sd.size))
    assert np.allclose(seconds(pool)(found), seconds(pool)(start()))


def test_more_freedom_goes_further_from_the_start() -> None:
    pool = aligned()
    some = pool.part(choose(pool, 40))
    measured_s = seconds(some)(start()) * 1.5
    moved = [fit(some, measured_s, start(), freedom=each).launch_s / start().launch_s for each in (0.05, 1.0)]
    assert 1 < moved[0] < moved[1]


def test_alignment_steps_move_only_where_products_are_misaligned() -> None:
    pool = grid(GPU, DTYPE)
    ragged = pool.part(np.random.default_rng(0).permutation(len(pool))[:300])
    steep = replace(start(), input_penalty=tuple(2 * v for v in start().input_penalty))
    found = fit(ragged, seconds(ragged)(steep), start())
    assert found.input_penalty[3] > 1.2 * start().input_penalty[3]
    some = aligned()
    some = some.part(choose(some, 30))
    assert fit(some, seconds(some)(steep), start()).input_penalty == start().input_penalty


# ------------------------------------------------------------------------------------------- choice and regions


def test_chosen_products_are_distinct_and_the_first_ones_of_a_longer_choice_are_the_same_ones() -> None:
    pool = aligned()
    many, few = choose(pool, 60), choose(pool, 20)
    assert len(set(many.tolist())) == 60
    assert many[:20].tolist() == few.tolist()


def test_regions_hold_whole_weights_and_every_fold_has_some() -> None:
    pool = aligned()
    fold = regions(pool)
    assert set(fold.tolist()) == {0, 1, 2, 3}
    weights = {(int(n), int(k)): set() for n, k in zip(pool.n, pool.k, strict=True)}
    for n, k, f in zip(pool.n, pool.k, fold, strict=True):
        weights[(int(n), int(k))].add(int(f))
    assert all(len(folds) == 1 for folds in weights.values())


def test_a_plan_is_a_table_to_be_filled() -> None:
    lines = as_csv(plan_samples(GPU, DTYPE, 25)).splitlines()
    assert lines[0] == "gpu,dtype,batch,m,n,k,layout"
    assert len(set(lines)) == 26
    assert all(line.startswith("h200_sxm,bf16,1,") for line in lines[1:])


@pytest.mark.slow
def test_chosen_products_hold_out_better_than_drawn_ones_on_measured_tables(shared_dir: Path) -> None:
    table = shared_dir / "data" / "measured" / "gemm_fp16_bf16.parquet"
    chosen, drawn = [], []
    for name in ("a100_sxm", "rtx_pro_6000_server"):
        records = read_records(table, name, "bf16")
        products, measured_s = records.products, records.measured_s
        begun = starting_point(GPU, DTYPE)
        fold = regions(products)
        for f in (0, 2):
            inside, unseen = np.flatnonzero(fold != f), np.flatnonzero(fold == f)[::10]

            def error(pick: Any, unseen: Any = unseen) -> float:
                found = fit(products.part(pick), measured_s[pick], begun)  # noqa: B023
                return _errors(seconds(products.part(unseen))(found), measured_s[unseen])["mape"]  # noqa: B023

            chosen.append(error(inside[choose(products.part(inside), 50)]))
            drawn += [error(np.random.default_rng(seed).permutation(inside)[:50]) for seed in (0, 1)]
    assert np.mean(chosen) < np.mean(drawn)
    assert np.mean(chosen) < 0.14


# ------------------------------------------------------------------------------------------- the file


def test_a_calibration_says_how_it_does_unseen_and_its_intervals_cover(made: Path) -> None:
    found = calibrate(made, samples=100, start="b200_sxm")
    assert (found.rows, found.samples, found.date) == (400, 100, "2026-03-02")
    assert found.held_out["mape"] < 0.05 < found.before["mape"]
    assert 0.75 <= found.coverage_80 <= 0.9


def test_the_same_records_give_the_same_bytes(made: Path, written: Path) -> None:
    assert as_toml(calibrate(made, samples=100, start="b200_sxm")) == written.read_text(encoding="utf-8")


def test_a_written_calibration_is_read_back_as_it_was_fitted(made: Path, written: Path) -> None:
    found = calibrate(made, samples=100, start="b200_sxm")
    back = read_calibration_file(written)
    assert (back.gpu, back.dtype) == (found.gpu.name, found.dtype)
    assert back.provenance["source"] == "made.csv"
    assert back.provenance["held_out"]["mape"] == pytest.approx(found.held_out["mape"], rel=1e-5)
    pool = aligned()
    assert np.allclose(seconds(pool)(back.gemm), seconds(pool)(found.coefficients), rtol=1e-4)


def test_the_kernel_of_ragged_results_is_read_back_and_half_of_a_pair_refused(written: Path, tmp_path: Path) -> None:
    text, path = written.read_text(encoding="utf-8"), tmp_path / "ragged.toml"
    assert "ragged = []" in text
    path.write_text(text.replace("ragged = []", "ragged = [[64, 4e-9], [512, 9e-9]]"), encoding="utf-8")
    assert read_calibration_file(path).gemm.ragged == ((64.0, 4e-9), (512.0, 9e-9))
    path.write_text(text.replace("ragged = []", "ragged = [[64]]"), encoding="utf-8")
    with pytest.raises(InputError, match=r"gemm\.ragged=\[\[64\]\]: in .* must be pairs of rows and seconds"):
        read_calibration_file(path)


def test_the_cost_model_uses_the_file(written: Path) -> None:
    own = gemm(4096, 4096, 4096, "h200_sxm", calibration=written)
    product = Products(
        gpu=GPU, dtype=DTYPE, batch=np.ones(1, int), m=np.full(1, 4096), n=np.full(1, 4096), k=np.full(1, 4096),
        layouts=np.asarray(["TN"]),
    )  # fmt: skip
    assert own.cost.time_s == pytest.approx(seconds(product)(read_calibration_file(written).gemm)[0])
    assert own.cost.source.value == "calibrated"
    with_file = estimate("pythia-1b", "h200_sxm", calibration=written)
    assert with_file.microbatch.time_s > estimate("pythia-1b", "h200_sxm").microbatch.time_s


def test_a_file_of_another_device_is_refused_and_the_rest_of_what_is_known_is_kept(written: Path) -> None:
    with pytest.raises(InputError, match=r"is of h200_sxm and the device asked about is a100_sxm"):
        load_own_calibration(written, load_gpu("a100_sxm"))
    own, known = load_own_calibration(written, GPU), load_calibration(GPU)
    assert own.attention == known.attention
    assert own.gemm[DType.FP16] == own.gemm[DType.BF16] != known.gemm[DType.BF16]
    assert own.gemm[DType.FP8] == known.gemm[DType.FP8]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('gpu = "h200_sxm"', "", "must name its gpu"),
        ('dtype = "bf16"', 'dtype = "bf17"', "must be one of"),
        ("launch_s = ", "lunch_s = ", "is not a GEMM coefficient"),
        ("launch_s = ", "launch_s = -", "must be a number above 0"),
        ("tiles = [", "tiles = [[1, 2],", "must be rows of tile_m"),
        ("[gemm]", "[gem]", r"must have a \[gemm\] section"),
        ("[gemm]", "[gemm", "must be readable as TOML"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(
    written: Path, tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    path = tmp_path / "damaged.toml"
    path.write_text(written.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        read_calibration_file(path)


def test_comparing_two_calibrations_says_where_times_changed(written: Path) -> None:
    after = read_calibration_file(written)
    before = replace(after, gemm=replace(after.gemm, launch_s=after.gemm.launch_s / 2))
    change = compare_calibrations(before, after, GPU, names=("old", "new"))
    assert list(change.coefficients) == ["launch_s"]
    ratio = {(each.rows, each.weights): each.ratio for each in change.regions}
    assert ratio["decode", "small"] > 1.15
    assert ratio["long", "large"] == pytest.approx(1, abs=0.02)


# ------------------------------------------------------------------------------------------- bad records


def spoiled(made: Path, path: Path, change: Any) -> Path:
    with made.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows = change(rows) or rows
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def put(column: str, value: Any, where: slice = slice(None)) -> Any:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows[where]:
            row[column] = value(row[column]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rows: [{k: v for k, v in row.items() if k != "latency_us"} for row in rows], "must have latency_us"),
        (put("latency_us", lambda v: float(v) / 1000), "must be microseconds: 97% of shapes"),
        (put("latency_us", lambda v: float(v) * 1000), "nanoseconds"),
        (put("gpu", "a100_sxm", slice(0, 50)), "holds 2 devices; choose one with --gpu; nearest: a100_sxm, h200_sxm"),
        (put("gpu", "h200_sxn"), "h200_sxn is not in the catalogue; name its datasheet.*nearest: h200_sxm"),
        (put("layout", "XY"), r"holds 0 \(400 rows: layout is not TN, NN, NT or TILED\)"),
        (put("dtype", "fp8", slice(0, 50)), "holds several; choose one with --dtype; nearest: bf16, fp8"),
        (put("latency_us", "nan"), "must have a usable row"),
        (lambda rows: rows[:9], "must hold at least 10 usable shapes of h200_sxm bf16 and holds 9"),
    ],
)
def test_records_that_cannot_be_used_are_refused_in_one_sentence(
    made: Path, tmp_path: Path, change: Any, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        calibrate(spoiled(made, tmp_path / "bad.csv", change))


def test_rows_of_one_shape_count_once_whatever_ran_them_and_when(made: Path, tmp_path: Path) -> None:
    def twice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        later = [{**row, "date": "2026-04-01", "latency_us": 1.2 * float(row["latency_us"])} for row in rows]
        return [{**row, "framework": name} for name, part in (("a", rows), ("b", later)) for row in part]

    once, both = read_records(made), read_records(spoiled(made, tmp_path / "twice.csv", twice))
    assert (len(both.products), both.rows, both.date) == (len(once.products), 2 * once.rows, "2026-04-01")
    assert np.allclose(np.sort(both.measured_s), np.sort(1.1 * once.measured_s))
    assert both.made_with == {"framework": "a, b"}


def test_an_empty_cell_is_worth_what_a_missing_column_is(made: Path, tmp_path: Path) -> None:
    def empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "batch": "" if i % 2 else "1", "flag": ""} for i, row in enumerate(rows)]

    assert read_records(spoiled(made, tmp_path / "empty.csv", empty)).rows == read_records(made).rows


def test_rows_that_cannot_be_used_are_counted_and_the_rest_is_kept(made: Path, tmp_path: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["latency_us"], rows[1]["latency_us"], rows[2]["latency_us"] = "nan", "-3", "1e-4"
        rows[3]["gpu"], rows[4]["dtype"], rows[5]["layout"] = "a100_sxm", "fp8", "XY"

    found = calibrate(spoiled(made, tmp_path / "mixed.csv", change), "h200_sxm", dtype="bf16", samples=20)
    assert found.shapes == 394
    assert sum(found.left_out.values()) == 6


def test_a_corrupt_parquet_and_a_missing_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 not at all")
    with pytest.raises(InputError, match="must be readable as parquet"):
        calibrate(path)
    with pytest.raises(InputError, match="that exists"):
        calibrate(tmp_path / "none.csv")


def test_clock_of_a_fit_is_boost(written: Path) -> None:
    boost = gemm(8192, 8192, 8192, "h200_sxm", calibration=written, clock=Clock.BOOST.value).cost.time_s
    assert boost <= gemm(8192, 8192, 8192, "h200_sxm", calibration=written, clock="sustained").cost.time_s


def test_records_of_a_machine_of_ones_own_find_the_datasheet_beside_them(tmp_path: Path) -> None:
    sheet = """
name = "my_box"
title = "a host"
vendor = "host"
generation = "cpu"
num_sms = 2
hbm_gib = 16.0
hbm_gb_per_s = 50.0
l2_mib = 64.0
boost_clock_mhz = 2600.0
tdp_w = 100.0
devices_per_node = 1
[peak_dense_tflops]
bf16 = 2.4
fp32 = 0.29
[sources]
all = "a test"
"""
    (tmp_path / "mine.gpu.toml").write_text(sheet, encoding="utf-8")
    box = load_gpu(str(tmp_path / "mine.gpu.toml"))
    pool = grid(box, DTYPE)
    few = pool.part(np.flatnonzero(pool.m * pool.n * pool.k < 1e8)[::60])
    measured_s = seconds(few)(starting_point(box, DTYPE))
    path = write(tmp_path / "mine.csv", few, measured_s, date="2026-11-21")
    found = calibrate(path)
    assert found.gpu.name == "my_box"
    assert found.held_out["mape"] < 0.05
    moved = path.rename(tmp_path / "elsewhere.csv")
    with pytest.raises(InputError, match="name its datasheet with --gpu"):
        calibrate(moved)
    (tmp_path / "elsewhere.gpu.toml").write_text(sheet.replace("my_box", "other"), encoding="utf-8")
    with pytest.raises(InputError, match="choose with --gpu"):
        calibrate(moved)


@pytest.mark.parametrize(("factor", "contradict"), [(1.2, False), (3.0, True)])
def test_repeats_that_contradict_each_other_are_said_and_widen_the_interval(
    made: Path, tmp_path: Path, factor: float, contradict: bool
) -> None:
    def twice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*rows, *({**row, "latency_us": factor * float(row["latency_us"])} for row in rows)]

    found = calibrate(spoiled(made, tmp_path / "twice.csv", twice), samples=60)
    said = [each for each in found.remarks if "the slowest takes 3.0 times as long as the fastest" in each]
    assert bool(said) == contradict
    sigma = found.own_rows.log_sigma if found.own_rows else found.coefficients.log_sigma
    assert (np.log(2.0) < Z80 * sigma < np.log(2.6)) == contradict
