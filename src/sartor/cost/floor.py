"""The least time that a device's datasheet allows an operator: no predicted time, nor the end of an interval, is less.

An operator alone, as benchmarks repeat it, may find in the caches as much as they hold. In a model, more weights and
cached keys pass through them between two runs of a layer than they hold, so a layer's own come from memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.cost.cost import Cost
from sartor.cost.gpu.attention import DECODE_ROWS
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, Layout, MemoryBound, Operator, Pass
from sartor.units import Floats, plain


def least_s(op: Operator, gpu: Gpu, *, in_model: bool = False) -> Floats:
    """Seconds of one execution: FLOPs at the dense peak, or bytes at memory's rate. Collectives have 0."""
    return np.maximum(_multiplying_s(op, gpu), _reading_s(op, gpu, in_model))


def at_least(op: Operator, cost: Cost, gpu: Gpu, *, in_model: bool) -> Cost:
    """The cost with ``floor_s``, and with a time, its largest term and ``residual`` that respect it."""
    if isinstance(op, Collective):
        return cost
    multiplying, reading = _multiplying_s(op, gpu), _reading_s(op, gpu, in_model)
    floor = np.maximum(multiplying, reading)
    if np.all(floor <= cost.time_s):
        return replace(cost, floor_s=plain(floor))
    time_s = np.maximum(cost.time_s, floor)
    details = cost.details
    if "residual" in details:
        details = details | {"residual": plain(details["residual"] * time_s / cost.time_s)}
    return replace(
        cost,
        time_s=plain(time_s),
        floor_s=plain(floor),
        compute_s=plain(np.maximum(cost.compute_s, multiplying)),
        memory_s=plain(np.maximum(cost.memory_s, reading)),
        details=details,
    )


def _multiplying_s(op: Operator, gpu: Gpu) -> Floats:
    if not isinstance(op, (Gemm, GroupedGemm, Attention)):
        return 0.0
    return op.flops / peak_flops_per_s(gpu, op.dtype)


def _reading_s(op: Operator, gpu: Gpu, in_model: bool) -> Floats:
    cold = _cold_bytes(op) if in_model else 0.0
    if isinstance(op, (Gemm, MemoryBound)):  # windows skip keys and routing skips experts
        cold = np.maximum(cold, op.bytes_moved - (gpu.l2_bytes + gpu.memory_side_cache_bytes))
    return np.maximum(cold, 0.0) / gpu.hbm_bytes_per_s


def _cold_bytes(op: Operator) -> Floats:
    """Bytes that lay in no cache: weights, of experts those of one token's at least, and cached keys and values."""
    if isinstance(op, Attention):
        decodes = (np.asarray(op.seq_q) <= DECODE_ROWS) & (op.pass_ is Pass.FORWARD)
        return np.where(decodes, op.cached_bytes, 0.0)
    if isinstance(op, GroupedGemm):
        if op.pass_ is Pass.WGRAD:
            return 0.0
        visited = np.where(np.greater(op.tokens, 0), np.ceil(op.rows / np.maximum(op.tokens, 1)), 1.0)
        return np.minimum(visited, op.groups) * op.k * op.n * op.dtype.bytes
    if isinstance(op, Gemm) and op.layout is not Layout.NT:  # a batch multiplies activations
        return np.where(np.equal(op.batch, 1), op.dtype.bytes * op.k * op.n, 0.0)
    return 0.0
