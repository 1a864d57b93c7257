"""What must hold between two stages of pricing, checked where ``SARTOR_DEBUG=1`` is set (the tests set it)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import numpy as np

from sartor.units import Floats

ROUNDING = 1e-9
"""Relative difference that rounding may leave."""


def checking() -> bool:
    """Whether invariants are checked."""
    return os.environ.get("SARTOR_DEBUG", "") not in ("", "0")


def check_sum(what: str, parts: Iterable[Floats], whole: Floats) -> None:
    """The parts add up to the whole."""
    if checking():
        total = sum(np.asarray(part) for part in parts)
        apart = ~np.isclose(total, whole, rtol=ROUNDING, atol=0.0, equal_nan=True)
        assert not apart.any(), f"internal error: the parts of {what} don't add up: {total} is not {whole}"


def check_none_negative(what: str, parts: Mapping[str, Floats], whole: Floats) -> None:
    """No part is below 0, but for rounding."""
    if checking():
        for name, seconds in parts.items():
            below = np.asarray(seconds) < -ROUNDING * np.abs(whole)
            assert not below.any(), f"internal error: {name} of {what} is negative: {np.min(seconds)}"
