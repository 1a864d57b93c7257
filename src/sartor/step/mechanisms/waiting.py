"""Waiting for the slowest of all devices (``jitter``), and fixed seconds of every step: input, logging, a barrier.

A lockstep trainer has neither: its stages wait for each other in every slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sartor.step.mechanisms.mechanism import OPTIMIZER, OVERHEAD, Mechanism
from sartor.units import FloatArray

if TYPE_CHECKING:
    from sartor.step.stage_seconds import StepWork


def _at_step(s: StepWork, parts: Mapping[str, FloatArray]) -> FloatArray:
    if s.trainer.lockstep:
        return np.zeros(s.at.size)
    busy = s.pipeline_s + parts[OPTIMIZER.key]
    return np.asarray(s.c.fixed_step_s + s.c.waiting(s.devices) * busy)


WAITING = Mechanism(
    name="waiting",
    part=OVERHEAD,
    fields=("num_devices",),
    event="host and fixed costs",
    at_step=_at_step,
)
