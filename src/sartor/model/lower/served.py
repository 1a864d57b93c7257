"""How a serving engine runs a pass: what it fuses, and what its devices exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.model.lower.setting import EngineKernels
from sartor.model.workload import Phase, Workload
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    OperatorGraph,
    Part,
    Role,
)

ATTENTION = (Role.QKV, Role.Q_DOWN, Role.Q_UP, Role.KV_DOWN, Role.KV_UP, Role.ATTENTION_OUTPUT)
"""Linear layers of attention."""


def as_served(graph: OperatorGraph, workload: Workload, engine: EngineKernels) -> OperatorGraph:
    """The operators of one device's pass as a serving engine runs them.

    Residual sums and casts are fused into neighbouring kernels (vLLM's ``fused_add_rms_norm`` and its passes for norm,
    activation and quantization; TensorRT-LLM's ``AllReduceFusionOp``), latent attention's two down projections are one
    GEMM, and shared and routed experts are summed before one all-reduce.
    """
    operators: list[Operator] = []
    for op in graph.operators:
        if _is_fused(op) or (_is_reduce(op) and operators and operators[-1].role is Role.SHARED_DOWN):
            continue
        if isinstance(op, Gemm) and op.role is Role.KV_DOWN and _joined(operators, op):
            continue
        if isinstance(op, Gemm) and op.role in ATTENTION and engine.wide_attention:
            op = replace(op, dtype=DType.BF16)
        operators.append(_of_engine(op, workload, engine))
    return replace(graph, operators=tuple(operators))


def _joined(operators: list[Operator], down: Gemm) -> bool:
    """Merge latent attention's key/value down projection into the query one just before it; False if there is none."""
    last_gemm = max((i for i, op in enumerate(operators) if isinstance(op, Gemm)), default=-1)
    before = operators[last_gemm] if last_gemm >= 0 else None
    if not isinstance(before, Gemm) or before.role not in (Role.Q_DOWN, Role.QKV):
        return False
    operators[last_gemm] = replace(before, n=before.n + down.n)
    return True


def _is_fused(op: Operator) -> bool:
    kinds = (MemoryBoundKind.RESIDUAL, MemoryBoundKind.CAST)
    return isinstance(op, MemoryBound) and op.part is Part.LAYER and op.kind in kinds


def _is_reduce(op: Operator) -> bool:
    return isinstance(op, Collective) and op.role is Role.OUTPUT_REDUCE


def _of_engine(op: Operator, workload: Workload, engine: EngineKernels) -> Operator:
    """The operator with the cache's type, the engine's all-reduce library, and, if that moves fewer bytes, all-gather
    and reduce-scatter of the tokens instead of sending them to every chosen expert."""
    if isinstance(op, Attention) and workload.phase is Phase.DECODE:
        return replace(op, kv_dtype=workload.cache_dtype)
    if not isinstance(op, Collective):
        return op
    if op.kind is CollectiveKind.ALL_TO_ALL:
        moe = workload.shape.moe_ffn
        once = op.message_bytes * op.group_size / moe.experts_per_token if moe else op.message_bytes
        kind = CollectiveKind.ALL_GATHER if op.role is Role.DISPATCH else CollectiveKind.REDUCE_SCATTER
        return replace(op, kind=kind, message_bytes=once) if np.all(once < op.message_bytes) else op
    return replace(op, library=engine.all_reduce)
