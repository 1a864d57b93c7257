"""Suites: the cases that show most about a device within a time budget, kernels among them.

The groups of a suite are interleaved, each with its most informative cases first, so that a run cut short by its budget
has covered a part of everything. Sizes follow ``Scale``: a launch of any case takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from sartor.bench.cases import BenchCase, ClockMode, StackRun, StepPart
from sartor.bench.machine import Scale, stand_in, streamed
from sartor.calibrate.fit import Products
from sartor.calibrate.samples import GRID_M, GRID_NK, GRID_RAGGED, choose
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.operators import (
    Attention,
    Collective,
    DType,
    Gemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    OperatorGraph,
    Pass,
)


def _dealt(*groups: Sequence[BenchCase]) -> Iterator[BenchCase]:
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
        _dealt([c for c in plain if scale.fits(c.work, most_s)], [c for c in decode if scale.fits(c.work, most_s)])
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
    return list(_dealt(forward, loss, backward, steps))


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


def _memory_sizes(scale: Scale) -> list[BenchCase]:
    """A sum of two tensors far larger than the caches (a datasheet needs it), then sums of growing size on resident
    buffers, which show where the bandwidth drops."""
    largest = 28 if scale.small else 31
    sizes = [2**power for power in range(14, largest, 1 if scale.small else 2)]
    resident = [BenchCase(work=streamed("add", size // 4096, 1024, 3.0, DType.FP32), resident=True) for size in sizes]
    beyond = BenchCase(work=streamed("add", 2 ** (26 if scale.small else 30) // 4096, 1024, 3.0, DType.FP32))
    return [case for case in (beyond, *resident) if scale.fits(case.work, 1.0)]


SUITES = ("quick", "full", "random", "model", "alignment", "waves", "layer", "collectives")
BUDGET_S = {
    "quick": 105.0,
    "full": 560.0,
    "random": 120.0,
    "model": 300.0,
    "alignment": 560.0,
    "waves": 560.0,
    "layer": 300.0,
    "collectives": 300.0,
}
"""Default budgets: quick takes less than two minutes including the start of PyTorch, the others less than ten."""


def suite(name: str, scale: Scale, graph: OperatorGraph | None = None) -> list[BenchCase]:
    """The cases of a suite in the order they are run. ``model`` needs the graph of ``sartor estimate``. Collectives
    need several devices and come from ``bench.collectives``, so that suite is empty here."""
    if name == "model":
        if graph is None:
            raise InputError("suite", name, "must name a model", "--suite model pythia-70m")
        return model_cases(graph)
    if name not in SUITES:
        raise InputError("suite", name, f"must be one of {', '.join(SUITES)}", "quick")
    if name == "collectives":
        return []
    makers = {
        "quick": _quick,
        "full": _full,
        "random": _at_random,
        "alignment": _alignment,
        "waves": _waves,
        "layer": _layer,
    }
    return list(makers[name](scale))


def _quick(scale: Scale) -> Iterator[BenchCase]:
    """GEMMs of the device's main type and a few of everything else; cases that a datasheet needs come first."""
    count, extra = (150, 60) if scale.small else (150, 24)
    others = [d for d in scale.flops_per_s if d is not scale.dtype]
    first, *sizes = _memory_sizes(scale)
    yield first
    yield from _dealt(
        sizes,
        _products(scale, scale.dtype, count, most_s=0.03),
        *(_products(scale, dtype, extra, most_s=0.03) for dtype in others),
        attention(scale, most_s=0.1)[:24],
        streams(scale)[: 40 if scale.small else 24],
    )


def _full(scale: Scale) -> Iterator[BenchCase]:
    """All types and kernels, batched and sustained, layers and training steps."""
    count = 700 if scale.small else 500
    others = [d for d in scale.flops_per_s if d is not scale.dtype]
    chosen = _products(scale, scale.dtype, count, most_s=0.1)
    return _dealt(
        _memory_sizes(scale),
        chosen,
        _sustained(scale, chosen),
        *(_products(scale, dtype, 120, most_s=0.1) for dtype in others),
        _batched(scale),
        attention(scale, most_s=0.3),
        streams(scale),
        list(_layer(scale)),
    )


