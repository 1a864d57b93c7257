"""Schedule problems from a layer and an accelerator: types, latencies, fusion, many candidates at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accelerators import TPU
from sartor.cost.chip.operator_latency import Fused, _one_core, _operator_time_s
from sartor.errors import InputError
from sartor.model.lower.graph import lower_layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import Gemm, MemoryBound, MemoryBoundKind, OperatorGraph
from sartor.schedules import CoreType, ScheduleProblem, solve
from sartor.schedules.makespan import UNIT_S, fuse_graph, schedule_problem, schedule_problems


def gpt3() -> TransformerShape:
    return replace(load_model("gpt3-175b"), vocab_size=51200)


def layer(tp: int = 4) -> tuple[OperatorGraph, OperatorGraph]:
    workload = Workload(shape=gpt3(), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED)
    graph = lower_layer(workload, ParallelDims(tp=tp, sequence_parallel=False))
    return graph.forward, graph.backward


def types(problem: ScheduleProblem) -> dict[str, CoreType]:
    return {str(op.id): op.core_type for op in problem.operators}


def test_operators_get_the_cores_they_need() -> None:
    kinds = types(schedule_problem(layer()[0], TPU))
    assert kinds["norm"] is kinds["softmax"] is CoreType.VC
    assert kinds["attn_score"] is kinds["qkv"] is CoreType.TC
    assert kinds["mlp_up+mlp_activation"] is CoreType.FUSED
    assert kinds["attention.all_reduce"] is CoreType.VC


def test_flash_attention_takes_one_core_of_each() -> None:
    graph = lower_layer(Workload(shape=gpt3(), seq_len=2048)).forward
    assert types(schedule_problem(graph, TPU))["attention"] is CoreType.FUSED


def test_latencies_are_those_of_the_cost_model_rounded_up() -> None:
    graph = layer()[0]
    problem = schedule_problem(graph, TPU, fuse=False)
    assert (problem.num_tc, problem.num_vc) == (8, 2)
    for op, scheduled in zip(graph.operators, problem.operators, strict=True):
        assert scheduled.latency == np.ceil(_operator_time_s(op, _one_core(TPU)) / UNIT_S)
        assert scheduled.intra_latency == np.ceil(_operator_time_s(op, TPU) / UNIT_S)


def test_runs_of_one_operator_follow_each_other() -> None:
    """Ring attention of 4 devices: four kernels and three exchanges forward."""
    graph = lower_layer(Workload(shape=gpt3(), seq_len=2048), ParallelDims(cp=4)).forward
    problem = schedule_problem(graph, TPU, fuse=False)
    found = {str(op.id): op.intra_latency for op in problem.operators}
    for name, runs in {"attention": 4, "attention.cp_ring": 3}.items():
        (op,) = (op for op in graph.operators if op.name == name)
        assert op.count == runs
        assert found[name] == np.ceil(runs * _operator_time_s(op, TPU) / UNIT_S)


def test_edges_survive_fusion() -> None:
    graph = layer()[0]
    problem = schedule_problem(graph, TPU)
    assert ("norm#2", "mlp_up+mlp_activation") in problem.edges
    assert ("mlp_up+mlp_activation", "mlp_down") in problem.edges
    assert len(problem.operators) == len(graph.operators) - 1


def test_a_residual_is_fused_where_nothing_is_reduced_first() -> None:
    """At t=1 the sum follows the projection; the stream it adds was there before the projection began."""
    kinds = types(schedule_problem(layer(tp=1)[0], TPU))
    assert kinds["attn_out+residual"] is kinds["mlp_down+residual#2"] is CoreType.FUSED
    assert "attn_out" in types(schedule_problem(layer(tp=4)[0], TPU))


def test_what_waits_for_something_else_is_not_fused() -> None:
    """gate and up both precede the activation: neither takes it in. A result used twice stays."""
    up, gate = (Gemm(name=name, m=8, n=8, k=8) for name in ("up", "gate"))
    act = MemoryBound(name="act", kind=MemoryBoundKind.ACTIVATION, rows=8, cols=8, bytes_moved=1.0)
    down = Gemm(name="down", m=8, n=8, k=8)
    both = OperatorGraph(operators=(up, gate, act, down), edges=((0, 2), (1, 2), (2, 3)))
    assert fuse_graph(both).operators == both.operators
    twice = OperatorGraph(operators=(up, act, down), edges=((0, 1), (0, 2), (1, 2)))
    assert fuse_graph(twice).operators == twice.operators
    chain = fuse_graph(OperatorGraph(operators=(up, act, down)))
    assert chain.operators == (Fused(product=up, epilogue=act), down)
    assert chain.edges == ((0, 1),)


def test_many_candidates_equal_one_at_a_time() -> None:
    graph = layer()[1]
    grid = replace(TPU, num_tensor_cores=np.asarray([1, 4, 8]), num_vector_cores=np.asarray([1, 2, 2]))
    for i, problem in enumerate(schedule_problems(graph, grid)):
        point = replace(TPU, num_tensor_cores=(1, 4, 8)[i], num_vector_cores=(1, 2, 2)[i])
        assert problem == schedule_problem(graph, point)


def test_operators_without_time_are_nops() -> None:
    graph = OperatorGraph(
        operators=(MemoryBound(name="none", kind=MemoryBoundKind.OPTIMIZER, rows=1, cols=0, bytes_moved=0.0),)
    )
    assert types(schedule_problem(graph, TPU)) == {"none": CoreType.NOP}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_real_layers_are_scheduled_within_their_bounds(tp: int) -> None:
    """No shorter than the critical path of the quickest modes, no longer than one operator after another."""
    for graph in layer(tp):
        problem = schedule_problem(graph, TPU)
        answer = solve(problem, time_limit_s=2.0)
        serial = sum(op.intra_latency for op in problem.operators)
        assert max(op.intra_latency for op in problem.operators) <= answer.makespan <= serial


def test_collectives_without_links_are_named() -> None:
    with pytest.raises(InputError, match="num_links"):
        schedule_problem(layer()[0], replace(TPU, num_links=0))


def test_many_accelerators_where_one_is_asked_for_are_named() -> None:
    with pytest.raises(InputError, match="must be one accelerator"):
        schedule_problem(layer()[0], replace(TPU, num_stacks=np.asarray([2, 4])))
