"""Every instant of a device's span belongs to one kernel, or to none.

Where several kernels run at once, the one that computes has the time, and of those the first that began: communication
counts only where nothing computes beside it, which is what it costs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sartor.traces.kernel_kinds import KINDS, KernelKind
from sartor.traces.kineto import KernelTrace
from sartor.units import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A span of a device, divided: ``owned_s`` of every kernel of the trace and ``idle_s`` add up to it exactly."""

    begin_s: float
    end_s: float
    owned_s: FloatArray
    gaps: tuple[tuple[float, float], ...]
    """Begin and end of every time in which nothing runs."""
    num_steps: int

    @property
    def span_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def idle_s(self) -> float:
        return self.span_s - float(self.owned_s.sum())


def timeline(trace: KernelTrace, kinds: IntArray) -> Timeline:
    """The steady steps of a trace: all but the first where there are at least three; the whole trace where no step is
    marked."""
    begin, end, count = steady_span(trace)
    inside = np.flatnonzero((trace.end_s > begin) & (trace.begin_s < end))
    owned = np.zeros(trace.begin_s.size)
    gaps: list[tuple[float, float]] = []
    waits = np.isin(kinds, [KINDS.index(KernelKind.COLLECTIVE), KINDS.index(KernelKind.COPY)])
    running: list[tuple[bool, int]] = []
    edges = sorted({begin, end, *np.clip(trace.begin_s[inside], begin, end), *np.clip(trace.end_s[inside], begin, end)})
    at = 0
    for left, right in pairwise(edges):
        while at < inside.size and trace.begin_s[inside[at]] <= left:
            heapq.heappush(running, (bool(waits[inside[at]]), int(inside[at])))
            at += 1
        while running and trace.end_s[running[0][1]] <= left:
            heapq.heappop(running)
        if running:
            owned[running[0][1]] += right - left
        elif gaps and gaps[-1][1] == left:
            gaps[-1] = gaps[-1][0], right
        else:
            gaps.append((left, right))
    return Timeline(begin_s=begin, end_s=end, owned_s=owned, gaps=tuple(gaps), num_steps=count)


def steady_span(trace: KernelTrace) -> tuple[float, float, int]:
    """Begin and end on the device, and how many steps lie between."""
    first = [float(trace.begin_s[trace.step == i].min()) for i in range(len(trace.steps)) if (trace.step == i).any()]
    if not first:
        return float(trace.begin_s.min()), float(trace.end_s.max()), 1
    begin = first[1] if len(first) >= 3 else first[0]
    return begin, float(trace.end_s[trace.step >= 0].max()), len(first) - (len(first) >= 3)
