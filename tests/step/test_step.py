"""A training step: its parts add up, it obeys its laws, and one plan costs what it costs among many."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.cost_samples import calibration_of, faster_gpu, quicker
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.shape import TransformerShape
from sartor.model.training import (
    Accumulation,
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
from sartor.step.coefficients import TrainingCoefficients, coefficients_for
from sartor.step.question import kernels_of, workload_of
from sartor.step.results import StepEstimate
from sartor.step.step import step
from sartor.step.trainers import TRAINERS
from sartor.step.trainers.torchtitan import TORCHTITAN

FREE = TrainingCoefficients(fixed_step_s=0.0, jitter=0.0, launch_s=0.0)
"""Nothing beside kernels and links."""


def shape_of(layers: int = 8, *, experts: bool = False) -> TransformerShape:
    return edit(load_model("deepseek-v3" if experts else "llama3-8b"), num_layers=layers)


def job_of(shape: TransformerShape | None = None, **more: Any) -> TrainingJob:
    return TrainingJob(**{"shape": shape or shape_of(), "seq_len": 1024, "global_batch_size": 64, **more})


CLUSTER = load_cluster("dgx-h100", 64)


def plan_of(**more: Any) -> TrainingPlan:
    names = ("tp", "pp", "dp", "cp", "ep")
    dims = ParallelDims(**{k: more.pop(k) for k in names if k in more})
    return TrainingPlan(dims=dims, **more)


PLANS = {
    "one device": plan_of(num_microbatches=64),
    "tensor": plan_of(tp=8, num_microbatches=64),
    "data": plan_of(dp=64, num_microbatches=1),
    "ZeRO 1": plan_of(tp=2, dp=32, num_microbatches=2, zero_stage=1),
    "ZeRO 2": plan_of(dp=16, num_microbatches=4, zero_stage=2),
    "FSDP": plan_of(dp=64, zero_stage=3),
    "hybrid FSDP": plan_of(dp=64, zero_stage=3, shard_group=8),
    "pipeline": plan_of(tp=2, pp=4, dp=8, num_microbatches=8, zero_stage=1),
    "interleaved": plan_of(tp=2, pp=4, dp=8, num_microbatches=8, virtual_stages=2),
    "zero bubble": plan_of(pp=4, dp=16, num_microbatches=8, schedule=PipelineSchedule.ZERO_BUBBLE),
    "gpipe": plan_of(pp=8, dp=8, num_microbatches=8, schedule=PipelineSchedule.GPIPE),
    "recomputed": plan_of(pp=2, dp=8, num_microbatches=8, recompute=Recompute.FULL, recompute_layers=1),
    "selective": plan_of(tp=4, dp=16, num_microbatches=4, recompute=Recompute.SELECTIVE),
    "context": plan_of(cp=4, dp=8, num_microbatches=8),
}


def arrays(plans: list[TrainingPlan]) -> TrainingPlan:
    def stacked(name: str, of: Any) -> Any:
        return np.array([getattr(x, name) for x in of])

    dims = ParallelDims(
        **{name: stacked(name, [p.dims for p in plans]) for name in ("tp", "pp", "dp", "cp", "ep")},
        sequence_parallel=True,
    )
    names = [f.name for f in fields(TrainingPlan) if f.name not in ("dims", "stage_layers")]
    return TrainingPlan(dims=dims, **{name: stacked(name, plans) for name in names})


@pytest.mark.parametrize("name", PLANS)
def test_parts_add_up_to_the_step(name: str) -> None:
    found = step(job_of(), PLANS[name], CLUSTER)
    assert sum(found.parts.values()) == pytest.approx(found.step_s, rel=1e-14)
    assert all(seconds >= 0 for seconds in found.parts.values())
    assert 0 < found.mfu < 1
    assert found.log_sigma > 0


def test_an_entry_of_an_array_is_its_scalar_call_exactly() -> None:
    many = step(job_of(), arrays(list(PLANS.values())), CLUSTER)
    for i, plan in enumerate(PLANS.values()):
        one = step(job_of(), plan, CLUSTER)
        assert {name: values[i] for name, values in many.parts.items()} == one.parts  # type: ignore[index]
        for field in fields(StepEstimate):
            if field.name != "parts":
                assert getattr(many, field.name)[i] == getattr(one, field.name), field.name


def test_results_have_the_shape_plans_broadcast_to() -> None:
    plan = plan_of(tp=np.array([1, 2, 4])[:, None], dp=4, num_microbatches=np.array([2, 4]))
    found = step(job_of(), plan, CLUSTER)
    assert found.step_s.shape == found.mfu.shape == (3, 2)  # type: ignore[union-attr]


def test_one_device_pays_no_network() -> None:
    found = step(job_of(), PLANS["one device"], CLUSTER)
    exchanged = ("tp_s", "dp_exposed_s", "pp_bubble_s", "pp_transfer_s", "ep_s", "cp_s")
    assert [found.parts[name] for name in exchanged] == [0] * len(exchanged)


def test_without_replicas_nothing_is_reduced() -> None:
    for zero in range(4):
        found = step(job_of(), plan_of(tp=4, pp=2, num_microbatches=64, zero_stage=zero), CLUSTER)
        assert found.parts["dp_exposed_s"] == 0


def test_a_pipeline_of_one_has_no_bubble() -> None:
    for schedule in PipelineSchedule:
        found = step(job_of(), plan_of(tp=4, dp=4, num_microbatches=16, schedule=schedule), CLUSTER)
        assert found.parts["pp_bubble_s"] == 0


@given(st.sampled_from(sorted(PLANS)), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_a_step_never_falls_with_more_layers(name: str, more: int) -> None:
    plan = PLANS[name]
    few = step(job_of(shape_of(8)), plan, CLUSTER)
    many = step(job_of(shape_of(8 + more)), plan, CLUSTER)
    assert few.step_s <= many.step_s * (1 + 1e-12)


def faster(cluster: Cluster, rates: float, delays: float = 1.0) -> Cluster:
    tiers = tuple(replace(t, bytes_per_s=t.bytes_per_s * rates, latency_s=t.latency_s * delays) for t in cluster.tiers)
    return replace(cluster, tiers=tiers)


@given(st.sampled_from(sorted(PLANS)), st.floats(1.0, 8.0))
@settings(max_examples=25, deadline=None)
def test_faster_links_never_slow_a_step(name: str, factor: float) -> None:
    slow = step(job_of(), PLANS[name], CLUSTER)
    fast = step(job_of(), PLANS[name], faster(CLUSTER, factor))
    assert fast.step_s <= slow.step_s * (1 + 1e-12)


@pytest.mark.parametrize("name", PLANS)
def test_constants_scale_what_they_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sartor.step.block_times.has_gaps", lambda *_: True
    )  # the head's exception has a test of its own
    job, plan = job_of(), PLANS[name]
    base = step(job, plan, CLUSTER, coefficients=FREE)
    twice = step(job, plan, CLUSTER, coefficients=replace(FREE, compute_factor=2.0, network_factor=2.0))
    for part in base.parts.keys() - {"optimizer_s", "overhead_s"}:
        assert twice.parts[part] == pytest.approx(2 * base.parts[part], rel=1e-9), part


def test_a_head_takes_what_its_kernels_take_alone() -> None:
    job, slow = job_of(), replace(FREE, compute_factor=2.0)
    bare = replace(job, shape=replace(job.shape, lm_head=False))

    def head_s(c: TrainingCoefficients) -> float:
        with_head, without = (
            step(each, PLANS["data"], CLUSTER, coefficients=c).parts["compute_s"] for each in (job, bare)
        )
        return float(with_head - without)

    assert head_s(slow) == pytest.approx(head_s(FREE), rel=1e-9)


def test_sharding_the_optimizer_divides_its_time() -> None:
    plain = step(job_of(), plan_of(dp=64), CLUSTER)
    sharded = step(job_of(), plan_of(dp=64, zero_stage=1), CLUSTER)
    assert sharded.parts["optimizer_s"] < plain.parts["optimizer_s"] / 8


def test_one_dgx_shards_as_a_group_of_eight_does() -> None:
    cluster = load_cluster("dgx-h100", 8)
    for zero in (1, 2, 3):
        every = step(job_of(), plan_of(dp=8, zero_stage=zero, num_microbatches=8), cluster)
        group = step(job_of(), plan_of(dp=8, zero_stage=zero, num_microbatches=8, shard_group=8), cluster)
        assert every == group


def test_overlap_saves_and_recomputation_costs() -> None:
    job, plan = job_of(), plan_of(tp=4, dp=16, num_microbatches=4)
    eager = replace(job, trainer=Trainer(dp_overlap=False))
    assert step(job, plan, CLUSTER).parts["dp_exposed_s"] < step(eager, plan, CLUSTER).parts["dp_exposed_s"]
    overlapped = replace(job, trainer=Trainer(tp_overlap=True))
    assert step(overlapped, plan, CLUSTER).parts["tp_s"] < step(job, plan, CLUSTER).parts["tp_s"]
    times = [step(job, replace(plan, recompute=kind), CLUSTER).step_s for kind in Recompute]
    assert times == sorted(times)
    some = [
        step(job, replace(plan, recompute=Recompute.FULL, recompute_layers=n), CLUSTER).parts["compute_s"]
        for n in (0, 2, 8, -1)
    ]
    assert some == sorted(some)
    assert some[0] == step(job, plan, CLUSTER).parts["compute_s"]
    assert some[2] == some[3]


def test_adapters_alone_reduce_and_update_nothing() -> None:
    found = step(job_of(trains_weights=False), plan_of(dp=64), CLUSTER)
    assert found.parts["dp_exposed_s"] == found.parts["optimizer_s"] == 0


def test_a_slow_host_holds_an_eager_trainer_up_and_graphs_free_it() -> None:
    slow = replace(FREE, launch_s=1e-3, graph_launch_s=0.0)
    plan = plan_of(dp=64)
    eager = step(job_of(), plan, CLUSTER, coefficients=slow)
    graphs = step(job_of(trainer=Trainer(cuda_graphs=True)), plan, CLUSTER, coefficients=slow)
    assert eager.parts["overhead_s"] > graphs.parts["overhead_s"] == 0


def test_other_optimizers() -> None:
    seconds = {
        o: step(job_of(optimizer=o), plan_of(dp=8, num_microbatches=8), CLUSTER).parts["optimizer_s"] for o in Optimizer
    }
    assert seconds[Optimizer.SGD] < seconds[Optimizer.ADAM] < seconds[Optimizer.MUON]
    offloaded = step(job_of(), plan_of(dp=8, num_microbatches=8, optimizer_offload=True), CLUSTER)
    assert offloaded.parts["optimizer_s"] > seconds[Optimizer.ADAM]


def test_experts_reduce_among_fewer() -> None:
    job = job_of(shape_of(6, experts=True))
    found = step(job, plan_of(tp=2, dp=32, ep=np.array([8, 16]), num_microbatches=2, zero_stage=1), CLUSTER)
    assert (found.parts["ep_s"] > 0).all()  # type: ignore[union-attr]
    assert found.parts["dp_exposed_s"][0] > found.parts["dp_exposed_s"][1]  # type: ignore[index]


def test_exchange_of_experts_hides_where_chunks_interleave() -> None:
    job = job_of(shape_of(experts=True))
    waits, hides = (replace(job, trainer=Trainer(ep_overlap=on)) for on in (False, True))
    for virtual, hidden in ((1, False), (2, True)):
        plan = plan_of(pp=2, dp=32, ep=32, num_microbatches=2, virtual_stages=virtual)
        seen, less = (step(each, plan, CLUSTER, None, FREE) for each in (waits, hides))
        assert (float(less.parts["ep_s"]) < 0.5 * float(seen.parts["ep_s"])) == hidden
        assert (float(less.step_s) < float(seen.step_s)) == hidden
    both = plan_of(pp=2, dp=32, ep=32, num_microbatches=2, virtual_stages=np.array([1, 2]))
    alone = [step(hides, replace(both, virtual_stages=v), CLUSTER, None, FREE).step_s for v in (1, 2)]
    assert np.asarray(step(hides, both, CLUSTER, None, FREE).step_s).tolist() == alone


def test_exchange_of_experts_hides_in_dual_pipe_v_and_not_in_zb_v() -> None:
    """Of the two schedules in a V, DualPipeV alone runs one microbatch's exchange beside another's compute."""
    job = job_of(shape_of(experts=True), trainer=TORCHTITAN)
    plan = plan_of(pp=2, dp=32, ep=32, num_microbatches=4, virtual_stages=2)
    waits, hides = (
        step(job, replace(plan, schedule=kind), CLUSTER, None, FREE)
        for kind in (PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.DUAL_PIPE_V)
    )
    assert float(hides.parts["ep_s"]) < 0.5 * float(waits.parts["ep_s"])
    assert float(hides.step_s) < float(waits.step_s)


def test_owners_of_whole_tensors_broadcast_in_turn() -> None:
    job, turns = job_of(), job_of(trainer=Trainer(broadcasts_shards=True))
    for group in (8, 64):
        plan = plan_of(dp=64, num_microbatches=1, zero_stage=1, shard_group=group)
        more = step(turns, plan, CLUSTER, None, FREE).step_s - step(job, plan, CLUSTER, None, FREE).step_s
        assert more == pytest.approx((group - 1) * FREE.broadcast_s)
    fsdp = plan_of(dp=64, num_microbatches=1, zero_stage=3)
    assert step(turns, fsdp, CLUSTER, None, FREE).step_s == step(job, fsdp, CLUSTER, None, FREE).step_s


def test_stages_as_given_are_priced() -> None:
    even = step(job_of(), plan_of(pp=2, dp=8, num_microbatches=8), CLUSTER)
    same = step(job_of(), plan_of(pp=2, dp=8, num_microbatches=8, stage_layers=(4, 4)), CLUSTER)
    lopsided = step(job_of(), plan_of(pp=2, dp=8, num_microbatches=8, stage_layers=(7, 1)), CLUSTER)
    assert even == same
    assert even.step_s < lopsided.step_s


def test_a_single_plan_without_an_order_is_refused() -> None:
    with pytest.raises(InputError, match="num_microbatches=2"):
        step(job_of(), plan_of(pp=4, dp=4, virtual_stages=2, num_microbatches=2), CLUSTER)
    with pytest.raises(InputError, match=r"tp=3: does not split"):
        step(job_of(), plan_of(tp=3), CLUSTER)


def test_constants_come_from_a_table_by_trainer_and_precision() -> None:
    job = job_of()
    table = {
        "default": {"jitter": 0.5},
        "precision": {"16bit": {"sm_contention": 0.2}},
        "framework": {"megatron": {"launch_s": 1e-6, "16bit": {"sm_contention": 0.3}}},
    }
    found = coefficients_for(job, CLUSTER.gpu, table)
    assert (found.jitter, found.sm_contention, found.launch_s) == (0.5, 0.3, 1e-6)
    with pytest.raises(InputError, match=r"training constants=jiter: .*nearest: jitter"):
        coefficients_for(job, CLUSTER.gpu, {"default": {"jiter": 1.0}})
    with pytest.raises(InputError, match="dp_overlap_share"):
        TrainingCoefficients(dp_overlap_share=1.5)


def test_devices_of_a_generation_no_constant_was_fitted_on_have_wider_intervals() -> None:
    table = {
        "default": {"step_sigma": 0.08},
        "precision": {"fp8": {"step_sigma": 0.2}},
        "unseen": {"step_sigma": 0.15},
        "provenance": {"generations": ["ampere"]},
    }
    job = job_of()
    seen, new = load_cluster("dgx-a100").gpu, load_cluster("dgx-1v").gpu
    narrow = replace(job, recipe=Recipe.FP8_DELAYED)
    found = [coefficients_for(*each, table).step_sigma for each in ((job, seen), (job, new), (narrow, new))]
    assert found == [0.08, 0.15, 0.2]


def test_one_tier_cluster_is_priced() -> None:
    tier = LinkTier(name="network", span=0, bytes_per_s=25e9, latency_s=5e-6)
    cluster = Cluster(name="flat", gpu=CLUSTER.gpu, devices_per_node=1, tiers=(tier,))
    assert step(job_of(), plan_of(dp=4, num_microbatches=16), cluster).parts["dp_exposed_s"] > 0


@pytest.mark.parametrize("name", PLANS)
def test_rates_times_four_and_delays_over_four_give_a_quarter_of_the_step(name: str) -> None:
    known = calibration_of(CLUSTER.gpu)
    slow = step(job_of(), PLANS[name], CLUSTER, known, TrainingCoefficients())
    gpu = replace(faster_gpu(CLUSTER.gpu, 4.0), link_latency_s=CLUSTER.gpu.link_latency_s / 4)
    quick = quicker(known, 4.0)
    quick = replace(quick, network=replace(quick.network, peer_s=quick.network.peer_s / 4))
    constants = TrainingCoefficients()
    delays = {f.name: getattr(constants, f.name) / 4 for f in fields(constants) if f.name.endswith("_s")}
    fast = step(
        job_of(), PLANS[name], replace(faster(CLUSTER, 4.0, 0.25), gpu=gpu), quick, replace(constants, **delays)
    )
    assert fast.step_s == pytest.approx(slow.step_s / 4, rel=1e-9)


def mixed(first: int, second: int) -> Cluster:
    """So many H100 in front, so many A100 behind."""
    other = replace(load_cluster("dgx-a100"), num_devices=second)
    return replace(CLUSTER, num_devices=first, others=(other,))


def test_a_mixed_cluster_runs_each_stage_at_its_pools_pace() -> None:
    plan = plan_of(tp=8, pp=2, num_microbatches=64)
    fast, slow = (step(job_of(), plan, load_cluster(name, 16)) for name in ("dgx-h100", "dgx-a100"))
    both = step(job_of(), plan, mixed(8, 8))
    assert fast.step_s < both.step_s < slow.step_s * (1 + 1e-12)
    helped = step(job_of(), replace(plan, stage_layers=(6, 2)), mixed(8, 8))
    assert helped.step_s < both.step_s
    assert sum(both.parts.values()) == pytest.approx(both.step_s, rel=1e-14)


def test_pools_of_one_kind_are_one_cluster() -> None:
    plans = plan_of(tp=8, pp=np.array([1, 2, 4]), num_microbatches=np.array([64, 32, 16]))
    same = replace(CLUSTER, num_devices=16, others=(replace(CLUSTER, num_devices=16),))
    one = step(job_of(), plans, replace(CLUSTER, num_devices=32))
    assert step(job_of(), plans, same).parts["compute_s"] == pytest.approx(one.parts["compute_s"])


def networked(gpu: str, rate: float, devices: int = 16) -> Cluster:
    """A pool whose network carries ``rate`` of a dgx-h100's."""
    pool = load_cluster({"h100_sxm": "dgx-h100", "a100_sxm": "dgx-a100"}[gpu])
    outer = CLUSTER.tiers[-1]
    tiers = (*pool.tiers[:-1], replace(outer, bytes_per_s=rate * outer.bytes_per_s))
    return replace(pool, name=f"{gpu} {rate}", num_devices=devices, tiers=tiers)


