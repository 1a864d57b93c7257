"""Bytes of weights, gradients and optimizer states per parameter, by optimizer, precision and ZeRO stage.

Mixed-precision Adam holds 2 bytes of weight, a gradient, and an fp32 main weight and two moments: 16 bytes with a
16-bit gradient (Rajbhandari et al. 2020, sec. 3.1), 18 with an fp32 one (Megatron).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.trainer import Trainer
from sartor.model.training import Optimizer, Recipe, TrainingJob, TrainingPlan
from sartor.units import Bools, Floats, IntArray, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter of one tensor-parallel rank; arrays over plans.

    With FSDP, stage 2 shards the fp32 weights and holds gathered 16-bit ones between forward and backward.
    """

    weight: Floats
    narrow: Floats
    """FP8 or FP4 copies of matrices in layers."""
    grad: Floats
    optimizer: Floats
    step: Floats
    """Temporaries during the optimizer's step."""


def dense_states(job: TrainingJob, plan: TrainingPlan, gpu: Gpu, *, in_layer: bool = True) -> StateBytes:
    """Bytes per parameter that is replicated over all of dp x cp."""
    return _states(job, plan, gpu, _shards(plan, plan.dims.dp * plan.dims.cp), in_layer)


def expert_states(job: TrainingJob, plan: TrainingPlan, gpu: Gpu) -> StateBytes:
    """Bytes per parameter of routed experts, which have fewer replicas."""
    return _states(job, plan, gpu, _shards(plan, expert_replicas(job, plan)), True)


def _shards_gradients(zero_stage: Floats, pp: Ints) -> Floats:
    """Whether gradients are reduced and sharded after every microbatch. ZeRO 2 with a pipeline keeps them whole and
    reduces them once, as do Megatron's distributed optimizer (megatron/core/distributed/param_and_grad_buffer.py) and
    PyTorch's pipelining, which synchronizes only in the last microbatch (torch/distributed/pipelining/stage.py,
    ``backward_maybe_with_nosync``); DeepSpeed's pipeline engine does not support ZeRO 2."""
    return np.greater_equal(zero_stage, 3) | (np.equal(zero_stage, 2) & np.equal(pp, 1))


