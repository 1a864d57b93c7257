"""What a pipeline rank holds whatever its microbatches: weights, gradients, optimizer states, buckets, contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.blocks import Block, BlockKind, blocks
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.step.blocks import BlockParams, block_params
from sartor.step.distinct import distinct_rows
from sartor.step.states import dense_states, expert_states, weight_bytes
from sartor.units import BoolArray, FloatArray, Floats, IntArray

CONTEXT_BYTES: Mapping[str, float] = {
    "volta": 0.6e9,
    "turing": 0.5e9,
    "ampere": 0.9e9,
    "ada": 0.6e9,
    "hopper": 1.1e9,
    "blackwell": 1.3e9,
}
"""CUDA context with the kernels of PyTorch, cuBLAS and cuDNN loaded, by generation (recalled: nvidia-smi minus
``torch.cuda.memory_reserved`` of a fresh process that has run a matrix multiplication, CUDA 11-12)."""

OTHER_CONTEXT_BYTES = 0.8e9
"""Context of GPUs not listed (ROCm: recalled)."""
TPU_CONTEXT_BYTES = 0.3e9
"""Reserved by the TPU runtime (recalled)."""
COMMUNICATOR_BYTES = 0.3e9
"""NCCL's channels and buffers for one group of devices (recalled: 16-24 channels of 4-10 MiB per peer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes [devices, plans]."""

    weights: FloatArray
    narrow_weights: FloatArray
    grads: FloatArray
    optimizer: FloatArray
    step_peak: FloatArray
    """Extra bytes of the optimizer step, when no activations are kept."""
    gathered: FloatArray
    """Whole weights and gradients of layers that ZeRO 3 shards."""
    placeholders: FloatArray
    """Stand-ins for weight gradients that were added to the main gradient."""
    buckets: FloatArray
    context: FloatArray
    """CUDA context, libraries and NCCL: outside the framework's allocator."""

    @property
    def states(self) -> FloatArray:
        return self.weights + self.narrow_weights + self.grads + self.optimizer


Params = list[tuple[Block, BlockParams]]
"""Every block with its parameters on a device, for every plan."""


def held_bytes(job: TrainingJob, plan: TrainingPlan, gpu: Gpu, params: Params, held: IntArray) -> HeldBytes:
    """Bytes of pipeline ranks that hold ``held`` [devices, plans, blocks]; ``plan`` has flat arrays."""
    shape = (len(held), len(plan.zero_stage))  # type: ignore[arg-type]
    habits, several = job.trainer.memory, np.greater(plan.dims.dp, 1)
    return HeldBytes(
        **_states(job, plan, gpu, params, held),
        gathered=_gathered(job, plan, params, held),
        placeholders=_placeholders(job, plan, params, held),
        buckets=np.broadcast_to(np.where(several, habits.buffer_bytes, 0.0), shape),
        context=np.broadcast_to(context_bytes(plan, gpu), shape),
    )


def params_of(job: TrainingJob, plan: TrainingPlan) -> Params:
    few, back = distinct_rows([plan.dims.tp, plan.dims.ep])
    found = block_params(job, ParallelDims(tp=few[0], ep=few[1]))
    whole = few[0] * 0
    full = [replace(p, dense=p.dense + whole, expert=p.expert + whole, tied=p.tied + whole) for p in found]
    return params_at(list(zip(blocks(job.shape), full, strict=True)), back)


def params_at(params: Params, index: Any) -> Params:
    """The parameters of some plans."""
    return [(b, replace(p, dense=p.dense[index], expert=p.expert[index], tied=p.tied[index])) for b, p in params]  # type: ignore[index]


OF_FROZEN_TOO = ("weights", "narrow_weights")
"""What is held of parameters that are not trained."""


def _states(job: TrainingJob, plan: TrainingPlan, gpu: Gpu, params: Params, held: IntArray) -> dict[str, FloatArray]:
    several = np.greater(plan.dims.pp, 1)
    states = (
        dense_states(job, plan, gpu),
        dense_states(job, plan, gpu, in_layer=False),
        expert_states(job, plan, gpu),
    )
    every, trained = (_counted(params, held, several, trained=only) for only in (False, True))
    names = {
        "weights": "weight",
        "narrow_weights": "narrow",
        "grads": "grad",
        "optimizer": "optimizer",
        "step_peak": "step",
    }
    found = {
        name: sum(
            count * getattr(each, field)
            for count, each in zip(every if name in OF_FROZEN_TOO else trained, states, strict=True)
        )
        for name, field in names.items()
    }
    buffers = sum(held[..., i] * _share(block) * own.buffer_bytes for i, (block, own) in enumerate(params))
    return {**found, "weights": found["weights"] + buffers}


