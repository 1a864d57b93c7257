"""One step of a plan as a trace for Perfetto: stages, microbatches, transfers, and memory as a counter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sartor.model.training import TrainingJob, TrainingPlan
from sartor.report.plan_words import plan_words
from sartor.report.trace import Counter, Span, trace_json
from sartor.report.words import printable
from sartor.step.mechanisms import acting
from sartor.step.timeline import Timeline, timeline
from sartor.units import GIB

if TYPE_CHECKING:
    from sartor.answers.plan import LaunchAnswer, PlanAnswer

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
