"""Every instant of a device's span belongs to one kernel, or to none.

Where several kernels run at once, the time belongs to the first of those that compute: communication counts only where
nothing computes beside it (exposed communication).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sartor.step.parts import Stretch
from sartor.traces.kernel_kinds import KINDS, KernelKind
from sartor.traces.kernel_trace import KernelTrace
from sartor.units import FloatArray, IntArray

WAITING = (KINDS.index(KernelKind.COLLECTIVE), KINDS.index(KernelKind.COPY))
"""Kinds that own time only while nothing computes."""
CLOCK_S = 1e-9
"""Resolution of profilers' clocks: kernels that are less far apart follow each other directly."""
FINE = 500
"""Resolution of the figure: parts per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
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


def timeline(trace: KernelTrace, kinds: IntArray) -> Timeline:
    """Timeline of the steady steps of a trace: all but the first if there are at least three; the whole trace if no
    step is marked."""
    begin, end, count = steady_span(trace)
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
    return Timeline(begin_s=begin, end_s=end, owned_s=owned, gaps=real, num_steps=count)


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


def steady_span(trace: KernelTrace) -> tuple[float, float, int]:
    """Begin and end on the device, and how many steps lie between."""
    edges = trace.step_edges_s
    if not edges.size:
        return float(trace.begin_s.min()), float(trace.end_s.max()), 1
    steady = edges[1:] if edges.size > 3 else edges
    return float(steady[0]), float(steady[-1]), steady.size - 1
