"""Where the time of a traced step went: parts that add up to it exactly, and the avoidable ones by their gain."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import Gemm
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
    recomputed_kernels,
    unfused_attention,
    unfused_chains,
)
from sartor.traces.priced import collective_seconds, fused_seconds, job_kind, priced_kernels
from sartor.traces.timeline import TraceTimeline, idle_parts, timeline, typical_step
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
KNOWN = 0.5
"""MFU is stated only if matrix multiplications and attention of known sizes take this share of the time of all, and of
convolutions, whose FLOPs are not counted."""
LOSS = 0.025
"""Losses below this share of the step are not reported."""
STAGES = re.compile(r"\b(?:i?send|i?recv)_?\b|(?:^|\W)(?:batch_isend_irecv|coalesced)\b", re.IGNORECASE)
"""Operators of pipeline parallelism: a send, a receive, or a group of several."""
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
    """Share of the step that these would take at the peak rate of their data types."""
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
    line = timeline(trace, kinds)
    again = recomputed_kernels(trace, kinds)
    patterns = _owned_patterns(trace, kinds, line, again)
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
        priced=priced,
        patterns=patterns,
        in_attention=in_attention,
        fused_s=fused_s,
    )
    parts = [*_compute(seen), *_communication(seen, ranks, gpu, cluster), *idle_parts(trace, line)]
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
        mfu=_ideal_s(priced, gpu) / line.span_s if gpu and is_priced else float("nan"),
        priced=priced,
        priced_share=took / of_products if of_products else 0.0,
        median_ratio=_median_ratio(priced),
        stretches=typical_step(trace, kinds, line),
        job=job_kind(trace, kinds, line),
    )


def _owned_patterns(
    trace: KernelTrace, kinds: IntArray, line: TraceTimeline, again: BoolArray
) -> tuple[UnfusedAttention, ...]:
    """Unfused attention in the steady steps, but for what is recomputed."""
    return tuple(
        pattern
        for pattern in unfused_attention(trace, kinds)
        if line.owned_s[pattern.kernels].any() and not again[pattern.kernels].any()
    )


def _ideal_s(priced: Sequence[PricedKernels], gpu: Gpu) -> float:
    """Seconds of all of them at the peak rate of their data types."""
    return sum(kernel.flops / peak_flops_per_s(gpu, kernel.operator.dtype) for kernel in priced)


def losses(attributed: Attributed) -> tuple[TracePart, ...]:
    """Avoidable parts, the largest gain first; those worth less than ``LOSS`` are left out."""
    worth = [part for part in attributed.parts if part.fix and part.gain_s >= LOSS * attributed.step_s]
    return tuple(sorted(worth, key=lambda part: -part.gain_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A trace with what is known about its kernels."""

    trace: KernelTrace
    kinds: IntArray
    line: TraceTimeline
    again: BoolArray
    """Kernels that recompute forward."""
    priced: tuple[PricedKernels, ...]
    patterns: tuple[UnfusedAttention, ...]
    in_attention: BoolArray
    """Kernels of these patterns."""
    fused_s: FloatArray
    """Predicted seconds of a fused kernel in place of each; NaN if not known."""

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


def _of(kinds: IntArray, *kinds_wanted: KernelKind) -> BoolArray:
    mask: BoolArray = np.isin(kinds, [KINDS.index(kind) for kind in kinds_wanted])
    return mask


def _median_ratio(priced: Sequence[PricedKernels]) -> float:
    ratios = [kernel.seconds / kernel.predicted_s for kernel in priced for _ in range(kernel.count)]
    return float(np.median(ratios)) if ratios else float("nan")


# ----------------------------------------------------------------------------------------------------------- compute

