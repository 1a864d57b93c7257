"""Measurements of a real run's steady steps, to compare predictions with."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Typical values of the steady steps of one run; NaN if not measured."""

    step_s: float
    """The median; the mean if many steps are slow or the speed changes."""
    is_mean: bool = False
    """Whether ``step_s`` and the rates are means."""
    usual_s: float = math.nan
    """Median without slow steps."""
    stall_s: float = 0.0
    """Of ``step_s``, what slow steps take beyond usual ones, where they count."""
    spread: float = 0.0
    """Robust standard deviation of single steps over their median, without slow ones."""
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

    @property
    def stall_free_s(self) -> float:
        """The step without its stalls, as a plan may explain it."""
        return self.step_s - self.stall_s
