"""The graph's sums equal published formulas, to the unit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import closed_form as paper
from sartor.model.counts import count_params
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    MoeFfn,
    Norm,
    NormKind,
)
from sartor.model.lower import lower
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, OperatorGraph, Pass
from strategies import dense_shapes, multiples

sizes = {
    "b": st.integers(1, 8),
    "s": st.integers(1, 4096),
    "heads": st.integers(1, 32),
    "d": multiples(8, 1, 16),
    "layers": st.integers(1, 64),
    "v": st.integers(1, 70000),
}


def gpt(heads: int, d: int, layers: int, v: int, s: int) -> TransformerShape:
    h = heads * d
    norm = Norm(kind=NormKind.LAYER_NORM, bias=True)
    mixer = AttentionMixer(num_heads=heads, num_kv_heads=heads, head_dim=d, q_bias=True, kv_bias=True, out_bias=True)
    ffn = DenseFfn(ffn_hidden_size=4 * h, gated=False, up_bias=True, down_bias=True)
    layer = Layer(mixers=(mixer,), ffn=ffn, norms=(norm, norm))
    stack = Stack(name="decoder", hidden_size=h, runs=(LayerRun(layer=layer, count=layers),), norms=(norm,))
    return TransformerShape(name="gpt", stacks=(stack,), vocab_size=v, learned_positions=s)


def decoder(mixer: AttentionMixer | LatentAttentionMixer, ffn: DenseFfn | MoeFfn, h: int) -> TransformerShape:
    stack = Stack(name="decoder", hidden_size=h, runs=(LayerRun(layer=Layer(mixers=(mixer,), ffn=ffn), count=1),))
    return TransformerShape(name="one layer", stacks=(stack,), vocab_size=8, lm_head=False)


def matmuls(graph: OperatorGraph, pass_: Pass = Pass.FORWARD, but: str = "logits") -> float:
    products = (Gemm, GroupedGemm, Attention)
    rows = [op for op in graph.operators if isinstance(op, products) and op.pass_ is pass_]
    return sum(op.flops * op.count for op in rows if op.name != but)


@given(**sizes)
def test_gpt_parameters_are_equation_2_and_the_final_norm(
    b: int, s: int, heads: int, d: int, layers: int, v: int
) -> None:
    shape, h = gpt(heads, d, layers, v, s), heads * d
    graph = lower(Workload(shape=shape, seq_len=2048), optimizer=True)
    held = sum(op.cols * op.count for op in graph.operators if op.pass_ is Pass.OPTIMIZER)
    assert held == count_params(shape).total == paper.gpt_params(layers, h, s, v) + 2 * h


@given(**sizes)
def test_unfused_gpt_training_is_72_b_s_l_h_squared(b: int, s: int, heads: int, d: int, layers: int, v: int) -> None:
    shape, h = gpt(heads, d, layers, v, s), heads * d
    unfused = Workload(shape=shape, microbatch_size=b, seq_len=s, attention_kernel=AttentionKernel.UNFUSED)
    graph = lower(unfused)
    assert matmuls(graph) == layers * paper.gpt_layer_forward_flops(b, s, h)
    assert graph.matmul_flops == paper.gpt_iteration_flops(b, s, h, layers, v)
    recomputed = graph.matmul_flops + matmuls(graph)
    assert recomputed == paper.gpt_iteration_flops_recomputed(b, s, h, layers, v)


def test_equation_3_at_175b_is_the_published_iteration() -> None:
    """GPT-3 175B at B = 1536, s = 2048: the factored form of the paper against the expanded one here."""
    flops = paper.gpt_iteration_flops_recomputed(1536, 2048, 12288, 96, 51200)
    by_hand = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert flops == pytest.approx(by_hand, rel=1e-12)


@given(
    b=sizes["b"],
    s=sizes["s"],
    g=st.integers(1, 8),
    group=st.integers(1, 8),
    d=sizes["d"],
    h=multiples(8, 1, 128),
    f=st.integers(1, 4096),
)
def test_grouped_query_layer_with_a_gate_is_its_formula(
    b: int, s: int, g: int, group: int, d: int, h: int, f: int
) -> None:
    a = g * group
    shape = decoder(AttentionMixer(num_heads=a, num_kv_heads=g, head_dim=d), DenseFfn(ffn_hidden_size=f), h)
    linear = paper.attention_projection_flops(b * s, h, a, g, d) + paper.gated_ffn_flops(b * s, h, f)
    flash = lower(Workload(shape=shape, microbatch_size=b, seq_len=s))
    assert matmuls(flash) == linear + paper.attention_causal_flops(b, s, a, d)
    unfused = lower(Workload(shape=shape, microbatch_size=b, seq_len=s, attention_kernel=AttentionKernel.UNFUSED))
    assert matmuls(unfused) == linear + paper.attention_square_flops(b, s, a, d)


@given(b=sizes["b"], s=sizes["s"], h=multiples(8, 1, 64), f=st.integers(1, 2048), experts=st.integers(1, 64))
def test_experts_are_router_plus_k_gated_parts(b: int, s: int, h: int, f: int, experts: int) -> None:
    k = min(2, experts)
    moe = MoeFfn(num_experts=experts, experts_per_token=k, expert=DenseFfn(ffn_hidden_size=f))
    shape = decoder(AttentionMixer(num_heads=1, num_kv_heads=1, head_dim=8), moe, h)
    graph = lower(Workload(shape=shape, microbatch_size=b, seq_len=s))
    attention = paper.attention_projection_flops(b * s, h, 1, 1, 8) + paper.attention_causal_flops(b, s, 1, 8)
    assert matmuls(graph) == paper.moe_flops(b * s, h, f, experts, k) + attention


@given(b=sizes["b"], s=sizes["s"], a=st.integers(1, 32), q=multiples(8, 1, 64), kv=multiples(8, 1, 64))
def test_latent_attention_expands_when_training_and_absorbs_when_decoding(
    b: int, s: int, a: int, q: int, kv: int
) -> None:
    nope, rope, dv, h, f = 32, 16, 24, 256, 64
    mixer = LatentAttentionMixer(
        num_heads=a, q_lora_rank=q, kv_lora_rank=kv, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=dv
    )
    shape = decoder(mixer, DenseFfn(ffn_hidden_size=f), h)
    trained = lower(Workload(shape=shape, microbatch_size=b, seq_len=s))
    linear = paper.latent_projection_flops(b * s, h, a, q, kv, nope, rope, dv) + paper.gated_ffn_flops(b * s, h, f)
    pairs = b * s * (s + 1) // 2
    assert matmuls(trained) == linear + 2 * a * pairs * (nope + rope + dv)
    decoded = lower(Workload(shape=shape, phase=Phase.DECODE, microbatch_size=b, context_len=s - 1))
    one = paper.latent_projection_flops(b, h, a, q, kv, nope, rope, dv) + paper.gated_ffn_flops(b, h, f)
    assert matmuls(decoded) == one + paper.latent_decode_attention_flops(b, s, a, kv, rope)


@given(shape=dense_shapes(), b=sizes["b"], s=st.integers(1, 2048))
def test_training_is_three_times_forward_and_three_and_a_half_in_flash_attention(
    shape: TransformerShape, b: int, s: int
) -> None:
    graph = lower(Workload(shape=shape, microbatch_size=b, seq_len=s))
    linear = {
        p: sum(op.flops * op.count for op in graph.operators if isinstance(op, Gemm) and op.pass_ is p) for p in Pass
    }
    assert linear[Pass.FORWARD] == linear[Pass.DGRAD] == linear[Pass.WGRAD]
    flash = {
        p: sum(op.flops * op.count for op in graph.operators if isinstance(op, Attention) and op.pass_ is p)
        for p in Pass
    }
    assert flash[Pass.FORWARD] + flash[Pass.BACKWARD] == paper.flash_attention_training_factor() * flash[Pass.FORWARD]


@given(b=sizes["b"], heads=st.integers(1, 16).map(lambda n: 4 * n), s=multiples(4, 1, 512))
def test_a_layer_all_reduces_its_activation_four_times(b: int, heads: int, s: int) -> None:
    shape = replace(gpt(heads, 16, 1, 64, s), lm_head=False)
    for sequence_parallel in (False, True):
        dims = ParallelDims(tp=4, sequence_parallel=sequence_parallel)
        rows = lower(Workload(shape=shape, microbatch_size=b, seq_len=s), dims).operators
        inside = [op for op in rows if isinstance(op, Collective) and op.part == "layer"]
        regathered = sum(op.message_bytes * op.count for op in inside if "input_all_gather" in op.name)
        moved = sum(op.message_bytes * op.count for op in inside) - regathered
        assert moved == paper.tensor_parallel_layer_bytes(b, s, heads * 16, 2) * (2 if sequence_parallel else 1)
