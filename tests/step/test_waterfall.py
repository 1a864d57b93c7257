"""The waterfall's parts are the footprint's; every change that is proposed makes the plan fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import PipelineSchedule, Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, ParallelDims
from sartor.model.zoo import load_model
from sartor.rules.plan.does_not_fit import what_to_change
from sartor.step.footprint import fits, footprint
from sartor.step.stage_table import MemoryLevel, waterfall
from sartor.step.trainers import TRAINERS

CLUSTER = load_cluster("dgx-h100", 512)
JOB = TrainingJob(shape=load_model("llama-3.1-70b"), seq_len=4096, global_batch_size=256)
TIGHT = TrainingPlan(
    dims=ParallelDims(tp=4, pp=4, dp=8), num_microbatches=8, microbatch_size=4, zero_stage=1, recompute=Recompute.NONE
)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_the_falls_add_up_to_the_footprint(zero: int, schedule: PipelineSchedule) -> None:
    plan = replace(TIGHT, zero_stage=zero, schedule=schedule)
    foot, fall = footprint(JOB, plan, CLUSTER), waterfall(JOB, plan, CLUSTER)
    assert len(fall.stages) == 4
    fullest = fall.fullest
    assert fullest.stage == foot.stage
    assert fullest.total_bytes(MemoryLevel.ALLOCATED) == pytest.approx(foot.allocated_bytes, rel=1e-12)
    assert fullest.total_bytes(MemoryLevel.NEEDED) <= foot.reserved_bytes * (1 + 1e-12)
    assert fullest.total_bytes() == pytest.approx(foot.device_bytes, rel=1e-12)
    theory = foot.param_bytes + foot.grad_bytes + foot.optimizer_bytes + foot.stash_bytes
    assert fullest.total_bytes(MemoryLevel.THEORY) == pytest.approx(theory, rel=1e-12)
    assert fall.fits == fits(JOB, plan, CLUSTER)


def test_the_first_stage_keeps_most_and_the_last_has_the_loss() -> None:
    stages = waterfall(JOB, TIGHT, CLUSTER).stages
    kept = [next(p.size_bytes for p in s.parts if p.name == "activations") for s in stages]
    assert kept == sorted(kept, reverse=True)
    assert [any(p.name == "loss" for p in s.parts) for s in stages] == [False, False, False, True]
    assert stages[-1].moment == "loss"


def test_a_job_whose_activations_are_small_is_fullest_when_the_optimizer_steps() -> None:
    job = replace(JOB, recipe=Recipe.FP16, trainer=TRAINERS["deepspeed"], seq_len=64)
    plan = TrainingPlan(dims=ParallelDims(tp=8, pp=8, dp=4), zero_stage=1, recompute=Recompute.FULL)
    assert {stage.moment for stage in waterfall(job, plan, CLUSTER).stages} == {"optimizer step"}


def test_every_change_proposed_fits_saves_and_keeps_devices_and_batch() -> None:
    assert not fits(JOB, TIGHT, CLUSTER)
    changes = what_to_change(JOB, TIGHT, CLUSTER)
    assert {"recompute", "microbatch_size", "tp", "cp"} <= {change.field for change in changes}
    before = float(footprint(JOB, TIGHT, CLUSTER).device_bytes)
    for change in changes:
        assert fits(change.job, change.plan, CLUSTER)
        assert change.saved_bytes == before - change.device_bytes > 0
        assert change.plan.num_devices == TIGHT.num_devices
        batch = change.plan.dims.dp * change.plan.microbatch_size * change.plan.num_microbatches
        assert batch == JOB.global_batch_size
    seconds = [change.step_s for change in changes]
    assert seconds == sorted(seconds)


def test_the_least_of_a_fields_changes_is_proposed() -> None:
    changes = {change.field: change for change in what_to_change(JOB, TIGHT, CLUSTER)}
    least = changes["recompute"].plan
    fewer = replace(least, recompute_layers=int(least.recompute_layers) - 1)
    assert not fits(JOB, fewer, CLUSTER)
    more = int(changes["microbatch_size"].plan.microbatch_size) * 2
    assert not fits(JOB, replace(TIGHT, microbatch_size=more, num_microbatches=32 // more), CLUSTER)


def test_a_plan_that_fits_needs_no_change_and_one_beyond_help_has_none() -> None:
    small = TrainingJob(shape=load_model("gpt2-small"), seq_len=1024, global_batch_size=8)
    assert what_to_change(small, TrainingPlan(num_microbatches=8), CLUSTER) == ()
    huge = TrainingJob(shape=load_model("llama-3.1-405b"), seq_len=8192, global_batch_size=1)
    assert what_to_change(huge, TrainingPlan(), CLUSTER) == ()


def test_where_no_single_change_is_enough_two_are_proposed() -> None:
    job = replace(JOB, shape=load_model("llama-3.1-405b"), seq_len=8192)
    plan = TrainingPlan(dims=ParallelDims(tp=8, pp=4, dp=16), num_microbatches=16, zero_stage=1)
    changes = what_to_change(job, plan, CLUSTER)
    assert changes
    for change in changes:
        assert " and " in change.field
        assert fits(change.job, change.plan, CLUSTER)
        assert change.plan.num_devices == 512


def test_an_unfused_job_may_be_told_to_use_flash_attention() -> None:
    job = replace(JOB, attention_kernel=AttentionKernel.UNFUSED, seq_len=8192)
    plan = TrainingPlan(dims=ParallelDims(tp=8, pp=4, dp=4), num_microbatches=64, zero_stage=1)
    changes = {change.field: change for change in what_to_change(job, plan, CLUSTER)}
    assert changes["attention"].job.attention_kernel is AttentionKernel.FLASH
    assert changes["recompute"].value == "selective"