def reductions(trainer: Trainer, zero_stage: Ints, pp: Ints, virtual_stages: Ints, microbatches: Ints) -> IntArray:
    """How often a step reduces a ZeRO 2 gradient: after every microbatch without a pipeline, after every pp
    microbatches of a chunk if the trainer ``reduces_rounds``, else once."""
    two, m = np.equal(zero_stage, 2), np.asarray(microbatches)
    rounds = two & _in_rounds(trainer, pp, virtual_stages)
    return np.where(rounds, -(-m // np.asarray(pp)), np.where(two & np.equal(pp, 1), m, 1))


def _in_rounds(trainer: Trainer, pp: Ints, virtual_stages: Ints) -> Bools:
    return np.greater(pp, 1) & np.greater(virtual_stages, 1) & trainer.reduces_rounds


WHOLE_CHUNKS = 2
"""Chunks per device with full gradients when these are reduced in rounds: the active one and the one being reduced."""


def _gradient(job: TrainingJob, plan: TrainingPlan, gradient: float, shards: Floats) -> Floats:
    """Bytes of gradient per parameter, full or sharded."""
    pp, v = plan.dims.pp, plan.virtual_stages
    gradient_bytes = np.where(_shards_gradients(plan.zero_stage, pp), gradient / shards, gradient)
    rounds = np.equal(plan.zero_stage, 2) & _in_rounds(job.trainer, pp, v)
    whole = np.minimum(WHOLE_CHUNKS / np.asarray(v), 1.0)
    return np.where(rounds, gradient * np.minimum(whole + 1.0 / shards, 1.0), gradient_bytes)


def weight_bytes(job: TrainingJob) -> float:
    """Bytes per weight as GEMM kernels read it, before quantization."""
    return 4.0 if job.recipe in (Recipe.FP32, Recipe.TF32) else 2.0


FOUR_BIT_BYTES = (4 + 0.127) / 8
"""Bytes per 4-bit weight with its scales, which are quantized too (arXiv 2305.14314, sec. 3: 0.127 bits)."""


def frozen_in_4_bits(job: TrainingJob) -> bool:
    """Whether layers are held in 4 bits."""
    return not job.trains_weights and job.frozen_bits == 4


def gathered_bytes(job: TrainingJob, *, in_layer: bool) -> float:
    """Bytes per weight as replicas gather it: as kernels read it, 8 bits if no wider weights are kept, 4 bits if frozen
    in 4 bits."""
    if in_layer and frozen_in_4_bits(job):
        return FOUR_BIT_BYTES
    return job.recipe.dtype.bytes if _is_narrow(job, in_layer) else weight_bytes(job)


def _is_narrow(job: TrainingJob, in_layer: bool) -> bool:
    width, habits = job.recipe.dtype.bytes, job.trainer.habits
    once = not job.trains_weights and habits.narrow_weights  # no optimizer needs a frozen weight in 16 bits
    return in_layer and width < 2 and (once or (habits.narrow_primary and width >= 1))


def expert_replicas(job: TrainingJob, plan: TrainingPlan) -> Ints:
    """Devices that hold the same experts: dp x cp / ep, times tp if tensor parallelism does not split experts."""
    d = plan.dims
    ranks = d.dp * d.cp * (1 if job.trainer.splits_experts else d.tp)
    return np.maximum(ranks // d.ep, 1)


def _shards(plan: TrainingPlan, replicas: Ints) -> Floats:
    group = np.where(np.equal(plan.shard_group, 0), replicas, plan.shard_group)
    return np.minimum(group, replicas)


def _narrow_copies(job: TrainingJob, gpu: Gpu) -> int:
    """Low-precision copies of a weight: one by rows and one by columns, or one for both if the device multiplies FP8 in
    every layout and the tensor has a single scale (Transformer Engine's ``is_non_tn_fp8_gemm_supported``: compute
    capability 10; read 2026-11-24)."""
    per_tensor = job.recipe in (Recipe.FP8_DELAYED, Recipe.FP8_CURRENT)
    return 1 if per_tensor and gpu.generation == "blackwell" else 2


def _states(job: TrainingJob, plan: TrainingPlan, gpu: Gpu, shards: Floats, in_layer: bool) -> StateBytes:
    def spread(size: float, stage: int) -> Floats:
        return np.where(np.greater_equal(plan.zero_stage, stage), size / shards, size)

    habits, width = job.trainer.habits, weight_bytes(job)
    weight = 4.0 if habits.wide_weights else width
    narrow_width, primary = job.recipe.dtype.bytes, _is_narrow(job, in_layer)
    weight = narrow_width if primary else weight
    weight = FOUR_BIT_BYTES if in_layer and frozen_in_4_bits(job) else weight
    gradient = grad_bytes(job) if job.trains_weights else 0.0
    copies = 4.0 if width < 4 and not habits.wide_weights else 0.0
    state_bytes = (copies + _moments(job, in_layer)) if job.trains_weights else 0.0
    copied = habits.narrow_weights and in_layer and narrow_width < 2
    narrow = narrow_width * (_narrow_copies(job, gpu) - primary) if copied else 0.0
    step = habits.fp16_step_bytes if job.trains_weights and job.recipe is Recipe.FP16 else 0.0
    whole_between = np.equal(plan.zero_stage, 2) & habits.wide_weights
    return StateBytes(
        weight=np.where(whole_between, np.minimum(weight, width + weight / shards), spread(weight, 3)),
        narrow=np.where(np.greater_equal(plan.zero_stage, 3), 0.0, narrow),
        grad=_gradient(job, plan, gradient, shards),
        optimizer=np.where(plan.optimizer_offload, 0.0, spread(state_bytes, 1)),
        step=np.where(plan.optimizer_offload, 0.0, spread(step, 1)) + (habits.flat_grad_bytes if gradient else 0.0),
    )


def _moments(job: TrainingJob, in_layer: bool) -> float:
    """Bytes of moments: Adam has two, momentum SGD one; Muon one for the layers' matrices and Adam's two elsewhere."""
    single = job.optimizer is Optimizer.SGD or (job.optimizer is Optimizer.MUON and in_layer)
    return job.moments_dtype.bytes * (1 if single else 2)


def grad_bytes(job: TrainingJob) -> float:
    """Bytes of gradient per parameter, before sharding."""
    habits = job.trainer.memory
    if job.recipe in (Recipe.FP32, Recipe.TF32):
        return 4.0
    narrow = habits.bf16_grad_bytes if job.recipe is not Recipe.FP16 else 0.0
    return narrow or habits.grad_bytes or job.trainer.grad_dtype.bytes
