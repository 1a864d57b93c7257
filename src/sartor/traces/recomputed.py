"""Recomputed kernels: runs in backward that repeat the operators around a forward attention."""

from __future__ import annotations

import numpy as np

from sartor.traces.kernel_kinds import KINDS, KernelKind
from sartor.traces.kernel_trace import KernelTrace
from sartor.units import BoolArray, IntArray


def recomputed_kernels(trace: KernelTrace, kinds: IntArray) -> BoolArray:
    """Mask of kernels that repeat forward ones in backward, step by step; all False if no attention is known."""
    again = np.zeros(kinds.size, dtype=bool)
    computes = ~np.isin(kinds, [KINDS.index(kind) for kind in (KernelKind.COLLECTIVE, KernelKind.COPY)])
    for step in np.unique(trace.step):
        index = np.flatnonzero(computes & (trace.step == step))
        for left, right in _repeated(trace, kinds, index):
            again[index[left:right]] = True
    return again


def _repeated(trace: KernelTrace, kinds: IntArray, index: IntArray) -> list[tuple[int, int]]:
    """Runs of a step's kernels that repeat the operators around its first forward attention."""
    keys = list(zip(trace.operator[index].tolist(), trace.name[index].tolist(), strict=True))
    names = [(_shape(trace, operator), name) for operator, name in keys]
    attention = [i for i in range(index.size) if KINDS[int(kinds[index[i]])] is KernelKind.ATTENTION]
    backward = [i for i in attention if _is_backward(trace, *keys[i])]
    forward = [i for i in attention if not _is_backward(trace, *keys[i])]
    if not backward or not forward or forward[0] > backward[0]:
        return []
    first, runs = forward[0], []
    layers = len({keys[i][0] for i in backward})
    extra = len({keys[i][0] for i in forward}) - layers
    if extra <= 0 or any(keys[i][0] < 0 for i in attention):  # a pipeline's next forward pass is not recomputation
        return []
    late = [i for i in forward if i > backward[0]]
    early = [i for i in forward if i < backward[0]]
    for position in [*early[layers:], *late][-extra:]:  # the last layer is recomputed before
        left, right = position, position + 1
        while left > 0 and first - (position - left) > 0 and names[left - 1] == names[first - (position - left) - 1]:
            left -= 1
        while right < len(names) and names[right] == names[first + (right - position)]:
            right += 1
        runs.append((left, right))
    return runs


def _shape(trace: KernelTrace, operator: int) -> tuple[str, object]:
    return (trace.operators[operator].name, trace.operators[operator].dims) if operator >= 0 else ("", ())


def _is_backward(trace: KernelTrace, operator: int, name: int) -> bool:
    words = f"{trace.operators[operator].name if operator >= 0 else ''} {trace.names[name]}".lower()
    return "backward" in words or "bwd" in words
