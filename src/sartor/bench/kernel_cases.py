"""Attention and streaming-kernel cases for the suites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sartor.bench.cases import BenchCase
from sartor.bench.machine import Scale, streamed
from sartor.operators import Attention, DType, MemoryBound, MemoryBoundKind, Pass


def dealt(*groups: Sequence[BenchCase]) -> Iterator[BenchCase]:
    """Interleave groups in proportion to their lengths, each in its own order."""
    places = [((i + 0.5) / len(group), g, i) for g, group in enumerate(groups) for i in range(len(group))]
    return (groups[g][i] for _, g, i in sorted(places))


# ------------------------------------------------------------------------------------------- attention


def attention(scale: Scale, *, most_s: float) -> list[BenchCase]:
    """Training and prefill at head dimensions 32 to 256, GQA, both passes; decode; then a sample with every kernel."""
    lengths = (128, 256, 512, 1024) if scale.small else (512, 1024, 2048, 4096, 8192, 16384)
    plain = [
        _attention(scale, heads=16, kv_heads=kv, head_dim=d, seq=s, causal=causal, pass_=pass_)
        for s in lengths
        for d in (64, 128, 80, 96, 32, 256)
        for kv, causal in ((16, True), (4, True), (16, False))
        for pass_ in (Pass.FORWARD, Pass.BACKWARD)
        if d in (64, 128) or kv == 16
    ]
    decode = [
        _decode(scale, batch=b, kv_heads=kv, head_dim=d, context=t)
        for t in ((128, 512, 2048) if scale.small else (1024, 4096, 16384))
        for b in (1, 8, 32)
        for kv, d in ((16, 64), (16, 128), (4, 128))
    ]
    mixed = list(
        dealt([c for c in plain if scale.fits(c.work, most_s)], [c for c in decode if scale.fits(c.work, most_s)])
    )
    kernels = ("math",) if scale.facts.backend == "cpu" else ("flash", "efficient", "cudnn", "math")
    named = [replace(case, kernel=kernel) for case in mixed[::9] for kernel in kernels]
    return [*_spread(mixed), *named]


def _spread(cases: Sequence[BenchCase]) -> list[BenchCase]:
    """A fixed shuffle, so that any first part covers all sizes and widths."""
    order = np.random.default_rng(7).permutation(len(cases))
    return [cases[int(i)] for i in order]


def _attention(
    scale: Scale, *, heads: int, kv_heads: int, head_dim: int, seq: int, causal: bool, pass_: Pass, batch: int = 1
) -> BenchCase:
    work = Attention(
        name="attention",
        batch=batch if scale.small else 4,
        num_heads=heads,
        num_kv_heads=kv_heads,
        seq_q=seq,
        seq_kv=seq,
        head_dim=head_dim,
        v_head_dim=head_dim,
        causal=causal,
        dtype=scale.dtype,
        pass_=pass_,
    )
    return BenchCase(work=work)


def _decode(scale: Scale, *, batch: int, kv_heads: int, head_dim: int, context: int) -> BenchCase:
    work = Attention(
        name="attention",
        batch=batch,
        num_heads=16,
        num_kv_heads=kv_heads,
        seq_q=1,
        seq_kv=context,
        head_dim=head_dim,
        v_head_dim=head_dim,
        dtype=scale.dtype,
    )
    return BenchCase(work=work)


# ------------------------------------------------------------------------------------------- streaming kernels

TRAFFIC = {
    "add": (3.0, 0.0), "rmsnorm": (2.0, 3.0), "layernorm": (2.0, 3.0), "softmax": (2.0, 3.0), "gelu": (2.0, 3.0),
    "silu_and_mul": (3.0, 5.0), "rope": (2.0, 0.0), "cross_entropy": (1.0, 2.0), "embedding": (2.0, 0.0),
}  # fmt: skip
"""Elements moved per element, forward and backward (0: not timed): each operand read once, each result written once."""


def streams(scale: Scale) -> list[BenchCase]:
    """Streaming kernels at a few widths (on a host from one row on, which shows the cost of a call), their backward
    passes and optimizer steps, interleaved."""
    dtype = scale.dtype
    small, large = ((1, 1024), (256, 1024), (2048, 1024), (512, 4096)), ((4096, 4096), (16384, 2048), (8192, 8192))
    sizes = small if scale.small else large
    wide = ((128, 8192), (256, 50304)) if scale.small else ((2048, 50304), (8192, 32000))
    forward = [
        BenchCase(work=streamed(op, rows, cols, TRAFFIC[op][0], dtype))
        for rows, cols in sizes
        for op in TRAFFIC
        if op != "cross_entropy"
    ]
    loss = [BenchCase(work=streamed("cross_entropy", rows, cols, 1.0, dtype)) for rows, cols in wide]
    backward = [
        BenchCase(work=replace(streamed(op, *sizes[-1], back, dtype), pass_=Pass.BACKWARD))
        for op, (_, back) in TRAFFIC.items()
        if back and op != "cross_entropy"
    ]
    steps = [BenchCase(work=_adam(params)) for params in ((10**6, 8 * 10**6) if scale.small else (10**7, 2 * 10**8))]
    return list(dealt(forward, loss, backward, steps))


def _adam(params: int) -> MemoryBound:
    """A fused AdamW step on fp32 states: weight, gradient and two moments read, weight and moments written."""
    kind = MemoryBoundKind.OPTIMIZER
    return MemoryBound(
        name="optimizer",
        kind=kind,
        rows=1,
        cols=params,
        bytes_moved=28.0 * params,
        dtype=DType.FP32,
        pass_=Pass.OPTIMIZER,
    )


def memory_sizes(scale: Scale) -> list[BenchCase]:
    """A sum of two tensors far larger than the caches (a datasheet needs it), then sums of growing size on resident
    buffers, which show where the bandwidth drops."""
    largest = 28 if scale.small else 31
    sizes = [2**power for power in range(14, largest, 1 if scale.small else 2)]
    resident = [BenchCase(work=streamed("add", size // 4096, 1024, 3.0, DType.FP32), resident=True) for size in sizes]
    beyond = BenchCase(work=streamed("add", 2 ** (26 if scale.small else 30) // 4096, 1024, 3.0, DType.FP32))
    return [case for case in (beyond, *resident) if scale.fits(case.work, 1.0)]
