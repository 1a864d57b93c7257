"""Continuous batching: laws of the steady state, and what an engine runs for a pass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.model.workload import ATTENTION_ROLES, Phase, Workload
from sartor.model.zoo import load_model
from sartor.operators import Collective, DType, Gemm, GroupedGemm, MemoryBound, MemoryBoundKind, Part, Role
from sartor.step.serving.batching import (
    APART_LOG_SIGMA,
    FIRST_TOKEN_S,
    FIRST_TOKEN_STEPS,
    Steady,
    Waits,
    calibration_of,
    decode_steps,
    disaggregated,
    prefilling,
    prompt_passes,
    steady_state,
)
from sartor.step.serving.engines import ENGINES
from sartor.step.serving.served import (
    Load,
    Recording,
    Server,
    cache_bytes,
    capacity,
    served_graph,
    server_memory,
    would_fit,
)

LLAMA = Server(shape=load_model("llama-3.1-8b"), gpu=load_gpu("h100_sxm"), dtype=DType.FP8)
MIXTURE = Server(shape=load_model("qwen3-30b-a3b"), gpu=load_gpu("h100_sxm"), dtype=DType.BF16, tp=4)
LOAD = Load(concurrency=np.array([1, 8, 64, 512]), input_len=1024, output_len=512)


def test_more_sequences_in_flight_wait_longer_for_every_token_and_are_given_more_in_all() -> None:
    found = steady_state(LLAMA, LOAD)
    for name in ("tpot_s", "ttft_s", "output_tokens_per_s"):
        assert np.all(np.diff(getattr(found, name)) > 0), name


def test_one_sequence_waits_for_its_own_steps_alone() -> None:
    found = steady_state(LLAMA, replace(LOAD, concurrency=1))
    assert found.tpot_s == pytest.approx(float(found.step.time_s))
    assert found.waiting == 0


@settings(max_examples=20)
@given(concurrency=st.integers(1, 4096), answer=st.integers(8, 4096), prompt=st.integers(1, 8192))
def test_littles_law_and_the_memory_hold(concurrency: int, answer: int, prompt: int) -> None:
    found = steady_state(LLAMA, Load(concurrency=concurrency, input_len=prompt, output_len=answer))
    request_s = found.ttft_s + (answer - 1) * found.tpot_s
    assert found.output_tokens_per_s * request_s == pytest.approx(concurrency * answer)
    assert 1 <= found.running <= capacity(LLAMA, prompt + answer // 2)
    assert found.running + found.waiting == concurrency


def test_many_loads_at_once_are_each_alone() -> None:
    together = steady_state(LLAMA, LOAD)
    for i, asked in enumerate(np.asarray(LOAD.concurrency)):
        alone = steady_state(LLAMA, replace(LOAD, concurrency=int(asked)))
        assert alone.tpot_s == pytest.approx(together.tpot_s[i], rel=1e-12)
        assert alone.ttft_s == pytest.approx(together.ttft_s[i], rel=1e-12)


def test_a_sequence_that_finds_no_memory_waits_for_one_to_end() -> None:
    small = replace(LLAMA, gpu=replace(LLAMA.gpu, hbm_bytes=18e9))
    held = int(capacity(small, 1024 + 256))
    full, over = (steady_state(small, replace(LOAD, concurrency=n)) for n in (held, held + 8))
    assert over.tpot_s == full.tpot_s
    assert over.ttft_s > full.ttft_s + 7 / held * 512 * full.step_s


@pytest.mark.parametrize("pools", [False, True])
def test_a_long_queue_is_as_certain_as_the_throughput_and_a_first_token_that_does_not_wait_as_measured(pools) -> None:
    """Nobody waits at 8 in flight; of 100,000 all but a thousand do, and their wait is C over the throughput."""
    load = replace(LOAD, concurrency=np.array([8, 2000, 5000, 100_000, 1_000_000]))
    found = disaggregated(LLAMA, 8, LLAMA, 1, load) if pools else steady_state(LLAMA, load)
    assert found.waiting[0] < 1e-6 < found.waiting[1]
    own = APART_LOG_SIGMA if pools else LLAMA.engine.first_token_log_sigma
    assert found.ttft_log_sigma[0] == pytest.approx(own, rel=1e-3)
    assert np.all(np.diff(found.ttft_log_sigma[2:]) < 0)
    assert float(found.step.log_sigma[-1]) < found.ttft_log_sigma[-1] < 0.2


def test_a_wait_that_may_not_be_has_a_wide_interval_and_little_weight() -> None:
    held = int(capacity(LLAMA, 1024 + 256))
    load = replace(LOAD, concurrency=np.array([held, held + 1, int(1.1 * held)]))
    sigma = np.asarray(steady_state(LLAMA, load).ttft_log_sigma)
    assert sigma[0] == pytest.approx(LLAMA.engine.first_token_log_sigma)
    assert sigma[1] < 2 * sigma[0] < 2 * sigma[2]


def test_where_weights_do_not_fit_times_are_infinite_and_a_wider_split_is_named() -> None:
    small = replace(LLAMA, gpu=replace(LLAMA.gpu, hbm_bytes=9e9))
    for answer in (512, 1):
        found = steady_state(small, replace(LOAD, concurrency=1, output_len=answer))
        assert (found.tpot_s, found.ttft_s, found.output_tokens_per_s) == (np.inf, np.inf, 0)
    assert would_fit(small, 1280) == {"tp": 2}


def test_a_benchmark_that_begins_all_at_once_sees_later_first_tokens() -> None:
    first, never = (steady_state(LLAMA, LOAD, waves=n).ttft_s for n in (10, np.inf))
    assert first[0] == never[0]
    assert np.all(first[1:] > never[1:])


def test_a_request_waits_for_half_of_the_steps_between_looks_for_it() -> None:
    load = Load(concurrency=np.array([1, 8, 64]), input_len=1024, output_len=512)
    at_once, late = (steady_state(LLAMA, load, receive_every=n) for n in (1, 31))
    gap_s = at_once.step_s + (np.asarray(load.concurrency) - 1) / 512 * np.asarray(at_once.each_prompt_s)
    assert np.asarray(late.ttft_s) == pytest.approx(np.asarray(at_once.ttft_s) + 15 * gap_s)
    assert np.all(late.step_s == at_once.step_s)
    assert np.all(np.asarray(late.tpot_s) <= at_once.tpot_s)


def test_prompts_on_servers_of_their_own_no_longer_stand_between_two_tokens() -> None:
    together = steady_state(LLAMA, LOAD)
    apart = disaggregated(LLAMA, 4, LLAMA, 1, LOAD)
    assert np.all(apart.tpot_s <= together.tpot_s)


def test_pools_of_more_devices_than_one_domain_hand_requests_over_the_network() -> None:
    """16 devices of nodes of 8: a cache of 8,192 tokens crosses 50 GB/s instead of 450."""
    load = Load(concurrency=1, input_len=8192, output_len=64)
    near, far = (disaggregated(LLAMA, n, LLAMA, 1, load) for n in (7, 8))
    moved = cache_bytes(LLAMA, 8192, 0)
    assert far.ttft_s - near.ttft_s == pytest.approx(moved / 50e9 - moved / 450e9)


def test_a_server_of_several_nodes_pays_for_the_network_between_them() -> None:
    sixteen = Server(shape=load_model("llama-3.1-70b"), gpu=load_gpu("h100_sxm"), dtype=DType.BF16, tp=16)
    joined = replace(sixteen, gpu=replace(sixteen.gpu, link_domain=16))
    load = Load(concurrency=8, input_len=1024, output_len=64)
    assert steady_state(sixteen, load).step_s > 1.2 * steady_state(joined, load).step_s


def test_a_pool_of_prompts_that_is_too_small_sets_the_pace() -> None:
    """Prompts of 8,192 tokens and answers of 16: one server of prompts gives all there is."""
    load = Load(concurrency=256, input_len=8192, output_len=16)
    one, two = (disaggregated(LLAMA, n, LLAMA, 1, load).output_tokens_per_s for n in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.05)


def test_the_published_example_of_a_prompt_as_long_as_a_request() -> None:
    """One pool of prompts, 2.66 s each: with two requests in flight no more than two passes are waited for."""
    server = Server(shape=load_model("llama-3.1-70b"), gpu=load_gpu("h100_sxm"), dtype=DType.BF16, tp=4)
    load = Load(concurrency=np.array([1, 2, 4, 8, 12]), input_len=32768, output_len=128)
    apart = disaggregated(server, 1, server, 1, load)
    _queueing_laws(apart, load, servers=1)
    assert apart.ttft_s[0] < float(apart.prompt.time_s) + 0.5
    assert apart.ttft_s[1] < 2 * float(apart.prompt.time_s) + 0.5
    short = replace(load, output_len=1)
    together = steady_state(server, short)
    _queueing_laws(together, short, servers=1)
    assert together.output_tokens_per_s[-1] <= 1 / float(together.prompt.time_s)


LOADS = np.array([1, 2, 3, 4, 7, 8, 9, 12, 16, 17, 33, 64, 129, 256, 1000, 4096])
MIXTURES = replace(MIXTURE, tp=1, copies=4, ep=4)
SMALL = replace(LLAMA, gpu=replace(LLAMA.gpu, hbm_bytes=18e9))


@settings(max_examples=20, deadline=None)
@given(
    server=st.sampled_from((LLAMA, MIXTURE, MIXTURES, SMALL)),
    prompt=st.integers(1, 32768),
    answer=st.integers(1, 2048),
    waves=st.sampled_from((10, np.inf)),
    late=st.sampled_from((1, 30)),
)
def test_laws_of_queues_hold_on_one_server(server: Server, prompt: int, answer: int, waves: float, late: int) -> None:
    load = Load(concurrency=LOADS, input_len=prompt, output_len=answer)
    found = steady_state(server, load, waves=waves, receive_every=late)
    _queueing_laws(found, load, servers=server.copies)
    if np.isfinite(found.ttft_s[0]):
        steps = FIRST_TOKEN_STEPS + (late - 1) / 2
        assert found.ttft_s[0] == pytest.approx(float(found.each_prompt_s[0] + steps * found.step_s[0] + FIRST_TOKEN_S))


@settings(max_examples=20, deadline=None)
@given(
    prefill=st.sampled_from((LLAMA, replace(LLAMA, tp=2))),
    decode=st.sampled_from((LLAMA, SMALL)),
    workers=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    prompt=st.integers(1, 32768),
    answer=st.integers(1, 2048),
    waves=st.sampled_from((10, np.inf)),
)
def test_laws_of_queues_hold_on_pools_apart(
    prefill: Server, decode: Server, workers: tuple[int, int], prompt: int, answer: int, waves: float
) -> None:
    load = Load(concurrency=LOADS, input_len=prompt, output_len=answer)
    found = disaggregated(prefill, workers[0], decode, workers[1], load, waves=waves)
    _queueing_laws(found, load, servers=workers[0])
    assert np.all(found.tpot_s == found.step_s)  # no prompt stands between two tokens


def _queueing_laws(found: Steady, load: Load, servers: int) -> None:
    """Little's law, what ``servers`` of prompts and the slots can do, and more in flight are served no less in all and
    wait no less each, for no more than all prompts once and the steps between. Where more prompts share a pass, each
    takes less, and the queue's approximation may fall by up to 2% (0.9% found)."""
    if not np.all(np.isfinite(found.ttft_s)):
        return
    flight, answer, near = np.asarray(load.concurrency), int(load.output_len), 1 + 1e-6
    per_s = np.asarray(found.output_tokens_per_s) / answer
    request_s = np.asarray(found.ttft_s) + (answer - 1) * np.asarray(found.tpot_s)
    assert per_s * request_s == pytest.approx(flight)
    assert np.all(per_s * found.each_prompt_s <= servers * near)
    assert np.all(per_s * (answer - 1) * found.tpot_s <= np.asarray(found.running) * near)
    assert np.all(np.asarray(found.running) + found.waiting <= flight * near)
    assert np.all(per_s[1:] >= per_s[:-1] / near)
    shared = np.diff(np.broadcast_to(found.each_prompt_s, flight.shape)) < 0
    assert np.all(np.asarray(found.ttft_s[1:]) >= np.asarray(found.ttft_s[:-1]) / np.where(shared, 1.02, near))
    kept_s = np.maximum(flight / np.asarray(found.running) - 1, 0) * (answer + 30) * np.asarray(found.tpot_s)
    passes_s = flight * np.asarray(found.prompt.time_s)
    assert np.all(found.ttft_s <= (passes_s + kept_s + 30 * np.asarray(found.step_s) + 0.5) * near)


