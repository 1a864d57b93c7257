"""Rows of the same shape whose times contradict each other."""

from __future__ import annotations

import numpy as np

from sartor.records.targets import Targets
from sartor.units import FloatArray

MOST_APART, LEAST_REPEATED = 1.5, 5
"""Median ratio of a shape's slowest row to its fastest above which repeats contradict each other, and the least number
of repeated shapes. In the published bf16 tables of a GPU it is at most 1.25 (all frameworks and versions together) and
1.37 on Arc B60; in fp8_block 3 to 23, as frameworks run it on other kernels (lab/notebook/validation.md)."""


def contradictions(targets: Targets) -> tuple[FloatArray, tuple[str, ...]]:
    """The largest |ln(row / median)| of every shape where repeats contradict each other, else 0, and what is said."""
    several = targets.rows > 1
    ratio = targets.most_s / targets.least_s
    if several.sum() < LEAST_REPEATED or (middle := float(np.median(ratio[several]))) <= MOST_APART:
        return np.zeros(len(targets)), ()
    apart = np.log(np.maximum(targets.most_s / targets.measured_s, targets.measured_s / targets.least_s))
    return apart, (
        f"latency_us: {several.sum()} shapes have several rows, at the median the slowest takes {middle:.1f} times as "
        "long as the fastest; fitted to their medians, with an interval that holds both (what else differs?)",
    )