# ------------------------------------------------------------------------------------------- GEMMs


def _products(scale: Scale, dtype: DType, count: int, *, most_s: float) -> list[BenchCase]:
    """``count`` GEMMs that represent the whole pool, in the layouts of a linear layer's forward, dgrad and wgrad."""
    pool = _pool(scale, dtype, most_s)
    chosen = pool.part(choose(pool, count))
    sizes = [(int(m), int(n), int(k)) for m, n, k in zip(chosen.m, chosen.n, chosen.k, strict=True)]
    return [
        BenchCase(work=Gemm(name="gemm", m=m, n=n, k=k, dtype=dtype, layout=_layout(i, m, dtype)))
        for i, (m, n, k) in enumerate(sizes)
    ]


def _layout(i: int, m: int, dtype: DType) -> Layout:
    """Three of five are forward; backward layouts need at least 64 rows, as in training."""
    if dtype is DType.FP8 or m < 64:
        return Layout.TN
    return (Layout.TN, Layout.TN, Layout.TN, Layout.NN, Layout.NT)[i % 5]


LEAST_FLOPS = 1e6
"""Smaller GEMMs do not occur in models, and libraries treat them differently."""

ODD = (1365, 2730, 5460)
"""Lengths misaligned to 8 bytes (8h/3 of 512, 1024 and 2048), so that a calibration sees the cost of misalignment."""

HOST_BYTES = 64e6
"""Most bytes of a GEMM's operands on a host: larger ones can't be rotated, and their copies get fresh pages."""


def _pool(scale: Scale, dtype: DType, most_s: float) -> Products:
    lengths = (64, *GRID_NK, *GRID_RAGGED, *ODD)
    m, n, k = (axis.ravel() for axis in np.meshgrid(GRID_M, lengths, lengths, indexing="ij"))
    gemm = Gemm(name="pool", m=m, n=n, k=k, dtype=dtype)
    rate = scale.flops_per_s.get(dtype, min(scale.flops_per_s.values()))
    seconds = gemm.flops / (0.5 * rate) + gemm.bytes_moved / scale.bytes_per_s
    ragged = np.isin(n, GRID_RAGGED + ODD) & np.isin(k, GRID_RAGGED + ODD)
    most_bytes = min(0.2 * scale.facts.memory_bytes, HOST_BYTES if scale.facts.backend == "cpu" else np.inf)
    fits = (seconds <= most_s) & (np.asarray(gemm.bytes_moved) <= most_bytes) & (gemm.flops >= LEAST_FLOPS) & ~ragged
    fits &= (n % 16 == 0) & (k % 16 == 0) if dtype is DType.FP8 else fits
    m, n, k = (axis[fits].astype(np.int64) for axis in (m, n, k))
    gpu: Gpu = stand_in(scale)
    return Products(gpu=gpu, dtype=dtype, batch=np.ones_like(m), m=m, n=n, k=k, layouts=np.full(m.size, "TN"))


def _batched(scale: Scale) -> list[BenchCase]:
    """GEMMs of unfused attention: scores and attention-over-values of a few heads."""
    cases = []
    for batch in (8, 32, 64):
        for s in (128, 512, 1024, 2048):
            for d in (64, 80, 128):
                for layout, n, k in ((Layout.TN, s, d), (Layout.NN, d, s)):
                    work = Gemm(name="bmm", batch=batch, m=s, n=n, k=k, dtype=scale.dtype, layout=layout)
                    cases += [BenchCase(work=work)] if scale.fits(work, 0.1) else []
    return cases


def _sustained(scale: Scale, chosen: Sequence[BenchCase], count: int = 6) -> list[BenchCase]:
    """Some of the largest chosen GEMMs again, timed after more than a second of the same work."""
    heavy = sorted(chosen, key=lambda case: -float(case.work.flops))[: 4 * count : 4]
    return [replace(case, mode=ClockMode.SUSTAINED) for case in heavy]


