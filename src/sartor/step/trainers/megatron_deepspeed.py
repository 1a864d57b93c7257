"""Megatron-DeepSpeed and GPT-NeoX: Megatron's layers under DeepSpeed's engine."""

from __future__ import annotations

import math
from dataclasses import replace

from sartor.model.training import Accumulation, Release, Trainer
from sartor.model.workload import COMMON_SCHEDULES
from sartor.step.trainers.deepspeed import HABITS
from sartor.step.trainers.megatron import NOT_ON

CLONED = replace(
    HABITS,
    bf16_grad_bytes=6.0,
    fp16_step_bytes=8.0,
    bf16_step_bytes=0.0,
    most_stepped=math.inf,
    logit_bytes=10.0,
    kept_logit_bytes=8.0,
)
"""Its loss clones the fp32 logits, which the pipeline keeps as its output, and turns the clone into probabilities;
their 16-bit gradients come on top (BigScience's fork, mpu/cross_entropy.py, gpt_model.py; read 2026-11-25). In bf16
its examples sum gradients in fp32 besides the 16-bit ones (BF16_Optimizer; recalled); in fp16 releases of its time cast
the shard's gradients and flattened them: two fp32 copies."""

MEGATRON_DEEPSPEED = Trainer(
    name="megatron-deepspeed",
    title="Megatron-DeepSpeed",
    precedence=5,
    fused_heads=1,
    words=("megatron-deepspeed", "megatron deepspeed", "neox"),
    not_on=NOT_ON,
    dp_overlap=False,
    accumulation=Accumulation.ADDED,
    splits_experts=False,
    hides_tp_backward=False,
    vocab_multiple=0,
    memory=CLONED,
    schedules=COMMON_SCHEDULES,
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    drops_out=True,
    releases=(
        Release(
            last=(2021,),
            changes={"memory": replace(CLONED, flat_grad_bytes=2.0, buffer_bytes=1e9)},
            source="DeepSpeed's stage1.py of 2021 copies all gradients into flat 16-bit partitions, has no buckets, "
            "and reduces 5e8 elements at a time, which PyTorch lays end to end once more (read 2026-11-24)",
        ),
    ),
    source="memory as DeepSpeed's; schedules not looked up: any",
)
