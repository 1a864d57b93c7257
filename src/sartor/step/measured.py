"""What a real run showed of its steady steps: what predictions are held against."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Medians over the steady steps of one run; NaN where nobody measured it."""

    step_s: float
    spread: float = 0.0
    """Robust standard deviation of single steps over their median."""
    num_steps: int = 0
    """Steady steps."""
    warm_up: int = 0
    """Steps left out before them."""
    tokens_per_s: float = math.nan
    """Of the whole job."""
    flops_per_s: float = math.nan
    """Per GPU, as the trainer counts FLOPs."""
    allocated_bytes: float = math.nan
    """Peak of the allocator's tensors on the device that says so."""
    reserved_bytes: float = math.nan
    """Peak of what its allocator held."""