STRADDLING = plan_of(
    tp=np.array([1, 2, 8, 2]),
    cp=np.array([1, 1, 1, 8]),
    dp=np.array([32, 16, 4, 2]),
    num_microbatches=np.array([4, 8, 16, 32]),
    zero_stage=np.array([1, 2, 2, 3]),
)


@pytest.mark.parametrize("names", [("h100_sxm", "h100_sxm"), ("h100_sxm", "a100_sxm"), ("a100_sxm", "h100_sxm")])
def test_a_stage_over_two_pools_waits_for_the_slowest_links_and_devices_of_both(names: tuple[str, str]) -> None:
    def time_s(*rates: float) -> Any:
        first, second = (networked(gpu, rate) for gpu, rate in zip(names, rates, strict=True))
        return step(job_of(), STRADDLING, replace(first, others=(second,))).step_s

    one_slow, other_slow, both_slow, none_slow = time_s(1, 0.02), time_s(0.02, 1), time_s(0.02, 0.02), time_s(1, 1)
    assert np.all(one_slow >= none_slow * (1 - 1e-12))
    if names[0] == names[1]:
        assert one_slow == pytest.approx(other_slow, rel=1e-12)
        alike = step(job_of(), STRADDLING, networked(names[0], 0.02, 32)).step_s
        assert both_slow == pytest.approx(alike, rel=1e-12)
    assert one_slow == pytest.approx(both_slow, rel=1e-6)
    assert other_slow == pytest.approx(both_slow, rel=1e-6)