PLAIN = {
    KernelKind.CONVOLUTION: PartKind.CONVOLUTION,
    KernelKind.EMBEDDING: PartKind.EMBEDDING,
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
    yield TracePart(kind=PartKind.MATMUL, seconds=matmul - beyond[True] - ragged - unfilled)
    yield TracePart(kind=PartKind.TILES, seconds=unfilled, evidence=_unfilled(seen))
    fused = seen.seconds(seen.in_attention) - unfused.seconds
    yield TracePart(kind=PartKind.ATTENTION, seconds=attention - beyond[False] + fused)
    yield unfused
    yield _slow(seen, sum(beyond.values()))
    yield TracePart(
        kind=PartKind.SHAPE,
        seconds=ragged,
        evidence=_paddable(seen),
        fix="pad the size (sartor lint names it and what it costs)",
        gain_s=ragged,
    )
    yield _recompute(seen)
    yield from _memory_bound(seen)
    yield _optimizer(seen)
    for kind, part in PLAIN.items():
        where = _of(seen.kinds, kind) & ~seen.again & ~seen.in_attention
        yield TracePart(kind=part, seconds=seen.seconds(where), evidence=_largest(seen, where))


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
    if not seen.patterns:
        return TracePart(kind=PartKind.UNFUSED_ATTENTION, seconds=0.0)
    evidence = [
        f"product, softmax, product {_times(len(seen.patterns) / count)} per step: {format_seconds(total / count)}, of "
        f"which {format_seconds(between / count)} outside the products"
    ]
    if np.isfinite(seen.fused_s).all():
        evidence.append(f"a fused kernel is predicted to take {format_seconds(float(seen.fused_s.sum()) / count)}")
    return TracePart(
        kind=PartKind.UNFUSED_ATTENTION,
        seconds=lost / count,
        evidence=tuple(evidence),
        fix=FUSED_ATTENTION,
        gain_s=lost / count,
    )


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
    """Excess over predicted time. If nearly all shapes are slow it is the device's clock, else it is single kernels."""
    ratios = np.array([kernel.seconds / kernel.predicted_s for kernel in seen.alone if not kernel.padded])
    alike = ratios.size >= 3 and float(np.quantile(ratios, 0.1)) >= ALIKE
    worst = sorted(seen.alone, key=lambda kernel: kernel.predicted_s - kernel.seconds)[:SHOWN]
    shapes = tuple(
        f"{kernel.name}: {format_seconds(kernel.seconds / kernel.count)}, predicted "
        f"{format_seconds(kernel.predicted_s / kernel.count)} ({_times(kernel.count / seen.line.num_steps)} per step)"
        for kernel in worst
        if kernel.seconds > kernel.predicted_s and not kernel.padded
    )
    if alike:
        much = format_share(float(np.median(ratios)) - 1)
        evidence = (f"nearly all shapes take longer, by {much} at the median", *shapes)
        fix = "the clock is lower than usual: look for a power cap, heat, or other work on the device"
    else:
        evidence, fix = shapes, "look at these kernels: library version, layout, data type"
    return TracePart(kind=PartKind.SLOW_COMPUTE, seconds=seconds, evidence=evidence, fix=fix, gain_s=seconds)


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
    infers = job_kind(seen.trace, seen.kinds, seen.line).work == "inference"
    for kind, chains in tables.items():
        lost = sum(seconds for _, seconds in chains.values()) / count
        words = (
            f"{chain_words} ({_times(often / count)}): {format_seconds(seconds / count)}"
            for chain_words, (often, seconds) in chains.items()
        )
        part, fix = CHAINS[kind]
        fix = IN_INFERENCE.get(kind, fix) if infers else fix
        yield TracePart(kind=part, seconds=lost, evidence=tuple(islice(words, SHOWN)), fix=fix, gain_s=lost)
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
    single = where & np.array([EAGER.search(name[:300]) is not None for name in seen.trace.names])[seen.trace.name]
    often = int((single & (seen.line.owned_s > 0)).sum()) / seen.line.num_steps
    last = np.array([LAST.search(operator.name) is not None for operator in seen.trace.operators] + [False])
    if often < LOOP or not (single & last[seen.trace.operator]).any():
        return TracePart(kind=PartKind.OPTIMIZER, seconds=seconds, evidence=_largest(seen, where))
    gain = max(seen.seconds(single) - ADAM_PASSES * seen.seconds(single & last[seen.trace.operator]), 0.0)
    words = f"{often:,.0f} kernels per step, one for each operator of each parameter: {format_seconds(seconds)}"
    return TracePart(
        kind=PartKind.OPTIMIZER,
        seconds=seconds,
        evidence=(words, *_largest(seen, where)[:2]),
        fix="update all parameters in one kernel: AdamW(..., fused=True), or at least foreach=True",
        gain_s=gain,
    )


FULL = 0.9
"""Share of the device's memory from which on recomputation is taken to be needed."""


def _recompute(seen: _Seen) -> TracePart:
    seconds = seen.seconds(seen.again)
    often = int((seen.again & _of(seen.kinds, KernelKind.ATTENTION)).sum()) / seen.line.num_steps
    evidence = [f"{often:.0f} layers run forward again per step"] if seconds else []
    reserved, memory = seen.trace.reserved_bytes, seen.trace.memory_bytes
    fix = "recompute fewer layers, if memory allows (sartor plan says how many)" if seconds else ""
    if seconds and reserved and memory:
        evidence.append(f"peak memory: {format_bytes(reserved)} of {format_bytes(memory)} reserved")
        free = (
            f"recompute fewer layers: {format_bytes(memory - reserved)} of memory are free (sartor plan says how many)"
        )
        fix = free if reserved < FULL * memory else ""
    return TracePart(
        kind=PartKind.RECOMPUTE, seconds=seconds, evidence=tuple(evidence), fix=fix, gain_s=seconds if fix else 0.0
    )


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
    predicted_s = _told(seen, gpu, cluster)
    stages = _between_stages(seen)
    waiting = _bubble(seen, stages, predicted_s)
    yield waiting
    where = _of(seen.kinds, KernelKind.COLLECTIVE) & ~stages
    exposed = seen.seconds(where)
    waited, straggler = _straggler(seen, ranks)
    waited = min(waited, exposed)
    yield TracePart(
        kind=PartKind.STRAGGLER,
        seconds=waited,
        evidence=straggler,
        fix=f"{straggler[0]}: compare its clock, power and data with the others'" if waited else "",
        gain_s=waited,
    )
    ratio, link_words = _link(seen, where, ranks, predicted_s)
    slow = (exposed - waited) * (1 - 1 / ratio) if ratio > SLOW_LINK else 0.0
    fabric = "look at the fabric: a link down, a wrong interface, other traffic"
    late_rank = "" if ranks else " (or a rank arrives late: give the traces of all ranks to find out)"
    advice = f"{fabric}{late_rank}"
    if not ranks and ratio > LATE:
        advice = f"give the traces of all ranks: a rank that arrives late is likelier than links so slow; else {fabric}"
    yield TracePart(
        kind=PartKind.SLOW_LINK,
        seconds=slow,
        evidence=link_words if slow else (),
        fix=advice if slow else "",
        gain_s=slow,
    )
    serial = min(_serial(seen, where), exposed - waited - slow)
    rest = exposed - waited - slow + seen.seconds(stages) - waiting.seconds
    hint = _overlap(seen, where)
    evidence = _by_collective(seen, predicted_s)
    if (stream := _on_compute_stream(seen, where)) is not None:
        evidence = (*evidence, f"it runs on stream {stream}, that of compute, so nothing can run beside it")
        hint = "give communication a stream of its own (async_op=True), then overlap it with compute"
    yield TracePart(
        kind=PartKind.COMMUNICATION,
        seconds=rest,
        evidence=evidence,
        fix=hint if serial > 0 else "",
        gain_s=max(serial, 0.0),
    )


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
    streams, index = np.unique(seen.trace.stream, return_inverse=True)
    compute = ~_of(seen.kinds, KernelKind.COLLECTIVE, KernelKind.COPY)
    by_stream = [
        np.bincount(index, weights=np.where(mask, seen.line.owned_s, 0.0), minlength=streams.size)
        for mask in (compute, where)
    ]
    most = int(np.argmax(by_stream[0]))
    return int(streams[most]) if by_stream[1][most] > by_stream[1].sum() / 2 else None


def _told(seen: _Seen, gpu: Gpu | None, cluster: Cluster | None) -> FloatArray:
    """Predicted seconds of each collective; NaN for other kernels and where the size is not known."""
    predicted_s = np.full(seen.trace.name.size, np.nan)
    index = np.flatnonzero(_of(seen.kinds, KernelKind.COLLECTIVE))
    if gpu is not None:
        predicted_s[index] = collective_seconds(seen.trace, index, gpu, cluster)
    return predicted_s


def _between_stages(seen: _Seen) -> BoolArray:
    """Sends and receives of a pipeline, recognized by their operator, because all-to-all uses the same kernel."""
    is_stage_op = np.array(
        [STAGES.search(f"{operator.collective} {operator.name}") is not None for operator in seen.trace.operators]
        + [False]
    )  # operator -1 (unknown) takes the last entry
    mask: BoolArray = _of(seen.kinds, KernelKind.COLLECTIVE) & is_stage_op[seen.trace.operator]
    return mask


def _bubble(seen: _Seen, stages: BoolArray, predicted_s: FloatArray) -> TracePart:
    """Exposed sends and receives beyond the predicted transfer time: waiting for the other stage."""
    index = np.flatnonzero(stages & (seen.line.owned_s > 0))
    owned = seen.line.owned_s[index]
    seconds = float(np.maximum(owned - np.nan_to_num(predicted_s[index]), 0.0).sum()) / seen.line.num_steps
    often = index.size / seen.line.num_steps
    return TracePart(
        kind=PartKind.BUBBLE,
        seconds=seconds,
        evidence=(f"{often:.0f} exposed sends and receives per step wait for another stage",) if seconds else (),
        fix="more microbatches, interleaved stages or better balanced stages (sartor plan)" if seconds else "",
        gain_s=seconds,
    )


def _by_collective(seen: _Seen, predicted_s: FloatArray) -> tuple[str, ...]:
    """Exposed time by kind and group, compared with the predicted time where sizes are known."""
    took: defaultdict[str, float] = defaultdict(float)
    whole: defaultdict[str, float] = defaultdict(float)
    allowed: defaultdict[str, float] = defaultdict(float)
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
    number = int(trace.operator[index])
    operator = trace.operators[number] if number >= 0 else None
    if operator is None or not operator.collective:
        return short_kernel(trace.names[int(trace.name[index])])
    return f"{operator.collective.strip('_')} of {operator.group_size or '?'} ranks"


def _straggler(seen: _Seen, ranks: Sequence[KernelTrace]) -> tuple[float, tuple[str, ...]]:
    """Seconds per step that the slowest rank computes beyond the median one."""
    if len(ranks) < 2:
        return 0.0, ()
    busy = {}
    for rank_trace in (seen.trace, *ranks):
        kinds = kernel_kinds(rank_trace)
        line = timeline(rank_trace, kinds)
        busy[rank_trace.rank] = float(line.owned_s[~_of(kinds, KernelKind.COLLECTIVE)].sum()) / line.num_steps
    middle, (slowest, longest) = float(np.median(list(busy.values()))), max(busy.items(), key=lambda item: item[1])
    if longest - middle < STRAGGLES * seen.step_s:
        return 0.0, ()
    words = f"rank {slowest} computes {format_seconds(longest)} per step, the median rank {format_seconds(middle)}"
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
    index = np.flatnonzero(where & (seen.line.owned_s > 0))
    steps: dict[int, list[float]] = {}
    for i in index:
        steps.setdefault(int(seen.trace.step[i]), []).append(float(seen.line.owned_s[i]))
    return sum(sum(durations) - max(durations) for durations in steps.values()) / seen.line.num_steps
