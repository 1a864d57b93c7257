"""Totals, their intervals, and comparisons with shared errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from accelerators import accelerators
from sartor.cost.chip.operator_latency import _one_core, _operator_time_s
from sartor.cost.collective.links import link_time_s
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import PASS_LOG_SIGMA, RHO, Z80, Bound, Source
from sartor.cost.price import least_s, price
from sartor.cost.uncertainty import compare
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of, load_accelerator
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.hardware.cluster import own_links
from sartor.model.lower import lower
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import Collective, CollectiveKind, DType, Gemm, MemoryBound, MemoryBoundKind, OperatorGraph

A100 = load_gpu("a100_sxm")
UP = Gemm(name="up", m=8192, n=16384, k=4096, count=32)
DOWN = Gemm(name="down", m=8192, n=4096, k=16384, count=32)
NORM = MemoryBound(name="norm", kind=MemoryBoundKind.NORM, rows=8192, cols=4096, bytes_moved=1.3e8, count=64)
GRAPH = OperatorGraph(operators=(UP, DOWN, NORM), tokens=8192)


def test_total_is_the_sum_over_counts() -> None:
    found = price(GRAPH, A100)
    parts = [float(cost.time_s) * op.count for cost, op in zip(found.costs, GRAPH.operators, strict=True)]
    assert found.time_s == pytest.approx(sum(parts), rel=1e-12)
    assert found.tokens_per_s == pytest.approx(8192 / found.time_s)
    assert found.flops >= found.matmul_flops > 0


def test_total_interval_follows_the_stated_correlation() -> None:
    found = price(GRAPH, A100)
    up, down, norm = (
        float(c.time_s * op.count * c.log_sigma) for c, op in zip(found.costs, GRAPH.operators, strict=True)
    )
    variance = RHO * (up + down) ** 2 + (1 - RHO) * (up**2 + down**2) + norm**2
    operators = np.sqrt(variance) / found.time_s
    assert found.log_sigma == pytest.approx(np.hypot(operators, PASS_LOG_SIGMA), rel=1e-9)
    bare = price(OperatorGraph(operators=GRAPH.operators), A100)
    assert bare.log_sigma == pytest.approx(operators, rel=1e-9)
    assert found.low_s == pytest.approx(found.time_s * np.exp(-Z80 * found.log_sigma))


def test_a_total_is_no_less_certain_than_averaging_allows_and_no_more_than_its_worst_part() -> None:
    found = price(OperatorGraph(operators=GRAPH.operators), A100)
    sigmas = [float(cost.log_sigma) for cost in found.costs]
    assert 0 < found.log_sigma <= max(sigmas)


def test_comparing_with_itself_is_certain() -> None:
    found = price(GRAPH, A100)
    same = compare(found, found)
    assert same.speedup == 1.0
    assert same.low == pytest.approx(1.0)
    assert same.high == pytest.approx(1.0)


def test_shared_errors_cancel_in_a_comparison() -> None:
    """One of two products gets 10% faster: the interval of the ratio is far narrower than that of two strangers."""
    before = price(GRAPH, A100)
    after = price(OperatorGraph(operators=(replace(UP, n=14336), DOWN, NORM), tokens=8192), A100)
    found = compare(before, after)
    assert found.low < found.speedup < found.high
    width = np.log(found.high / found.low) / 2 / Z80
    assert width < np.hypot(before.log_sigma, after.log_sigma)
    assert found.probability > 0.8


def test_comparison_is_antisymmetric() -> None:
    before = price(GRAPH, A100)
    after = price(OperatorGraph(operators=(replace(UP, n=15360), DOWN, NORM), tokens=8192), A100)
    there, back = compare(before, after), compare(after, before)
    assert there.speedup == pytest.approx(1 / back.speedup)
    assert there.probability == pytest.approx(1 - back.probability)
    assert there.low == pytest.approx(1 / back.high)


def test_arrays_of_candidates_broadcast_through_totals_and_comparison() -> None:
    grid = replace(UP, n=np.array([12288, 14336, 16384])[:, None], k=np.array([4096, 5120])[None, :])
    after = price(OperatorGraph(operators=(grid, DOWN, NORM), tokens=8192), A100)
    assert after.time_s.shape == (3, 2)
    found = compare(price(GRAPH, A100), after)
    assert found.low.shape == found.probability.shape == (3, 2)
    assert after.time_s[2, 0] == pytest.approx(price(GRAPH, A100).time_s, rel=1e-14)  # summed in another order


def test_sigma_factor_widens_every_interval() -> None:
    narrow, wide = price(GRAPH, A100), price(GRAPH, A100, sigma_factor=2.0)
    assert wide.time_s == narrow.time_s
    assert wide.log_sigma == pytest.approx(2 * narrow.log_sigma)


def test_a_group_of_one_communicates_in_no_time() -> None:
    lonely = Collective(name="ar", kind=CollectiveKind.ALL_REDUCE, group_size=1, message_bytes=1e9)
    assert price(OperatorGraph(operators=(lonely,)), A100).time_s == 0


def test_source_is_that_of_the_weakest_part() -> None:
    gemm = OperatorGraph(operators=(UP,))
    assert price(gemm, A100).source is Source.CALIBRATED
    assert price(gemm, load_gpu("gh200")).source is Source.ANALYTIC


def test_a_borrowed_calibration_is_less_certain_than_its_own() -> None:
    gemm = OperatorGraph(operators=(UP,))
    own = price(gemm, load_gpu("h200_sxm")).costs[0].log_sigma
    borrowed = price(gemm, load_gpu("h100_sxm")).costs[0].log_sigma
    assert borrowed > own


@pytest.mark.parametrize("name", GPUS.names())
def test_every_device_of_the_catalogue_prices_every_type_it_has(name: str) -> None:
    gpu = load_gpu(name)
    calibration = load_calibration(gpu)
    for dtype in gpu.peak_flops_per_s:
        gemm = Gemm(name="g", m=4096, n=4096, k=4096, dtype=dtype)
        found = price(OperatorGraph(operators=(gemm,)), gpu, calibration)
        assert np.isfinite(found.time_s)
        assert gemm.flops / found.time_s <= gpu.peak_flops_per_s[dtype]


def test_a_type_the_device_lacks_runs_at_the_rate_of_a_wider_one() -> None:
    v100 = load_gpu("v100_sxm")
    wide, narrow = (Gemm(name="g", m=4096, n=4096, k=4096, dtype=d) for d in (DType.FP16, DType.BF16))
    times = [price(OperatorGraph(operators=(g,)), v100).time_s for g in (wide, narrow)]
    assert times[0] == pytest.approx(times[1])


# --------------------------------------------------------------------------------------------- accelerators, same door

TPU = load_accelerator("tpu_v4_like")
LLAMA = lower(Workload(shape=load_model("llama-3-8b"), seq_len=2048), ParallelDims(tp=4))


def test_an_accelerator_is_priced_at_the_same_door_as_a_gpu() -> None:
    found = price(LLAMA, TPU)
    assert found.device.accelerator is TPU
    assert found.source is Source.ANALYTIC
    assert 0 < found.mfu < 1
    assert found.low_s < found.time_s < found.high_s
    for op, cost in zip(LLAMA.operators, found.costs, strict=True):
        alone = _operator_time_s(op, TPU)
        assert cost.time_s == pytest.approx(alone, rel=1e-12), op.name
        assert cost.time_s <= _operator_time_s(op, _one_core(TPU)) * (1 + 1e-12), "all cores are never slower than one"


def test_terms_of_an_accelerators_operator_make_up_its_time() -> None:
    for op, cost in zip(LLAMA.operators, price(LLAMA, TPU).costs, strict=True):
        body = max(float(cost.compute_s), float(cost.memory_s))
        assert cost.time_s == pytest.approx(body + cost.network_s + cost.overhead_s, rel=1e-9), op.name
    assert price(OperatorGraph(operators=(UP,)), TPU).costs[0].bound_by is Bound.COMPUTE
    narrow = replace(UP, m=1)
    assert price(OperatorGraph(operators=(narrow,)), TPU).costs[0].bound_by is Bound.MEMORY


def test_an_array_of_sizes_on_an_accelerator_is_every_size_alone() -> None:
    sizes = np.array([1024, 4096, 14336])
    together = price(OperatorGraph(operators=(replace(UP, n=sizes), NORM)), TPU).time_s
    each = [price(OperatorGraph(operators=(replace(UP, n=n), NORM)), TPU).time_s for n in sizes]
    assert together == pytest.approx(each, rel=1e-12)


def test_a_type_an_accelerator_cannot_multiply_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="has no matrix units for it"):
        price(OperatorGraph(operators=(replace(UP, dtype=DType.FP32),)), TPU)


@settings(max_examples=60, deadline=None)
@given(accelerators(), st.sampled_from(CollectiveKind), st.integers(1, 300), st.integers(1, 2**34))
def test_a_collective_is_the_same_on_a_chips_links_and_on_a_cluster_of_it(
    chip: Accelerator, kind: CollectiveKind, group: int, size: int
) -> None:
    op = Collective(name="c", kind=kind, group_size=group, message_bytes=size)
    here = price(OperatorGraph(operators=(op,)), chip, cluster=own_links(datasheet_of(chip))).time_s
    assert here == pytest.approx(link_time_s(op, chip), rel=1e-9)


def test_a_chip_without_links_is_told_from_one_that_needs_none() -> None:
    op = Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=4, message_bytes=8)
    linkless = replace(TPU, num_links=0)
    with pytest.raises(InputError, match="no links of its own"):
        price(OperatorGraph(operators=(op,)), linkless)
    assert price(OperatorGraph(operators=(replace(op, group_size=1),)), linkless).time_s == 0


@pytest.mark.parametrize("gpu", ["h100_sxm", "mi300x", "tpu_v5p", "arc_pro_b60"])
@pytest.mark.parametrize("size", [128, 4097, 8192])
def test_no_interval_ends_faster_than_the_datasheet(gpu: str, size: int) -> None:
    found = sartor.gemm(size, size, size, gpu=gpu)
    assert found.cost.low_s >= min(float(least_s(found.gemm, found.gpu)), float(found.cost.time_s)) * (1 - 1e-12)
    assert found.cost.low_s <= found.cost.time_s <= found.cost.high_s
