"""An unknown trainer: assumed similar to Megatron, at the average speed of trainers."""

from __future__ import annotations

from sartor.model.choices import COMMON_SCHEDULES
from sartor.model.trainer import Trainer
from sartor.step.trainers.megatron import UNFUSED

OTHER = Trainer(
    name="other",
    fused_heads=1,
    schedules=COMMON_SCHEDULES,
    releases=(UNFUSED,),
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    source="assumed",
)
