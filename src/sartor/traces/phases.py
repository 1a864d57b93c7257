"""The steps of a training run whose profiler marked none: each ends where the optimizer has run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from sartor.traces.kernel_kinds import KINDS, KernelKind, kernel_kinds
from sartor.traces.kernel_trace import KernelTrace
from sartor.units import IntArray

REPEATED = "between optimizer runs"
"""Name of such a step."""
LEAST_KERNELS = 8
"""Matrix multiplications between two runs of an optimizer: fewer are its own (Muon, Shampoo)."""


def with_steps(trace: KernelTrace) -> KernelTrace:
    """The trace with the steps between runs of its optimizer; as it is where steps are marked, or fewer than two runs
    are there. What comes before the first run may be part of a step, so that it belongs to none."""
    if trace.steps:
        return trace
    ends = _runs(kernel_kinds(trace))
    if ends.size < 2:
        return trace
    order = np.arange(trace.begin_s.size)
    step = np.searchsorted(ends, order, side="left") - 1
    step[step >= ends.size - 1] = -1
    edges = [float(trace.begin_s[end + 1]) for end in ends[:-1]] + [float(trace.end_s[ends[-1]])]
    marks = tuple((REPEATED, left, right) for left, right in pairwise(edges))
    return replace(trace, step=step, steps=marks)


def _runs(kinds: IntArray) -> IntArray:
    """Index of the last kernel of each run of the optimizer."""
    at = np.flatnonzero(kinds == KINDS.index(KernelKind.OPTIMIZER))
    if not at.size:
        return at
    products = np.cumsum(kinds == KINDS.index(KernelKind.MATMUL))
    apart = np.diff(products[at]) >= LEAST_KERNELS
    last: IntArray = at[np.append(apart, True)]
    return last
