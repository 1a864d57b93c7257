"""The order in which every device of a pipeline processes its microbatches, and an exact simulation of it.

A task is the forward (F), backward (B) or weight gradient (W, if the schedule splits it off) of one microbatch through
one chunk of layers. Device ``d`` of ``pp`` holds chunks ``0 .. v - 1``; chunk ``c`` is part ``c * pp + d`` of the
model. In a V, the second chunk is part ``2 pp - 1 - d``.

It shares no code with the closed forms of ``pipeline_laws``, which are tested against it.

`step_work` is what every rank of a plan does in one step: FLOPs, bytes and messages of each task, in execution order.
Ranks are numbered as in Megatron: tensor-parallel ones are neighbours, then context, then data, then pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.lower import lower
from sartor.model.shape import BlockKind, blocks
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.operators import Axis, Collective, CollectiveKind, Operator, Part, Pass, Role
from sartor.step.block_times import roles_again
from sartor.step.question import kernels_of, workload_of
from sartor.step.stages import plan_counts, round_of
from sartor.step.states import block_params, weight_bytes
from sartor.units import BoolArray, FloatArray, IntArray


class Work(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    """With ``WGRAD`` split off: the input gradient, which the previous stage waits for."""
    WGRAD = "W"


class _Task(NamedTuple):
    work: Work
    chunk: int
    microbatch: int


def device_order(schedule: PipelineSchedule, device: int, pp: int, virtual: int, microbatches: int) -> list[_Task]:
    """Tasks of one device, first to last. Raises ``InputError`` if the schedule has no order for these numbers."""
    check_schedule(schedule, pp, virtual, microbatches, ragged=True)
    if schedule.is_v and pp == 1:
        schedule = PipelineSchedule.ZERO_BUBBLE
    if schedule is PipelineSchedule.GPIPE:
        return _interleaved(pp, virtual, microbatches, microbatches * virtual)
    if schedule is PipelineSchedule.ZERO_BUBBLE_V:
        return _zero_bubble_v(device, pp, microbatches)
    if schedule is PipelineSchedule.DUAL_PIPE_V:
        return _dual_pipe_v(device, pp, microbatches)
    if schedule is PipelineSchedule.ZERO_BUBBLE:
        plain = device_order(PipelineSchedule.ONE_F_ONE_B, device, pp, virtual, microbatches)
        return _with_weight_gradients(plain, device)
    if virtual == 1:
        return _alternate(_forward(microbatches), _backward(microbatches), min(pp - 1 - device, microbatches))
    return _interleaved(pp, virtual, microbatches, warmup_chunks(device, pp, virtual, microbatches))


def _part_of(schedule: PipelineSchedule, device: int, chunk: int, pp: int) -> int:
    """Index of the model part that a chunk is, counted from the input."""
    return 2 * pp - 1 - device if schedule.is_v and chunk else chunk * pp + device


def check_schedule(
    schedule: PipelineSchedule, pp: int, virtual: int, microbatches: int, *, ragged: bool = False
) -> None:
    """Raise ``InputError`` if a schedule has no order for these numbers; ``ragged``: rounds of any size from pp on."""
    if schedule.is_v and pp > 1 and virtual != 2:
        raise InputError("virtual_stages", virtual, f"the {schedule.word} schedule has two chunks per device", "2")
    if schedule.is_v and pp > 1 and microbatches < 2 * pp:
        must = f"the {schedule.word} schedule needs at least two microbatches for each of pp={pp} devices"
        raise InputError("num_microbatches", microbatches, must, str(2 * pp))
    if virtual > 1 and ragged and not schedule.is_v and microbatches < pp:
        raise InputError("num_microbatches", microbatches, f"must be at least pp={pp} to interleave", str(pp))
    if virtual > 1 and not ragged and not schedule.is_v and microbatches % pp:
        below = microbatches // pp * pp
        nearest = f"{below} and {below + pp}" if below else str(pp)
        raise InputError("num_microbatches", microbatches, f"must be a multiple of pp={pp} to interleave", nearest)


def warmup_chunks(device: int, pp: int, virtual: int, microbatches: int) -> int:
    """Forward tasks of a device before its first backward in interleaved 1F1B (Megatron-LM,
    ``forward_backward_pipelining_with_interleaving``): two per later device, plus a round for every chunk but one."""
    return min((pp - 1 - device) * 2 + (virtual - 1) * int(round_of(pp, microbatches)), microbatches * virtual)


def _interleaved(pp: int, virtual: int, microbatches: int, warmup: int) -> list[_Task]:
    size = int(round_of(pp, microbatches))
    forward = [_slot(k, size, virtual, microbatches) for k in range(microbatches * virtual)]
    return _alternate(
        [_Task(Work.FORWARD, chunk, i) for chunk, i in forward],
        [_Task(Work.BACKWARD, virtual - 1 - chunk, i) for chunk, i in forward],
        warmup,
    )


def _slot(k: int, size: int, virtual: int, microbatches: int) -> tuple[int, int]:
    """Chunk and microbatch of the k-th forward: a round through a chunk, then the next; the last may be smaller."""
    group, within = divmod(k, size * virtual)
    last = min(size, microbatches - group * size)
    return within // last, group * size + within % last


def _alternate(forward: list[_Task], backward: list[_Task], warmup: int) -> list[_Task]:
    pairs = zip(forward[warmup:], backward, strict=False)
    steady = [task for pair in pairs for task in pair]
    return [*forward[:warmup], *steady, *backward[len(forward) - warmup :]]


def _with_weight_gradients(tasks: list[_Task], device: int) -> list[_Task]:
    """ZB-H1 (Qi et al. 2023, fig. 2): device d delays d weight gradients, which fill its idle time at the end;
    PyTorch's ScheduleInterleavedZeroBubble does the same with chunks."""
    out: list[_Task] = []
    late: list[_Task] = []
    for task in tasks:
        out.append(task)
        if task.work is Work.BACKWARD:
            late.append(task._replace(work=Work.WGRAD))
            out += [late.pop(0)] if len(late) > device else []
    return [*out, *late]


