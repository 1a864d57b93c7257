"""One plan's pipeline, rank by rank: its layers, its seconds, and the waterfall of its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, total_s
from sartor.hardware.cluster import Cluster
from sartor.model.shape import BlockKind, blocks
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.step.footprint import StageBytes, every_stage, stage_bytes, usable_bytes
from sartor.step.pipeline import pools_of_stages
from sartor.step.stages import flat_columns, plan_counts, plans_of
from sartor.step.step import tables_of
from sartor.step.tables import PlanTables
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
            state_bytes=float((memory.held.states - memory.held.grads + memory.grads)[s, 0]),
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

    @property
    def grows(self) -> bool:
        """Whether a stage is never less busy with one more layer, though the share of the others that is recomputed may
        shrink with it."""
        adds = self.busy_s[self.is_layer].min() >= self.again_s.max()
        return bool(adds or self.recompute_layers < 0)


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
) -> tuple[StageLoads, ...]:
    """Loads for a flat array of plans or a single plan; what plans share is priced once."""
    columns, _ = flat_columns(plan)
    tables = tables_of(job, columns, cluster, calibration)
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


class MemoryLevel(Enum):
    """What a byte is counted by; each level includes those before it."""

    THEORY = "theory"
    """From model and plan: states and activations kept for backward."""
    ALLOCATED = "allocated"
    """Allocated to tensors at the peak (``torch.cuda.max_memory_allocated``)."""
    NEEDED = "needed"
    """Needed by the framework's allocator when it has freed idle blocks."""
    DEVICE = "device"
    """What must fit on a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryPart:
    """One bar of the waterfall: ``size_bytes`` on top of the parts before it."""

    name: str
    level: MemoryLevel
    size_bytes: float
    what: str
    """A description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One pipeline rank, part by part, at its peak."""

    stage: int
    moment: str
    """When memory peaks: ``backward`` (activations), ``loss`` (logits) or ``optimizer step``."""
    parts: tuple[_MemoryPart, ...]

    def total_bytes(self, level: MemoryLevel = MemoryLevel.DEVICE) -> float:
        """Sum of all parts up to ``level``."""
        upto = list(MemoryLevel)[: list(MemoryLevel).index(level) + 1]
        return sum(part.size_bytes for part in self.parts if part.level in upto)

    def part_bytes(self, *names: str) -> float:
        """Sum of the named parts; parts that the stage does not have count nothing."""
        return sum(part.size_bytes for part in self.parts if part.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """All stages of one plan, and the memory that a device can use."""

    stages: tuple[StageMemory, ...]
    usable_bytes: float

    @property
    def fullest(self) -> StageMemory:
        return max(self.stages, key=lambda stage: stage.total_bytes())

    @property
    def fits(self) -> bool:
        return self.fullest.total_bytes() <= self.usable_bytes


def waterfall(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Waterfall:
    """Bytes of every stage of one plan, part by part; its fullest stage's totals are those of `footprint`.

    >>> from sartor.hardware.cluster_catalog import load_cluster
    >>> from sartor.model.zoo import load_model
    >>> job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=128)
    >>> found = waterfall(job, TrainingPlan(num_microbatches=128), load_cluster("dgx-h100"))
    >>> found.fits, [part.name for part in found.fullest.parts if part.level is MemoryLevel.THEORY]
    (False, ['weights', 'gradients', 'optimizer', 'activations', 'loss'])
    """
    ranks = every_stage(job, plan, cluster)
    stages = tuple(_stage(ranks, i) for i in range(len(ranks.device)))
    return Waterfall(stages=stages, usable_bytes=usable_bytes(cluster))


_THEORY = (
    ("weights", "weights", "weights as the kernels read them"),
    ("narrow_weights", "narrow weights", "8- or 4-bit copies of the layers' weights, row-wise and column-wise"),
    ("grads", "gradients", "the buffer gradients are summed and reduced in"),
    ("optimizer", "optimizer", "fp32 main weights and moments"),
    ("layers_kept", "activations", "kept by the layers for backward, all microbatches in flight"),
    ("head_kept", "loss", "inputs of the head and probabilities of the vocabulary, kept for backward"),
)


def _stage(stages: StageBytes, i: int) -> StageMemory:
    size_of = partial(_bytes_of, stages, i)
    steps = bool(stages.steps[i, 0])
    gone = ("layers_kept", "head_kept") if steps or stages.ends[i, 0] else ()
    parts = [
        _MemoryPart(name=name, level=MemoryLevel.THEORY, size_bytes=size_of(field), what=what)
        for field, name, what in _THEORY
        if field not in gone
    ]
    parts += _working(stages, i, steps)
    parts.append(
        _part("gaps", MemoryLevel.NEEDED, size_of("needed") - size_of("allocated"), "blocks that no tensor fits")
    )
    parts.append(_part("context", MemoryLevel.DEVICE, size_of("context"), "driver, libraries and NCCL's buffers"))
    ends, of_loss = bool(stages.ends[i, 0]), size_of("head_peak") > size_of("layer_peak")
    moment = "optimizer step" if steps else "loss" if of_loss and not ends else "backward"
    shown = tuple(part for part in parts if part.size_bytes > 0)
    return StageMemory(stage=int(stages.device[i]), moment=moment, parts=shown)


def _bytes_of(stages: StageBytes, i: int, name: str) -> float:
    record = next(record_of for record_of in (stages, stages.held, stages.kept) if hasattr(record_of, name))
    return float(getattr(record, name)[i, 0])


def _working(stages: StageBytes, i: int, steps: bool) -> list[_MemoryPart]:
    """Allocated bytes at the peak beyond theory."""
    size_of = partial(_bytes_of, stages, i)
    level, buffers = MemoryLevel.ALLOCATED, "communication buckets, transfers between stages, library workspaces"
    if steps:
        step = _part("optimizer step", level, size_of("step_peak"), "fp32 copies of the shard's gradients")
        return [step, _part("buffers", level, size_of("buffers"), buffers)]
    if stages.ends[i, 0]:
        peak = _part("layer at work", level, size_of("last_peak"), "backward of the last layer, with what it keeps")
    elif size_of("head_peak") > size_of("layer_peak"):
        peak = _part("logits", level, size_of("head_peak"), "logits and their gradients beyond what is kept of them")
    else:
        what = "backward of the fullest layer, with what is computed again for it"
        peak = _part("layer at work", level, size_of("layer_peak"), what)
    whole = "whole weights and gradients of the layers at work, which ZeRO 3 shards"
    return [
        peak,
        _part("gathered weights", level, size_of("gathered"), whole),
        _part("placeholders", level, size_of("placeholders"), "stand-ins for weight gradients already added up"),
        _part("buffers", level, size_of("buffers"), buffers),
    ]


def _part(name: str, level: MemoryLevel, size_bytes: float, what: str) -> _MemoryPart:
    return _MemoryPart(name=name, level=level, size_bytes=size_bytes, what=what)
