"""Chakra execution traces of a plan, one file per rank, for ASTRA-sim and other simulators.

A file is a sequence of length-prefixed protobuf messages, first ``GlobalMetadata``, then one ``Node`` for every task,
message and collective (mlcommons/chakra, schema/protobuf/et_def.proto, commit 6dc63e14, read 2026-11-23). Encoded by
hand, because only three messages of the schema are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.operators import Axis, CollectiveKind
from sartor.step.orders import RankWork, Work, expert_replicas, groups_of, step_work

COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
"""``NodeType``."""
KINDS = {
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
    found = groups_of(plan, splits_experts=job.trainer.splits_experts)
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
                numbers = {"comm_type": KINDS[kind], "comm_size": round(size)}
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
                numbers = {"comm_type": KINDS[kind], "comm_size": round(size * scale)}
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
