"""Totals, their intervals, and comparisons with shared errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import Z80, Source
from sartor.cost.estimate import PASS_LOG_SIGMA, RHO, compare, estimate
from sartor.hardware.catalog import gpu_names, load_gpu
from sartor.operators import Collective, CollectiveKind, DType, Gemm, MemoryBound, MemoryBoundKind, OperatorGraph

A100 = load_gpu("a100_sxm")
UP = Gemm(name="up", m=8192, n=16384, k=4096, count=32)
DOWN = Gemm(name="down", m=8192, n=4096, k=16384, count=32)
NORM = MemoryBound(name="norm", kind=MemoryBoundKind.NORM, rows=8192, cols=4096, bytes_moved=1.3e8, count=64)
GRAPH = OperatorGraph(operators=(UP, DOWN, NORM), tokens=8192)


def test_total_is_the_sum_over_counts() -> None:
    found = estimate(GRAPH, A100)
    parts = [float(cost.time_s) * op.count for cost, op in zip(found.costs, GRAPH.operators, strict=True)]
    assert found.time_s == pytest.approx(sum(parts), rel=1e-12)
    assert found.tokens_per_s == pytest.approx(8192 / found.time_s)
    assert found.flops >= found.matmul_flops > 0


def test_total_interval_follows_the_stated_correlation() -> None:
    found = estimate(GRAPH, A100)
    up, down, norm = (
        float(c.time_s * op.count * c.log_sigma) for c, op in zip(found.costs, GRAPH.operators, strict=True)
    )
    variance = RHO * (up + down) ** 2 + (1 - RHO) * (up**2 + down**2) + norm**2
    operators = np.sqrt(variance) / found.time_s
    assert found.log_sigma == pytest.approx(np.hypot(operators, PASS_LOG_SIGMA), rel=1e-9)
    bare = estimate(OperatorGraph(operators=GRAPH.operators), A100)
    assert bare.log_sigma == pytest.approx(operators, rel=1e-9)
    assert found.low_s == pytest.approx(found.time_s * np.exp(-Z80 * found.log_sigma))


def test_a_total_is_no_less_certain_than_averaging_allows_and_no_more_than_its_worst_part() -> None:
    found = estimate(OperatorGraph(operators=GRAPH.operators), A100)
    sigmas = [float(cost.log_sigma) for cost in found.costs]
    assert 0 < found.log_sigma <= max(sigmas)


def test_comparing_with_itself_is_certain() -> None:
    found = estimate(GRAPH, A100)
    same = compare(found, found)
    assert same.speedup == 1.0
    assert same.low == pytest.approx(1.0)
    assert same.high == pytest.approx(1.0)


def test_shared_errors_cancel_in_a_comparison() -> None:
    """One of two products gets 10% faster: the interval of the ratio is far narrower than that of two strangers."""
    before = estimate(GRAPH, A100)
    after = estimate(OperatorGraph(operators=(replace(UP, n=14336), DOWN, NORM), tokens=8192), A100)
    found = compare(before, after)
    assert found.low < found.speedup < found.high
    width = np.log(found.high / found.low) / 2 / Z80
    assert width < np.hypot(before.log_sigma, after.log_sigma)
    assert found.probability > 0.8


def test_comparison_is_antisymmetric() -> None:
    before = estimate(GRAPH, A100)
    after = estimate(OperatorGraph(operators=(replace(UP, n=15360), DOWN, NORM), tokens=8192), A100)
    there, back = compare(before, after), compare(after, before)
    assert there.speedup == pytest.approx(1 / back.speedup)
    assert there.probability == pytest.approx(1 - back.probability)
    assert there.low == pytest.approx(1 / back.high)


def test_arrays_of_candidates_broadcast_through_totals_and_comparison() -> None:
    grid = replace(UP, n=np.array([12288, 14336, 16384])[:, None], k=np.array([4096, 5120])[None, :])
    after = estimate(OperatorGraph(operators=(grid, DOWN, NORM), tokens=8192), A100)
    assert after.time_s.shape == (3, 2)
    found = compare(estimate(GRAPH, A100), after)
    assert found.low.shape == found.probability.shape == (3, 2)
    assert after.time_s[2, 0] == pytest.approx(estimate(GRAPH, A100).time_s, rel=1e-14)  # summed in another order


def test_sigma_factor_widens_every_interval() -> None:
    narrow, wide = estimate(GRAPH, A100), estimate(GRAPH, A100, sigma_factor=2.0)
    assert wide.time_s == narrow.time_s
    assert wide.log_sigma == pytest.approx(2 * narrow.log_sigma)


def test_a_group_of_one_communicates_in_no_time() -> None:
    lonely = Collective(name="ar", kind=CollectiveKind.ALL_REDUCE, group_size=1, message_bytes=1e9)
    assert estimate(OperatorGraph(operators=(lonely,)), A100).time_s == 0


def test_source_is_that_of_the_weakest_part() -> None:
    gemm = OperatorGraph(operators=(UP,))
    assert estimate(gemm, A100).source is Source.CALIBRATED
    assert estimate(gemm, load_gpu("h100_sxm")).source is Source.ANALYTIC


def test_a_borrowed_calibration_is_less_certain_than_its_own() -> None:
    gemm = OperatorGraph(operators=(UP,))
    own = estimate(gemm, load_gpu("h200_sxm")).costs[0].log_sigma
    borrowed = estimate(gemm, load_gpu("h100_sxm")).costs[0].log_sigma
    assert borrowed > own


@pytest.mark.parametrize("name", gpu_names())
def test_every_device_of_the_catalogue_prices_every_type_it_has(name: str) -> None:
    gpu = load_gpu(name)
    calibration = load_calibration(gpu)
    for dtype in gpu.peak_flops_per_s:
        gemm = Gemm(name="g", m=4096, n=4096, k=4096, dtype=dtype)
        found = estimate(OperatorGraph(operators=(gemm,)), gpu, calibration)
        assert np.isfinite(found.time_s)
        assert gemm.flops / found.time_s <= gpu.peak_flops_per_s[dtype]


def test_a_type_the_device_lacks_runs_at_the_rate_of_a_wider_one() -> None:
    v100 = load_gpu("v100_sxm")
    wide, narrow = (Gemm(name="g", m=4096, n=4096, k=4096, dtype=d) for d in (DType.FP16, DType.BF16))
    times = [estimate(OperatorGraph(operators=(g,)), v100).time_s for g in (wide, narrow)]
    assert times[0] == pytest.approx(times[1])
