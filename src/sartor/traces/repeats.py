"""Kernels and operators that repeat in a trace, and chains of small kernels that could be fused.

A trace as repeated measurements: seconds per step of every operator, or of its single kernels.

Chains of memory-bound kernels that a compiler or a trainer's fused kernel would merge into one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from sartor.traces.kernel_kinds import KINDS, KernelKind
from sartor.traces.kernel_trace import KernelTrace
from sartor.units import FloatArray, IntArray

LEAST_STEPS = 3
SHORT = 60
"""Kernel names are shortened to this many characters."""


def step_seconds(trace: KernelTrace) -> FloatArray:
    """Seconds of each step on the device, from the last kernel of the step before to its own last kernel; empty if
    there are fewer than ``LEAST_STEPS``."""
    seconds: FloatArray = np.diff(trace.step_edges_s)
    return seconds if seconds.size >= LEAST_STEPS and seconds.all() else np.array([])


def operator_seconds(trace: KernelTrace) -> Mapping[str, FloatArray]:
    """Seconds of each operator in each step; keys are name and input dimensions, or the kernel's name."""
    keys, key_index = _keys(trace)
    inside = trace.step >= 0
    took = trace.end_s - trace.begin_s
    table = np.zeros((len(keys), len(trace.steps)))
    np.add.at(table, (key_index[inside], trace.step[inside]), took[inside])
    steps = [i for i in range(len(trace.steps)) if (trace.step == i).any()]
    return {key: table[i, steps] for i, key in enumerate(keys)}


def kernel_seconds(trace: KernelTrace) -> Mapping[str, FloatArray]:
    """Seconds of the single kernels of each operator, over the whole trace."""
    keys, key_index = _keys(trace)
    took = trace.end_s - trace.begin_s
    order = np.argsort(key_index, kind="stable")
    ends = np.searchsorted(key_index[order], np.arange(len(keys) + 1))
    return {key: took[order[ends[i] : ends[i + 1]]] for i, key in enumerate(keys)}


def _keys(trace: KernelTrace) -> tuple[list[str], IntArray]:
    """Distinct keys (operator with sizes, or kernel name), and the key's index for every kernel."""
    seen: dict[tuple[int, int], int] = {}
    keys: dict[str, int] = {}
    key_index = np.zeros(trace.name.size, dtype=np.int64)
    for i, pair in enumerate(zip(trace.operator.tolist(), trace.name.tolist(), strict=True)):
        if pair not in seen:
            seen[pair] = keys.setdefault(_key(trace, *pair), len(keys))
        key_index[i] = seen[pair]
    return list(keys), key_index


def _key(trace: KernelTrace, operator: int, name: int) -> str:
    kernel = short_kernel(trace.names[name])
    if operator < 0 or kernel.startswith("nccl"):
        return kernel
    host_operator = trace.operators[operator]
    sizes = " ".join("x".join(map(str, dims)) for dims in host_operator.dims[:3])
    return f"{host_operator.name} {sizes}".strip()


def short_kernel(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters."""
    bare = re.sub(r"^(void|auto|std::enable_if<.*?>::type) ", "", name)
    head = re.split(r"[<(]", bare.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return head.rsplit("::", 1)[-1][:SHORT] or name[:SHORT]


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