LATENT = Server(shape=load_model("deepseek-v3"), gpu=load_gpu("h200_sxm"), dtype=DType.FP8, tp=8)
DENSE = replace(LLAMA, shape=load_model("llama-3.1-70b"), tp=4)


@pytest.mark.parametrize(("prompt", "answer"), [(16, 16), (16, 64), (64, 64), (128, 128), (256, 64)])
@pytest.mark.parametrize("server", [LLAMA, DENSE, MIXTURE, LATENT])
def test_short_prompts_that_arrive_in_one_step_share_a_pass(server: Server, prompt: int, answer: int) -> None:
    """Prompts take at most one more pass per step, no longer than a step that decodes as many rows more. So two servers
    apart do about twice what one does, and more only as the prompts of many steps read the weights once."""
    flight = np.array([16, 64, 256])
    load = Load(concurrency=flight, input_len=prompt, output_len=answer)
    found = steady_state(server, load)
    rows = flight * (1 + prompt / answer)
    step_s = decode_steps(server, load, float(rows.max()), calibration_of(server)).at(rows)
    assert np.all(found.tpot_s <= 2 * step_s)
    apart = disaggregated(server, 1, server, 1, load)
    assert np.all(apart.output_tokens_per_s <= 2.5 * np.asarray(found.output_tokens_per_s))


