"""`fastest_plan` is `search_plans(...).best`, and no plan fits on fewer devices than `fewest_devices`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import TrainingJob
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.plans import search
from sartor.plans.search import fastest_plan, fewest_devices, search_plans
from sartor.step import tables
from sartor.step.question import training_job
from sartor.step.step import step

MODELS = ("llama-3-8b", "mixtral-8x7b", "gpt2-large", "bert-large")
TRAINERS = ("megatron", "torchtitan", "deepspeed", "maxtext")


@st.composite
def jobs(draw: Any) -> TrainingJob:
    shape = load_model(draw(st.sampled_from(MODELS)))
    if len(shape.stacks) == 1:
        shape = edit(shape, num_layers=draw(st.integers(2, 12)))
    gpu, batch = load_cluster("dgx-a100").gpu, draw(st.sampled_from((8, 24, 64)))
    trainer = draw(st.sampled_from(TRAINERS))
    return training_job(shape, gpu, global_batch_size=batch, seq_len=512, framework=trainer)[0]


def cluster(hbm_gb: float) -> Cluster:
    whole = load_cluster("dgx-a100")
    return replace(whole, gpu=replace(whole.gpu, hbm_bytes=hbm_gb * 1e9))


@settings(max_examples=15, deadline=None)
@given(job=jobs(), devices=st.sampled_from((1, 2, 4, 8)), hbm_gb=st.sampled_from((6.0, 16.0, 40.0, 80.0)))
def test_the_fastest_plan_is_the_best_of_the_search(job: TrainingJob, devices: int, hbm_gb: float) -> None:
    where = cluster(hbm_gb)
    assert fastest_plan(job, where, devices) == search_plans(job, where, devices, explain=False).best


@settings(max_examples=15, deadline=None)
@given(job=jobs(), hbm_gb=st.sampled_from((4.0, 6.0, 16.0)))
def test_no_plan_fits_on_fewer_than_the_fewest_devices(job: TrainingJob, hbm_gb: float) -> None:
    where = cluster(hbm_gb)
    fewest = fewest_devices(job, where)
    for devices in (1, 2, 4, 8):
        assert devices >= fewest or fastest_plan(job, where, devices) is None


def test_nothing_is_timed_where_no_plan_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """70B on 16 H100 is 10% over memory in many plans, which fit under no placement of their layers either."""
    where = load_cluster("dgx-h100")
    job = training_job(load_model("llama-3.1-70b"), where.gpu, global_batch_size=512)[0]
    monkeypatch.delattr(search, "timed")
    assert fastest_plan(job, where, 16) is None


def test_a_search_leaves_its_blocks_to_what_is_priced_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    where = load_cluster("dgx-h100").reached(8)
    job = training_job(load_model("llama-2-7b"), where.gpu, global_batch_size=64)[0]
    plan = fastest_plan(job, where, 8)
    assert plan is not None
    monkeypatch.delattr(tables, "row_times")
    larger = replace(job, global_batch_size=128, moments_dtype=DType.BF16)  # on which no block depends
    assert step(larger, plan.plan, where).parts["compute_s"] == plan.step.parts["compute_s"]
