"""Long runs under a power limit: the clock falls for what draws more than the limit, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.coefficients import PowerCoefficients
from sartor.cost.gpu.attention import attention_cost
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.gpu.grouped import grouped_cost
from sartor.cost.gpu.rates import LongRun, lasting_s, long_run
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention, DType, Gemm, GroupedGemm

H200 = load_gpu("h200_sxm")
ON_ITS_OWN = LongRun(limit_flops_per_s=4e14, kept=1.0)


def product(size: int, dtype: DType = DType.BF16, **changes: object) -> Gemm:
    return Gemm(name="x", m=size, n=size, k=size, dtype=dtype, **changes)  # type: ignore[arg-type]


@given(st.floats(1e-6, 1.0), st.floats(1e6, 1e16), st.floats(0.0, 1.0))
def test_a_long_run_never_takes_less_and_never_more_than_the_fourth_root(
    time_s: float, flops: float, kept: float
) -> None:
    run = replace(ON_ITS_OWN, kept=kept)
    longer = lasting_s(time_s, flops, run)
    most = max(1.0, flops / time_s / run.limit_flops_per_s) ** 0.25
    assert time_s <= longer <= time_s * most * (1 + 1e-12)


@given(st.floats(1e-6, 1.0), st.floats(1.0, 4.0), st.floats(1e6, 1e16))
def test_a_long_run_of_more_work_or_a_slower_kernel_is_no_shorter(time_s: float, more: float, flops: float) -> None:
    base = lasting_s(time_s, flops, ON_ITS_OWN)
    assert lasting_s(time_s * more, flops, ON_ITS_OWN) >= base
    assert lasting_s(time_s, flops * more, ON_ITS_OWN) >= base


def test_below_the_limit_the_clock_does_not_fall() -> None:
    assert lasting_s(1.0, 3.9e14, ON_ITS_OWN) == 1.0
    assert lasting_s(1.0, 16 * 4e14, ON_ITS_OWN) == 2.0


@pytest.mark.parametrize("clock", [Clock.BOOST, Clock.SUSTAINED])
def test_only_tensor_cores_in_long_runs_meet_the_limit(clock: Clock) -> None:
    power = load_calibration(H200).power
    found = [long_run(H200, dtype, power, 0.0, clock) for dtype in (DType.BF16, DType.FP8, DType.FP32)]
    assert [run is not None for run in found] == [clock is Clock.SUSTAINED] * 2 + [False]


def test_a_device_with_a_higher_limit_is_slowed_less() -> None:
    roomy = replace(H200, tdp_w=1000.0)
    known = load_calibration(H200)
    slow, fast = (gemm_cost(product(4096), gpu, known).time_s for gpu in (H200, roomy))
    assert slow / fast == pytest.approx((1000 / 700) ** 0.25, rel=0.03)


def test_a_launch_bound_product_takes_as_long_in_a_long_run() -> None:
    known = load_calibration(H200)
    short, long = (gemm_cost(product(64), H200, known, clock=clock).time_s for clock in Clock)
    assert long == pytest.approx(short, rel=1e-3)


def test_attention_and_experts_are_slowed_as_products_are() -> None:
    known = load_calibration(H200)
    free = replace(known, power=replace(known.power, kept=0.0))
    attention = Attention(
        name="a", batch=8, num_heads=32, num_kv_heads=8, seq_q=8192, seq_kv=8192, head_dim=128, v_head_dim=128
    )
    experts = GroupedGemm(name="e", groups=8, rows=65536, n=4096, k=4096, dtype=DType.BF16)
    for cost, op in ((attention_cost, attention), (grouped_cost, experts)):
        base, slowed = (float(cost(op, H200, each).compute_s) for each in (free, known))  # type: ignore[operator]
        rate = float(np.asarray(op.flops)) / base
        limit = 6.0e11 * H200.tdp_w
        assert slowed / base == pytest.approx(max(1.0, rate / limit) ** 0.25, rel=1e-6)


def test_a_narrow_product_whose_operands_come_narrow_is_faster_than_the_same_in_16_bits() -> None:
    for name in ("h200_sxm", "b200_sxm", "rtx_pro_6000_server"):
        gpu = load_gpu(name)
        known = load_calibration(gpu)
        for clock in Clock:
            narrow = gemm_cost(product(4096, DType.FP8, quantized=True), gpu, known, clock=clock)
            wide = gemm_cost(product(4096), gpu, known, clock=clock)
            timed = gemm_cost(product(4096, DType.FP8), gpu, known, clock=clock)
            assert float(narrow.time_s) < float(wide.time_s)
            assert float(narrow.time_s) < float(timed.time_s)
            assert float(narrow.log_sigma) > float(wide.log_sigma)


def test_arrays_and_scalars_agree_to_the_last_bit_in_long_runs() -> None:
    known, sizes = load_calibration(H200), np.array([256, 1024, 4096, 16384])
    together = gemm_cost(Gemm(name="x", m=sizes, n=4096, k=4096, dtype=DType.BF16), H200, known).time_s
    alone = [gemm_cost(Gemm(name="x", m=int(m), n=4096, k=4096, dtype=DType.BF16), H200, known).time_s for m in sizes]
    assert list(np.asarray(together)) == alone


def test_where_only_the_longest_products_are_known_every_kernel_is_slowed_alike() -> None:
    run = long_run(H200, DType.BF16, PowerCoefficients(kept=0.5), 0.3, Clock.SUSTAINED)
    assert lasting_s(2.0, 1.0, run) == lasting_s(2.0, 1e20, run) == pytest.approx(2.3)