def test_a_prompt_that_nothing_arrives_with_has_a_pass_alone_and_many_share_full_ones() -> None:
    passes = prompt_passes(DENSE, Load(concurrency=np.ones(6, int), input_len=16, output_len=16), calibration_of(DENSE))
    shared = passes.shared_s(np.array([0, 1e-9, 1, 16, 512, 4096]))
    assert shared[:2] == pytest.approx(float(passes.alone.time_s))
    assert np.all(np.diff(shared) <= 0)
    assert shared[-2:] == pytest.approx(passes.full_s[-2:])
    rows = prefilling(DENSE, 16, 16, calibration_of(DENSE)).time_s
    assert 16 * shared[3] == pytest.approx(rows, rel=0.01)


@pytest.mark.parametrize("dtype", [DType.NVFP4, DType.MXFP4, DType.INT4_WO])
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b", "llama-3.1-70b"])
def test_memory_holds_the_weights_that_a_pass_reads(name: str, dtype: DType) -> None:
    """4-bit mixtures keep attention in 16 bits in the time and in the memory; without tables, which are looked up."""
    server = Server(shape=load_model(name), gpu=load_gpu("gb200"), dtype=dtype)
    graph = served_graph(server, server.workload(Phase.PREFILL, 8192, 2048))
    linears = [op for op in graph.operators if isinstance(op, Gemm) and op.part is Part.LAYER]
    attention = [op for op in linears if op.role in ATTENTION_ROLES]
    assert {op.dtype for op in attention} == {dtype if name == "llama-3.1-70b" else DType.BF16}
    read = sum(float(op.batch * op.n * op.k * op.count) * op.dtype.bytes for op in linears)
    experts = [op for op in graph.operators if isinstance(op, GroupedGemm)]
    read += sum(float(op.groups * op.n * op.k * op.count) * op.dtype.bytes for op in experts)
    counts = count_params(server.shape)
    tables = 2.0 * float(counts.embedding) + (0 if server.shape.tied_embeddings else 2.0 * float(counts.lm_head))
    assert server_memory(server).param_bytes == pytest.approx(read + tables, rel=0.01)