class _Queue:
    """Tasks of a device that holds two chunks of a V, with a microbatch counter per kind of task."""

    def __init__(self) -> None:
        self.tasks: list[_Task] = []
        self.late: list[_Task] = []
        self.next: Counter[tuple[Work, int]] = Counter()

    def forward(self, *chunks: int) -> None:
        for chunk in chunks:
            self._add(Work.FORWARD, chunk)

    def backward(self, *chunks: int, split: bool = False) -> None:
        """Backward, either with its weight gradient or (``split``) with it delayed."""
        for chunk in chunks:
            task = self._add(Work.BACKWARD, chunk)
            self.late.append(task._replace(work=Work.WGRAD))
            if not split:
                self.tasks.append(self.late.pop())

    def weights(self, count: int | None = None) -> None:
        """Run delayed weight gradients, the oldest first."""
        ready = self.late[:count]
        self.tasks += ready
        del self.late[: len(ready)]

    def _add(self, work: Work, chunk: int) -> _Task:
        task = _Task(work, chunk, self.next[work, chunk])
        self.next[work, chunk] += 1
        self.tasks.append(task)
        return task


def _zero_bubble_v(device: int, pp: int, microbatches: int) -> list[_Task]:
    """As torch.distributed.pipelining.ScheduleZBVZeroBubble orders it (PyTorch 2.9, recalled; Qi et al. 2024)."""
    q, m = _Queue(), microbatches
    q.forward(*[0] * (2 * (pp - device) - 1))
    for _ in range(device):
        q.forward(1, 0)
    for _ in range(pp - device):
        q.forward(1)
        q.backward(1)
    while q.next[Work.FORWARD, 1] < m:
        if q.next[Work.FORWARD, 0] < m:
            q.forward(0)
        q.backward(0)
        q.forward(1)
        q.backward(1)
    for _ in range(device):
        q.backward(0, 1, split=True)
    for _ in range(pp - device):
        q.backward(0, split=True)
        first = next(k for k, task in enumerate(q.late) if task.chunk == 0)
        q.tasks.append(q.late.pop(first))
    q.late.sort(key=lambda task: -task.chunk)
    q.weights()
    return q.tasks


