"""The device's time line: who owns each moment, and what the gaps wait for.

Every instant of a device's span belongs to one kernel, or to none.

Where several kernels run at once, the time belongs to the first of those that compute: communication counts only where
nothing computes beside it (exposed communication).

Why the device was idle: a gap is divided at the launch of the kernel that ends it. Until then the device waits for the
host (before a step's first kernel, for data, in one stall, in calls that wait, or for launches that come too late);
from then on the kernel waits for another stream or an event, or simply takes a few microseconds to start.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sartor.step.measured_run import PartKind, Stretch, TracePart
from sartor.traces.kernel_trace import (
    KINDS,
    LEAST_STEPS,
    OPTIMIZER_STEP,
    KernelKind,
    KernelTrace,
    last_span,
    short_kernel,
)
from sartor.units import BoolArray, FloatArray, IntArray, format_seconds, format_share

WAITING = (KINDS.index(KernelKind.COLLECTIVE), KINDS.index(KernelKind.COPY))
"""Kinds that own time only while nothing computes."""
CLOCK_S = 1e-9
"""Resolution of profilers' clocks: kernels that are less far apart follow each other directly."""
FINE = 500
"""Resolution of the figure: parts per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTimeline:
    """A span of a device, divided: ``owned_s`` of every kernel of the trace, ``idle_s`` and ``saving_s`` add up to it
    exactly."""

    begin_s: float
    end_s: float
    owned_s: FloatArray
    gaps: tuple[tuple[float, float], ...]
    """(begin, end) of every interval in which nothing runs, longer than the clock's resolution."""
    num_steps: int
    edges_s: FloatArray
    """Begin of every step in the span; empty where none is marked."""
    starts: bool
    """Whether the first recorded step is part of the span."""
    saving_s: float
    """Seconds in which a checkpoint is saved and nothing runs but copies; they belong to no step."""

    @property
    def span_s(self) -> float:
        return self.end_s - self.begin_s - self.saving_s

    @property
    def idle_s(self) -> float:
        return self.span_s - float(self.owned_s.sum())


def timeline(trace: KernelTrace, kinds: IntArray) -> TraceTimeline:
    """Timeline of the steady steps of a trace: all but the first if there are at least three; the whole trace if no
    step is marked."""
    edges = trace.step_edges_s
    starts = 0 < edges.size <= LEAST_STEPS
    edges = edges if starts else edges[1:]
    begin, end = map(float, edges[[0, -1]] if edges.size else (trace.begin_s.min(), trace.end_s.max()))
    inside = np.flatnonzero((trace.end_s > begin) & (trace.begin_s < end))
    owned = np.zeros(trace.begin_s.size)
    gaps: list[tuple[float, float]] = []
    waits = np.isin(kinds, WAITING)
    running: list[tuple[bool, int]] = []
    saves, saving_s = _saves(trace), 0.0
    edges_s = np.concatenate([trace.begin_s[inside], trace.end_s[inside], saves.ravel(), [begin, end]])
    moments = np.unique(np.clip(edges_s, begin, end))
    is_saving = (last_span(saves, (moments[1:] + moments[:-1]) / 2) >= 0).tolist()
    position = 0
    for (left, right), saved in zip(pairwise(moments.tolist()), is_saving, strict=True):
        while position < inside.size and trace.begin_s[inside[position]] <= left:
            heapq.heappush(running, (bool(waits[inside[position]]), int(inside[position])))
            position += 1
        while running and trace.end_s[running[0][1]] <= left:
            heapq.heappop(running)
        if saved and (not running or kinds[running[0][1]] == WAITING[1]):
            saving_s += right - left
        elif running:
            owned[running[0][1]] += right - left
        elif gaps and gaps[-1][1] == left:
            gaps[-1] = gaps[-1][0], right
        else:
            gaps.append((left, right))
    real = tuple(gap for gap in gaps if gap[1] - gap[0] > max(CLOCK_S, 4 * float(np.spacing(end))))
    return TraceTimeline(
        begin_s=begin,
        end_s=end,
        owned_s=owned,
        gaps=real,
        num_steps=max(edges.size - 1, 1),
        edges_s=edges[:-1],
        starts=starts,
        saving_s=saving_s,
    )


