"""Attention, streaming kernels and collectives: laws, and one number of each derived by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.cost_samples import gpus
from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.correction.coefficients import CollectiveCoefficients, MemoryBoundCoefficients
from sartor.cost.correction.network import without_residuals
from sartor.cost.cost import Source
from sartor.cost.gpu.attention import attention_cost
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention, Collective, CollectiveKind, DType, Gemm, MemoryBound, MemoryBoundKind, Pass

PREFILL = Attention(
    name="attention", batch=4, num_heads=32, num_kv_heads=8, seq_q=2048, seq_kv=2048, head_dim=128, v_head_dim=128
)
DECODE = replace(PREFILL, seq_q=1, seq_kv=4096, batch=64)
NO_FITS = Calibration(gpu="test", gemm={})

laws = settings(max_examples=80, deadline=None)


@laws
@given(gpus, st.sampled_from([PREFILL, DECODE]), st.sampled_from(["batch", "seq_kv", "num_heads"]), st.integers(1, 64))
def test_attention_time_never_falls_when_a_size_grows(gpu, op, field, factor) -> None:  # type: ignore[no-untyped-def]
    calibration = without_residuals(load_calibration(gpu))
    larger = {field: getattr(op, field) * factor}
    if field == "seq_kv" and op.seq_q > 1:
        larger["seq_q"] = larger["seq_kv"]
    before, after = (attention_cost(each, gpu, calibration).time_s for each in (op, replace(op, **larger)))
    assert after >= before * (1 - 1e-12)


def test_a_window_never_makes_attention_slower() -> None:
    gpu = load_gpu("h200_sxm")
    calibration = without_residuals(load_calibration(gpu))
    times = [
        float(attention_cost(replace(PREFILL, seq_q=16384, seq_kv=16384, window=w), gpu, calibration).time_s)
        for w in (0, 8192, 1024, 128)
    ]
    assert times == sorted(times, reverse=True)


def test_causal_attention_takes_about_half_of_full_attention_when_long() -> None:
    gpu = load_gpu("a100_sxm")
    long = replace(PREFILL, seq_q=16384, seq_kv=16384)
    causal, full = (
        attention_cost(replace(long, causal=c), gpu, without_residuals(load_calibration(gpu))).time_s
        for c in (True, False)
    )
    assert 0.48 <= causal / full <= 0.56


def test_backward_takes_two_and_a_half_forwards_over_its_share() -> None:
    gpu = load_gpu("h200_sxm")
    calibration = load_calibration(gpu)
    long = replace(PREFILL, seq_q=8192, seq_kv=8192)
    forward, backward = (
        attention_cost(replace(long, pass_=p), gpu, calibration, clock=Clock.BOOST)
        for p in (Pass.FORWARD, Pass.BACKWARD)
    )
    assert backward.compute_s / forward.compute_s == pytest.approx(2.5 / calibration.attention.backward, rel=0.05)


def test_long_decode_is_bound_by_the_cache_and_grouped_heads_save_it() -> None:
    """64 sequences x 8 key/value heads x 65536 keys x (128 + 128) x 2 bytes = 17.2 GB at H200's 4.8 TB/s: 3.6 ms."""
    gpu = load_gpu("h200_sxm")
    calibration = without_residuals(load_calibration(gpu))
    grouped = attention_cost(replace(DECODE, seq_kv=65536), gpu, calibration, clock=Clock.BOOST)
    multi = attention_cost(replace(DECODE, seq_kv=65536, num_kv_heads=32), gpu, calibration, clock=Clock.BOOST)
    assert 17.2e9 / 4.8e12 <= grouped.time_s <= 1.4 * 17.2e9 / 4.8e12
    assert 3.5 <= multi.time_s / grouped.time_s <= 4.2


def test_absorbed_latent_decode_reads_keys_once_for_all_heads() -> None:
    gpu = load_gpu("h200_sxm")
    latent = replace(
        DECODE, num_heads=128, num_kv_heads=1, head_dim=576, v_head_dim=512, latent=True, seq_kv=65536, batch=32
    )
    cost = attention_cost(latent, gpu, load_calibration(gpu))
    cache_s = 32 * 65536 * 576 * 2 / gpu.hbm_bytes_per_s
    assert cache_s <= cost.memory_s <= 1.5 * cache_s


