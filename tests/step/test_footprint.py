"""Laws of a plan's memory: what is conserved, what may not grow, and figures of the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.hardware.cluster_catalog import load_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.training import (
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    Trainer,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.step.footprint import every_stage, fits, footprint, footprint_each
from sartor.step.orders import PipelineTimes, simulate
from sartor.step.rank_activations import in_flight
from sartor.step.results import Footprint
from sartor.step.states import dense_states, reductions, table_rows
from sartor.step.trainers import TRAINERS
from sartor.units import FloatArray
from step.in_flight import most_in_flight

CLUSTER = load_cluster("dgx-h100", 512)
FIELDS = ("param_bytes", "grad_bytes", "optimizer_bytes", "stash_bytes", "workspace_bytes", "allocated_bytes")


def _job(name: str = "gpt3-175b", **changes: Any) -> TrainingJob:
    return replace(TrainingJob(shape=load_model(name), seq_len=2048, global_batch_size=1536), **changes)


def _plan(dims: dict[str, Any] | None = None, **changes: Any) -> TrainingPlan:
    return replace(TrainingPlan(dims=ParallelDims(**(dims or {})), num_microbatches=16), **changes)


degrees = st.sampled_from([1, 2, 4, 8])
plans = st.builds(
    lambda tp, pp, cp, b, m, zero, again, schedule: _plan(
        {"tp": tp, "pp": pp, "dp": 8, "cp": cp},
        microbatch_size=b,
        num_microbatches=m,
        zero_stage=zero,
        recompute=again,
        schedule=schedule,
    ),
    degrees,
    degrees,
    st.sampled_from([1, 2]),
    st.integers(1, 4),
    st.sampled_from([1, 2, 8, 32]),
    st.integers(0, 3),
    st.sampled_from(list(Recompute)),
    st.sampled_from(list(PipelineSchedule)),
)


def test_the_states_of_7_5_billion_parameters_are_figure_1_of_the_zero_paper() -> None:
    """Rajbhandari et al. 2020, fig. 1: 7.5e9 parameters, 64 devices, Adam in mixed precision: gigabytes per device."""
    job = _job(trainer=Trainer(grad_dtype=DType.BF16))
    for stage, gigabytes in ((0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)):
        each = dense_states(job, _plan({"dp": 64}, zero_stage=stage), CLUSTER.gpu)
        total = each.weight + each.grad + each.optimizer
        assert 7.5 * float(total) == pytest.approx(gigabytes, rel=0.004)


def test_megatron_holds_18_bytes_a_parameter_or_6_and_12_shared() -> None:
    """Megatron-LM's training/theoretical_memory_usage.py: 18, or 6 + 12 / dp with its distributed optimizer."""
    job = _job()
    for zero, expected in ((0, 18.0), (1, 6 + 12 / 8)):
        each = dense_states(job, _plan({"dp": 8}, zero_stage=zero), CLUSTER.gpu)
        assert float(each.weight + each.grad + each.optimizer) == expected


def test_fsdp_spreads_16_bytes_a_parameter() -> None:
    job = _job(trainer=TRAINERS["torchtitan"])
    each = dense_states(job, _plan({"dp": 8}, zero_stage=3), CLUSTER.gpu)
    assert float(each.weight + each.grad + each.optimizer) == 16 / 8


def test_momentum_alone_is_half_of_adam_and_adapters_hold_no_states() -> None:
    plan = _plan({"dp": 1})
    adam, sgd = (footprint(_job(optimizer=o), plan, CLUSTER) for o in (Optimizer.ADAM, Optimizer.SGD))
    assert adam.optimizer_bytes / sgd.optimizer_bytes == pytest.approx(12 / 8)
    frozen = footprint(_job(trains_weights=False), plan, CLUSTER)
    assert frozen.grad_bytes == frozen.optimizer_bytes == 0


