"""PyTorch FSDP as run by Hugging Face accelerate, Lightning and others: fp32 shards, eager kernels.

Eager cross-entropy holds 16-bit logits, their log-softmax, and two fp32 gradients (recalled from
torch.nn.functional.cross_entropy); with a split vocabulary also two fp32 temporaries
(torch.distributed.tensor.parallel.loss). Hugging Face's mixtures weigh experts' outputs in 16 bits. Expandable segments
leave little unused memory. Gradients are reduced in 16 bits (accelerate's set_mixed_precision; reduce_dtype defaults to
param_dtype) and kept as fp32 shards.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.model.training import Accumulation, MemoryHabits, Recompute, Trainer
from sartor.model.workload import COMMON_SCHEDULES, Loss, Optimizer
from sartor.operators import DType

HABITS = MemoryHabits(
    wide_weights=True,
    grad_bytes=4.0,
    narrow_inputs=False,
    narrow_weights=False,
    dummy_wgrad=False,
    gathers_input=False,
    casts_weights=True,
    fresh_grads=True,
    own_streams=True,
    wide_table_moments=True,
    logit_bytes=14.0,
    split_logit_bytes=22.0,
    kept_logit_bytes=6.0,
    score_bytes=2.0,
    fragmentation=1.02,
    steps_in_own_blocks=False,
)

FSDP = Trainer(
    name="fsdp",
    ragged_rounds=False,
    title="Hugging Face accelerate",
    precedence=1,
    fused_heads=1,
    aliases=("accelerate",),
    words=("fsdp", "fairscale", "metaseq", "axonn", "lightning", "olmo"),
    fused_kernels=False,
    grad_dtype=DType.BF16,
    accumulation=Accumulation.COPIED,
    splits_experts=False,
    strided_heads=False,
    hides_tp_backward=False,
    pads_experts=False,
    narrows_each_microbatch=True,
    vocab_multiple=0,
    memory=HABITS,
    pipelines=False,
    schedules=COMMON_SCHEDULES,
    expert_parallel=False,
    optimizers=tuple(Optimizer),
    losses=tuple(Loss),
    shards_fully=True,
    usual_axes=(("zero_stage", 3), ("recompute", Recompute.NONE)),  # gradient_checkpointing false
    optional_sequence_parallel=False,
    launchable=True,
    in_files={
        "shards_fully": True,
        "pipelines": False,
        "expert_parallel": False,
        "splits_sequence": False,
        "recomputes_parts": False,
        "optimizers": (Optimizer.ADAM, Optimizer.SGD),  # of torch
        "offloads_unsharded": False,
        "narrow_moments": (),
    },
    usual_zero_stage=3,
    varies=("fused_loss", "main_dtype"),
    source="accelerate's ParallelismConfig has no degree for pipelines or experts; as of 2026-11",
)

PYTORCH = replace(
    FSDP,
    name="pytorch",
    title="plain PyTorch",
    precedence=0,
    aliases=(),
    words=("pytorch", "transformers", "hugging", "accelerate", "torch"),
    grad_dtype=DType.FP32,
    accumulation=Accumulation.KEPT,
    pipelines=True,
    expert_parallel=True,
    shards_fully=False,
    usual_axes=(("zero_stage", 0), ("recompute", Recompute.NONE)),  # DistributedDataParallel
    launchable=False,
    usual_zero_stage=0,
    drops_out=True,
    source="Hugging Face's configurations of GPT-2 have dropout of 0.1; schedules not looked up: any",
)
"""Plain PyTorch (Hugging Face transformers, hand-written loops): eager, with the gradient that autograd accumulates."""
