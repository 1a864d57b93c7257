"""Corrections of a GEMM: what applies is what the calibration holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.calibration import Calibration, Clock, OwnRows, load_calibration
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.network import without_residuals
from sartor.cost.cost import Source
from sartor.cost.gpu.gemm import gemm_alternatives, gemm_cost, gemm_costs
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, Layout
from sartor.units import FloatArray

H200 = load_gpu("h200_sxm")
BARE = GemmCoefficients(tiles=((128, 256, 0.8), (128, 128, 0.7)))
NARROW = Gemm(name="narrow", m=64, n=64, k=64)
VECTOR = Gemm(name="vector", m=1, n=8192, k=8192)


def seconds(gemm: Gemm, coefficients: GemmCoefficients, **known: object) -> FloatArray:
    calibration = replace(Calibration(gpu=H200.name, gemm={gemm.dtype: coefficients}), **known)  # type: ignore[arg-type]
    cost = gemm_cost(gemm, H200, calibration, clock=Clock.BOOST)
    return np.array([cost.time_s, cost.log_sigma])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8, DType.FP8_BLOCK])
def test_a_wait_for_the_host_is_the_datas_whatever_the_type(dtype: DType) -> None:
    gemm = replace(NARROW, dtype=dtype)
    waits = seconds(gemm, replace(BARE, sub_block_s=1e-4, sub_block_log_sigma=0.11))
    assert waits == pytest.approx([1e-4, 0.11])
    assert seconds(gemm, BARE)[0] < 1e-4


def test_a_vector_streams_where_the_data_say_up_to_which_rows() -> None:
    slow = replace(BARE, hbm_share=0.3)
    assert seconds(VECTOR, replace(slow, stream_rows=1.0))[0] < seconds(VECTOR, slow)[0]
    assert seconds(replace(VECTOR, m=2), replace(slow, stream_rows=1.0))[0] == seconds(replace(VECTOR, m=2), slow)[0]


def test_own_rows_come_last_and_set_the_interval() -> None:
    rows = {"points": ((0.0, 0.0, 0.0), (20.0, 20.0, 20.0)), "weights": (0.0, 0.0)}
    own = OwnRows(mean=0.2, length=1.0, log_sigma=0.05, log_sigma_small=0.06, **rows)
    waits = replace(BARE, sub_block_s=1e-4)
    before, after = seconds(NARROW, waits), seconds(NARROW, waits, own_rows={DType.BF16: own})
    assert after == pytest.approx([before[0] * np.exp(0.2), 0.06])


def test_no_network_is_asked_for_coefficients_it_was_not_fitted_on() -> None:
    known = load_calibration(H200)
    cost = gemm_cost(replace(NARROW, m=4096, n=4096, k=4096), H200, known)
    assert "residual" in cost.details
    changed = {**known.gemm, DType.BF16: replace(known.gemm[DType.BF16], launch_s=3e-6)}
    other = gemm_cost(replace(NARROW, m=4096, n=4096, k=4096), H200, replace(known, gemm=changed))
    assert "residual" not in other.details


def test_a_misalignment_whose_cost_is_assumed_widens_the_interval_and_says_so() -> None:
    """Nobody measured B200 at k = 4095; A100 was, and H200 (lab/records)."""
    h200, a100, b200 = (load_gpu(name) for name in ("h200_sxm", "a100_sxm", "b200_sxm"))
    for gpu, dtype, source, least in (
        (b200, DType.BF16, Source.ASSUMED, 0.5),
        (h200, DType.BF16, None, 0.1),
        (a100, DType.FP16, None, 0.0),
    ):
        ragged, whole = (
            gemm_cost(Gemm(name="p", m=4096, n=4096, k=k, dtype=dtype), gpu, load_calibration(gpu))
            for k in (4095, 4096)
        )
        assert ragged.log_sigma >= max(whole.log_sigma, least)
        assert ragged.stated_source is (source or Source.CALIBRATED)
        assert whole.stated_source is Source.CALIBRATED


@pytest.mark.parametrize(("name", "dtype"), [("b200_sxm", DType.BF16), ("h200_sxm", DType.FP8)])
def test_a_misalignment_that_memory_hides_is_assumed_too(name: str, dtype: DType) -> None:
    """Sixteen rows by 4,097 columns: no table has them, and the interval said 4.6%, measured."""
    gpu = load_gpu(name)
    for n, k in ((4097, 4096), (4096, 4097)):
        cost = gemm_cost(Gemm(name="p", m=16, n=n, k=k, dtype=dtype), gpu, load_calibration(gpu))
        assert cost.log_sigma > 0.3
        assert cost.stated_source is Source.ASSUMED


def test_what_no_table_holds_is_wider_than_what_one_does() -> None:
    known = load_calibration(H200)
    inside = gemm_cost(Gemm(name="p", m=4096, n=4096, k=4096), H200, known, clock=Clock.BOOST)
    batched = Gemm(name="p", m=4096, n=4096, k=4096, batch=64)
    for gemm in (batched, Gemm(name="p", m=4096, n=1, k=10**6)):
        beyond = gemm_cost(gemm, H200, known, clock=Clock.BOOST)
        assert beyond.log_sigma > 4 * inside.log_sigma
        assert beyond.stated_source is Source.ASSUMED


def test_a_type_priced_by_another_type_s_fit_is_not_called_measured() -> None:
    """int8 by fp8's fit is 1.2 to 1.6 times off where both were measured (MI308X, MI355X)."""
    for gpu, dtype in (("h100_sxm", DType.INT8), ("mi308x", DType.INT8), ("b200_sxm", DType.MXFP4)):
        calibration = load_calibration(load_gpu(gpu))
        cost = gemm_cost(Gemm(name="p", m=4096, n=4096, k=4096, dtype=dtype), load_gpu(gpu), calibration)
        assert cost.stated_source is Source.ANALYTIC
        assert cost.log_sigma >= 0.3
        assert calibration.owner(f"gemm.{dtype.value}") == "own (another dtype)"


