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
from sartor.step.measured_run import PartKind, PricedKernels, Stretch, TracePart
from sartor.traces.kernel_trace import (
    KINDS,
    KernelKind,
    KernelTrace,
    kernel_kinds,
    recomputed_kernels,
    short_kernel,
    unfused_chains,
)
from sartor.traces.priced import collective_seconds, priced_kernels
from sartor.traces.timeline import TraceTimeline, idle_parts, timeline, typical_step
from sartor.units import BoolArray, FloatArray, IntArray, format_seconds, format_share

SLOW_LINK = 1.5
"""Ratio of measured to predicted collective time above which the link is called slow; predictions on known fabrics are
less far off."""
STRAGGLES = 0.02
"""A rank is a straggler if it computes longer than the median rank by this share of the step."""
SERIAL = 0.8
"""A collective runs alone if nothing computes beside it for this share of its time."""
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
    priced = priced_kernels(trace, kinds, line, again, gpu, calibration) if gpu else ()
    step_s = line.span_s / line.num_steps
    seen = _Seen(trace=trace, kinds=kinds, line=line, again=again, priced=priced)
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
    KernelKind.OPTIMIZER: PartKind.OPTIMIZER,
    KernelKind.COPY: PartKind.COPIES,
    KernelKind.UNKNOWN: PartKind.UNKNOWN,
}


def _compute(seen: _Seen) -> Iterator[TracePart]:
    """Matrix multiplications and attention at their predicted time, the excess over it, and everything else by kind."""
    count = seen.line.num_steps
    ragged = sum(max(kernel.seconds - kernel.padded_s, 0.0) for kernel in seen.priced if kernel.padded) / count
    beyond = {True: 0.0, False: 0.0}  # True: matrix multiplications, False: attention
    for kernel in seen.priced:
        if not kernel.padded:
            beyond[isinstance(kernel.operator, Gemm)] += max(kernel.seconds - kernel.predicted_s, 0.0) / count
    matmul = seen.seconds(_of(seen.kinds, KernelKind.MATMUL) & ~seen.again)
    attention = seen.seconds(_of(seen.kinds, KernelKind.ATTENTION) & ~seen.again)
    unfilled = sum(min(kernel.unfilled_s, kernel.seconds) for kernel in seen.priced if not kernel.padded) / count
    yield TracePart(kind=PartKind.MATMUL, seconds=matmul - beyond[True] - ragged - unfilled)
    yield TracePart(kind=PartKind.TILES, seconds=unfilled, evidence=_unfilled(seen))
    yield TracePart(kind=PartKind.ATTENTION, seconds=attention - beyond[False])
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
    for kind, part in PLAIN.items():
        where = _of(seen.kinds, kind) & ~seen.again
        yield TracePart(kind=part, seconds=seen.seconds(where), evidence=_largest(seen, where))


def _unfilled(seen: _Seen) -> tuple[str, ...]:
    """Not a reported loss: `sartor advise` tells which sizes fill tiles and waves better."""
    worst = sorted((kernel for kernel in seen.priced if not kernel.padded), key=lambda kernel: -kernel.unfilled_s)
    return tuple(
        f"{kernel.name}: {format_share(kernel.unfilled_s / kernel.predicted_s)} of its tiles and waves are empty"
        for kernel in worst[:SHOWN]
        if kernel.unfilled_s > 0.01 * kernel.predicted_s
    )


def _paddable(seen: _Seen) -> tuple[str, ...]:
    return tuple(
        f"{kernel.name}: {format_seconds(kernel.seconds / kernel.count)}, padded to {kernel.padded} predicted "
        f"{format_seconds(kernel.padded_s / kernel.count)}"
        for kernel in seen.priced
        if kernel.padded and kernel.padded_s < kernel.seconds
    )[:SHOWN]