def test_a_streaming_kernel_is_bytes_over_bandwidth_and_a_launch() -> None:
    """A100: 40 MiB of L2, of which half serves the first 20 MiB at twice the rate; 85% of 2.039 TB/s; 2.5 us."""
    gpu = load_gpu("a100_sxm")
    kernel = MemoryBound(name="k", kind=MemoryBoundKind.CAST, rows=1, cols=1, bytes_moved=1e9)
    rate, near = 0.85 * 2.039e12, 20 * 2**20
    expected = near / (2 * rate) + (1e9 - near) / rate + 2.5e-6
    plain = replace(NO_FITS, memory_bound=MemoryBoundCoefficients())
    assert memory_bound_cost(kernel, gpu, plain).time_s == pytest.approx(expected)


@laws
@given(gpus, st.sampled_from(MemoryBoundKind), st.floats(1, 1e10), st.floats(1, 10))
def test_streaming_time_grows_with_bytes_and_with_launches(gpu, kind, size, factor) -> None:  # type: ignore[no-untyped-def]
    calibration = load_calibration(gpu)
    kernel = MemoryBound(name="k", kind=kind, rows=1, cols=1, bytes_moved=size)
    time_s = memory_bound_cost(kernel, gpu, calibration).time_s
    assert memory_bound_cost(replace(kernel, bytes_moved=size * factor), gpu, calibration).time_s >= time_s
    assert memory_bound_cost(replace(kernel, kernels=2), gpu, calibration).time_s >= time_s
    assert memory_bound_cost(kernel, gpu, calibration, eager=True).time_s >= time_s


def test_a_kernel_measured_from_the_host_takes_its_own_least_time_and_rate() -> None:
    gpu, calibration = load_gpu("mi210"), load_calibration(load_gpu("mi210"))
    rows = {name: rest for name, *rest in calibration.memory_bound.eager_kinds}
    _, least_s, start_s, share, sigma = rows["gelu"]
    small, large = (_gelu(size, DType.FP16) for size in (4096.0, 2.0**30))
    assert memory_bound_cost(small, gpu, calibration, eager=True).time_s == pytest.approx(least_s)
    cost = memory_bound_cost(large, gpu, calibration, eager=True)
    assert cost.time_s == pytest.approx(start_s + 2.0**30 / (share * gpu.hbm_bytes_per_s))
    assert cost.log_sigma == sigma
    assert memory_bound_cost(large, gpu, calibration).time_s < cost.time_s, "queued launches hide the call"
    wide = memory_bound_cost(_gelu(2.0**30, DType.FP32), gpu, calibration, eager=True)
    assert wide.log_sigma != sigma, "wider elements were measured apart"


def _gelu(size: float, dtype: DType) -> MemoryBound:
    return MemoryBound(
        name="x", kind=MemoryBoundKind.ACTIVATION, rows=1, cols=1, bytes_moved=size, kernel="gelu", dtype=dtype
    )


def test_an_all_reduce_moves_each_byte_twice_less_one_nth() -> None:
    """8 devices, 1 GB, 300 GB/s at 80%, loss 0.8/64, 14 hops of 1 us, 60% of the pipeline term, 5 us launch."""
    gpu = load_gpu("a100_sxm")
    reduce = Collective(name="ar", kind=CollectiveKind.ALL_REDUCE, group_size=8, message_bytes=1e9)
    network, latency = 1.75 * 1e9 / (0.8 * (1 - 0.8 / 64) * 3e11), 14e-6
    expected = network + latency + 2 * 0.6 * np.sqrt(network * latency) + 5e-6
    plain = replace(NO_FITS, collective=CollectiveCoefficients())
    assert collective_cost(reduce, gpu, plain).time_s == pytest.approx(expected)


@laws
@given(gpus, st.sampled_from(CollectiveKind), st.floats(1, 1e9), st.floats(1, 100), st.sampled_from([2, 4, 8]))
def test_collective_time_grows_with_bytes_and_never_beats_the_link(gpu, kind, size, factor, n) -> None:  # type: ignore[no-untyped-def]
    calibration = load_calibration(gpu)
    op = Collective(name="c", kind=kind, group_size=n, message_bytes=size)
    cost = collective_cost(op, gpu, calibration)
    assert collective_cost(replace(op, message_bytes=size * factor), gpu, calibration).time_s >= cost.time_s
    link = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    # In-switch reduction sends each byte once, the ring nearly twice.
    least = size / link * (0.5 if kind is CollectiveKind.ALL_TO_ALL else 0.45)
    assert cost.time_s >= least


