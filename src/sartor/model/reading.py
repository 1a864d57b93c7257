"""A model as read: its shape, and everything that is not from the file."""

from __future__ import annotations

from collections.abc import Sequence
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
    unread_sizes: tuple[str, ...] = ()
    """Sizes of the file that no reader knows, as ``field=value``: with any, the parameter count is unknown."""
    interval_factor: float = 1.0
    """Factor on the log-interval of every prediction (1: the model type is known)."""
    architecture: str = ""
    weights: str = ""
    """Type in which the weights were released, if it has fewer than 16 bits."""
    asked: tuple[str, ...] = ("MODEL",)
    """The model as a user names it on a command line, with the options that change it."""

    @property
    def unread(self) -> str:
        """The sizes that were not read and what that means; "" if all were."""
        return unread_words(self.unread_sizes) if self.unread_sizes else ""

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


def unread_words(sizes: Sequence[str]) -> str:
    """``moe_latent_size=1024 is not read: the parameter count is unknown``."""
    shown = ", ".join(sizes[:5]) + (f" and {len(sizes) - 5} more" if len(sizes) > 5 else "")
    return f"{shown} {'is' if len(sizes) == 1 else 'are'} not read: the parameter count is unknown"
