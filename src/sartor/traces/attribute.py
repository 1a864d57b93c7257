"""Where the time of a traced step went: parts that add up to it exactly, and the avoidable ones by their gain."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import Z80
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm
from sartor.step.measured_run import JobKind, PartKind, PricedKernels, Stretch, TracePart
from sartor.traces.kernel_trace import (
    KINDS,
    KernelKind,
    KernelTrace,
    kernel_kinds,
    short_kernel,
)
from sartor.traces.patterns import (
    EAGER,
    ChainKind,
    UnfusedAttention,
    experts_in_a_loop,
    recomputed_kernels,
    unfused_attention,
    unfused_chains,
)
from sartor.traces.priced import (
    BACKWARD,
    EAGER_S,
    WIDTHS,
    collective_of,
    collective_seconds,
    fused_seconds,
    job_kind,
    priced_kernels,
)
from sartor.traces.timeline import FUSED_CLIPPING, FUSED_OPTIMIZER, TraceTimeline, idle_parts, timeline, typical_step
from sartor.units import BoolArray, FloatArray, IntArray, format_bytes, format_seconds, format_share

SLOW_LINK = 1.5
"""Ratio of measured to predicted collective time above which the link is called slow; predictions on known fabrics are
less far off."""
LATE = 10.0
"""Above this ratio one rank's collectives more likely wait for a late rank: links seldom lose so much."""
STRAGGLES = 0.02
"""A rank is a straggler if it computes longer than the median rank by this share of the step."""
ALIKE = 1.03
"""If nine of ten shapes take this many times their predicted time, the device is slow rather than a shape."""
BETWEEN_MACHINES = 0.21
"""Standard deviation of ln(measured / predicted) that all GEMMs of a machine share: published sustained rates of 12
GPUs are 17.1% off in the mean (docs/accuracy.md), and a normal error's mean is 0.8 of its deviation."""
CLOCK = (
    "perhaps the clock, a power cap, other work on the device or an older library (nvidia-smi -q -d CLOCK,PERFORMANCE "
    "tells the first two): the trace does not say"
)
"""A guess, named behind every loss that the trace shows."""
KNOWN = 0.5
"""MFU is stated only if matrix multiplications and attention of known sizes take this share of the time of all, and of
convolutions, whose FLOPs are not counted."""
LOSS = 0.025
"""Losses below this share of the step are not reported."""
STAGES = re.compile(r"\b(?:i?send|i?recv)_?\b|(?:^|\W)(?:batch_isend_irecv|coalesced)\b", re.IGNORECASE)
"""Operators of pipeline parallelism: a send, a receive, or a group of several (all-to-all has the same kernels)."""
SHOWN = 4
"""Number of operators named as evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """A trace's mean steady step, divided into parts."""

    step_s: float
    num_steps: int
    span_s: float
    parts: tuple[TracePart, ...]
    """Largest first; their seconds add up to ``step_s``."""
    flops: float
    """FLOPs per step of the matrix multiplications and attention of known sizes."""
    mfu: float
    """Share of the step that these would take at the peak rate of their data types; NaN if it decodes."""
    priced: tuple[PricedKernels, ...]
    """Matrix multiplications and attention of known sizes, with their predicted times."""
    priced_share: float
    """Their share of the time of all matrix multiplications and attention."""
    median_ratio: float
    """Median of measured over predicted time of ``priced``."""
    stretches: tuple[Stretch, ...]
    """The kernels of the steady step nearest the mean, over time."""
    job: JobKind


def attribute(
    trace: KernelTrace,
    gpu: Gpu | None = None,
    ranks: Sequence[KernelTrace] = (),
    cluster: Cluster | None = None,
    calibration: Calibration | None = None,
) -> Attributed:
    """Divide the steady steps of one rank into parts. ``ranks`` are the other ranks' traces; ``gpu`` prices operators
    (None: nothing is priced), ``cluster`` collectives; ``calibration`` is the run's own, if known."""
    kinds = kernel_kinds(trace)
    clips = _clipping_loop(trace, kinds)
    kinds[clips] = KINDS.index(KernelKind.OPTIMIZER)
    line = timeline(trace, kinds)
    job = job_kind(trace, kinds, line)
    again = recomputed_kernels(trace, kinds)
    patterns = tuple(
        pattern  # in the steady steps and not recomputed
        for pattern in unfused_attention(trace, kinds)
        if line.owned_s[pattern.kernels].any() and not again[pattern.kernels].any()
    )
    in_attention = np.zeros(kinds.size, dtype=bool)
    for pattern in patterns:
        in_attention[pattern.kernels] = True
    priced = priced_kernels(trace, kinds, line, again, in_attention, gpu, calibration) if gpu else ()
    fused_s = fused_seconds(trace, patterns, gpu, calibration) if gpu else np.full(len(patterns), np.nan)
    step_s = line.span_s / line.num_steps
    seen = _Seen(
        trace=trace,
        kinds=kinds,
        line=line,
        again=again,
        clips=clips,
        priced=priced,
        patterns=patterns,
        in_attention=in_attention,
        fused_s=fused_s,
        gpu=gpu,
        infers=job.work == "inference",
    )
    idle = idle_parts(trace, line, clips, engine=job.tokens > 0)
    if experts_in_a_loop(trace, kinds):
        idle = tuple(replace(part, fix=GROUPED) if part.kind in BETWEEN_EXPERTS and part.fix else part for part in idle)
    parts = [*_compute(seen), *_communication(seen, ranks, gpu, cluster), *idle]
    read_bytes = _read_bytes(seen, gpu) if gpu and seen.infers else 0.0
    of_products = float(line.owned_s[_of(kinds, KernelKind.MATMUL, KernelKind.ATTENTION) & ~again].sum())
    convolved = float(line.owned_s[_of(kinds, KernelKind.CONVOLUTION) & ~again].sum())
    took = sum(kernel.seconds for kernel in priced)
    is_priced = took > KNOWN * (of_products + convolved)
    return Attributed(
        step_s=step_s,
        num_steps=line.num_steps,
        span_s=line.span_s,
        parts=tuple(sorted(parts, key=lambda part: -part.seconds)),
        flops=sum(kernel.flops for kernel in priced) / line.num_steps,
        mfu=_ideal_s(priced, gpu) / line.span_s if gpu and is_priced and not read_bytes else float("nan"),
        priced=priced,
        priced_share=took / of_products if of_products else 0.0,
        median_ratio=_median_ratio(priced),
        stretches=typical_step(trace, kinds, line),
        job=replace(job, read_bytes=read_bytes),
    )


