"""The search over plans equals looking at every plan by itself; what it refuses, it refuses with a reason."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.model.editing import edit
from sartor.model.plan import SEARCHED
from sartor.model.training import Recompute, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans.result import PlanSearch, PlanStatus
from sartor.plans.search import search_plans
from sartor.plans.space import factorizations, plan_space, size_of, structures
from sartor.step.footprint import usable_bytes
from sartor.step.mechanisms import parts
from sartor.step.results import Footprint, StepEstimate
from sartor.step.trainers import TRAINERS, as_launched
from sartor.units import divisors

GIB = 2**30


def cluster(hbm_gib: float = 80.0) -> Cluster:
    gpu = replace(load_gpu("a100"), hbm_bytes=hbm_gib * GIB)
    tiers = (
        LinkTier(name="node", span=8, bytes_per_s=300e9, latency_s=2e-6, kind="nvswitch"),
        LinkTier(name="fabric", span=0, bytes_per_s=25e9, latency_s=5e-6, kind="infiniband"),
    )
    return Cluster(name="test", gpu=gpu, devices_per_node=8, tiers=tiers)


def job(layers: int = 8, batch: int = 16, seq_len: int = 2048, model: str = "llama-3-8b", **other: Any) -> TrainingJob:
    shape = edit(load_model(model), num_layers=layers)
    return TrainingJob(shape=shape, seq_len=seq_len, global_batch_size=batch, **other)


def toy_step(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Any = None) -> StepEstimate:
    """Seconds that know every axis, of no particular truth."""
    d, m, v = plan.dims, plan.num_microbatches, plan.virtual_stages
    layers = job.shape.num_layers
    per_micro = plan.microbatch_size * layers / (d.tp * d.pp * d.cp) + 0.03 * layers / d.pp
    share = np.where(np.asarray(plan.recompute_layers) < 0, 1.0, plan.recompute_layers / layers * d.pp)
    work = per_micro * (1 + np.where(np.equal(plan.recompute, Recompute.FULL), share / 3, 0.0))
    tp = (
        0.02
        * (np.asarray(d.tp) > 1)
        * (2 - np.asarray(d.sequence_parallel))
        * per_micro
        * np.log2(1 + np.asarray(d.tp))
    )
    bubble = (d.pp - 1) * work / v * np.where(np.equal(plan.schedule, 1), 0.5, 1.0)
    shard = 0.1 * np.asarray(plan.zero_stage) + 0.3 * np.log2(d.dp * d.cp) + 0.2 * np.log2(np.asarray(d.cp))
    total = m * (work + tp) + bubble + shard + 0.01 * np.asarray(v) * m + 0.02 * np.asarray(plan.optimizer_offload)
    zero = 0.0 * total
    return StepEstimate(
        step_s=total,
        log_sigma=0.1,
        parts={
            **dict.fromkeys((part.key for part in parts()), zero),
            "compute_s": m * work,
            "tp_s": m * tp,
            "pp_bubble_s": bubble,
            "dp_exposed_s": shard,
        },
        model_flops=1.0,
        tokens_per_s_per_device=job.tokens_per_step / total / plan.num_devices,
        mfu=0.4,
    )


def toy_footprint(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Footprint:
    d, z = plan.dims, np.asarray(plan.zero_stage)
    layers, ranks = job.shape.num_layers, d.dp * d.cp
    params = 4.0 * layers / (d.tp * d.pp) * GIB
    grads = params * 2 / np.where(z >= 2, ranks, 1)
    optimizer = params * 6 / np.where(z >= 1, ranks, 1) * np.where(plan.optimizer_offload, 0.0, 1.0)
    weights = params / np.where(z >= 3, ranks, 1)
    chunk = layers / d.pp
    full = np.equal(plan.recompute, Recompute.FULL)
    again = np.where(full, np.where(np.asarray(plan.recompute_layers) < 0, chunk, plan.recompute_layers), 0)
    kept = np.maximum(chunk - again, 0) + 0.1 * again
    micro = plan.microbatch_size * job.seq_len / 2048 / (d.cp * np.where(d.sequence_parallel, d.tp, 1))
    stash = 1.5 * GIB * kept * micro * np.minimum(d.pp, plan.num_microbatches)
    total = weights + grads + optimizer + stash
    return Footprint(
        param_bytes=weights,
        grad_bytes=grads,
        optimizer_bytes=optimizer,
        stash_bytes=stash,
        workspace_bytes=0.0 * total,
        allocated_bytes=total,
        reserved_bytes=total,
        device_bytes=total,
        stage=0 * d.pp,
    )


def search(job_: TrainingJob, num_devices: int, hbm_gib: float = 80.0, **options: Any) -> PlanSearch:
    where = options.pop("cluster", None) or cluster(hbm_gib)
    return search_plans(
        job_, where, num_devices, steps=toy_step, footprints=toy_footprint, uneven=False, headroom=0.0, **options
    )


def every_plan(job_: TrainingJob, num_devices: int) -> list[TrainingPlan]:
    """Every legal plan of a small dense job under Megatron, written down one by one from the rules in words."""
    layers, heads, kv = job_.shape.num_layers, job_.shape.num_heads, job_.shape.num_kv_heads
    plans = []
    sizes = range(1, num_devices + 1)
    for tp, pp, cp, dp in product(sizes, repeat=4):
        if tp * pp * cp * dp != num_devices or heads % tp or (kv % tp and tp % kv) or job_.shape.ffn_hidden_size % tp:
            continue
        if pp > layers or job_.global_batch_size % dp or (cp > 1 and job_.seq_len % (2 * cp)):
            continue
        for v, b in product(range(1, layers + 1), range(1, job_.global_batch_size + 1)):
            if job_.global_batch_size % (dp * b) or pp * v > layers or (v > 1 and pp == 1):
                continue
            m = job_.global_batch_size // (dp * b)
            if v > 1 and (m % pp or (v > 8 and layers % (pp * v))):
                continue
            for sp, zero, recompute in product((False, True), range(4), (Recompute.NONE, Recompute.FULL)):
                if (sp and tp == 1) or (zero and dp * cp == 1) or (zero > 1 and pp > 1):
                    continue
                for again in range(1, layers + 1) if recompute else (-1,):
                    if again > -(-layers // (pp * v)) * v:
                        continue
                    dims = ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, sequence_parallel=sp)
                    plans.append(
                        TrainingPlan(
                            dims=dims,
                            microbatch_size=b,
                            num_microbatches=m,
                            virtual_stages=v,
                            zero_stage=zero,
                            recompute=recompute,
                            recompute_layers=again,
                        )
                    )
    return plans


@pytest.mark.parametrize(
    ("layers", "batch", "devices", "hbm"), [(4, 4, 4, 40), (4, 4, 4, 150), (6, 6, 6, 45), (3, 8, 8, 20), (4, 2, 2, 80)]
)
def test_the_search_finds_what_looking_at_every_plan_by_itself_finds(
    layers: int, batch: int, devices: int, hbm: float
) -> None:
    asked, where = job(layers, batch), cluster(hbm)
    plans = every_plan(asked, devices)
    bytes_ = np.array([float(toy_footprint(asked, p, where).device_bytes) for p in plans])
    times = np.array([float(toy_step(asked, p, where).step_s) for p in plans])
    times[bytes_ > usable_bytes(where)] = np.inf
    found = search(asked, devices, hbm)
    assert found.best is not None
    assert found.best.step_s == pytest.approx(times.min(), rel=1e-12)
    assert found.best.peak_bytes <= usable_bytes(where)
    for point in found.front:
        assert not ((times < point.step_s * (1 - 1e-9)) & (bytes_ < point.peak_bytes * (1 - 1e-9))).any()


def test_where_no_plan_fits_the_search_finds_none() -> None:
    asked, where = job(4, 2), cluster(70)
    assert all(float(toy_footprint(asked, p, where).device_bytes) > usable_bytes(where) for p in every_plan(asked, 2))
    assert search(asked, 2, 70).status is PlanStatus.INFEASIBLE


@settings(max_examples=25, deadline=None)
@given(
    devices=st.sampled_from([1, 2, 6, 8, 12, 16]),
    batch=st.sampled_from([8, 12, 48]),
    layers=st.sampled_from([3, 8, 12]),
    hbm=st.sampled_from([8.0, 30.0, 80.0, 640.0]),
)
def test_every_point_of_the_grid_fits_or_has_one_reason(devices: int, batch: int, layers: int, hbm: float) -> None:
    found = search(job(layers, batch), devices, hbm)
    assert found.fitting + sum(found.rejected.values()) == found.space_size
    assert (found.best is None) == (found.fitting == 0)
    assert all(count > 0 for count in found.rejected.values())


def test_the_order_of_axes_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from sartor.plans import space as space

    asked = job(8, 16)
    first = search(asked, 16, 45.0)
    monkeypatch.setattr(space, "CHUNK", 7)
    again = search(asked, 16, 45.0)
    assert first.best == again.best
    assert [p.plan for p in first.top] == [p.plan for p in again.top]
    assert first.front == again.front
    assert (first.rejected, first.fitting, first.space_size) == (again.rejected, again.fitting, again.space_size)
    assert first.evaluated - first.refined == again.evaluated - again.refined


def test_top_plans_are_of_different_dims_and_come_best_first() -> None:
    found = search(job(8, 16), 16, 40.0, top=6)
    dims = [(p.plan.dims.tp, p.plan.dims.pp, p.plan.dims.dp, p.plan.dims.cp, p.plan.dims.ep) for p in found.top]
    assert len(set(dims)) == len(dims) == 6
    assert [p.step_s for p in found.top] == sorted(p.step_s for p in found.top)
    assert found.best == found.top[0]


def test_more_memory_never_makes_the_best_plan_slower() -> None:
    times = [search(job(8, 16), 8, hbm) for hbm in (10, 20, 40, 80, 160)]
    steps = [np.inf if f.best is None else f.best.step_s for f in times]
    assert steps == sorted(steps, reverse=True)


@given(axis=st.sampled_from(["tp", "pp", "dp", "cp", "zero_stage", "recompute", "microbatch_size", "virtual_stages"]))
@settings(max_examples=8, deadline=None)
def test_holding_an_axis_at_the_best_value_finds_the_best_again_and_elsewhere_nothing_faster(axis: str) -> None:
    asked = job(8, 16)
    free = search(asked, 8, 45.0)
    assert free.best is not None
    plan = free.best.plan
    best_value = getattr(plan.dims, axis) if hasattr(plan.dims, axis) else getattr(plan, axis)
    rows = structures(asked, plan_space(asked, 8, {})).rows
    values = set(rows[axis].tolist()) if axis in rows else {0, 1, 2, 3} if axis == "zero_stage" else {0, 2}
    for value in values:
        held = search(asked, 8, 45.0, fixed={axis: value})
        if value == int(best_value):
            assert held.best is not None
            assert held.best.plan == plan
        elif held.best is not None:
            assert held.best.step_s >= free.best.step_s


def test_whole_layers_are_recomputed_only_as_many_as_must_be() -> None:
    asked = job(8, 16)
    found = search(asked, 4, 80.0, fixed={"pp": 1, "tp": 4, "microbatch_size": 4, "zero_stage": 0})
    assert found.best is not None
    assert found.best.plan.recompute == Recompute.FULL
    again = int(found.best.plan.recompute_layers)
    assert 0 < again < 8
    fewer = replace(found.best.plan, recompute_layers=again - 1)
    assert float(toy_footprint(asked, fewer, cluster(80.0)).device_bytes) > usable_bytes(cluster(80.0))


def test_full_recomputation_that_is_asked_for_is_of_every_layer() -> None:
    """Until 2026-11-26 one layer was recomputed where one sufficed, or none had to be."""
    fixed = {"recompute": "full", "pp": 1, "tp": 4, "microbatch_size": 4, "zero_stage": 0}
    for memory_gib in (80.0, 800.0):
        found = search(job(8, 16), 4, memory_gib, fixed=fixed)
        assert found.best is not None
        assert int(found.best.plan.recompute_layers) < 0


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"tpp": 8}, ("fix=tpp", "nearest: tp")),
        ({"tp": 3}, ("fix tp=3", "must divide num_devices=16", "nearest: 2 or 4")),
        ({"tp": "many"}, ("fix tp=many", "whole number")),
        ({"microbatch_size": 5}, ("global_batch_size=16", "must be a multiple of microbatch_size=5", "15 or 20")),
        ({"dp": 2, "microbatch_size": 16}, ("global_batch_size=16", "dp=2 x microbatch_size=16", "nearest: 32")),
        ({"tp": 8, "pp": 4}, ("fix pp=4", "takes 32 devices with tp=8", "num_devices=32")),
        ({"recompute": "som"}, ("fix recompute=som", "none, selective, full")),
        ({"zero_stage": 4}, ("from 0 to 3", "nearest: 3")),
        ({"ep": 2}, ("fix ep=2", "the model has no experts", "nearest: 1")),
        ({"virtual_stages": 9}, ("fix virtual_stages=9", "nearest")),
        ({"tp": 16}, ("fix tp=16",)),
    ],
)
def test_a_value_no_plan_can_have_is_refused_with_what_rules_it_out(
    fixed: dict[str, Any], words: tuple[str, ...]
) -> None:
    asked = (
        job(8, 16) if fixed != {"tp": 16} else replace(job(8, 16), shape=edit(job().shape, num_heads=8, num_kv_heads=8))
    )
    with pytest.raises(InputError) as error:
        search(asked, 16, fixed=fixed)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("splits", [False, True])
def test_whole_experts_may_lie_on_tensor_ranks_and_split_ones_may_not(splits: bool) -> None:
    asked = replace(job(4, 16, model="mixtral-8x7b"), trainer=Trainer(splits_experts=splits))
    rows = structures(asked, plan_space(asked, 8, {})).rows
    found = set(zip(*(rows[name].tolist() for name in ("tp", "dp", "cp", "ep")), strict=True))
    beyond = {each for each in found if each[1] * each[2] % each[3]}
    assert bool(beyond) is not splits
    assert all(tp * dp * cp % ep == 0 for tp, dp, cp, ep in found)
    assert ((8, 1, 1, 8) in found) is not splits


def test_devices_that_no_plan_can_use_name_their_neighbours() -> None:
    with pytest.raises(InputError) as error:
        search(job(8, 16), 17)
    assert str(error.value).startswith("num_devices=17: no tp x pp x dp x cp split works")
    assert error.value.nearest == "16 or 20"


def test_what_cannot_fit_says_by_how_much_and_what_would_help() -> None:
    found = search(job(8, 16), 4, 2.0)
    assert found.status is PlanStatus.INFEASIBLE
    assert found.tightest is not None
    lean, over = found.tightest.leanest, found.tightest.over_bytes
    assert lean is not None
    assert over == pytest.approx(lean.peak_bytes - usable_bytes(cluster(2.0)))
    changes = {each.field: each for each in found.tightest.relaxations}
    assert int(changes["num_devices"].value) in (8, 16, 32, 64, 128, 256, 512)
    more = search(job(8, 16), int(changes["num_devices"].value), 2.0)
    assert more.best is not None
    larger = search(job(8, 16), 4, int(changes["hbm_bytes"].value) / GIB)
    assert larger.best is not None


def test_fixed_values_that_exclude_each_other_are_infeasible_and_each_is_tried_free() -> None:
    found = search(job(8, 16), 8, fixed={"tp": 1, "sequence_parallel": "on"})
    assert found.status is PlanStatus.INFEASIBLE
    assert found.tightest is not None
    assert found.tightest.message == "no plan has tp=1, sequence_parallel=1 together: sequence parallelism needs tp > 1"
    assert {each.field for each in found.tightest.relaxations} == {"tp", "sequence_parallel"}


def test_progress_runs_from_nothing_to_all() -> None:
    told: list[tuple[int, int]] = []
    search(job(8, 16), 8, progress=lambda done, total: told.append((done, total)))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0


def test_a_trainer_without_a_schedule_is_not_offered_it() -> None:
    asked = job(8, 16)
    titan = replace(asked, trainer=TRAINERS["torchtitan"])
    assert "megatron has no such schedule" in search(asked, 8).rejected
    assert not any("has no such schedule" in reason for reason in search(titan, 8).rejected)


@given(number=st.integers(1, 3000))
@settings(max_examples=50, deadline=None)
def test_factorizations_are_all_there_once(number: int) -> None:
    rows = factorizations(number)
    tuples = list(zip(*(rows[name].tolist() for name in ("tp", "pp", "cp", "dp")), strict=True))
    assert len(set(tuples)) == len(tuples)
    assert all(a * b * c * d == number for a, b, c, d in tuples)
    count = sum(len(divisors(number // (a * b))) for a in divisors(number) for b in divisors(number // a))
    assert len(tuples) == count


def test_every_axis_is_in_the_space() -> None:
    asked = job(8, 16)
    space = plan_space(asked, 8, {})
    assert {*space.dims, *space.axes} == set(SEARCHED)
    assert size_of(space.dims) * int(np.prod([len(v) for v in space.axes.values()])) == space.size


@pytest.mark.parametrize("trainer", ["torchtitan", "fsdp"])
def test_trainers_on_fsdp_are_offered_what_they_have(trainer: str) -> None:
    asked = replace(job(8, 16), trainer=as_launched(TRAINERS[trainer]))
    found = search(asked, 8)
    plans = [each.plan for each in (*found.top, *found.front)]
    assert {int(plan.zero_stage) for plan in plans} & {2, 3}
    for plan in plans:
        dims = plan.dims
        alone = int(dims.tp) * int(dims.pp) * int(dims.cp) == 1 or int(dims.dp) * int(dims.cp) == 1
        assert int(plan.zero_stage) in ((0, 2, 3) if alone else (2, 3))
        assert trainer == "torchtitan" or int(dims.pp) == 1
    if trainer == "torchtitan":
        piped = search(asked, 8, fixed={"pp": 2, "dp": 4}).best
        assert piped is not None
        assert int(piped.plan.zero_stage) in (2, 3)


def test_layers_held_to_be_recomputed_are() -> None:
    found = search_plans(job(), cluster(), 8, {"recompute_layers": 2, "pp": 2})
    assert found.best is not None
    assert all(int(each.plan.recompute) == Recompute.FULL and each.plan.recompute_layers == 2 for each in found.top)
    with pytest.raises(
        InputError, match=r"recompute_layers=2: .*recompute=none recomputes no whole layer; nearest: recompute=full"
    ):
        search_plans(job(), cluster(), 8, {"recompute_layers": 2, "recompute": "none"})
    with pytest.raises(InputError, match=r"recompute_layers=9: must be at most the model's 8 layers"):
        search_plans(job(), cluster(), 8, {"recompute_layers": 9})


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (
            {"virtual_stages": 2, "framework": "deepspeed"},
            "virtual_stages=2: DeepSpeed does not interleave; nearest: 1",
        ),
        ({"ep": 4}, "ep=4: the model has no experts; nearest: 1"),
        ({"pp": 64}, "pp=64: fewer layers than pipeline stages; nearest: 16 or 32"),
    ],
)
def test_a_plan_that_cannot_be_priced_names_the_value_that_no_plan_has(plan: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        sartor.estimate("llama-3-8b", "h100_sxm", num_devices=64, global_batch_size=64, **plan)
    assert str(error.value) == sentence


@pytest.mark.parametrize("devices", [128, 256])
def test_a_plan_takes_64_of_each_rack_of_72(devices: int) -> None:
    """128 and 256 devices step as fast as two full racks of 72, within 2%, whatever a cluster of any size was given."""
    fix: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp"), 1)
    fix |= {"ep": 8, "zero_stage": 1, "microbatch_size": 2, "recompute": "none"}
    racks = (
        sartor.plan("qwen3-30b-a3b", cluster="gb200-nvl72", num_devices=n, global_batch_size=8 * n, fix=fix).best
        for n in (devices, 144)
    )
    some, full = (float(best.step_s) for best in racks if best is not None)
    assert some == pytest.approx(full, rel=0.02)
