"""Megatron-DeepSpeed and GPT-NeoX: Megatron's layers under DeepSpeed's engine."""

from __future__ import annotations

from sartor.model.choices import COMMON_SCHEDULES
from sartor.model.trainer import Accumulation, Trainer
from sartor.step.trainers.deepspeed import HABITS

MEGATRON_DEEPSPEED = Trainer(
    name="megatron-deepspeed",
    words=("megatron-deepspeed", "megatron deepspeed", "neox"),
    dp_overlap=False,
    accumulation=Accumulation.ADDED,
    hides_tp_backward=False,
    vocab_multiple=0,
    memory=HABITS,
    schedules=COMMON_SCHEDULES,
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    drops_out=True,
    source="memory as DeepSpeed's; schedules not looked up: any",
)
