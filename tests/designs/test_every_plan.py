"""The plan of a chip is the best of all plans, each priced by the step model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from design_samples import small_shape
from effort import times
from sartor.designs.bounds import plan_rates, splits, work_rates
from sartor.designs.parts import CopySplit, design_job, parts_of
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_option
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of
from sartor.hardware.cluster import own_links
from sartor.model.editing import edit_fields
from sartor.model.training import Optimizer, Recompute, TrainingPlan
from sartor.model.zoo import load_model
from sartor.step.footprint import footprint
from sartor.step.step import step_each

CHIP = Accelerator.from_template(num_tensor_cores=2, num_vector_cores=2, width=64, depth=64, global_buffer_mib=8)
EXPERTS = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_heads": 4,
    "num_kv_heads": 4,
    "vocab_size": 1024,
    "expert_ffn_hidden_size": 256,
    "num_experts": 4,
}
MODELS = {
    "dense": small_shape(4, 128),
    "experts": edit_fields(load_model("mixtral-8x7b"), EXPERTS)[0],
}


def every_plan(question: DesignQuestion, split: CopySplit, recompute: Recompute, layers: int) -> Iterator[TrainingPlan]:
    """Every pipeline of the question in every number of copies."""
    batches = question.global_batch_size // split.microbatch_size
    for pp in range(1, layers + 3):
        for dp in range(1, batches + 1):
            if dp * split.context_parallel % split.expert_parallel or batches % dp:
                continue
            microbatches = batches // dp
            if split.devices * pp * dp > question.num_devices:
                break
            for zero in {0, *question.zero_stages}:
                if zero > 1 and pp > 1:
                    continue
                plan = TrainingPlan(
                    dims=replace(split.dims, pp=pp, dp=dp),
                    microbatch_size=split.microbatch_size,
                    num_microbatches=microbatches,
                    recompute=recompute,
                    zero_stage=zero,
                )
                for cuts in combinations_with_replacement(range(layers + 1), pp - 1):
                    each = tuple(b - a for a, b in pairwise((0, *cuts, layers)))
                    if all(each[1:-1]):  # embedding and head may be alone on a stage
                        yield replace(plan, stage_layers=each)
                for v in set(question.virtual_stages) - {1}:
                    if pp > 1 and layers % (pp * v) == 0 and microbatches % pp == 0:
                        each = (layers // (pp * v),) * (pp * v)
                        yield replace(plan, virtual_stages=v, stage_layers=each)


@pytest.mark.slow
@settings(max_examples=times(20, 60), deadline=None)
@given(
    name=st.sampled_from(tuple(MODELS)),
    batch=st.integers(2, 16),
    devices=st.sampled_from((4, 8, 16)),
    share=st.sampled_from((0.3, 0.6, 0.9, 1.2, 4.0)),
    optimizer=st.sampled_from((Optimizer.ADAM, Optimizer.SGD)),
    zero=st.sampled_from(((0,), (1,), (2,), (3,), (0, 1, 2, 3))),
    virtual=st.sampled_from(((1,), (2,), (1, 2, 4))),
    recompute=st.sampled_from((Recompute.NONE, Recompute.FULL)),
    data=st.data(),
)
def test_no_plan_that_fits_takes_less_than_the_one_found(
    name: str,
    batch: int,
    devices: int,
    share: float,
    optimizer: Optimizer,
    zero: tuple[int, ...],
    virtual: tuple[int, ...],
    recompute: Recompute,
    data: st.DataObject,
) -> None:
    """``share`` is the memory of all devices over the bytes of the model with its optimizer."""
    model = DesignModel(name=name, shape=replace(MODELS[name], name=name), seq_len=128, widths=(1, 2))
    question = DesignQuestion(
        models=(model,),
        num_devices=devices,
        global_batch_size=batch,
        microbatch_sizes=(1, 2),
        optimizer=optimizer,
        zero_stages=zero,
        context_widths=(1, 2),
        virtual_stages=virtual,
    )
    split: CopySplit = data.draw(st.sampled_from(list(splits(question, model))))
    job = design_job(model, batch, optimizer=optimizer)
    cluster = own_links(datasheet_of(CHIP))
    whole = footprint(job, TrainingPlan(), cluster).device_bytes
    hbm = share * float(whole) / min(devices, 4)
    point = Point(index=0, accelerator=CHIP, hbm_bytes=hbm, options=())
    found, _ = evaluate_option(question, point, Option(model=0, split=split, recompute=recompute), ScheduleStore())
    parts, chip = parts_of(question, 0, split), replace(CHIP, num_tensor_cores=np.array([CHIP.num_tensor_cores]))
    if found is not None:
        assert parts is not None
        first = work_rates(question, parts, chip, hbm)[0]
        second = plan_rates(question, parts, chip, np.full((1, 1), hbm)).max()
        assert found.sequences_per_s <= min(first, second) * (1 + 1e-9)
    fit = [
        plan
        for plan in every_plan(question, split, recompute, 4)
        if float(footprint(job, plan, cluster).device_bytes) <= hbm * (1 + 1e-12)
    ]
    least = min((float(each.step_s) for each in step_each(job, fit, cluster)), default=None)
    assert (None if found is None else found.step_s) == (None if least is None else pytest.approx(least, rel=1e-9))
