"""What a device that was not measured borrows: kernels that stream, and products on general cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.carrying import (
    Rates,
    attention_on,
    experts_on,
    per_sm,
    quantized_on,
    with_calls,
    within_power,
)
from sartor.cost.correction.coefficients import MemoryBoundCoefficients
from sartor.cost.correction.network import fingerprint, without_residuals
from sartor.cost.cost import Source
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.cost.price import least_s
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.operators import DType, Gemm, Layout, MemoryBound, MemoryBoundKind

A100, A40, T4, H100 = (load_gpu(name) for name in ("a100_sxm", "a40", "t4", "h100_sxm"))
NORM = MemoryBound(name="n", kind=MemoryBoundKind.NORM, rows=4096, cols=4096, bytes_moved=1e6, kernel="layernorm")


def test_a_kernel_that_sms_hold_up_takes_as_many_of_their_cycles_per_byte_elsewhere() -> None:
    found = per_sm(load_calibration(A100).memory_bound, A100, A40)
    shares = {row[0]: row[1] for row in found.kinds}
    assert shares["rmsnorm"] == pytest.approx(0.57, abs=0.01)  # A40's own fit: 0.5702
    assert shares["layernorm"] == pytest.approx(0.7152, abs=0.04)
    assert shares["add"] == found.hbm_share == load_calibration(A100).memory_bound.hbm_share


def test_carried_there_and_back_it_is_the_same() -> None:
    before = load_calibration(A100).memory_bound
    after = per_sm(per_sm(before, A100, A40), A40, A100)
    assert [row[1] for row in after.kinds] == pytest.approx([row[1] for row in before.kinds])


@pytest.mark.parametrize("name", ["a100_pcie_80gb", "v100_pcie_32gb", "t4", "p4", "mi210"])
def test_what_the_host_adds_is_not_paid_where_it_does_not_wait(name: str) -> None:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    alone, waited = (memory_bound_cost(NORM, gpu, known, eager=eager).overhead_s for eager in (False, True))
    assert alone < 8e-6
    assert waited > 2.5e-5


@pytest.mark.parametrize("name", GPUS.names())
def test_no_kernel_is_faster_where_the_host_waits(name: str) -> None:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    for kernel in ("layernorm", "softmax", "gelu", "relu", "add", ""):
        op = replace(NORM, kernel=kernel, bytes_moved=4e9)
        alone, waited = (memory_bound_cost(op, gpu, known, eager=eager).time_s for eager in (False, True))
        assert waited >= alone


def test_a_table_of_one_s_own_says_the_share_and_the_other_gives_what_it_lacks() -> None:
    c = MemoryBoundCoefficients(
        kinds=(("norm", 0.4, 1e-6, 0.1),), host_kinds=(("norm", 0.6, 2e-5, 0.1), ("relu", 0.8, 5e-6, 0.1))
    )
    borrowed, own = with_calls(c, calls_are_own=False), with_calls(c, calls_are_own=True)
    assert {row[0]: row[1:3] for row in borrowed.host_kinds} == {"norm": (0.4, 2e-5), "relu": (0.8, 5e-6)}
    assert {row[0]: row[1:3] for row in borrowed.kinds} == {"norm": (0.4, 1e-6), "relu": (0.8, 0.0)}
    assert {row[0]: row[1:3] for row in own.kinds} == {"norm": (0.6, 1e-6), "relu": (0.8, 0.0)}
    assert own.host_kinds == c.host_kinds


def test_general_cores_slow_down_only_where_the_power_limit_is_below_their_peak() -> None:
    c = load_calibration(load_gpu("v100_pcie_32gb")).gemm[DType.FP32]
    assert within_power(c, T4, 5.8e10).throttle == pytest.approx(8.1e12 / (70 * 5.8e10) - 1)
    assert within_power(c, H100, 1.26e11).throttle == 0.0
    assert within_power(c, T4, 0.0) == c


def test_a_device_of_the_same_die_lends_fp32_before_another_generation_does() -> None:
    """A100 SXM has no fp32 rows of its own and A100 PCIe has; nobody measured Blackwell's."""
    for name, lender in (("a100_sxm_40gb", "a100_pcie_80gb"), ("mi250", "mi210"), ("b200_sxm", "v100_pcie_32gb")):
        assert load_calibration(load_gpu(name)).provenance["gemm.fp32"]["lender"] == f"borrowed from {lender}"
    product = Gemm(name="p", m=4096, n=4096, k=4096, dtype=DType.FP32)
    assert 1.05 < gemm_cost(product, H100, load_calibration(H100)).time_s / least_s(product, H100) < 1.5


def test_what_seventy_watts_take_from_general_cores_they_take_from_tensor_cores() -> None:
    """T4 borrows from V100, whose sweeps saw no power limit; its own fp32 products settle at half of their peak."""
    long, short = (Gemm(name="p", m=n, n=n, k=n, dtype=DType.FP16) for n in (8192, 512))
    known = load_calibration(T4)
    unlimited = replace(known, gemm={DType.FP16: replace(known.gemm[DType.FP16], throttle=0.0)})
    slower = [
        gemm_cost(gemm, T4, known, clock=Clock.BOOST).time_s / gemm_cost(gemm, T4, unlimited, clock=Clock.BOOST).time_s
        for gemm in (long, short)
    ]
    assert 1.7 < slower[0] < 2.1
    assert slower[1] < 1.1
    assert load_calibration(load_gpu("v100_pcie_16gb")).gemm[DType.FP16].throttle == 0.0


