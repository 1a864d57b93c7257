"""Why the device was idle: what the host did while no kernel ran."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum

import numpy as np

from sartor.traces.kernel_trace import KernelTrace
from sartor.traces.timeline import Timeline
from sartor.units import FloatArray, IntArray, format_seconds

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


class GapKind(Enum):
    """Cause of a gap."""

    SYNCHRONIZING = "synchronizing calls"
    DATA = "data loading"
    LAUNCH = "launch-limited (kernels end before the host launches the next)"
    STREAMS = "launched in time, began later (kernel starts, events, other streams)"


KINDS = tuple(GapKind)


def gap_words(trace: KernelTrace, line: Timeline) -> tuple[str, ...]:
    """Seconds per step of every kind of gap, and the places in the host's code with most of the long ones."""
    begin, end = (np.array(column) for column in zip(*line.gaps, strict=True))
    kinds, waits = _kinds(trace, begin, end)
    where: defaultdict[tuple[GapKind, str], float] = defaultdict(float)
    for i in np.argsort(begin - end)[:LONGEST].tolist():
        place = frame_at(trace, float(begin[i] if waits[i] >= 0 else (begin[i] + end[i]) / 2))
        call = f"{trace.waits[waits[i]][0]}{' in ' if place else ''}" if waits[i] >= 0 else ""
        where[KINDS[kinds[i]], f"{call}{place}"] += float(end[i] - begin[i])
    seconds = {kind: float((end - begin)[kinds == i].sum()) for i, kind in enumerate(KINDS)}
    sentences = []
    for kind in sorted((kind for kind in KINDS if seconds[kind]), key=lambda kind: -seconds[kind]):
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
    ranked_kinds = [GapKind.SYNCHRONIZING, GapKind.DATA, GapKind.LAUNCH]
    kinds = np.select(
        [waited >= 0, loading, late], [KINDS.index(kind) for kind in ranked_kinds], KINDS.index(GapKind.STREAMS)
    )
    return kinds, waited


def _last(spans: FloatArray, at_s: FloatArray) -> IntArray:
    """Index of the last span to begin before each moment if it contains it, else -1. Spans [n, 2] are sorted."""
    if not spans.size:
        return np.full(at_s.size, -1)
    index = np.searchsorted(spans[:, 0], at_s, side="right") - 1
    inside: IntArray = np.where((index >= 0) & (spans[np.maximum(index, 0), 1] >= at_s), index, -1)
    return inside


def frame_at(trace: KernelTrace, at_s: float) -> str:
    """The innermost of the user's own frames or ranges that the host was in; empty if none is recorded."""
    frames = trace.frames
    inside = np.flatnonzero((frames.begin_s <= at_s) & (frames.end_s >= at_s))
    own_frames = [i for i in inside.tolist() if not frames.names[int(frames.name[i])].startswith(LIBRARY)]
    if not own_frames:
        return ""
    return frames.names[int(frames.name[max(own_frames, key=lambda i: float(frames.begin_s[i]))])][:80]
