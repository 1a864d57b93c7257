"""Terms of a GEMM's price by hand, with round coefficients: machine, sizes, alignment, tiles, experts."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.correction.coefficients import GemmCoefficients, GroupedCoefficients
from sartor.cost.correction.gemm import GemmRows
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.gemm import (
    _by_formula,
    _coarse,
    _coefficients_of,
    _each,
    _group_sizes,
    _machine,
    _no_sooner,
    _packed_bytes,
    _problem,
    alignment_penalty,
    gemm_alternatives,
    gemm_cost,
    misaligned_level,
    weight_bytes,
    weights_stay,
)
from sartor.cost.gpu.grouped import (
    _formula_cost,
    _lesser_skews,
    _on_units_of,
    _one_by_one,
    _source,
    grouped_terms,
    tiles_down,
)
from sartor.cost.gpu.rates import LongRun
from sartor.cost.gpu.tiles import Machine, Problems, _throttled, alternatives, evaluate, over_least, quantizing_s
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, GroupedGemm, Layout, Pass

ROUND = replace(
    load_gpu("h100"),
    num_sms=100,
    peak_flops_per_s={DType.BF16: 1e15, DType.FP8: 2e15, DType.FP32: 1e14},
    boost_clock_hz=2e9,
    hbm_bytes_per_s=4e12,
    l2_bytes=50e6,
    memory_side_cache_bytes=200e6,
)
"""10 TFLOP/s of bf16 for each SM."""
PLAIN = GemmCoefficients(
    tiles=((128, 128, 1.0),),
    max_split=1.0,
    feed_bytes_per_clock=1e4,
    wave_s=0.0,
    tile_s=0.0,
    launch_s=0.0,
    throttle=0.0,
    hbm_share=0.5,
    write_cost=1.0,
    overlap=0.0,
    input_penalty=(0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.0),
    output_penalty=(0.88, 0.77, 0.66, 0.55, 0.44, 0.33, 0.22, 0.0),
)
"""One tile, nothing but its main loop and memory."""
SUSTAINED = {DType.BF16: 0.8, DType.FP8: 0.6}
FITTED = replace(
    load_calibration(load_gpu("h100")), gemm={DType.BF16: PLAIN}, misaligned=(), few_rows={}, provenance={}
)


# ------------------------------------------------------------------------------------------- experts' tiles and waves


@pytest.mark.parametrize(("tallest", "waves", "compute_s"), [(64, 0.82, 7.2886586e-6), (32, 1.64, 8.8068e-6)])
def test_experts_take_the_waves_of_their_tiles_at_the_rate_of_the_units_or_of_the_feed(
    tallest: int, waves: float, compute_s: float
) -> None:
    """Four experts of 128 rows, 1,024 columns in 8 tiles, half of a started wave, half of 10 TFLOP/s of an SM.

    64 rows: 64 tiles, 0.64 + 0.36/2 = 0.82 waves; 64/80 of the rate: 2 x 64 x 128/4e12 = 4.096 ns an element of k
    (feed: 192 x 2 bytes at 128 GB/s = 3 ns); 2,048 of them and half a us: 0.82 x 8.888608 us.
    32 rows: 128 tiles, 1.28 + 0.72/2 = 1.64 waves; the feed, 160 x 2 bytes, takes 2.5 ns (units: 2.4576 ns):
    1.64 x (5.12 + 0.25) us. 16 rows would take 2.78 x (16 x 288 + 125) ns.
    """
    c = GroupedCoefficients(
        tile_m_most=tallest, efficiency=0.5, half_tile=16.0, tail=0.5, hbm_share=0.5, overlap=0.25, launch_s=1e-5
    )
    op = GroupedGemm(name="experts", groups=4, rows=512, n=1024, k=2048)
    terms = {name: float(value) for name, value in grouped_terms(op, ROUND, c).items()}
    memory_s = 19_922_944 / 2e12  # 2 x (4 x 1024 x 2048 + 512 x 2048 + 512 x 1024) bytes
    assert (terms["tile_m"], terms["waves"]) == pytest.approx((tallest, waves), rel=1e-12)
    assert terms["compute_s"] == pytest.approx(compute_s, rel=1e-7)
    assert terms["memory_s"] == pytest.approx(memory_s, rel=1e-12)
    assert terms["time_s"] == pytest.approx(memory_s + 0.25 * compute_s + 1e-5, rel=1e-7)


def test_rows_of_experts_fill_whole_tiles() -> None:
    """Three groups of 32 rows fill 2, 1 and 1 tiles of 16, 32 and 64 rows each. A largest group of twice one row still
    takes a tile a group, and one of twice a million rows leaves all rows there."""
    heights = np.array([16.0, 32.0, 64.0])
    assert tiles_down(32.0, 3.0, 1.0, heights).tolist() == [6, 3, 3]
    assert tiles_down(1.0, 3.0, 2.0, heights).tolist() == [3, 3, 3]
    assert 3e6 <= float(tiles_down(1e6, 3.0, 2.0, np.ones(1))[0]) <= 3e6 + 3


def test_skews_up_to_four_go_by_roots_of_two() -> None:
    op = GroupedGemm(name="experts", groups=8, rows=512, n=1024, k=2048, skew=4.0, visited_evenly=True)
    assert _lesser_skews(op) == pytest.approx(np.array([1, sqrt(2), 2, 2 * sqrt(2), 4]))
    assert _lesser_skews(replace(op, visited_evenly=False)) is None


def test_narrow_experts_have_the_efficiency_of_16_bits_times_that_of_their_units() -> None:
    """Units of fp8 sustain 0.6 of peak, of bf16 0.8: of 0.5 remain 0.375, and twice the interval."""
    grouped = GroupedCoefficients(efficiency=0.5, log_sigma=0.3, log_sigma_small=0.8, narrow_sigma=0.6)
    units = {dtype: replace(PLAIN, tiles=((128, 128, share),)) for dtype, share in SUSTAINED.items()}
    calibration = replace(FITTED, gemm=units, grouped=grouped, grouped_families={}, calibrated={"grouped"})
    assert _on_units_of(DType.BF16, calibration) == grouped
    narrow = _on_units_of(DType.FP8, calibration)
    assert narrow.efficiency == pytest.approx(0.375, rel=1e-12)
    assert (narrow.log_sigma, narrow.log_sigma_small) == (0.6, 0.8)
    assert [_source(dtype, calibration) for dtype in SUSTAINED] == [Source.CALIBRATED, Source.ANALYTIC]


def test_experts_of_five_launches_are_no_longer_short() -> None:
    """2 x (1024 k + 1024 k + 1024^2) bytes at 2^42 a second are 4 launches of 2^-20 s where k = 3584."""
    fast = replace(ROUND, hbm_bytes_per_s=2.0**43, peak_flops_per_s={DType.BF16: 1e20})
    c = GroupedCoefficients(
        hbm_share=0.5, overlap=0.0, launch_s=2.0**-20, tile_s=0.0, feed_bytes_per_clock=1e12, log_sigma_small=0.8
    )
    op = GroupedGemm(name="expert", groups=1, rows=1024, n=1024, k=np.array([3584, 3583]))
    cost = _formula_cost(op, fast, replace(FITTED, grouped=c), Clock.BOOST)
    assert np.asarray(cost.time_s)[0] == 5 * 2.0**-20
    assert np.asarray(cost.log_sigma).tolist() == [0.3, 0.8]


def test_experts_one_by_one_are_as_many_gemms_of_their_rows_rounded_up() -> None:
    op = GroupedGemm(name="experts", groups=4, rows=10, n=1024, k=2048)
    one = gemm_cost(Gemm(name="one", m=3, n=1024, k=2048), ROUND, load_calibration(ROUND))
    assert _one_by_one(op, ROUND, load_calibration(ROUND), Clock.SUSTAINED).time_s == pytest.approx(
        4 * one.time_s, rel=1e-12
    )


# ------------------------------------------------------------------------------------------- a GEMM's machine and sizes


def rows_of(gemm: Gemm, calibration: Calibration = FITTED, *, replay: bool = False) -> GemmRows:
    problem = _problem(gemm, calibration.gemm[gemm.dtype])
    return _by_formula([gemm], [problem], ROUND, calibration, Clock.BOOST, True, replay)


def test_a_machine_is_shares_of_a_datasheet() -> None:
    """100 SMs of 2 GHz: 10 TFLOP/s each, L2 at 64 x 100 x 2e9 = 12.8 TB/s; half of 4 TB/s; parts of 50 MB of L2 and of
    200 MB beside memory."""
    c = replace(
        PLAIN, feed_bytes_per_clock=64.0, l2_share=0.25, weight_copies=5.0, l2_rate=0.3, copies=8.0, out_part=0.2,
        quantize_bytes=3.0, quantize_pace=2.0,
    )  # fmt: skip
    machine = _machine(ROUND, DType.BF16, c, Clock.BOOST)
    rates = (machine.sm_flops_per_s, machine.feed_bytes_per_s, machine.hbm_bytes_per_s, machine.l2_bytes_per_s)
    assert rates == pytest.approx((1e13, 128e9, 2e12, 3.84e12), rel=1e-12)
    sizes = (machine.warm_bytes, machine.warm_weight_bytes, machine.near_out_bytes, machine.turned_bytes)
    assert sizes == pytest.approx((12.5e6, 10e6, 10e6, 25e6), rel=1e-12)
    assert (machine.step_k, machine.quantize_bytes) == (64, 6)
    lasting = _machine(ROUND, DType.BF16, replace(c, l2_rate=0.1), Clock.SUSTAINED)
    assert (lasting.warm_weight_bytes, lasting.turned_bytes, lasting.l2_bytes_per_s) == (0, 0, 2e12)


def test_weights_stay_in_l2_up_to_the_last_byte() -> None:
    """A fifth of 50 MB holds 2 x 1000 x 2500 weights of two bytes."""
    calibration = replace(FITTED, gemm={DType.BF16: replace(PLAIN, weight_copies=5.0)})
    gemm = Gemm(name="held", m=1, n=1000, k=2500, batch=2)
    assert weight_bytes(gemm) == 10_000_000
    assert weights_stay(gemm, ROUND, calibration, Clock.BOOST)
    assert not weights_stay(replace(gemm, n=1001), ROUND, calibration, Clock.BOOST)


def test_a_result_that_is_added_to_moves_twice() -> None:
    gemm = Gemm(name="wgrad", m=64, n=64, k=64, accumulates=True)
    assert _problem(gemm, PLAIN)[0]["out_bytes"] == 4
    assert _problem(replace(gemm, out_dtype=DType.FP32), PLAIN)[0]["out_bytes"] == 8


def test_experts_with_rows_are_a_batch_of_their_mean_rows_times_the_skew() -> None:
    """Ten rows of four experts: three each, times 1.5; three rows of eight: one in each of three."""
    op = GroupedGemm(name="experts", groups=4, rows=10, n=1024, k=2048, skew=1.5)
    assert _group_sizes(op) == (4, 4.5, 1024, 2048)
    assert _group_sizes(replace(op, pass_=Pass.WGRAD)) == (4, 1024, 2048, 4.5)
    assert _group_sizes(replace(op, groups=8, rows=3, skew=1.0)) == (3, 1, 1024, 2048)


def test_a_host_touches_fresh_pages_above_32_mib_and_copies_weights_of_more_than_six_rows_in_fp32() -> None:
    """2 x 2048 x 4096 results of two bytes are 32 MiB; a row more, 33,570,816 bytes, are fresh, at three bytes each.
    The copy: half a byte for each of 2 x 4096 x 512 weights."""
    c = replace(PLAIN, pack_nn=0.5, fresh_cost=3.0)
    gemm, second = Gemm(name="dgrad", m=1, n=4096, k=512, batch=2, layout=Layout.NN), 2_097_152
    shared = {"batch": 2.0, "n": 4096.0, "k": 512.0}
    packed = [float(_packed_bytes(gemm, c, m=m, **shared)) for m in (2048.0, 2049.0)]
    assert packed == [second, second + 3 * 33_570_816]
    narrow = replace(gemm, dtype=DType.FP32)
    assert [float(_packed_bytes(narrow, c, m=m, **shared)) for m in (6.0, 7.0)] == [0, second]


@pytest.mark.parametrize(
    ("layout", "dtype", "n", "k", "penalty"),
    [
        (Layout.TN, DType.BF16, 20, 12, 1 + 0.5 + 0.5 + 0.55),  # 8 bytes in all three
        (Layout.NN, DType.BF16, 8, 8, 1 + 0.4 + 0.4 + 0.44),  # 16 bytes in all three
        (Layout.NN, DType.BF16, 64, 8, 1 + 0.4),  # 16 bytes in the first alone: a kernel that takes it
        (Layout.NN, DType.BF16, 64, 4, 1 + 0.5 + 0.55),  # 8 bytes in the first alone: the least aligned one's kernel
        (Layout.TN, DType.FP32, 4, 32, 1 + 0.4 + 0.44),  # 16 bytes of a result of four
    ],
)
def test_operands_add_what_their_alignment_costs_and_no_less_than_the_worst_does(
    layout: Layout, dtype: DType, n: int, k: int, penalty: float
) -> None:
    gemm = Gemm(name="aligned", m=256, n=n, k=k, layout=layout, dtype=dtype)
    assert float(alignment_penalty(gemm, PLAIN)) == pytest.approx(penalty, rel=1e-12)


@pytest.mark.parametrize(
    ("layout", "m", "n", "k", "level"),
    [
        (Layout.TN, 256, 8, 64, 0),
        (Layout.TN, 256, 64, 12, 1),
        (Layout.TN, 256, 64, 10, 1),
        (Layout.TN, 256, 64, 7, 2),
        (Layout.TN, 256, 6, 7, 2),
        (Layout.TN, 256, 7, 64, 3),
        (Layout.NN, 256, 7, 64, 2),
        (Layout.TN, 1, 7, 64, 1),
    ],
)
def test_the_worst_operand_sets_the_level_of_misalignment(layout: Layout, m: int, n: int, k: int, level: int) -> None:
    assert misaligned_level(Gemm(name="aligned", m=m, n=n, k=k, layout=layout)) == level


@pytest.mark.parametrize(("n", "k", "coarse"), [(64, 8, True), (64, 64, False), (8, 8, True), (4, 8, False)])
def test_a_first_operand_of_16_bytes_and_no_worse_other_takes_coarse_tiles(n: int, k: int, coarse: bool) -> None:
    assert bool(_coarse(Gemm(name="aligned", m=256, n=n, k=k, layout=Layout.NN))) is coarse


STEP_S = 2 * 128 * 128 * 64 / 1e13
"""One step of 64 elements of k in a tile of 128 x 128."""


@pytest.mark.parametrize(
    ("k", "shares", "slower"),
    [
        (128, (0.25, 0.2), 1.0),
        (100, (0.25, 0.2), 4.0),
        (101, (0.25, 0.2), 5.0),
        (100, (1.0, 0.2), 1 + 2 * 0.4 + 0.44),
    ],
)
def test_misaligned_operands_take_the_slowest_of_the_kernels_that_read_them(
    k: int, shares: tuple[float, ...], slower: float
) -> None:
    """One tile of two steps. 8 bytes (k = 100): kernels of a quarter of the rate; 2 bytes (101): of a fifth as well;
    never less than 2.24 times, what 16 bytes in all operands cost."""
    slow = tuple(replace(PLAIN, tiles=((128, 128, share),)) for share in shares)
    calibration, gemm = replace(FITTED, misaligned=slow), Gemm(name="one", m=128, n=128, k=k)
    rows = rows_of(gemm, calibration)
    assert rows.time_s[0] == pytest.approx(2 * STEP_S * slower, rel=1e-12)
    assert (rows.terms["alignment"][0], rows.sizes.penalty[0]) == pytest.approx((1 / slower, slower), rel=1e-12)
    assert (rows.waited[0], rows.single[0], rows.coarse[0]) == (1, slower == 1, False)
    listed = gemm_alternatives(gemm, ROUND, calibration, clock=Clock.BOOST)[0]
    assert (listed.time_s, listed.alignment) == pytest.approx((2 * STEP_S * slower, 1 / slower), rel=1e-12)


def test_a_batch_is_no_single_product() -> None:
    assert not rows_of(Gemm(name="two", m=128, n=128, k=128, batch=2)).single[0]


def test_a_gemm_of_eight_launches_is_no_longer_short() -> None:
    """2 x (2 x 1024 k + 1024^2) bytes at 2^42 a second are 7 launches of 2^-20 s where k = 6656."""
    fast = replace(ROUND, hbm_bytes_per_s=2.0**43, peak_flops_per_s={DType.BF16: 1e20})
    c = replace(PLAIN, launch_s=2.0**-20, feed_bytes_per_clock=1e12, log_sigma=0.1, log_sigma_small=0.2)
    calibration = replace(FITTED, gemm={DType.BF16: c})
    for k, short in ((6656, False), (6592, True)):
        gemm = Gemm(name="k", m=1024, n=1024, k=k)
        rows = _by_formula([gemm], [_problem(gemm, c)], fast, calibration, Clock.BOOST, True, False)
        assert rows.time_s[0] == (8 if k == 6656 else 7 * (2 * k + 1024) / 14336 + 1) * 2.0**-20
        assert (rows.short[0], rows.log_sigma[0]) == (short, 0.2 if short else 0.1)


def test_a_replay_waits_for_no_launch_by_the_host() -> None:
    """fp32 at a tenth of bf16's rate, four steps of 32: as fitted with 20 us, in a replay with bf16's 2 us."""
    host = replace(PLAIN, launch_s=20e-6)
    calibration = replace(
        FITTED,
        gemm={DType.BF16: replace(PLAIN, launch_s=2e-6), DType.FP32: host},
        provenance={"gemm.fp32": {"launched": "host"}},
    )
    body_s = 4 * 2 * 128 * 128 * 32 / 1e12
    gemm = Gemm(name="fp32", m=128, n=128, k=128, dtype=DType.FP32)
    rows = rows_of(gemm, calibration, replay=True)
    assert rows.time_s[0] == pytest.approx(body_s + 2e-6, rel=1e-12)
    assert rows.waited[0] == pytest.approx((body_s + 20e-6) / (body_s + 2e-6), rel=1e-12)
    assert rows_of(gemm, calibration).time_s[0] == pytest.approx(body_s + 20e-6, rel=1e-12)


def test_narrow_weights_are_no_sooner_than_the_share_of_a_wide_product_that_computes() -> None:
    """Of 10 s, 4 of 8 are compute: 5 s."""
    wide = Cost(time_s=10.0, compute_s=4.0, memory_s=8.0, log_sigma=0.4)
    narrow = Cost(time_s=2.0, compute_s=1.0, memory_s=2.0, log_sigma=0.2)
    later = _no_sooner(narrow, wide)
    assert (later.time_s, later.compute_s, later.log_sigma) == (5.0, 4.0, 0.4)
    as_long = replace(narrow, time_s=5.0)
    assert _no_sooner(as_long, wide) == as_long


def test_experts_as_plain_products_and_borrowed_units_have_wider_intervals() -> None:
    c = replace(PLAIN, log_sigma=0.1, log_sigma_small=0.15)
    calibration = replace(FITTED, gemm={DType.BF16: c, DType.FP8: c})
    of_others = _coefficients_of((DType.FP8, True, False), calibration)
    assert (of_others.log_sigma, of_others.log_sigma_small) == (0.2, 0.3)
    op = GroupedGemm(name="experts", groups=4, rows=512, n=1024, k=2048)
    rows = _by_formula([op], [_problem(op, c)], ROUND, calibration, Clock.BOOST, True, False)
    (cost,) = _each([op], [()], rows)
    assert cost.log_sigma == pytest.approx(2.5 * 0.1, rel=1e-12)


# ------------------------------------------------------------------------------------------- tiles, waves and traffic

TILES = replace(PLAIN, wave_s=1e-6, tile_s=2e-6, launch_s=3e-6, write_cost=1.5, overlap=0.25)
"""Fill and epilogue of a wave of 128 x 128: 1 us and half of 2 us."""


def sizes(batch: float, m: float, n: float, k: float, *, penalty: float = 1.0, packed: float = 0.0) -> Problems:
    values = {"batch": batch, "m": m, "n": n, "k": k, "out_bytes": 2.0, "penalty": penalty, "packed_bytes": packed}
    return Problems(**{name: np.array([float(value)]) for name, value in values.items()})


def machine_of(c: GemmCoefficients, **changes: Any) -> Machine:
    return replace(_machine(ROUND, DType.BF16, c, Clock.BOOST), **changes)


def best_of(p: Problems, c: GemmCoefficients) -> dict[str, float]:
    """The fastest way, with its times in us."""
    terms = {name: float(value[0]) for name, value in evaluate(p, machine_of(c), c, True).items()}
    assert terms["time_s"] == pytest.approx(evaluate(p, machine_of(c), c, False)["time_s"][0], rel=1e-14)
    return {name: value * 1e6 if name.endswith("_s") else value for name, value in terms.items()}


LOOP = sizes(20, 200, 320, 100)
"""20 x 2 x 3 tiles on 100 SMs: two waves of two steps."""


def test_whole_tiles_take_waves_of_steps_with_their_fill_beside_the_traffic() -> None:
    """Penalty 1.5: 2 x (2 x 1.5 x 0.2097152 + 2) us. Memory: 20 x (200 x 100 + 320 x 100) x 2 bytes read and 20 x 200 x
    320 x 2 written at 1.5: 5.92 MB at 2 TB/s."""
    way = best_of(replace(LOOP, penalty=np.array([1.5])), TILES)
    assert (way["waves"], way["split_k"], way["tile_m"], way["tile_n"]) == (2, 1, 128, 128)
    assert (way["compute_s"], way["memory_s"], way["overhead_s"]) == pytest.approx((5.2582912, 2.96, 3), rel=1e-12)
    assert way["time_s"] == pytest.approx(5.2582912 + 0.25 * 2.96 + 3, rel=1e-12)
    shares = (way["tile_efficiency"], way["wave_efficiency"], way["alignment"])
    assert shares == pytest.approx((1_280_000 / 1_966_080, 0.6, 1 / 1.5), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "step_us"),
    [
        ({"tiles": ((128, 128, 0.5),)}, 0.4194304),
        ({"feed_bytes_per_clock": 64.0}, 0.256),  # (128 + 128) x 64 elements of two bytes at 128 GB/s
        ({"step_s": 1e-6}, 1.0),
        ({"step_s": 1e-6, "copies": 200 / 4.64, "turned_step": 0.4}, 0.7),  # half in the cache beside memory
    ],
)
def test_a_step_takes_the_slowest_of_units_feed_and_latency(changes: dict[str, Any], step_us: float) -> None:
    assert best_of(LOOP, replace(TILES, **changes))["compute_s"] == pytest.approx(2 * (2 * step_us + 2), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "parts", "time_us"),
    [
        ({"max_split": 4.0}, 4, 28.388864 + 0.25 * 22.97152 + 8),
        ({"max_split": 4.0, "split_columns": 64.0}, 4, 28.388864 + 0.25 * 22.97152 + 8),
        ({"max_split": 16.0}, 8, 30.0928 + 0.25 * 12.48576 + 8),
        ({"max_split": 4.0, "split_columns": 128.0}, 1, 85.88608 + 0.25 * 26.816 + 3),
    ],
)
def test_k_is_cut_into_parts_that_exchange_their_sums(changes: dict[str, Any], parts: int, time_us: float) -> None:
    """12 tiles of 400 steps. Four parts: 100 x 0.2097152 + 2 us; 48 x 8 x 128 x 128 bytes of sums at twice 2 TB/s are
    1.572864 us, beside 53,632,000 bytes, 26.816 us; 3 + 5 us to start. Sixteen are eight on 100 SMs, with sums of 100
    tiles. 320 columns are no multiple of 128: one part."""
    way = best_of(sizes(2, 200, 320, 25_600), replace(TILES, split_s=5e-6, split_rate=2.0, **changes))
    assert (way["split_k"], way["wave_efficiency"]) == pytest.approx((parts, 12 * parts / 100), rel=1e-12)
    assert way["time_s"] == pytest.approx(time_us, rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "parts", "busy", "time_us"),
    [
        (20, 2, 11_880 / 11_900, 67.8144 + 0.25 * (124.95 * 0.2097152 + 6) + 4),
        (1, 4, 594 / 2500, 26.25 * 0.2097152 + 4 + 0.25 * 3.39072 + 4),
    ],
)
def test_steps_dealt_evenly_by_hand(batch: int, parts: int, busy: float, time_us: float) -> None:
    """120 tiles of 99 steps: 119 on the busiest SM, times 1.05, and a fill more than the two waves'. Six tiles: parts
    of a quarter at least: 25 steps. Each product moves 6,781,440 bytes."""
    c = replace(TILES, stream_k_cost=0.05, stream_k_fills=1.0, max_split=4.0, split_s=1e-6)
    way = best_of(sizes(batch, 200, 320, 6336), c)
    assert (way["split_k"], way["wave_efficiency"]) == pytest.approx((parts, busy), rel=1e-12)
    assert way["time_s"] == pytest.approx(time_us, rel=1e-12)


def test_operands_are_narrowed_and_copied_before_the_product() -> None:
    """400,000 elements of 6 bytes and 200,000 bytes at 2 TB/s: 1.3 us; a launch of 1 us and a quarter of 2 us more."""
    c = replace(TILES, quantize_bytes=6.0, quantize_s=1e-6, quantize_more_s=2e-6, quantize_half=1_200_000.0)
    p = replace(LOOP, packed_bytes=np.array([2e5]))
    assert quantizing_s(p, machine_of(c), c) == pytest.approx(2.8e-6, rel=1e-12)
    assert best_of(p, c)["overhead_s"] == pytest.approx(3 + 2.8, rel=1e-12)


def test_caches_hold_activations_weights_and_results_up_to_their_size() -> None:
    """0.5 of 0.8 MB of activations are warm. Weights of 1.28 MB just fit, a MB of 2.56 MB of results stays in L2 at
    3.84 TB/s: 0.3 + 1.5 x 1.56 MB at 2 TB/s, and 1.28 more where weights are cold; else 0.3 + 1.28 + 1.5 x 2.56 MB."""
    c = replace(TILES, l2_share=0.01, weight_copies=39.0625, out_part=0.02)
    assert best_of(LOOP, c)["memory_s"] == pytest.approx(1.32 + (1.28 + 1) / 3.84, rel=1e-12)
    cold = best_of(LOOP, replace(c, weight_copies=0.0))
    assert cold["memory_s"] == pytest.approx(1.32 + 1.28 / 2 + 1 / 3.84, rel=1e-12)
    bare = replace(c, weight_copies=0.0, out_part=0.0)
    assert best_of(LOOP, bare)["memory_s"] == pytest.approx(2.71, rel=1e-12)
    turned = replace(TILES, copies=200 / 4.64, turned_share=0.4)
    assert best_of(LOOP, turned)["memory_s"] == pytest.approx(0.7 * 2.96, rel=1e-12)


def test_ragged_results_last_as_long_as_a_kernel_that_takes_them() -> None:
    """51 rows, half-way from 10 to 30 ns: 2 x 100 x 20 ns."""
    c = replace(TILES, ragged=((1.0, 1e-8), (101.0, 3e-8)), launch_s=0.0)
    way = best_of(sizes(2, 51, 17, 100), replace(c, wave_s=0.0, tile_s=0.0))
    assert way["time_s"] == pytest.approx(4, rel=1e-12)
    assert way["compute_s"] == pytest.approx(4 - 0.25 * way["memory_s"], rel=1e-12)
    assert best_of(sizes(2, 51, 16, 100), replace(c, wave_s=0.0, tile_s=0.0))["time_s"] < 1


@pytest.mark.parametrize(("batch", "n", "parts", "compute_us"), [(1, 64, 16, 0.625), (10, 64, 2, 5), (30, 64, 1, 20)])
def test_waves_that_share_out_k_for_a_small_tile(batch: int, n: int, parts: int, compute_us: float) -> None:
    """16 x 16 at 10 ns an element of k: 4 tiles in 16 parts of 1,000; 40 in two; 120 in none, in two waves."""
    c = replace(PLAIN, cooperative_s=1e-8, launch_s=3e-6)
    ways = alternatives(sizes(batch, 16, n, 1000), machine_of(c), c)
    assert (ways["split_k"][-1, 0], ways["compute_s"][-1, 0]) == pytest.approx((parts, compute_us * 1e-6), rel=1e-12)


def test_columns_that_no_kernel_splits_last_as_long_as_all_of_k() -> None:
    c = replace(PLAIN, cooperative_s=1e-8, launch_s=3e-6)
    assert best_of(sizes(1, 16, 64, 1000), c)["time_s"] == pytest.approx(3.625, rel=1e-12)
    assert best_of(sizes(1, 16, 80, 1000), c)["time_s"] == pytest.approx(13, rel=1e-12)


@pytest.mark.parametrize(
    ("run", "time_us"),
    [
        (None, 1.025),  # a tenth, of which 1 us of 1 + 3 us sees a quarter
        (LongRun(uniform=1.1), 1.1),
        (LongRun(limit_flops_per_s=1e12), 4.0),  # 256 MFLOP take 256 us at the limit: 256^(1/4)
        (LongRun(limit_flops_per_s=256e12), 1.025),
        (LongRun(limit_flops_per_s=1e12, kept=0.5), 2.5),
    ],
)
def test_a_power_limit_slows_long_products(run: LongRun | None, time_us: float) -> None:
    c = replace(TILES, throttle=0.1)
    machine = machine_of(c, throttle_s=3e-6, long_run=run)
    assert _throttled(np.array([1e-6]), LOOP, machine, c) == pytest.approx(time_us * 1e-6, rel=1e-12)


@pytest.mark.parametrize(("n", "taken"), [(384, (False, True)), (512, (True, True)), (100, (True, True))])
def test_tiles_whose_columns_do_not_divide_the_results_are_left_out_where_others_do(
    n: int, taken: tuple[bool, bool]
) -> None:
    c = replace(PLAIN, tiles=((128, 256, 1.0), (128, 128, 1.0)), whole_columns=True)
    times = alternatives(sizes(1, 128, n, 128), machine_of(c), c)["time_s"]
    assert tuple(times[:2, 0] < 1) == taken


def test_ways_are_compared_by_the_logarithm_of_their_time_up_to_one() -> None:
    """Half the rate: 4.8388608 or 5.6777216 us beside a quarter of 2.96 us and 3 us to start; k is not cut. 12 tiles
    of 400 steps cut in four, and 120 of 99 steps dealt evenly, as above."""
    halves = replace(TILES, tiles=((128, 128, 1.0), (128, 128, 0.5)))
    ways = over_least(LOOP, machine_of(halves), halves)[:, 0]
    assert ways == pytest.approx([0, np.log(9.4177216 / 8.5788608), 1, 1], rel=1e-9)
    cut = replace(TILES, max_split=4.0, split_s=5e-6, split_rate=2.0)
    ways = over_least(sizes(2, 200, 320, 25_600), machine_of(cut), cut)[:, 0]
    assert ways == pytest.approx([np.log(95.59008 / 42.131744), 0], rel=1e-9)
    even = replace(TILES, stream_k_cost=0.05, stream_k_fills=1.0, max_split=4.0, split_s=1e-6)
    ways = over_least(sizes(20, 200, 320, 6336), machine_of(even), even)[:, 0]
    assert ways == pytest.approx([np.log(82.1953024 / 79.86537856), 0], rel=1e-7)
