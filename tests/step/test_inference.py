"""Memory of serving, and what it is judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.report.fit_words import does_not_fit
from sartor.step.serving.inference import Room, kv_cache_bytes, most_sequences, weight_bytes, would_fit

H100 = load_gpu("h100_sxm")


def decoding(model: str, sequences: int = 8, context: int = 4096, dtype: DType = DType.BF16) -> Workload:
    shape = load_model(model)
    return Workload(shape=shape, phase=Phase.DECODE, microbatch_size=sequences, context_len=context, dtype=dtype)


def test_the_cache_of_llama_3_8b_is_counted_by_hand() -> None:
    """32 layers x 8 key/value heads x 2 x 128 elements of 2 bytes for each of 4097 tokens."""
    assert kv_cache_bytes(load_model("llama-3-8b"), 4097, 1, 2.0) == 32 * 8 * 2 * 128 * 2 * 4097


def test_the_cache_of_latent_attention_is_its_latent_on_every_device() -> None:
    """DeepSeek-V3: 61 layers x (512 + 64) elements of 2 bytes a token."""
    shape = load_model("deepseek-v3")
    assert kv_cache_bytes(shape, 1000, 1, 2.0) == kv_cache_bytes(shape, 1000, 8, 2.0) == 61 * 576 * 2 * 1000


def test_a_window_bounds_the_cache() -> None:
    shape = load_model("gpt-oss-20b")
    short, long = (kv_cache_bytes(shape, n, 1, 2.0) for n in (128, 128 * 64))
    assert long == pytest.approx(short * (64 + 1) / 2)  # every other layer sees 128 tokens


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_weights_are_all_parameters_and_split_but_for_routers_and_latents(model: str) -> None:
    shape = load_model(model)
    whole = weight_bytes(Workload(shape=shape), ParallelDims())
    assert whole == 2 * count_params(shape).total
    split = weight_bytes(Workload(shape=shape), ParallelDims(tp=8))
    assert whole / 8 <= split < 1.03 * whole / 8


def test_what_devices_cannot_split_each_of_them_holds() -> None:
    """DeepSeek-V3: 61 layers with down projections of 7168 x (1536 + 576), 58 with routers of 7168 x 256; Qwen3 has 4
    key/value heads of 128."""
    latent, grouped = load_model("deepseek-v3"), load_model("qwen3-235b-a22b")
    whole, split = (weight_bytes(Workload(shape=latent), ParallelDims(tp=tp)) for tp in (1, 16))
    replicated = 2 * 7168 * (61 * (1536 + 576) + 58 * 256)
    assert split == pytest.approx(whole / 16 + replicated * 15 / 16, rel=1e-6)
    whole, split = (weight_bytes(Workload(shape=grouped), ParallelDims(tp=tp)) for tp in (1, 8))
    replicated = 2 * 94 * 4096 * (2 * 4 * 128 / 2 * 2 / 4 + 128)  # each head on two devices; routers on all
    assert split - whole / 8 == pytest.approx(2 * 94 * 4096 * (2 * 4 * 128 / 8 + 128 * 7 / 8), rel=1e-6), replicated


def test_narrow_weights_leave_tables_in_16_bits() -> None:
    shape = load_model("llama-3-8b")
    counts = count_params(shape)
    norms = (2 * 32 + 1) * 4096
    assert (
        weight_bytes(Workload(shape=shape, dtype=DType.FP8), ParallelDims())
        == counts.total + counts.embedding + counts.lm_head + norms
    )


def test_what_would_fit_does_fit_and_one_sequence_more_would_not() -> None:
    asked = decoding("llama3-70b", 256, 131072)
    for change in would_fit(asked, ParallelDims(), Room(gpu=H100)):
        then = replace(asked, microbatch_size=int(change.get("microbatch_size", 256)))
        split = ParallelDims(tp=int(change.get("tp", 1)))
        assert Room(gpu=H100).memory(then, split).fits
        more = replace(then, microbatch_size=int(then.microbatch_size) + 1)
        assert not Room(gpu=H100).memory(more, split).fits


def test_most_sequences_is_the_last_that_fits() -> None:
    asked, dims = decoding("llama-3-8b"), ParallelDims()
    most = most_sequences(asked, dims, Room(gpu=H100))
    assert Room(gpu=H100).memory(replace(asked, microbatch_size=most), dims).fits
    assert not Room(gpu=H100).memory(replace(asked, microbatch_size=most + 1), dims).fits


def test_a_decode_that_needs_1280_gib_of_cache_per_device_is_said_not_to_fit_first() -> None:
    found = api.estimate("llama3-70b", "h100", phase="decode", microbatch_size=256, context_len=131072, tp=8)
    assert found.serving is not None
    assert found.serving.memory.kv_cache_bytes == pytest.approx(1280 * 2**30, rel=2e-4)  # whole pages
    assert not found.fits
    assert "It would fit with microbatch_size=9" in does_not_fit(found)


def test_decode_answers_in_words_of_serving() -> None:

    found = api.estimate("llama-3-8b", "h100", phase="decode")
    body = found.to_dict()["totals"]
    assert body["time_per_output_token_s"] == body["step_s"] == found.time_s
    assert body["tokens_per_s_per_device"] == pytest.approx(8 / found.time_s)
    assert 0.5 < body["bandwidth_utilization"] < 1
    assert 100 < body["knee_microbatch_size"] < 400  # ridge of an H100: 295 FLOP/byte
    assert body["fits"]
    assert body["headroom"] > 0.5


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama-3-70b"])
def test_more_sequences_are_almost_free_below_the_knee_and_cost_time_above(model: str, dtype: str) -> None:
    def gemms(sequences: int) -> float:
        found = api.estimate(model, "h200", phase="decode", tp=4, dtype=dtype, microbatch_size=sequences)
        pairs = zip(found.graph.operators, found.microbatch.costs, strict=True)
        return sum(float(t.time_s * op.count) for op, t in pairs if type(op).__name__ in ("Gemm", "GroupedGemm"))

    knee = api.estimate(model, "h200", phase="decode", tp=4, dtype=dtype).serving.knee
    assert 50 < knee < 1000  # experts and narrow products wait for weights too: one sequence is no knee
    assert gemms(4 * knee) > 1.5**2 * gemms(knee)
    assert gemms(knee // 2) < 1.5**4 * gemms(knee // 32)  # on the whole: one framework's kernels change on the way


def test_two_devices_give_each_half_the_tokens() -> None:

    body = api.estimate("llama-3-8b", "h100", phase="decode", tp=2).to_dict()["totals"]
    assert body["tokens_per_s_per_device"] == pytest.approx(body["tokens_per_s"] / 2)


def test_training_that_does_not_fit_says_what_would() -> None:
    asked = {"num_devices": 64, "global_batch_size": 256, "tp": 8, "pp": 1, "zero_stage": 1, "recompute": "none"}
    asked |= {"microbatch_size": 8}
    found = api.estimate("llama3-70b", "h100", **asked)  # type: ignore[arg-type]
    assert not found.fits
    assert found.would_fit
    then = api.estimate("llama3-70b", "h100", **{**asked, **found.would_fit[0]})  # type: ignore[arg-type]
    assert then.fits


def test_a_product_larger_than_the_memory_is_said_not_to_fit() -> None:
    assert not api.gemm(200_000, 200_000, 200_000).fits
    assert api.gemm(4096, 4096, 4096).fits


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
def test_headroom_means_the_same_wherever_it_is_asked(phase: str) -> None:
    plan = {"num_devices": 64, "tp": 1, "pp": 1, "cp": 1, "microbatch_size": 1, "zero_stage": 1, "recompute": "none"}
    asked = {"phase": phase, "headroom": 0.4} | (plan if phase == "train" else {})
    estimated = api.estimate("llama-3.1-8b", "h100_sxm", **asked)  # type: ignore[arg-type]
    linted = api.lint("llama-3.1-8b", "h100_sxm", **asked)  # type: ignore[arg-type]
    full = api.estimate("llama-3.1-8b", "h100_sxm", **{**asked, "headroom": 0.0})  # type: ignore[arg-type]
    assert estimated.usable_bytes == pytest.approx(0.6 * full.usable_bytes)
    assert linted.base.usable_bytes == estimated.usable_bytes
    assert estimated.time_s == full.time_s
    if estimated.serving and full.serving:
        assert estimated.serving.most_sequences < full.serving.most_sequences


@pytest.mark.parametrize("headroom", [-0.1, 1.0, float("nan")])
def test_a_headroom_that_is_no_share_is_refused(headroom: float) -> None:
    with pytest.raises(InputError, match=r"headroom.*0\.05"):
        api.estimate("llama-3.1-8b", "h100_sxm", phase="decode", headroom=headroom)


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("skew", [0.5, 4.1, 100.0, float("nan")])
def test_a_load_that_no_routing_gives_is_refused(phase: str, skew: float) -> None:
    """Of mixtral's 8 experts a token visits 2 different ones: the largest has at most 4 times the mean."""
    asked = {"phase": phase, "num_devices": 8, "global_batch_size": 64} if phase == "train" else {"phase": phase}
    nearest = "4" if skew > 1 else "1"
    with pytest.raises(InputError, match=f"routing_skew.*nearest: {nearest}"):
        api.estimate("mixtral-8x7b", "h100_sxm", routing_skew=skew, **asked)  # type: ignore[arg-type]
