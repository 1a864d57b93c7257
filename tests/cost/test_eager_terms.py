"""GEMMs of few rows, each rule worked out by hand: what a sweep holds, what a replay holds, and what lies between."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log

import numpy as np
import pytest

from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.cost import Z80, Cost
from sartor.cost.gpu import eager
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, Layout

TILES = ((128, 128, 0.7),)
SWEEP = GemmCoefficients(tiles=TILES, launch_s=9e-6, split_s=4e-6)
REPLAY = GemmCoefficients(tiles=TILES, launch_s=2e-6, split_s=1e-6)


def known(
    *, launched: str | None = "host", fewest: float = 1024, clock: Clock | None = None, **changes: object
) -> Calibration:
    """Of a device whose fp16 was swept from ``fewest`` rows on, beside bf16 on graph replays."""
    own = load_calibration(load_gpu("h100"))
    provenance = {"gemm.fp16": {"launched": launched, "fewest_m": fewest}, "gemm.fp32": {"launched": "host"}}
    settings = {
        "gemm": {DType.FP16: SWEEP, DType.BF16: REPLAY, DType.FP32: SWEEP},
        "few_rows": {DType.FP16: replace(REPLAY, launch_s=3e-6)},
        "provenance": provenance | {"gemm.bf16": {"fewest_m": 1}},
        "calibrated": frozenset(),
        "relative": "",
        "same_die": False,
        "clock": clock,
    }
    return replace(own, **{**settings, **changes})  # type: ignore[arg-type]


def gemm(m: int, *, dtype: DType = DType.FP16, layout: Layout = Layout.TN, batch: int = 1) -> Gemm:
    return Gemm(name="gemm", m=m, n=4096, k=4096, dtype=dtype, layout=layout, batch=batch)


def cost(time_s: float, sigma: float = 0.1) -> Cost:
    return Cost(time_s=time_s, compute_s=time_s / 2, memory_s=time_s / 4, overhead_s=time_s / 8, log_sigma=sigma)


@pytest.mark.parametrize(
    ("op", "calibration", "has"),
    [
        (gemm(1), known(), True),
        (gemm(1), known(fewest=1), False),
        (gemm(1, dtype=DType.BF16), known(), False),
        (gemm(1), known(few_rows={}), False),
    ],
)
def test_a_type_has_other_coefficients_for_few_rows_if_its_sweep_begins_above_one(
    op: Gemm, calibration: Calibration, has: bool
) -> None:
    assert eager.has_few(op, calibration) == has


@pytest.mark.parametrize(
    ("m", "layout", "batch", "share"),
    [
        (512, Layout.TN, 1, 1.0),
        (640, Layout.TN, 1, 0.75),
        (1024, Layout.TN, 1, 0.0),
        (4096, Layout.TN, 1, 0.0),
        (640, Layout.TN, 2, 0.0),
        (1, Layout.TN, 1, 1.0),
    ],
)
def test_from_half_of_a_sweeps_fewest_rows_on_one_turns_into_the_other(
    m: int, layout: Layout, batch: int, share: float
) -> None:
    assert float(eager._unseen(gemm(m, layout=layout, batch=batch), known())) == share


@pytest.mark.parametrize(("layout", "share"), [(Layout.TN, 0.5), (Layout.NN, 0.0)])
def test_other_layouts_squares_count_as_seen(layout: Layout, share: float) -> None:
    calibration = known(fewest=2048)
    assert float(eager._unseen(gemm(1536, layout=layout), calibration)) == share
    assert eager.mostly_few(gemm(1024), calibration)
    assert not eager.mostly_few(gemm(1536), calibration)


def test_a_formula_of_few_rows_starts_as_soon_as_streaming_kernels_unless_it_was_replayed() -> None:
    calibration = known(launched=None)
    short = replace(calibration.memory_bound, launch_s=1e-6)
    found = eager.with_few(replace(calibration, memory_bound=short)).gemm[DType.FP16]
    assert (found.launch_s, found.stream_rows) == (1e-6, 16)
    assert (
        eager.with_few(replace(calibration, memory_bound=replace(short, launch_s=1.0))).gemm[DType.FP16].launch_s
        == 3e-6
    )
    assert eager.with_few(known()).gemm[DType.FP16] == replace(REPLAY, launch_s=3e-6)
    assert not eager.with_few(known()).few_rows
    assert DType.FP8 not in eager.with_few(known(few_rows={DType.FP8: REPLAY})).gemm


def test_a_type_is_replayed_beside_bf16_only_as_fp16_by_the_host() -> None:
    assert eager.replayed(DType.FP16, known())
    assert not eager.replayed(DType.BF16, known())
    assert not eager.replayed(DType.FP16, known(launched=None))


@pytest.mark.parametrize(
    ("dtype", "calibration", "clock", "replay", "launch_s", "split_s"),
    [
        (DType.FP16, known(), Clock.SUSTAINED, False, 2e-6, 4e-6),
        (DType.FP16, known(), Clock.BOOST, False, 9e-6, 4e-6),
        (DType.FP16, known(clock=Clock.BOOST), Clock.BOOST, False, 2e-6, 4e-6),
        (DType.FP16, known(launched=None), Clock.SUSTAINED, False, 9e-6, 4e-6),
        (DType.FP16, known(gemm={DType.FP16: SWEEP}), Clock.SUSTAINED, False, 9e-6, 4e-6),
        (DType.FP32, known(), Clock.SUSTAINED, True, 2e-6, 1e-6),
        (DType.FP32, known(), Clock.SUSTAINED, False, 9e-6, 4e-6),
        (DType.FP32, known(few_rows={DType.BF16: replace(REPLAY, launch_s=1e-6)}), Clock.BOOST, True, 1e-6, 1e-6),
        (DType.TF32, known(), Clock.SUSTAINED, True, 9e-6, 4e-6),
    ],
)
def test_in_a_queue_kernels_start_without_their_host(
    dtype: DType, calibration: Calibration, clock: Clock, replay: bool, launch_s: float, split_s: float
) -> None:
    found = eager.queued(SWEEP, dtype, calibration, clock, replay=replay)
    assert (found.launch_s, found.split_s) == (launch_s, split_s)
    slow = replace(REPLAY, launch_s=1.0, split_s=1.0)  # never later than by its own host
    later = replace(calibration, gemm={**calibration.gemm, DType.BF16: slow}, few_rows={})
    assert eager.queued(SWEEP, dtype, later, clock, replay=replay) == SWEEP


@pytest.mark.parametrize(
    ("kernels", "rows"), [("vllm_0.11", [3, 3, 4]), ("sglang", [1, 3, 4]), ("trtllm", [2, 3, 4]), ("", [3, 3, 4])]
)
def test_rows_that_a_table_holds_by_the_host_are_read_as_one_more(kernels: str, rows: list[int]) -> None:
    provenance = {"gemm.fp8": {"host_rows": {"vllm": 2, "trtllm": 1}}}
    found = eager.rows_replayed(np.array([1, 3, 4]), DType.FP8, known(provenance=provenance, kernels=kernels))
    assert found.tolist() == rows


@pytest.mark.parametrize(("m", "power"), [(1, 0.6), (256, 0.6), (362.0386719675123, 0.375), (512, 0.15), (9999, 0.15)])
def test_of_a_correction_a_share_holds_for_other_libraries(m: float, power: float) -> None:
    op = replace(gemm(1), m=m)
    found = eager.carried(replace(cost(1e-3), details={"residual": 1.0}), cost(2e-3), op)
    assert found.time_s == pytest.approx(1e-3 * 2**power, rel=1e-12)
    assert found.details["residual"] == pytest.approx(2**power, rel=1e-12)
    assert eager.carried(cost(1e-3), cost(2e-3), op).details == {}


def test_between_the_rows_of_a_sweep_and_none_a_price_turns_into_the_other() -> None:
    """Of linear layers that a replay holds, at three quarters of the way; terms are scaled with the nearer one's."""
    before, after = cost(1e-3, 0.2), cost(2e-3, 0.4)
    found = eager.between(before, after, gemm(640), known())
    assert found.time_s == pytest.approx(0.25 * 1e-3 + 0.75 * 2e-3, rel=1e-12)
    assert found.compute_s == pytest.approx(found.time_s / 2, rel=1e-12)
    assert found.memory_s == pytest.approx(found.time_s / 4, rel=1e-12)
    assert found.overhead_s == pytest.approx(found.time_s / 8, rel=1e-12)
    assert found.log_sigma == pytest.approx(0.25 * 0.2 + 0.75 * 0.4, rel=1e-12)
    nearer = eager.between(before, after, gemm(896), known())
    assert nearer.time_s == pytest.approx(0.75 * 1e-3 + 0.25 * 2e-3, rel=1e-12)
    assert eager.between(before, after, gemm(1024), known()) is before


