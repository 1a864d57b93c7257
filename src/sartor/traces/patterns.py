"""What the kernels of a trace do together: recomputation, and operators that one fused kernel could do at once."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from sartor.traces.kernel_trace import KINDS, KernelKind, KernelTrace, short_kernel
from sartor.units import BoolArray, FloatArray, IntArray


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


# --------------------------------------------------------------------------------------------------- unfused attention

ATTENTION = re.compile(r"Me{0,10}(?P<softmax>S)e{0,8}M|(?:Me{0,8}){1,2}(?P<back>B)e{0,10}(?:Me{0,8})?M")
"""Scores, softmax, values; backward two products before the softmax and two after it. M is a batched product, e an
elementwise kernel or copy. A router's softmax is followed by top-k, a loss's by no product."""
BATCHED = re.compile(r"bmm|matmul|einsum")
SOFTMAX = re.compile(r"(log_?)?softmax", re.IGNORECASE)
APART = re.compile(r"topk|sort|index|scatter|unique|norm|embedding|nll_loss", re.IGNORECASE)
"""Memory-bound kernels that no attention has between its products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedAttention:
    """One attention done by single operators."""

    kernels: IntArray
    """Indices, in order."""
    scores: int
    """Index of the kernel whose product has the sizes of the scores."""
    products: int
    """How many are products."""
    backward: bool


def unfused_attention(trace: KernelTrace, kinds: IntArray) -> tuple[UnfusedAttention, ...]:
    """Every batched product, softmax, batched product on one stream with only elementwise kernels between."""
    letters = _letters(trace, kinds)
    if not {"S", "B"} & set(letters.tolist()):
        return ()
    patterns = []
    for stream in np.unique(trace.stream):
        on = np.flatnonzero(trace.stream == stream)
        text = "".join(letters[on].tolist())
        for match in ATTENTION.finditer(text):
            softmax = match.start("back") if match["back"] else match.start("softmax")
            patterns.append(
                UnfusedAttention(
                    kernels=on[match.start() : match.end()],
                    scores=int(on[text.rindex("M", 0, softmax)]),
                    products=match[0].count("M"),
                    backward=bool(match["back"]),
                )
            )
    return tuple(patterns)


def _letters(trace: KernelTrace, kinds: IntArray) -> np.ndarray:
    """A letter for what each kernel does in attention."""
    seen: dict[tuple[int, int, int], str] = {}
    triples = list(zip(trace.operator.tolist(), trace.name.tolist(), kinds.tolist(), strict=True))
    for triple in triples:
        if triple not in seen:
            operator = trace.operators[triple[0]].name if triple[0] >= 0 else ""
            seen[triple] = _letter(operator, trace.names[triple[1]][:300], KINDS[triple[2]])
    return np.array([seen[triple] for triple in triples], dtype="U1")


def _letter(operator: str, kernel: str, kind: KernelKind) -> str:
    words = f"{operator} {kernel}"
    if kind is KernelKind.MATMUL:
        return "M" if not operator or BATCHED.search(operator) else "m"
    if kind is KernelKind.MEMORY_BOUND and (match := SOFTMAX.search(words)):
        return "x" if match[1] else "B" if "backward" in words.lower() else "S"
    return "e" if kind in (KernelKind.MEMORY_BOUND, KernelKind.COPY) and not APART.search(words) else "x"


# ------------------------------------------------------------------------------------------------------ unfused chains

EAGER = re.compile(
    r"elementwise_kernel|reduce_kernel|softmax_warp|cunn_softmax|vectorized_layer_norm|nll_loss_(?:forward|backward)",
    re.IGNORECASE,
)
"""PyTorch's unfused kernels, one per operator; Triton's and the trainers' own are already fused."""
LOSS = re.compile(r"log_?softmax|nll_loss|cross_entropy", re.IGNORECASE)
CAST = re.compile(r"(?:LoadWithCast.*StoreWithCast|(?:bfloat16|float16|half|float8\w*)_copy_kernel)", re.DOTALL)
"""Kernels of PyTorch that copy to another data type."""
MOVES = re.compile(r"direct_copy_kernel|transpose|nchwToNhwc|nhwcToNchw", re.IGNORECASE)
"""Kernels that copy to another order of the same elements."""
PASSES = 2
"""A fused kernel takes at most this many times the longest kernel of its chain: one pass to read, one to write."""
LONGEST = 6
"""Only this many operators of a chain are named."""


class ChainKind(Enum):
    """What a chain of eager kernels is for."""

    LOSS = "loss"
    CASTS = "casts"
    LAYOUT = "layout"
    OTHER = "other"