def _ideal_s(priced: Sequence[PricedKernels], gpu: Gpu) -> float:
    """Seconds of all of them at the peak rate of their data types."""
    return sum(kernel.flops / peak_flops_per_s(gpu, kernel.operator.dtype) for kernel in priced)


def _read_bytes(seen: _Seen, gpu: Gpu) -> float:
    """Bytes of weights that a step's matrix multiplications read, if most of their time goes to that; else 0."""
    read, bound_s, took_s = 0.0, 0.0, 0.0
    for kernel in seen.alone:
        if not isinstance(operator := kernel.operator, Gemm):
            continue
        weights = kernel.count * float(operator.n * operator.k * operator.batch) * operator.dtype.bytes
        is_bound = weights / gpu.hbm_bytes_per_s > kernel.flops / peak_flops_per_s(gpu, operator.dtype)
        read, took_s = read + weights, took_s + kernel.seconds
        bound_s += kernel.seconds if is_bound else 0.0
    return read / seen.line.num_steps if bound_s > took_s / 2 else 0.0


BETWEEN_EXPERTS = (PartKind.HOST_GAP, PartKind.KERNEL_START)
GROUPED = (
    "experts run one after another, each on its own rows: one grouped product for all (torch._grouped_mm, MegaBlocks, "
    "Transformer Engine's GroupedLinear)"
)