@given(degrees, st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 3]))
def test_weights_over_all_ranks_are_the_model_and_the_copies_of_its_vectors(tp: int, pp: int, v: int) -> None:
    shape = load_model("gpt3-175b")
    shape = replace(shape, vocab_size=int(table_rows(_job(), tp)))  # padded where tp does not divide it
    every = every_stage(_job(), _plan({"tp": tp, "pp": pp}, virtual_stages=v), CLUSTER)
    held = float(every.held.weights.sum()) / 2 * tp
    vectors = 96 * (4 * 12288 + 2 * 12288) + 2 * 12288 + 2048 * 12288  # norms and row-parallel biases, positions
    table = shape.vocab_size * 12288 if pp > 1 else 0
    total = int(count_params(shape).total)
    assert total + table <= held <= total + table + (tp - 1) * vectors + tp * 12288 * 2


@given(st.sampled_from(["mixtral-8x7b", "deepseek-v3"]), st.sampled_from([1, 2, 4, 8]))
def test_experts_over_all_expert_ranks_are_the_experts(name: str, ep: int) -> None:
    job = _job(name)
    one, many = (every_stage(job, _plan({"dp": 8, "ep": e}), CLUSTER).held.weights.sum() / 2 for e in (1, ep))
    routed = float(count_params(job.shape).routed_expert)
    mtp = 0 if not job.shape.mtp_layers else routed / 58
    assert one - many == pytest.approx((routed + mtp) * (1 - 1 / ep), rel=1e-9)


@given(plans)
@settings(max_examples=60, deadline=None)
def test_the_parts_add_up_and_each_figure_holds_the_one_before(plan: TrainingPlan) -> None:
    foot = footprint(_job(), plan, CLUSTER)
    parts = (foot.param_bytes, foot.grad_bytes, foot.optimizer_bytes, foot.stash_bytes, foot.workspace_bytes)
    assert sum(parts) == pytest.approx(foot.allocated_bytes, rel=1e-12)
    assert foot.allocated_bytes <= min(foot.reserved_bytes, foot.device_bytes)
    assert min(parts) >= 0


@given(plans)
@settings(max_examples=60, deadline=None)
def test_the_fullest_stage_is_that_of_all_stages(plan: TrainingPlan) -> None:
    every = every_stage(_job(), plan, CLUSTER)
    foot = footprint(_job(), plan, CLUSTER)
    assert foot.device_bytes == every.device_bytes.max()
    assert every.device_bytes[foot.stage, 0] == foot.device_bytes


@given(plans, st.sampled_from(["gpt3-175b", "llama-3.1-70b"]))
@settings(max_examples=60, deadline=None)
def test_states_and_kept_activations_never_grow_with_more_devices_stages_or_shards(
    plan: TrainingPlan, name: str
) -> None:
    job, d = _job(name), plan.dims

    def held(p: TrainingPlan) -> float:
        each = every_stage(job, p, CLUSTER)
        return float((each.held.states + each.kept.layers_kept).max())

    base = held(plan)
    for more in (replace(d, tp=d.tp * 2), replace(d, cp=d.cp * 2), replace(d, dp=d.dp * 2)):
        assert held(replace(plan, dims=more)) <= base * (1 + 1e-12)
    for zero in range(int(plan.zero_stage), 4):
        assert held(replace(plan, zero_stage=zero)) <= base * (1 + 1e-12)
    for again in range(int(plan.recompute), 3):
        assert held(replace(plan, recompute=again)) <= base * (1 + 1e-12)
    assert held(replace(plan, optimizer_offload=True)) < base


@given(st.sampled_from([1, 2, 3, 4, 6, 8]), degrees)
def test_more_stages_never_hold_more_where_they_divide_the_layers(pp: int, tp: int) -> None:
    job = _job("llama-3.1-405b", trainer=Trainer())  # untied: no second table
    base = TrainingPlan(dims=ParallelDims(tp=tp, dp=8), num_microbatches=64)
    few, more = (every_stage(job, replace(base, dims=replace(base.dims, pp=p)), CLUSTER) for p in (1, pp))
    assert more.held.states.max() <= few.held.states.max()
    assert more.kept.layers_kept.max() <= few.kept.layers_kept.max() * pp * np.ceil(126 / pp) / 126