def test_a_stage_over_nodes_of_four_and_eight_leaves_the_nodes_of_four() -> None:
    small, large = networked("h100_sxm", 1), networked("h100_sxm", 1)
    near, far = small.tiers
    small = replace(small, name="small", devices_per_node=4, tiers=(replace(near, span=4), far))
    plan = plan_of(tp=8, dp=4, num_microbatches=16)
    mixed_s, small_s = (
        step(job_of(), plan, pool).step_s for pool in (replace(large, others=(small,)), replace(small, num_devices=32))
    )
    assert mixed_s == pytest.approx(small_s, rel=1e-12)


def test_mixed_pools_must_have_the_devices() -> None:
    with pytest.raises(InputError, match=r"num_devices=16: 4 stages of 8 need 32 devices"):
        step(job_of(), plan_of(tp=8, pp=4, num_microbatches=64), mixed(8, 8))
    with pytest.raises(InputError, match=r"must say how many devices it has"):
        step(job_of(), plan_of(tp=8, pp=4, num_microbatches=64), mixed(8, 0))


def test_zero_2_with_a_pipeline_reduces_gradients_once_a_step() -> None:
    plan = plan_of(tp=2, pp=4, dp=8, num_microbatches=8, zero_stage=1)
    job = job_of(trainer=replace(job_of().trainer, fuses_sharded=True))
    found, first = (step(job, replace(plan, zero_stage=zero), CLUSTER) for zero in (2, 1))
    assert found.step_s == first.step_s  # as ZeRO 1: not once per microbatch