def losses(attributed: Attributed) -> tuple[TracePart, ...]:
    """Avoidable parts, the largest gain first and guesses last; those worth less than ``LOSS`` are left out. What one
    change would gain in several parts is said once."""
    worth = [part for part in attributed.parts if part.fix and part.gain_s >= LOSS * attributed.step_s]
    ranked = sorted(worth, key=lambda part: (part.fix == CLOCK, -part.gain_s))
    first = {part.fix: part.kind for part in reversed(ranked)}
    same = {fix: f"the same change as for {kind.value.replace('_', ' ')}" for fix, kind in first.items()}
    return tuple(part if part.kind is first[part.fix] else replace(part, fix=same[part.fix]) for part in ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A trace with what is known about its kernels."""

    trace: KernelTrace
    kinds: IntArray
    line: TraceTimeline
    again: BoolArray
    """Kernels that recompute forward."""
    clips: BoolArray
    """Kernels of a loop that clips gradients."""
    priced: tuple[PricedKernels, ...]
    patterns: tuple[UnfusedAttention, ...]
    in_attention: BoolArray
    """Kernels of these patterns."""
    fused_s: FloatArray
    """Predicted seconds of a fused kernel in place of each; NaN if not known."""
    gpu: Gpu | None
    infers: bool

    @property
    def alone(self) -> tuple[PricedKernels, ...]:
        """Priced kernels that are judged by their own size."""
        return tuple(kernel for kernel in self.priced if not kernel.in_attention)

    def seconds(self, where: BoolArray) -> float:
        """Seconds per step that the selected kernels own."""
        return float(self.line.owned_s[where].sum()) / self.line.num_steps

    @property
    def step_s(self) -> float:
        return self.line.span_s / self.line.num_steps


def _lost(kind: PartKind, seconds: float, evidence: Iterable[str], fix: str, gain_s: float | None = None) -> TracePart:
    """A part with what to change, all of which is saved if no gain is given; nothing is said of one without seconds."""
    gain_s = seconds if gain_s is None else max(gain_s, 0.0)
    evidence, fix = tuple(evidence) if seconds else (), fix if gain_s else ""
    return TracePart(kind=kind, seconds=seconds, evidence=evidence, fix=fix, gain_s=gain_s)


def _of(kinds: IntArray, *kinds_wanted: KernelKind) -> BoolArray:
    mask: BoolArray = np.isin(kinds, [KINDS.index(kind) for kind in kinds_wanted])
    return mask


def _median_ratio(priced: Sequence[PricedKernels]) -> float:
    ratios = [kernel.seconds / kernel.predicted_s for kernel in priced for _ in range(kernel.count)]
    return float(np.median(ratios)) if ratios else float("nan")


# ----------------------------------------------------------------------------------------------------------- compute

PLAIN = {
    KernelKind.CONVOLUTION: PartKind.CONVOLUTION,
    KernelKind.COPY: PartKind.COPIES,
    KernelKind.UNKNOWN: PartKind.UNKNOWN,
}


def _compute(seen: _Seen) -> Iterator[TracePart]:
    """Matrix multiplications and attention at their predicted time, the excess over it, and everything else by kind."""
    count = seen.line.num_steps
    ragged = sum(max(kernel.seconds - kernel.padded_s, 0.0) for kernel in seen.alone if kernel.padded) / count
    beyond = {True: 0.0, False: 0.0}  # True: matrix multiplications, False: attention
    for kernel in seen.alone:
        if not kernel.padded:
            beyond[isinstance(kernel.operator, Gemm)] += max(kernel.seconds - kernel.predicted_s, 0.0) / count
    plain = ~seen.again & ~seen.in_attention
    matmul = seen.seconds(_of(seen.kinds, KernelKind.MATMUL) & plain)
    attention = seen.seconds(_of(seen.kinds, KernelKind.ATTENTION) & plain)
    unfilled = sum(min(kernel.unfilled_s, kernel.seconds) for kernel in seen.alone if not kernel.padded) / count
    unfused = _unfused_attention(seen)
    yield _products(seen, matmul - beyond[True] - ragged - unfilled)
    yield TracePart(kind=PartKind.TILES, seconds=unfilled, evidence=_unfilled(seen))
    fused = seen.seconds(seen.in_attention) - unfused.seconds
    yield TracePart(kind=PartKind.ATTENTION, seconds=attention - beyond[False] + fused)
    yield unfused
    yield _slow(seen, sum(beyond.values()))
    yield _lost(PartKind.SHAPE, ragged, _paddable(seen), "pad the size (sartor lint names it and what it costs)")
    yield _recompute(seen)
    yield from _memory_bound(seen)
    yield _optimizer(seen)
    yield _embedding(seen)
    copied, paged = seen.trace.named(HOST_COPY), seen.trace.named(re.compile("Pageable"))
    for kind, part in PLAIN.items():
        where = _of(seen.kinds, kind) & ~seen.again & ~seen.in_attention
        gain_s = seen.seconds(where & copied)
        fix = COPIES[seen.seconds(where & copied & paged) > gain_s / 2] if gain_s else ""
        fix = MORE_THAN_REST if _copies_last(seen, where & copied) > seen.step_s - gain_s else fix
        yield _lost(part, seen.seconds(where), _largest(seen, where), fix, gain_s)


def _copies_last(seen: _Seen, where: BoolArray) -> float:
    """Seconds per step of copies on the stream that has most of them; computing beside them does not shorten these."""
    trace = seen.trace
    inside = where & (trace.end_s > seen.line.begin_s) & (trace.begin_s < seen.line.end_s)
    took_s = np.where(inside, trace.end_s - trace.begin_s, 0.0)
    return max(float(took_s[trace.stream == stream].sum()) for stream in np.unique(trace.stream)) / seen.line.num_steps


HOST_COPY = re.compile(r"Memcpy (?:HtoD|DtoH)|Copy(?:HostToDevice|DeviceToHost)")
COPIES = {
    True: "copy from pinned memory (pin_memory=True) with non_blocking=True, a step ahead",
    False: "copy on a stream of its own while kernels run, or leave an optimizer's states on the device",
}
"""What to do about copies between host and device under which nothing runs: of pageable memory, and of pinned."""
MORE_THAN_REST = (
    "keep on the device what is copied, or copy less: the copies take longer than all that could run beside them, so "
    "that overlap cannot hide them"
)


def _products(seen: _Seen, seconds: float) -> TracePart:
    """Matrix multiplications at their predicted time; those in fp32 or TF32 could run in a faster type."""
    gemms = [kernel for kernel in seen.alone if isinstance(kernel.operator, Gemm)]
    took = {
        dtype: sum(kernel.seconds for kernel in gemms if kernel.operator.dtype is dtype) / seen.line.num_steps
        for dtype in FASTER
    }
    slowest = max(took, key=lambda dtype: took[dtype])
    faster, words, fix = FASTER[slowest]
    gpu = seen.gpu
    times = peak_flops_per_s(gpu, faster) / peak_flops_per_s(gpu, slowest) if gpu and took[slowest] else 1.0
    evidence = [f"{words}: {format_seconds(took[slowest])} per step"] if times > 1 else []
    return _lost(PartKind.MATMUL, seconds, evidence, fix, min(took[slowest] * (1 - 1 / times), seconds))


FASTER = {
    DType.FP32: (
        DType.TF32,
        "fp32 without tensor cores",
        "train in bf16 (torch.autocast), or at least torch.set_float32_matmul_precision('high') for TF32",
    ),
    DType.TF32: (DType.BF16, "TF32", "train in bf16 (torch.autocast)"),
}
"""Types that a faster one could replace: that one, what they are, and how to change."""
FUSED_ATTENTION = (
    "use a fused attention kernel: torch's scaled_dot_product_attention, FlashAttention, attn_implementation='sdpa' of "
    "transformers"
)


def _unfused_attention(seen: _Seen) -> TracePart:
    """Attention of single operators beyond a fused kernel, or beyond its own products where their sizes are not
    known."""
    count, lost = seen.line.num_steps, 0.0
    between = total = 0.0
    is_product = _of(seen.kinds, KernelKind.MATMUL)
    for pattern, fused_s in zip(seen.patterns, seen.fused_s.tolist(), strict=True):
        owned = seen.line.owned_s[pattern.kernels]
        products = float(owned[is_product[pattern.kernels]].sum())
        total += float(owned.sum())
        between += float(owned.sum()) - products
        lost += max(float(owned.sum()) - (products if np.isnan(fused_s) else fused_s), 0.0)
    evidence = [
        f"product, softmax, product {_times(max(len(seen.patterns), 1) / count)} per step: "
        f"{format_seconds(total / count)}, of which {format_seconds(between / count)} outside the products"
    ]
    if np.isfinite(seen.fused_s).all():
        evidence.append(f"a fused kernel is predicted to take {format_seconds(float(seen.fused_s.sum()) / count)}")
    return _lost(PartKind.UNFUSED_ATTENTION, lost / count, evidence, FUSED_ATTENTION)


def _unfilled(seen: _Seen) -> tuple[str, ...]:
    """Not a reported loss: `sartor advise` tells which sizes fill tiles and waves better."""
    worst = sorted((kernel for kernel in seen.alone if not kernel.padded), key=lambda kernel: -kernel.unfilled_s)
    return tuple(
        f"{kernel.name}: {format_share(kernel.unfilled_s / kernel.predicted_s)} of its tiles and waves are empty"
        for kernel in worst[:SHOWN]
        if kernel.unfilled_s > 0.01 * kernel.predicted_s
    )


def _paddable(seen: _Seen) -> tuple[str, ...]:
    return tuple(
        f"{kernel.name}: {format_seconds(kernel.seconds / kernel.count)}, padded to {kernel.padded} predicted "
        f"{format_seconds(kernel.padded_s / kernel.count)}"
        for kernel in seen.alone
        if kernel.padded and kernel.padded_s < kernel.seconds
    )[:SHOWN]


def _slow(seen: _Seen, seconds: float) -> TracePart:
    """Excess over predicted time. If nearly all shapes are slow by more than machines differ by, the device may be;
    else single kernels are: those beyond their own interval around the pace of all."""
    kernels = [kernel for kernel in seen.alone if not kernel.padded]
    ratios = np.array([kernel.seconds / kernel.predicted_s for kernel in kernels] or [1.0])
    sigmas = np.array([kernel.log_sigma for kernel in kernels] or [0.0])
    pace = max(float(np.median(ratios)), 1.0)
    worst = sorted(kernels, key=lambda kernel: kernel.predicted_s - kernel.seconds)[:SHOWN]
    evidence = tuple(
        f"{kernel.name}: {format_seconds(kernel.seconds / kernel.count)}, predicted "
        f"{format_seconds(kernel.predicted_s / kernel.count)} ({_times(kernel.count / seen.line.num_steps)} per step)"
        for kernel in worst
        if kernel.seconds > kernel.predicted_s
    )
    if alike := len(kernels) >= 3 and float(np.quantile(ratios, 0.1)) >= ALIKE:
        evidence = (f"nearly all shapes take longer, by {format_share(pace - 1)} at the median", *evidence)
    if alike and pace > math.exp(Z80 * math.hypot(BETWEEN_MACHINES, float(np.median(sigmas)))):
        return _lost(PartKind.SLOW_COMPUTE, seconds, evidence, CLOCK)
    predicted_s = np.array([kernel.predicted_s for kernel in kernels] or [0.0])
    beyond = np.where(ratios > pace * np.exp(Z80 * sigmas), (ratios - pace) * predicted_s, 0.0)
    gain_s = float(beyond.sum()) / seen.line.num_steps
    fix = "look at these kernels: library version, layout, data type"
    return _lost(PartKind.SLOW_COMPUTE, seconds, evidence, fix, gain_s)


CHAINS = {
    ChainKind.LOSS: (
        PartKind.UNFUSED_LOSS,
        "fuse cross-entropy: torch.compile of the loss, or Liger's fused linear cross-entropy, which keeps no logits",
    ),
    ChainKind.CASTS: (
        PartKind.CASTS,
        "keep weights and activations in one data type: cast weights once a step (FSDP's mixed precision, not autocast "
        "per microbatch), or let the kernels before write the type that is needed",
    ),
    ChainKind.LAYOUT: (
        PartKind.LAYOUT,
        "keep one layout from product to product: matrix multiplications read transposed views as they are, so drop "
        ".contiguous(), .transpose() and .permute() copies between them (convolutions: channels_last throughout)",
    ),
    ChainKind.OTHER: (
        PartKind.UNFUSED,
        "fuse them: torch.compile, or the trainer's fused norm, rotary, activation and loss",
    ),
}
IN_INFERENCE = {
    ChainKind.CASTS: "keep weights and activations in one data type: load the weights in that of the activations",
    ChainKind.OTHER: "fuse them: torch.compile, or an engine with fused norm, rotary and activation (vLLM, SGLang)",
}
"""What fuses or drops them where nothing is trained."""


def _memory_bound(seen: _Seen) -> Iterator[TracePart]:
    """Time that fused kernels would take, and the excess over it by what the chains are for."""
    where = _of(seen.kinds, KernelKind.MEMORY_BOUND) & ~seen.again & ~seen.in_attention
    tables = unfused_chains(seen.trace, seen.kinds, np.where(where, seen.line.owned_s, 0.0))
    count, rest = seen.line.num_steps, seen.seconds(where)
    for kind, chains in tables.items():
        lost = sum(seconds for _, seconds in chains.values()) / count
        words = (
            f"{chain_words} ({_times(often / count)}): {format_seconds(seconds / count)}"
            for chain_words, (often, seconds) in chains.items()
        )
        part, fix = CHAINS[kind]
        fix = IN_INFERENCE.get(kind, fix) if seen.infers else fix
        yield _lost(part, lost, islice(words, SHOWN), fix)
        rest -= lost
    yield TracePart(kind=PartKind.MEMORY_BOUND, seconds=rest, evidence=_largest(seen, where))


def _times(count: float) -> str:
    return f"{count:.0f} times" if round(count) > 1 else "once" if round(count) else f"once in {1 / count:.0f} steps"


LOOP = 100
"""From this many kernels of single operators per step on, an optimizer is a loop over parameters."""
LAST = re.compile(r"addcdiv")
ADAM_PASSES = 7 / 4
"""Fused Adam reads weight, gradient and two moments and writes three; its last single operator, addcdiv, passes over
four tensors."""


def _optimizer(seen: _Seen) -> TracePart:
    """The optimizer; if it launches one kernel per operator and parameter, with what a fused one would save."""
    where = _of(seen.kinds, KernelKind.OPTIMIZER) & ~seen.again
    seconds = seen.seconds(where)
    single = where & seen.trace.named(EAGER) & ~seen.clips
    often = int((single & (seen.line.owned_s > 0)).sum()) / seen.line.num_steps
    last = single & seen.trace.launched_by(LAST)
    if often < LOOP or not last.any():
        gain = float(np.minimum(seen.line.owned_s[seen.clips], EAGER_S).sum()) / seen.line.num_steps
        return _lost(PartKind.OPTIMIZER, seconds, _largest(seen, where), FUSED_CLIPPING, gain)
    gain = seen.seconds(single) - ADAM_PASSES * seen.seconds(last)
    words = f"{often:,.0f} kernels per step, one for each operator of each parameter: {format_seconds(seconds)}"
    return _lost(PartKind.OPTIMIZER, seconds, (words, *_largest(seen, where)[:2]), FUSED_OPTIMIZER, gain)


NORM = re.compile(r"vector_norm|^ ?aten::(?:frobenius_)?norm|NormTwoOps|NormOps", re.IGNORECASE)
SCALE = re.compile(r"aten::mul_?$|MulFunctor")
CLIPPING = re.compile(r"(?:n[ue]{0,4}){100,}e{0,8}u*")
"""Norms, then products, of many gradients; e are other memory-bound kernels and copies."""


def _clipping_loop(trace: KernelTrace, kinds: IntArray) -> BoolArray:
    """Mask of kernels that clip gradients parameter by parameter (``foreach=False``)."""
    loop = np.zeros(kinds.size, dtype=bool)
    light = np.isin(kinds, [KINDS.index(kind) for kind in (KernelKind.MEMORY_BOUND, KernelKind.COPY)])
    norms, scales = (trace.named(pattern) | trace.launched_by(pattern) for pattern in (NORM, SCALE))
    letters = np.select([light & norms, light & scales, light], ["n", "u", "e"], "x")
    for stream in np.unique(trace.stream):
        on = np.flatnonzero(trace.stream == stream)
        for match in CLIPPING.finditer("".join(letters[on].tolist())):
            loop[on[match.start() : match.end()]] = True
    return loop


SCATTERS = re.compile(r"embedding\w*_backward|index_put", re.IGNORECASE)
REPEATED_ROWS = (
    "frequent tokens hold the embedding's backward up, as it adds the gradients of one row in turn: padding_idx for "
    "padding, F.embedding in place of weight[ids] (whose backward is index_put), or a fused backward (FBGEMM)"
)


def _embedding(seen: _Seen) -> TracePart:
    """Embedding tables; backward loses if it takes twice what its bytes need (without sizes: three forwards)."""
    where = _of(seen.kinds, KernelKind.EMBEDDING) & ~seen.again & ~seen.in_attention
    backward = where & seen.trace.launched_by(SCATTERS)
    seconds, took, evidence = seen.seconds(where), seen.seconds(backward), _largest(seen, where)
    operators = [seen.trace.operators[i] for i in np.unique(seen.trace.operator[backward & (seen.line.owned_s > 0)])]
    sizes = (max(map(math.prod, op.dims), default=0) * WIDTHS.get(op.dtype.rpartition("::")[2], 4) for op in operators)
    moved = 3 * sum(sizes)
    needed_s = 3 * (seconds - took)
    if moved and seen.gpu:
        needed_s = moved / seen.gpu.hbm_bytes_per_s / seen.line.num_steps
        words = f"must move {format_bytes(moved / seen.line.num_steps)}, {format_seconds(needed_s)} at full bandwidth"
        evidence = (f"backward takes {format_seconds(took)} and {words}", *evidence)
    gain_s = took - needed_s if 0 < needed_s < took / 2 else 0.0
    return _lost(PartKind.EMBEDDING, seconds, evidence, REPEATED_ROWS, gain_s)


FULL = 0.9
"""Share of the device's memory from which on recomputation is taken to be needed."""


def _recompute(seen: _Seen) -> TracePart:
    seconds = seen.seconds(seen.again)
    often = int((seen.again & _of(seen.kinds, KernelKind.ATTENTION)).sum()) / seen.line.num_steps
    evidence = [f"{often:.0f} layers run forward again per step"]
    reserved, memory = seen.trace.reserved_bytes, seen.trace.memory_bytes
    fix = "recompute fewer layers, if memory allows (sartor plan says how many)"
    if reserved and memory:
        evidence.append(f"peak memory: {format_bytes(reserved)} of {format_bytes(memory)} reserved")
        free = f"{format_bytes(memory - reserved)} of memory are free"
        fix = f"recompute fewer layers: {free} (sartor plan says how many)" if reserved < FULL * memory else ""
    return _lost(PartKind.RECOMPUTE, seconds, evidence, fix, seconds if fix else 0.0)


def _most(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])[:SHOWN]