Chains = dict[str, tuple[int, float]]
"""Number of runs of each chain and the seconds lost in them; keys are its operators, the largest loss first."""


def unfused_chains(trace: KernelTrace, kinds: IntArray, owned_s: FloatArray) -> dict[ChainKind, Chains]:
    """The chains of consecutive eager kernels on a stream with the seconds beyond what fused kernels would take:
    `PASSES` times the longest kernel; of a loss, which a fused kernel reads once, the longest; of chains that mostly
    cast or copy to another layout, all such copies, which no kernel needs."""
    masks = {ChainKind.CASTS: trace.named(CAST)}
    masks[ChainKind.LAYOUT] = trace.named(MOVES) & ~masks[ChainKind.CASTS]
    eager = (
        (trace.named(EAGER) | masks[ChainKind.LAYOUT]) & (kinds == KINDS.index(KernelKind.MEMORY_BOUND)) & (owned_s > 0)
    )
    lost: dict[ChainKind, defaultdict[str, float]] = {kind: defaultdict(float) for kind in ChainKind}
    often: Counter[str] = Counter()
    for stream in np.unique(trace.stream):
        on = np.flatnonzero(trace.stream == stream)
        breaks = (np.diff(eager[on]) != 0) | ~_share_sizes(trace, on)
        for chain in np.split(on, np.flatnonzero(breaks) + 1):
            if not eager[chain[0]]:
                continue
            took_s = float(owned_s[chain].sum())
            copied_s = {kind: float(owned_s[chain[mask[chain]]].sum()) for kind, mask in masks.items()}
            kind = _chain_kind(
                trace, chain, next((each for each, s in copied_s.items() if s > took_s / 2), ChainKind.OTHER)
            )
            passes = 1 if kind is ChainKind.LOSS else PASSES
            beyond = copied_s.get(kind, took_s - passes * float(owned_s[chain].max()))
            if beyond > 0:
                words = _words(trace, chain)
                lost[kind][words] += beyond
                often[words] += 1
    return {
        kind: {words: (often[words], table[words]) for words in sorted(table, key=lambda words: -table[words])}
        for kind, table in lost.items()
    }


def _share_sizes(trace: KernelTrace, on: IntArray) -> BoolArray:
    """Whether each kernel may work on the same data as the next: one number of elements divides another of the next,
    or the sizes are not known."""
    elements = [{math.prod(dims) for dims in operator.dims} - {0, 1} for operator in trace.operators]
    elements.append(set())  # operator -1
    numbers = trace.operator[on].tolist()
    share: dict[tuple[int, int], bool] = {}
    for pair in pairwise(numbers):
        if pair not in share:
            one, other = elements[pair[0]], elements[pair[1]]
            share[pair] = not (one and other) or any(max(a, b) % min(a, b) == 0 for a in one for b in other)
    return np.array([share[pair] for pair in pairwise(numbers)], dtype=bool)


def _chain_kind(trace: KernelTrace, chain: IntArray, otherwise: ChainKind) -> ChainKind:
    loses = any(
        LOSS.search(f"{trace.operator_name(int(i))} {trace.names[int(trace.name[i])][:300]}") for i in chain.tolist()
    )
    return ChainKind.LOSS if loses else otherwise


def _words(trace: KernelTrace, chain: IntArray) -> str:
    kernels = [int(i) for i in chain[:LONGEST]]
    words = [
        trace.operator_name(i).removeprefix("aten::")
        if trace.operator[i] >= 0
        else short_kernel(trace.names[int(trace.name[i])])
        for i in kernels
    ]
    return ", ".join(words) + (", ..." if chain.size > LONGEST else "")


MOST_ALIKE, SIZES = 8, 4
"""Products of the same weights' sizes between two attentions, and their numbers of rows, from which they are experts'
one after another: a dense layer has four of one size, all with the same rows."""


def experts_in_a_loop(trace: KernelTrace, kinds: IntArray) -> bool:
    """Whether the products between two attentions are mostly of experts, each on the rows that it was sent."""
    attention = np.cumsum(kinds == KINDS.index(KernelKind.ATTENTION))
    rows: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    products = np.flatnonzero((kinds == KINDS.index(KernelKind.MATMUL)) & (trace.operator >= 0))
    for i in products.tolist():
        dims = trace.operators[int(trace.operator[i])].dims
        if len(dims) > 1 and len(dims[-1]) == 2:
            rows[int(attention[i]), dims[-1]].append(dims[-2][0])
    looped = sum(len(each) for each in rows.values() if len(each) > MOST_ALIKE and len(set(each)) >= SIZES)
    return looped > products.size / 2
