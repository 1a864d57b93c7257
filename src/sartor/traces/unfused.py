"""Chains of memory-bound kernels that a compiler or a trainer's fused kernel would merge into one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from sartor.traces.kernel_kinds import KINDS, KernelKind
from sartor.traces.kernel_trace import KernelTrace
from sartor.traces.repeats import short_kernel
from sartor.units import FloatArray, IntArray

EAGER = re.compile(r"elementwise_kernel|reduce_kernel|softmax_warp|cunn_softmax|vectorized_layer_norm", re.IGNORECASE)
"""PyTorch's unfused kernels, one per operator; Triton's and the trainers' own are already fused."""
PASSES = 2
"""A fused kernel takes at most this many times the longest kernel of its chain: one pass to read, one to write."""
LONGEST = 6
"""Only this many operators of a chain are named."""


def unfused_chains(trace: KernelTrace, kinds: IntArray, owned_s: FloatArray) -> dict[str, tuple[int, float]]:
    """Number of runs of each chain, and seconds it takes beyond `PASSES` times its longest kernel; keys are its
    operators in words, the largest loss first. A chain is consecutive eager kernels on a stream."""
    names = np.array([EAGER.search(name[:300]) is not None for name in trace.names], dtype=bool)
    eager = names[trace.name] & (kinds == KINDS.index(KernelKind.MEMORY_BOUND))
    lost: defaultdict[str, float] = defaultdict(float)
    often: Counter[str] = Counter()
    for stream in np.unique(trace.stream):
        on = np.flatnonzero(trace.stream == stream)
        for chain in np.split(on, np.flatnonzero(np.diff(eager[on])) + 1):
            seconds = owned_s[chain]
            beyond = float(seconds.sum()) - PASSES * float(seconds.max())
            if eager[chain[0]] and beyond > 0:
                words = _words(trace, chain)
                lost[words] += beyond
                often[words] += 1
    return {words: (often[words], lost[words]) for words in sorted(lost, key=lambda words: -lost[words])}


def _words(trace: KernelTrace, chain: IntArray) -> str:
    kernels = [int(i) for i in chain[:LONGEST]]
    words = [
        trace.operator_name(i).removeprefix("aten::")
        if trace.operator[i] >= 0
        else short_kernel(trace.names[int(trace.name[i])])
        for i in kernels
    ]
    return ", ".join(words) + (", ..." if chain.size > LONGEST else "")