def _largest(seen: _Seen, where: BoolArray) -> tuple[str, ...]:
    """The kernels that take most time in a part."""
    took: defaultdict[str, float] = defaultdict(float)
    for i in np.flatnonzero(where & (seen.line.owned_s > 0)):
        took[short_kernel(seen.trace.names[int(seen.trace.name[i])])] += float(seen.line.owned_s[i])
    return tuple(f"{name}: {format_seconds(s / seen.line.num_steps)}" for name, s in _most(took))


# ----------------------------------------------------------------------------------------------------- communication


def _communication(
    seen: _Seen, ranks: Sequence[KernelTrace], gpu: Gpu | None, cluster: Cluster | None
) -> Iterator[TracePart]:
    """Exposed communication: waiting for a pipeline stage, waiting for a straggler, the excess of slow links, and the
    rest, which could gain the time of collectives that run alone."""
    predicted_s = np.full(seen.trace.name.size, np.nan)
    index = np.flatnonzero(_of(seen.kinds, KernelKind.COLLECTIVE))
    if gpu is not None:
        predicted_s[index] = collective_seconds(seen.trace, index, gpu, cluster)
    stages = _of(seen.kinds, KernelKind.COLLECTIVE) & seen.trace.launched_by(STAGES)
    waiting = _bubble(seen, stages, predicted_s)
    yield waiting
    where = _of(seen.kinds, KernelKind.COLLECTIVE) & ~stages
    exposed = seen.seconds(where)
    waited, straggler = _straggler(seen, ranks)
    waited = min(waited, exposed)
    fix = f"{''.join(straggler)}: compare its clock, power and data with the others'"
    yield _lost(PartKind.STRAGGLER, waited, straggler, fix)
    ratio, link_words = _link(seen, where, ranks, predicted_s)
    slow = (exposed - waited) * (1 - 1 / ratio) if ratio > SLOW_LINK else 0.0
    fabric = "look at the fabric: a link down, a wrong interface, other traffic"
    advice = fabric if ranks else f"{fabric} (or a rank arrives late: give the traces of all ranks to find out)"
    if not ranks and ratio > LATE:
        advice = f"give the traces of all ranks: a rank that arrives late is likelier than links so slow; else {fabric}"
    count, repeated_s = _each_microbatch(seen, where)
    once = f"{ONCE.format(count)}; " if repeated_s else ""
    yield _lost(PartKind.SLOW_LINK, slow, link_words, f"{once}{advice}")
    serial = min(_serial(seen, where), exposed - waited - slow)
    rest = exposed - waited - slow + seen.seconds(stages) - waiting.seconds
    hint = _overlap(seen, where)
    bucketed_s = _in_buckets(seen, where)
    if bucketed_s > max(serial, 0.0):
        serial = min(bucketed_s, exposed - waited - slow)
        hint = f"reduce gradients in buckets while backward runs, not all at once behind it: {hint}"
    evidence = _by_collective(seen, predicted_s)
    small_s, words = _small_messages(seen, where)
    if words:
        serial, hint = max(serial, min(small_s, exposed - waited - slow)), words
    if repeated_s:
        serial = max(serial, min(repeated_s * (1 - 1 / count), exposed - waited - slow))
        evidence = (*evidence, f"the same reductions in each of {count} microbatches: {format_seconds(repeated_s)}")
    if (stream := _on_compute_stream(seen, where)) is not None:
        evidence = (*evidence, f"it runs on stream {stream}, that of compute, so nothing can run beside it")
        hint = "give communication a stream of its own (async_op=True), then overlap it with compute"
    yield _lost(PartKind.COMMUNICATION, rest, evidence, f"{once}{hint}", serial)


