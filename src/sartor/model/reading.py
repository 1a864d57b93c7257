"""A model as it was read: its shape, and everything about it that did not come from the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sartor.model.counts import ParamCounts, count_params
from sartor.model.shape import TransformerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReading:
    """A model as read: its shape, and what is not from the file itself."""

    shape: TransformerShape
    assumptions: tuple[str, ...] = ()
    """Defaults and guesses the shape rests on, one sentence each."""
    notes: tuple[str, ...] = ()
    """What was left aside (``auto_map``, quantization), one sentence each."""
    exact: bool = True
    """Whether the counts are those of the published class, to the unit."""
    inexact_because: tuple[str, ...] = ()
    interval_factor: float = 1.0
    """What to multiply the log-interval of every prediction by (1: the model type is known)."""
    architecture: str = ""

    @property
    def params(self) -> ParamCounts:
        return count_params(self.shape)

    @property
    def num_params(self) -> Any:
        return self.params.total

    @property
    def num_active_params(self) -> Any:
        return self.params.active

    @property
    def text_params(self) -> Any:
        return self.params.text
