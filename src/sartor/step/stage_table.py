"""One plan's pipeline, rank by rank: its layers, the seconds of a microbatch, and its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, total_s
from sartor.hardware.cluster import Cluster
from sartor.model.blocks import BlockKind, blocks
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.step.footprint import every_stage, usable_bytes
from sartor.step.stage_loads import block_loads
from sartor.step.stages import plan_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One pipeline rank: what it holds, and its load."""

    stage: int
    layers: int
    chunks: tuple[int, ...]
    """Layers of each chunk, in model order."""
    holds: tuple[str, ...]
    """Blocks besides layers: embedding, mtp, head."""
    load_s: float
    """Busy seconds of one microbatch forward and backward: compute, recomputation, exposed communication."""
    state_bytes: float
    """Weights, gradients, optimizer states."""
    stash_bytes: float
    workspace_bytes: float
    device_bytes: float
    limit_bytes: float


def of_slowest_stage(
    found: Estimate,
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
) -> Estimate:
    """The operators and costs of a single plan's slowest pipeline rank."""
    if int(plan.dims.pp) == 1:
        return found
    kinds = blocks(job.shape)
    held = plan_counts(job.shape, plan).sum(axis=1)
    (weights,) = block_loads(job, plan, cluster, calibration)
    loads = [float(weights.of(each, stage)) for stage, each in enumerate(held)]
    shares = [n / int(kind.count) for n, kind in zip(held[int(np.argmax(loads))].tolist(), kinds, strict=True)]
    mine = [
        (replace(op, count=op.count * share), cost)
        for op, cost in zip(found.graph.operators, found.costs, strict=True)
        if (share := shares[op.block])
    ]
    operators, costs = tuple(op for op, _ in mine), tuple(cost for _, cost in mine)
    graph = replace(found.graph, operators=operators, edges=())
    return replace(found, graph=graph, costs=costs, time_s=total_s(operators, costs))


def stage_table(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> tuple[StageRow, ...]:
    """Every pipeline rank of a single plan, first to last."""
    pp = int(plan.dims.pp)
    counts = plan_counts(job.shape, plan)
    kinds = blocks(job.shape)
    is_layer = np.array([block.kind is BlockKind.LAYER for block in kinds])
    (weights,) = block_loads(job, plan, cluster, calibration)
    loads = [float(weights.of(held, stage)) for stage, held in enumerate(counts.sum(axis=1))]
    memory = every_stage(job, plan, cluster)
    limit = usable_bytes(cluster)
    return tuple(
        StageRow(
            stage=s,
            layers=int(counts[s][:, is_layer].sum()),
            chunks=tuple(int(n) for n in counts[s][:, is_layer].sum(axis=1)),
            holds=tuple(b.name for i, b in enumerate(kinds) if not is_layer[i] and counts[s][:, i].any()),
            load_s=loads[s],
            state_bytes=float(memory.held.states[s, 0]),
            stash_bytes=float(memory.stash[s, 0]),
            workspace_bytes=float(memory.working[s, 0]),
            device_bytes=float(memory.device_bytes[s, 0]),
            limit_bytes=limit,
        )
        for s in range(pp)
    )
