"""Laws of sparse attention: an indexer's scores over all keys, attention over those that it leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.price import price
from sartor.hardware.catalog import load_gpu
from sartor.model.layer import AttentionMixer, LatentAttentionMixer
from sartor.model.lower import lower
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import Attention, DType, Pass, Role
from sartor.read.huggingface import read_model
from sartor.step.serving.inference import kv_cache_bytes

LATENT = {
    "model_type": "deepseek_v32", "hidden_size": 2048, "intermediate_size": 4096, "moe_intermediate_size": 512,
    "num_hidden_layers": 8, "first_k_dense_replace": 1, "n_routed_experts": 16, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 512,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 16,
    "index_head_dim": 128, "index_topk": 2048, "vocab_size": 32000, "max_position_embeddings": 163840,
}  # fmt: skip
PLAIN = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 131072,
}  # fmt: skip
LONG = 131_072


def shape_of(**fields: object) -> TransformerShape:
    return read_model({**LATENT, **fields}).shape


def attention_of(shape: TransformerShape, phase: Phase = Phase.DECODE, **fields: object) -> list[Attention]:
    sizes = {"context_len": LONG - 1} if phase is Phase.DECODE else {"seq_len": 16_384}
    graph = lower(Workload(shape=shape, phase=phase, **{**sizes, **fields}), ParallelDims())  # type: ignore[arg-type]
    return [op for op in graph.operators if isinstance(op, Attention)]


def seconds(shape: TransformerShape, phase: Phase, **fields: object) -> float:
    gpu = load_gpu("h100_sxm")
    sizes = {"context_len": LONG - 1} if phase is Phase.DECODE else {"seq_len": 16_384}
    graph = lower(Workload(shape=shape, phase=phase, **{**sizes, **fields}), ParallelDims())  # type: ignore[arg-type]
    return float(price(graph, gpu, load_calibration(gpu)).time_s)


def test_a_decoding_query_attends_to_the_chosen_keys_and_the_indexer_scores_them_all() -> None:
    for op in attention_of(shape_of()):
        assert op.seq_kv == (LONG if op.role is Role.INDEX else 2048)
        assert op.role is not Role.INDEX or (op.num_heads, op.head_dim, op.dtype) == (16, 128, DType.FP8)
    roles = [op.role for op in attention_of(shape_of())]
    assert roles.count(Role.INDEX) == roles.count(Role.ATTENTION) == 2  # dense and mixture layers


@pytest.mark.parametrize("phase", Phase)
def test_with_as_many_keys_as_the_context_it_is_dense_attention_and_the_indexer(phase: Phase) -> None:
    dense = read_model({k: v for k, v in LATENT.items() if "index" not in k} | {"model_type": "deepseek_v3"}).shape
    sparse = attention_of(shape_of(index_topk=LONG), phase)
    assert [op for op in sparse if op.role is Role.ATTENTION] == attention_of(dense, phase)
    assert {op.role for op in sparse} == {Role.ATTENTION, Role.INDEX}


@pytest.mark.parametrize("phase", Phase)
def test_time_never_falls_when_more_keys_are_chosen(phase: Phase) -> None:
    times = [seconds(shape_of(index_topk=2**k), phase) for k in range(6, 18)]
    assert times == sorted(times)
    assert times[0] < 0.9 * times[-1]


def test_pairs_of_a_prompt_are_counted_as_in_a_window_of_as_many_keys() -> None:
    (op, *_) = [op for op in attention_of(shape_of(), Phase.PREFILL) if op.role is Role.ATTENTION]
    assert op.pairs == sum(min(i + 1, 2048) for i in range(16_384))
    assert (op.num_heads, op.num_kv_heads, op.head_dim, op.v_head_dim) == (128, 1, 576, 512)


def test_a_short_prompt_expands_its_keys_because_that_is_less_work() -> None:
    (op, *_) = [op for op in attention_of(shape_of(), Phase.PREFILL, seq_len=1024) if op.role is Role.ATTENTION]
    assert (op.head_dim, op.v_head_dim, op.window) == (192, 128, 0)


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.TRAIN])
def test_an_array_of_lengths_is_its_entries(phase: Phase) -> None:
    lengths, shape, gpu = np.array([512, 4096, 32_768]), shape_of(), load_gpu("h100_sxm")

    def time_s(seq_len: object) -> np.ndarray:
        graph = lower(Workload(shape=shape, phase=phase, seq_len=seq_len), ParallelDims())  # type: ignore[arg-type]
        return np.asarray(price(graph, gpu, load_calibration(gpu)).time_s)

    assert time_s(lengths) == pytest.approx([float(time_s(int(n))) for n in lengths], rel=1e-9)


def test_training_teaches_the_indexer_on_the_chosen_keys_alone() -> None:
    (learned, *_) = [
        op for op in attention_of(shape_of(), Phase.TRAIN) if op.role is Role.INDEX and op.pass_ is Pass.BACKWARD
    ]
    assert learned.window == 2048


def test_the_cache_holds_576_elements_and_an_index_key_of_132_bytes_per_token_and_layer() -> None:
    assert kv_cache_bytes(shape_of(), LONG, 1, 2.0) == LONG * 8 * (576 * 2 + 132)
    assert kv_cache_bytes(shape_of(), LONG, 8, 2.0) == LONG * 8 * (576 * 2 + 132)
    assert kv_cache_bytes(shape_of(), LONG, 1, 1.0) == LONG * 8 * (512 + 16 + 128 + 132)  # 656 of vLLM's fp8_ds_mla


def test_layers_that_reuse_a_choice_have_no_scores_and_no_index_keys() -> None:
    shape = shape_of(model_type="glm_moe_dsa", indexer_types=["full", *["shared"] * 7])
    mixers = [(m, run.count) for run in shape.main.runs for m in run.layer.mixers]
    assert sum(n for m, n in mixers if isinstance(m, LatentAttentionMixer) and m.selection and m.selection.heads) == 1
    assert all(op.seq_kv == 2048 for op in attention_of(shape) if op.role is Role.ATTENTION)
    assert kv_cache_bytes(shape, LONG, 1, 2.0) == LONG * (8 * 576 * 2 + 132)


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"moba_chunk_size": 2048, "moba_topk": 3}, 3 * 2048),
        (
            {"sparse_config": {"block_size": 64, "topk": 64, "init_blocks": 1, "window_size": 2048, "dense_len": 8192}},
            65 * 64 + 2048,
        ),
    ],
)
def test_blocks_that_a_config_names_are_attended_to_and_no_others(fields: dict[str, object], keys: int) -> None:
    reading = read_model({**PLAIN, **fields})
    (mixer,) = [m for run in reading.shape.main.runs for m in run.layer.mixers]
    assert isinstance(mixer, AttentionMixer)
    assert mixer.selection is not None
    assert mixer.selection.keys == keys
    assert [op.seq_kv for op in attention_of(reading.shape) if op.role is Role.ATTENTION] == [keys]
    assert not reading.unread_sizes
    assert any("sparse attention" in sentence for sentence in reading.notes)
    dense = replace(mixer, selection=None)
    assert mixer.linears(2048) == dense.linears(2048)