SAVES = re.compile(
    r"save_?(?:checkpoint|model|pretrained|state)|distributed/checkpoint/.*: \w*save|serialization\.py\(\d+\): save"
)
"""Host functions and ranges that save a checkpoint; torch/utils/checkpoint.py recomputes."""


def _saves(trace: KernelTrace) -> FloatArray:
    """Begin and end of the host's savings of checkpoints, merged [n, 2]."""
    frames = trace.frames
    saves = np.array([SAVES.search(name) is not None for name in frames.names], dtype=bool)
    index = np.flatnonzero(saves[frames.name]) if saves.any() else np.array([], dtype=np.int64)
    begin, end = frames.begin_s[index], np.maximum.accumulate(frames.end_s[index])
    first = np.flatnonzero(np.append(True, begin[1:] > end[:-1])[: index.size])
    spans: FloatArray = np.stack([begin[first], end[np.append(first[1:], index.size)[: first.size] - 1]], axis=1)
    return spans


def typical_step(trace: KernelTrace, kinds: IntArray, line: TraceTimeline) -> tuple[Stretch, ...]:
    """The steady step whose length is nearest the mean, as it ran (the whole trace where none is marked): kernels of
    one kind are merged over gaps below 1/`FINE` of the step, and stretches shorter than that are left out."""
    edges = np.append(line.edges_s, line.end_s) if line.edges_s.size else np.array([line.begin_s, line.end_s])
    nearest = int(np.argmin(np.abs(np.diff(edges) - line.span_s / line.num_steps)))
    begin, end = float(edges[nearest]), float(edges[nearest + 1])
    inside = np.flatnonzero((trace.end_s > begin) & (trace.begin_s < end))
    left_s, right_s = (np.clip(column[inside], begin, end) - begin for column in (trace.begin_s, trace.end_s))
    fine = (end - begin) / FINE
    stretches: list[Stretch] = []
    for lane, waits in (("compute", False), ("communication", True)):
        open_: dict[str, list[int]] = {}
        ends: dict[str, float] = {}
        for i in np.flatnonzero(np.isin(kinds[inside], WAITING) == waits).tolist():
            kind, left, right = KINDS[kinds[inside[i]]].value, float(left_s[i]), float(right_s[i])
            if left - ends.get(kind, left) > fine:
                stretches.append(_stretch(trace, lane, kind, open_.pop(kind), begin, end))
                del ends[kind]
            open_.setdefault(kind, []).append(int(inside[i]))
            ends[kind] = max(ends.get(kind, left), right)
        stretches += [_stretch(trace, lane, kind, members, begin, end) for kind, members in open_.items()]
    return tuple(sorted((s for s in stretches if s.end_s - s.begin_s > fine), key=lambda s: (s.lane, s.begin_s)))


def _stretch(trace: KernelTrace, lane: str, kind: str, members: list[int], begin: float, end: float) -> Stretch:
    """Kernels as one stretch within a step from ``begin`` to ``end`` [s]."""
    left_s, right_s = trace.begin_s[members], trace.end_s[members]
    longest = short_kernel(trace.names[int(trace.name[members[int(np.argmax(right_s - left_s))]])])
    return Stretch(
        lane=lane,
        kind=kind,
        begin_s=max(float(left_s.min()), begin) - begin,
        end_s=min(float(right_s.max()), end) - begin,
        kernels=longest if len(members) == 1 else f"{len(members)} kernels, the longest {longest}",
    )


# -------------------------------------------------------------------------------------------------------------- gaps