SMALL_MESSAGE, MANY = 2**20, 32
"""Bytes below which a message takes as long as its latency, and how many of them a step may have."""


def _small_messages(seen: _Seen, where: BoolArray) -> tuple[float, str]:
    """Exposed seconds per step that small messages would save if sent together, and how; none unless they take most."""
    took: defaultdict[str, list[float]] = defaultdict(list)
    for i in np.flatnonzero(where & (seen.line.owned_s > 0) & (seen.trace.operator >= 0)).tolist():
        operator = seen.trace.operators[int(seen.trace.operator[i])]
        if 0 < operator.elements * WIDTHS.get(operator.dtype.rpartition("::")[2], 0) < SMALL_MESSAGE:
            took[_collective_words(seen.trace, i)].append(float(seen.line.owned_s[i]))
    words, times = max(took.items(), key=lambda item: sum(item[1]), default=("", [0.0]))
    often, small_s = len(times) / seen.line.num_steps, sum(times) / seen.line.num_steps
    if often < MANY or small_s < seen.seconds(where) / 2:
        return 0.0, ""
    buffers = "DistributedDataParallel(broadcast_buffers=False), or " if "broadcast" in words.lower() else ""
    fix = f"{buffers}coalesce them into one flat tensor (larger buckets: bucket_cap_mb)"
    return small_s * (1 - 1 / often), f"{often:,.0f} {words} per step send less than 1 MiB each: {fix}"


