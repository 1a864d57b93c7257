"""Trainers are records: whoever asks by name or by table gets the same facts, and nothing asks a record its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.model.training import Trainer
from sartor.model.workload import ContextParallel
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.step.question import training_job
from sartor.step.trainers import (
    TRAINERS,
    of_release,
    plausible_trainers,
    release_words,
    trainer_in_table,
    trainer_named,
)


def asked(name: str, gpu: str = "h100_sxm") -> Trainer:
    job, _ = training_job(load_model("llama-3.1-8b"), load_gpu(gpu), global_batch_size=64, framework=name)
    return job.trainer


LAUNCHED = [name for name, trainer in TRAINERS.items() if trainer.launchable]


@pytest.mark.parametrize("name", sorted(set(TRAINERS) - set(LAUNCHED)))
def test_a_trainer_asked_for_has_the_switches_its_published_runs_are_priced_with(name: str) -> None:
    assert asked(name) == TRAINERS[name]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_trainer_whose_launch_is_written_compiles_as_that_launch_says(name: str) -> None:
    assert asked(name).name == name
    assert asked(name).fused_kernels


def test_context_parallelism_is_what_the_trainer_does_unless_another_is_said() -> None:
    def exchange(framework: str, said: str | None = None) -> ContextParallel:
        shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100_sxm")
        return training_job(shape, gpu, global_batch_size=64, framework=framework, context_parallel=said)[
            0
        ].context_parallel

    assert exchange("torchtitan") is exchange("maxtext") is ContextParallel.ALL_GATHER
    assert exchange("megatron") is ContextParallel.RING
    assert exchange("torchtitan", "ring") is ContextParallel.RING


@pytest.mark.parametrize("name", GPUS.names())
def test_every_trainer_that_a_run_may_have_runs_on_its_device(name: str) -> None:
    gpu = load_gpu(name)
    assert all(trainer_named(trainer, gpu) for trainer in plausible_trainers([gpu]))


@pytest.mark.parametrize(
    ("gpu", "usual"),
    [
        ("tpu_v5p", "maxtext"),
        ("tpu_v7", "maxtext"),
        ("h100_sxm", "megatron"),
        ("mi300x", "megatron"),
        ("gaudi3", "megatron"),
    ],
)
def test_a_run_that_names_no_trainer_has_the_usual_one_of_its_devices_vendor(gpu: str, usual: str) -> None:
    assert training_job(load_model("gpt2"), load_gpu(gpu), global_batch_size=8)[0].trainer.names[0] == usual


@pytest.mark.parametrize("name", ["megatron", "nemo", "megatron-bridge", "megatron-deepspeed"])
def test_a_trainer_that_does_not_run_on_a_device_is_refused_with_one_that_does(name: str) -> None:
    with pytest.raises(InputError, match=f"framework={name}: does not run on tpu_v5p .Google.; MaxText does"):
        trainer_named(name, load_gpu("tpu_v5p"))


def test_a_release_is_said_after_an_at() -> None:
    assert asked("megatron@2021").name == "megatron-v2"
    assert not asked("megatron@2021").grad_fusion
    assert asked("megatron@2022").grad_fusion
    factors = [asked(f"deepspeed@{year}", gpu).attention_factor for gpu in ("a100", "h100") for year in (2022, 2023)]
    assert factors == [2, 1, 1, 1]  # FlashAttention-2 is of 2023
    assert asked("megatron@2024") == asked("megatron")
    assert asked("nemo@26.06", "b200_sxm").fused_experts
    assert not asked("nemo@25.09", "b200_sxm").fused_experts
    assert not asked("nemo@26.06", "h100_sxm").fused_experts
    assert asked("megatron-bridge").grad_dtype is DType.BF16
    assert asked("nemo").p2p_overlap
    assert not asked("nemo@23.03").p2p_overlap
    assert asked("megatron-deepspeed@2021").memory.flat_grad_bytes == 2
    assert asked("megatron-deepspeed@2022").memory.flat_grad_bytes == 0


def test_a_release_nobody_knows_changes_nothing() -> None:
    for trainer in TRAINERS.values():
        assert of_release(trainer, "a branch of mine", "blackwell") == trainer


def test_a_trainer_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="megatron"):
        asked("megatronn@2021")


def test_the_defaults_of_the_record_are_megatrons_facts() -> None:
    of_names = {"name", "title", "aliases", "words", "precedence", "source"}
    set_apart = {"launchable", "releases", "drops_out", "offloads", "offloads_states_of", "in_files"}
    set_apart |= {"most_zero_with_muon", "narrow_moments", "varies", "not_on", "saving"}
    facts = set(Trainer.__dataclass_fields__) - of_names - set_apart
    assert all(getattr(TRAINERS["megatron"], fact) == getattr(Trainer(), fact) for fact in facts)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Megatron-LM", "megatron"),
        ("NeMo Megatron-Core", "nemo"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("PyTorch FSDP", "fsdp"),
        ("torchtitan", "torchtitan"),
        ("HF transformers", "pytorch"),
        ("JAX pjit", "maxtext"),
    ],
)
def test_a_name_in_a_table_is_read_by_its_most_specific_word(said: str, name: str) -> None:
    found = trainer_in_table(said)
    assert found is not None
    assert found.name == name


SOURCE = Path(__file__).resolve().parents[2] / "src" / "sartor"
NAMES = {*(name for trainer in TRAINERS.values() for name in trainer.names), "megatron-v2"}
PER_TRAINER = ("step/trainers/", "launch/", "cli/", "web/", "validate/inference_modes.py")
"""Records; writers and readers of launch files; what people are offered to choose from; serving software of a table."""


def _asked_by_name(tree: ast.AST) -> Iterator[ast.Constant]:
    """Names of trainers that are compared with, or looked up in a table."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Compare, ast.Dict, ast.Set, ast.Tuple, ast.List, ast.Subscript)):
            inside = [node.slice] if isinstance(node, ast.Subscript) else list(ast.iter_child_nodes(node))
            yield from (n for n in inside if isinstance(n, ast.Constant) and n.value in NAMES)


@pytest.mark.slow
def test_no_code_asks_a_trainer_its_name() -> None:
    for path in SOURCE.rglob("*.py"):
        where = path.relative_to(SOURCE).as_posix()
        if not where.startswith(PER_TRAINER):
            lines = [node.lineno for node in _asked_by_name(ast.parse(path.read_text()))]
            assert not lines, f"{where}:{lines}: ask the trainer's record for the fact"


@pytest.mark.parametrize("release", ["99", "0.1", "2010", "26.13", "core"])
def test_words_that_can_be_no_release_are_refused_with_ones_that_can(release: str) -> None:
    with pytest.raises(InputError, match=r"states no release: a year from 2019.*nearest: nemo@2026 or nemo@26.06"):
        trainer_named(f"nemo@{release}", load_gpu("h100_sxm"))


def test_a_release_newer_than_the_records_is_said_to_be_priced_as_the_newest_known() -> None:
    for name in ("nemo", "nemo@26.06", "megatron@2021", "megatron@2026"):
        assert not release_words(name)
    (words,) = release_words("nemo@29.01")
    assert words.startswith("nemo@29.01 is newer than what is known of trainers")
