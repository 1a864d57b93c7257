"""One plan's pipeline, rank by rank: its layers, the seconds of a microbatch, and its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, total_s
from sartor.hardware.cluster import Cluster
from sartor.model.blocks import BlockKind, blocks
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.step.distinct import flat_columns, plans_of
from sartor.step.footprint import every_stage, usable_bytes
from sartor.step.mixed import pools_of_stages
from sartor.step.stage_bytes import stage_bytes
from sartor.step.stages import plan_counts
from sartor.step.step import tables_of
from sartor.step.tables import KnownBlocks, PlanTables
from sartor.units import BoolArray, FloatArray, Floats, IntArray


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
    estimate: Estimate,
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
) -> Estimate:
    """The operators and costs of a single plan's slowest pipeline rank."""
    if int(plan.dims.pp) == 1:
        return estimate
    kinds = blocks(job.shape)
    counts = plan_counts(job.shape, plan).sum(axis=1)
    (weights,) = block_loads(job, plan, cluster, calibration)
    loads = [float(weights.of(stage_counts, stage)) for stage, stage_counts in enumerate(counts)]
    shares = [n / int(kind.count) for n, kind in zip(counts[int(np.argmax(loads))].tolist(), kinds, strict=True)]
    mine = [
        (replace(op, count=op.count * share), cost)
        for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True)
        if (share := shares[op.block])
    ]
    operators, costs = tuple(op for op, _ in mine), tuple(cost for _, cost in mine)
    graph = replace(estimate.graph, operators=operators, edges=())
    return replace(estimate, graph=graph, costs=costs, time_s=total_s(operators, costs))


def stage_table(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> tuple[StageRow, ...]:
    """Every pipeline rank of a single plan, first to last."""
    pp = int(plan.dims.pp)
    counts = plan_counts(job.shape, plan)
    kinds = blocks(job.shape)
    is_layer = np.array([block.kind is BlockKind.LAYER for block in kinds])
    (weights,) = block_loads(job, plan, cluster, calibration)
    loads = [float(weights.of(stage_counts, stage)) for stage, stage_counts in enumerate(counts.sum(axis=1))]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoads:
    """Seconds of one microbatch, forward and backward, through one block of each kind [K] under one plan, with exposed
    communication and host time; ``again_s`` is what recomputing a layer adds."""

    busy_s: FloatArray
    again_s: FloatArray
    is_layer: BoolArray
    recompute_layers: int
    """Layers of a stage that are recomputed; -1 for all."""

    def of(self, counts: IntArray) -> FloatArray:
        """Busy seconds of stages that hold ``counts`` [..., K] of `blocks`."""
        layers = np.maximum((counts * self.is_layer).sum(axis=-1), 1)
        share = 1.0 if self.recompute_layers < 0 else np.minimum(self.recompute_layers / layers, 1.0)
        return np.asarray(counts @ self.busy_s + share * (counts @ self.again_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoads:
    """Loads of one plan's stages, each at the speed of its pool."""

    pools: tuple[BlockLoads, ...]
    pool_of: IntArray
    """[pp]"""

    def of(self, counts: IntArray, stage: int = 0) -> FloatArray:
        """Busy seconds of pipeline rank ``stage`` if it held ``counts`` [..., K] of `blocks`."""
        return self.pools[int(self.pool_of[stage])].of(counts)


def block_loads(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    blocks_known: KnownBlocks | None = None,
) -> tuple[StageLoads, ...]:
    """Loads for a flat array of plans or a single plan; what plans share is priced once."""
    columns, _ = flat_columns(plan)
    tables = tables_of(job, columns, cluster, calibration, blocks_known=blocks_known)
    pools, loads = [table.cluster for table in tables], [_pool_loads(table, columns) for table in tables]
    sizes = columns["tp"] * columns["cp"] * columns["dp"]
    return tuple(
        StageLoads(pools=stage_loads, pool_of=pools_of_stages(pools, pp, size))
        for pp, size, stage_loads in zip(columns["pp"].tolist(), sizes.tolist(), zip(*loads, strict=True), strict=True)
    )


def _pool_loads(table: PlanTables, columns: dict[str, IntArray]) -> tuple[BlockLoads, ...]:
    seconds, is_layer = table.seconds, table.is_layer.astype(bool)
    busy = seconds.forward_s + seconds.backward_s + seconds.wgrad_s
    again = {
        Recompute.NONE: np.zeros_like(busy),
        Recompute.SELECTIVE: np.broadcast_to(seconds.selective_s, busy.shape),
        Recompute.FULL: seconds.full_s * is_layer[:, None],
    }
    return tuple(
        BlockLoads(
            busy_s=busy[:, position],
            again_s=again[Recompute(kind)][:, position],
            is_layer=is_layer,
            recompute_layers=layers if kind == Recompute.FULL else -1,
        )
        for position, kind, layers in zip(
            table.seconds_index.ravel().tolist(),
            columns["recompute"].tolist(),
            columns["recompute_layers"].tolist(),
            strict=True,
        )
    )


def held_bytes(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, counts: IntArray, device: Floats) -> FloatArray:
    """Bytes [n] of pipeline ranks ``device`` of one plan if they held ``counts`` [n, K] of `blocks` in one chunk."""
    flat = plans_of(flat_columns(plan)[0])
    ranks = np.broadcast_to(np.asarray(device, dtype=np.int64), (len(counts),))
    return np.asarray(stage_bytes(job, flat, cluster, counts[:, None, :], ranks).device_bytes[:, 0])