def test_behind_an_encoder_the_decoder_keeps_the_prompt_for_cross_attention_and_its_own_tokens() -> None:
    """Published sizes of T5 v1.1 XXL: 24 decoder layers, 64 heads of 64: 393,216 bytes a token and attention."""
    server = Server(shape=load_model("t5-v1.1-xxl"), gpu=load_gpu("h100_sxm"), dtype=DType.BF16)
    assert cache_bytes(server, 1024, 512) == (1024 + 512) * 393_216
    steps = steady_state(
        server, Load(concurrency=16, input_len=np.array([256, 1024, 256]), output_len=np.array([512, 512, 64]))
    )
    assert steps.step_s[1] > steps.step_s[0] > steps.step_s[2]
    passes = prefilling(server, np.array([512, 1024]), 4, calibration_of(server))
    encoder = sum(np.asarray(op.flops) * op.count for op in passes.graph.operators)
    linear = (
        24 * (4 * 4096 * 4096 + 3 * 4096 * 10240) + 24 * 2 * 4096 * 4096
    )  # the encoder, and keys of cross-attention
    assert np.all(encoder > 2 * linear * 4 * np.array([512, 1024]))
    assert np.all(encoder < 2.2 * linear * 4 * np.array([512, 1024]))


def test_experts_whole_or_split_do_the_same_work() -> None:
    """All devices of a group see every token: an eighth of the experts whole, or an eighth of each."""
    workload = Workload(shape=MIXTURE.shape, phase=Phase.DECODE, microbatch_size=64, context_len=512)
    flops = {
        ep: sum(op.flops * op.count for op in served_graph(replace(MIXTURE, ep=ep), workload).operators
                if isinstance(op, GroupedGemm))
        for ep in (1, 2, 4)
    }  # fmt: skip
    assert flops[1] == flops[2] == flops[4]


