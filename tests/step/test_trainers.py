"""Trainers by name: a job asked for is priced by the switches a published run of the same trainer is."""

from __future__ import annotations

import pytest

from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.step.question import LAUNCHED, training_job
from sartor.step.trainers import TRAINERS, of_release


def framework(name: str, gpu: str = "h100_sxm"):  # type: ignore[no-untyped-def]
    job, _ = training_job(load_model("llama-3.1-8b"), load_gpu(gpu), global_batch_size=64, framework=name)
    return job.framework


@pytest.mark.parametrize("name", sorted(set(TRAINERS) - set(LAUNCHED)))
def test_a_trainer_asked_for_has_the_switches_its_published_runs_are_priced_with(name: str) -> None:
    assert framework(name) == TRAINERS[name]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_trainer_whose_launch_is_written_compiles_as_that_launch_says(name: str) -> None:
    assert framework(name).name == name
    assert framework(name).fused_kernels


def test_a_release_is_said_after_an_at() -> None:
    assert framework("megatron@2021").name == "megatron-v2"
    assert not framework("megatron@2021").grad_fusion
    assert framework("megatron@2024") == framework("megatron")
    assert framework("nemo@26.06", "b200_sxm").fused_experts
    assert not framework("nemo@25.09", "b200_sxm").fused_experts
    assert not framework("nemo@26.06", "h100_sxm").fused_experts
    assert framework("megatron-bridge").grad_dtype is DType.BF16


def test_a_release_nobody_knows_changes_nothing() -> None:
    for trainer in TRAINERS.values():
        assert of_release(trainer, "a branch of mine", "blackwell") == trainer


def test_a_trainer_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="megatron"):
        framework("megatronn@2021")