def test_fp16_gemms_that_no_sweep_holds_take_bf16_s_time_with_part_of_its_network_s_correction() -> None:
    """The fp16 sweeps, launched by the host, have 2304 rows and more; bf16 tables, replayed, go from one row on. Of the
    correction, which is of the tables' libraries, 0.6 holds up to 256 rows and 0.15 from 512 on (in ln)."""
    known = load_calibration(A100)
    formula = without_residuals(known)
    for m, n, share in (
        (np.array([8, 64, 256]), 4096, 0.6),
        (np.array([512, 1000, 1152]), 57344, 0.15),
        (np.array([362]), 4096, 0.375),
        (4096, 256, 0.15),
    ):
        few = Gemm(name="p", m=m, n=n, k=4096, dtype=DType.FP16)
        alike = replace(few, dtype=DType.BF16)
        found, bf16, whole = (
            gemm_cost(*each) for each in ((few, A100, known), (alike, A100, formula), (alike, A100, known))
        )
        factor = (whole.time_s / bf16.time_s) ** share
        assert np.any(np.abs(np.log(factor)) > 0.003)
        assert found.time_s == pytest.approx(bf16.time_s * factor, rel=1e-3)
        assert found.details["residual"] == pytest.approx(factor, rel=1e-3)
        assert np.array_equal(found.memory_s, bf16.memory_s)


def test_few_rows_take_the_same_price_in_every_layout() -> None:
    """NN of 8 rows cost three times bf16's at +-5%: the sweeps of NN have 2304 rows and more as well."""
    known = load_calibration(A100)
    formula = without_residuals(known)
    few = Gemm(name="p", m=np.array([2, 8, 64, 512]), n=4096, k=4096, dtype=DType.FP16, layout=Layout.NN)
    found, bf16 = gemm_cost(few, A100, known), gemm_cost(replace(few, dtype=DType.BF16), A100, formula)
    assert np.array_equal(found.time_s, bf16.time_s)


@pytest.mark.parametrize("name", [name for name in GPUS.names() if load_gpu(name).accelerator is None])
def test_a_second_row_costs_at_most_half_of_the_first_where_weights_are_read(name: str) -> None:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    n, k = np.array([[4096], [14336], [8192], [1024], [50304]]), np.array([[4096], [4096], [28672], [8192], [2560]])
    for dtype in (each for each in DType if each.weight_only or each in gpu.peak_flops_per_s):
        one, two = np.asarray(gemm_cost(Gemm(name="p", m=np.array([1, 2]), n=n, k=k, dtype=dtype), gpu, known).time_s).T
        assert np.all(two <= 1.5 * one), dtype


@pytest.mark.parametrize("name", ["v100_sxm", "t4", "mi250x", "mi100"])
def test_few_rows_that_no_sweep_holds_are_assumed_and_their_interval_holds_both_prices(name: str) -> None:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    few = Gemm(name="p", m=64, n=4096, k=4096, dtype=DType.FP16)
    found, swept = gemm_cost(few, gpu, known), gemm_cost(few, gpu, replace(known, few_rows={}))
    assert found.stated_source is Source.ASSUMED
    assert found.low_s < swept.time_s < found.high_s * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in GPUS.names() if load_gpu(name).accelerator is None])
def test_narrow_weights_make_no_product_that_computes_faster_unless_it_was_measured(name: str) -> None:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    m = np.array([1, 8, 64, 512, 1024, 4096, 8192])
    wide = gemm_cost(Gemm(name="p", m=m, n=8192, k=8192, dtype=gpu.default_dtype), gpu, known)
    computes = np.greater_equal(wide.compute_s, wide.memory_s)
    for dtype in (DType.INT8_WO, DType.INT4_WO):
        narrow = gemm_cost(Gemm(name="p", m=m, n=8192, k=8192, dtype=dtype), gpu, known)
        if f"gemm.{dtype.value}" not in known.calibrated:
            assert np.all(np.asarray(narrow.time_s)[computes] >= np.asarray(wide.time_s)[computes] * (1 - 1e-12))


def test_general_cores_of_one_die_are_borrowed_before_another_generation_s() -> None:
    """H200 and GH200 took V100's fp32, and were 18% faster than H100 at the same clock and SMs."""
    op = Gemm(name="p", m=4096, n=4096, k=4096, dtype=DType.FP32)
    alike = [replace(H100, name="mine"), *(load_gpu(name) for name in ("h200_sxm", "gh200"))]
    own = gemm_cost(op, H100, load_calibration(H100)).time_s
    for gpu in alike:
        assert gemm_cost(op, gpu, load_calibration(gpu)).time_s == pytest.approx(own, rel=0.05)