def test_frozen_weights_are_not_gathered_after_an_update() -> None:
    job = job_of(trains_weights=False)
    for zero in (0, 1, 2):
        assert step(job, plan_of(dp=64, zero_stage=zero), CLUSTER).parts["dp_exposed_s"] == 0
    assert (
        step(job, plan_of(dp=64, zero_stage=3), CLUSTER).parts["dp_exposed_s"] > 0
    )  # sharded weights are, for every pass


def test_fp8_weights_are_gathered_in_8_bits_where_no_wider_ones_are_kept() -> None:
    plan, trainer = plan_of(dp=64, zero_stage=1), replace(TRAINERS["nemo"], dp_overlap=False)
    wide = replace(trainer, memory=replace(trainer.memory, narrow_primary=False))
    times = [
        step(job_of(trainer=t, recipe=Recipe.FP8_DELAYED), plan, CLUSTER).parts["dp_exposed_s"] for t in (trainer, wide)
    ]
    assert times[0] < 0.9 * times[1]


def test_weights_with_no_room_for_another_layer_are_waited_for() -> None:
    """DeepSpeed gathers nothing ahead where that would be more than ``stage3_max_live_parameters``."""
    deepspeed = TRAINERS["deepspeed"]
    tight = replace(deepspeed, memory=replace(deepspeed.memory, most_gathered=1.0))
    plan = plan_of(dp=64, zero_stage=3)
    ahead, waits = (step(job_of(trainer=t), plan, CLUSTER) for t in (deepspeed, tight))
    assert waits.parts["dp_exposed_s"] > 1.04 * ahead.parts["dp_exposed_s"]