def _alignment(scale: Scale) -> Iterator[BenchCase]:
    """Each of m, n and k from odd to a multiple of 128, the other two well aligned, in every layout."""
    base = 512 if scale.small else 4096
    lengths = sorted({base + step for step in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 127, 120)})
    groups = []
    for layout in Layout:
        for axis in ("n", "k", "m"):
            groups.append([_product(scale, layout, **{**dict.fromkeys("mnk", base), axis: x}) for x in lengths])
    return _dealt(*groups)


def _product(scale: Scale, layout: Layout, *, m: int, n: int, k: int) -> BenchCase:
    return BenchCase(work=Gemm(name="gemm", m=m, n=n, k=k, dtype=scale.dtype, layout=layout))


def _at_random(scale: Scale) -> Iterator[BenchCase]:
    """GEMMs whose sizes are drawn evenly by logarithm, not from a grid: half of n and k are multiples of 8, a quarter
    of 64. Many pairs do work within 2% of each other."""
    draw = np.random.default_rng(20261127)
    longest = (1024, 2048, 2048) if scale.small else (16384, 16384, 16384)
    sizes = np.exp(draw.uniform(np.log((1, 128, 128)), np.log(longest), (400, 3))).astype(np.int64)
    sizes[:, 1:] -= sizes[:, 1:] % draw.choice((1, 8, 8, 64), (400, 2))
    for i, (m, n, k) in enumerate(sizes.tolist()):
        case = _product(scale, _layout(i, m, scale.dtype), m=m, n=n, k=k)
        if scale.fits(case.work, 0.03) and case.work.flops >= LEAST_FLOPS:
            yield case


def _waves(scale: Scale) -> Iterator[BenchCase]:
    """Columns in steps of 64 at fixed rows, so that tiles fill one wave and start the next."""
    if scale.small:
        heights, steps, k = (64, 128, 256), range(16, 1025, 16), 512
    else:
        heights, steps, k = (2304, 1024, 4096), range(64, 64 * 97, 64), 4096
    return _dealt(*([_product(scale, Layout.TN, m=m, n=n, k=k) for n in steps] for m in heights))


# ------------------------------------------------------------------------------------------- layers and models


def _layer(scale: Scale) -> Iterator[BenchCase]:
    """Whole layers at several widths, forward and training, and training steps of a small stack with its head."""
    widths = ((256, 4), (512, 8), (768, 12)) if scale.small else ((1024, 16), (2048, 16), (4096, 32), (8192, 64))
    batch, seq = (1, 256) if scale.small else (4, 2048)
    runs = [
        StackRun(
            name=f"layer-h{h}",
            hidden_size=h,
            num_heads=a,
            num_kv_heads=a if h < 4096 else 8,
            head_dim=h // a,
            ffn_hidden_size=4 * h if h < 4096 else 7 * h // 2,
            gated=h >= 4096,
            batch=batch,
            seq_len=seq,
            part=part,
            dtype=scale.dtype,
        )
        for h, a in widths
        for part in (StepPart.FORWARD, StepPart.TRAIN)
    ]
    h = widths[0][0]
    stack = replace(runs[0], name=f"stack-h{h}", num_layers=4, vocab_size=50304 if not scale.small else 8192)
    runs += [replace(stack, part=part) for part in (StepPart.FORWARD, StepPart.TRAIN, StepPart.STEP)]
    runs.append(replace(stack, part=StepPart.DECODE, context_len=seq))
    return (BenchCase(work=run) for run in runs)


def model_cases(graph: OperatorGraph) -> list[BenchCase]:
    """Every distinct operator that ``sartor estimate`` prices, without collectives (they need several devices)."""
    singles: Iterable[BenchCase] = (
        BenchCase(work=replace(op, name="model", count=1), tags={"name": op.name})
        for op in graph.operators
        if not isinstance(op, Collective)
    )
    return list({case.key: case for case in singles}.values())
