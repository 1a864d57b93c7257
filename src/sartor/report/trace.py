"""Timelines as Chrome trace events, for Perfetto: a plan's step among them.

Source of the format: "Trace Event Format" (Google, linked from ui.perfetto.dev's documentation of trace formats).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sartor.json_types import JsonDict, JsonMap
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.report.plan_words import plan_words
from sartor.report.words import printable
from sartor.step.mechanisms import acting
from sartor.step.timeline import Timeline, timeline
from sartor.units import GIB

if TYPE_CHECKING:
    from sartor.answers.plan import LaunchAnswer, PlanAnswer


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


KINDS = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradient",
    "send_forward": "send activations",
    "send_backward": "send gradients",
    **{mechanism.name: mechanism.event or mechanism.part.words for mechanism in acting("at_step")},
}
"""Words of a timeline's events."""
MICRO = 1e6


def plan_trace(answer: PlanAnswer) -> bytes:
    """The best plan's step. Raises ``InputError`` for a pipeline of too many tasks."""
    assert answer.best is not None
    plan = answer.best.plan
    return timeline_trace(answer.job, plan, timeline(answer.job, plan, answer.cluster, answer.calibration))


def launch_trace(answer: LaunchAnswer) -> bytes:
    """A launch's own step. Raises ``InputError`` for a pipeline of too many tasks."""
    plan = answer.priced.plan
    return timeline_trace(answer.job, plan, timeline(answer.job, plan, answer.cluster))


def timeline_trace(job: TrainingJob, plan: TrainingPlan, line: Timeline) -> bytes:
    """A timeline as Chrome trace events: a process for every stage, with tracks for work and for sends."""
    about = {
        "model": printable(job.shape.name or "model"),
        "plan": plan_words(plan),
        "step_s": line.step_s,
        "parts_s": dict(line.parts),
        "note": "predicted by sartor, not measured",
    }
    names = [_stage_name(plan, stage) for stage in range(int(plan.dims.pp))]
    return trace_json(_spans(line, names), _counters(line, names), us_per_unit=MICRO, about=about)


def _stage_name(plan: TrainingPlan, stage: int) -> str:
    """A stage with the ranks that run it (Megatron's order: pipeline outermost)."""
    size = int(plan.num_devices) // int(plan.dims.pp)
    first, last = stage * size, (stage + 1) * size - 1
    return f"stage {stage}, " + (f"rank {first}" if first == last else f"ranks {first}-{last}")


def _spans(line: Timeline, names: Sequence[str]) -> Iterator[Span]:
    for event in line.events:
        kind = KINDS.get(str(event.kind), str(event.kind))
        sends = str(event.kind).startswith("send")
        work = str(event.kind) in ("F", "B", "W") or sends
        yield Span(
            name=f"{kind} {event.microbatch}" if work else kind,
            process=names[event.device],
            track="transfers" if sends else "work",
            start=event.start_s,
            duration=event.end_s - event.start_s,
            category=kind,
            args={"microbatch": event.microbatch, "chunk": event.chunk} if work else {},
        )


def _counters(line: Timeline, names: Sequence[str]) -> Iterator[Counter]:
    for track in line.memory:
        yield Counter(
            name="memory",
            process=names[track.device],
            unit="GiB",
            times=[float(t) for t in track.times_s],
            values=[float(b) / GIB for b in track.bytes_held],
        )
