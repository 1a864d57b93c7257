"""The mechanisms of a step: whatever is switched on, parts, step, timeline and trace agree, on GPUs and on chips."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of
from sartor.hardware.cluster import own_links
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import PipelineSchedule, Recompute, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import OffloadModule, ParallelDims
from sartor.model.zoo import load_model
from sartor.report.trace import timeline_trace
from sartor.step import mechanisms
from sartor.step.mechanisms.mechanism import BlockShare, Mechanism, StageShare, StepPart
from sartor.step.step import step
from sartor.step.timeline import timeline
from sartor.step.trainers import TRAINERS

GPUS = load_cluster("dgx-h100", 4096)
CHIP = Accelerator.from_template(num_tensor_cores=4, num_vector_cores=2, width=128, depth=128, global_buffer_mib=64)
CHIPS = own_links(datasheet_of(CHIP))
SHAPES = {
    "dense": edit(load_model("llama3-8b"), num_layers=8),
    "experts": edit(load_model("deepseek-v3"), num_layers=9),
    "tied": edit(load_model("gpt2"), num_layers=8),
}
SWITCHES = (
    "tp_overlap",
    "dp_overlap",
    "p2p_overlap",
    "ep_overlap",
    "cuda_graphs",
    "grad_fusion",
    "broadcasts_shards",
    "hides_tp_backward",
    "dispatch_once",
    "fused_kernels",
)


@st.composite
def trainers(draw: Any, *, lockstep: bool) -> Trainer:
    """Any trainer, with any of its switches the other way."""
    if lockstep:
        return TRAINERS["lockstep"]
    trainer = TRAINERS[draw(st.sampled_from([name for name, each in TRAINERS.items() if not each.lockstep]))]
    return replace(trainer, **{name: draw(st.booleans()) for name in SWITCHES})


@st.composite
def questions(draw: Any, *, lockstep: bool = False) -> tuple[TrainingJob, TrainingPlan]:
    """A job and one plan, with any mechanism at work."""
    kind = draw(st.sampled_from(sorted(SHAPES)))
    pp = draw(st.sampled_from([1, 2, 4]))
    virtual = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    chunked = (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.DUAL_PIPE_V)
    whole = (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.GPIPE)
    schedules = (PipelineSchedule.ONE_F_ONE_B,) if pp == 1 or lockstep else chunked if virtual > 1 else whole
    offloads = st.sets(st.sampled_from([m for m in OffloadModule if m is not OffloadModule.LAYER]), max_size=2)
    job = TrainingJob(
        shape=SHAPES[kind],
        seq_len=512,
        global_batch_size=64,
        trainer=draw(trainers(lockstep=lockstep)),
        offload_modules=frozenset() if lockstep else frozenset(draw(offloads)),
    )
    zero = draw(st.integers(0, 3))
    plan = TrainingPlan(
        dims=ParallelDims(
            tp=draw(st.sampled_from([1, 2, 4])),
            pp=pp,
            dp=draw(st.sampled_from([1, 2, 8])),
            cp=draw(st.sampled_from([1, 2])),
            ep=draw(st.sampled_from([1, 2])) if kind == "experts" else 1,
            sequence_parallel=lockstep or draw(st.booleans()),
        ),
        microbatch_size=draw(st.sampled_from([1, 2])),
        num_microbatches=draw(st.sampled_from([8, 16])),
        virtual_stages=virtual,
        schedule=int(draw(st.sampled_from(schedules))),
        zero_stage=zero,
        recompute=int(draw(st.sampled_from(list(Recompute)))),
        recompute_layers=-1 if lockstep else draw(st.sampled_from([-1, 1])),
        optimizer_offload=not lockstep and draw(st.booleans()),
    )
    return job, plan


def agree(job: TrainingJob, plan: TrainingPlan, cluster: Any) -> dict[str, float]:
    """Parts of the step, after checking that step, timeline and trace agree on them."""
    try:
        priced = step(job, plan, cluster)
    except InputError:
        assume(False)
    assert np.isfinite(priced.step_s)
    assert sum(priced.parts.values()) == pytest.approx(priced.step_s, rel=1e-12)
    drawn = timeline(job, plan, cluster)
    assert drawn.step_s == pytest.approx(priced.step_s, rel=1e-12)
    assert drawn.parts == pytest.approx(priced.parts, rel=1e-12, abs=1e-15)
    assert max(event.end_s for event in drawn.events) == pytest.approx(priced.step_s, rel=1e-12)
    traced = json.loads(timeline_trace(job, plan, drawn))
    ends = [event["ts"] + event["dur"] for event in traced["traceEvents"] if event["ph"] == "X"]
    assert max(ends) == pytest.approx(1e6 * priced.step_s, rel=1e-6)
    return {name: float(seconds) for name, seconds in priced.parts.items()}


@settings(max_examples=25)
@given(questions())
def test_parts_step_timeline_and_trace_agree(question: tuple[TrainingJob, TrainingPlan]) -> None:
    agree(*question, GPUS)


@pytest.mark.slow
@settings(max_examples=6)
@given(questions(lockstep=True))
def test_they_agree_on_chips_in_lockstep(question: tuple[TrainingJob, TrainingPlan]) -> None:
    agree(*question, CHIPS)


PART = StepPart(key="coffee_s", words="coffee breaks")
BREAKS = {
    "block": Mechanism(
        name="coffee", part=PART, at_block=lambda block, _: BlockShare(forward_s=1e-3 + 0 * block.times.forward_s)
    ),
    "stage": Mechanism(
        name="coffee", part=PART, at_stage=lambda stage: StageShare(backward_s=1e-3 + 0 * stage.backward_s)
    ),
    "pipeline": Mechanism(name="coffee", part=PART, at_pipeline=lambda pipeline: 0.2 + 0.0 * pipeline.busy_s),
    "step": Mechanism(name="coffee", part=PART, event="a coffee break", at_step=lambda s, _: np.full(s.at.size, 0.2)),
    "before the step": Mechanism(name="coffee", part=PART, before=True, at_step=lambda s, _: np.full(s.at.size, 0.2)),
}
"""A mechanism that acts at each of the levels."""


@pytest.mark.slow
@pytest.mark.parametrize("level", BREAKS)
@settings(max_examples=6)
@given(st.booleans().flatmap(lambda lockstep: st.tuples(st.just(lockstep), questions(lockstep=lockstep))))
def test_a_mechanism_added_to_the_list_is_in_all_of_them(
    level: str, question: tuple[bool, tuple[TrainingJob, TrainingPlan]]
) -> None:
    lockstep, (job, plan) = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "MECHANISMS", (*mechanisms.MECHANISMS, BREAKS[level]))
        assert agree(job, plan, CHIPS if lockstep else GPUS)["coffee_s"] > 0


def test_mechanisms_have_names_of_their_own_and_act_somewhere() -> None:
    names = [mechanism.name for mechanism in mechanisms.MECHANISMS]
    assert len(set(names)) == len(names)
    levels = ("at_block", "at_stage", "at_pipeline", "at_step")
    assert all(any(getattr(each, level) for level in levels) for each in mechanisms.MECHANISMS)
    keys = {part.key for part in mechanisms.parts()}
    assert all(set(each.hidden_behind) <= keys - {each.part.key} for each in mechanisms.MECHANISMS)


def test_every_mechanism_has_its_page(repo_dir: Any) -> None:
    for mechanism in mechanisms.MECHANISMS:
        assert (repo_dir / "docs" / mechanism.page).exists(), mechanism.page