def test_attention_apart_gathers_tokens_before_the_experts_and_heads_split_sum_them_after() -> None:
    workload = Workload(shape=MIXTURE.shape, phase=Phase.DECODE, microbatch_size=64, context_len=512)
    apart = served_graph(replace(MIXTURE, tp=1, copies=4, ep=4), workload)
    roles = {op.role for op in apart.operators if isinstance(op, Collective)}
    assert roles == {Role.DISPATCH, Role.COMBINE}
    split = served_graph(MIXTURE, workload)
    assert {op.role for op in split.operators if isinstance(op, Collective)} >= {Role.OUTPUT_REDUCE}


def test_an_engine_fuses_casts_and_residual_sums_and_reduces_shared_experts_once() -> None:
    server = Server(shape=load_model("deepseek-v3"), gpu=load_gpu("h200_sxm"), dtype=DType.FP8_BLOCK, tp=8)
    graph = served_graph(server, Workload(shape=server.shape, phase=Phase.DECODE, dtype=server.dtype))
    kinds = [op.kind for op in graph.operators if isinstance(op, MemoryBound) and op.part is Part.LAYER]
    assert MemoryBoundKind.CAST not in kinds
    assert MemoryBoundKind.RESIDUAL not in kinds
    reduced = [op for op in graph.operators if op.role is Role.OUTPUT_REDUCE and op.part is Part.LAYER]
    assert sum(int(op.count) for op in reduced) == 2 * 61
    assert not any(op.role is Role.KV_DOWN for op in graph.operators)


@pytest.mark.parametrize(("gpu", "kernels", "cache"), [
    ("h100_sxm", "vllm", DType.BF16), ("h100_sxm", "trtllm", DType.FP8), ("b200_sxm", "vllm", DType.BF16),
])  # fmt: skip
def test_an_8_bit_cache_is_the_engines_choice_or_stated(gpu: str, kernels: str, cache: DType) -> None:
    server = replace(LLAMA, gpu=load_gpu(gpu), engine=ENGINES[kernels])
    assert server.cache is cache
    assert replace(server, dtype=DType.BF16).cache is DType.BF16
    assert replace(server, engine=replace(server.engine, kv_dtype=DType.FP8)).cache is DType.FP8


def test_prompts_of_many_lengths_are_each_alone_where_attention_is_cut_into_chunks() -> None:
    """Below a chunk of 8,192 tokens, of whole chunks, and with a rest: one without whole chunks has none counted."""
    scout = Server(shape=load_model("llama-4-scout"), gpu=load_gpu("h200"), dtype=DType.FP8, tp=4)
    lengths = (1024, 16384, 20000)
    together = steady_state(scout, Load(concurrency=8, input_len=np.array(lengths), output_len=128))
    alone = [steady_state(scout, Load(concurrency=8, input_len=n, output_len=128)).ttft_s for n in lengths]
    assert list(np.asarray(together.ttft_s)) == pytest.approx(alone)


