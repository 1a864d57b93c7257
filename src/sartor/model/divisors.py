"""The divisors of a size, for splitting heads, experts, stages and batches."""

from __future__ import annotations

import math

import numpy as np

from sartor.units import Ints


def divisors(number: int) -> list[int]:
    """All divisors of a number above 0, smallest first."""
    tried = np.arange(1, math.isqrt(number) + 1)
    low: list[int] = tried[number % tried == 0].tolist()
    return low + [number // d for d in reversed(low) if d * d != number]


def nearest_divisors(total: Ints, wanted: Ints) -> str:
    """The two divisors of ``total`` nearest to ``wanted``, for the end of an error message."""
    near = sorted(divisors(int(total)), key=lambda d: abs(d - int(wanted)))[:2]
    return " and ".join(map(str, sorted(near)))
