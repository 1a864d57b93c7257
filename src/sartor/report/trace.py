"""Timelines as Chrome trace events: files for https://ui.perfetto.dev and chrome://tracing.

Source of the format: "Trace Event Format" (Google, linked from ui.perfetto.dev's documentation of trace formats).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sartor.json_types import JsonDict, JsonMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A task on a track of a process, from ``start`` for ``duration``, in any unit of time."""

    name: str
    process: str
    track: str
    start: float
    duration: float
    category: str = ""
    args: JsonMap = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A number that changes over time, drawn as an area under a process: ``values[i]`` holds from ``times[i]`` on."""

    name: str
    process: str
    unit: str
    times: Sequence[float]
    values: Sequence[float]


INDENTED = 5000
"""Most events for which the trace is indented."""


def trace_json(
    spans: Iterable[Span],
    counters: Iterable[Counter] = (),
    *,
    us_per_unit: float = 1.0,
    about: JsonMap | None = None,
) -> bytes:
    """A trace of spans and counters; processes and tracks are listed in the order they first appear.

    ``us_per_unit``: microseconds for one unit of the spans' time.
    """
    spans = list(spans)
    processes = {name: k for k, name in enumerate(dict.fromkeys(span.process for span in spans), start=1)}
    tracks = {key: k for k, key in enumerate(dict.fromkeys((span.process, span.track) for span in spans), start=1)}
    events: list[JsonDict] = []
    for name, pid in processes.items():
        events += _named("process", pid, 0, name)
    for (process, track), tid in tracks.items():
        events += _named("thread", processes[process], tid, track)
    events += [
        {
            "name": span.name,
            "cat": span.category or "operator",
            "ph": "X",
            "ts": span.start * us_per_unit,
            "dur": span.duration * us_per_unit,
            "pid": processes[span.process],
            "tid": tracks[span.process, span.track],
            "args": dict(span.args),
        }
        for span in spans
    ]
    events += [
        {
            "name": counter.name,
            "ph": "C",
            "ts": at * us_per_unit,
            "pid": processes[counter.process],
            "args": {counter.unit: value},
        }
        for counter in counters
        for at, value in zip(counter.times, counter.values, strict=True)
    ]
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(about or {})}
    indent = 1 if len(events) <= INDENTED else None
    return (json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=True) + "\n").encode()


def _named(what: str, pid: int, tid: int, name: str) -> list[JsonDict]:
    """Events for the name of a process or thread, and its place in the list."""
    where = {"ph": "M", "pid": pid, "tid": tid}
    order = tid if what == "thread" else pid
    return [
        {"name": f"{what}_name", **where, "args": {"name": name}},
        {"name": f"{what}_sort_index", **where, "args": {"sort_index": order}},
    ]
