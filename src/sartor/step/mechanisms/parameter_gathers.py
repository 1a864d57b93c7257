"""Sharded parameters gathered before a step's first forward (ZeRO), beyond what it and earlier stages hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sartor.step.mechanisms.mechanism import Mechanism
from sartor.step.mechanisms.part import BUBBLE, COMPUTE, REPLICAS
from sartor.units import FloatArray

if TYPE_CHECKING:
    from sartor.step.stage_exchange import StepWork


def _at_step(s: StepWork, _: Mapping[str, FloatArray]) -> FloatArray:
    return np.asarray(np.maximum(_on_ranks(s) - s.work.hides_gather_s.take(s.of, axis=1), 0.0).max(axis=0))


def _on_ranks(s: StepWork) -> FloatArray:
    """Exposed gathers before each stage's first microbatch [R, plans]."""
    x, forward = s.x, s.work.forward_s.take(s.of, axis=1)
    return s.or_sharded(s.exposed_s(x.params_base, x.params_rest, x.params_share, forward), s.work.first_s)


PARAMETER_GATHERS = Mechanism(
    name="parameter_gathers",
    part=REPLICAS,
    fields=("zero_stage", "shard_group", "dp", "cp", "trainer.dp_overlap", "trainer.broadcasts_shards"),
    hidden_behind=(COMPUTE.key, BUBBLE.key),
    event="gather parameters",
    before=True,
    at_step=_at_step,
    on_ranks=_on_ranks,
)