def test_what_fsdp_computes_again_hides_its_traffic() -> None:
    slow = replace(CLUSTER, tiers=tuple(replace(t, bytes_per_s=t.bytes_per_s / 16) for t in CLUSTER.tiers))
    plan, job = plan_of(dp=64, zero_stage=3), job_of(trainer=TRAINERS["fsdp"])
    kept, again = (step(job, replace(plan, recompute=r), slow) for r in (Recompute.NONE, Recompute.FULL))
    assert again.parts["dp_exposed_s"] < kept.parts["dp_exposed_s"]


def test_megatron_copies_sharded_gradients_into_the_buffer_that_is_reduced() -> None:
    plans = plan_of(dp=np.array([8, 8, 8]), num_microbatches=8, zero_stage=np.array([1, 2, 3]))
    own = job_of().trainer
    fused, copied = (
        step(job_of(trainer=replace(own, **change)), plans, CLUSTER)
        for change in ({}, {"accumulation": Accumulation.COPIED})
    )
    assert fused.parts["compute_s"][0] < copied.parts["compute_s"][0]
    assert fused.step_s[1:] == pytest.approx(copied.step_s[1:], rel=1e-12)
    one = step(job_of(), plan_of(dp=8, num_microbatches=8, zero_stage=2), CLUSTER)
    assert one.step_s == pytest.approx(fused.step_s[1], rel=1e-12)


