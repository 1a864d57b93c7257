"""Written files are read back: their price is the plan's, or a note says theirs, or the switch is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from sartor import api
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import checked, launch_files, read_launch, save_files
from sartor.launch.plan import WRITTEN, LaunchFiles, LaunchKind
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans.fixed import SWITCHED, job_choices
from sartor.step.footprint import footprint
from sartor.step.question import training_job, within_files
from sartor.step.step import step

CLUSTER = load_cluster("pcie-8x-a100")
MODELS = ("llama-3.1-8b", "qwen3-0.6b", "mixtral-8x7b", "gpt2-small")
ASKED = {
    **dict.fromkeys(("tp_overlap", "ep_overlap", "deepep", "split_experts", "cuda_graphs", "fused_loss"), "on"),
    **dict.fromkeys(("dp_overlap", "p2p_overlap", "grad_fusion"), "off"),
    "grad_dtype": "bf16 fp32",
    "dropout": "on",
    "context_parallel": "ring all_gather",
}
"""Switches that a search does not choose, at values other than the usual."""


def price(job: TrainingJob, plan: TrainingPlan) -> tuple[float, float]:
    return float(step(job, plan, CLUSTER).step_s), float(footprint(job, plan, CLUSTER).device_bytes)


@st.composite
def questions(draw: st.DrawFn, kind: LaunchKind) -> tuple[TrainingJob, TrainingPlan]:
    """A job with some switches set, and a plan that the trainer's files hold."""
    shape = load_model(draw(st.sampled_from(MODELS)))
    words: dict[str, Any] = {"global_batch_size": 64, "seq_len": 1024, "framework": kind.value}
    attention = draw(st.sampled_from(("flash", "unfused")))
    job = training_job(shape, CLUSTER.gpus, attention=attention, **words)[0]
    names = [n for n in ASKED if shape.moe_ffn is not None or not SWITCHED[n].experts]
    fix = {n: draw(st.sampled_from(ASKED[n].split())) for n in draw(st.sets(st.sampled_from(names), max_size=2))}
    job = within_files(job_choices(job, CLUSTER.gpus, fix)[0][0].job, kind.value)
    pp = draw(st.sampled_from((1, 2))) if job.trainer.pipelines else 1
    tp = draw(st.sampled_from((1, 2)))
    split = tp > 1 and job.trainer.splits_sequence and draw(st.booleans())
    dims = ParallelDims(tp=tp, pp=pp, dp=16 // (tp * pp), sequence_parallel=split)
    return job, TrainingPlan(
        dims=dims,
        num_microbatches=4 * tp * pp,
        zero_stage=1 if kind.value.startswith("megatron") else 3 if tp * pp == 1 else 2,
        recompute=draw(st.sampled_from((Recompute.NONE, Recompute.FULL))),
    )


def checked_or_refused(kind: LaunchKind, job: TrainingJob, plan: TrainingPlan) -> LaunchFiles | InputError:
    try:
        return checked(launch_files(kind, job, plan, CLUSTER), job, plan, price)
    except InputError as error:
        return error


@pytest.mark.parametrize("kind", list(WRITTEN), ids=lambda kind: kind.value)
def test_files_have_the_plans_price_or_a_note_says_theirs(
    kind: LaunchKind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seen = set[str]()

    @settings(max_examples=times(13, 40), deadline=None)
    @given(asked=questions(kind))
    def law(asked: tuple[TrainingJob, TrainingPlan]) -> None:
        job, plan = asked
        made = checked_or_refused(kind, job, plan)
        if isinstance(made, InputError):
            assert made.nearest
            return
        folder = tmp_path_factory.mktemp(kind.value)
        save_files(made, folder)
        reading = read_launch(folder, shape=job.shape)
        there = price(reading.job(reading.shape or job.shape, job.seq_len), reading.plan)
        noted = any("files take" in note for note in made.notes)
        assert noted or there == pytest.approx(price(job, plan), rel=1e-9)
        seen.add("written")

    law()
    assert "written" in seen


@pytest.mark.parametrize(
    ("kind", "switch"),
    [
        ("accelerate", "dp_overlap=off"),
        ("accelerate", "fused_loss=on"),
        ("accelerate", "dropout=on"),
        ("accelerate", "grad_dtype=fp32"),
        ("torchtitan", "grad_dtype=bf16"),
        ("torchtitan", "dropout=on"),
        ("torchtitan", "attention=unfused"),
        ("deepspeed", "dropout=on"),
    ],
)
def test_a_switch_that_files_cannot_say_is_refused_by_name(kind: str, switch: str) -> None:
    name, _, value = switch.partition("=")
    options: dict[str, Any] = {"attention": value} if name == "attention" else {"fix": {name: value}}
    answer = planned(kind, **options)
    with pytest.raises(InputError) as caught:
        api.launch(answer, kind)
    assert str(caught.value).startswith(f"{switch}: {LaunchKind(kind).title}'s files cannot say it")


@pytest.mark.parametrize(
    ("kind", "switch"),
    [
        ("deepspeed", "grad_dtype=bf16"),
        ("deepspeed", "attention=unfused"),
        ("accelerate", "attention=unfused"),
        ("torchtitan", "fused_loss=on"),
    ],
)
def test_a_switch_that_files_can_say_is_read_back(kind: str, switch: str, tmp_path: Path) -> None:
    name, _, value = switch.partition("=")
    options: dict[str, Any] = {"attention": value} if name == "attention" else {"fix": {name: value}}
    answer = planned(kind, **options)
    made = api.launch(answer, kind)
    priced = made.priced
    assert not any("files take" in note or "in the files" in note for note in made.notes)
    save_files(made, tmp_path)
    read = api.lint_launch(tmp_path, "dgx-h100", model="qwen3-0.6b", search=False)
    found, without = (read.priced.step_s, read.priced.peak_bytes), planned(kind).best
    assert found == pytest.approx((priced.step_s, priced.peak_bytes), rel=1e-9)
    assert found != pytest.approx((without.step_s, without.peak_bytes), rel=1e-9)


def planned(kind: str, **options: Any) -> Any:
    options["fix"] = {"microbatch_size": 8, "tp": 1, "pp": 1, "cp": 1, **options.get("fix", {})}
    size = {"num_devices": 8, "global_batch_size": 128, "seq_len": 2048}
    return api.plan("qwen3-0.6b", "dgx-h100", framework=kind, write=kind, **size, **options)  # type: ignore[arg-type]


def test_another_trainers_price_is_a_note_beside_the_files(tmp_path: Path) -> None:
    job, _ = training_job(load_model("qwen3-0.6b"), CLUSTER.gpus, global_batch_size=64, seq_len=1024)
    plan = TrainingPlan(dims=ParallelDims(dp=16), num_microbatches=4, zero_stage=3)
    made = checked(launch_files("accelerate", job, plan, CLUSTER), job, plan, price)
    assert made.notes[-2].startswith("Hugging Face accelerate's files take ")
    assert "priced for megatron" in made.notes[-2]
    skewed = replace(job, shape=load_model("mixtral-8x7b"), routing_skew=2.0)
    made = checked(launch_files("accelerate", skewed, plan, CLUSTER), skewed, plan, price, limit_bytes=2**30)
    assert any("per device, more than it may hold" in note for note in made.notes)
    assert any(note.startswith("routing_skew=2 is of the data") for note in made.notes)


def test_a_switch_without_effect_on_the_plan_is_noted() -> None:
    job, _ = training_job(
        load_model("qwen3-0.6b"), CLUSTER.gpus, global_batch_size=64, seq_len=1024, framework="accelerate"
    )
    job = replace(job, trainer=replace(job.trainer, p2p_overlap=False))
    plan = TrainingPlan(dims=ParallelDims(dp=16), num_microbatches=4, zero_stage=3)
    made = checked(launch_files("accelerate", job, plan, CLUSTER), job, plan, price)
    assert made.notes[0] == "p2p_overlap=on in the files, not off: no change in price"