def waits_in_line(time_s: list[float], service_s: list[float]) -> list[float]:
    """Of every request before one server, first come first served."""
    free_s, waits = -math.inf, []
    for arrived_s, takes_s in zip(time_s, service_s, strict=True):
        begins_s = max(arrived_s, free_s)
        waits.append(begins_s - arrived_s)
        free_s = begins_s + takes_s
    return waits


@pytest.mark.parametrize("bursts", [False, True])
@pytest.mark.parametrize("every", [1, 3, 8])
def test_recorded_requests_wait_as_in_a_plain_queue(bursts: bool, every: int) -> None:
    draw = np.random.default_rng(every)
    size = draw.lognormal(0, 0.5, 1000)
    time_s = np.sort(np.round(draw.uniform(0, 100, 1000), 0 if bursts else 9))
    recorded = Recording(time_s, size / size.mean())
    for busy in (0.3, 0.8):
        prompt_s = busy * every / recorded.per_s
        queues = [range(first, 1000, every) for first in range(every)]
        waits = np.concatenate(
            [waits_in_line(time_s[list(q)].tolist(), (prompt_s * recorded.size[list(q)]).tolist()) for q in queues]
        )
        told = np.array([float(every)]), np.array([busy])
        assert prompt_s * recorded.waits(*told) == pytest.approx(waits.mean(), rel=1e-6)
        for share in (0.5, 0.95, 0.99):
            expected = np.quantile(waits, share)
            assert prompt_s * recorded.waits(*told, share) == pytest.approx(expected, rel=0.03, abs=0.02 * prompt_s)


@pytest.mark.parametrize("pools", [False, True])
def test_recorded_requests_that_come_independently_are_those_of_a_rate(pools: bool) -> None:
    """Poisson arrivals at 8/s: first tokens, times per token and throughput as without a recording."""
    time_s = np.cumsum(np.random.default_rng(3).exponential(1 / 8, 20_000))
    load = Load(concurrency=np.array([4, 16, 32]), input_len=2048, output_len=256, open=True)
    for percentile in (None, 95):
        rate, replayed = (
            disaggregated(LLAMA, 1, LLAMA, 1, one) if pools else steady_state(LLAMA, one)
            for one in (load, replace(load, recorded=Recording(time_s, np.ones(20_000))))
        )
        for told, known in zip(replayed.quantile(percentile), rate.quantile(percentile), strict=True):
            assert told == pytest.approx(known, rel=0.15)
        assert replayed.output_tokens_per_s == pytest.approx(rate.output_tokens_per_s, rel=0.1)


@pytest.mark.parametrize("busy", [0.2, 0.5, 0.716, 0.8])
def test_the_tail_of_a_queue_is_that_of_a_simulated_one(busy: float) -> None:
    """Equal prompts that come independently: 99.9% too, which a log-normal distribution had 15% too low."""
    draw, count = np.random.default_rng(7), 2_000_000
    work = np.cumsum(1 - draw.exponential(1 / busy, count))
    waits = work - np.minimum.accumulate(work)
    queue = Waits(mean_s=np.array([busy / (2 * (1 - busy))]), lump_s=np.ones(1))
    for share in (0.9, 0.95, 0.99, 0.999):
        assert queue.mean_s + queue.beyond_mean_s(share) == pytest.approx(np.quantile(waits, share), rel=0.08)


def test_stages_add_memory_and_throughput_and_take_no_time_from_one_sequence() -> None:
    """One sequence passes all stages, and is sent between them; many run in as many batches as stages."""
    staged = replace(LLAMA, pp=2)
    few = Load(concurrency=np.array([1, 2, 64, 256]), input_len=512, output_len=512)
    alone, together = steady_state(LLAMA, few), steady_state(staged, few)
    sent = np.asarray(together.step_s)[0] - np.asarray(alone.step_s)[0]
    assert 0 < sent < 1e-3
    faster = np.asarray(together.output_tokens_per_s) / np.asarray(alone.output_tokens_per_s)
    assert (faster[2:] > 1).all()
    assert (faster < 2).all()
    assert capacity(staged, 512, 512) > 2 * capacity(LLAMA, 512, 512)
    assert staged.num_devices == 2 * LLAMA.num_devices