def _counted(monkeypatch: pytest.MonkeyPatch, name: str, size: Callable[..., int]) -> list[int]:
    """The sizes that the function ``name`` of ``sartor`` is called with from now on."""
    module, _, function = name.rpartition(".")
    real, sizes = getattr(importlib.import_module(module), function), list[int]()
    monkeypatch.setattr(name, lambda *args, **named: sizes.append(size(*args)) or real(*args, **named))
    return sizes


def test_a_neighbour_of_a_plan_prices_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    job, plan, cluster = job_of(), PLANS["pipeline"], replace(CLUSTER)  # of which nothing is remembered
    operators = _counted(monkeypatch, "sartor.cost.price.operator_costs", lambda operators, *_: len(operators))
    exchanges = _counted(monkeypatch, "sartor.step.stage_seconds.grad_exchange", lambda *_: 1)
    base = step(job, plan, cluster)
    priced = len(operators), len(exchanges)
    assert priced == (1, 1)
    for more in (replace(plan, recompute=Recompute.FULL), replace(plan, num_microbatches=16)):
        assert step(job, more, cluster).step_s > base.step_s
    assert (len(operators), len(exchanges)) == priced


def test_equal_operators_of_blocks_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(shape_of(experts=True))
    operators = _counted(monkeypatch, "sartor.cost.price.operator_costs", lambda operators, *_: len(operators))
    step(job, PLANS["one device"], replace(CLUSTER))
    whole = lower(workload_of(job), ParallelDims(), kernels_of(job, CLUSTER))
    assert 0 < sum(operators) < len(whole.operators) / 3


def test_another_switch_prices_only_the_operators_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    job, cluster = job_of(), replace(CLUSTER)
    operators = _counted(monkeypatch, "sartor.cost.price.operator_costs", lambda operators, *_: len(operators))
    step(job, PLANS["pipeline"], cluster)
    trainer = replace(job.trainer, accumulation=Accumulation.ADDED)
    step_s = step(replace(job, trainer=trainer), PLANS["pipeline"], cluster).step_s
    assert 0 < operators[1] < operators[0] / 3
    assert step_s == step(replace(job, trainer=trainer), PLANS["pipeline"], replace(CLUSTER)).step_s


def test_pipelines_do_not_depend_on_how_replicas_share_states(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = plan_of(
        pp=2, dp=32, num_microbatches=2, zero_stage=np.array([0, 1, 1, 3, 3]), shard_group=np.array([0, 0, 8, 0, 8])
    )
    rows = _counted(monkeypatch, "sartor.step.step.worked", lambda _, __, work: work["zero_stage"].size)
    step(job_of(), plans, CLUSTER)
    assert sum(rows) == 3  # one of all that gather nothing layer by layer
