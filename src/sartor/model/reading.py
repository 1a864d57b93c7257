"""A model as read: its shape, and everything that is not from the file."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.model.counts import ParamCounts, count_params
from sartor.model.shape import TransformerShape
from sartor.units import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReading:
    """A model as read: its shape, and notes on everything that is not from the file."""

    shape: TransformerShape
    assumptions: tuple[str, ...] = ()
    """Defaults and guesses behind the shape, one sentence each."""
    notes: tuple[str, ...] = ()
    """Ignored entries (``auto_map``, quantization), one sentence each."""
    exact: bool = True
    """Whether the counts equal those of the published class exactly."""
    inexact_because: tuple[str, ...] = ()
    interval_factor: float = 1.0
    """Factor on the log-interval of every prediction (1: the model type is known)."""
    architecture: str = ""
    weights: str = ""
    """Type in which the weights were released, if it has fewer than 16 bits."""
    asked: tuple[str, ...] = ("MODEL",)
    """The model as a user names it on a command line, with the options that change it."""

    @property
    def params(self) -> ParamCounts:
        return count_params(self.shape)

    @property
    def num_params(self) -> Ints:
        return self.params.total

    @property
    def num_active_params(self) -> Ints:
        return self.params.active

    @property
    def text_params(self) -> Floats:
        return self.params.text
