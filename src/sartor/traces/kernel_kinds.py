"""Kinds of kernels by their names, and which of them recompute the forward pass.

What a kernel does, by the operator that launched it and by its own name.

Kernel names are those of cuBLAS, CUTLASS, hipBLASLt, cuDNN, FlashAttention, NCCL, RCCL, DeepEP and PyTorch in published
traces. Kernels that match no pattern are reported as unknown.

Recomputed kernels: runs in backward that repeat the operators around a forward attention.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

import numpy as np

from sartor.traces.kernel_trace import KernelTrace
from sartor.units import BoolArray, IntArray


class KernelKind(Enum):
    """What a kernel does."""

    COLLECTIVE = "communication"
    COPY = "copies"
    ATTENTION = "attention"
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    OPTIMIZER = "optimizer"
    EMBEDDING = "embedding"
    MEMORY_BOUND = "memory_bound"
    UNKNOWN = "unknown"


OF_KERNEL = (
    (KernelKind.COLLECTIVE, r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|deep_?ep|"
     r"(?:^|\W)(?:dispatch|combine|cached_notify|notify_dispatch)\b|nvshmem"),
    (KernelKind.COPY, r"^memcpy|^memset"),
    (KernelKind.ATTENTION, r"flash_?(?:fwd|bwd|attn|attention)|fmha|attn|attention|sdpa"),
    (KernelKind.CONVOLUTION, r"conv(?!er)|winograd|[dw]grad2d|fprop|implicit_gemm|igemm_(?:fwd|bwd|wrw)|bwd_weight"),
    (KernelKind.MATMUL, r"(?<!fb)gemm|nvjet|cutlass|cijk_|xmma|cublas|wgmma|splitk|bmm_|matmul|_mm_"),
    (KernelKind.OPTIMIZER, r"multi_tensor_apply|(?<!h)adam|fused_optimizer|lamb_|sgd"),
    (KernelKind.EMBEDDING, r"(?<!rotary)(?<!rotary_)embedding|indexselect"),
    (KernelKind.MEMORY_BOUND, r"elementwise|triton|reduce|norm|softmax|cat|copy|cast|transpose|fill|index|gather|"
     r"scatter|sort|scan|rope|rotary|permute|topk|dropout|gelu|silu|swiglu|quant|cross_entropy|nll|loss|unique|select|"
     r"pool|mapping|reshape|expand|dense_rep|tensorop|conver|upsample|dispatch_layout|finalizekernel"),
)  # fmt: skip
OF_OPERATOR = (
    (KernelKind.COLLECTIVE, r"record_param_comms|^c10d|^nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    (KernelKind.ATTENTION, r"flash_?attention|scaled_dot_product|flashattn|efficient_attention|unified_attention"),
    (KernelKind.CONVOLUTION, r"convolution|conv\dd"),
    (
        KernelKind.MATMUL,
        r"^aten::(?:mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|_grouped_mm)$|(?<!bi)(?<!tri)linear(?!i)|moe_forward|"
        r"(?<!fb)gemm",
    ),
    (KernelKind.OPTIMIZER, r"(?<!h)adam|sgd|optimizer|_foreach|adagrad_update|lamb(?!da)"),
    (KernelKind.EMBEDDING, r"(?<!rotary)(?<!rotary_)embedding|fbgemm(?!.*quant)|lookup"),
    (KernelKind.MEMORY_BOUND, r"^aten::|^triton|norm|rope|rotary|cat|copy|quant|torch::autograd"),
)
_KERNEL = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in OF_KERNEL)
_OPERATOR = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in OF_OPERATOR)
KINDS = tuple(KernelKind)


def kernel_kinds(trace: KernelTrace) -> IntArray:
    """The kind of every kernel, as its index in ``KINDS``."""
    seen: dict[tuple[int, int], int] = {}
    kinds = np.empty(trace.name.size, dtype=np.int64)
    for i, pair in enumerate(zip(trace.operator.tolist(), trace.name.tolist(), strict=True)):
        if pair not in seen:
            operator = trace.operators[pair[0]].name if pair[0] >= 0 else ""
            seen[pair] = KINDS.index(_kind_of(trace.names[pair[1]], operator))
        kinds[i] = seen[pair]
    return kinds


@lru_cache(maxsize=4096)
def _kind_of(kernel: str, operator: str = "") -> KernelKind:
    """The name decides for collectives, copies, attention and optimizers; else the operator, then the name again."""
    by_name = next((kind for kind, pattern in _KERNEL if pattern.search(kernel[:300])), KernelKind.UNKNOWN)
    if by_name in (KernelKind.COLLECTIVE, KernelKind.COPY, KernelKind.ATTENTION, KernelKind.OPTIMIZER):
        return by_name
    if by_name is KernelKind.MATMUL and not operator:
        return by_name
    by_operator = next((kind for kind, pattern in _OPERATOR if operator and pattern.search(operator)), None)
    if by_name is KernelKind.MEMORY_BOUND and (
        by_operator is KernelKind.MATMUL or (by_operator is KernelKind.ATTENTION and "triton" not in kernel)
    ):
        return by_name  # a copy, cast or bias kernel of the operator; Triton names its attention kernels "triton" too
    if by_name is KernelKind.MATMUL and by_operator is KernelKind.EMBEDDING:
        return by_name  # FBGEMM has matrix multiplications as well as embedding tables
    if by_operator is None or (by_operator is KernelKind.MEMORY_BOUND and by_name is not KernelKind.UNKNOWN):
        return by_name
    return by_operator


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
