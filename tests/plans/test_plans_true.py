"""The search under the true step and footprint, against every plan priced by itself; what it proposes, tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans.search import search_plans
from sartor.rules.plan.does_not_fit import what_to_change
from sartor.step.footprint import fits, footprint, usable_bytes
from sartor.step.step import step
from sartor.step.trainers.megatron import MEGATRON

GIB = 2**30
HEADS = 32


def cluster(hbm_gib: float) -> Cluster:
    where = load_cluster("dgx-a100", 8)
    return replace(where, gpu=replace(where.gpu, hbm_bytes=hbm_gib * GIB))


def job(layers: int, batch: int = 4) -> TrainingJob:
    return TrainingJob(shape=edit(load_model("llama-3-8b"), num_layers=layers), seq_len=1024, global_batch_size=batch)


def every_plan(asked: TrainingJob, devices: int) -> list[TrainingPlan]:
    """Every plan that Megatron can run, found by trying all numbers; none of the search's code."""
    layers, out = int(asked.shape.num_layers), []
    for tp, pp, cp, dp in product(range(1, devices + 1), repeat=4):
        if tp * pp * cp * dp != devices or pp > layers or HEADS % tp or 8 % tp or asked.seq_len % (2 * cp):
            continue
        for v, b in product(range(1, 9), range(1, asked.global_batch_size + 1)):
            if (v > 1 and pp == 1) or pp * v > layers or asked.global_batch_size % (dp * b):
                continue
            m = asked.global_batch_size // (dp * b)
            if v > 1 and m % pp:
                continue
            for sequence, zero, kind in product((False, True), range(4), (Recompute.NONE, Recompute.FULL)):
                if (sequence and tp == 1) or (zero and dp * cp == 1) or (zero > 1 and pp > 1):
                    continue
                dims = ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, sequence_parallel=sequence)
                plan = TrainingPlan(dims=dims, microbatch_size=b, num_microbatches=m, virtual_stages=v, zero_stage=zero)
                most = -(-layers // (pp * v)) * v
                somes = (-1, *range(1, most)) if kind is Recompute.FULL else (-1,)
                out += [replace(plan, recompute=kind, recompute_layers=some) for some in somes]
    return out


@pytest.mark.parametrize(("layers", "devices", "batch", "hbm"), [(4, 4, 4, 16), (3, 2, 4, 24), (5, 2, 2, 22.5)])
def test_the_best_and_the_front_are_those_of_all_plans_priced_alone(
    layers: int, devices: int, batch: int, hbm: float
) -> None:
    asked, where = job(layers, batch), cluster(hbm)
    plans = every_plan(asked, devices)
    bytes_ = np.array([float(footprint(asked, plan, where).device_bytes) for plan in plans])
    fit = np.flatnonzero(bytes_ <= usable_bytes(where))
    assert 0 < len(fit) < len(plans)
    times = np.array([float(step(asked, plans[i], where).step_s) for i in fit])
    found = search_plans(asked, where, devices, uneven=False, headroom=0.0)
    assert found.best is not None
    assert found.best.step_s == pytest.approx(times.min(), rel=1e-12)
    best = found.best.plan
    assert (best.virtual_stages == 1) or best.num_microbatches % best.dims.pp == 0
    for point in found.front:
        assert not ((times < point.step_s * (1 - 1e-9)) & (bytes_[fit] < point.peak_bytes * (1 - 1e-9))).any()
    # The other way round: of the plans the search looks at, none that nothing beats is missing from the front.
    whole = [k for k, i in enumerate(fit) if plans[i].recompute_layers < 0]
    front = np.array([[p.step_s, p.peak_bytes] for p in found.front])
    for k in whole:
        mine = times[k], bytes_[fit[k]]
        assert (front <= np.array(mine) * (1 + 1e-9)).all(axis=1).any()
    assert search_plans(asked, where, devices, headroom=0.0).best.step_s <= times.min()  # type: ignore[union-attr]


@pytest.mark.parametrize("devices", [2, 4])
def test_plans_said_not_to_fit_do_not(devices: int) -> None:
    asked, where = job(4), cluster(18)
    found = search_plans(asked, where, devices, uneven=False, headroom=0.0)
    said = sum(count for reason, count in found.rejected.items() if reason.startswith("does not fit"))
    plans = [plan for plan in every_plan(asked, devices) if plan.recompute_layers < 0]
    assert said == sum(not fits(asked, plan, where) for plan in plans)
    assert found.fitting == sum(bool(fits(asked, plan, where)) for plan in plans)


@settings(max_examples=8, deadline=None)
@given(hbm=st.sampled_from([3.0, 6.0, 9.0, 12.0]), devices=st.sampled_from([1, 2, 4]), layers=st.sampled_from([4, 8]))
def test_every_relaxation_that_is_proposed_leaves_a_plan(hbm: float, devices: int, layers: int) -> None:
    asked = job(layers, 8)
    found = search_plans(asked, cluster(hbm), devices, uneven=False)
    if found.best is not None:
        return
    assert found.tightest is not None
    for each in found.tightest.relaxations:
        fixed = {"optimizer_offload": 1} if each.field == "optimizer_offload" else {}
        many = int(each.value) if each.field == "num_devices" else devices
        tokens = int(each.value) if each.field == "seq_len" else asked.seq_len
        memory = int(each.value) / GIB if each.field == "hbm_bytes" else hbm
        where = replace(cluster(memory), num_devices=0)
        again = search_plans(replace(asked, seq_len=tokens), where, many, fixed, uneven=False)
        assert again.best is not None, each.change


@settings(max_examples=20, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    size=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1]),
    recompute=st.sampled_from(list(Recompute)),
    share=st.floats(0.4, 0.99),
)
def test_what_is_said_to_make_a_plan_fit_does(
    tp: int, pp: int, size: int, zero: int, recompute: Recompute, share: float
) -> None:
    asked, dims = job(8, 64), ParallelDims(tp=tp, pp=pp, dp=16 // tp // pp)
    plan = TrainingPlan(
        dims=dims,
        microbatch_size=size,
        num_microbatches=64 // size // int(dims.dp),
        zero_stage=zero,
        recompute=recompute,
        schedule=PipelineSchedule.ONE_F_ONE_B,
    )
    needed = float(footprint(asked, plan, cluster(80)).device_bytes)
    tight = replace(cluster(needed * share / GIB), num_devices=16)
    for change in what_to_change(asked, plan, tight):
        assert fits(change.job, change.plan, tight), change.sentence
        assert change.device_bytes <= usable_bytes(tight)


def test_a_pair_of_changes_is_offered_where_every_single_one_is_slow() -> None:
    box = replace(load_cluster("dgx-h100"), num_devices=8)
    asked = TrainingJob(shape=load_model("qwen2.5-32b"), seq_len=4096, global_batch_size=16, trainer=MEGATRON)
    plan = TrainingPlan(
        dims=ParallelDims(tp=2, pp=2, dp=2, sequence_parallel=True),
        microbatch_size=1,
        num_microbatches=8,
        zero_stage=1,
    )
    first, *_ = changes = what_to_change(asked, plan, box)
    alone = next(change for change in changes if change.field == "optimizer_offload")
    assert first.step_s < 0.7 * alone.step_s
    assert " and " in first.field
