"""Activations and gradients sent between stages, as far as they delay the pipeline (`pipeline`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sartor.step.mechanisms.mechanism import COMPUTE, TRANSFERS, Mechanism
from sartor.units import FloatArray

if TYPE_CHECKING:
    from sartor.step.pipeline import Pipelined


def _at_pipeline(pipeline: Pipelined) -> FloatArray:
    return pipeline.transfer_s


PIPELINE_TRANSFERS = Mechanism(
    name="pipeline_transfers",
    part=TRANSFERS,
    fields=("pp", "virtual_stages", "microbatch_size", "trainer.p2p_overlap"),
    hidden_behind=(COMPUTE.key,),
    at_pipeline=_at_pipeline,
)