@given(st.integers(1, 12), degrees, degrees)
def test_the_stash_grows_as_the_microbatches_in_flight(m: int, tp: int, pp: int) -> None:
    one, many = (
        every_stage(_job(), _plan({"tp": tp, "pp": pp}, num_microbatches=n, schedule=PipelineSchedule.GPIPE), CLUSTER)
        for n in (1, m)
    )
    assert many.stash == pytest.approx(m * one.stash)


@given(degrees, st.integers(1, 4), st.integers(1, 6), st.sampled_from(list(PipelineSchedule)), st.floats(0.2, 3))
@settings(max_examples=60, deadline=None)
def test_microbatches_in_flight_are_those_of_the_simulated_pipeline(
    pp: int, virtual: int, groups: int, schedule: PipelineSchedule, ratio: float
) -> None:
    virtual = (2 if schedule.is_v else virtual) if pp > 1 else 1
    m = 2 * pp + groups if schedule.is_v else groups * pp if virtual > 1 else groups
    each = np.ones((pp, virtual))
    events = simulate(schedule, PipelineTimes(forward_s=each, dgrad_s=ratio * each, wgrad_s=each), m)
    until = "W" if schedule.splits else "B"
    for d in range(pp):
        ours = int(in_flight(schedule, d, pp, virtual, m).sum())
        assert ours == most_in_flight(events, d, until=until)  # type: ignore[arg-type]


@given(st.lists(plans, min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_an_array_of_plans_gives_what_each_gives_alone(many: list[TrainingPlan]) -> None:
    names = ("microbatch_size", "num_microbatches", "zero_stage", "recompute", "schedule")
    fields: dict[str, Any] = {n: np.array([int(getattr(p, n)) for p in many]) for n in names}
    dims: dict[str, Any] = {n: np.array([getattr(p.dims, n) for p in many]) for n in ("tp", "pp", "dp", "cp")}
    together = footprint(_job(), TrainingPlan(dims=ParallelDims(**dims), **fields), CLUSTER)
    for i, plan in enumerate(many):
        alone: Footprint = footprint(_job(), plan, CLUSTER)
        for name in (*FIELDS, "reserved_bytes", "device_bytes", "stage"):
            assert getattr(together, name)[i] == getattr(alone, name)


def test_plans_with_layers_of_their_own_are_weighed_together_as_alone() -> None:
    job = _job("llama-3-8b")
    placed = [_plan({"pp": 4, "dp": 4}, stage_layers=split, zero_stage=1) for split in ((7, 9, 9, 7), (8, 8, 8, 8))]
    placed += [_plan({"tp": 2, "pp": 2, "dp": 2}, virtual_stages=2, stage_layers=(7, 8, 9, 8))]
    assert footprint_each(job, placed, CLUSTER) == [footprint(job, plan, CLUSTER) for plan in placed]
    assert footprint_each(job, [], CLUSTER) == []


def test_shapes_of_plans_broadcast() -> None:
    tp, b = np.array([1, 2, 4, 8])[:, None], np.array([1, 2, 4])
    foot = footprint(_job(), _plan({"tp": tp, "pp": 8}, microbatch_size=b), CLUSTER)
    assert (
        np.shape(foot.device_bytes) == np.shape(fits(_job(), _plan({"tp": tp}, microbatch_size=b), CLUSTER)) == (4, 3)
    )


def test_175_billion_parameters_fit_on_64_devices_of_80_gb_when_recomputed_and_not_on_8() -> None:
    """Narayanan et al. 2021 trained GPT-3 175B with tp 8, pp 12; eight devices hold 2.8 TB of states nowhere."""
    again = {"recompute": Recompute.FULL, "zero_stage": 1}
    assert fits(_job(), _plan({"tp": 8, "pp": 12, "dp": 4}, **again), CLUSTER)
    assert not fits(_job(), _plan({"tp": 8}, **again), CLUSTER)


@pytest.mark.parametrize("recipe", list(Recipe))
@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "deepspeed", "maxtext", "internevo"])
def test_every_recipe_and_trainer_has_a_footprint(recipe: Recipe, trainer: str) -> None:
    job = _job("deepseek-v2-lite", recipe=recipe, trainer=TRAINERS[trainer])
    foot = footprint(job, _plan({"dp": 8, "ep": 8}, zero_stage=1), CLUSTER)
    assert 1e9 < foot.device_bytes < 1e12