def _dual_pipe_v(device: int, pp: int, microbatches: int) -> list[_Task]:
    """As torch.distributed.pipelining.ScheduleDualPipeV orders it (PyTorch 2.9, recalled); a forward that overlaps a
    backward is assumed to run before it."""
    q, after = _Queue(), pp - device - 1
    q.forward(*[0] * (2 * after))
    for _ in range(device + 1):
        q.forward(0, 1)
    for _ in range(after):
        q.backward(1, split=True)
        q.weights(1)
        q.forward(1)
    for _ in range(microbatches - 2 * pp + device + 1):
        q.forward(0)
        q.backward(1)
        q.forward(1)
        q.backward(0)
    for _ in range(after):
        q.backward(1)
        q.forward(1)
        q.backward(0)
    for k in range(device + 1):  # weight gradients are delayed from the middle on
        half = (device + 1) // 2
        q.backward(1, split=k > half or (k == half and device % 2 == 1))
        q.backward(0, split=k >= half)
    for _ in range(after):
        q.weights(1)
        q.backward(0, split=True)
    q.weights()
    return q.tasks


def _forward(microbatches: int) -> list[_Task]:
    return [_Task(Work.FORWARD, 0, i) for i in range(microbatches)]


def _backward(microbatches: int) -> list[_Task]:
    return [_Task(Work.BACKWARD, 0, i) for i in range(microbatches)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a device does from ``start_s`` to ``end_s``; ``kind`` is F, B, W, ``send_forward``, ``send_backward``,
    or the name of a mechanism that acts once a step."""

    device: int
    """Pipeline rank."""
    kind: str
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Seconds of one microbatch through every chunk [devices, chunks per device], and of a transfer between chunks.

    ``wgrad_s`` is not part of ``dgrad_s``; schedules that do not split backward run both in one task.
    """

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    transfer_s: float = 0.0
    blocking: bool = True
    """Whether a transfer blocks its sender's next task; if not, it runs in parallel and only the receiver waits."""


def simulate(
    schedule: PipelineSchedule, times: PipelineTimes, num_microbatches: int, start_s: Sequence[float] = ()
) -> list[Event]:
    """Every task and transfer of one step's pipeline, by device and start. Raises ``InputError`` as `device_order`.

    ``start_s`` is when each device is ready for its first task (empty: at 0).
    """
    pp, virtual = times.forward_s.shape
    orders = [device_order(schedule, d, pp, virtual, num_microbatches) for d in range(pp)]
    ready: dict[tuple[Work, int, int], float] = {}
    free, position, events = list(start_s) or [0.0] * pp, [0] * pp, list[Event]()
    waiting = True
    while waiting:
        waiting = False
        for d in range(pp):
            while position[d] < len(orders[d]):
                task = orders[d][position[d]]
                part = _part_of(schedule, d, task.chunk, pp)
                arrived = _arrival(task, part, pp * virtual - 1, ready)
                if arrived is None:
                    waiting = True
                    break
                start = max(free[d], arrived)
                end = start + _duration(schedule, task, d, times)
                events.append(
                    Event(
                        device=d, kind=task.work, chunk=task.chunk, microbatch=task.microbatch, start_s=start, end_s=end
                    )
                )
                free[d] = end
                for sent in _transfer(schedule, task, d, end, times):
                    events.append(sent)
                    end, free[d] = sent.end_s, (sent.end_s if times.blocking else end)
                ready[(task.work, part, task.microbatch)] = end
                position[d] += 1
    return sorted(events, key=lambda e: (e.device, e.start_s, e.end_s))


def _arrival(task: _Task, part: int, last: int, ready: dict[tuple[Work, int, int], float]) -> float | None:
    """When a task's input has arrived; None if the task that produces it has not been simulated yet."""
    if task.work is Work.FORWARD:
        return ready.get((Work.FORWARD, part - 1, task.microbatch)) if part else 0.0
    local = ready.get((Work.FORWARD if task.work is Work.BACKWARD else Work.BACKWARD, part, task.microbatch))
    if local is None or task.work is Work.WGRAD:
        return local if local is None else 0.0
    return ready.get((Work.BACKWARD, part + 1, task.microbatch)) if part < last else 0.0


def _duration(schedule: PipelineSchedule, task: _Task, device: int, times: PipelineTimes) -> float:
    chunk = (device, task.chunk)
    if task.work is Work.FORWARD:
        return float(times.forward_s[chunk])
    if task.work is Work.WGRAD:
        return float(times.wgrad_s[chunk])
    return float(times.dgrad_s[chunk] + (0.0 if schedule.splits else times.wgrad_s[chunk]))


def _transfer(
    schedule: PipelineSchedule, task: _Task, device: int, end: float, times: PipelineTimes
) -> Iterator[Event]:
    pp, virtual = times.forward_s.shape
    part = _part_of(schedule, device, task.chunk, pp)
    onward = task.work is Work.FORWARD and part < virtual * pp - 1
    back = task.work is Work.BACKWARD and part > 0
    stays = schedule.is_v and (part, task.work) in ((pp - 1, Work.FORWARD), (pp, Work.BACKWARD))  # the V's bottom
    if (onward or back) and not stays and times.transfer_s > 0 and pp > 1:
        yield Event(
            device=device,
            kind="send_forward" if onward else "send_backward",
            chunk=task.chunk,
            microbatch=task.microbatch,
            start_s=end,
            end_s=end + times.transfer_s,
        )


Messages = dict[tuple[Axis, CollectiveKind], float]


@dataclass(slots=True)
class _RankTask:
    """FLOPs, bytes of memory moved, and message bytes by axis and kind, of one task on one rank."""

    flops: float = 0.0
    bytes_moved: float = 0.0
    messages: Messages = field(default_factory=dict)

    def add(self, operator: Operator, times: float) -> None:
        """Add ``times`` executions of an operator."""
        if isinstance(operator, Collective):
            if float(np.max(operator.group_size)) > 1:
                key = (operator.axis, operator.kind)
                self.messages[key] = self.messages.get(key, 0.0) + float(operator.message_bytes) * times
            return
        self.flops += float(operator.flops) * times
        self.bytes_moved += float(operator.bytes_moved) * times


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """One step of a plan: ``pieces[stage][chunk][work]`` of a microbatch, transfers between stages, and the replicas'
    exchange once a step."""

    plan: TrainingPlan
    orders: tuple[tuple[_Task, ...], ...]
    """Tasks of every stage, first to last."""
    pieces: tuple[tuple[dict[Work, _RankTask], ...], ...]
    handed_bytes: float
    """Bytes that one rank sends to the next stage per microbatch."""
    dense_bytes: tuple[float, ...]
    """Of every stage: one rank's gradients that all of dp x cp share; ``expert_bytes`` are the experts'."""
    expert_bytes: tuple[float, ...]
    weight_share: float
    """Bytes of a gathered parameter over those of its gradient."""

    @property
    def ranks_per_stage(self) -> int:
        d = self.plan.dims
        return int(d.tp) * int(d.cp) * int(d.dp)


def step_work(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> RankWork:
    """The work of a single plan. Raises ``InputError`` if its schedule has no order for it."""
    d, pp, virtual = plan.dims, int(plan.dims.pp), int(plan.virtual_stages)
    schedule = PipelineSchedule(int(plan.schedule))
    counts = plan_counts(job.shape, plan)
    workload = workload_of(job, d.tp, plan.microbatch_size)
    graph = lower(workload, d, kernels_of(job, cluster, spread=int(d.ep) > 1))
    every, params = blocks(job.shape), block_params(job, d)
    updated = [(float(p.dense) * p.trained, float(p.expert) * p.trained) for p in params]
    per_block: list[list[tuple[Operator, float]]] = [[] for _ in every]
    for operator in graph.operators:
        block = every[operator.block]
        repeats = float(block.count) if block.kind in (BlockKind.LAYER, BlockKind.MTP) else 1.0
        per_block[operator.block].append((operator, float(operator.count) / repeats))
    is_layer = np.array([block.kind is BlockKind.LAYER for block in every])
    split = schedule.splits
    held = counts.sum(axis=1)
    grads = job.trainer.grad_dtype.bytes
    again = _recomputed(plan, counts, is_layer)
    chosen = Recompute(int(plan.recompute)) is Recompute.SELECTIVE
    selective = [_selective(job, operators) if chosen else frozenset() for operators in per_block]
    return RankWork(
        plan=plan,
        orders=tuple(tuple(device_order(schedule, s, pp, virtual, int(plan.num_microbatches))) for s in range(pp)),
        pieces=tuple(
            tuple(_pieces(per_block, counts[s, c], is_layer, again[s, c], selective, split) for c in range(virtual))
            for s in range(pp)
        ),
        handed_bytes=_handed(job, plan),
        dense_bytes=tuple(grads * sum(n * p for n, (p, _) in zip(row, updated, strict=True)) for row in held),
        expert_bytes=tuple(grads * sum(n * p for n, (_, p) in zip(row, updated, strict=True)) for row in held),
        weight_share=weight_bytes(job) / grads,
    )


def _handed(job: TrainingJob, plan: TrainingPlan) -> float:
    """Activation bytes of a microbatch that one tensor rank sends on (Narayanan et al. 2021, sec. 4.1)."""
    tokens = float(plan.microbatch_size) * job.seq_len / float(plan.dims.cp)
    return tokens * float(np.max(job.shape.hidden_size)) * weight_bytes(job) / float(plan.dims.tp)


def _recomputed(plan: TrainingPlan, counts: IntArray, is_layer: BoolArray) -> FloatArray:
    """Share of every chunk's layers [stage, chunk] whose forward runs again in backward."""
    if Recompute(int(plan.recompute)) is not Recompute.FULL:
        return np.zeros(counts.shape[:2])
    if int(plan.recompute_layers) < 0:
        return np.ones(counts.shape[:2])
    layers = np.maximum((counts * is_layer).sum(axis=(1, 2)), 1)
    return np.broadcast_to(np.minimum(int(plan.recompute_layers) / layers, 1)[:, None], counts.shape[:2])


def _selective(job: TrainingJob, operators: Sequence[tuple[Operator, float]]) -> frozenset[Role]:
    experts = any(operator.role is Role.EXPERT_UP for operator, _ in operators)
    return roles_again(job, experts=experts)


def _pieces(
    per_block: list[list[tuple[Operator, float]]],
    counts: IntArray,
    is_layer: BoolArray,
    again: float,
    selective: Sequence[frozenset[Role]],
    split: bool,
) -> dict[Work, _RankTask]:
    """Forward, backward and (if the schedule splits them off) weight gradients of one microbatch in a chunk."""
    out = {Work.FORWARD: _RankTask(), Work.BACKWARD: _RankTask(), Work.WGRAD: _RankTask()}
    for operators, count, layer, roles in zip(per_block, counts, is_layer, selective, strict=True):
        for operator, each in operators:
            times = each * float(count)
            if times == 0:
                continue
            if operator.pass_ is Pass.FORWARD:
                out[Work.FORWARD].add(operator, times)
                share = again if layer else 0.0
                share = 1.0 if operator.role in roles and operator.part is Part.LAYER else share
                if share:
                    out[Work.BACKWARD].add(operator, times * share)
            else:
                late = split and operator.pass_ is Pass.WGRAD
                out[Work.WGRAD if late else Work.BACKWARD].add(operator, times)
    return out


def groups_of(plan: TrainingPlan, *, splits_experts: bool) -> dict[Axis, list[list[int]]]:
    """Ranks that communicate with one another, by axis; DATA are all of dp x cp that share dense parameters."""
    d = plan.dims
    tp, cp, dp, pp, ep = (int(x) for x in (d.tp, d.cp, d.dp, d.pp, d.ep))
    ranks = np.arange(tp * cp * dp * pp).reshape(pp, dp, cp, tp)
    stages = ranks.reshape(pp, dp * cp, tp)
    whole = stages.transpose(0, 2, 1).reshape(-1, ep) if splits_experts else ranks.reshape(pp, -1).reshape(-1, ep)
    return {
        Axis.TENSOR: ranks.reshape(-1, tp).tolist(),
        Axis.CONTEXT: ranks.transpose(0, 1, 3, 2).reshape(-1, cp).tolist(),
        Axis.DATA: stages.transpose(0, 2, 1).reshape(-1, dp * cp).tolist(),
        Axis.EXPERT: whole.tolist(),
    }


def expert_replicas(plan: TrainingPlan, groups: dict[Axis, list[list[int]]]) -> Iterator[list[int]]:
    """Ranks of one stage that hold the same experts."""
    size = int(plan.dims.tp) * int(plan.dims.cp) * int(plan.dims.dp)
    of_stage: dict[int, list[list[int]]] = {}
    for group in groups[Axis.EXPERT]:
        of_stage.setdefault(group[0] // size, []).append(group)
    for same in of_stage.values():
        yield from (list(ranks) for ranks in zip(*same, strict=True))
