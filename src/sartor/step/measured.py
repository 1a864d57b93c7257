"""Measurements of a real run's steady steps, to compare predictions with."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Medians over the steady steps of one run; NaN if not measured."""

    step_s: float
    spread: float = 0.0
    """Robust standard deviation of single steps over their median."""
    num_steps: int = 0
    """Steady steps."""
    warm_up: int = 0
    """Steps skipped before them."""
    tokens_per_s: float = math.nan
    """Of the whole job."""
    flops_per_s: float = math.nan
    """Per GPU, as the trainer counts FLOPs."""
    allocated_bytes: float = math.nan
    """Peak of allocated tensors on the reporting device."""
    reserved_bytes: float = math.nan
    """Peak memory reserved by its allocator."""