def test_zero_2_with_a_pipeline_holds_whole_gradients() -> None:
    job = _job()
    whole, sharded = (dense_states(job, _plan({"dp": 8, "pp": pp}, zero_stage=2), CLUSTER.gpu).grad for pp in (2, 1))
    assert whole == 8 * sharded == dense_states(job, _plan({"dp": 8, "pp": 2}, zero_stage=1), CLUSTER.gpu).grad


def test_gradients_reduced_in_rounds_are_whole_in_two_chunks_alone() -> None:
    job = replace(_job(), trainer=TRAINERS["llama-3"])
    plan = replace(_plan({"dp": 8, "pp": 2}, zero_stage=2), virtual_stages=8)
    whole = dense_states(job, replace(plan, zero_stage=0), CLUSTER.gpu).grad
    assert dense_states(job, plan, CLUSTER.gpu).grad == pytest.approx(whole * (2 / 8 + 1 / 8))
    assert dense_states(job, replace(plan, virtual_stages=1), CLUSTER.gpu).grad == whole


def test_a_step_reduces_once_a_round_of_microbatches() -> None:
    rounds = reductions(TRAINERS["llama-3"], 2, 16, 8, np.array([16, 32]))
    assert rounds.tolist() == [1, 2]
    assert int(reductions(TRAINERS["torchtitan"], 2, 16, 8, 32)) == 1
    assert int(reductions(TRAINERS["torchtitan"], 2, 1, 1, 32)) == 32


def test_blackwell_keeps_one_fp8_copy_of_a_weight_with_one_scale_for_the_tensor_and_others_two() -> None:
    plan, b200 = _plan({"dp": 8}, zero_stage=1), load_cluster("dgx-b200", 8).gpu

    def copies(recipe: Recipe, gpu: Gpu) -> float:
        job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=4096, global_batch_size=8, recipe=recipe)
        return float(np.max(dense_states(job, plan, gpu).narrow))

    assert copies(Recipe.FP8_DELAYED, b200) == copies(Recipe.FP8_CURRENT, b200) == 1
    assert copies(Recipe.FP8_DELAYED, CLUSTER.gpu) == copies(Recipe.FP8_CURRENT, CLUSTER.gpu) == 2
    assert copies(Recipe.MXFP8, b200) > 2


@pytest.mark.parametrize(("zero_stage", "in_step"), [(1, 12 + 6), (3, 12)])
def test_internevo_reserves_34_bytes_per_parameter_and_28_with_single_tensors(zero_stage: int, in_step: int) -> None:
    """Its step: fp32 gradients and two temporaries of Adam, and below ZeRO 3 blocks that flat tensors cannot use."""
    shape = load_model("llama-2-7b")
    job = TrainingJob(shape=shape, seq_len=2048, global_batch_size=4, trainer=TRAINERS["internevo"])
    plan = TrainingPlan(num_microbatches=4, zero_stage=zero_stage, recompute=Recompute.FULL)
    held = every_stage(job, plan, load_cluster("dgx-a100")).held
    params = float(count_params(shape).total)
    assert held.states[0, 0] == 16 * params
    assert held.step_peak[0, 0] + held.step_blocks[0, 0] == in_step * params


