"""Products of devices nobody measured: the joint fit on their datasheets, and the rules that carry it there."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.carrying import REFERENCE, Rates, rescaled
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.price import least_s, price
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, OperatorGraph

FILES = resources.files("sartor.cost.correction").joinpath("data")
JOINT, LENT = (tomllib.loads(FILES.joinpath(name).read_text(encoding="utf-8")) for name in ("joint.toml", "lent.toml"))
WARP = "bf16_warp"
BORROWERS = ("l40s", "l4", "rtx_4090", "rtx_6000_ada", "a40", "a10", "rtx_3090")


@pytest.mark.parametrize("name", BORROWERS)
def test_devices_without_a_like_relative_take_the_joint_fit_and_its_interval(name: str) -> None:
    known = load_calibration(load_gpu(name))
    assert known.provenance["gemm.bf16"]["lender"] == "joint"
    times = LENT["joint"]["gemm.bf16"]["times"]
    assert known.gemm[DType.BF16].log_sigma == pytest.approx(times * JOINT[WARP]["gemm"]["log_sigma"])
    assert "gemm.bf16" not in known.calibrated


def test_a_device_takes_the_joint_fit_of_its_kind_of_sm() -> None:
    ada, hopper = load_gpu("l40s"), replace(load_gpu("h200_sxm"), name="mine", generation="next")
    for gpu, kind in ((ada, "_warp"), (hopper, "")):
        rates, known = Rates.of(gpu), load_calibration(gpu)
        for dtype in (DType.BF16, DType.FP8):
            entry = JOINT[dtype.value + kind]["gemm"]
            written = GemmCoefficients(tiles=known.gemm[dtype].tiles, launch_s=entry["launch_s"])
            assert known.gemm[dtype].launch_s == rescaled(written, REFERENCE, rates).launch_s
            assert [list(tile) for tile in known.gemm[dtype].tiles] == entry["tiles"]


def test_int8_by_fp8_s_fit_has_no_kernel_that_narrows() -> None:
    """Smooth-quant's scales are known beforehand."""
    ada = load_calibration(load_gpu("l40s"))
    narrow, known = ada.gemm[DType.FP8], ada.gemm[DType.INT8]
    assert ada.owner("gemm.int8") == "joint"
    assert narrow.quantize_bytes > 1
    assert (known.quantize_s, known.quantize_bytes, known.quantize_more_s) == (0, 0, 0)
    assert known.tiles == narrow.tiles


@pytest.mark.parametrize("name", ["h100_sxm", "a100_pcie_80gb", "rtx_5090", "mi300x", "t4", "h200_sxm", "tpu_v5p"])
def test_devices_with_one_and_other_makers_do_not(name: str) -> None:
    known = load_calibration(load_gpu(name))
    wide = {key: record for key, record in known.provenance.items() if not key.startswith("few_rows")}
    assert all(record.get("lender") != "joint" for key, record in wide.items() if key != "gemm.fp8")


def test_a_device_of_one_s_own_that_no_file_knows_takes_it() -> None:
    made = replace(load_gpu("b200_sxm"), name="mine", generation="next", num_sms=200)
    known = load_calibration(made)
    assert {known.provenance[f"gemm.{word}"]["lender"] for word in ("bf16", "fp8", "nvfp4")} == {"joint"}
    assert not known.provenance["gemm.tf32"] or known.gemm[DType.TF32].log_sigma > known.gemm[DType.BF16].log_sigma


def test_a_device_of_one_s_own_borrows_its_generation_s_fit_where_its_sms_are_alike() -> None:
    alike = load_calibration(replace(load_gpu("h100_sxm"), name="mine"))
    assert (alike.relative, alike.provenance["gemm.bf16"].get("lender")) == ("h100_sxm", None)
    lender = load_calibration(load_gpu("h100_sxm"))
    assert alike.gemm[DType.BF16].log_sigma == pytest.approx(
        LENT["generation"]["gemm.bf16"]["times"] * lender.gemm[DType.BF16].log_sigma
    )
    other = load_calibration(replace(load_gpu("a40"), name="mine"))
    assert (other.relative, other.provenance["gemm.bf16"]["lender"]) == ("a100_sxm", "joint")
    unknown = load_calibration(replace(load_gpu("gaudi2"), name="mine"))
    assert (unknown.relative, unknown.provenance["gemm.bf16"]) == ("", {})


