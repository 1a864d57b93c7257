"""The bubble: what a schedule leaves idle on the slowest stage, and stalls of unequal chunks (`pipelined`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.step.mechanisms.mechanism import Mechanism
from sartor.step.mechanisms.part import BUBBLE
from sartor.units import FloatArray

if TYPE_CHECKING:
    from sartor.step.pipelined import Pipelined


def _at_pipeline(pipeline: Pipelined) -> FloatArray:
    return pipeline.bubble_s


PIPELINE_BUBBLE = Mechanism(
    name="pipeline_bubble",
    part=BUBBLE,
    fields=("pp", "virtual_stages", "schedule", "num_microbatches", "stage_layers"),
    at_pipeline=_at_pipeline,
)
