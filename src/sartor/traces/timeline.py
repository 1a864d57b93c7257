"""The device's time line: who owns each moment, and what the gaps wait for.

Every instant of a device's span belongs to one kernel, or to none.

Where several kernels run at once, the time belongs to the first of those that compute: communication counts only where
nothing computes beside it (exposed communication).

Why the device was idle: what the host did while no kernel ran.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from sartor.step.measured_run import Stretch
from sartor.traces.kernel_trace import KINDS, KernelKind, KernelTrace
from sartor.units import FloatArray, IntArray, format_seconds

WAITING = (KINDS.index(KernelKind.COLLECTIVE), KINDS.index(KernelKind.COPY))
"""Kinds that own time only while nothing computes."""
CLOCK_S = 1e-9
"""Resolution of profilers' clocks: kernels that are less far apart follow each other directly."""
FINE = 500
"""Resolution of the figure: parts per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTimeline:
    """A span of a device, divided: ``owned_s`` of every kernel of the trace and ``idle_s`` add up to it exactly."""

    begin_s: float
    end_s: float
    owned_s: FloatArray
    gaps: tuple[tuple[float, float], ...]
    """(begin, end) of every interval in which nothing runs, longer than the clock's resolution."""
    num_steps: int

    @property
    def span_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def idle_s(self) -> float:
        return self.span_s - float(self.owned_s.sum())


def timeline(trace: KernelTrace, kinds: IntArray) -> TraceTimeline:
    """Timeline of the steady steps of a trace: all but the first if there are at least three; the whole trace if no
    step is marked."""
    begin, end, count = _steady_span(trace)
    inside = np.flatnonzero((trace.end_s > begin) & (trace.begin_s < end))
    owned = np.zeros(trace.begin_s.size)
    gaps: list[tuple[float, float]] = []
    waits = np.isin(kinds, WAITING)
    running: list[tuple[bool, int]] = []
    edges = sorted({begin, end, *np.clip(trace.begin_s[inside], begin, end), *np.clip(trace.end_s[inside], begin, end)})
    position = 0
    for left, right in pairwise(edges):
        while position < inside.size and trace.begin_s[inside[position]] <= left:
            heapq.heappush(running, (bool(waits[inside[position]]), int(inside[position])))
            position += 1
        while running and trace.end_s[running[0][1]] <= left:
            heapq.heappop(running)
        if running:
            owned[running[0][1]] += right - left
        elif gaps and gaps[-1][1] == left:
            gaps[-1] = gaps[-1][0], right
        else:
            gaps.append((left, right))
    real = tuple(gap for gap in gaps if gap[1] - gap[0] > max(CLOCK_S, 4 * float(np.spacing(end))))
    return TraceTimeline(begin_s=begin, end_s=end, owned_s=owned, gaps=real, num_steps=count)


def last_step(trace: KernelTrace, kinds: IntArray) -> tuple[Stretch, ...]:
    """The last marked step as it ran (the whole trace where none is marked): kernels of one kind are merged over gaps
    below 1/`FINE` of the step, and stretches shorter than that are left out."""
    inside = np.flatnonzero(trace.step == trace.step.max())
    begin, end = float(trace.begin_s[inside].min()), float(trace.end_s[inside].max())
    fine = (end - begin) / FINE
    stretches: list[Stretch] = []
    for lane, waits in (("compute", False), ("communication", True)):
        open_: dict[str, tuple[float, float]] = {}
        for i in inside[np.isin(kinds[inside], WAITING) == waits].tolist():
            kind, left, right = KINDS[kinds[i]].value, float(trace.begin_s[i]) - begin, float(trace.end_s[i]) - begin
            since, until = open_.get(kind, (left, left))
            if left - until > fine:
                stretches.append(Stretch(lane=lane, kind=kind, begin_s=since, end_s=until))
                since = until = left
            open_[kind] = since, max(until, right)
        stretches += [Stretch(lane=lane, kind=kind, begin_s=a, end_s=b) for kind, (a, b) in open_.items()]
    return tuple(sorted((s for s in stretches if s.end_s - s.begin_s > fine), key=lambda s: (s.lane, s.begin_s)))


def _steady_span(trace: KernelTrace) -> tuple[float, float, int]:
    """Begin and end on the device, and how many steps lie between."""
    edges = trace.step_edges_s
    if not edges.size:
        return float(trace.begin_s.min()), float(trace.end_s.max()), 1
    steady = edges[1:] if edges.size > 3 else edges
    return float(steady[0]), float(steady[-1]), steady.size - 1


