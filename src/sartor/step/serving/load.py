"""The load on a server: sequences in flight, and the tokens of their prompts and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.units import Floats, Ints

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on a server; arrays describe many loads."""

    concurrency: Ints
    """Sequences in flight."""
    input_len: Ints
    """Tokens of a prompt."""
    output_len: Ints
    """Tokens generated per request."""

    @property
    def middle(self) -> Ints:
        """Tokens of a sequence halfway through its answer."""
        return self.input_len + self.output_len // 2

    @property
    def middles(self) -> Ints:
        """``middle`` in the form of all loads."""
        return np.broadcast_to(self.middle, self.form)

    @property
    def answered(self) -> Ints:
        """Of them, those of the answer, in the form of all loads."""
        return np.broadcast_to(np.asarray(self.output_len) // 2, self.form)

    @property
    def prompts(self) -> Ints:
        """``input_len`` in the form of all loads."""
        return np.broadcast_to(self.input_len, self.form)

    def columns(self) -> tuple[Array, Array]:
        """``concurrency`` and ``output_len`` of every load, as flat arrays of one length."""
        flight, answer = (self.flat(field) for field in (self.concurrency, self.output_len))
        return flight.astype(np.float64), answer.astype(np.float64)

    @property
    def form(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(np.shape(n) for n in (self.concurrency, self.input_len, self.output_len)))

    def flat(self, values: Floats) -> npt.NDArray[Any]:
        """One value per load."""
        return np.broadcast_to(values, self.form).reshape(-1)
