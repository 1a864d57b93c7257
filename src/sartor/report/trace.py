"""One step of a plan as files for other tools: a trace for Perfetto, Chakra execution traces.

Source of the format: "Trace Event Format" (Google, linked from ui.perfetto.dev's documentation of trace formats).

A file is a sequence of length-prefixed protobuf messages, first ``GlobalMetadata``, then one ``Node`` for every task,
message and collective (mlcommons/chakra, schema/protobuf/et_def.proto, commit 6dc63e14, read 2026-11-23). Encoded by
hand, because only three messages of the schema are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonDict, JsonMap
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.operators import Axis, CollectiveKind
from sartor.report.plan_words import plan_words
from sartor.report.words import printable
from sartor.step.mechanisms import acting
from sartor.step.orders import RankWork, Work, expert_replicas, groups_of, step_work
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
class _Counter:
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
    counters: Iterable[_Counter] = (),
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


def _counters(line: Timeline, names: Sequence[str]) -> Iterator[_Counter]:
    for track in line.memory:
        yield _Counter(
            name="memory",
            process=names[track.device],
            unit="GiB",
            times=[float(t) for t in track.times_s],
            values=[float(b) / GIB for b in track.bytes_held],
        )


COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
"""``NodeType``."""
_CHAKRA_KINDS = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
    CollectiveKind.SEND_RECV: 2,
}
"""``CollectiveCommType``. Ring context parallelism has the traffic of an all-gather of keys and values."""
MOST_NODES = 20_000_000
"""Most nodes over all ranks: about two gigabytes and a few minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChakraNode:
    """One node of a rank's trace."""

    id: int
    name: str
    type: int
    after: tuple[int, ...]
    numbers: dict[str, int] = field(default_factory=dict)
    group: str = ""


