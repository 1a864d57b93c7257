"""What trainers and drivers hold that no model says: copies, buffers, reserves and contexts, each with its source.

A trainer is known by ``Framework.name``. Figures marked *recalled* are known from the software's source or from seeing
it run, not measured by this project; those marked *fitted* name the rows they were fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sartor.model.training import Recipe, TrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHabits:
    """How one kind of trainer uses memory."""

    wide_weights: bool = False
    """The fp32 weights are the weights, 16-bit ones are gathered or cast when used (FSDP, autocast, JAX); else 16-bit
    weights are held and fp32 main copies beside the optimizer."""
    grad_bytes: float = 0.0
    """Per parameter, before sharding, whatever ``Framework.grad_dtype`` says; 0: as it says."""
    bf16_grad_bytes: float = 0.0
    """The same for bf16 training, where it differs."""
    fp16_step_bytes: float = 0.0
    """Per parameter of the shard while the optimizer steps in fp16 training: copies of its gradients."""
    narrow_inputs: bool = True
    """FP8 and FP4 recipes keep the inputs of linear layers narrow for backward; else in 16 bits."""
    narrow_weights: bool = True
    """Narrow copies of the weights are kept from the first microbatch on: one row-wise, one column-wise."""
    dummy_wgrad: bool = True
    """Weight gradients go straight to the main gradient; a 16-bit placeholder of one layer's weights stands for them
    (``gradient_accumulation_fusion``)."""
    gathers_input: bool = True
    """Sequence parallelism gathers an input anew for backward instead of keeping it whole."""
    logit_bytes: float = 6.0
    """Per logit at the peak of the loss: 16-bit logits and their fp32 copy, turned into probabilities in place."""
    split_logit_bytes: float = 0.0
    """The same where tensor parallelism splits the vocabulary, if it differs."""
    fused_logit_bytes: float = 4.0
    """The same where ``Framework.fused_loss``: 16-bit logits and their gradients, of which the first are kept."""
    kept_logit_bytes: float = 4.0
    """Per logit kept from forward to backward."""
    layers_gathered: float = 2.0
    """Whole layers of gathered weights at once under ZeRO 3: what is at work, and as much again fetched ahead."""
    most_gathered: float = math.inf
    """Parameters held gathered from which none is fetched ahead of what is at work."""
    layers_graded: float = 1.0
    """Layers of whole gradients at once under ZeRO 3."""
    narrow_primary: bool = False
    """FP8 recipes hold no 16-bit weights beside the narrow ones (``fp8_param_gather``)."""
    buffer_bytes: float = 0.0
    """Buckets of gradients and parameters outside the gradient buffer."""
    keeps_outputs: bool = False
    """A pipeline rank holds what it sent on until the gradient comes back; else it is freed when sent
    (``deallocate_pipeline_outputs``)."""
    fragmentation: float = 1.11
    """What the allocator holds for activations and temporaries over their peak: blocks cut for one tensor that the
    next does not fill. States are allocated once and leave no gaps. *Fitted* on 58 rows of Megatron-DeepSpeed runs of
    2022 in data/end_to_end/training.csv (2026-11-21), contexts and buckets being as below."""
    steps_in_own_blocks: bool = True
    """Temporaries of the optimizer's step do not fit the blocks activations left: held beside them (PyTorch's native
    allocator never joins blocks of different requests to the driver)."""


_MEGATRON = MemoryHabits()
"""Megatron-Core with Transformer Engine: fp32 gradient buffer, weights fused into it (recalled from
megatron/core/distributed/param_and_grad_buffer.py and tensor_parallel/cross_entropy.py)."""

_DEEPSPEED = MemoryHabits(
    grad_bytes=2.0,
    bf16_grad_bytes=6.0,
    fp16_step_bytes=8.0,
    narrow_weights=False,
    dummy_wgrad=False,
    gathers_input=False,
    keeps_outputs=True,
    layers_gathered=2 / 3,
    most_gathered=1e9,
    layers_graded=1 / 3,
    buffer_bytes=3e9,
)
"""DeepSpeed: 16-bit gradients, beside them fp32 sums in bf16 training (BF16_Optimizer); in fp16 training the shard's
gradients are cast and laid end to end at the step, two fp32 copies; reduce and gather buckets of 5e8 elements each, the
first one twice (``reduce_bucket_size``, ``allgather_bucket_size``, ``contiguous_gradients``: DeepSpeed's defaults,
recalled). Its pipeline engine keeps outputs as the roots of backward. ZeRO 3 gathers matrix by matrix, the largest of
which is a third of a layer (4 h^2 of 12 h^2 where f = 4h), and none ahead of its use beyond 1e9 parameters
(``stage3_max_live_parameters``: DeepSpeed's default, recalled)."""

_FSDP = MemoryHabits(
    wide_weights=True,
    narrow_inputs=False,
    narrow_weights=False,
    dummy_wgrad=False,
    gathers_input=False,
    logit_bytes=14.0,
    split_logit_bytes=22.0,
    kept_logit_bytes=6.0,
    fragmentation=1.02,
    steps_in_own_blocks=False,
)
"""PyTorch FSDP: fp32 shards; eager cross-entropy holds 16-bit logits, their log-softmax, and two fp32 gradients
(recalled from torch.nn.functional.cross_entropy), over a split vocabulary two fp32 temporaries more
(torch.distributed.tensor.parallel.loss); expandable segments leave little unused."""

_XLA = MemoryHabits(
    wide_weights=True,
    narrow_inputs=False,
    narrow_weights=False,
    dummy_wgrad=False,
    logit_bytes=8.0,
    kept_logit_bytes=4.0,
    layers_gathered=2 / 3,
    layers_graded=1 / 3,
    fragmentation=1.0,
    steps_in_own_blocks=False,
)
"""JAX under XLA: buffers are laid out ahead, nothing is left between them; fp32 logits and their gradient; matrices are
gathered and their gradients scattered one by one."""

HABITS: Mapping[str, MemoryHabits] = {
    "megatron": _MEGATRON,
    "nemo": replace(_MEGATRON, grad_bytes=2.0, narrow_primary=True),
    "megatron-deepspeed": _DEEPSPEED,
    "deepspeed": _DEEPSPEED,
    "internevo": replace(_MEGATRON, grad_bytes=2.0, dummy_wgrad=False),
    "torchtitan": _FSDP,
    "fsdp": _FSDP,
    "llm-foundry": replace(_FSDP, logit_bytes=4.0, split_logit_bytes=0.0, kept_logit_bytes=2.0),
    "pytorch": _FSDP,
    "maxtext": _XLA,
}

"""NeMo's performance recipes reduce gradients in 16 bits and gather FP8 weights (recalled: ``grad_reduce_in_fp32``,
``fp8_param``); llm-foundry's loss is the fused one of flash-attention, which writes gradients over 16-bit logits
(recalled: ``loss_fn: fused_crossentropy``)."""

TIGHT_FRAGMENTATION = 1.03
"""What is left of the gaps on a full device, whose allocator gives idle blocks back before it gives up (assumed)."""

CONTEXT_BYTES: Mapping[str, float] = {
    "volta": 0.6e9,
    "turing": 0.5e9,
    "ampere": 0.9e9,
    "ada": 0.6e9,
    "hopper": 1.1e9,
    "blackwell": 1.3e9,
}
"""CUDA context with the kernels of PyTorch, cuBLAS and cuDNN loaded, by generation (recalled: nvidia-smi over
``torch.cuda.memory_reserved`` of a fresh process that has run a matrix product, CUDA 11-12)."""

OTHER_CONTEXT_BYTES = 0.8e9
"""Of GPUs not listed (ROCm: recalled)."""
TPU_CONTEXT_BYTES = 0.3e9
"""Reserved by the TPU runtime (recalled)."""
COMMUNICATOR_BYTES = 0.3e9
"""NCCL's channels and buffers for one group of devices (recalled: 16-24 channels of 4-10 MiB per peer)."""
WORKSPACE_BYTES = {"hopper": 64e6, "blackwell": 64e6}
"""cuBLAS workspaces held in the allocator: 32 MiB for PyTorch and as much for Transformer Engine from Hopper on
(recalled)."""
OTHER_WORKSPACE_BYTES = 13e6
"""8.1 MiB of PyTorch's cuBLAS and 4 MiB of Transformer Engine's, before Hopper (recalled)."""


USABLE_SHARE = 0.99
"""Of a device's memory that processes can get (recalled: PyTorch reports 79.15 to 79.33 GiB in all on
A100 and H100 of 80 GiB)."""


def habits_for(job: TrainingJob) -> MemoryHabits:
    """How the job's trainer uses memory; a trainer nobody knows is taken for one of Megatron's kind."""
    habits = HABITS.get(job.framework.name, _MEGATRON)
    if not job.framework.fused_loss:
        return habits
    return replace(habits, logit_bytes=habits.fused_logit_bytes, split_logit_bytes=0.0, kept_logit_bytes=2.0)


def grad_bytes(job: TrainingJob, habits: MemoryHabits) -> float:
    """Bytes of gradient per parameter, before sharding."""
    if job.recipe in (Recipe.FP32, Recipe.TF32) or (habits.wide_weights and job.framework.main_params):
        return 4.0
    narrow = habits.bf16_grad_bytes if job.recipe is not Recipe.FP16 else 0.0
    return narrow or habits.grad_bytes or job.framework.grad_dtype.bytes
