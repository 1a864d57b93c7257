"""A factor drawn by a user's own rows: found where there is one, nothing where there is none, applied as written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.test_calibrate import write
from sartor.calibrate.calibration_toml import as_toml, calibrate
from sartor.calibrate.fit import Products, packaged_seconds
from sartor.calibrate.samples import factor_of, fit_own_rows, grid
from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.correction.calibration_file import load_own_calibration
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.price import least_s
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm

H200, H100 = load_gpu("h200_sxm"), load_gpu("h100_sxm")


def some(count: int, seed: int = 0) -> Products:
    pool = grid(H200, DType.BF16)
    plain = pool.part(np.flatnonzero((pool.n % 64 == 0) & (pool.k % 64 == 0) & (pool.m >= 16)))
    return plain.part(np.random.default_rng(seed).permutation(len(plain))[:count])


def noise(count: int, scale: float) -> Any:
    return np.exp(scale * np.random.default_rng(3).standard_normal(count))


def test_a_device_that_is_slower_by_a_tenth_everywhere_is_known_from_twenty_products() -> None:
    few, others = some(20), some(200, 1)
    own = fit_own_rows(few, np.ones(20), 1.1 * noise(20, 0.02))
    assert factor_of(own, others) == pytest.approx(1.1, rel=0.05)
    assert np.abs(factor_of(own, others) / 1.1 - 1).mean() < 0.02


def test_where_large_products_alone_are_slower_small_ones_stay() -> None:
    many, others = some(150), some(300, 1)

    def slower(products: Products) -> Any:
        return 1 + 0.3 / (1 + np.exp(-(np.log(products.flops) - 26) / 2))

    own = fit_own_rows(many, np.ones(150), slower(many) * noise(150, 0.02))
    assert np.abs(np.log(factor_of(own, others) / slower(others))).mean() < 0.03


def test_rows_that_scatter_without_a_pattern_move_little() -> None:
    own = fit_own_rows(some(100), np.ones(100), noise(100, 0.1))
    assert np.abs(np.log(factor_of(own, some(300, 1)))).mean() < 0.03


def test_far_from_every_product_only_the_mean_is_left() -> None:
    own = fit_own_rows(some(60), np.ones(60), 1.2 * noise(60, 0.05))
    far, _ = own.log_factor(np.array([1e9]), np.array([1e12]), np.array([1e12]))
    assert far[0] == pytest.approx(own.mean)


def test_intervals_widen_beyond_the_range_of_rows_where_these_differ_from_the_package() -> None:
    pool = some(200)
    few = pool.part(np.flatnonzero(pool.m <= 64))
    own = fit_own_rows(few, np.ones(len(few)), 1.3 * noise(len(few), 0.03))
    sizes = [np.array([float(m), 8192.0, 8192.0]) for m in (32, 512, 8192)]
    untold = [float(own.log_factor(*(each[None] for each in size))[1][0]) for size in sizes]
    assert untold[0] < 0.03 < untold[1] < untold[2]
    assert untold[2] > 0.15
    same = fit_own_rows(few, np.ones(len(few)), noise(len(few), 0.03))
    assert float(same.log_factor(*(each[None] for each in sizes[2]))[1][0]) < 0.03


def test_one_impossible_row_does_not_move_the_rest() -> None:
    measured = 1.0 * noise(60, 0.02)
    before = factor_of(fit_own_rows(some(60), np.ones(60), measured), some(200, 1))
    measured[7] *= 40
    after = factor_of(fit_own_rows(some(60), np.ones(60), measured), some(200, 1))
    assert np.abs(np.log(after / before)).max() < 0.05


def with_factor(gpu: Any = H200, scale: float = 1.3) -> Calibration:
    own = fit_own_rows(some(60), np.ones(60), scale * noise(60, 0.1))
    return replace(load_calibration(gpu), own_rows={DType.BF16: own})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([16, 100, 512, 4096, 9000])] * 3), min_size=1, max_size=6))
def test_an_array_entry_equals_the_call_with_that_entry_alone(sizes: list[tuple[int, int, int]]) -> None:
    known, (m, n, k) = with_factor(), (np.array(each) for each in zip(*sizes, strict=True))
    together = gemm_cost(Gemm(name="p", m=m, n=n, k=k, dtype=DType.BF16), H200, known).time_s
    alone = [gemm_cost(Gemm(name="p", m=a, n=b, k=c, dtype=DType.BF16), H200, known).time_s for a, b, c in sizes]
    assert np.asarray(together).tolist() == alone


def test_no_factor_goes_below_the_roofline_and_the_answer_says_how_much_it_moved() -> None:
    product = Gemm(name="p", m=8192, n=8192, k=8192, dtype=DType.BF16)
    fast = gemm_cost(product, H200, with_factor(scale=0.2), clock=Clock.BOOST)
    assert fast.time_s >= least_s(product, H200)
    assert fast.details["own_rows"] < 1


# ------------------------------------------------------------------------------------------- from records to prices


@pytest.fixture(scope="module")
def slower_h100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of an H100 that takes 1.12 times what is predicted, and their calibration beside them."""
    products = replace(some(60), gpu=H100)
    path = tmp_path_factory.mktemp("own") / "mine.csv"
    write(path, products, 1.12 * packaged_seconds(products) * noise(60, 0.02), date="2026-11-21")
    found = calibrate(path)
    path.with_suffix(".toml").write_text(as_toml(found), encoding="utf-8")
    return path


def test_records_near_what_the_package_knows_keep_its_residual_and_add_their_factor(slower_h100: Path) -> None:
    found = calibrate(slower_h100)
    assert found.over == "package"
    assert found.held_out["mape"] < 0.03 < found.catalogue["mape"]
    own, known = load_own_calibration(slower_h100.with_suffix(".toml"), H100), load_calibration(H100)
    for size in (512, 2048, 8192):
        product = Gemm(name="p", m=size, n=size, k=size, dtype=DType.BF16)
        after, before = (gemm_cost(product, H100, each, clock=Clock.BOOST) for each in (own, known))
        assert after.time_s == pytest.approx(1.12 * before.time_s, rel=0.04)
        assert after.details["residual"] == pytest.approx(before.details["residual"], rel=1e-4)
        assert after.log_sigma < 1.25 * before.log_sigma  # the package's own is of thousands of rows


def test_a_factor_over_a_residual_that_is_no_more_is_refused(slower_h100: Path, tmp_path: Path) -> None:
    text = slower_h100.with_suffix(".toml").read_text(encoding="utf-8")
    older = tmp_path / "older.toml"
    older.write_text(text.replace("launch_s = ", "launch_s = 1", 1), encoding="utf-8")
    with pytest.raises(InputError, match="calibrate again from the records"):
        load_own_calibration(older, H100)


@pytest.mark.parametrize(
    ("old", "new"),
    [("weights = [", "weights = [0.1, "), ("length = ", "length = -"), ("points = [[", 'points = [["a", ')],
)
def test_a_damaged_factor_is_refused_in_one_sentence(slower_h100: Path, tmp_path: Path, old: str, new: str) -> None:
    text = slower_h100.with_suffix(".toml").read_text(encoding="utf-8")
    path = tmp_path / "damaged.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"its \[own_rows\] must be as sartor calibrate writes it"):
        load_own_calibration(path, H100)