def chakra_files(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Iterator[tuple[str, bytes]]:
    """``step.RANK.et`` of every rank, and ``comm_group.json`` with the groups, as (name, content).

    Raises ``InputError`` for a plan of too many nodes.
    """
    work = step_work(job, plan, cluster)
    ranks, tasks = int(plan.num_devices), max(len(order) for order in work.orders)
    if ranks * tasks * 4 > MOST_NODES:
        must = f"ranks x tasks must not exceed {MOST_NODES // 4} for Chakra traces; this plan has {ranks} x {tasks}"
        raise InputError("chakra", plan.num_microbatches, must, "fewer devices or a smaller global batch")
    groups = _named_groups(job, plan)
    listed = {name: members for table in groups.values() for name, members in table}
    yield "comm_group.json", (json.dumps(listed) + "\n").encode()
    for rank in range(ranks):
        yield f"step.{rank}.et", _encoded(job, list(_rank_nodes(work, groups, rank)))


Groups = dict[str, list[tuple[str, list[int]]]]


def _named_groups(job: TrainingJob, plan: TrainingPlan) -> Groups:
    """Groups of more than one rank by axis, each with the number that names it."""
    found = groups_of(plan, splits_experts=job.trainer.expert_tp(plan.dims.tp, plan.dims.ep) == plan.dims.tp)
    tables = {axis.value: groups for axis, groups in found.items()}
    tables["expert_dp"] = list(expert_replicas(plan, found))
    out: Groups = {}
    number = 1
    for axis, groups in tables.items():
        out[axis] = []
        for group in groups:
            if len(group) > 1:
                out[axis].append((str(number), group))
                number += 1
    return out


def _rank_nodes(work: RankWork, groups: Groups, rank: int) -> Iterator[_ChakraNode]:
    """A rank's nodes: tasks in schedule order, each after its receives and before its sends."""
    stage, at = divmod(rank, work.ranks_per_stage)
    mine = {axis: name for axis, table in groups.items() for name, members in table if rank in members}
    pp, virtual = int(work.plan.dims.pp), len(work.pieces[0])
    maker = _Maker(mine)
    sharded = int(work.plan.zero_stage) > 0
    if sharded:
        yield from maker.exchange("gather parameters", CollectiveKind.ALL_GATHER, work, stage, work.weight_share)
    for task in work.orders[stage]:
        piece = work.pieces[stage][task.chunk][task.work]
        label = f"{task.work} {task.microbatch} chunk {task.chunk}"
        part, parts = task.chunk * pp + stage, pp * virtual
        before = _neighbour(part, task.work, -1, parts)
        if before is not None and pp > 1:
            yield maker.message(
                f"receive {label}", RECV, work, before % pp, at, rank, (part, task.microbatch, task.work)
            )
        numbers = {"num_ops": round(piece.flops), "tensor_size": round(piece.bytes_moved)}
        yield maker.node(label, COMP, numbers)
        for (axis, kind), size in piece.messages.items():
            if axis.value in mine:
                numbers = {"comm_type": _CHAKRA_KINDS[kind], "comm_size": round(size)}
                yield maker.node(f"{axis.value} {kind.value} {label}", COLLECTIVE, numbers, mine[axis.value])
        after = _neighbour(part, task.work, 1, parts)
        if after is not None and pp > 1:
            key = (after, task.microbatch, task.work)
            yield maker.message(f"send {label}", SEND, work, after % pp, at, rank, key)
    if sharded:
        yield from maker.exchange("reduce gradients", CollectiveKind.REDUCE_SCATTER, work, stage, 1.0)
    else:
        yield from maker.exchange("reduce gradients", CollectiveKind.ALL_REDUCE, work, stage, 1.0)


def _neighbour(part: int, work: Work, way: int, parts: int) -> int | None:
    """The neighbouring part of the model, before (-1) or after a task: forward goes up, backward down."""
    if work is Work.WGRAD:
        return None
    neighbour = part + (way if work is Work.FORWARD else -way)
    return neighbour if 0 <= neighbour < parts else None


class _Maker:
    """Creates nodes with consecutive ids, each after the previous one; sends do not block what follows."""

    def __init__(self, mine: dict[str, str]) -> None:
        self.mine, self.next, self.last = mine, 1, 0

    def node(self, name: str, type_: int, numbers: dict[str, int], group: str = "") -> _ChakraNode:
        after = (self.last,) if self.last else ()
        made = _ChakraNode(id=self.next, name=name, type=type_, after=after, numbers=numbers, group=group)
        self.next += 1
        if type_ != SEND:
            self.last = made.id
        return made

    def message(
        self, name: str, type_: int, work: RankWork, stage: int, at: int, rank: int, key: tuple[int, int, Work]
    ) -> _ChakraNode:
        """A message to or from the rank at the same position in another stage; ``key`` is its task."""
        peer = stage * work.ranks_per_stage + at
        part, microbatch, kind = key
        tag = (part * int(work.plan.num_microbatches) + microbatch) * 2 + (kind is Work.BACKWARD)
        ends = (rank, peer) if type_ == SEND else (peer, rank)
        numbers = {"comm_size": round(work.handed_bytes), "comm_src": ends[0], "comm_dst": ends[1], "comm_tag": tag}
        return self.node(name, type_, numbers)

    def exchange(
        self, name: str, kind: CollectiveKind, work: RankWork, stage: int, scale: float
    ) -> Iterator[_ChakraNode]:
        """Once a step, a collective among data-parallel replicas: of dense parameters over dp x cp, and of experts."""
        for axis, size in ((Axis.DATA.value, work.dense_bytes[stage]), ("expert_dp", work.expert_bytes[stage])):
            if size and axis in self.mine:
                numbers = {"comm_type": _CHAKRA_KINDS[kind], "comm_size": round(size * scale)}
                yield self.node(f"{name} {axis}", COLLECTIVE, numbers, self.mine[axis])


# -- protobuf -----------------------------------------------------------------------------------------------------

INT32, INT64, UINT64, BOOL, STRING = 7, 9, 13, 27, 29
"""Fields of ``AttributeProto`` for values of these types."""
TYPES = {"tensor_size": UINT64, "comm_src": INT32, "comm_dst": INT32, "comm_tag": INT32}
"""Attributes that ASTRA-sim does not read as 64-bit integers."""


def _encoded(job: TrainingJob, nodes: list[_ChakraNode]) -> bytes:
    """The file of one rank."""
    about = _string(1, "0.0.4") + _message(2, _string(1, "model") + _string(STRING, job.shape.name or "model"))
    return b"".join([_prefixed(about), *(_prefixed(_node(node)) for node in nodes)])


def _node(node: _ChakraNode) -> bytes:
    """``Node``: id 1, name 2, type 3, data_deps 5, attr 10."""
    out = _number(1, node.id) + _string(2, node.name) + _number(3, node.type)
    out += _message(5, b"".join(_varint(dependency) for dependency in node.after)) if node.after else b""
    out += _message(10, _string(1, "is_cpu_op") + _number(BOOL, 0))
    for name, value in node.numbers.items():
        out += _message(10, _string(1, name) + _number(TYPES.get(name, INT64), value))
    return out + (_message(10, _string(1, "pg_name") + _string(STRING, node.group)) if node.group else b"")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field_: int, value: int) -> bytes:
    return _varint(field_ << 3) + _varint(value)


def _message(field_: int, data: bytes) -> bytes:
    return _varint(field_ << 3 | 2) + _varint(len(data)) + data


def _string(field_: int, text: str) -> bytes:
    return _message(field_, text.encode())


def _prefixed(data: bytes) -> bytes:
    return _varint(len(data)) + data