ONCE = (
    "reduce gradients once per optimizer step, not in each of its {} microbatches: no_sync() of DDP, "
    "set_requires_gradient_sync(False) of FSDP, where whole gradients fit in memory"
)


def _each_microbatch(seen: _Seen, where: BoolArray) -> tuple[int, float]:
    """Microbatches of a step that reduce the same sizes (not those of forward) and the exposed seconds of that."""
    trace, often, lost = seen.trace, 1, 0.0
    at_s = np.where(np.isnan(trace.launched_s), trace.begin_s, trace.launched_s)
    backward = trace.named(BACKWARD) | trace.launched_by(BACKWARD)
    starts = _of(seen.kinds, KernelKind.EMBEDDING) & ~backward
    starts = starts if starts.any() else _of(seen.kinds, KernelKind.ATTENTION) & ~backward & ~seen.again
    reduces = where & trace.launched_by(re.compile("reduce"))
    for step in np.unique(trace.step):
        index = np.flatnonzero((trace.step == step) & (starts | backward | reduces))
        parts, forward, ahead = [defaultdict[object, float](float)], set[object](), False
        for i in index[np.argsort(at_s[index], kind="stable")].tolist():
            if reduces[i]:
                key = _collective_words(trace, i), trace.operators[int(trace.operator[i])].elements
                parts[-1][key] += float(seen.line.owned_s[i])
                forward |= {key} if ahead else set()
            elif starts[i] != ahead:
                ahead = not ahead
                parts += [defaultdict(float)] * ahead
        reduced = [part for part in parts[1:] if part.keys() - forward]
        if len(reduced) > 1 and (same := set.intersection(*map(set, reduced)) - forward):
            often, lost = len(reduced), lost + sum(part[key] for part in reduced for key in same)
    return often, lost / seen.line.num_steps