def test_ragged_operands_on_amd_are_assumed_and_wide() -> None:
    """Its fast kernels refuse them: 100 columns on MI355X take 4 to 8 times as long as the formula says."""
    gpu = load_gpu("mi355x")
    for m, n, k in ((1024, 100, 5120), (4096, 4096, 4095)):
        cost = gemm_cost(Gemm(name="p", m=m, n=n, k=k), gpu, load_calibration(gpu))
        assert cost.stated_source is Source.ASSUMED
        assert cost.log_sigma >= 1.0


def test_columns_that_only_one_kernel_takes_last_as_long_as_all_of_k_in_one_pass() -> None:
    """MI355X's 100 and 200 columns at k = 5120, by Triton: 22, 50 and 130 us, whatever is won by splitting k."""
    gpu = load_gpu("mi355x")
    known = load_calibration(gpu)
    m = np.array([32, 512, 1024, 8192])
    for n in (100, 200):
        gemm = Gemm(name="gemm", m=m, n=n, k=5120)
        time_s = gemm_cost(gemm, gpu, known, clock=Clock.BOOST).time_s
        assert 1e6 * time_s == pytest.approx([21, 48, 142, 104], rel=0.3)
        fast = gemm_costs([gemm], gpu, known, clock=Clock.BOOST, details=False)[0].time_s
        assert np.array_equal(time_s, fast)
        alone = Gemm(name="gemm", m=512, n=n, k=5120)
        formula = gemm_cost(alone, gpu, without_residuals(known), clock=Clock.BOOST).time_s
        assert gemm_alternatives(alone, gpu, known, clock=Clock.BOOST)[0].time_s == formula
    wide = gemm_cost(Gemm(name="gemm", m=m, n=112, k=5120), gpu, known, clock=Clock.BOOST).time_s
    assert np.all(wide < 0.5 * gemm_cost(Gemm(name="gemm", m=m, n=100, k=5120), gpu, known, clock=Clock.BOOST).time_s)


def test_few_rows_and_columns_last_as_long_as_the_waves_of_one_block_that_share_out_k() -> None:
    """MI308X's opus kernels: 160 columns take 9 us up to 96 rows at k = 6144 (no blocks add to one result); 64 and 256
    columns, where they do, 4 to 5 us up to 16 rows and 8 to 9 with as many tiles as SMs."""
    gpu = load_gpu("mi308x")
    known = load_calibration(gpu)
    for n, k, m, us in ((160, 6144, [24, 48, 96], [9.2, 10.1, 9.2]), (64, 4096, [2, 16, 64], [4.2, 4.4, 4.8]),
                        (256, 6144, [1, 16, 64], [4.9, 5.3, 9.1])):  # fmt: skip
        gemm = Gemm(name="gemm", m=np.array(m), n=n, k=k)
        cost = gemm_cost(gemm, gpu, known, clock=Clock.BOOST)
        assert 1e6 * cost.time_s == pytest.approx(us, rel=0.2)
        assert cost.time_s == pytest.approx(cost.compute_s + cost.overhead_s, rel=0.3)
        fast = gemm_costs([gemm], gpu, known, clock=Clock.BOOST, details=False)[0].time_s
        assert np.array_equal(cost.time_s, fast)
    best = gemm_alternatives(Gemm(name="gemm", m=16, n=256, k=6144), gpu, known, clock=Clock.BOOST)[0]
    assert (best.tile_m, best.tile_n, best.split_k) == (16, 16, 5)


def test_k_is_split_only_where_the_kernels_of_a_tuning_run_split_it() -> None:
    """Pre-shuffled block-scaled ones on MI355X take whole blocks of 128 columns; none of fp8's did."""
    gpu = load_gpu("mi355x")
    known = load_calibration(gpu)
    n = np.array([2048, 2112, 2176, 2240])
    for dtype, layout, split in (
        (DType.FP8_BLOCK, Layout.TILED, [True, False, True, False]),
        (DType.FP8, Layout.TN, [False] * 4),
    ):
        gemm = Gemm(name="gemm", m=16, n=n, k=16384, dtype=dtype, layout=layout)
        cost = gemm_cost(gemm, gpu, known)
        assert list(cost.details["split_k"] > 1) == split
        fast = gemm_costs([gemm], gpu, known, details=False)[0].time_s
        assert fast == pytest.approx(cost.time_s, rel=1e-12)