NEAR_S = 20e-6
"""A call that waits for the device returns within this time after the last kernel ends."""
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
)
"""Prefixes of Python frames that are not the user's own code."""


class _GapKind(Enum):
    """Cause of a gap."""

    SYNCHRONIZING = "synchronizing calls"
    DATA = "data loading"
    LAUNCH = "launch-limited (kernels end before the host launches the next)"
    STREAMS = "launched in time, began later (kernel starts, events, other streams)"


_GAP_KINDS = tuple(_GapKind)


def gap_words(trace: KernelTrace, line: TraceTimeline) -> tuple[str, ...]:
    """Seconds per step of every kind of gap, and the places in the host's code with most of the long ones."""
    begin, end = (np.array(column) for column in zip(*line.gaps, strict=True))
    kinds, waits = _kinds(trace, begin, end)
    where: defaultdict[tuple[_GapKind, str], float] = defaultdict(float)
    for i in np.argsort(begin - end)[:LONGEST].tolist():
        place = _frame_at(trace, float(begin[i] if waits[i] >= 0 else (begin[i] + end[i]) / 2))
        call = f"{trace.waits[waits[i]][0]}{' in ' if place else ''}" if waits[i] >= 0 else ""
        where[_GAP_KINDS[kinds[i]], f"{call}{place}"] += float(end[i] - begin[i])
    seconds = {kind: float((end - begin)[kinds == i].sum()) for i, kind in enumerate(_GAP_KINDS)}
    sentences = []
    for kind in sorted((kind for kind in _GAP_KINDS if seconds[kind]), key=lambda kind: -seconds[kind]):
        places = sorted((place for column, place in where if column is kind and place), key=lambda p: -where[kind, p])
        largest = "".join(f"; {p}: {format_seconds(where[kind, p] / line.num_steps)}" for p in places[:2])
        sentences.append(f"{kind.value}: {format_seconds(seconds[kind] / line.num_steps)}{largest}")
    return tuple(sentences)


def _kinds(trace: KernelTrace, begin_s: FloatArray, end_s: FloatArray) -> tuple[IntArray, IntArray]:
    """Kind of each gap, and the index of the call that the host waited in (-1: none)."""
    frames = trace.frames
    loads = np.array(["DataLoader" in name for name in frames.names], dtype=bool)
    load = np.flatnonzero(loads[frames.name]) if loads.any() else np.array([], dtype=np.int64)
    middle = (begin_s + end_s) / 2
    waited = _last(np.array([(left - NEAR_S, right + NEAR_S) for _, left, right in trace.waits]), begin_s)
    loading = _last(np.stack([frames.begin_s[load], frames.end_s[load]], axis=1), middle) >= 0
    after = np.minimum(np.searchsorted(trace.begin_s, end_s - 1e-9), trace.begin_s.size - 1)
    late = trace.launched_s[after] > begin_s
    ranked_kinds = [_GapKind.SYNCHRONIZING, _GapKind.DATA, _GapKind.LAUNCH]
    kinds = np.select(
        [waited >= 0, loading, late],
        [_GAP_KINDS.index(kind) for kind in ranked_kinds],
        _GAP_KINDS.index(_GapKind.STREAMS),
    )
    return kinds, waited


def _last(spans: FloatArray, at_s: FloatArray) -> IntArray:
    """Index of the last span to begin before each moment if it contains it, else -1. Spans [n, 2] are sorted."""
    if not spans.size:
        return np.full(at_s.size, -1)
    index = np.searchsorted(spans[:, 0], at_s, side="right") - 1
    inside: IntArray = np.where((index >= 0) & (spans[np.maximum(index, 0), 1] >= at_s), index, -1)
    return inside


def _frame_at(trace: KernelTrace, at_s: float) -> str:
    """The innermost of the user's own frames or ranges that the host was in; empty if none is recorded."""
    frames = trace.frames
    inside = np.flatnonzero((frames.begin_s <= at_s) & (frames.end_s >= at_s))
    own_frames = [i for i in inside.tolist() if not frames.names[int(frames.name[i])].startswith(LIBRARY)]
    if not own_frames:
        return ""
    return frames.names[int(frames.name[max(own_frames, key=lambda i: float(frames.begin_s[i]))])][:80]