def _counted(
    params: Params, held: IntArray, copies_table: BoolArray, *, trained: bool
) -> tuple[Floats, Floats, Floats]:
    """Parameters of devices [devices, plans], or those that are ``trained``: in layers, outside of them, in experts.
    ``copies_table``: the head has its own copy of a tied embedding table."""
    layers: Floats = 0.0
    outer: Floats = 0.0
    experts: Floats = 0.0
    for i, (block, own) in enumerate(params):
        n = held[..., i] * (own.trained if trained else 1.0)
        if block.layer is None:
            outer = outer + n * (own.dense + copies_table * own.tied)
            continue
        share = _share(block)
        layers = layers + n * share * own.dense
        experts = experts + n * share * own.expert
    return layers, outer, experts


def _share(block: Block) -> Floats:
    """Sets of weights per layer: fewer than 1 where layers share them."""
    return block.weight_sets / block.count if block.kind is BlockKind.LAYER else 1.0


def _largest(
    params: Params, plan: TrainingPlan, held: IntArray, *, single_expert: bool, trained: bool = False
) -> FloatArray:
    """Parameters (or those ``trained``) of the largest kind of layer on every device, with all its experts or one."""
    best = np.zeros((len(held), len(plan.zero_stage)))  # type: ignore[arg-type]
    for i, (block, own) in enumerate(params):
        if block.layer is None:
            continue
        experts: Floats = own.expert
        if single_expert:
            number = max((int(getattr(part, "num_experts", 1)) for part in block.layer.all_ffns), default=1)
            experts = experts / np.maximum(number // np.asarray(plan.dims.ep), 1)
        each = (own.dense + experts) * (own.trained if trained else 1.0)
        best = np.maximum(best, np.where(held[..., i] > 0, each, 0.0))
    return best


def _gathered(job: TrainingJob, plan: TrainingPlan, params: Params, held: IntArray) -> FloatArray:
    """ZeRO 3: gathered weights of the active layers, one layer's full gradients in 16 bits and, during reduction, in
    the reduction's type, and the tables of embedding and head, which stay gathered; in lockstep weights and gradients
    of one block."""
    is_3 = np.greater_equal(plan.zero_stage, 3)
    if not is_3.any():
        return np.zeros((len(held), is_3.size))
    width, habits = weight_bytes(job), job.trainer.memory
    if job.trainer.lockstep:
        return np.where(is_3, _largest_block(params, plan, held) * (width + job.trainer.grad_dtype.bytes), 0.0)
    outer = sum(held[..., i] * 1.0 * own.dense for i, (block, own) in enumerate(params) if block.layer is None)
    grads = (width + job.trainer.grad_dtype.bytes) if job.trains_weights else 0.0
    layer = _largest(params, plan, held, single_expert=False)
    most = np.maximum(layer * habits.layers_gathered / 2, habits.most_gathered)
    weights = np.minimum(layer * habits.layers_gathered, most)
    graded = _largest(params, plan, held, single_expert=False, trained=True)
    whole = weights * width + graded * habits.layers_graded * grads + outer * width
    return np.where(is_3, whole, 0.0)


def _largest_block(params: Params, plan: TrainingPlan, held: IntArray) -> FloatArray:
    """Parameters of the largest block on every device, tables included."""
    best = np.zeros((len(held), len(plan.zero_stage)))  # type: ignore[arg-type]
    for i, (_, own) in enumerate(params):
        best = np.maximum(best, np.where(held[..., i] > 0, own.dense + own.expert + own.tied, 0.0))
    return best


def _placeholders(job: TrainingJob, plan: TrainingPlan, params: Params, held: IntArray) -> FloatArray:
    layer = _largest(params, plan, held, single_expert=True, trained=True)
    return layer * weight_bytes(job) * (1 if job.trainer.memory.dummy_wgrad and job.trains_weights else 0)


def context_bytes(plan: TrainingPlan, gpu: Gpu) -> Floats:
    """CUDA context with libraries, and NCCL's buffers for every group a device belongs to."""
    d = plan.dims
    if gpu.accelerator is not None:
        return np.asarray(0.0)
    if gpu.generation.startswith("tpu"):
        return np.asarray(TPU_CONTEXT_BYTES)
    groups = sum(np.greater(degree, 1).astype(int) for degree in (d.tp, d.pp, d.dp, d.cp, d.ep))
    return CONTEXT_BYTES.get(gpu.generation, OTHER_CONTEXT_BYTES) + COMMUNICATOR_BYTES * groups
