"""How serving engines divide a device: weights, their own buffers, keys and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor import api
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.step.footprint import usable_of
from sartor.step.serving.engines import ENGINES, Engine, split_release
from sartor.step.serving.inference import InferenceMemory, Room, longest_sequence, token_bytes
from sartor.units import GIB

H100 = load_gpu("h100_sxm")
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b")


def divided(model: str, engine: Engine, tp: int = 1, gpu: str = "h100_sxm", dtype: DType = DType.BF16, **more: object):  # type: ignore[no-untyped-def]
    workload = Workload(shape=load_model(model), dtype=dtype)
    room = Room(gpu=load_gpu(gpu), engine=replace(engine, **more))  # type: ignore[arg-type]
    return room.memory(workload, ParallelDims(tp=tp))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@given(model=st.sampled_from(MODELS), share=st.floats(0.6, 0.9), more=st.floats(0.01, 0.1))
@settings(max_examples=15, deadline=None)
def test_tokens_grow_with_utilization_and_with_devices(engine: Engine, model: str, share: float, more: float) -> None:
    def tokens(**words: object) -> float:
        return float(divided(model, engine, **words).kv_tokens)  # type: ignore[arg-type]

    assert tokens(stated_utilization=share, tp=4) < tokens(stated_utilization=share + more, tp=4)
    assert tokens() <= tokens(tp=2) <= tokens(tp=4)
    assert tokens(max_num_seqs=1024) <= tokens(max_num_seqs=16)
    assert tokens(max_num_batched_tokens=32768) <= tokens(max_num_batched_tokens=2048)


@pytest.mark.parametrize("release", ["0.6", "0.8", "0.9.2", "0.11.1", "0.18", "0.21", "0.30.1"])
def test_parts_add_up_to_the_share_of_the_device(release: str) -> None:
    memory: InferenceMemory = divided("llama-3.1-8b", ENGINES["vllm"].at_release(release), tp=2)
    share = 0.92 if release in ("0.21", "0.30.1") else 0.9
    assert memory.usable_bytes == pytest.approx(share * usable_of(H100))
    rest = memory.param_bytes + memory.workspace_bytes + memory.context_bytes
    assert memory.kv_room_bytes == pytest.approx(memory.usable_bytes - rest)
    assert memory.kv_tokens == pytest.approx(memory.kv_room_bytes / (32 * 2 * 4 * 128 * 2), rel=1e-4)
    assert memory.kv_tokens % 16 == 0


def test_later_releases_of_vllm_leave_more_for_keys_and_values() -> None:
    rooms = [
        float(divided("llama-3.1-70b", ENGINES["vllm"].at_release(release), tp=4).kv_room_bytes)
        for release in ("0.8", "0.9", "0.11.1", "0.18")
    ]
    assert rooms == sorted(rooms)
    assert rooms[0] < rooms[1]


LOGGED = (
    ("vllm", "0.8", "qwen3-235b-a22b", "h100_sxm", 4, DType.FP8, {}, "tokens", 178_880),
    ("vllm", "0.6", "llama-3.1-8b", "a100_sxm", 1, DType.BF16, {}, "workspace", 1.21 * GIB),
    ("vllm", "0.6", "qwen2.5-7b", "a100_sxm", 1, DType.BF16, {"max_num_batched_tokens": 8192}, "workspace", 1.44 * GIB),
)
"""What servers logged: the tokens of Qwen3 235B are those of issue 49; activation peaks of 1.19 to 1.23 GiB (Llama 3.1
8B) and 1.44 GiB (Qwen2.5 7B) are recalled, from logs of vLLM 0.6 with 256 sequences."""


@pytest.mark.parametrize(("name", "release", "model", "gpu", "tp", "dtype", "words", "what", "value"), LOGGED)
def test_memory_is_within_a_tenth_of_what_servers_logged(
    name, release, model, gpu, tp, dtype, words, what, value
) -> None:  # type: ignore[no-untyped-def]
    memory = divided(model, ENGINES[name].at_release(release), tp, gpu, dtype, **words)
    predicted = memory.kv_tokens if what == "tokens" else memory.workspace_bytes
    assert float(predicted) == pytest.approx(value, rel=0.1)


def test_sampling_is_the_peak_of_many_rows_and_experts_that_of_many_tokens() -> None:
    """9.5 fp32 copies of 1024 rows of 151,936 logits beside 8192 hidden states; else 8 visits of a token of 4096 in and
    384 between, and their sum."""
    engine = ENGINES["vllm"]
    sampled = divided("qwen3-235b-a22b", engine, 4, dtype=DType.FP8).workspace_bytes
    assert sampled == 9.5 * 4 * 1024 * 151_936 + 2 * 8192 * 4096
    routed = divided("qwen3-235b-a22b", engine, 4, dtype=DType.FP8, max_num_seqs=16).workspace_bytes
    assert routed == 2 * 8192 * (8 * (4096 + 384) + 4096 + 3 * 4096)


def test_sglang_leaves_ten_gib_of_a_large_device_or_what_its_steps_need() -> None:
    """0.5 GiB, 1.5 MiB for each of 8192 tokens, 2 MiB for each of 256 rows, 1/8 GiB for a device."""
    share = ENGINES["sglang"].utilization(H100)
    assert share == pytest.approx(1 - (512 + 1.5 * 8192 + 512 + 128) / (80 * 1024), abs=1e-3)
    assert ENGINES["sglang"].at_release("0.4.6").utilization(H100, 8) == 0.81
    small = ENGINES["sglang"].utilization(load_gpu("rtx_4090"))
    assert 0.7 < small < 0.85


def test_keys_of_an_indexer_are_cached_beside_the_latent() -> None:
    """DeepSeek-V3.2: 128 elements in 8 bits and a scale for every token and layer; with 8-bit keys a latent of 512 with
    4 scales and 64 rotary elements in 16 bits (656 bytes)."""
    config = {
        "model_type": "deepseek_v32", "hidden_size": 2048, "intermediate_size": 4096, "moe_intermediate_size": 512,
        "num_hidden_layers": 8, "first_k_dense_replace": 1, "n_routed_experts": 16, "n_shared_experts": 1,
        "num_experts_per_tok": 4, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 512,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 16,
        "index_head_dim": 128, "index_topk": 2048, "vocab_size": 32000,
    }  # fmt: skip
    from sartor.read.huggingface import read_model

    shape = read_model(config).shape
    assert token_bytes(shape, 1, 2.0) == token_bytes(shape, 8, 2.0) == 8 * (2 * 576 + 132)
    assert token_bytes(shape, 1, 1.0) == 8 * (656 + 132)


def test_windows_lengthen_the_longest_sequence_but_not_the_tokens() -> None:
    memory = divided("gpt-oss-20b", ENGINES["vllm"])
    shape = load_model("gpt-oss-20b")
    longest = longest_sequence(Workload(shape=shape), ParallelDims(), float(memory.kv_room_bytes), 16)
    assert 1.9 * float(memory.kv_tokens) < longest < 2.1 * float(memory.kv_tokens)


@pytest.mark.parametrize("kernels", ["vllm", "vllm@0.11.1", "sglang", "trtllm"])
@pytest.mark.parametrize(("model", "tp"), [("llama-3.1-8b", 1), ("qwen3-30b-a3b", 2), ("deepseek-v3", 16)])
def test_a_server_and_a_pass_have_the_same_memory(model: str, tp: int, kernels: str) -> None:
    asked = {"tp": tp, "kernels": kernels, "max_num_seqs": 64}
    served = api.serving(model, "h100", concurrency=1, **asked).to_dict()  # type: ignore[arg-type]
    passed = api.estimate(model, "h100", phase="decode", **asked).to_dict()["totals"]  # type: ignore[arg-type]
    for name in ("param_bytes", "workspace_bytes", "context_bytes", "kv_room_bytes", "kv_tokens"):
        assert served["memory"][name] == passed["memory"][name], name
    assert served["memory"]["usable_bytes"] == passed["usable_bytes"]
    assert served["longest_tokens"] == passed["longest_tokens"]


def test_utilization_and_the_types_of_the_cache_are_options_of_both() -> None:
    half = api.serving("llama-3.1-8b", "h100", concurrency=1, utilization=0.5, kv_dtype="fp8")
    usual = api.serving("llama-3.1-8b", "h100", concurrency=1)
    assert half.memory.usable_bytes == pytest.approx(usual.memory.usable_bytes * 5 / 9)
    assert float(half.memory.kv_tokens) / float(half.memory.kv_room_bytes) == pytest.approx(1 / 65536, rel=1e-4)
    free = api.serving("llama-3.1-8b", "h100", concurrency=1, headroom=0.5)
    assert free.memory.usable_bytes == half.memory.usable_bytes


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"utilization": 0.9, "headroom": 0.1}, "headroom"),
        ({"utilization": 1.5}, "utilization"),
        ({"kv_dtype": "nf4"}, "kv_dtype"),
        ({"kernels": "vllm@new"}, "kernels"),
        ({"kernels": "torch", "utilization": 0.5}, "utilization"),
    ],
)
def test_settings_that_no_engine_has_are_refused_by_name(words: dict[str, object], named: str) -> None:
    with pytest.raises(InputError) as refused:
        api.estimate("llama-3.1-8b", "h100", phase="decode", **words)  # type: ignore[arg-type]
    assert refused.value.field == named


def test_a_setting_of_an_engine_is_none_of_training() -> None:
    with pytest.raises(InputError, match="utilization"):
        api.estimate("llama-3.1-8b", "h100", utilization=0.9)


def test_more_run_at_once_than_an_engine_was_told_never() -> None:
    found = api.serving("llama-3.1-8b", "h100", concurrency=64, max_num_seqs=16)
    assert (found.loads[-1].running, found.most_sequences) == (16, 16)


def test_a_release_stands_behind_an_at() -> None:
    assert split_release("vllm@0.10.1") == ("vllm", "0.10.1")
    assert split_release("trtllm") == ("trtllm", "")
    assert split_release(None) == (None, "")


def test_arrays_of_degrees_have_the_memory_of_each() -> None:
    shape, room = load_model("qwen3-30b-a3b"), Room(gpu=H100, engine=ENGINES["sglang"])
    degrees = np.array([1, 2, 4])
    together = room.memory(Workload(shape=shape), ParallelDims(tp=degrees)).kv_tokens
    each = [float(room.memory(Workload(shape=shape), ParallelDims(tp=int(tp))).kv_tokens) for tp in degrees]
    assert np.array_equal(together, each)