def test_weights_in_tiles_are_priced_by_their_own_fit_and_as_plain_ones_where_there_is_none() -> None:
    sizes = {"name": "gemm", "m": np.geomspace(64, 8192, 8).astype(int), "n": 4096, "k": 7168, "dtype": DType.FP8_BLOCK}
    for gpu, faster in (("mi355x", True), ("h200_sxm", False)):
        device, known = load_gpu(gpu), load_calibration(load_gpu(gpu))
        plain, tiled = (
            gemm_cost(Gemm(**sizes, layout=layout), device, known).time_s for layout in (Layout.TN, Layout.TILED)
        )
        assert np.median(tiled / plain) < 0.95 if faster else np.array_equal(tiled, plain)


def test_small_products_of_a_tuning_run_come_from_the_memory_side_cache_and_a_model_s_from_memory() -> None:
    """The tuner turns through 101 copies: 256 MB hold those of operands and result of 2.5 MB (MI355X)."""
    gpu = load_gpu("mi355x")
    known = without_residuals(load_calibration(gpu))
    cold = known.with_cold_weights()
    m = np.array([64, 256, 512, 2048, 8192])
    gemm = Gemm(name="gemm", m=m, n=256, k=7168, dtype=DType.FP8)
    boost, among_others = (gemm_cost(gemm, gpu, each, clock=Clock.BOOST).time_s for each in (known, cold))
    assert boost[0] < 0.9 * among_others[0]
    assert np.all(np.diff(boost) > 0)
    assert np.array_equal(boost[-2:], among_others[-2:])
    assert gemm_cost(gemm, gpu, known).time_s[0] == gemm_cost(gemm, gpu, cold).time_s[0]


def test_a_network_of_model_shapes_sees_columns_between_the_lengths_of_other_tables() -> None:
    gpu = load_gpu("mi355x")
    known = load_calibration(gpu)
    gemm = Gemm(name="gemm", m=1024, n=np.array([2112, 2240, 2304]), k=7168, dtype=DType.FP8)
    moved, cold = (gemm_cost(gemm, gpu, each).details["residual"] for each in (known, known.with_cold_weights()))
    assert np.unique(moved).size == 3
    assert np.array_equal(moved, cold)


def on_hopper(gemm: Gemm, share: float | None = None) -> FloatArray:
    known = load_calibration(H200)
    if share is not None:
        known = replace(known, gemm={dtype: replace(c, coarse_share=share) for dtype, c in known.gemm.items()})
    cost = gemm_cost(gemm, H200, known, clock=Clock.BOOST)
    return np.array([cost.time_s, cost.log_sigma])


@pytest.mark.parametrize("layout", [Layout.TN, Layout.NN, Layout.NT])
def test_a_first_operand_aligned_to_16_bytes_only_takes_a_coarse_tile_now_and_then(layout: Layout) -> None:
    """Where one wave is not full: small tiles and parts of k would fill it, 128 x 256 does not."""
    axis = "m" if layout is Layout.NT else "k"
    known = Gemm(name="measured", m=2640, n=304, k=3120, layout=layout)
    fine = replace(known, **{axis: getattr(known, axis) // 16 * 16})
    coarse = replace(fine, **{axis: getattr(fine, axis) + 8})
    slower, unsure = on_hopper(coarse) / on_hopper(coarse, share=0.0)
    assert slower > 1.15
    assert unsure > 1.1
    assert on_hopper(fine) == pytest.approx(on_hopper(fine, share=0.0))


def test_many_waves_and_misaligned_operands_do_not_ask_for_coarse_tiles() -> None:
    for gemm in (
        Gemm(name="many waves", m=4096, n=4096, k=4104),
        Gemm(name="odd columns", m=2642, n=303, k=3112),
        Gemm(name="odd k", m=2642, n=304, k=3113),
        Gemm(name="half the bytes", m=2642, n=304, k=3112, dtype=DType.FP8),
    ):
        assert on_hopper(gemm) == pytest.approx(on_hopper(gemm, share=0.0), rel=1e-12)


def test_lengths_that_a_network_rounds_are_less_sure() -> None:
    held, rounded = (on_hopper(Gemm(name="measured", m=4096, n=n, k=4096))[1] for n in (4096, 4160))
    assert rounded == pytest.approx(np.hypot(held, 0.075))


def test_fp16_priced_by_a_fit_of_bf16_says_so_and_has_a_wider_interval() -> None:
    gemm = replace(NARROW, m=4096, n=4096, k=4096)
    for name, section in (("h100_sxm", "own (another dtype)"), ("a100_sxm", "own")):
        gpu = load_gpu(name)
        known = load_calibration(gpu)
        wide, half = (gemm_cost(replace(gemm, dtype=dtype), gpu, known) for dtype in (DType.BF16, DType.FP16))
        assert known.owner("gemm.fp16") == section
        assert known.owner("gemm.bf16") == "own"
        if section != "own":
            assert half.time_s == wide.time_s
            assert half.log_sigma > 1.1 * wide.log_sigma