NEAR_S = 20e-6
"""A call that waits for the device returns within this time after the last kernel ends."""
START_S = 50e-6
"""A kernel launched in time, or into an idle device, begins within this time; later, it waits for something."""
STALL_SHARE, STALL_TIMES = 0.5, 10
"""One gap per step is a stall if they take this share of the host's gaps, and each this many times the median one."""
SMALL_S = 30e-6
"""Kernels shorter than this are over before an eager host has launched the next."""
LONG_S = 1e-3
"""A gap above this is a pause of the host: even an eager one launches a kernel in some tens of microseconds."""
LONGEST = 300
"""Only this many gaps, the longest, are located in the host's code."""
LIBRARY = (
    "torch/",
    "<built-in",
    "threading.py",
    "nn.Module",
    "contextlib.py",
    "PyTorch",
    "Optimizer.",
    "nccl:",
    "tqdm/",
    "ProfilerStep#",
)
"""Prefixes of Python frames that are not the user's own code."""
BLOCKING = ("Synchronize", "Memcpy")
"""Parts of the names of calls that wait for the device."""
ALLOCATING = ("Malloc", "Free", "HostAlloc", "HostRegister")
HOST_KINDS = (PartKind.DATA, PartKind.LEAD_IN, PartKind.STALL, PartKind.SYNC, PartKind.HOST_GAP)
"""What the host does in a gap, the first that applies."""
REMEDIES = {
    PartKind.DATA: "load batches ahead: more loader workers, pinned memory, prefetching, non_blocking copies",
    PartKind.LEAD_IN: "prepare the next step while the device computes: batch, logging and zero_grad before the wait "
    "at the end of a step",
    PartKind.STALL: "look at what the host does there (the place named): it is one pause, not slow launches; do it "
    "once, in another thread, or while kernels run",
    PartKind.SYNC: "keep values on the device: no .item(), .cpu(), print of a tensor or torch.cuda.synchronize() "
    "within a step",
    PartKind.HOST_GAP: "launch earlier or less: torch.compile or CUDA graphs, and less host work at the places named",
    PartKind.STREAM_WAIT: "find the event or stream that the kernels named wait for (cudaStreamWaitEvent before their "
    "launch); drop that dependency or start its work earlier. Launching faster gains nothing",
    PartKind.KERNEL_START: "run fewer, larger kernels: fuse them (torch.compile) or use a larger batch",
}
SIZED = re.compile(r"nonzero|unique|masked_select|bincount|repeat_interleave")
"""Operators that wait for the device, as the size of what they give depends on its data."""
SIZES = (
    "the host waits for sizes that depend on data: masks, sorting or padding have fixed ones; of experts that run one "
    "after another, one grouped product for all (torch._grouped_mm, MegaBlocks)"
)
UNKNOWN_WAIT = (
    "what the kernels named wait for is not recorded: the trace has no wait for an event (cudaStreamWaitEvent), and "
    "the whole device is idle meanwhile. Profile every stream and the runtime's calls to learn it"
)
LONG_GAPS = (
    "look at what the host does in its long gaps (the places named): they are pauses, not slow launches, which CUDA "
    "graphs would not shorten"
)
START_UP = "profile three steps or more after a warm-up first: with so few, this may be the start of the program"
UNRECORDED = "profile the CPU's activities too: without launches the trace does not say what these gaps wait for"
ALLOCATION = (
    "stop allocating within the step: no torch.cuda.empty_cache(), and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
FUSED_OPTIMIZER = "update all parameters in one kernel: AdamW(..., fused=True), or at least foreach=True"
FUSED_CLIPPING = (
    "gradient clipping runs kernels for each parameter: clip all at once, clip_grad_norm_(..., foreach=True), or let a "
    "fused optimizer scale the gradients; no .item() of each norm"
)
CHECKPOINT = (
    "save in the background (torch.distributed.checkpoint.async_save, from a copy in pinned memory), less often, or "
    "profile steps without it"
)
ENGINE = (
    "let the engine prepare the next step while the device computes (vLLM: --async-scheduling); sample on the device"
)
"""Of a host that is slow between the steps of an engine."""
GARBAGE = (
    "collect garbage at fixed steps, on all ranks at once: gc.freeze() after the start, gc.disable(), then "
    "gc.collect() every thousand steps"
)
COLLECTS = re.compile(r"\bgc\b|garbage_?collect")
SMALL = (
    "the kernels are too small for the host to keep up: CUDA graphs, torch.compile(mode='reduce-overhead'), fused "
    "kernels or a larger batch"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gaps:
    """Gaps as columns."""

    begin_s: FloatArray
    end_s: FloatArray
    host_s: FloatArray
    """Seconds until the kernel that ends the gap was launched."""
    after: IntArray
    """That kernel."""
    call: IntArray
    """Index of the host's long or waiting call (-1: none)."""
    recorded: BoolArray
    """Whether the launch is in the trace."""
    clips: BoolArray
    """Whether the kernel that ends it is of a loop that clips gradients."""

    @property
    def waiting_s(self) -> FloatArray:
        """Seconds from the launch on."""
        seconds: FloatArray = self.end_s - self.begin_s - self.host_s
        return seconds


def idle_parts(trace: KernelTrace, line: TraceTimeline, clips: BoolArray, *, engine: bool) -> tuple[TracePart, ...]:
    """The time in which nothing runs by its cause; their seconds add up to ``idle_s`` per step. Saving a checkpoint is
    beside it. ``clips``: kernels of a loop that clips gradients. ``engine``: the engine of the steps decodes."""
    gaps = _gaps_of(trace, line, clips)
    kinds = _host_kinds(trace, line, gaps)
    seconds = {kind: np.where(kinds == i, gaps.host_s, 0.0) for i, kind in enumerate(HOST_KINDS)}
    long = gaps.waiting_s > START_S
    seconds[PartKind.STREAM_WAIT] = np.where(long, gaps.waiting_s, 0.0)
    seconds[PartKind.KERNEL_START] = np.where(long, 0.0, gaps.waiting_s)
    rest_s = max(line.idle_s - sum(float(column.sum()) for column in seconds.values()), 0.0)  # below the clock's tick
    parts = []
    for kind, column in seconds.items():
        total_s = (float(column.sum()) + (rest_s if kind is PartKind.KERNEL_START else 0.0)) / line.num_steps
        evidence = _evidence(trace, line, gaps, kind, column) if column.any() else ()
        fix = _remedy(trace, line, gaps, kind, column) if column.any() else ""
        fix = GARBAGE if COLLECTS.search(" ".join(evidence[1:2])) else fix
        if engine and fix == REMEDIES[kind] and kind in (PartKind.LEAD_IN, PartKind.STALL, PartKind.SYNC):
            fix = ENGINE
        elif kind is PartKind.STALL and len(evidence) > 1 and fix == REMEDIES[kind]:
            fix = fix.replace("there (the place named)", f"there ({evidence[1].rpartition(': ')[0]})")
        gain_s = total_s
        if kind is PartKind.LEAD_IN and not trace.steps and trace.begun_s < line.begin_s:  # beside the only step
            gain_s, fix = line.begin_s - trace.begun_s, f"{START_UP}; else {REMEDIES[kind]}"
            evidence = (f"{format_seconds(gain_s)} before the first kernel, left out of the step above",)
        parts.append(TracePart(kind=kind, seconds=total_s, evidence=evidence, fix=fix, gain_s=gain_s))
    if line.saving_s:
        words = f"{format_seconds(line.saving_s)} within {line.num_steps} steps, left out of the step above"
        gain_s = line.saving_s / line.num_steps
        parts.append(TracePart(kind=PartKind.CHECKPOINT, seconds=0.0, evidence=(words,), fix=CHECKPOINT, gain_s=gain_s))
    return tuple(parts)


def _gaps_of(trace: KernelTrace, line: TraceTimeline, clips: BoolArray) -> _Gaps:
    begin, end = np.array(line.gaps).reshape(-1, 2).T
    after = np.minimum(np.searchsorted(trace.begin_s, end - CLOCK_S), trace.begin_s.size - 1)
    launched = trace.launched_s[after]
    recorded = np.isfinite(launched)
    host = np.where(recorded, np.clip(launched, begin, end) - begin, np.where(end - begin > START_S, end - begin, 0.0))
    host = np.where((host > 0) & (end - begin - host <= START_S), end - begin, host)  # it starts as soon as launched
    calls = np.array([(left - NEAR_S, right + NEAR_S) for _, left, right in trace.waits])
    call = last_span(calls, begin)
    call = np.where(call >= 0, call, last_span(calls, begin + host / 2))
    held = last_span(calls, (begin + host + end) / 2)  # a launch that itself takes long is the host's
    stuck = (host < end - begin) & (held >= 0) & recorded & (launched > begin - NEAR_S)
    return _Gaps(
        begin_s=begin,
        end_s=end,
        host_s=np.where(stuck, end - begin, host),
        after=after,
        call=np.where(stuck, held, call),
        recorded=recorded,
        clips=clips[after],
    )


def _host_kinds(trace: KernelTrace, line: TraceTimeline, gaps: _Gaps) -> IntArray:
    """Index in ``HOST_KINDS`` of each gap's cause."""
    loading = trace.frames.around(gaps.begin_s + gaps.host_s / 2, "DataLoader") >= 0
    near = CLOCK_S + 4 * float(np.spacing(line.end_s))
    edge = np.searchsorted(line.edges_s, gaps.begin_s - near)
    first = np.append(line.edges_s, np.inf)[edge] < gaps.end_s
    marks = np.array([left for _, left, _ in trace.steps] + [-np.inf])
    # Earlier than its mark, the host is still in the step before.
    first &= gaps.begin_s + gaps.host_s / 2 >= marks[trace.step[gaps.after]]
    other = (gaps.host_s > 0) & ~loading & ~first
    names = np.array([any(word in name for word in BLOCKING) for name, *_ in trace.waits] + [False], dtype=bool)
    cases = [loading, first, _stalls(gaps, other, line), names[gaps.call]]
    kinds: IntArray = np.select(cases, list(range(len(cases))), len(cases))
    return kinds


def _stalls(gaps: _Gaps, where: BoolArray, line: TraceTimeline) -> BoolArray:
    """The gaps, one per step at most, that take most of the host's time."""
    index = np.flatnonzero(where)
    order = index[np.argsort(-gaps.host_s[index])]
    longest, others = order[: line.num_steps], order[line.num_steps :]
    middle = float(np.median(gaps.host_s[others])) if others.size else 0.0
    longest = longest[gaps.host_s[longest] > STALL_TIMES * max(middle, START_S)]
    is_stall = np.zeros(where.size, dtype=bool)
    is_stall[longest] = gaps.host_s[longest].sum() >= STALL_SHARE * gaps.host_s[index].sum()
    return is_stall


def _evidence(
    trace: KernelTrace, line: TraceTimeline, gaps: _Gaps, kind: PartKind, seconds: FloatArray
) -> tuple[str, ...]:
    """How many gaps of a kind, how long, and the places with most of the long ones."""
    index = np.flatnonzero(seconds > 0)
    often = f"{index.size / line.num_steps:,.0f}" if index.size >= line.num_steps else "fewer than 1"
    plural = "s" if index.size > line.num_steps else ""
    middle = f", {format_seconds(float(np.median(seconds[index])))} at the median" if plural else ""
    paused = seconds[seconds > LONG_S]
    share = format_share(float(paused.sum() / seconds.sum()))
    above = f", {share} of their time in {paused.size:,} of {index.size:,} above {format_seconds(LONG_S)}"
    above = above if plural and 0 < paused.size < index.size else ""
    words = [f"{often} gap{plural} per step{middle}{above}"]
    where: defaultdict[str, float] = defaultdict(float)
    for i in index[np.argsort(-seconds[index])][:LONGEST].tolist():
        where[_place(trace, gaps, i, kind)] += float(seconds[i])
    largest = sorted((place for place in where if place), key=lambda place: -where[place])[:2]
    words += [f"{place}: {format_seconds(where[place] / line.num_steps)}" for place in largest]
    if kind is PartKind.HOST_GAP and _remedy(trace, line, gaps, kind, seconds) is SMALL:
        kernel, launch = _paces(trace, gaps, index)
        words.append(
            f"these kernels take {format_seconds(kernel)} at the median, the host launches one in "
            f"{format_seconds(launch)}"
        )
    return tuple(words)


def _place(trace: KernelTrace, gaps: _Gaps, index: int, kind: PartKind) -> str:
    """Where the host is in a gap, or which kernel waits after which stream."""
    after = int(gaps.after[index])
    kernel = short_kernel(trace.names[int(trace.name[after])])
    if kind is PartKind.KERNEL_START:
        return ""
    if kind is PartKind.STREAM_WAIT:
        ended = np.flatnonzero(trace.end_s <= gaps.begin_s[index] + CLOCK_S)
        stream = int(trace.stream[after])
        before = int(trace.stream[ended[np.argmax(trace.end_s[ended])]]) if ended.size else stream
        other = f", after the work of stream {before}" if before != stream else ""
        return f"{kernel} on stream {stream} was launched and waits{other}"
    call = int(gaps.call[index])
    place = _frame_at(trace, float(gaps.begin_s[index] + (0 if call >= 0 else gaps.host_s[index] / 2)))
    if call >= 0:
        middle_s = float(gaps.begin_s[index] + gaps.host_s[index] / 2)
        later = _frame_at(trace, middle_s) if trace.waits[call][2] < middle_s else ""
        if later and later != place:
            return f"{later} after {trace.waits[call][0]}"
        before = max(after - 1, 0)
        place = (
            f" in {place}" if place else f" after {trace.operator_name(before)}" if trace.operator[before] >= 0 else ""
        )
        return f"{trace.waits[call][0]}{place}"
    return place or (f"before {kernel}" if kind in (PartKind.STALL, PartKind.LEAD_IN) else "")


def _remedy(trace: KernelTrace, line: TraceTimeline, gaps: _Gaps, kind: PartKind, seconds: FloatArray) -> str:
    """What to do about gaps of a kind."""
    total = float(seconds.sum())
    if kind in HOST_KINDS and float(seconds[~gaps.recorded].sum()) > total / 2:
        return UNRECORDED
    if float(seconds[gaps.clips].sum()) > total / 2:
        return FUSED_CLIPPING
    if kind is PartKind.LEAD_IN and line.starts and float(seconds[0]) > total / 2:
        return f"{START_UP}; else {REMEDIES[kind]}"
    allocates = np.array([any(word in name for word in ALLOCATING) for name, *_ in trace.waits] + [False], dtype=bool)
    if (
        kind in (PartKind.HOST_GAP, PartKind.STALL, PartKind.LEAD_IN)
        and float(seconds[allocates[gaps.call]].sum()) > total / 2
    ):
        return ALLOCATION
    sized = trace.launched_by(SIZED)[np.maximum(gaps.after - 1, 0)]
    if kind is PartKind.SYNC and float(seconds[sized].sum()) > total / 2:
        return SIZES
    in_optimizer = trace.frames.around(trace.launched_s[gaps.after], OPTIMIZER_STEP) >= 0
    if kind is PartKind.HOST_GAP and float(seconds[in_optimizer].sum()) > total / 2:
        return f"these launches are the optimizer's: {FUSED_OPTIMIZER}"
    if kind is PartKind.HOST_GAP and float(seconds[seconds > LONG_S].sum()) > total / 2:
        return LONG_GAPS
    if kind is PartKind.STREAM_WAIT and not trace.waits_for_events:
        return UNKNOWN_WAIT
    if kind is PartKind.HOST_GAP and _too_small(trace, gaps, np.flatnonzero(seconds > 0)):
        return SMALL
    return REMEDIES[kind]


def _paces(trace: KernelTrace, gaps: _Gaps, index: IntArray) -> tuple[float, float]:
    """Median seconds of the kernels that end gaps, and from their launch to the next."""
    after = gaps.after[index]
    launches = np.sort(trace.launched_s[np.isfinite(trace.launched_s)])
    position = np.searchsorted(launches, trace.launched_s[after])
    apart = np.diff(np.append(launches, np.inf))[np.minimum(position, launches.size - 1)]
    return float(np.median(trace.end_s[after] - trace.begin_s[after])), float(np.median(apart))


def _too_small(trace: KernelTrace, gaps: _Gaps, index: IntArray) -> bool:
    """Whether most kernels that end gaps are over before the host can launch the next."""
    if not np.isfinite(trace.launched_s[gaps.after[index]]).all():
        return False
    kernel, launch = _paces(trace, gaps, index)
    return index.size > 1 and kernel < min(launch, SMALL_S)


def _frame_at(trace: KernelTrace, at_s: float) -> str:
    """The innermost of the user's own frames or ranges that the host was in; empty if none is recorded."""
    frames = trace.frames
    inside = np.flatnonzero((frames.begin_s <= at_s) & (frames.end_s >= at_s))
    own_frames = [i for i in inside.tolist() if not frames.names[int(frames.name[i])].startswith(LIBRARY)]
    if not own_frames:
        return ""
    return frames.names[int(frames.name[max(own_frames, key=lambda i: float(frames.begin_s[i]))])][:80]
