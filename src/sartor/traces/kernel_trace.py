"""The kernels of one rank as columns, from any profiler, with the host's operators, launches, waits and frames."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from sartor.units import FloatArray, IntArray

LONGEST_NAME = 200
"""Characters of a frame's name that are kept."""
DEEPEST = 200
"""Number of operators begun before a launch that are searched for the enclosing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOperator:
    """An operator of the framework: its name and the dimensions of its inputs."""

    name: str
    dims: tuple[tuple[int, ...], ...] = ()
    begin_s: float = 0.0
    end_s: float = 0.0
    collective: str = ""
    """Name of the collective; empty for other operators."""
    elements: int = 0
    """Of a collective: the larger of its input and output."""
    dtype: str = ""
    group_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFrames:
    """Python functions and marked ranges of the host, as columns."""

    names: tuple[str, ...] = ()
    name: IntArray
    """Index into ``names``."""
    begin_s: FloatArray
    end_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTrace:
    """The kernels of one rank as columns, in order of begin."""

    path: str
    rank: int | None
    world_size: int | None
    gpu: str
    names: tuple[str, ...]
    name: IntArray
    """Index into ``names``."""
    begin_s: FloatArray
    end_s: FloatArray
    stream: IntArray
    operator: IntArray
    """Index into ``operators``; -1 where none is known."""
    launched_s: FloatArray
    """Time of the host's launch; NaN if not recorded."""
    operators: tuple[HostOperator, ...]
    step: IntArray
    """Index into ``steps`` by time of launch; -1 outside all steps."""
    steps: tuple[tuple[str, float, float], ...]
    """Step marks of the profiler: name, begin and end on the host."""
    waits: tuple[tuple[str, float, float], ...] = ()
    """Calls in which the host waited for the device."""
    frames: _HostFrames

    @property
    def span_s(self) -> float:
        """From the first kernel's begin to the last one's end."""
        return float(self.end_s.max() - self.begin_s.min()) if self.begin_s.size else 0.0

    @property
    def step_edges_s(self) -> FloatArray:
        """Begin of the first step that has kernels, and the end of each: a step lasts from the last kernel of the step
        before to its own last kernel, so the gap between them is part of it. The first step lasts at least as long as
        its mark on the host. Empty if no step has kernels."""
        with_kernels = [i for i in range(len(self.steps)) if (self.step == i).any()]
        if not with_kernels:
            return np.array([])
        ends = np.maximum.accumulate([self.end_s[self.step == i].max() for i in with_kernels])
        _, left, right = self.steps[with_kernels[0]]
        first = min(float(self.begin_s[self.step == with_kernels[0]].min()), float(ends[0]) - (right - left))
        edges: FloatArray = np.array([first, *ends])
        return edges

    def operator_name(self, index: int) -> str:
        """The operator of a kernel, or the kernel's own name."""
        index_of_operator = int(self.operator[index])
        return self.operators[index_of_operator].name if index_of_operator >= 0 else self.names[int(self.name[index])]


@dataclass(slots=True)
class Recorded:
    """What a reader keeps of one rank's events, in seconds."""

    gpu: str = ""
    rank: int | None = None
    world_size: int | None = None
    kernels: list[tuple[float, float, str, int, int, int]] = field(default_factory=list)
    """begin, duration, name, stream, correlation, external id"""
    launches: dict[int, tuple[float, int, object]] = field(default_factory=dict)
    """correlation -> time, external id, thread"""
    operators: dict[int, HostOperator] = field(default_factory=dict)
    threads: list[object] = field(default_factory=list)
    """Thread of each operator."""
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    waits: list[tuple[str, float, float]] = field(default_factory=list)
    frame_names: dict[str, int] = field(default_factory=dict)
    frame_name: array[int] = field(default_factory=lambda: array("q"))
    frame_begin_s: array[float] = field(default_factory=lambda: array("d"))
    frame_end_s: array[float] = field(default_factory=lambda: array("d"))

    def add_frame(self, name: str, begin_s: float, end_s: float) -> None:
        """Record a host function or marked range."""
        self.frame_name.append(self.frame_names.setdefault(name[:LONGEST_NAME], len(self.frame_names)))
        self.frame_begin_s.append(begin_s)
        self.frame_end_s.append(end_s)


def kernel_trace(path: str, recorded: Recorded) -> KernelTrace:
    """The recorded events as columns; there must be at least one kernel."""
    recorded.kernels.sort(key=lambda row: row[0])
    begin = np.array([row[0] for row in recorded.kernels])
    took = np.array([row[1] for row in recorded.kernels])
    names = {name: i for i, name in enumerate(dict.fromkeys(row[2] for row in recorded.kernels))}
    index = {number: i for i, number in enumerate(recorded.operators)}
    launches = [recorded.launches.get(row[4], (float("nan"), -1, None)) for row in recorded.kernels]
    around = _Around(recorded)
    operator_index = [
        index.get(launch[1], index.get(row[5], -1)) if launch[1] in index or row[5] in index else around(*launch)
        for row, launch in zip(recorded.kernels, launches, strict=True)
    ]
    launched = np.array([launch[0] for launch in launches])
    steps = sorted(set(recorded.steps), key=lambda mark: mark[1])
    return KernelTrace(
        path=path,
        rank=recorded.rank,
        world_size=recorded.world_size,
        gpu=recorded.gpu,
        names=tuple(names),
        name=np.array([names[row[2]] for row in recorded.kernels], dtype=np.int64),
        begin_s=begin,
        end_s=begin + np.maximum(took, 0.0),
        stream=np.array([row[3] for row in recorded.kernels], dtype=np.int64),
        operator=np.array(operator_index, dtype=np.int64),
        launched_s=launched,
        operators=tuple(recorded.operators.values()),
        step=_steps(np.where(np.isnan(launched), begin, launched), steps),
        steps=tuple(steps),
        waits=tuple(sorted(recorded.waits, key=lambda wait: wait[1])),
        frames=_frames(recorded),
    )


def _frames(recorded: Recorded) -> _HostFrames:
    """Sorted by begin."""
    begin = np.array(recorded.frame_begin_s)
    order = np.argsort(begin, kind="stable")
    return _HostFrames(
        names=tuple(recorded.frame_names),
        name=np.array(recorded.frame_name, dtype=np.int64)[order],
        begin_s=begin[order],
        end_s=np.array(recorded.frame_end_s)[order],
    )


class _Around:
    """Finds the innermost operator running on a thread at a launch, as older traces have no id linking the two."""

    def __init__(self, recorded: Recorded) -> None:
        self.of: dict[object, list[tuple[float, float, int]]] = {}
        for i, (operator, thread) in enumerate(zip(recorded.operators.values(), recorded.threads, strict=True)):
            self.of.setdefault(thread, []).append((operator.begin_s, operator.end_s, i))
        for spans in self.of.values():
            spans.sort()

    def __call__(self, at_s: float, number: int, thread: object) -> int:
        begun = self.of.get(thread, [])
        last = bisect_right(begun, (at_s, float("inf"), 0))
        for begin_s, end_s, i in reversed(begun[max(last - DEEPEST, 0) : last]):
            if begin_s <= at_s <= end_s:
                return i
        return -1


def _steps(times_s: FloatArray, steps: list[tuple[str, float, float]]) -> IntArray:
    """The step during which each kernel was launched."""
    step_index = np.full(times_s.size, -1, dtype=np.int64)
    for i, (_, begin_s, end_s) in enumerate(steps):
        step_index[(times_s >= begin_s) & (times_s < end_s)] = i
    return step_index
