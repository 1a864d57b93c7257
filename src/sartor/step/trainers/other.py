"""A trainer nobody knows: of Megatron's kind, at the pace that trainers have on average."""

from __future__ import annotations

from sartor.model.choices import COMMON_SCHEDULES
from sartor.model.trainer import Trainer
from sartor.step.trainers.megatron import UNFUSED

OTHER = Trainer(
    name="other",
    schedules=COMMON_SCHEDULES,
    releases=(UNFUSED,),
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    source="assumed",
)