def _slow(seen: _Seen, seconds: float) -> TracePart:
    """Excess over predicted time. If nearly all shapes are slow it is the device's clock, else it is single kernels."""
    ratios = np.array([kernel.seconds / kernel.predicted_s for kernel in seen.priced if not kernel.padded])
    alike = ratios.size >= 3 and float(np.quantile(ratios, 0.1)) >= ALIKE
    worst = sorted(seen.priced, key=lambda kernel: kernel.predicted_s - kernel.seconds)[:SHOWN]
    shapes = tuple(
        f"{kernel.name}: {format_seconds(kernel.seconds / kernel.count)}, predicted "
        f"{format_seconds(kernel.predicted_s / kernel.count)} ({kernel.count} times)"
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


def _memory_bound(seen: _Seen) -> Iterator[TracePart]:
    """Time that fused kernels would take, and the excess over it."""
    where = _of(seen.kinds, KernelKind.MEMORY_BOUND) & ~seen.again
    chains = unfused_chains(seen.trace, seen.kinds, np.where(where, seen.line.owned_s, 0.0))
    count = seen.line.num_steps
    lost = sum(seconds for _, seconds in chains.values()) / count
    words = (
        f"{chain_words} ({_times(often / count)}): {format_seconds(seconds / count)}"
        for chain_words, (often, seconds) in chains.items()
    )
    fix = "fuse them: torch.compile, or the trainer's fused norm, rotary, activation and loss"
    yield TracePart(kind=PartKind.MEMORY_BOUND, seconds=seen.seconds(where) - lost, evidence=_largest(seen, where))
    yield TracePart(kind=PartKind.UNFUSED, seconds=lost, evidence=tuple(islice(words, SHOWN)), fix=fix, gain_s=lost)


def _times(count: float) -> str:
    return f"{count:.0f} times" if round(count) > 1 else "once" if round(count) else f"once in {1 / count:.0f} steps"


def _recompute(seen: _Seen) -> TracePart:
    seconds = seen.seconds(seen.again)
    often = int((seen.again & _of(seen.kinds, KernelKind.ATTENTION)).sum()) / seen.line.num_steps
    return TracePart(
        kind=PartKind.RECOMPUTE,
        seconds=seconds,
        evidence=(f"{often:.0f} layers run forward again per step",) if seconds else (),
        fix="recompute fewer layers, if memory allows (sartor plan says how many)" if seconds else "",
        gain_s=seconds,
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
        fix="compare that rank's clock, power and data with the others'" if waited else "",
        gain_s=waited,
    )
    ratio, link_words = _link(seen, where, ranks, predicted_s)
    slow = (exposed - waited) * (1 - 1 / ratio) if ratio > SLOW_LINK else 0.0
    late_rank = "" if ranks else " (or a rank arrives late: give the traces of all ranks to find out)"
    yield TracePart(
        kind=PartKind.SLOW_LINK,
        seconds=slow,
        evidence=link_words if slow else (),
        fix=f"look at the fabric: a link down, a wrong interface, other traffic{late_rank}" if slow else "",
        gain_s=slow,
    )
    serial = min(_serial(seen, where), exposed - waited - slow)
    rest = exposed - waited - slow + seen.seconds(stages) - waiting.seconds
    hint = "overlap it with compute, which nothing does now (FSDP: prefetch the next layer's weights)"
    yield TracePart(
        kind=PartKind.COMMUNICATION,
        seconds=rest,
        evidence=_by_collective(seen, predicted_s),
        fix=hint if serial > 0 else "",
        gain_s=max(serial, 0.0),
    )


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
    index = np.flatnonzero(where & np.isfinite(predicted_s) & (predicted_s > 0))
    if not index.size:
        return 1.0, ()
    took = _least_durations(seen.trace, _of(seen.kinds, KernelKind.COLLECTIVE), ranks)[index]
    measured, predicted = float(took.sum()), float(predicted_s[index].sum())
    words = (
        f"{index.size} collectives take {format_seconds(measured)}, "
        f"{measured / predicted:.1f} times the {format_seconds(predicted)} that the links allow"
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
    """Seconds per step of collectives that run alone, except the longest of each step, which cannot be hidden."""
    index = np.flatnonzero(where & (seen.line.owned_s > 0))
    took = seen.trace.end_s[index] - seen.trace.begin_s[index]
    alone = index[seen.line.owned_s[index] >= SERIAL * took]
    steps: dict[int, list[float]] = {}
    for i in alone:
        steps.setdefault(int(seen.trace.step[i]), []).append(float(seen.line.owned_s[i]))
    return sum(sum(durations) - max(durations) for durations in steps.values()) / seen.line.num_steps