BUCKET = 25 * 2**20
"""Bytes of DistributedDataParallel's buckets (bucket_cap_mb), the last of which nothing can hide."""


def _in_buckets(seen: _Seen, where: BoolArray) -> float:
    """Exposed seconds per step of reductions of most of a step's gradients at once, but for the share of a bucket."""
    bytes_of: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for i in np.flatnonzero(_of(seen.kinds, KernelKind.COLLECTIVE)).tolist():
        op = collective_of(seen.trace, i)
        if op is not None and "reduce" in op.kind.value:
            bytes_of[int(seen.trace.step[i])].append((float(op.message_bytes), float(seen.line.owned_s[i]) * where[i]))
    lost = 0.0
    for reductions in bytes_of.values():
        size, owned_s = max(reductions)
        if size > max(BUCKET, sum(each for each, _ in reductions) / 2):
            lost += owned_s * (1 - BUCKET / size)
    return float(lost) / seen.line.num_steps


def _overlap(seen: _Seen, where: BoolArray) -> str:
    """What to do about exposed collectives: overlap those with no compute under them, or more of the costliest."""
    took: defaultdict[str, list[int]] = defaultdict(list)
    inside = (seen.trace.end_s > seen.line.begin_s) & (seen.trace.begin_s < seen.line.end_s)
    for i in np.flatnonzero(where & inside).tolist():
        took[_collective_words(seen.trace, i)].append(i)
    if not took:
        return ""
    words, kernels = max(took.items(), key=lambda item: float(seen.line.owned_s[item[1]].sum()))
    computes = ~_of(seen.kinds, KernelKind.COLLECTIVE)
    begin_s, end_s = seen.trace.begin_s[computes], np.maximum.accumulate(np.append(-np.inf, seen.trace.end_s[computes]))
    edges_s = np.stack([np.clip(begin_s, end_s[:-1], None), np.maximum(begin_s, end_s[1:])])  # merged: none overlap
    computed_s = np.insert(np.cumsum(edges_s[1] - edges_s[0]), 0, 0.0)
    moments, done = edges_s.T.ravel(), np.stack([computed_s[:-1], computed_s[1:]]).T.ravel()
    left_s, right_s = seen.trace.begin_s[kernels], seen.trace.end_s[kernels]
    under = float((np.interp(right_s, moments, done) - np.interp(left_s, moments, done)).sum()) if moments.size else 0.0
    bare = 1 - under / max(float((right_s - left_s).sum()), 1e-12)
    if bare < BARE:
        return f"overlap more of {words}: {format_share(bare)} of its time has no compute under it"
    shards = " (FSDP: prefetch the next layer's weights)" if SHARDED.search(words) else ""
    return f"overlap {words} with compute, which nothing does now{shards}"


BARE = 0.99
"""Share of the time of collectives without compute under them from which on nothing overlaps them."""
SHARDED = re.compile(r"all_?gather|reduce_?scatter", re.IGNORECASE)
"""Collectives of sharded weights."""


def _on_compute_stream(seen: _Seen, where: BoolArray) -> int | None:
    """The stream of compute, if most exposed communication is on it too."""
    masks = (~_of(seen.kinds, KernelKind.COLLECTIVE, KernelKind.COPY), where)
    streams = np.unique(seen.trace.stream).tolist()
    took = {stream: [seen.seconds(mask & (seen.trace.stream == stream)) for mask in masks] for stream in streams}
    most: int = max(took, key=lambda stream: took[stream][0])
    return most if took[most][1] > seen.seconds(where) / 2 else None


