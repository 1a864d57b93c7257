"""A chip's training step has one price: what design proves is what plan and estimate say of the same job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from sartor.api import estimate
from sartor.cost.collective.collective import collective_cost
from sartor.cost.collective.links import link_time_s
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.price import operator_costs
from sartor.designs.bounds import splits
from sartor.designs.detail import model_detail, plan_fields, training_step
from sartor.designs.parts import CopySplit, design_job
from sartor.designs.point import Evaluation, Option, Point, ScheduleStore, evaluate_option
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of
from sartor.hardware.cluster import own_links
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.model.counts import count_params
from sartor.model.editing import edit_fields
from sartor.model.training import Optimizer, Recompute, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import Collective, CollectiveKind
from sartor.plans.search import search_plans
from sartor.step.footprint import every_stage, footprint
from sartor.step.mechanisms import part_words
from sartor.step.mechanisms.mechanism import BUBBLE, COMPUTE, OPTIMIZER, REPLICAS
from sartor.step.step import step

CHIPS = st.builds(
    Accelerator.from_template,
    num_tensor_cores=st.sampled_from([1, 2, 4]),
    num_vector_cores=st.sampled_from([1, 2]),
    width=st.sampled_from([64, 128]),
    depth=st.sampled_from([64, 128]),
    global_buffer_mib=st.sampled_from([16, 64]),
    num_links=st.sampled_from([1, 6]),
    scale_up_devices=st.sampled_from([0, 4, 8]),
    scale_out_bytes_per_s=st.sampled_from([5e9, 100e9]),
    num_stacks=st.sampled_from([1, 4]),
    sustained_share=st.sampled_from([0.76, 1.0]),
    sustained_hbm_share=st.sampled_from([0.89, 1.0]),
    sustained_link_share=st.sampled_from([0.69, 1.0]),
    run_factor=st.sampled_from([1.0, 1.07]),
)
NO_PARTS = dict.fromkeys(part_words(), 0.0)
MODELS = ("gpt2", "llama-3.2-1b", "mixtral-8x7b")


@given(
    chip=CHIPS,
    kind=st.sampled_from(CollectiveKind),
    size=st.floats(1.0, 1e9),
    group=st.integers(1, 40),
    stride=st.integers(1, 8),
)
def test_estimate_prices_a_collective_of_a_chip_as_its_schedules_do(
    chip: Accelerator, kind: CollectiveKind, size: float, group: int, stride: int
) -> None:
    op = Collective(name="c", kind=kind, group_size=group, message_bytes=size, stride=stride)
    gpu = datasheet_of(chip)
    assert float(collective_cost(op, gpu, load_calibration(gpu)).time_s) == pytest.approx(link_time_s(op, chip))
    default = operator_costs([op], gpu, cluster=usual_cluster(gpu).reached(64))[0]
    assert float(default.time_s) == pytest.approx(link_time_s(op, chip))


def small(name: str, layers: int) -> DesignModel:
    shape = edit_fields(load_model(name), {"num_layers": layers})[0]
    return DesignModel(name=name, shape=replace(shape, name=name), seq_len=512)


@settings(max_examples=times(20, 60))
@given(chip=CHIPS, name=st.sampled_from(MODELS), layers=st.integers(2, 5), batch=st.integers(3, 40), data=st.data())
def test_design_and_step_give_one_plan_the_same_seconds_and_bytes(
    chip: Accelerator, name: str, layers: int, batch: int, data: st.DataObject
) -> None:
    model = small(name, layers)
    question = DesignQuestion(
        models=(model,),
        num_devices=16,
        global_batch_size=batch,
        optimizer=data.draw(st.sampled_from([Optimizer.ADAM, Optimizer.SGD])),
        zero_stages=data.draw(st.sampled_from([(0,), (0, 1), (2,), (0, 1, 2, 3)])),
        context_widths=data.draw(st.sampled_from([(1,), (1, 2), (2, 4)])),
        virtual_stages=data.draw(st.sampled_from([(1,), (1, 2), (1, 2, 4)])),
    )
    split: CopySplit = data.draw(st.sampled_from(list(splits(question, model))))
    recompute = data.draw(st.sampled_from([Recompute.NONE, Recompute.FULL]))
    point = Point(index=0, accelerator=chip, hbm_bytes=float(chip.hbm_bytes), options=())
    outcome, _ = evaluate_option(question, point, Option(model=0, split=split, recompute=recompute), ScheduleStore())
    if outcome is None:
        return
    evaluation = Evaluation(point=point, outcomes=(outcome,), bounds=(1.0,))
    found = training_step(question, evaluation, 0)
    detail = model_detail(question, evaluation, 0)
    assert detail is not None
    assert found is not None
    job, plan, cluster = found
    assert int(plan.dims.dp) * int(plan.microbatch_size) * int(plan.num_microbatches) == batch
    priced = step(job, plan, cluster)
    assert float(priced.step_s) == pytest.approx(outcome.step_s, rel=1e-9)
    after = {part.key: float(priced.parts[part.key]) for part in (BUBBLE, REPLICAS, OPTIMIZER)}
    stage_s = float(sum(priced.parts.values())) - sum(after.values())  # a stage's exchange is in its schedule
    assert detail.step.parts == pytest.approx({**NO_PARTS, COMPUTE.key: stage_s, **after}, abs=1e-9 * outcome.step_s)
    assert float(footprint(job, plan, cluster).device_bytes) == pytest.approx(detail.peak_bytes, rel=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "gemma-3-1b", "llama-2-7b"])
def test_a_single_stage_holds_every_parameter_once_and_two_hold_a_tied_table_twice(name: str) -> None:
    chip = Accelerator.from_template(num_tensor_cores=4, num_vector_cores=2, width=128, depth=128, global_buffer_mib=64)
    shape = load_model(name)
    job = design_job(DesignModel(name=name, shape=shape, seq_len=512), 8)
    params = count_params(job.shape).text
    table = int(job.shape.vocab_size) * int(job.shape.hidden_size) if job.shape.tied_embeddings else 0
    for pp, twice in ((1, 0), (2, table)):
        plan = TrainingPlan(dims=ParallelDims(pp=pp), microbatch_size=1, num_microbatches=8)
        found = every_stage(job, plan, own_links(datasheet_of(chip)))
        assert float(np.sum(found.held.weights)) == 2 * (params + twice)
        assert float(np.sum(found.held.grads)) == 2 * (params + twice)


def test_a_single_stage_recomputes_nothing_and_says_so() -> None:
    """In lockstep the last stage starts backward at once: at pp = 1 full recomputation is none by another name."""
    chip = Accelerator.from_template(num_tensor_cores=4, num_vector_cores=2, width=128, depth=128, global_buffer_mib=32)
    model = small("gpt2", 4)
    question = DesignQuestion(models=(model,), num_devices=1, global_batch_size=8)
    point = Point(index=0, accelerator=chip, hbm_bytes=float(chip.hbm_bytes), options=())
    option = Option(model=0, split=CopySplit(1, 1), recompute=Recompute.FULL)
    outcome, _ = evaluate_option(question, point, option, ScheduleStore())
    assert outcome is not None
    assert outcome.plan.num_stages == 1
    detail = model_detail(question, Evaluation(point=point, outcomes=(outcome,), bounds=(1.0,)), 0)
    assert detail is not None
    assert plan_fields(detail)["recompute"] == "none"
    found = search_plans(design_job(model, 32), own_links(datasheet_of(chip)), 8)
    recomputed = [p for p in found.front if p.plan.recompute == Recompute.FULL]
    assert all(int(p.plan.dims.pp) > 1 for p in recomputed)
    axes = {"pp": 1, "virtual_stages": 1, "schedule": "1f1b", "zero_stage": 0, "recompute": "full"}
    with pytest.raises(InputError, match="recomputes nothing on the last stage"):
        estimate("gpt2", gpu=datasheet_of(chip), num_devices=4, global_batch_size=8, **axes)


@pytest.mark.slow
def test_plan_on_a_pod_is_never_faster_than_the_design_that_proved_its_best() -> None:
    """Plan looks at fewer plans (all devices, whole batches), each priced alike."""
    chip = Accelerator.from_template(num_tensor_cores=4, num_vector_cores=2, width=128, depth=128, global_buffer_mib=64)
    model = small("gpt2", 4)
    question = DesignQuestion(
        models=(model,),
        num_devices=8,
        global_batch_size=32,
        microbatch_sizes=(1, 2, 4, 8, 16, 32),
        zero_stages=(0, 1, 2, 3),
        context_widths=(1, 2, 4, 8),
        virtual_stages=(1, 2, 4),
    )
    point = Point(index=0, accelerator=chip, hbm_bytes=float(chip.hbm_bytes), options=())
    options = [
        Option(model=0, split=split, recompute=each)
        for split in splits(question, model)
        for each in (Recompute.NONE, Recompute.FULL)
    ]
    store = ScheduleStore()
    outcomes = [evaluate_option(question, point, option, store)[0] for option in options]
    proved = min(outcome.step_s for outcome in outcomes if outcome is not None)
    found = search_plans(design_job(model, 32), own_links(datasheet_of(chip)), 8)
    assert found.best is not None
    assert proved * (1 - 1e-9) <= found.best.step_s <= proved * 1.25
