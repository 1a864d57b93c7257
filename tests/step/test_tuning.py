"""Memory of fine-tuning: adapters, types of states, optimizers, losses, and gradients that come late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import LoraTargets, Loss, Optimizer, ParallelDims, Recompute
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.plans.search import search_plans
from sartor.step.footprint import footprint, host_bytes
from sartor.step.states import block_params, main_bytes
from sartor.step.trainers import record_named

CLUSTER = load_cluster("dgx-h100")
LLAMA = load_model("llama-3.1-8b")
PARAMS = 8_030_261_248
ONE = TrainingPlan(num_microbatches=4, recompute=Recompute.FULL)


def job_of(trainer: Trainer, **fields: object) -> TrainingJob:
    return TrainingJob(**{"shape": LLAMA, "seq_len": 1024, "global_batch_size": 4, "trainer": trainer, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "per_layer"),
    [
        (LoraTargets.QUERY_VALUE, (4096 + 4096) + (4096 + 1024)),
        (LoraTargets.ATTENTION, 2 * (4096 + 4096) + 2 * (4096 + 1024)),
        (LoraTargets.ALL, 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)),
    ],
)
def test_an_adapter_has_rank_times_inputs_and_outputs(targets: LoraTargets, per_layer: int) -> None:
    """For all layers of Llama 3 8B at rank 16 these are the 41,943,040 that PEFT prints."""
    job = job_of(Trainer(), lora_rank=16, lora_targets=targets)
    assert not job.trains_weights
    assert sum(p.adapters for p in block_params(job, ParallelDims())) == 16 * per_layer
    if targets is LoraTargets.ALL:
        assert 32 * 16 * per_layer == 41_943_040


@pytest.mark.parametrize("name", ["fsdp", "torchtune", "litgpt", "megatron", "deepspeed"])
def test_frozen_weights_are_held_in_16_bits_and_only_adapters_have_states(name: str) -> None:
    job = job_of(record_named(name), lora_rank=16)
    memory, adapters = footprint(job, ONE, CLUSTER), 41_943_040
    assert 2 * PARAMS <= memory.param_bytes <= 2 * PARAMS + 6 * adapters
    assert memory.grad_bytes <= 6 * adapters
    assert 4 * adapters <= memory.optimizer_bytes <= 12 * adapters
    tables = 2 * 128_256 * 4096
    for bits, each in ((8, 1.0), (4, (4.5 if name == "litgpt" else 4.127) / 8)):
        narrow = footprint(replace(job, frozen_bits=bits), ONE, CLUSTER)
        assert memory.param_bytes - narrow.param_bytes == pytest.approx((2 - each) * (PARAMS - tables), rel=0.001)


@pytest.mark.parametrize(
    ("optimizer", "wide", "narrow"),
    [
        (Optimizer.ADAM, 8, 4),
        (Optimizer.LION, 4, 2),
        (Optimizer.SGD, 4, 2),
        (Optimizer.ADAM_8BIT, 2 + 8 / 256, 2 + 8 / 256),
        (Optimizer.ADAM_4BIT, 1 + 8 / 128, 1 + 8 / 128),
        (Optimizer.ADAFACTOR, 8 / 4096, 8 / 4096),
        (Optimizer.PAGED_ADAM_8BIT, 0, 0),
        (Optimizer.NONE, 0, 0),
    ],
)
def test_an_optimizer_holds_its_moments_in_the_type_of_the_weights(
    optimizer: Optimizer, wide: float, narrow: float
) -> None:
    trainer = record_named("torchtune")
    for main, each in ((DType.FP32, wide), (DType.BF16, narrow)):
        job = job_of(replace(trainer, main_dtype=main), optimizer=optimizer)
        memory = footprint(job, ONE, CLUSTER)
        assert memory.optimizer_bytes == pytest.approx(each * PARAMS)
        assert memory.param_bytes == main_bytes(job) * PARAMS
        assert memory.grad_bytes == main_bytes(job) * PARAMS


def test_hugging_face_keeps_the_embeddings_moments_in_32_bits() -> None:
    own, hugging = (
        footprint(job_of(record_named(name), optimizer=Optimizer.ADAM_8BIT), ONE, CLUSTER).optimizer_bytes
        for name in ("torchtune", "fsdp")
    )
    assert hugging - own == pytest.approx((8 - 2 - 8 / 256) * 128_256 * 4096)


def test_a_run_without_an_optimizer_holds_weights_and_gradients_alone() -> None:
    memory = footprint(job_of(record_named("megatron"), optimizer=Optimizer.NONE), ONE, CLUSTER)
    assert (memory.optimizer_bytes, memory.param_bytes, memory.grad_bytes) == (0, 2 * PARAMS, 4 * PARAMS)


def test_each_loss_that_keeps_less_of_the_logits_needs_less() -> None:
    trainer = record_named("torchtune")
    peaks = [
        float(footprint(job_of(replace(trainer, fused_loss=loss), seq_len=8192), ONE, CLUSTER).allocated_bytes)
        for loss in (Loss.UNFUSED, Loss.FUSED, Loss.CHUNKED, Loss.LINEAR, Loss.CUT)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] - peaks[1] == pytest.approx((14 - 4) * 8192 * 128_256)


def test_gradients_of_a_single_microbatch_come_while_activations_go() -> None:
    """A peak at the loss has no gradients yet; one at the end of backward has all, and one layer's activations."""
    trainer = record_named("torchtune")
    for seq_len, at_loss in ((16384, True), (512, False)):
        job = job_of(trainer, seq_len=seq_len)
        single, several = (
            footprint(job, replace(ONE, recompute=Recompute.NONE, num_microbatches=m), CLUSTER) for m in (1, 4)
        )
        assert (single.grad_bytes == 0) is at_loss
        assert (single.stash_bytes == 0) is not at_loss
        assert single.allocated_bytes < several.allocated_bytes


