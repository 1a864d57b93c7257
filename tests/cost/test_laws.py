"""Laws of the cost model, on random operators and devices: monotone, invariant, bounded, consistent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.cost_samples import GPUS, calibration_of, dtype_of, faster_gpu, gemms, gpus, operators, quicker
from sartor.cost.correction.calibration import Clock
from sartor.cost.gpu.eager import with_few
from sartor.cost.gpu.gemm import gemm_alternatives, gemm_cost
from sartor.cost.price import least_s, price
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm, Layout, Operator, OperatorGraph

laws = settings(max_examples=150, deadline=None)


def time_of(op: Operator, gpu: Gpu, calibration: Any = None, clock: Clock = Clock.SUSTAINED) -> float:
    return float(price(OperatorGraph(operators=(op,)), gpu, calibration or calibration_of(gpu), clock=clock).time_s)


@laws
@given(st.data())
def test_gemm_time_never_falls_when_a_size_grows_at_equal_alignment(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    gemm = data.draw(gemms(gpu))
    field = data.draw(st.sampled_from(["m", "n", "k", "batch"]))
    # 64 elements are 128 bytes, the widest alignment class: adding a multiple leaves the class as it is.
    step = 64 * data.draw(st.integers(1, 100)) if field != "batch" else data.draw(st.integers(1, 8))
    larger = replace(gemm, **{field: getattr(gemm, field) + step})
    for clock in Clock:
        assert time_of(larger, gpu, clock=clock) >= time_of(gemm, gpu, clock=clock) * (1 - 1e-12)


@laws
@given(st.data())
def test_better_alignment_at_equal_padded_size_is_never_slower(data: st.DataObject) -> None:
    """k = 64j - r pads to the same main-loop steps as 64j and moves fewer bytes, so only alignment can hurt it."""
    gpu = data.draw(gpus)
    gemm = data.draw(gemms(gpu))
    k = 64 * data.draw(st.integers(1, 200))
    gemm = replace(gemm, m=8 * gemm.m, n=8 * gemm.n)  # kernels of misaligned operands are those of the worst
    whole, ragged = replace(gemm, k=k), replace(gemm, k=k - data.draw(st.integers(1, 63)))
    penalties = [float(gemm_cost(g, gpu, calibration_of(gpu)).details["alignment"]) for g in (whole, ragged)]
    assert penalties[0] >= penalties[1]


@laws
@given(st.data())
def test_time_never_rises_with_a_faster_device(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    op = data.draw(operators(gpu))
    assert time_of(op, faster_gpu(gpu, 1.5), calibration_of(gpu)) <= time_of(op, gpu) * (1 + 1e-12)


@laws
@given(st.data())
def test_rates_times_four_and_delays_by_four_give_a_quarter_of_the_time(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    op = data.draw(operators(gpu))
    calibration = calibration_of(gpu)
    quarter = time_of(op, faster_gpu(gpu, 4.0), quicker(calibration, 4.0))
    assert quarter == pytest.approx(time_of(op, gpu, calibration) / 4, rel=1e-9)


@laws
@given(st.data())
def test_no_gemm_beats_the_roofline(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    gemm = data.draw(gemms(gpu))
    for clock in Clock:
        assert time_of(gemm, gpu, clock=clock) >= float(least_s(gemm, gpu))


@laws
@given(st.data())
def test_swapping_m_and_n_changes_nothing_where_tiles_and_operands_are_symmetric(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    calibration = calibration_of(gpu)
    dtype = dtype_of(gpu)
    c = calibration.gemm[dtype]
    square = tuple((m, m, share) for m, n, share in c.tiles if m == n) or ((128, 128, 0.7),)
    even = replace(calibration, gemm={dtype: replace(c, tiles=square, l2_share=0.0)}, few_rows={}, misaligned=())
    gemm = replace(data.draw(gemms(gpu)), layout=Layout.TN)
    # In TN both inputs are contiguous along k; the output's own alignment is the one thing that tells m from n.
    gemm = replace(gemm, m=64 * max(1, gemm.m // 64), n=64 * max(1, gemm.n // 64))
    swapped = replace(gemm, m=gemm.n, n=gemm.m)
    assert time_of(swapped, gpu, even) == pytest.approx(time_of(gemm, gpu, even), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_array_entry_equals_the_scalar_call_exactly(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    ops = data.draw(st.lists(gemms(gpu), min_size=2, max_size=6))
    layout, accumulates = ops[0].layout, ops[0].accumulates
    arrays = {key: np.array([getattr(op, key) for op in ops]) for key in ("m", "n", "k", "batch")}
    many = Gemm(name="many", dtype=dtype_of(gpu), layout=layout, accumulates=accumulates, **arrays)
    calibration = calibration_of(gpu)
    whole = gemm_cost(many, gpu, calibration, clock=Clock.BOOST)
    fast = price(OperatorGraph(operators=(many,)), gpu, calibration, clock=Clock.BOOST, details=False).time_s
    for i, op in enumerate(ops):
        one = gemm_cost(replace(op, layout=layout, accumulates=accumulates), gpu, calibration, clock=Clock.BOOST)
        assert whole.time_s[i] == one.time_s == fast[i]
        entry = {key: value[i] for key, value in whole.details.items()}
        absent = {"assumed": 0.0, "residual": 1.0}
        assert entry == {key: value for key, value in absent.items() if key in entry} | one.details


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_operator_kind_gives_the_same_alone_and_in_a_grid(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    op = data.draw(operators(gpu))
    sizes = [name for name in ("m", "rows", "batch", "message_bytes") if hasattr(op, name)]
    field = sizes[0]
    values = np.array([getattr(op, field), 3 * getattr(op, field)])
    both = price(OperatorGraph(operators=(replace(op, **{field: values}),)), gpu, calibration_of(gpu)).time_s
    if field == "rows" and not hasattr(op, "groups"):
        return  # a streaming kernel's time follows its bytes, not its rows
    for i, value in enumerate(values):
        assert both[i] == time_of(replace(op, **{field: type(getattr(op, field))(value)}), gpu)


@laws
@given(st.data())
def test_terms_add_up_to_the_time_of_the_formula(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    cost = gemm_cost(data.draw(gemms(gpu)), gpu, calibration_of(gpu))
    terms, of_formula_s = (float(cost.compute_s), float(cost.memory_s)), float(cost.time_s / cost.learned)
    assert max(terms) + float(cost.overhead_s) <= of_formula_s * (1 + 1e-12)
    assert sum(terms) + float(cost.overhead_s) >= of_formula_s * (1 - 1e-12)
    assert 0 < cost.details["tile_efficiency"] <= 1
    assert 0 < cost.details["wave_efficiency"] <= 1
    assert 0 < cost.details["alignment"] <= 1


@pytest.mark.parametrize("name", ["v100_sxm", "mi250x"])
def test_terms_add_up_where_few_rows_turn_into_many(name: str) -> None:
    rows = Gemm(name="rows", m=np.arange(1, 3000, 8), n=321, k=6657, dtype=DType.FP16)
    cost = gemm_cost(rows, load_gpu(name), calibration_of(load_gpu(name)))
    slower, faster = np.maximum(cost.compute_s, cost.memory_s), np.minimum(cost.compute_s, cost.memory_s)
    assert np.all(slower + cost.overhead_s <= cost.time_s * (1 + 1e-9))
    assert np.all(slower + faster + cost.overhead_s >= cost.time_s * (1 - 1e-9))


@laws
@given(st.data())
def test_the_chosen_tile_is_the_fastest_of_the_alternatives(data: st.DataObject) -> None:
    gpu = data.draw(gpus)
    gemm = data.draw(gemms(gpu))
    calibration = calibration_of(gpu)
    # With a share of coarse tiles the price is the mean of two tiles; the list has the faster.
    fastest = {dtype: replace(c, coarse_share=0.0) for dtype, c in calibration.gemm.items()}
    calibration = replace(calibration, gemm=fastest)
    calibration = data.draw(st.sampled_from([replace(calibration, few_rows={}), with_few(calibration)]))
    cost, listed = gemm_cost(gemm, gpu, calibration), gemm_alternatives(gemm, gpu, calibration)
    streamed = gemm.m <= calibration.gemm[gemm.dtype].stream_rows
    assert listed[0].time_s == cost.time_s or (streamed and cost.time_s < listed[0].time_s)
    assert [each.time_s for each in listed] == sorted(each.time_s for each in listed)
    assert cost.details["tile_m"] == listed[0].tile_m


@pytest.mark.parametrize("name", GPUS)
def test_model_flops_utilization_never_exceeds_one(name: str) -> None:
    gpu = load_gpu(name)
    grid = 2 ** np.arange(5, 15)
    gemm = Gemm(name="g", m=grid[:, None, None], n=grid[None, :, None], k=grid[None, None, :], dtype=dtype_of(gpu))
    assert np.all(price(OperatorGraph(operators=(gemm,)), gpu).mfu <= 1)


def test_a_narrower_type_is_not_slower_where_the_device_has_units_for_it() -> None:
    gpu = load_gpu("b200_sxm")
    calibration = calibration_of(gpu)
    times = [
        float(gemm_cost(Gemm(name="g", m=16384, n=8192, k=8192, dtype=d), gpu, calibration).time_s)
        for d in (DType.BF16, DType.FP8, DType.NVFP4)
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", ["mi250x", "v100_sxm", "a100_sxm"])
def test_a_matrix_times_a_vector_reads_its_weights_as_streaming_kernels_do(name: str) -> None:
    """Fits of sweeps of large products saw none: what they make of memory is no measurement of it."""
    gpu = load_gpu(name)
    one, two = (Gemm(name="x", m=m, n=4096, k=4096, dtype=DType.FP16) for m in (1, 2))
    least = one.bytes_moved / gpu.hbm_bytes_per_s
    assert least < time_of(one, gpu) < 2.5 * least + 5e-6
    assert time_of(one, gpu) <= time_of(two, gpu)
