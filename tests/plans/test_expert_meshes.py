"""Experts on the meshes that trainers can build: what is spread over which devices, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sartor import api
from sartor.cli import run as sartor_command
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.zoo import load_model
from sartor.plans.space import broken
from sartor.step.footprint import every_stage
from sartor.step.trainers import record_named

CLUSTER = load_cluster("dgx-h100")


def job_of(model: str, trainer: str, **switches: Any) -> TrainingJob:
    record = replace(record_named(trainer), **switches)
    return TrainingJob(shape=load_model(model), seq_len=4096, global_batch_size=4096, trainer=record)


def plan_of(job: TrainingJob, **axes: int) -> TrainingPlan:
    count = job.global_batch_size // axes.get("dp", 1)
    return TrainingPlan(num_microbatches=count).with_columns(**axes)


def states(job: TrainingJob, **axes: int) -> float:
    """GiB of weights, gradients and optimizer states on the first stage."""
    return float(every_stage(job, plan_of(job, **axes), CLUSTER).held.states[0, 0]) / 2**30


def test_torchtitan_spreads_experts_over_one_set_of_shards() -> None:
    job = job_of("deepseek-v3", "torchtitan")
    axes = {"dp": 1024, "ep": 16, "zero_stage": 3}
    moe = job.shape.moe_ffn
    assert moe is not None
    experts = 58 * 256 * 3 * 7168 * 2048
    assert states(job, **axes, shard_group=32) > 16 * experts / 32 / 2**30
    assert states(job, **axes) < states(job, **axes, shard_group=64) < states(job, **axes, shard_group=32)


def test_megatron_spreads_experts_over_one_instance_of_its_optimizer() -> None:
    job = job_of("mixtral-8x7b", "megatron")
    axes = {"tp": 2, "dp": 128, "ep": 8, "zero_stage": 1}
    assert states(job, **axes) < states(job, **axes, shard_group=64) < states(job, **axes, shard_group=16)


@pytest.mark.parametrize(
    ("tp", "group", "ep", "runs"), [(1, 8, 16, False), (2, 8, 16, True), (1, 16, 16, True), (1, 32, 64, False)]
)
def test_experts_that_do_not_fit_a_set_of_shards_are_refused(tp: int, group: int, ep: int, runs: bool) -> None:
    job = job_of("deepseek-v3", "torchtitan")
    reasons = broken(job, plan_of(job, tp=tp, dp=1024 // tp, ep=ep, zero_stage=3, shard_group=group))
    assert reasons == (
        () if runs else ("ep does not divide tp x shard_group: torchtitan spreads experts inside a set of shards",)
    )


def test_no_plan_of_a_search_spreads_experts_beyond_a_set_of_shards() -> None:
    answer = api.plan(
        "deepseek-v3", "dgx-h100", num_devices=1024, global_batch_size=4096, framework="torchtitan", zero_stage=3, tp=1
    )
    plans = [entry.plan for entry in (*answer.search.top, *answer.search.front)]
    assert all(not plan.shard_group or plan.shard_group % plan.dims.ep == 0 for plan in plans)
    words = {"num_devices": 1024, "global_batch_size": 4096, "framework": "torchtitan", "phase": "train"}
    with pytest.raises(InputError, match="ep does not divide tp x shard_group"):
        api.estimate("deepseek-v3", cluster="dgx-h100", **words, tp=1, pp=1, ep=16, zero_stage=3, shard_group=8)


def test_megatron_splits_experts_over_tp_unless_it_is_told_not_to() -> None:
    split, whole = (states(job_of("mixtral-8x7b", "megatron", **s), tp=8) for s in ({}, {"splits_experts": False}))
    assert split == pytest.approx(93, rel=0.08)
    assert whole > 5 * split
    nemo = states(job_of("mixtral-8x7b", "nemo"), tp=8)
    assert nemo > 4 * split  # its recipes set expert_tensor_parallel_size=1; 16-bit gradients


def test_torchtitan_splits_experts_over_tp_without_expert_parallelism_alone() -> None:
    job = job_of("qwen3-30b-a3b", "torchtitan")
    shared = {"tp": 4, "dp": 8, "zero_stage": 3}
    assert states(job, **shared, ep=1) == pytest.approx(states(job, **shared, ep=4), rel=0.02)
    assert job.trainer.expert_tp(4, 1) == 4
    assert job.trainer.expert_tp(4, 8) == 1


def test_a_search_tries_whole_and_split_experts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cluster", "dgx-h100", "--num-devices", "64", "--global-batch-size", "256", "--framework", "megatron"]
    assert sartor_command(["plan", "mixtral-8x7b", "--tp", "8", *words]) == 0
    assert "split_experts=off is the fastest setting; split_experts=on +" in " ".join(capsys.readouterr().out.split())
    assert sartor_command(["plan", "mixtral-8x7b", "--tp", "8", *words, "--fix", "split_experts=on"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fastest setting" not in text
    assert "split_experts=on" in text


@pytest.mark.parametrize(("model", "axes"), [("qwen3-30b-a3b", {"tp": 8}), ("llama-3.2-1b", {"pp": 2})])
def test_torchtitan_shares_no_heads_and_no_tables_between_ranks(model: str, axes: dict[str, int]) -> None:
    job = job_of(model, "torchtitan")
    assert broken(job, plan_of(job, **axes, dp=8, zero_stage=3))
    job = job_of(model, "megatron")
    assert not broken(job, plan_of(job, **axes, dp=8, zero_stage=1))