def test_lightning_sums_whole_gradients_until_the_last_microbatch() -> None:
    """Of frozen weights too: LitGPT's table of 2023 has 22.2 GB for LoRA of a 7B model on two A100."""
    plan = TrainingPlan(dims=ParallelDims(dp=2), num_microbatches=8, zero_stage=3, recompute=Recompute.FULL)
    job = job_of(record_named("litgpt"), lora_rank=8, lora_targets=LoraTargets.QUERY_VALUE, global_batch_size=16)
    once = footprint(job, replace(plan, num_microbatches=1), CLUSTER).allocated_bytes
    assert footprint(job, plan, CLUSTER).allocated_bytes - once == pytest.approx(2 * PARAMS, rel=0.01)


def test_litgpts_4_bit_layers_hold_the_inputs_of_two_microbatches_and_adapters_masks_and_copies() -> None:
    """By token and layer in 16 bits: the adapter's input and its mask of bytes; in 4 bits also two microbatches' inputs
    of both parts and of the last GEMM, and one more of attention's output; before 2024 one microbatch's."""
    trainer, plan = record_named("litgpt"), replace(ONE, recompute=Recompute.NONE)
    job = job_of(trainer, lora_rank=8, lora_targets=LoraTargets.QUERY_VALUE)
    first = trainer.releases[0].changes["memory"]
    wide, narrow, before, shared = (
        float(footprint(each, plan, CLUSTER).stash_bytes)
        for each in (
            job,
            replace(job, frozen_bits=4),
            replace(job, frozen_bits=4, trainer=replace(trainer, memory=first)),
            replace(job, trainer=replace(trainer, memory=replace(trainer.memory, drops_adapter_inputs=False))),
        )
    )
    assert wide - shared == 1024 * 32 * 4096
    assert narrow - wide == 1024 * 32 * (4 * 4096 + 4 * 4096 + 2 * 4096 + 4 * 14336)
    assert before - wide == 1024 * 32 * (2 * 4096 + 2 * 4096 + 2 * 14336)


def test_states_off_the_device_are_counted_in_the_hosts_memory() -> None:
    plan = TrainingPlan(dims=ParallelDims(dp=8), zero_stage=3)
    for name in ("fsdp", "megatron"):
        job = job_of(record_named(name), global_batch_size=8)
        whole = float(footprint(job, plan, CLUSTER).optimizer_bytes)
        assert host_bytes(job, replace(plan, optimizer_offload=True), CLUSTER) == pytest.approx(8 * whole)
        assert host_bytes(job, plan, CLUSTER) == 0
        paged = replace(job, optimizer=Optimizer.PAGED_ADAM)
        assert host_bytes(paged, plan, CLUSTER) > 0


def test_a_plan_does_not_fit_whose_hosts_cannot_hold_what_they_are_given() -> None:
    """Each of 8 devices gives its host 12 bytes for each of an eighth of the parameters."""
    job, fixed = (
        job_of(record_named("megatron"), global_batch_size=8),
        {"optimizer_offload": 1, "dp": 8, "zero_stage": 1},
    )
    states = 12 * PARAMS
    for room, fits in ((0.99 * states, False), (1.01 * states, True), (0, True)):
        cluster = replace(CLUSTER, host_memory_bytes=float(room))
        found = search_plans(job, cluster, 8, fixed=fixed)
        assert (found.best is not None) is fits
        if not fits:
            assert "into a node's host memory" in str(found.tightest)
