"""Laws of lowering: what is conserved, what never falls, what an array must equal."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.model.counts import AttentionSquare, count_params, forward_matmul_flops
from sartor.model.editing import edit
from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, Norm, Split, StateSpaceMixer, mamba2_mixer
from sartor.model.lower import feasible, lower
from sartor.model.lower.setting import NARROWING, Kernels
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.model.training import ContextParallel, Recipe
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model, model_names
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    OperatorGraph,
    Part,
    Pass,
    Role,
)
from strategies import dense_shapes, latent_shapes, moe_shapes, parallel_dims, shapes, workloads

PRODUCTS = (Gemm, GroupedGemm, Attention)


def named(graph: OperatorGraph, name: str) -> Any:
    return next(op for op in graph.operators if op.name == name)


def forward_flops(graph: OperatorGraph, *kinds: type) -> float:
    rows = [op for op in graph.operators if isinstance(op, kinds) and op.pass_ is Pass.FORWARD]
    return sum(op.flops * op.count for op in rows)


def single(heads: int = 8, kv_heads: int = 8, h: int = 512, **attention: Any) -> TransformerShape:
    mixer = AttentionMixer(num_heads=heads, num_kv_heads=kv_heads, head_dim=64, **attention)
    layer = Layer(mixers=(mixer,), ffn=DenseFfn(ffn_hidden_size=1024), norms=(Norm(), Norm()))
    stack = Stack(name="decoder", hidden_size=h, runs=(LayerRun(layer=layer, count=2),), norms=(Norm(),))
    return TransformerShape(name="small", stacks=(stack,), vocab_size=1024)


# -- against the closed form ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", model_names())
def test_every_zoo_model_comes_to_its_counted_flops_and_parameters(name: str) -> None:
    shape = replace(load_model(name), mtp_layers=0)
    graph = lower(Workload(shape=shape, seq_len=777, microbatch_size=2), optimizer=True)
    counted = forward_matmul_flops(shape, 2, 777, square=AttentionSquare.MASKED)
    scans = replace(graph, operators=tuple(op for op in graph.operators if op.role is Role.SCAN))
    assert forward_flops(graph, Gemm, GroupedGemm) - forward_flops(scans, Gemm) == counted.linear
    indexed = replace(graph, operators=tuple(op for op in graph.operators if op.name.endswith("index_scores")))
    assert bool(indexed.operators) == (name == "glm-5")
    assert forward_flops(graph, Attention) - forward_flops(indexed, Attention) == counted.attention
    held = sum(op.cols * op.count for op in graph.operators if op.pass_ is Pass.OPTIMIZER)
    assert held == count_params(shape).total


@given(workload=workloads(phases=(Phase.TRAIN,)))
def test_any_drawn_model_comes_to_its_counted_flops(workload: Workload) -> None:
    b, s = workload.microbatch_size, workload.seq_len
    counted = forward_matmul_flops(workload.shape, b, s, square=AttentionSquare.MASKED)
    assert forward_flops(lower(workload), *PRODUCTS) == counted.total


def test_modules_for_later_tokens_train_and_do_not_generate() -> None:
    plain, more = (Workload(shape=replace(single(), mtp_layers=n), seq_len=64) for n in (0, 1))
    added = lower(more).matmul_flops - lower(plain).matmul_flops
    layer = (lower(plain).matmul_flops - 3 * 2 * 64 * 512 * 1024) / 2
    assert added == layer + 3 * (2 * 64 * 1024 * 512 + 2 * 64 * 512 * 1024)
    decoded = [lower(replace(each, phase=Phase.DECODE)).operators for each in (plain, more)]
    without, beside = ([replace(op, block=0) for op in operators] for operators in decoded)
    assert without == beside


# -- conserved over ranks ---------------------------------------------------------------------------------------


@given(workload=workloads(of=st.one_of(dense_shapes(), latent_shapes(), moe_shapes())), dims=parallel_dims())
def test_tensor_ranks_together_do_the_work_of_one_device_but_for_what_is_replicated(
    workload: Workload, dims: ParallelDims
) -> None:
    whole, share = lower(workload), lower(workload, dims)
    everywhere = {"router", "q_down", "kv_down", "qkv", "k", "v"}

    def flops(graph: OperatorGraph) -> float:
        rows = [op for op in graph.operators if isinstance(op, PRODUCTS) and op.name.split(".")[0] not in everywhere]
        return sum(op.flops * op.count for op in rows)

    assert flops(share) * dims.tp == flops(whole)
    assert share.matmul_flops * dims.tp >= whole.matmul_flops


@given(shape=dense_shapes(), b=st.integers(1, 4))
def test_sequence_parallel_splits_norms_and_residuals_too(shape: TransformerShape, b: int) -> None:
    workload = Workload(shape=shape, microbatch_size=b, seq_len=64)
    whole, share = lower(workload), lower(workload, ParallelDims(tp=4))
    for name in ("norm", "residual", "norm.backward", "final_norm"):
        assert named(share, name).bytes_moved * 4 == named(whole, name).bytes_moved


def test_key_value_heads_are_replicated_when_fewer_than_devices() -> None:
    graph = lower(Workload(shape=single(heads=8, kv_heads=2), seq_len=2048), ParallelDims(tp=4))
    assert named(graph, "qkv").n == (2 + 1 + 1) * 64
    assert (named(graph, "attention").num_heads, named(graph, "attention").num_kv_heads) == (2, 1)


@given(shape=shapes(), dims=parallel_dims())
def test_collectives_appear_only_when_something_is_split(shape: TransformerShape, dims: ParallelDims) -> None:
    collectives = [
        op for op in lower(Workload(shape=shape, seq_len=2048), dims).operators if isinstance(op, Collective)
    ]
    assert bool(collectives) == (dims.tp > 1)


def test_expert_parallel_sends_every_copy_and_keeps_a_share_of_the_experts() -> None:
    shape = load_model("mixtral-8x7b")
    alone, spread = (lower(Workload(shape=shape, seq_len=2048), ParallelDims(ep=ep)) for ep in (1, 4))
    assert named(spread, "expert_gate_up").groups * 4 == named(alone, "expert_gate_up").groups
    assert named(spread, "expert_gate_up").rows == named(alone, "expert_gate_up").rows == 2048 * 2
    sent = named(spread, "dispatch.all_to_all")
    assert sent.kind is CollectiveKind.ALL_TO_ALL
    assert sent.message_bytes == 2048 * 2 * 4096 * 2


# -- one line for one and for many ------------------------------------------------------------------------------


def grid(shape: TransformerShape) -> tuple[TransformerShape, dict[str, Any]]:
    axes = {
        "num_layers": np.array([2, 5]).reshape(2, 1, 1, 1),
        "hidden_size": np.array([256, 512, 520]).reshape(3, 1, 1),
        "num_heads": np.array([8, 16]).reshape(2, 1),
        "ffn_hidden_size": np.array([512, 1024, 1100, 4096]).reshape(4),
    }
    return edit(shape, **axes), axes


def at(value: Any, index: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.asarray(value), shape)[index]


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("kernel", list(AttentionKernel))
@pytest.mark.parametrize("tp", [1, 4])
def test_an_array_entry_equals_the_scalar_call_exactly(phase: Phase, kernel: AttentionKernel, tp: int) -> None:
    many, axes = grid(single(kv_heads=4))
    workload = Workload(shape=many, phase=phase, microbatch_size=3, seq_len=96, context_len=50, attention_kernel=kernel)
    dims = ParallelDims(tp=tp)
    together = lower(workload, dims)
    full = np.broadcast_shapes(*(axis.shape for axis in axes.values()))
    for index in [(0, 0, 0, 0), (1, 2, 1, 3), (0, 1, 1, 2)]:
        entry = {name: int(at(axis, index, full)) for name, axis in axes.items()}
        alone = lower(replace(workload, shape=edit(single(kv_heads=4), **entry)), dims)
        assert len(alone.operators) == len(together.operators)
        for one, row in zip(alone.operators, together.operators, strict=True):
            for field in fields(one):
                expected, found = getattr(one, field.name), getattr(row, field.name)
                same = at(found, index, full) == expected if isinstance(found, np.ndarray) else found == expected
                assert same, (one.name, field.name)
            assert at(row.flops, index, full) == one.flops
            assert at(row.bytes_moved, index, full) == one.bytes_moved


def test_operators_keep_only_the_axes_they_depend_on() -> None:
    many, _ = grid(single(kv_heads=4))
    for op in lower(Workload(shape=many, seq_len=2048), ParallelDims(tp=4)).operators:
        varies = np.broadcast_shapes(*(np.shape(getattr(op, f.name)) for f in fields(op) if f.name != "count"))
        layers, hidden, heads, ffn = (1, 1, 1, 1, *varies)[-4:]
        assert layers == 1, op.name
        assert ffn == 1 or "mlp" in op.name, op.name
        assert heads == 1 or any(word in op.name for word in ("qkv", "attn", "attention", "rotary")), op.name
        assert hidden == 1 or op.name not in ("attention", "mlp_activation", "rotary"), op.name


def test_degrees_may_be_arrays_with_a_mask() -> None:
    tp = np.array([1, 2, 3, 4, 8, 16])
    assert feasible(single(heads=8, kv_heads=4), ParallelDims(tp=tp)).tolist() == [True, True, False, True, True, False]
    share = lower(Workload(shape=single(), seq_len=2048), ParallelDims(tp=tp))
    assert named(share, "mlp_down").k.tolist() == [1024, 512, 342, 256, 128, 64]


def test_feasible_is_one_bool_for_one_shape() -> None:
    assert feasible(single(heads=8), ParallelDims(tp=4)) is True
    assert feasible(single(heads=6, kv_heads=6), ParallelDims(tp=4)) is False


# -- never falls ------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(workload=workloads(), more=st.integers(1, 4))
def test_work_and_traffic_never_fall_with_more_tokens(workload: Workload, more: int) -> None:
    for field in ("microbatch_size", "seq_len", "context_len"):
        larger = replace(workload, **{field: getattr(workload, field) + 4 * more})
        assert lower(larger).flops >= lower(workload).flops
        assert lower(larger).bytes_moved >= lower(workload).bytes_moved


# -- phases -----------------------------------------------------------------------------------------------------


def test_generation_needs_the_logits_of_one_token_per_sequence() -> None:
    for phase, rows in ((Phase.TRAIN, 3 * 128), (Phase.PREFILL, 3), (Phase.DECODE, 3)):
        workload = Workload(shape=single(), phase=phase, microbatch_size=3, seq_len=128)
        assert named(lower(workload), "logits").m == rows


def test_an_encoder_gives_logits_for_every_token() -> None:
    shape = replace(single(causal=False), encoder_only=True)
    workload = Workload(shape=shape, phase=Phase.PREFILL, seq_len=128)
    assert named(lower(workload), "logits").m == 128
    assert not named(lower(workload), "attention").causal


def test_a_decoding_step_has_one_row_per_sequence_and_the_whole_context_as_keys() -> None:
    workload = Workload(shape=single(), phase=Phase.DECODE, microbatch_size=3, context_len=999)
    graph = lower(workload)
    assert {op.m for op in graph.operators if isinstance(op, Gemm)} == {3}
    attention = named(graph, "attention")
    assert (attention.seq_q, attention.seq_kv) == (1, 1000)
    assert all(op.pass_ is Pass.FORWARD for op in graph.operators)
    assert graph.tokens == 3


def test_the_bias_of_experts_is_added_in_fp32_kernels_where_the_trainer_has_no_fused_one() -> None:
    workload = Workload(shape=load_model("gpt-oss-20b"), phase=Phase.TRAIN, microbatch_size=2, seq_len=1024)

    def added(of: Workload, kernels: Kernels) -> list[Any]:
        return [op for op in lower(of, kernels=kernels).operators if op.name.startswith("moe.expert_bias")]

    forward, backward = added(workload, Kernels())
    assert forward.bytes_moved == 28 * 2 * 1024 * 4 * 2880  # 28 bytes of every row and column, 4 rows of a token
    assert backward.bytes_moved == 40 * 2 * 1024 * 4 * 2880
    assert (forward.kernels, backward.kernels) == (2 * 32 + 2, 5 * 32 + 2)
    assert not added(workload, Kernels(expert_bias_apart=False))
    assert not added(replace(workload, phase=Phase.PREFILL), Kernels())
    assert not added(replace(workload, shape=load_model("mixtral-8x7b")), Kernels())


def test_a_limit_on_experts_gates_is_a_kernel_of_its_own_where_the_trainer_has_no_fused_one() -> None:
    workload = Workload(shape=load_model("gpt-oss-20b"), phase=Phase.TRAIN, microbatch_size=2, seq_len=1024)

    def clamped(of: Workload, kernels: Kernels) -> set[float]:
        return {op.bytes_moved for op in lower(of, kernels=kernels).operators if "expert_clamp" in op.name}  # type: ignore[union-attr]

    gates_and_values = 2 * 1024 * 4 * 2 * 2880
    assert clamped(workload, Kernels()) == {8 * gates_and_values, 10 * gates_and_values}
    assert not clamped(workload, Kernels(expert_bias_apart=False))
    assert not clamped(replace(workload, shape=load_model("mixtral-8x7b")), Kernels())


def test_a_fused_softmax_reads_the_half_that_a_causal_mask_leaves_as_far_as_its_kernel_takes_keys() -> None:
    def moved(kernels: Kernels, keys: int = 256) -> list[float]:
        workload = Workload(shape=single(heads=4), seq_len=keys, attention_kernel=AttentionKernel.UNFUSED)
        scores = workload.microbatch_size * 4 * keys * keys
        return [op.bytes_moved / scores for op in lower(workload, kernels=kernels).operators if "softmax" in op.name]  # type: ignore[union-attr]

    assert moved(Kernels()) == moved(Kernels(), 2048) == [2 * 1.5, 2 * 2.0]
    assert moved(Kernels(), 2049) == [2 * 2.0, 2 * 3.0]
    assert moved(Kernels(fused=False)) == [2 * 6.0, 2 * 7.0]


def test_a_decoding_step_of_few_tokens_touches_few_experts() -> None:
    def groups(b: int) -> float:
        workload = Workload(shape=load_model("mixtral-8x7b"), phase=Phase.DECODE, microbatch_size=b)
        return float(named(lower(workload), "expert_down").groups)

    assert [groups(b) for b in (1, 2, 4, 64)] == pytest.approx([2, 3.5, 8 * (1 - 0.75**4), 8])
    assert groups(1) == 2
    assert groups(64) == 8


@given(shape=moe_shapes(), shared_out=st.booleans(), sequences=st.integers(1, 64))
def test_the_expected_number_of_busy_experts_grows_with_the_tokens_to_all(
    shape: TransformerShape, shared_out: bool, sequences: int
) -> None:
    part = shape.moe_ffn
    assert part is not None
    ep = int(part.num_experts) if shared_out else 1

    def groups(b: Any) -> Any:
        workload = Workload(shape=shape, phase=Phase.DECODE, microbatch_size=b)
        return named(lower(workload, ParallelDims(ep=ep)), "expert_down").groups

    held = part.num_experts / ep
    few, more, all_ = (groups(b) for b in (sequences, sequences + 1, 1 << 20))
    assert 1 <= few <= more <= all_ == held
    assert few <= max(sequences * ep * part.experts_per_token, 1)
    assert few == groups(np.array([sequences]))[0]
    assert ep > 1 or sequences > 1 or few == part.experts_per_token


def test_cross_attention_reads_the_encoder_and_its_keys_are_cached_when_decoding() -> None:
    workload = Workload(shape=load_model("t5-large"), microbatch_size=2, seq_len=512)
    graph = lower(workload)
    cross = named(graph, "decoder.cross_attention")
    assert (cross.seq_kv, cross.causal) == (512, False)
    assert named(graph, "decoder.cross_kv").m == 1024
    decoding = lower(replace(workload, phase=Phase.DECODE, context_len=10))
    assert {op.name for op in decoding.operators}.isdisjoint({"encoder.qkv", "decoder.cross_kv"})
    assert named(decoding, "decoder.cross_attention").seq_kv == 512


# -- kernels ----------------------------------------------------------------------------------------------------


def test_weight_gradients_follow_the_convention() -> None:
    graph = lower(Workload(shape=single(), microbatch_size=2, seq_len=128))
    forward, dgrad, wgrad = (named(graph, f"mlp_down{suffix}") for suffix in ("", ".dgrad", ".wgrad"))
    assert (forward.m, forward.n, forward.k, forward.layout) == (256, 512, 1024, Layout.TN)
    assert (dgrad.m, dgrad.n, dgrad.k, dgrad.layout) == (256, 1024, 512, Layout.NN)
    assert (wgrad.m, wgrad.n, wgrad.k, wgrad.layout) == (512, 1024, 256, Layout.NT)
    assert wgrad.accumulates
    assert wgrad.out_dtype is DType.FP32


@given(workload=workloads(of=dense_shapes(), phases=(Phase.TRAIN, Phase.PREFILL)))
def test_unfused_attention_does_the_square_where_flash_skips_the_masked_half(workload: Workload) -> None:
    square = lower(replace(workload, attention_kernel=AttentionKernel.UNFUSED))
    score, value = named(square, "attn_score"), named(square, "attn_over_value")
    flash = named(lower(workload), "attention")
    assert score.flops + value.flops == replace(flash, causal=False).flops >= flash.flops
    assert any(op.name == "softmax" for op in square.operators)


def test_unfused_backward_has_four_products() -> None:
    graph = lower(Workload(shape=single(), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED, dropout=True))
    products = [op for op in graph.operators if isinstance(op, Gemm) and op.pass_ is Pass.BACKWARD]
    assert [op.name.split(".")[1] for op in products] == ["dv", "dp", "dq", "dk"]
    assert sum(op.flops for op in products) == 2 * (
        named(graph, "attn_score").flops + named(graph, "attn_over_value").flops
    )


@pytest.mark.parametrize(("head_dim", "dtype"), [(108, DType.FP32), (225, DType.FP32), (112, DType.BF16)])
def test_strided_heads_that_start_off_16_bytes_leave_the_matrix_units(head_dim: int, dtype: DType) -> None:
    workload = Workload(shape=edit(single(), head_dim=head_dim), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED)
    strided = lower(workload, ParallelDims(), Kernels(strided_heads=True))
    cores = [op for op in strided.operators if isinstance(op, Gemm) and "attn_score" in op.name]
    assert {op.dtype for op in cores} == {dtype}
    assert named(strided, "mlp_down").dtype is DType.BF16
    assert named(lower(workload), "attn_score").dtype is DType.BF16, "only where heads are strided over"


def test_a_window_leaves_keys_that_no_query_sees_unread() -> None:
    decoding = Workload(shape=single(window=256), phase=Phase.DECODE, context_len=4000)
    assert named(lower(decoding), "attention").seq_kv == 256
    prefill = Workload(shape=single(window=256), phase=Phase.PREFILL, seq_len=100, context_len=4000)
    narrow = named(lower(prefill), "attention")
    assert narrow.seq_kv == 355
    assert narrow.pairs == 100 * 256


def test_chunked_attention_is_blocks_and_a_rest() -> None:
    shape = single(window=256, chunked=True)
    graph = lower(Workload(shape=shape, seq_len=600))
    blocks, rest = named(graph, "attention"), named(graph, "attention_rest")
    assert (blocks.batch, blocks.seq_q, blocks.seq_kv) == (2, 256, 256)
    assert (rest.batch, rest.seq_q) == (1, 88)
    decoding = lower(Workload(shape=shape, phase=Phase.DECODE, context_len=600))
    assert named(decoding, "attention").seq_kv == 600 % 256 + 1


def test_context_parallel_ranks_share_the_masked_pairs_evenly() -> None:
    workload = Workload(shape=single(), seq_len=1023)
    gathered = Kernels(context_parallel=ContextParallel.ALL_GATHER)
    alone, shared = lower(workload), lower(workload, ParallelDims(cp=3), gathered)
    assert named(shared, "attention").flops * 3 == named(alone, "attention").flops
    assert named(shared, "mlp_down").m * 3 == named(alone, "mlp_down").m


def test_parallel_layers_share_one_residual_and_one_reduction() -> None:
    def shape(parallel: bool, fuses: bool = False) -> TransformerShape:
        old = single()
        layer = replace(old.main.runs[0].layer, parallel=parallel, fuses_parallel=fuses)
        return replace(old, stacks=(replace(old.main, runs=(LayerRun(layer=layer, count=2),)),))

    dims = ParallelDims(tp=4, sequence_parallel=False)
    apart, together, fused = (
        lower(Workload(shape=x, seq_len=2048), dims) for x in (shape(False), shape(True), shape(True, fuses=True))
    )
    assert named(apart, "residual").count == 2 * named(together, "residual").count
    reductions = [op for op in together.operators if isinstance(op, Collective) and op.part is Part.LAYER]
    assert [op.name for op in reductions] == ["parallel.all_reduce", "parallel.grad_all_reduce"]
    wide = named(fused, "parallel_in")
    assert wide.n == (3 * 512 + 2 * 1024) // 4
    assert named(fused, "parallel_out").k == (512 + 1024) // 4
    assert fused.matmul_flops == together.matmul_flops


def test_state_space_layers_are_projections_a_convolution_and_a_scan() -> None:
    mixer = StateSpaceMixer(
        inner_size=1024,
        state_size=16,
        conv_channels=1024,
        conv_size=4,
        projections=(
            Linear(name="in", d_in=512, d_out=2048),
            Linear(name="out", d_in=1024, d_out=512, split=Split.ROW),
        ),
    )
    stack = Stack(
        name="decoder", hidden_size=512, runs=(LayerRun(layer=Layer(mixers=(mixer,), norms=(Norm(),)), count=4),)
    )
    shape = TransformerShape(name="mamba", stacks=(stack,), vocab_size=1024)
    graph = lower(Workload(shape=shape, seq_len=256), ParallelDims(tp=2))
    layer = [op.name for op in graph.operators if op.part is Part.LAYER and op.pass_ is Pass.FORWARD]
    assert [n for n in layer if "." not in n] == ["norm", "ssm_in", "ssm_conv", "ssm_scan", "ssm_out", "residual"]
    assert named(graph, "ssm_scan").kind is MemoryBoundKind.SCAN
    decoding = lower(Workload(shape=shape, phase=Phase.DECODE))
    assert named(decoding, "ssm_scan").bytes_moved >= 1024 * 16 * 8


def chunked(**changes: Any) -> StateSpaceMixer:
    sizes = {"num_heads": 16, "head_dim": 64, "state_size": 32, "num_groups": 4, "conv_size": 4, "chunk_size": 128}
    return mamba2_mixer(512, **{**sizes, **changes})


def scanning(mixer: StateSpaceMixer, **changes: Any) -> OperatorGraph:
    stack = Stack(
        name="decoder", hidden_size=512, runs=(LayerRun(layer=Layer(mixers=(mixer,), norms=(Norm(),)), count=1),)
    )
    shape = TransformerShape(name="mamba2", stacks=(stack,), vocab_size=1024)
    return lower(Workload(shape=shape, **{"seq_len": 1024, "microbatch_size": 2, **changes}))


def test_a_scan_by_chunks_passes_one_state_per_chunk_through_memory() -> None:
    graph = scanning(chunked())
    states = 2 * 1024 / 128 * 1024 * 32
    assert named(graph, "ssm_pass").bytes_moved == states * (4 + 2), "read in fp32, written in 16 bits"
    assert named(graph, "ssm_scan.states").bytes_moved > 4 * states
    coarse = scanning(chunked(chunk_size=256))
    assert named(coarse, "ssm_pass").bytes_moved == states / 2 * 6


def test_heads_of_a_group_are_columns_of_one_product_so_that_keys_are_read_once() -> None:
    few, many = (named(scanning(chunked(num_groups=n)), "ssm_scan.states") for n in (2, 16))
    assert few.flops == many.flops
    assert few.bytes_moved < many.bytes_moved


def test_backward_of_a_scan_by_chunks_computes_scores_and_states_again() -> None:
    graph = scanning(chunked())
    assert named(graph, "ssm_scan.scores_again").flops == named(graph, "ssm_scan.scores").flops
    assert named(graph, "ssm_scan.states_again").flops == named(graph, "ssm_scan.states").flops
    assert named(graph, "ssm_conv.backward").bytes_moved == 2.5 * named(graph, "ssm_conv").bytes_moved


def test_a_decoding_step_moves_the_state_itself_however_a_prompt_is_scanned() -> None:
    step = scanning(chunked(), phase=Phase.DECODE)
    assert named(step, "ssm_scan").bytes_moved >= 2 * 1024 * 32 * 8
    assert not [op for op in step.operators if op.role is Role.SCAN and isinstance(op, Gemm)]


def test_experts_in_one_kernel_are_not_activated_or_cast_between_their_products() -> None:
    def kernels(model: str, **changes: Any) -> set[str]:
        workload = Workload(shape=load_model(model), seq_len=4096, dtype=DType.MXFP8)
        graph = lower(workload, ParallelDims(ep=8), Kernels(narrowing=NARROWING[Recipe.MXFP8], **changes))
        return {op.name.removeprefix("moe.") for op in graph.operators if isinstance(op, MemoryBound)}

    gone = kernels("qwen3-30b-a3b") - kernels("qwen3-30b-a3b", fused_experts=True)
    between = {"expert_activation", "expert_activation.backward", "expert_down.cast", "expert_gate_up.grad_cast"}
    sorting = {f"{n}{p}" for n in ("permute", "unpermute", "expert_sort", "expert_unsort") for p in ("", ".backward")}
    padding = {f"{n}{p}" for n in ("expert_pad", "expert_unpad") for p in ("", ".backward")}
    assert gone == between | sorting | padding
    assert kernels("qwen3-30b-a3b") - kernels("qwen3-30b-a3b", pads_experts=False) == padding
    ragged = kernels("nemotron-3-nano") - kernels("nemotron-3-nano", fused_experts=True)
    assert ragged == sorting | padding, "no gate, and 1856 is not a multiple of 256"


def test_narrow_types_cast_their_inputs_and_leave_the_router_attention_and_logits_wide() -> None:
    graph = lower(Workload(shape=load_model("mixtral-8x7b"), seq_len=2048, dtype=DType.FP8))
    assert named(graph, "qkv").dtype is DType.FP8
    assert {named(graph, name).dtype for name in ("attention", "router", "logits", "norm")} == {DType.BF16}
    assert named(graph, "qkv.cast").bytes_moved == 2048 * 4096 * (2 + 1 + 1)


# -- names and parts --------------------------------------------------------------------------------------------


@given(workload=workloads(), dims=parallel_dims())
def test_names_are_unique_and_every_size_is_positive(workload: Workload, dims: ParallelDims) -> None:
    operators = lower(workload, dims).operators
    assert len({op.name for op in operators}) == len(operators)
    unset = {"causal", "latent", "accumulates", "quantized", "apart", "eager", "alone"}
    allowed_zero = {"block", "window", "flops", "cols", "bytes_moved", "masked_rows", *unset}
    for op in operators:
        assert all(
            getattr(op, f.name) > 0
            for f in fields(op)
            if isinstance(getattr(op, f.name), int) and f.name not in allowed_zero
        ), op


def test_layers_of_several_kinds_carry_a_prefix() -> None:
    names = [op.name for op in lower(Workload(shape=load_model("deepseek-v3"), seq_len=2048)).operators]
    assert {"dense.q_down", "moe.q_down", "moe.router", "moe.expert_gate_up", "mtp.proj", "logits"} <= set(names)


def test_parts_tell_layers_from_what_surrounds_them() -> None:
    by_part = {
        op.name: op.part
        for op in lower(Workload(shape=single(), seq_len=2048), ParallelDims(tp=2), optimizer=True).operators
    }
    assert by_part["qkv.wgrad"] is by_part["attention.all_gather"] is Part.LAYER
    assert by_part["embedding.backward"] is Part.EMBEDDING
    assert by_part["logits.dgrad"] is by_part["cross_entropy"] is by_part["final_norm"] is Part.HEAD
    assert by_part["optimizer.mlp"] is Part.OPTIMIZER


# -- errors -----------------------------------------------------------------------------------------------------


def wide_vocab() -> TransformerShape:
    return replace(single(), vocab_size=50257)


@pytest.mark.parametrize(
    ("shape", "dims", "sentence"),
    [
        (single(heads=30, kv_heads=30), {"tp": 4}, "tp=4: does not split num_heads=30 (28 and 32 do); nearest: 2"),
        (wide_vocab(), {"tp": 2}, "tp=2: does not split vocab_size=50257 (50258 does); nearest: 1"),
        (single(heads=8, kv_heads=8), {"tp": 16}, "tp=16: does not split num_heads=8 (16 does); nearest: 8"),
        (load_model("mixtral-8x7b"), {"ep": 3}, "ep=3: does not split num_experts=8 (6 and 9 do); nearest: 2 or 4"),
    ],
)
def test_what_does_not_split_is_said_in_one_sentence(
    shape: TransformerShape, dims: dict[str, int], sentence: str
) -> None:
    with pytest.raises(InputError) as error:
        lower(Workload(shape=shape, seq_len=2048), ParallelDims(**dims))
    assert str(error.value) == sentence
    assert feasible(shape, ParallelDims(**dims)) is False


def test_memory_bound_rows_know_their_problem() -> None:
    graph = lower(Workload(shape=single(), microbatch_size=2, seq_len=100), optimizer=True)
    rows = {op.name: op for op in graph.operators if isinstance(op, MemoryBound)}
    tokens, h, f, e = 200, 512, 1024, 2
    assert rows["norm"].bytes_moved == 2 * tokens * h * e
    assert rows["residual"].bytes_moved == 3 * tokens * h * e
    assert rows["mlp_activation"].bytes_moved == 3 * tokens * f * e
    assert rows["mlp_activation.backward"].bytes_moved == 5 * tokens * f * e
    assert rows["embedding"].bytes_moved == 2 * tokens * h * e
    assert rows["optimizer.embedding"].bytes_moved == 30 * 1024 * 512


@pytest.mark.parametrize(("field", "least"), [("microbatch_size", 1), ("seq_len", 1), ("context_len", 0)])
def test_counts_of_sequences_and_tokens_have_a_least_value(field: str, least: int) -> None:
    with pytest.raises(InputError, match=f"{field}={least - 1}: must be at least {least}"):
        lower(replace(Workload(shape=single(), seq_len=2048), **{field: least - 1}))


def test_no_devices_is_an_error() -> None:
    with pytest.raises(InputError, match="tp=0: must be at least 1"):
        lower(Workload(shape=single(), seq_len=2048), ParallelDims(tp=0))


def test_the_rotated_share_of_a_head_stays_when_heads_widen() -> None:
    half = edit(single(rotary_dim=32), head_dim=128)
    assert half.attention is not None
    assert half.attention.rotary_dim == 64
    none = lower(Workload(shape=edit(single(), head_dim=np.array([64, 128])), seq_len=2048))
    assert "rotary" not in {op.name for op in none.operators}
