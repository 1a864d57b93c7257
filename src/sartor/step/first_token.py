"""Uncertainty of a time to first token: of the request's own prompt and steps, and of the wait before it is admitted.

By Little's law a request waits C/X - R for C requests in flight, X answers per second and R seconds that a request
takes once admitted. So the wait is as certain as the throughput, which depends on the times of passes and on how many
sequences memory holds.
"""

from __future__ import annotations

import numpy as np

from sartor.units import Floats

HELD_LOG_SIGMA = 0.16
"""Standard deviation of ln(ran / predicted) of the sequences that run where memory is full, by Little's law from the
measured times of 18 rows (data/end_to_end/serving.csv, one server, confidence B, 2026-11-28): from the median of its
size 0.17, from the 80% quantile 0.16. Engines keep other buffers, and limit how many run."""


def first_token_log_sigma(own_s: Floats, own: Floats, waited_s: Floats, waited: Floats) -> Floats:
    """Of the sum of two independent parts with ``own`` and ``waited`` as their own."""
    return np.hypot(own_s * own, waited_s * waited) / (own_s + waited_s)


def full_log_sigma(waiting_share: Floats, slope: Floats) -> Floats:
    """Of the wait where memory is full and ``waiting_share`` of all requests wait: how many run is uncertain.
    ``slope``: d ln R / d ln(running)."""
    return amplified(HELD_LOG_SIGMA, waiting_share, slope)


def amplified(log_sigma: Floats, waiting_share: Floats, slope: Floats = 0.0) -> Floats:
    """Of a wait C/X - R whose X deviates by ``log_sigma``: the fewer requests wait, the more. A logarithm, because a
    wait is never below 0."""
    return np.log1p(log_sigma * (1 / np.maximum(waiting_share, 1e-9) - slope))
