"""A plan's step in time: as long as its price, busy without overlap, holding what its footprint says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import PipelineSchedule, Recompute, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.step.footprint import every_stage
from sartor.step.step import step
from sartor.step.timeline import Timeline, timeline

CLUSTER = load_cluster("dgx-h100", 64)
JOB = TrainingJob(shape=edit(load_model("llama3-8b"), num_layers=16), seq_len=1024, global_batch_size=64)
ZERO_BUBBLE, GPIPE = PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.GPIPE


def plan_of(pp: int, *, tp: int = 1, dp: int = 4, m: int = 16, **more: Any) -> TrainingPlan:
    return TrainingPlan(dims=ParallelDims(tp=tp, pp=pp, dp=dp), num_microbatches=m, **more)


PLANS = {
    "alone": plan_of(1, dp=1, m=4),
    "replicas": plan_of(1, dp=8),
    "1F1B": plan_of(4, zero_stage=1),
    "short 1F1B": plan_of(8, m=3),
    "interleaved": plan_of(4, virtual_stages=2, zero_stage=1),
    "zero bubble": plan_of(4, schedule=ZERO_BUBBLE),
    "GPipe": plan_of(4, schedule=GPIPE),
    "zero bubble in chunks": plan_of(4, virtual_stages=2, schedule=ZERO_BUBBLE),
    "V": plan_of(4, virtual_stages=2, schedule=PipelineSchedule.ZERO_BUBBLE_V, stage_layers=(2, 2, 2, 2, 2, 2, 2, 2)),
    "DualPipeV": plan_of(4, virtual_stages=2, schedule=PipelineSchedule.DUAL_PIPE_V),
    "FSDP": plan_of(2, dp=8, m=4, zero_stage=3),
    "ZeRO 2": plan_of(2, dp=8, m=4, zero_stage=2),
    "recomputed": plan_of(4, recompute=Recompute.FULL, recompute_layers=2),
    "recomputed chunks": plan_of(4, virtual_stages=2, recompute=Recompute.FULL, recompute_layers=2),
    "tensor": plan_of(2, tp=4, dp=8, m=8),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_timeline_is_as_long_as_the_step_is_priced(name: str) -> None:
    found, priced = timeline(JOB, PLANS[name], CLUSTER), step(JOB, PLANS[name], CLUSTER)
    in_v = PipelineSchedule(int(PLANS[name].schedule)).is_v  # whose first device has embedding and head
    assert found.step_s == pytest.approx(priced.step_s, rel=1e-12)
    assert found.simulated_s == pytest.approx(priced.step_s, rel=0.06 if in_v else 0.02)


@pytest.mark.parametrize("name", PLANS)
def test_a_rank_does_one_thing_at_a_time_and_every_task_once(name: str) -> None:
    plan = PLANS[name]
    found = timeline(JOB, plan, CLUSTER)
    pp, virtual, m = int(plan.dims.pp), int(plan.virtual_stages), int(plan.num_microbatches)
    overlaps = virtual > 1
    for d in range(pp):
        events = [e for e in found.of(d) if not (overlaps and e.kind.startswith("send"))]
        assert all(a.end_s <= b.start_s * (1 + 1e-12) for a, b in pairwise(events))
        tasks = [(e.kind, e.chunk, e.microbatch) for e in events if e.kind in ("F", "B", "W")]
        assert len(set(tasks)) == len(tasks) == (3 if PipelineSchedule(int(plan.schedule)).splits else 2) * m * virtual
    assert found.step_s == max(e.end_s for e in found.events)


@pytest.mark.parametrize("name", PLANS)
def test_activations_held_are_the_footprints(name: str) -> None:
    found, whole = timeline(JOB, PLANS[name], CLUSTER), every_stage(JOB, PLANS[name], CLUSTER)
    for track in found.memory:
        held = track.peak_bytes - track.states_bytes
        rel = 1e-6 if name != "recomputed chunks" else 0.1
        assert held == pytest.approx(float(whole.stash[track.device, 0]), rel=rel)
        assert track.bytes_held[-1] == pytest.approx(track.states_bytes)
        assert (np.diff(track.times_s) >= 0).all()


def test_transfers_wait_for_their_sender_or_run_beside() -> None:
    blocked = timeline(JOB, PLANS["interleaved"], CLUSTER)
    job = replace(JOB, trainer=Trainer(p2p_overlap=False))
    waiting = timeline(job, PLANS["interleaved"], CLUSTER)
    assert blocked.step_s <= waiting.step_s
    assert {e.kind for e in waiting.events} >= {
        "F",
        "B",
        "send_forward",
        "send_backward",
        "gradient_reduction",
        "optimizer",
    }


def test_one_plan_at_a_time_and_not_too_long_a_one() -> None:
    with pytest.raises(InputError, match="a timeline is of one plan"):
        timeline(JOB, replace(PLANS["1F1B"], zero_stage=np.array([0, 1])), CLUSTER)
    with pytest.raises(InputError, match=r"num_microbatches=1000000: .*must not exceed"):
        timeline(JOB, plan_of(4, m=1_000_000), CLUSTER)


def test_longest_path_is_the_simulation_for_a_published_plan() -> None:
    """GPT-3 175B on 12 stages of 8 (Narayanan et al. 2021, table 2: tensor 8, pipeline 12, batch 1536 on 1536 GPUs)."""
    job = TrainingJob(shape=replace(load_model("gpt3-175b"), vocab_size=51200), seq_len=2048, global_batch_size=1536)
    plan = plan_of(12, tp=8, dp=16, m=96, recompute=Recompute.FULL)
    cluster = load_cluster("selene", 1536)
    found: Timeline = timeline(job, plan, cluster)
    priced = step(job, plan, cluster)
    pipeline = priced.step_s - priced.parts["overhead_s"] - priced.parts["optimizer_s"] - priced.parts["dp_exposed_s"]
    assert found.pipeline_s == pytest.approx(pipeline, rel=1e-3)


def test_a_mixed_cluster_has_a_timeline() -> None:
    slow = replace(load_cluster("dgx-a100"), num_devices=8)
    both = replace(CLUSTER, num_devices=8, others=(slow,))
    plan = plan_of(2, tp=4, dp=2, m=8)
    found = timeline(JOB, plan, both)
    assert found.simulated_s == pytest.approx(step(JOB, plan, both).step_s, rel=0.02)
    first, second = (next(e.end_s - e.start_s for e in found.of(d) if e.kind == "F") for d in (0, 1))
    assert second > 1.5 * first


@pytest.mark.parametrize("m", [4, 8, 16, 48])
def test_unequal_chunks_stall_as_long_as_simulated(m: int) -> None:
    uneven = plan_of(4, virtual_stages=4, m=m, stage_layers=(1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0))
    found = timeline(JOB, uneven, CLUSTER).simulated_s
    assert step(JOB, uneven, CLUSTER).step_s == pytest.approx(found, rel=0.01 if m > 4 else 0.02)
    assert step(JOB, replace(uneven, stage_layers=None), CLUSTER).step_s > found  # the head lightened its stage


@pytest.mark.parametrize("m", [8, 12, 40])
def test_as_even_as_can_be_is_still_unequal_where_layers_do_not_divide(m: int) -> None:
    """16 layers on 4 ranks of 3 chunks: four chunks of two layers, eight of one."""
    plan = plan_of(4, virtual_stages=3, m=m)
    found = timeline(JOB, plan, CLUSTER)
    assert step(JOB, plan, CLUSTER).step_s == pytest.approx(found.simulated_s, rel=0.01)