def test_a_replay_that_is_shorter_than_eight_launches_stands_for_what_the_host_launched() -> None:
    launch_s = SWEEP.launch_s
    short, long = cost(7.9 * launch_s), cost(8.0 * launch_s)
    assert eager.between(short, cost(5 * launch_s), gemm(4096), known()).time_s == 5 * launch_s
    assert eager.between(long, cost(5 * launch_s), gemm(4096), known()).time_s == long.time_s
    assert eager.between(short, cost(7.95 * launch_s), gemm(4096), known()).time_s == short.time_s
    assert eager.between(short, short, gemm(4096), known()) is short


def test_where_no_replay_tells_few_rows_cost_at_most_the_sweeps_price_and_hold_both() -> None:
    calibration = known(launched=None)
    before, after = cost(1e-3, 0.2), replace(cost(4e-3, 0.4), details={"residual": 3.0})
    found = eager.between(before, after, gemm(1), calibration)
    assert found.time_s == 1e-3
    assert found.log_sigma == pytest.approx(hypot(0.4, log(4) / Z80), rel=1e-12)
    assert found.details == {"residual": 3.0, "assumed": 1.0}
    half = eager.between(before, replace(cost(5e-4, 0.4), details={"tile_m": 64.0}), gemm(896), calibration)
    assert half.time_s == pytest.approx(0.75 * 1e-3 + 0.25 * 5e-4, rel=1e-12)
    assert half.log_sigma == pytest.approx(hypot(0.75 * 0.2 + 0.25 * 0.4, 0.25 * log(2) / Z80), rel=1e-12)
    assert half.details == {"tile_m": 1.0, "assumed": 0.0}
    middle = eager.between(before, replace(cost(5e-4), details={"tile_m": 64.0}), gemm(768), calibration)
    assert middle.details["tile_m"] == 1.0


def test_kernels_of_later_years_on_the_same_die_widen_every_number_of_rows() -> None:
    lent = {"few_rows.fp16": {"lender": "borrowed from a100_sxm"}}
    calibration = known(launched=None)
    newer = replace(calibration, same_die=True, relative="a100_sxm", provenance=dict(calibration.provenance) | lent)
    assert newer.owner("few_rows.fp16") == "borrowed from a100_sxm"
    assert eager.holds_newer(DType.FP16, newer)
    for other in (replace(newer, same_die=False), replace(newer, few_rows={}), replace(newer, relative="b200_sxm")):
        assert not eager.holds_newer(DType.FP16, other)
    before, after = cost(1e-3, 0.3), cost(1e-3 * exp(0.4 * Z80))
    assert eager.between(before, after, gemm(4096), newer).log_sigma == pytest.approx(0.5, rel=1e-12)
    assert eager.between(before, after, gemm(4096), calibration) is before
