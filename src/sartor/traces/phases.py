"""Steps of a training run without step marks: each ends when the optimizer has run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from sartor.traces.kernel_kinds import KINDS, KernelKind, kernel_kinds
from sartor.traces.kernel_trace import KernelTrace
from sartor.units import IntArray

REPEATED = "between optimizer runs"
"""Name given to such a step."""
LEAST_KERNELS = 8
"""Least number of matrix multiplications between two optimizer runs; fewer are the optimizer's own (Muon, Shampoo)."""


def with_steps(trace: KernelTrace) -> KernelTrace:
    """The trace with the intervals between optimizer runs as steps; unchanged if steps are marked or there are fewer
    than two runs. Kernels before the first run may be part of a step only, so they belong to none."""
    if trace.steps:
        return trace
    ends = _runs(kernel_kinds(trace))
    if ends.size < 2:
        return trace
    order = np.arange(trace.begin_s.size)
    step = np.searchsorted(ends, order, side="left") - 1
    step[step >= ends.size - 1] = -1
    edges = trace.end_s[ends].tolist()
    marks = tuple((REPEATED, left, right) for left, right in pairwise(edges))
    return replace(trace, step=step, steps=marks)


def _runs(kinds: IntArray) -> IntArray:
    """Index of the last kernel of each run of the optimizer."""
    optimizer_index = np.flatnonzero(kinds == KINDS.index(KernelKind.OPTIMIZER))
    if not optimizer_index.size:
        return optimizer_index
    products = np.cumsum(kinds == KINDS.index(KernelKind.MATMUL))
    apart = np.diff(products[optimizer_index]) >= LEAST_KERNELS
    last: IntArray = optimizer_index[np.append(apart, True)]
    return last