def test_all_reduce_is_a_reduce_scatter_and_an_all_gather_within_reach() -> None:
    gpu = load_gpu("a100_sxm")
    calibration = load_calibration(gpu)
    whole, scatter, gather = (
        collective_cost(Collective(name="c", kind=kind, group_size=8, message_bytes=1e9), gpu, calibration).time_s
        for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
    )
    assert 0.6 <= whole / (scatter + gather) <= 1.1


def test_a_block_scaled_product_narrower_than_a_block_waits_for_the_host() -> None:
    gpu = load_gpu("h200_sxm")
    calibration = load_calibration(gpu)
    c = calibration.gemm[DType.FP8_BLOCK]
    for rows, waited_s in ((16, c.half_block_few_s), (32, c.half_block_s)):
        narrow, half, whole = (
            gemm_cost(Gemm(name="g", m=rows, n=n, k=4096, dtype=DType.FP8_BLOCK), gpu, calibration)
            for n in (32, 64, 128)
        )
        assert np.allclose([narrow.time_s, half.time_s], [c.sub_block_s, waited_s], rtol=1e-12)
        assert narrow.time_s > half.time_s > 5 * whole.time_s
        assert narrow.overhead_s + narrow.compute_s <= 1.01 * narrow.time_s


def test_what_only_vllm_was_timed_on_waits_in_no_model_and_in_no_other_framework() -> None:
    gpu = load_gpu("h100_sxm")
    known = load_calibration(gpu)
    thin = Gemm(name="g", m=1, n=4096, k=64, dtype=DType.FP8_BLOCK)
    alone, vllm = (gemm_cost(thin, gpu, each) for each in (known, known.with_kernels("vllm")))
    for each in (known.in_a_model(), known.with_kernels("sglang"), known.with_kernels("vllm").in_a_model()):
        cost, whole = (gemm_cost(replace(thin, k=k), gpu, each) for k in (64, 128))
        assert cost.time_s < 1.1 * whole.time_s < 0.1 * min(alone.time_s, vllm.time_s)
        assert cost.stated_source is Source.ASSUMED
        assert cost.high_s > 1.8 * cost.time_s


def test_a_fallback_waits_longer_for_grace_than_for_an_x86_host() -> None:
    grace = load_gpu("gb200")
    assert grace.host == "grace"
    assert load_gpu("b200_sxm").host == ""
    product, calibration = Gemm(name="g", m=16, n=32, k=4096, dtype=DType.FP8_BLOCK), load_calibration(grace)
    with_grace, with_x86 = (gemm_cost(product, each, calibration).time_s for each in (grace, replace(grace, host="")))
    assert with_grace == pytest.approx(1.76 * with_x86)


def test_narrow_weights_pay_where_few_rows_share_them_and_not_where_many_do() -> None:
    gpu = load_gpu("a100_sxm")
    calibration = load_calibration(gpu)

    def time(rows: int, dtype: DType) -> float:
        return float(gemm_cost(Gemm(name="g", m=rows, n=8192, k=8192, dtype=dtype), gpu, calibration).time_s)

    assert time(1, DType.INT4_WO) < time(1, DType.INT8_WO) < 0.65 * time(1, DType.BF16)
    assert time(8192, DType.INT4_WO) >= 0.9 * time(8192, DType.BF16)


def test_attention_on_a_tpu_fills_the_systolic_array_by_the_width_of_a_head() -> None:
    def per_flop(gpu: str, head_dim: int) -> float:
        heads = 8192 // head_dim
        op = Attention(
            name="attention",
            batch=4,
            num_heads=heads,
            num_kv_heads=heads,
            seq_q=8192,
            seq_kv=8192,
            head_dim=head_dim,
            v_head_dim=head_dim,
            causal=True,
            dtype=DType.BF16,
        )
        device = load_gpu(gpu)
        peak = device.peak_flops_per_s[DType.BF16]
        return float(attention_cost(op, device, load_calibration(device)).time_s) * peak / op.flops

    assert per_flop("tpu_v7", 128) > 1.8 * per_flop("tpu_v5e", 128)  # half of a 256-wide array
    assert per_flop("tpu_v7", 128) < 8  # a step's floor, measured on GPUs of 100 SMs, made it 14
