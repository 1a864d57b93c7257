"""Rows of every expert under a power law, as tables of expert layers were drawn: the most loaded of their devices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sartor.units import Floats, Ints, ceil_div

SPAN = 0.8
"""Loads are assumed to be drawn between one row and this share of the tokens (0.01 to 2 rows if there are no more
routed rows than experts) and rounded; rows left over by rounding go to the least loaded experts, evenly spread. This is
a guess at how the power-law tables were made (the generator was not read), kept because it predicts those rows as well
as the balanced ones (2026-11-21)."""

DRAWS = 16
"""Number of draws that expected loads are averaged over; the seed is fixed."""


def drawn_loads(tokens: Ints, k: Ints, experts: Ints, ep: Ints, exponent: float) -> tuple[Floats, Floats, Floats]:
    """(experts with rows, total rows, largest rows of an expert over the mean), as expected of the most loaded of
    ``ep`` devices when loads follow a power law."""
    sizes = np.broadcast_arrays(tokens, k, experts, ep)
    distinct, which = np.unique(np.reshape(sizes, (4, -1)).astype(np.int64), axis=1, return_inverse=True)
    loads = np.asarray([_expected_loads(*map(int, problem), exponent) for problem in distinct.T])
    groups, rows, skew = loads[np.ravel(which)].reshape(*np.shape(sizes[0]), 3).transpose(-1, *range(np.ndim(sizes[0])))
    return groups, rows, skew


@lru_cache(maxsize=1 << 16)
def _expected_loads(tokens: int, k: int, experts: int, ep: int, exponent: float) -> tuple[float, float, float]:
    """``drawn_loads`` of one problem: means over ``DRAWS``."""
    local = ceil_div(experts, ep)
    loads = np.zeros((DRAWS, ep * local))
    loads[:, :experts] = _draws(tokens, k, experts, exponent)
    by_device = loads.reshape(DRAWS, ep, local)
    busiest = by_device[np.arange(DRAWS), by_device.sum(axis=-1).argmax(axis=-1)]
    rows, groups = busiest.sum(axis=-1), (busiest > 0).sum(axis=-1)
    skew = busiest.max(axis=-1) * groups / rows
    return float(groups.mean()), float(rows.mean()), float(skew.mean())


def _draws(tokens: int, k: int, experts: int, exponent: float) -> Any:
    """Rows of every expert, [draws, experts]: ``tokens`` x ``k`` in all, none above ``tokens``."""
    lowest, highest = (1.0, max(SPAN * tokens, 2.0)) if tokens * k > experts else (0.01, 2.0)
    share = np.random.default_rng(0).random((DRAWS, experts))
    drawn = _scaled(_power_law(share, lowest, highest, exponent), tokens, tokens * k)
    loads = np.rint(drawn)
    left = tokens * k - loads.sum(axis=1, keepdims=True)
    spread = _evenly(experts)
    place = np.argsort(np.argsort(loads + spread, axis=1), axis=1)
    loads = loads + ((left > 0) & (place < left)) - ((left < 0) & (experts - 1 - place < -left))
    return np.clip(loads, 0, tokens)


def _power_law(share: Any, lowest: float, highest: float, exponent: float) -> Any:
    """Quantile ``share`` of the density x^-exponent on [least, most]."""
    falls = 1 - exponent
    if abs(falls) <= LOG_UNIFORM:
        return lowest * (highest / lowest) ** share
    return (lowest**falls + share * (highest**falls - lowest**falls)) ** (1 / falls)


def _scaled(drawn: Any, cap: int, total: int) -> Any:
    """``drawn`` scaled to sum to ``total``, with no entry above ``cap``."""
    scale = total / drawn.sum(axis=1, keepdims=True)
    for _ in range(_CAPPINGS):
        full = drawn * scale >= cap
        rest = np.where(full, 0.0, drawn).sum(axis=1, keepdims=True)
        scale = np.maximum(total - cap * full.sum(axis=1, keepdims=True), 0) / np.maximum(rest, 1e-9)
    return np.minimum(drawn * scale, cap)


def _evenly(count: int) -> Floats:
    """Numbers below 1, one per place; the places of the smallest are evenly spread (van der Corput 1935)."""
    places, numbers = np.arange(count), np.zeros(count)
    for bit in range(count.bit_length()):
        numbers += (places >> bit & 1) / 2 ** (bit + 1)
    return numbers


_CAPPINGS = 4
"""Rounds of capping; each catches entries that the previous rescaling pushed above the cap."""

LOG_UNIFORM = 0.02
"""An exponent this close to 1 is treated as 1, where loads are uniform on a logarithmic scale."""