def test_the_reference_device_keeps_the_coefficients_and_there_and_back_is_where_one_was() -> None:
    c = GemmCoefficients(tiles=((128, 128, 0.9),), write_cost=1.3, quantize_bytes=5.0, throttle=0.1)
    rates = Rates.of(load_gpu("l40s"))
    assert rates is not None
    assert rescaled(c, REFERENCE, REFERENCE) == c
    back = rescaled(rescaled(c, REFERENCE, rates), rates, REFERENCE)
    for name in (
        "launch_s",
        "tile_s",
        "feed_bytes_per_clock",
        "split_rate",
        "write_cost",
        "quantize_bytes",
        "throttle",
    ):
        assert getattr(back, name) == pytest.approx(getattr(c, name))


def test_all_rates_times_four_makes_delays_a_quarter() -> None:
    """But for the power limit, which does not grow with the clock: joules of an operation stay as they are. How soon
    it is felt is the device's own, not the clock's."""
    gpu = load_gpu("l40s")
    fast = replace(
        gpu,
        boost_clock_hz=4 * gpu.boost_clock_hz,
        hbm_bytes_per_s=4 * gpu.hbm_bytes_per_s,
        tdp_w=4 * gpu.tdp_w,
        peak_flops_per_s={dtype: 4 * peak for dtype, peak in gpu.peak_flops_per_s.items()},
    )
    sizes = np.array([16, 256, 4096])
    op = Gemm(name="up", m=sizes, n=14336, k=4096)
    known, quick = load_calibration(gpu), load_calibration(fast)
    sooner = {dtype: replace(c, throttle_s=c.throttle_s / 4) for dtype, c in quick.gemm.items()}
    slow_s = gemm_cost(op, gpu, known).time_s
    fast_s = gemm_cost(op, fast, replace(quick, gemm=sooner)).time_s
    np.testing.assert_allclose(np.asarray(slow_s) / np.asarray(fast_s), 4, rtol=1e-9)


@pytest.mark.parametrize("name", ["l40s", "a40"])
def test_time_never_falls_with_size_and_never_beats_the_roofline(name: str) -> None:
    gpu = load_gpu(name)
    for clock in Clock:
        n = np.arange(256, 20000, 256)
        op = Gemm(name="up", m=np.array([1, 64, 4096])[:, None], n=n, k=4096)
        time_s = np.asarray(gemm_cost(op, gpu, load_calibration(gpu), clock=clock).time_s)
        assert (np.diff(time_s, axis=1) >= 0).all()
        assert (time_s >= least_s(op, gpu)).all()


def test_short_runs_find_small_weights_in_l2_and_long_ones_do_not() -> None:
    gpu = load_gpu("l40s")
    known = load_calibration(gpu)
    small, large = (Gemm(name="up", m=1, n=n, k=4096) for n in (2048, 4096))  # 17 and 34 MB; a fifth of L2 is 20
    boost, long = ([gemm_cost(op, gpu, known, clock=clock) for op in (small, large)] for clock in Clock)
    assert boost[0].time_s < 0.8 * long[0].time_s
    assert boost[1].memory_s == pytest.approx(long[1].memory_s)


def test_products_of_a_whole_model_find_no_weights_in_l2() -> None:
    gpu = load_gpu("l40s")
    op = Gemm(name="up", m=1, n=2048, k=4096)
    one, many = (
        price(OperatorGraph(operators=(replace(op, count=count),)), gpu, clock=Clock.BOOST) for count in (1, 32)
    )
    assert one.time_s == gemm_cost(op, gpu, load_calibration(gpu), clock=Clock.BOOST).time_s
    assert many.time_s > 32 * one.time_s


def test_what_was_held_out_is_said_and_within_the_reach_for_sixteen_bits() -> None:
    for entry in JOINT.values():
        record = entry["provenance"]
        assert record["rows"] > 10000
        assert record["source"]
        assert record["held_out"]["mape"] < 0.25
    assert JOINT["bf16"]["provenance"]["held_out"]["mape"] <= 0.12


def test_a_result_that_l2_holds_is_written_at_its_rate_and_what_is_beyond_it_at_memory_s() -> None:
    gpu = load_gpu("l40s")
    known = load_calibration(gpu)
    c = known.gemm[DType.BF16]
    assert c.out_part == 0.5
    small, large = (Gemm(name="g", m=m, n=4096, k=64) for m in (256, 65536))
    memory = {
        part: [gemm_cost(g, gpu, replace(known, gemm={DType.BF16: replace(c, out_part=part)})).memory_s for g in each]
        for part, each in ((0.0, (small, large)), (0.5, (small, large)))
    }
    saved = [before - after for before, after in zip(memory[0.0], memory[0.5], strict=True)]
    assert 0 < saved[0] < saved[1] < 0.5 * memory[0.0][1], "of the larger one half an L2-full is saved"
