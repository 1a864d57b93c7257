"""Detects wrong units: a factor of a hundred between predictions and measurements is not a model error."""

from __future__ import annotations

import math

_NAMES = {-12: "picoseconds", -9: "nanoseconds", -6: "microseconds", -3: "milliseconds", 0: "seconds"}
"""Power of ten of a second -> its name."""

LEAST_TARGETS = 5
"""Fewest targets from which a unit can be judged."""

NEAR_UNIT = 0.15
"""A median this close to a power of a thousand (in logarithm: within a factor of 2.8) counts as another unit."""


def suspected(factor: float | None, targets: int) -> bool:
    """Whether ``targets`` with median predicted over measured of ``factor`` cannot be in the expected unit."""
    return factor is not None and targets >= LEAST_TARGETS and not 0.01 < factor < 100


def unit_of(factor: float, expected: int) -> str:
    """The unit that measured times seem to be in if predictions are ``factor`` times as long; empty if none fits.

    ``expected`` is the power of ten of a second that they should be in: -6 for microseconds.

    >>> unit_of(1010.0, -6)
    'milliseconds'
    """
    thousands = math.log10(factor) / 3
    near = abs(thousands - round(thousands)) < NEAR_UNIT
    return _NAMES.get(expected + 3 * round(thousands), "") if near else ""


def suspicion(whose: str, factor: float, column: str, expected: int) -> str:
    """The remark: the factor, the unit the times seem to be in, and the unit the column should have."""
    unit = unit_of(factor, expected)
    off = f"{max(factor, 1 / factor):,.0f} x too {'short' if factor > 1 else 'long'}"
    as_if = f", as if they were {unit}" if unit else ""
    return f"{whose}: measured times are {off}{as_if}: is {column} in {_NAMES[expected]}?"
