"""One layer as a graph: the same operators as ``lower`` counts, and edges that follow the data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sartor.model.lower import feasible, lower
from sartor.model.lower.graph import lower_layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model, model_names
from sartor.operators import DType, Operator, OperatorGraph, Part


def padded(name: str) -> TransformerShape:
    """A model with a vocabulary that splits, as Megatron pads it."""
    shape = load_model(name)
    return replace(shape, vocab_size=-(-shape.vocab_size // 128) * 128)


def edges(graph: OperatorGraph) -> set[tuple[str, str]]:
    return {(graph.operators[a].name, graph.operators[b].name) for a, b in graph.edges}


def reachable(graph: OperatorGraph, source: str) -> set[str]:
    after: dict[str, set[str]] = {}
    for a, b in edges(graph):
        after.setdefault(a, set()).add(b)
    seen, open_ = set(), [source]
    while open_:
        for name in after.get(open_.pop(), ()):
            if name not in seen:
                seen.add(name)
                open_.append(name)
    return seen


def independent(graph: OperatorGraph, a: str, b: str) -> bool:
    return b not in reachable(graph, a) and a not in reachable(graph, b)


def likeness(op: Operator) -> tuple[Any, ...]:
    return type(op), op.pass_, float(op.flops), float(op.bytes_moved)


def splits() -> list[tuple[str, int, bool]]:
    """Models of one stack, with the degrees that divide them."""
    ways = [(1, True), (2, True), (2, False)]
    shapes = {name: padded(name) for name in model_names() if len(load_model(name).stacks) == 1}
    return [(name, tp, sp) for name, s in shapes.items() for tp, sp in ways if feasible(s, ParallelDims(tp=tp))]


@pytest.mark.parametrize(("name", "tp", "sequence_parallel"), splits())
def test_the_layers_add_up_to_what_lower_counts(name: str, tp: int, sequence_parallel: bool) -> None:
    shape, dims = padded(name), ParallelDims(tp=tp, sequence_parallel=sequence_parallel)
    for kernel in AttentionKernel:
        workload = Workload(shape=shape, seq_len=2048, attention_kernel=kernel)
        counted: Counter[Any] = Counter()
        for op in lower(workload, dims).operators:
            if op.part is Part.LAYER and not op.name.startswith("mtp."):
                counted[likeness(op)] += op.count
        laid: Counter[Any] = Counter()
        for number, run in enumerate(shape.main.runs):
            layer = lower_layer(workload, dims, number)
            for op in (*layer.forward.operators, *layer.backward.operators):
                laid[likeness(op)] += op.count * run.count
        assert laid == counted


@pytest.mark.parametrize(
    "name", ["gpt3-175b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-neox-20b", "gemma-2-9b"]
)
def test_edges_go_forward_and_names_are_unique(name: str) -> None:
    workload = Workload(shape=padded(name), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED)
    for tp in (1, 2):
        layer = lower_layer(workload, ParallelDims(tp=tp))
        for graph in (layer.forward, layer.backward):
            names = [op.name for op in graph.operators]
            assert len(set(names)) == len(names)
            assert all(a < b for a, b in graph.edges)
            assert len(set(graph.edges)) == len(graph.edges)


def test_a_llama_layer_forward_is_the_textbooks() -> None:
    workload = Workload(shape=load_model("llama-3.1-8b"), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED)
    assert edges(lower_layer(workload).forward) == {
        ("norm", "qkv"),
        ("qkv", "rotary"),
        ("rotary", "attn_score"),
        ("attn_score", "softmax"),
        ("softmax", "attn_over_value"),
        ("attn_over_value", "attn_out"),
        ("attn_out", "residual"),
        ("residual", "norm#2"),
        ("norm#2", "mlp_gate_up"),
        ("mlp_gate_up", "mlp_activation"),
        ("mlp_activation", "mlp_down"),
        ("mlp_down", "residual#2"),
        ("residual", "residual#2"),
    }


def test_nothing_waits_for_a_weight_gradient() -> None:
    for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-neox-20b"):
        graph = lower_layer(Workload(shape=padded(name), seq_len=2048), ParallelDims(tp=2)).backward
        sources = {a for a, _ in edges(graph)}
        weights = {op.name for op in graph.operators if op.name.split("#")[0].endswith(".wgrad")}
        assert weights
        assert not weights & sources


def test_a_weight_gradient_runs_beside_the_input_gradient() -> None:
    graph = lower_layer(Workload(shape=load_model("llama-3.1-8b"), seq_len=2048)).backward
    for linear in ("mlp_down", "mlp_gate_up", "attn_out", "qkv"):
        assert independent(graph, f"{linear}.dgrad", f"{linear}.wgrad")


def test_unfused_attentions_gradients_branch() -> None:
    workload = Workload(shape=load_model("llama-3.1-8b"), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED)
    graph = lower_layer(workload).backward
    assert independent(graph, "attn_over_value.dv", "attn_over_value.dp")
    assert independent(graph, "attn_score.dq", "attn_score.dk")
    assert {"rotary.backward"} <= reachable(graph, "attn_over_value.dv")


def test_the_gathered_input_is_for_weight_gradients_alone() -> None:
    graph = lower_layer(Workload(shape=load_model("llama-3.1-8b"), seq_len=2048), ParallelDims(tp=2)).backward
    assert reachable(graph, "attention.input_all_gather") == {"qkv.wgrad"}
    latent = lower_layer(Workload(shape=padded("deepseek-v3"), seq_len=2048), ParallelDims(tp=2)).backward
    assert reachable(latent, "attention.input_all_gather") == {"q_up.wgrad"}


def test_a_shared_expert_shares_nothing_with_the_routed_ones_but_input_and_sum() -> None:
    layer = lower_layer(Workload(shape=padded("deepseek-v3"), seq_len=2048), ParallelDims(tp=2), run=1)
    assert independent(layer.forward, "shared_expert.reduce_scatter", "moe.reduce_scatter")
    assert independent(layer.backward, "shared_expert.grad_all_gather", "moe.grad_all_gather")


def test_separate_projections_and_branches_are_independent() -> None:
    neox = lower_layer(Workload(shape=padded("gpt-neox-20b"), seq_len=2048), ParallelDims(tp=2)).forward
    assert independent(neox, "attention", "mlp_up")  # a parallel layer
    deepseek = lower_layer(Workload(shape=padded("deepseek-v3"), seq_len=2048), ParallelDims(tp=2), run=1).forward
    assert independent(deepseek, "shared_down", "expert_down")
    separate = load_model("llama-3.1-8b")
    run = separate.main.runs[0]
    mixer = replace(run.layer.mixers[0], fused_qkv=False)  # type: ignore[call-arg]
    layer = replace(run.layer, mixers=(mixer,))
    stack = replace(separate.main, runs=(replace(run, layer=layer),))
    shape = replace(separate, stacks=(stack,))
    graph = lower_layer(Workload(shape=shape, seq_len=2048))
    for side, suffix in ((graph.forward, ""), (graph.backward, ".dgrad")):
        assert independent(side, f"q{suffix}", f"k{suffix}")
        assert independent(side, f"k{suffix}", f"v{suffix}")


def test_casts_come_before_the_products_that_read_them() -> None:
    graph = lower_layer(Workload(shape=load_model("llama-3.1-8b"), seq_len=2048, dtype=DType.FP8))
    assert ("qkv.cast", "qkv") in edges(graph.forward)
    assert {("qkv.grad_cast", "qkv.dgrad"), ("qkv.grad_cast", "qkv.wgrad")} <= edges(graph.backward)


def test_serving_has_no_backward() -> None:
    assert (
        lower_layer(Workload(shape=load_model("llama-3.1-8b"), seq_len=2048, phase=Phase.PREFILL)).backward.operators
        == ()
    )
