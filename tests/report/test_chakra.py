"""Chakra traces: what all ranks do together is what the plan does, message for message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.lower import lower
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import Axis, Collective
from sartor.report.trace import COLLECTIVE, COMP, RECV, SEND, chakra_files
from sartor.step.orders import groups_of
from sartor.step.question import kernels_of, workload_of

CLUSTER = load_cluster("dgx-h100")
PLANS = {
    "one device": TrainingPlan(num_microbatches=3),
    "replicas": TrainingPlan(dims=ParallelDims(dp=4), num_microbatches=2, zero_stage=1),
    "tensors": TrainingPlan(dims=ParallelDims(tp=4, dp=2), num_microbatches=2),
    "contexts": TrainingPlan(dims=ParallelDims(tp=2, cp=2, dp=2), num_microbatches=2),
    "a pipeline": TrainingPlan(dims=ParallelDims(pp=4, tp=2), num_microbatches=4, zero_stage=1),
    "chunks": TrainingPlan(dims=ParallelDims(pp=2, dp=2), num_microbatches=4, virtual_stages=2),
    "zero bubble": TrainingPlan(dims=ParallelDims(pp=4), num_microbatches=6, schedule=PipelineSchedule.ZERO_BUBBLE),
}


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protobuf message: numbers, and texts or messages as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value: Any
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        yield key >> 3, value


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def nodes_in(data: bytes) -> list[dict[str, Any]]:
    out, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        out.append(data[at : at + size])
        at += size
    found = []
    for message in out[1:]:
        node: dict[str, Any] = {"deps": []}
        for number, value in fields(message):
            if number in (1, 3):
                node["id" if number == 1 else "type"] = value
            elif number == 5:
                node["deps"].append(varint(value, 0)[0])
            elif number == 10:
                attribute = dict(fields(value))
                name = attribute.pop(1).decode()
                node[name] = next(iter(attribute.values()))
        found.append(node)
    return found


def job(model: str = "llama-3.2-1b") -> TrainingJob:
    return TrainingJob(shape=load_model(model), seq_len=2048, global_batch_size=16)


def traces(asked: TrainingJob, plan: TrainingPlan) -> tuple[list[list[dict[str, Any]]], dict[str, list[int]]]:
    files = dict(chakra_files(asked, plan, CLUSTER))
    ranks = [nodes_in(files[f"step.{rank}.et"]) for rank in range(int(plan.num_devices))]
    return ranks, json.loads(files["comm_group.json"])


@pytest.mark.parametrize("name", PLANS)
def test_all_ranks_together_do_the_plans_flops(name: str) -> None:
    plan, asked = PLANS[name], job()
    ranks, _ = traces(asked, plan)
    graph = lower(workload_of(asked, plan.dims.tp, plan.microbatch_size), plan.dims, kernels_of(asked, CLUSTER))
    pipelines = plan.dims.tp * plan.dims.cp * plan.dims.dp
    done = sum(node["num_ops"] for nodes in ranks for node in nodes if node["type"] == COMP)
    assert done == pytest.approx(graph.flops * plan.num_microbatches * pipelines, rel=1e-6)


@pytest.mark.parametrize("name", PLANS)
def test_all_ranks_together_exchange_the_plans_bytes(name: str) -> None:
    plan, asked = PLANS[name], job()
    ranks, groups = traces(asked, plan)
    graph = lower(workload_of(asked, plan.dims.tp, plan.microbatch_size), plan.dims, kernels_of(asked, CLUSTER))
    within = {json.dumps(g) for axis, g in _groups(plan) if axis in (Axis.TENSOR, Axis.CONTEXT)}
    told = sum(
        float(op.message_bytes * op.count) for op in graph.operators if isinstance(op, Collective) and op.group_size > 1
    )
    sent = sum(
        node["comm_size"]
        for nodes in ranks
        for node in nodes
        if node["type"] == COLLECTIVE and json.dumps(groups[node["pg_name"].decode()]) in within
    )
    pipelines = plan.dims.tp * plan.dims.cp * plan.dims.dp
    assert sent == pytest.approx(told * plan.num_microbatches * pipelines, rel=1e-6)


def _groups(plan: TrainingPlan) -> Iterator[tuple[Axis, list[int]]]:
    for axis, groups in groups_of(plan, splits_experts=True).items():
        yield from ((axis, group) for group in groups if len(group) > 1)


@pytest.mark.parametrize("name", PLANS)
def test_every_message_that_is_sent_is_received(name: str) -> None:
    ranks, _ = traces(job(), PLANS[name])
    ends = Counter[tuple[int, ...]]()
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            if node["type"] in (SEND, RECV):
                assert node["comm_src" if node["type"] == SEND else "comm_dst"] == rank
                key = (node["comm_src"], node["comm_dst"], node["comm_tag"], node["comm_size"])
                ends[key] += 1 if node["type"] == SEND else -1
    assert set(ends.values()) <= {0}
    if PLANS[name].dims.pp > 1:
        assert ends


def test_a_node_waits_for_earlier_ones_of_its_rank() -> None:
    for nodes in traces(job(), PLANS["a pipeline"])[0]:
        for node in nodes:
            assert all(before < node["id"] for before in node["deps"])
        assert len({node["id"] for node in nodes}) == len(nodes)


def test_every_rank_is_in_one_group_of_an_axis_and_knows_it() -> None:
    plan = PLANS["contexts"]
    ranks, groups = traces(job(), plan)
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            if node["type"] == COLLECTIVE:
                assert rank in groups[node["pg_name"].decode()]
    for axis, table in groups_of(plan, splits_experts=True).items():
        assert sorted(rank for group in table for rank in group) == list(range(8)), axis


def test_recomputation_runs_the_layers_forward_again() -> None:
    plan = PLANS["tensors"]
    plain, again = (
        sum(node["num_ops"] for node in traces(job(), each)[0][0] if node["type"] == COMP)
        for each in (plan, replace(plan, recompute=Recompute.FULL))
    )
    assert 1.2 < again / plain < 1.34


def test_experts_exchange_among_the_ranks_that_share_them() -> None:
    plan = TrainingPlan(dims=ParallelDims(dp=8, ep=4), num_microbatches=2, zero_stage=1)
    ranks, groups = traces(job("mixtral-8x7b"), plan)
    kinds = {groups[node["pg_name"].decode()].__repr__() for node in ranks[5] if node["type"] == COLLECTIVE}
    assert kinds == {"[0, 1, 2, 3, 4, 5, 6, 7]", "[4, 5, 6, 7]", "[1, 5]"}


def test_a_plan_of_too_many_nodes_is_refused() -> None:
    plan = TrainingPlan(dims=ParallelDims(dp=8192), num_microbatches=512)
    with pytest.raises(InputError, match="ranks x tasks must not exceed"):
        dict(chakra_files(job(), plan, CLUSTER))