def test_a_stage_of_torchtitan_has_a_buffer_for_what_each_microbatch_brings() -> None:
    shape = load_model("llama-3.1-8b")
    dims, cluster = ParallelDims(pp=4, dp=2), load_cluster("dgx-h100")
    job = TrainingJob(shape=shape, seq_len=8192, global_batch_size=64, trainer=TRAINERS["torchtitan"])

    def moving(microbatches: int) -> FloatArray:
        plan = TrainingPlan(dims=dims, num_microbatches=microbatches, zero_stage=2)
        return every_stage(job, plan, cluster).kept.moving[:, 0]

    activation = 8192 * 4096 * 2
    assert (moving(32) - moving(16)).tolist() == [16 * activation * sides for sides in (1, 2, 2, 1)]


def test_fsdp_reserves_gradients_and_a_unit_of_gathered_weights_beside_activations() -> None:
    """FSDP's streams keep their free blocks: sharded gradients that come while activations go are allocated after, but
    reserved beside them, and so are the flat weights of the largest unit, here both tables of Llama 3.1 8B."""
    job = _job(shape=load_model("llama-3.1-8b"), trainer=TRAINERS["torchtitan"])
    every = every_stage(job, _plan({"dp": 8}, zero_stage=3, num_microbatches=1), CLUSTER)
    gaps = 0.02 * (every.allocated - every.held.states + every.held.grads)
    beside = every.reserved - every.allocated
    expected = every.held.grads + 2 * 2 * 128256 * 4096
    assert float(beside[0, 0]) == pytest.approx(float((expected + gaps)[0, 0]), rel=0.03)


def test_a_pipeline_of_fsdp_reserves_shards_beside_whole_gradients() -> None:
    job = _job(shape=load_model("llama-3.1-8b"), trainer=TRAINERS["torchtitan"])
    every = every_stage(job, _plan({"dp": 2, "pp": 4}, num_microbatches=8, zero_stage=2), CLUSTER)
    assert float((every.held.apart - every.held.grads / 2)[1, 0]) == pytest.approx(2 * 218.1e6, rel=0.01)


def test_gradients_summed_in_fp32_beside_16_bit_ones_are_cast_one_by_one() -> None:
    """DeepSpeed's BF16_Optimizer on the first stage of a pipeline: the embedding's gradient in fp32 is the largest."""
    job = _job(shape=load_model("llama-3.1-8b"), trainer=TRAINERS["megatron-deepspeed"])
    every = every_stage(job, _plan({"dp": 2, "pp": 4, "tp": 2}), CLUSTER)
    table, matrix = 4 * 128256 * 4096 / 2, 4 * 4096 * 14336 / 2
    assert every.held.apart[:3, 0].tolist() == [table, matrix, matrix]
    in_fp16 = every_stage(replace(job, recipe=Recipe.FP16), _plan({"dp": 2, "pp": 4, "tp": 2}), CLUSTER)
    assert not in_fp16.held.apart.any()


def test_xla_gathers_a_table_only_where_it_is_used() -> None:
    """FSDP keeps embedding and head of Llama 3.1 8B gathered beside two layers; XLA needs the larger of a matrix with
    its gradient and one table."""
    shape = load_model("llama-3.1-8b")
    job = TrainingJob(shape=shape, seq_len=8192, global_batch_size=64, trainer=TRAINERS["maxtext"])
    plan = TrainingPlan(dims=ParallelDims(dp=64), zero_stage=3)
    gathered = every_stage(job, plan, load_cluster("tpu-v5e")).held.gathered
    assert gathered[0, 0] == 2 * (128256 * 4096 + 4096)


def test_xla_has_no_gradients_before_backward() -> None:
    """At the loss of a single microbatch; a sum over microbatches lasts."""
    job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=64, trainer=TRAINERS["maxtext"])
    plan = TrainingPlan(dims=ParallelDims(dp=16), zero_stage=3, recompute=Recompute.FULL, microbatch_size=4)
    single, several = (footprint(job, replace(plan, num_microbatches=m), load_cluster("tpu-v5p")) for m in (1, 2))
    assert (single.grad_bytes, several.grad_bytes) == (0, 4 * 8_030_261_248 / 16)
