"""Every term of fused attention worked out by hand, with round coefficients; tools/mutants.py changes them one operator
at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import hypot, log

import numpy as np
import pytest

from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.correction.coefficients import AttentionCoefficients
from sartor.cost.cost import Z80, Cost
from sartor.cost.gpu import attention
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention, DType, MemoryBound, MemoryBoundKind, Pass

PEAK = 1e15
GPU = replace(load_gpu("h100"), num_sms=100, hbm_bytes_per_s=1e12)
ARRAYS = replace(GPU, matrix_tile=128)
C = AttentionCoefficients(
    tile_q=128,
    efficiency=((64, 0.4), (128, 0.6), (256, 0.5)),
    head_step=32,
    partial_gradients=True,
    backward=0.5,
    step_s=1e-7,
    block_s=1e-6,
    hbm_share=0.5,
    overlap=0.25,
    launch_s=5e-6,
    log_sigma=0.06,
    decode_tile_q=16,
    decode_block_s=2e-6,
    decode_step_s=1e-7,
    decode_hbm_share=0.8,
    decode_overlap=0.3,
    decode_launch_s=7e-6,
    decode_log_sigma=0.12,
)
STEP_S = 2 * (96 + 128) * 128 * 128 * 100 / (1e15 * 0.5)
"""Heads of 80 and 112 run as 96 and 128, at the share of 96: half of the way from 0.4 to 0.6."""


def prompt(**changes: object) -> Attention:
    sizes = {"batch": 100, "num_heads": 5, "num_kv_heads": 5, "seq_q": 1000, "seq_kv": 1000}
    return Attention(name="attention", head_dim=80, v_head_dim=112, **{**sizes, **changes})  # type: ignore[arg-type]


def backward(op: Attention) -> Attention:
    return replace(op, pass_=Pass.BACKWARD)


@pytest.mark.parametrize(
    ("op", "gpu", "c", "peak", "seconds"),
    [
        (prompt(), GPU, C, PEAK, STEP_S),
        (backward(prompt()), GPU, C, PEAK, 2 * (3 * 96 + 2 * 128) / 0.5 * 128 * 128 * 100 / (1e15 * 0.5)),
        (prompt(latent=True), GPU, C, PEAK, STEP_S * 0.5 / 0.6),
        (prompt(), GPU, C, 1e18, 1e-7),
        (prompt(), ARRAYS, C, 1e18, STEP_S / 1000),
        (prompt(), ARRAYS, replace(C, efficiency=((64, 0.8),)), PEAK, STEP_S * 0.5 / 0.8 * 0.8 / (0.85 * 0.75)),
    ],
)
def test_a_step_is_two_products_forward_and_five_backward(
    op: Attention, gpu: object, c: AttentionCoefficients, peak: float, seconds: float
) -> None:
    assert float(attention._step_s(op, gpu, c, peak, 128)) == pytest.approx(seconds, rel=1e-12)  # type: ignore[arg-type]


PAIRS = 1000 * 1001 / 2
MEAN = PAIRS / (1000 * 128) + 0.5 + 0.5
"""Steps of a mean block of a causal prompt of 1,000: the last of its 8 tiles walks 8."""


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        (prompt(), 5 * 100 * 8 / 100 * MEAN * STEP_S + 40e-6),
        (prompt(batch=101), 40.4 * MEAN * STEP_S + 41e-6),
        (prompt(batch=2), 8 * STEP_S + 1e-6),
        (prompt(batch=20, seq_q=100, seq_kv=100), 1.0 * STEP_S + 1e-6),
        (prompt(causal=False), 40 * 8 * STEP_S + 40e-6),
        (prompt(causal=False, seq_q=900, seq_kv=900), 40 * (900 / 128 + 0.5) * STEP_S + 40e-6),
        (prompt(window=200), 40 * ((200 * 201 / 2 + 800 * 200) / 128_000 + 1) * STEP_S + 40e-6),
        (prompt(window=200, batch=2), 3 * STEP_S + 1e-6),
        (prompt(window=990, batch=2), 8 * STEP_S + 1e-6),
    ],
)
def test_blocks_of_a_prompt_walk_what_their_mask_lets_through(op: Attention, seconds: float) -> None:
    compute, _, launch, overlap = attention._prefill(op, GPU, C, PEAK)
    assert float(compute) == pytest.approx(seconds, rel=1e-12)
    assert (launch, overlap) == (5e-6, 0.25)


QUERIES = 3.0 * 1000 * 80 * 4
"""Bytes of dQ of one head: set to zero, written, read, in fp32."""
SHARED = 2.0 * 1000 * (80 + 112) * 2


@pytest.mark.parametrize(
    ("op", "moved"),
    [
        (prompt(), 2 * 100 * 2 * 5 * 1000 * (80 + 112)),
        (backward(prompt()), 2 * 2 * 100 * 2 * 5 * 1000 * (80 + 112) + 500 * QUERIES),
        (backward(prompt(num_kv_heads=1)), 2 * 100 * 2 * 6 * 1000 * (80 + 112) + 500 * (QUERIES + SHARED)),
        (backward(prompt(num_kv_heads=1, latent=True)), 2 * 100 * 2 * 1000 * (5 * 192 + 80) + 500 * QUERIES),
    ],
)
def test_a_prompt_reads_and_writes_once_and_a_backward_pass_adds_up_gradients(op: Attention, moved: float) -> None:
    assert float(attention._prefill(op, GPU, C, PEAK)[1]) == pytest.approx(moved / (0.5 * 1e12), rel=1e-12)
    if not op.pass_.computes_outputs:
        plain = attention._prefill(op, GPU, replace(C, partial_gradients=False), PEAK)[1]
        assert float(plain) == pytest.approx(float(op.bytes_moved) / (0.5 * 1e12), rel=1e-12)


def tokens(**changes: object) -> Attention:
    return prompt(**{"batch": 25, "num_heads": 12, "num_kv_heads": 2, "seq_q": 2, **changes})


ROW_S = STEP_S * 16 / 128
"""A step of a block of 16 query rows."""


@pytest.mark.parametrize(
    ("op", "gpu", "tile_q", "seconds", "steps"),
    [
        (tokens(), GPU, 16, 0.5 * 8 * ROW_S + 2e-6, 8),
        (tokens(batch=250), GPU, 16, 5 * 8 * ROW_S + 5 * 2e-6, 8),
        (tokens(num_heads=17), GPU, 16, 2 * 0.5 * 8 * ROW_S + 2e-6, 8),
        (tokens(num_heads=17), GPU, 0, 0.5 * 8 * STEP_S + 2e-6, 8),
        (tokens(seq_kv=8192), GPU, 16, 0.5 * 64 * ROW_S + 2e-6, 32),
        (tokens(window=300), GPU, 16, 0.5 * 3 * ROW_S + 2e-6, 3),
        (tokens(window=3000), GPU, 16, 0.5 * 8 * ROW_S + 2e-6, 8),
        (tokens(batch=250), ARRAYS, 16, 5 * 8 * ROW_S + 2e-6, 8),
    ],
)
def test_keys_of_a_few_tokens_are_split_over_idle_sms(
    op: Attention, gpu: object, tile_q: int, seconds: float, steps: int
) -> None:
    compute, memory, launch, overlap = attention._split(op, gpu, C, PEAK, tile_q)  # type: ignore[arg-type]
    assert float(compute) == pytest.approx(seconds, rel=1e-12)
    reach = 300 if op.window == 300 else op.seq_kv
    moved = op.batch * (2 * reach * 192 * 2 + op.num_heads * 2 * 192 * 2)
    assert float(memory) == pytest.approx(float(moved) / (0.8 * 1e12), rel=1e-12)
    assert float(launch) == pytest.approx(7e-6 + steps * 1e-7, rel=1e-12)
    assert overlap == 0.3
    if tile_q:
        for ours, theirs in zip(attention._decode(op, gpu, C, PEAK), (compute, memory, launch, overlap), strict=True):  # type: ignore[arg-type]
            assert float(ours) == float(theirs)


def plain_calibration(c: AttentionCoefficients = C) -> Calibration:
    """Of the device, without what was learned of its rows."""
    known = load_calibration(load_gpu("h100"))
    provenance = {name: {} for name in known.provenance}
    return replace(known, attention=c, attention_families={}, provenance=provenance, own_rows={})


@pytest.mark.parametrize("kernel", [attention._prefill, attention._decode])
@pytest.mark.parametrize("op", [prompt(), backward(prompt()), tokens()])
def test_the_lesser_of_compute_and_memory_hides_but_for_its_overlap(kernel: attention.Kernel, op: Attention) -> None:
    peak = GPU.peak_flops_per_s[DType.BF16]
    compute, memory, launch, overlap = (float(term) for term in kernel(op, GPU, C, peak))
    cost = attention._formula_cost(op, kernel, GPU, plain_calibration(), Clock.BOOST)
    more, less = max(compute, memory), min(compute, memory)
    assert cost.time_s == pytest.approx(more + overlap * less + launch, rel=1e-12)
    assert (cost.compute_s, cost.memory_s, cost.overhead_s) == pytest.approx((compute, memory, launch), rel=1e-12)
    sigma = 0.06 if kernel is attention._prefill else 0.12
    guessed = 0.0 if op.pass_.computes_outputs else 0.08
    assert cost.log_sigma == pytest.approx(hypot(sigma, guessed), rel=1e-12)
    assert bool(cost.details) == (guessed > sigma)


def test_a_backward_pass_as_uncertain_as_the_guess_is_not_called_assumed() -> None:
    c = replace(C, log_sigma=attention.UNFITTED_BACKWARD_SIGMA)
    calibration = plain_calibration(c)
    cost = attention._formula_cost(backward(prompt()), attention._prefill, GPU, calibration, Clock.BOOST)
    assert not cost.details


@pytest.mark.parametrize("new", [8, 9])
def test_up_to_eight_tokens_take_the_kernel_of_decoding(new: int) -> None:
    op, calibration = tokens(seq_q=new), plain_calibration()
    kernel = attention._decode if new == 8 else attention._prefill
    found = attention._fused_cost(op, GPU, calibration, Clock.BOOST, False)
    assert found.time_s == attention._formula_cost(op, kernel, GPU, calibration, Clock.BOOST).time_s
    behind = attention._fused_cost(backward(op), GPU, calibration, Clock.BOOST, False)
    assert (
        behind.time_s == attention._formula_cost(backward(op), attention._prefill, GPU, calibration, Clock.BOOST).time_s
    )


@pytest.mark.parametrize("wide", [90, 88])
@pytest.mark.parametrize("pass_", [Pass.FORWARD, Pass.BACKWARD])
def test_heads_of_an_odd_width_are_copied_around_the_kernel(
    monkeypatch: pytest.MonkeyPatch, pass_: Pass, wide: int
) -> None:
    op = replace(prompt(batch=2, num_heads=6, num_kv_heads=3), head_dim=wide, v_head_dim=wide, pass_=pass_)
    cost = Cost(time_s=1e-3, compute_s=8e-4, memory_s=1e-4, overhead_s=1e-4, log_sigma=0.1)
    copied: list[MemoryBound] = []
    monkeypatch.setattr(
        attention, "memory_bound_cost", lambda of, *rest: copied.append(of) or memory_bound_cost(of, *rest)
    )
    found = attention._with_copies(op, cost, GPU, plain_calibration())
    if wide == 88:
        assert found is cost
        return
    queries, keys = 6 * 1000, 3 * 1000
    padded, sliced, kernels = queries + 2 * keys, queries, 7
    if pass_ is Pass.BACKWARD:
        padded, sliced, kernels = sliced, padded, 5
    copies = MemoryBound(
        name="attention",
        kind=MemoryBoundKind.CAST,
        rows=2 * queries,
        cols=96,
        bytes_moved=2 * 2 * (padded * (90 + 2 * 96) + sliced * 2 * 90),
        kernels=kernels,
    )
    assert copied == [copies]
    extra = memory_bound_cost(copies, GPU, plain_calibration())
    assert found.time_s == pytest.approx(1e-3 + extra.time_s, rel=1e-12)
    assert found.memory_s == pytest.approx(1e-4 + extra.memory_s, rel=1e-12)
    assert found.overhead_s == pytest.approx(1e-4 + extra.overhead_s, rel=1e-12)
    both = hypot(0.15 * 1e-3, extra.log_sigma * extra.time_s) / (1e-3 + extra.time_s)
    assert found.log_sigma == pytest.approx(both, rel=1e-12)
    assert found.stated_source.value == "assumed"
    for other in (replace(op, dtype=DType.FP8), replace(op, seq_q=8, seq_kv=1000)):
        assert attention._with_copies(other, cost, GPU, plain_calibration()) is cost
    assert attention._with_copies(op, cost, ARRAYS, plain_calibration()) is cost
    assert attention._with_copies(replace(op, seq_q=9), cost, GPU, plain_calibration()).time_s > 1e-3


def learned(by_tokens: dict[int, float]) -> Callable[..., Cost]:
    """What rows have told of kernels: a factor by the number of new tokens."""

    def corrected(op: Attention, cost: Cost, *_: object, **__: object) -> Cost:
        factor = by_tokens.get(int(np.max(op.seq_q)), 1.0)
        return replace(cost, time_s=cost.time_s * factor, details={"residual": factor})

    return corrected


@pytest.mark.parametrize(
    ("new", "batch", "whole", "single", "fastest"),
    [
        (256, 1, 2.0, 1.25, "decode"),
        (256, 1, 1.5, 3.0, "split"),
        (256, 400, 0.5, 0.6, "walk"),
        (4, 4, 2.0, 1.25, "decode"),
        (9, 4, 2.0, 1.25, "decode"),
    ],
)
def test_tokens_behind_a_cache_take_the_fastest_of_three_kernels(
    monkeypatch: pytest.MonkeyPatch, new: int, batch: int, whole: float, single: float, fastest: str
) -> None:
    monkeypatch.setattr(attention, "correct_attention", learned({4096: whole, 256: 1.5, 1: single}))
    calibration = plain_calibration()
    settings = (GPU, calibration, Clock.BOOST)
    op = tokens(batch=batch, seq_q=new, seq_kv=4096)

    def formula(of: Attention, kernel: attention.Kernel) -> Cost:
        return attention._formula_cost(of, kernel, *settings)

    alone = replace(op, seq_kv=new)
    of_new = 1.5 if new == 256 else 1.0
    walked_s, short_s = formula(op, attention._prefill).time_s, formula(alone, attention._prefill).time_s
    walk_s = short_s * of_new + (walked_s - short_s) * whole
    decode, split = formula(op, attention._decode), formula(op, attention._split)
    times = {
        "walk": walk_s,
        "decode": max(float(decode.time_s) * single, float(decode.compute_s)),
        "split": max(float(split.time_s) * whole, float(split.compute_s)),
    }
    single_s = formula(replace(op, seq_q=1), attention._decode).time_s * single
    alone_s = attention._fused_cost(alone, *settings, False).time_s
    found = attention._behind_cache(op, *settings, False)
    assert min(times, key=lambda name: times[name]) == fastest
    time_s = max(float(times[fastest]), float(single_s), float(alone_s))
    assert found.time_s == pytest.approx(time_s, rel=1e-12)
    apart = log(max(float(walk_s) / time_s, 1.0)) / Z80 if new > 8 else 0.0
    assert found.log_sigma == pytest.approx(hypot(0.12, apart), rel=1e-12)
    assert found.details["assumed"] == (new > 8)


def test_only_new_tokens_behind_a_cache_are_compared_between_kernels() -> None:
    settings = (GPU, plain_calibration(), Clock.BOOST, False)
    for op in (prompt(), tokens(seq_q=1), backward(tokens(seq_q=256))):
        assert attention._cost(op, *settings).time_s == attention._fused_cost(op, *settings).time_s
    op = tokens(seq_q=2, batch=1, seq_kv=4096)
    assert attention._cost(op, *settings).time_s == attention._behind_cache(op, *settings).time_s


def test_a_width_without_rows_costs_at_most_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (GPU, plain_calibration(), Clock.BOOST, False)
    slow = replace(C, efficiency=((96, 0.1), (128, 0.6)))
    settings = (GPU, plain_calibration(slow), Clock.BOOST, False)
    op = replace(prompt(), v_head_dim=80)
    wider = replace(op, head_dim=128, v_head_dim=128)
    monkeypatch.setattr(attention, "next_head_dim", lambda of, _: np.maximum(of.head_dim, 128))
    assert attention._cost(op, *settings).time_s == attention._cost(wider, *settings).time_s
    monkeypatch.setattr(attention, "next_head_dim", lambda of, _: np.asarray(of.head_dim))
    assert attention._cost(op, *settings).time_s > attention._cost(wider, *settings).time_s