def _bubble(seen: _Seen, stages: BoolArray, predicted_s: FloatArray) -> TracePart:
    """Exposed sends and receives beyond the predicted transfer time: waiting for the other stage."""
    index = np.flatnonzero(stages & (seen.line.owned_s > 0))
    owned = seen.line.owned_s[index]
    seconds = float(np.maximum(owned - np.nan_to_num(predicted_s[index]), 0.0).sum()) / seen.line.num_steps
    often = index.size / seen.line.num_steps
    words = f"{often:.0f} exposed sends and receives per step wait for another stage"
    fix = "more microbatches, interleaved stages or better balanced stages (sartor plan)"
    return _lost(PartKind.BUBBLE, seconds, [words], fix)


def _by_collective(seen: _Seen, predicted_s: FloatArray) -> tuple[str, ...]:
    """Exposed time by kind and group, compared with the predicted time where sizes are known."""
    took, whole, allowed = (defaultdict[str, float](float) for _ in range(3))
    for i in np.flatnonzero(_of(seen.kinds, KernelKind.COLLECTIVE) & (seen.line.owned_s > 0)):
        words = _collective_words(seen.trace, int(i))
        took[words] += float(seen.line.owned_s[i])
        if np.isfinite(predicted_s[i]):
            whole[words] += float(seen.trace.end_s[i] - seen.trace.begin_s[i])
            allowed[words] += float(predicted_s[i])
    return tuple(
        f"{words}: {format_seconds(s / seen.line.num_steps)}"
        + (f", {whole[words] / allowed[words]:.1f} times as long as the links need" if allowed[words] else "")
        for words, s in _most(took)
    )


def _collective_words(trace: KernelTrace, index: int) -> str:
    operator = trace.operators[int(trace.operator[index])] if trace.operator[index] >= 0 else None
    if operator is None or not operator.collective:
        return short_kernel(trace.names[int(trace.name[index])])
    return f"{operator.collective.strip('_')} of {operator.group_size or '?'} ranks"


def _straggler(seen: _Seen, ranks: Sequence[KernelTrace]) -> tuple[float, tuple[str, ...]]:
    """Seconds per step that the slowest rank computes beyond the median one."""
    if not ranks:
        return 0.0, ()
    busy = list[tuple[float, int | None]]()
    for rank_trace in (seen.trace, *ranks):
        kinds = kernel_kinds(rank_trace)
        line = timeline(rank_trace, kinds)
        computed_s = float(line.owned_s[~_of(kinds, KernelKind.COLLECTIVE)].sum()) / line.num_steps
        busy.append((computed_s, rank_trace.rank))
    *others, (longest, slowest) = sorted(busy, key=lambda each: each[0])
    middle = float(np.median([computed_s for computed_s, _ in others]))
    if longest - middle < STRAGGLES * seen.step_s:
        return 0.0, ()
    rest = "the median of the others" if len(others) > 1 else "the other"
    words = f"rank {slowest} computes {format_seconds(longest)} per step, {rest} {format_seconds(middle)}"
    return longest - middle, (words,)


def _link(
    seen: _Seen, where: BoolArray, ranks: Sequence[KernelTrace], predicted_s: FloatArray
) -> tuple[float, tuple[str, ...]]:
    """Measured over predicted seconds of collectives of known size, without waiting if all ranks are given."""
    index = np.flatnonzero(where & (seen.line.owned_s > 0) & np.isfinite(predicted_s) & (predicted_s > 0))
    if not index.size:
        return 1.0, ()
    count = seen.line.num_steps
    took = _least_durations(seen.trace, _of(seen.kinds, KernelKind.COLLECTIVE), ranks)[index]
    measured, predicted = float(took.sum()), float(predicted_s[index].sum())
    words = (
        f"{index.size / count:,.0f} exposed collectives per step take {format_seconds(measured / count)}, "
        f"{measured / predicted:.1f} times the {format_seconds(predicted / count)} that the links allow"
    )
    return measured / predicted, (words,)


def _least_durations(trace: KernelTrace, where: BoolArray, ranks: Sequence[KernelTrace]) -> FloatArray:
    """Duration of each kernel; for a collective, the shortest of all ranks, as the last to arrive does not wait. Ranks
    with another number of collectives are ignored."""
    took: FloatArray = trace.end_s - trace.begin_s
    for rank_trace in ranks:
        collectives = _of(kernel_kinds(rank_trace), KernelKind.COLLECTIVE)
        if int(collectives.sum()) == int(where.sum()):
            took[where] = np.minimum(took[where], (rank_trace.end_s - rank_trace.begin_s)[collectives])
    return took


def clock_skew_s(trace: KernelTrace, ranks: Sequence[KernelTrace]) -> float:
    """Difference between the ranks' clocks [s], from the ends of collectives, which should coincide."""
    ends = [rank_trace.end_s[_of(kernel_kinds(rank_trace), KernelKind.COLLECTIVE)] for rank_trace in (trace, *ranks)]
    apart = [np.median(np.abs(rank_ends - ends[0])) for rank_ends in ends[1:] if rank_ends.size == ends[0].size > 0]
    return float(max(apart, default=0.0))


def _serial(seen: _Seen, where: BoolArray) -> float:
    """Exposed seconds per step of collectives, except the longest of each step, which cannot be hidden."""
    owned_s = np.where(where, seen.line.owned_s, 0.0)
    steps = (owned_s[seen.trace.step == step] for step in np.unique(seen.trace.step))
    return sum(float(column.sum() - column.max()) for column in steps) / seen.line.num_steps
