"""What every rank of a plan does in one step: FLOPs, bytes and messages of each task, in execution order.

Ranks are numbered as in Megatron: tensor-parallel ones are neighbours, then context, then data, then pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sartor.hardware.cluster import Cluster
from sartor.model.blocks import BlockKind, blocks
from sartor.model.lower import lower
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.operators import Axis, Collective, CollectiveKind, Operator, Part, Pass, Role
from sartor.step.block_times import roles_again
from sartor.step.held_bytes import block_params
from sartor.step.orders import Task, Work, device_order
from sartor.step.recipes import kernels_of, workload_of
from sartor.step.stages import plan_counts
from sartor.step.states import weight_bytes
from sartor.units import BoolArray, FloatArray, IntArray

Messages = dict[tuple[Axis, CollectiveKind], float]


@dataclass(slots=True)
class RankTask:
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
    orders: tuple[tuple[Task, ...], ...]
    """Tasks of every stage, first to last."""
    pieces: tuple[tuple[dict[Work, RankTask], ...], ...]
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
    graph = lower(workload, d, kernels_of(job, cluster))
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
) -> dict[Work, RankTask]:
    """Forward, backward and (if the schedule splits them off) weight gradients of one microbatch in a chunk."""
    out = {Work.FORWARD: RankTask(), Work.BACKWARD: RankTask(), Work.WGRAD: RankTask()}
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