def test_kernels_of_later_years_on_the_same_die_are_in_the_interval() -> None:
    """MI250X was timed with eager PyTorch of 2023, MI210 with tuned kernels of 2024: 94 and 139 TFLOP/s."""
    wide = Gemm(name="p", m=4096, n=4096, k=14336, dtype=DType.FP16)
    eager, tuned = (gemm_cost(wide, gpu, load_calibration(gpu)) for gpu in map(load_gpu, ("mi250x", "mi210")))
    assert eager.time_s > 1.3 * tuned.time_s
    assert eager.low_s < tuned.time_s


def test_fp16_gemms_like_the_sweeps_keep_the_sweeps_time_and_in_long_runs_wait_for_no_host() -> None:
    known = load_calibration(A100)
    alone = replace(known, gemm={DType.FP16: known.gemm[DType.FP16]}, provenance={})
    wide = Gemm(name="p", m=np.array([2304, 8192]), n=4096, k=4096, dtype=DType.FP16)
    few = Gemm(name="p", m=64, n=4096, k=4096, dtype=DType.FP16)
    for own in (wide, replace(wide, layout=Layout.NN), replace(few, batch=64)):
        found, swept = (gemm_cost(own, A100, each, clock=Clock.BOOST).time_s for each in (known, alone))
        assert np.array_equal(found, swept)
        lasting, waited = (gemm_cost(own, A100, each) for each in (known, alone))
        host = known.gemm[DType.FP16].launch_s - known.gemm[DType.BF16].launch_s
        assert np.asarray(waited.time_s) - np.asarray(lasting.time_s) == pytest.approx(host)
        assert np.array_equal(lasting.compute_s, waited.compute_s)


def test_between_the_two_fits_of_one_rate_no_gemm_with_more_rows_is_faster() -> None:
    m = np.arange(1024, 2561, 64)
    for n, k in ((4096, 4096), (12288, 4096), (28672, 8192), (8192, 28672), (8192, 1024)):
        time_s = np.asarray(
            gemm_cost(Gemm(name="p", m=m, n=n, k=k, dtype=DType.FP16), A100, load_calibration(A100)).time_s
        )
        assert np.all(time_s >= 0.99 * np.maximum.accumulate(time_s)), (n, k)


def test_attention_takes_as_many_cycles_elsewhere_and_comes_back_the_same() -> None:
    here, there = Rates.of(A100), Rates.of(H100)
    assert here
    assert there
    before = load_calibration(A100).attention
    after = attention_on(before, here, there)
    assert after.launch_s * there.clock_hz == pytest.approx(before.launch_s * here.clock_hz)
    assert attention_on(after, there, here).decode_block_s == pytest.approx(before.decode_block_s)


def test_experts_launch_in_cycles_and_are_fed_as_plain_gemms_are() -> None:
    before, here, there = load_calibration(A100).grouped, Rates.of(A100), Rates.of(H100)
    assert here
    assert there
    after = experts_on(before, here, there)
    assert after.feed_bytes_per_clock == pytest.approx(before.feed_bytes_per_clock * 2**0.75, rel=0.02)
    assert after.launch_s < before.launch_s


def test_attention_of_an_unmeasured_generation_lies_between_the_measured_ones() -> None:
    l40s = load_gpu("l40s")
    found, rates = load_calibration(l40s), Rates.of(l40s)
    assert rates
    assert found.owner("attention") == "joint"
    lenders = [load_gpu(name) for name in ("a100_sxm", "h200_sxm", "b200_sxm", "gb300", "rtx_pro_6000_server")]
    theirs = [attention_on(load_calibration(gpu).attention, Rates.of(gpu) or rates, rates) for gpu in lenders]
    for name in ("launch_s", "decode_launch_s", "decode_block_s", "hbm_share"):
        values = [getattr(each, name) for each in theirs]
        assert min(values) <= getattr(found.attention, name) <= max(values)


def test_devices_that_flash_kernels_do_not_run_on_keep_what_is_assumed_of_them() -> None:
    for name in ("t4", "p4", "v100_sxm"):
        assert load_calibration(load_gpu(name)).owner("attention") == "generation"


def test_operands_are_narrowed_as_fast_on_as_many_sms_whatever_the_memory() -> None:
    h200, gemm = load_gpu("h200_sxm"), Gemm(name="g", m=8192, n=128, k=8192, dtype=DType.FP8)
    own = load_calibration(h200).gemm[DType.FP8]
    borrowed = quantized_on(own, h200, H100)
    per_byte = [c.quantize_bytes * c.quantize_pace / gpu.hbm_bytes_per_s for c, gpu in ((own, h200), (borrowed, H100))]
    assert per_byte[0] == pytest.approx(per_byte[1])
    assert fingerprint(borrowed) == fingerprint(own)  # its network goes along
    known = load_calibration(H100)
    slower, faster = (replace(known, gemm={DType.FP8: c}, calibrated=frozenset(), relative="") for c in (own, borrowed))
    assert gemm_cost(gemm, H100, faster).time_s < gemm_cost(gemm, H100, slower).time_s
