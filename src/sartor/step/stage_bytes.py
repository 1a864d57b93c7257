"""Bytes of every device of a pipeline, part by part, for arrays of plans that share (pp, virtual_stages)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.hardware.cluster import Cluster
from sartor.model.blocks import Block, BlockKind, blocks
from sartor.model.parallel import ParallelDims
from sartor.model.trainer import MemoryHabits
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.step.activations import Activations, Rows, layer_activations, rows_of
from sartor.step.blocks import BlockParams, block_params
from sartor.step.in_flight import in_flight
from sartor.step.memory_coefficients import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    OTHER_CONTEXT_BYTES,
    OTHER_WORKSPACE_BYTES,
    TIGHT_FRAGMENTATION,
    TPU_CONTEXT_BYTES,
    USABLE_SHARE,
    WORKSPACE_BYTES,
)
from sartor.step.stages import stage_counts
from sartor.step.states import dense_states, expert_states, weight_bytes
from sartor.units import ceil_div

Bytes = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Bytes [devices, plans] of some devices of a pipeline (``device``: their ranks)."""

    device: npt.NDArray[np.int64]
    weights: Bytes
    narrow_weights: Bytes
    grads: Bytes
    optimizer: Bytes
    layers_kept: Bytes
    """Activations of layers, all microbatches in flight."""
    head_kept: Bytes
    """Of the final norm and the loss."""
    layer_peak: Bytes
    """Backward of the fullest layer, with what is computed again for it, less what the loss has freed by then."""
    head_peak: Bytes
    """Logits and their gradients, beyond what of them is kept."""
    gathered: Bytes
    """Whole weights and gradients of layers that ZeRO 3 shards."""
    placeholders: Bytes
    """Stand-ins for weight gradients that were added to the main gradient."""
    buffers: Bytes
    """Communication buckets, transfers between stages, workspaces of libraries."""
    step_peak: Bytes
    """What the optimizer's step needs beside states and buffers, when no activations are kept."""
    allocated: Bytes
    reserved: Bytes
    context: Bytes
    """CUDA context, libraries and NCCL: outside the framework's allocator."""

    @property
    def states(self) -> Bytes:
        return self.weights + self.narrow_weights + self.grads + self.optimizer

    @property
    def kept(self) -> Bytes:
        return self.layers_kept + self.head_kept

    @property
    def working(self) -> Bytes:
        """Peak of forward and backward beside what is kept."""
        return np.maximum(self.layer_peak, self.head_peak) + self.gathered + self.placeholders + self.buffers

    @property
    def steps(self) -> Any:
        """Where the optimizer's step is the fullest moment."""
        return self.step_peak + self.buffers > self.kept + self.working

    @property
    def device_bytes(self) -> Bytes:
        return self.reserved + self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Of all blocks, for every plan: what a layer of each keeps, needs and weighs."""

    blocks: tuple[Block, ...]
    params: tuple[BlockParams, ...]
    activations: tuple[Activations | None, ...]
    rows: Rows
    logits: Any
    """Bytes per logit byte: local tokens times the local vocabulary."""


def stage_bytes(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    counts: npt.NDArray[np.int64],
    device: npt.NDArray[np.int64],
) -> StageBytes:
    """Bytes of the pipeline ranks ``device`` that hold ``counts`` [devices, chunks, blocks] of `blocks`; the fields of
    ``plan`` are flat arrays of equal length whose pp and virtual stages are all the same."""
    habits, parts = job.trainer.habits, _parts(job, plan)
    pp, held = int(plan.dims.pp[0]), counts.sum(axis=1)  # type: ignore[index]
    weights = _held_params(parts, held, pp)
    states = _states(job, plan, weights)
    flying = in_flight(plan.schedule, device[:, None], pp, counts.shape[1], plan.num_microbatches)
    flying = np.broadcast_to(flying, (len(device), len(plan.num_microbatches), counts.shape[1]))  # type: ignore[arg-type]
    layers_kept, layer_peak = _layers(job, plan, parts, counts, flying)
    if habits.keeps_outputs:
        layers_kept = layers_kept + _outputs(job, parts, pp, device, flying)
    head_kept, head_peak, head_freed = _head(job, plan, habits, parts, held, flying)
    buffers = _buffers(job, plan, habits, cluster, parts, held)
    bare = StageBytes(
        device=device,
        **states,
        layers_kept=layers_kept,
        head_kept=head_kept,
        layer_peak=np.maximum(layer_peak - head_freed, 0.0),
        head_peak=head_peak,
        gathered=_gathered(job, plan, habits, parts, held),
        placeholders=_placeholders(job, habits, parts, held),
        buffers=buffers,
        allocated=buffers,
        reserved=buffers,
        context=np.broadcast_to(context_bytes(plan, cluster), buffers.shape),
    )
    peak = np.maximum(bare.kept + bare.working, bare.step_peak + bare.buffers)
    allocated = bare.states + peak
    return replace(bare, allocated=allocated, reserved=_reserved(bare, habits, cluster))


def _reserved(of: StageBytes, habits: MemoryHabits, cluster: Cluster) -> Bytes:
    """What the allocator holds: gaps between activations, and blocks of the optimizer's step beside theirs, unless the
    device is full by then, when it gives idle blocks back first."""
    passing = of.kept + of.working - of.buffers
    base = of.states + of.buffers
    apart: Any = of.step_peak if habits.steps_in_own_blocks else 0.0
    tight = min(habits.fragmentation, TIGHT_FRAGMENTATION)
    least = base + np.maximum(passing * tight, of.step_peak)
    loose = base + np.maximum(passing * habits.fragmentation + apart, of.step_peak)
    full = (USABLE_SHARE * cluster.gpu.hbm_bytes - of.context) * (1 - 1e-9)
    held: Bytes = np.maximum(least, np.minimum(loose, full))
    return held


def context_bytes(plan: TrainingPlan, cluster: Cluster) -> Any:
    """Context with libraries, and NCCL's buffers for every group a device belongs to."""
    gpu, d = cluster.gpu, plan.dims
    if gpu.generation.startswith("tpu"):
        return np.asarray(TPU_CONTEXT_BYTES)
    groups = sum(np.greater(degree, 1).astype(int) for degree in (d.tp, d.pp, d.dp, d.cp, d.ep))
    return CONTEXT_BYTES.get(gpu.generation, OTHER_CONTEXT_BYTES) + COMMUNICATOR_BYTES * groups


def _parts(job: TrainingJob, plan: TrainingPlan) -> _Parts:
    """Computed once for every distinct (tp, cp, ep, microbatch_size, sequence_parallel) and spread to all plans."""
    d = plan.dims
    keys = np.stack(
        [np.asarray(x, dtype=np.int64) for x in (d.tp, d.cp, d.ep, plan.microbatch_size, d.sequence_parallel)]
    )
    few, back = _distinct_columns(keys)
    tp, cp, ep, size, split = few
    dims = ParallelDims(tp=tp, cp=cp, ep=ep, sequence_parallel=split.astype(bool))
    small = replace(plan, dims=dims, microbatch_size=size)
    rows, every = rows_of(job, small), blocks(job.shape)
    acts = [None if b.layer is None else layer_activations(rows, b.layer, b.stack.hidden_size) for b in every]
    logits = rows.tokens * ceil_div(job.shape.vocab_size, tp) if job.shape.lm_head else 0 * rows.tokens
    return _Parts(
        blocks=every,
        params=tuple(_spread(p, back) for p in block_params(job, dims)),
        activations=tuple(None if a is None else _spread(a, back) for a in acts),
        rows=_spread(rows, back),
        logits=logits[back],
    )


def _distinct_columns(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    code = np.zeros(keys.shape[1], dtype=np.int64)
    for row in keys:
        code = code * (int(row.max()) + 1) + row
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return keys[:, first], back


def _spread(record: Any, back: npt.NDArray[np.intp]) -> Any:
    """A record whose array fields are taken at ``back``."""
    arrays = {n: getattr(record, n) for n in record.__dataclass_fields__}
    return replace(record, **{n: a[back] for n, a in arrays.items() if isinstance(a, np.ndarray) and a.ndim})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Parameters of devices [devices, plans]: in layers, outside of them, in experts."""

    layers: Any
    outer: Any
    experts: Any


def _held_params(parts: _Parts, held: npt.NDArray[np.int64], pp: int) -> _Held:
    layers: Any = 0.0
    outer: Any = 0.0
    experts: Any = 0.0
    for i, (block, params) in enumerate(zip(parts.blocks, parts.params, strict=True)):
        n = held[:, i, None] * 1.0
        if block.layer is None:
            own = params.dense + (params.tied if pp > 1 else 0)
            outer = outer + n * own
            continue
        share = block.weight_sets / block.count if block.kind is BlockKind.LAYER else 1.0
        layers = layers + n * share * params.dense
        experts = experts + n * share * params.expert
    size = np.zeros((1, len(parts.logits)))
    return _Held(layers=layers + size, outer=outer + size, experts=experts + size)


def _states(job: TrainingJob, plan: TrainingPlan, held: _Held) -> dict[str, Any]:
    inner, outer = dense_states(job, plan), dense_states(job, plan, in_layer=False)
    expert = expert_states(job, plan)
    pairs = ((held.layers, inner), (held.outer, outer), (held.experts, expert))
    names = {
        "weights": "weight",
        "narrow_weights": "narrow",
        "grads": "grad",
        "optimizer": "optimizer",
        "step_peak": "step",
    }
    return {name: sum(count * getattr(each, field) for count, each in pairs) for name, field in names.items()}


def _layers(
    job: TrainingJob, plan: TrainingPlan, parts: _Parts, counts: npt.NDArray[np.int64], flying: Any
) -> tuple[Bytes, Bytes]:
    """Activations that layers keep, and the peak of one layer's backward with what it computes again."""
    again, full = np.asarray(plan.recompute), np.asarray(plan.recompute) == Recompute.FULL
    share = _recomputed_share(plan, parts, counts)
    by_operator = full & (np.asarray(plan.recompute_layers) >= 0) & job.trainer.checkpoints_operators
    kept = np.zeros((len(counts), len(full)))
    peak = np.zeros_like(kept)
    for i, act in enumerate(parts.activations):
        if act is None:
            continue
        each = np.where(again == Recompute.SELECTIVE, act.selective, act.whole)
        each = np.where(full, share * act.inputs + (1 - share) * act.whole, each)
        each = np.where(by_operator, act.operators, each)
        kept = kept + each * (flying * counts[:, None, :, i]).sum(axis=2)
        extra = np.where(full & (share < 1) & ~by_operator, 0.0, act.whole - each)
        here = counts[:, :, i].sum(axis=1)[:, None] > 0
        peak = np.maximum(peak, np.where(here, act.backward + extra, 0.0))
    return kept, peak


def _outputs(job: TrainingJob, parts: _Parts, pp: int, device: npt.NDArray[np.int64], flying: Any) -> Bytes:
    """What a chunk sent on, held until its gradient comes back: of all chunks but the model's last."""
    sent = flying.sum(axis=2) - np.where(device == pp - 1, 1, 0)[:, None] * flying[:, :, -1]
    held: Bytes = sent * (parts.rows.outer * job.shape.hidden_size * parts.rows.wide)
    return held


def _recomputed_share(plan: TrainingPlan, parts: _Parts, counts: npt.NDArray[np.int64]) -> Any:
    """Share of a device's layers that full recomputation computes again [devices, plans]."""
    is_layer = np.array([act is not None for act in parts.activations])
    layers = np.maximum(counts[:, :, is_layer].sum(axis=(1, 2)), 1)[:, None]
    wanted = np.asarray(plan.recompute_layers)
    return np.where(wanted < 0, 1.0, np.minimum(wanted / layers, 1.0))


def _head(
    job: TrainingJob, plan: TrainingPlan, habits: MemoryHabits, parts: _Parts, held: npt.NDArray[np.int64], flying: Any
) -> tuple[Bytes, Bytes, Bytes]:
    """Kept and peak bytes of final norm, logits and loss (once more for every MTP module), and what of the kept ones is
    free when the last layer's backward begins: one microbatch's."""
    losses = held[:, [b.kind in (BlockKind.HEAD, BlockKind.MTP) for b in parts.blocks]].sum(axis=1)[:, None]
    rows, h = parts.rows, job.shape.hidden_size
    last = np.where(np.asarray(plan.schedule) == PipelineSchedule.ZERO_BUBBLE, 1, flying[:, :, -1])
    kept = 2 * rows.outer * h * rows.wide + habits.kept_logit_bytes * parts.logits
    width = weight_bytes(job)
    split = habits.split_logit_bytes or habits.logit_bytes
    most = np.where(np.greater(plan.dims.tp, 1), split, habits.logit_bytes)
    loss = (most - habits.kept_logit_bytes) * parts.logits
    table = parts.params[-1]
    weight_grad = (table.dense + table.tied) * width * (1 if job.trains_weights else 0)
    product = width * parts.logits + (rows.tokens + rows.gathered) * h * rows.wide + weight_grad
    peak = np.maximum(loss, product - habits.kept_logit_bytes * parts.logits)
    return losses * kept * last, np.minimum(losses, 1) * peak, losses * kept * np.minimum(last, 1)


def _largest(parts: _Parts, held: npt.NDArray[np.int64], *, single_expert: bool) -> Bytes:
    """Parameters of the largest kind of layer on every device, all its experts or one."""
    best = np.zeros((len(held), len(parts.logits)))
    for i, (block, params) in enumerate(zip(parts.blocks, parts.params, strict=True)):
        if block.layer is None:
            continue
        experts: Any = params.expert
        if single_expert:
            number = max((int(getattr(part, "num_experts", 1)) for part in block.layer.all_ffns), default=1)
            experts = experts / np.maximum(number // np.asarray(parts.rows.ep), 1)
        best = np.maximum(best, np.where(held[:, i, None] > 0, params.dense + experts, 0.0))
    return best


def _gathered(
    job: TrainingJob, plan: TrainingPlan, habits: MemoryHabits, parts: _Parts, held: npt.NDArray[np.int64]
) -> Bytes:
    """ZeRO 3: whole weights of the layers at work, a layer's whole gradients in 16 bits and, while they are reduced, in
    the reduction's type, and tables of embedding and head, which stay gathered."""
    width = weight_bytes(job)
    outer = sum(
        held[:, i, None] * 1.0 * (params.dense + 0.0 * parts.logits)
        for i, (block, params) in enumerate(zip(parts.blocks, parts.params, strict=True))
        if block.layer is None
    )
    grads = (width + job.trainer.grad_dtype.bytes) if job.trains_weights else 0.0
    layer = _largest(parts, held, single_expert=False)
    most = np.maximum(layer * habits.layers_gathered / 2, habits.most_gathered)
    weights = np.minimum(layer * habits.layers_gathered, most)
    whole = weights * width + layer * habits.layers_graded * grads + outer * width
    return np.where(np.greater_equal(plan.zero_stage, 3), whole, 0.0)


def _placeholders(job: TrainingJob, habits: MemoryHabits, parts: _Parts, held: npt.NDArray[np.int64]) -> Bytes:
    layer = _largest(parts, held, single_expert=True)
    return layer * weight_bytes(job) * (1 if habits.dummy_wgrad and job.trains_weights else 0)


def _buffers(
    job: TrainingJob,
    plan: TrainingPlan,
    habits: MemoryHabits,
    cluster: Cluster,
    parts: _Parts,
    held: npt.NDArray[np.int64],
) -> Bytes:
    """Buckets; an activation and a gradient on their way between stages; the head's input gathered over tensor ranks;
    cuBLAS."""
    rows, h = parts.rows, job.shape.hidden_size
    moving = np.where(np.greater(plan.dims.pp, 1), 2 * rows.outer * h * rows.wide, 0.0)
    head = np.minimum(held[:, [b.kind is BlockKind.HEAD for b in parts.blocks]].sum(axis=1), 1)[:, None]
    gathered = head * rows.gathered * h * rows.wide
    buckets = np.where(np.greater(plan.dims.dp, 1), habits.buffer_bytes, 0.0)
    own: Bytes = moving + gathered + buckets + WORKSPACE_BYTES.get(cluster.gpu.generation, OTHER_WORKSPACE_BYTES)
    return own


def devices_of(
    job: TrainingJob, pp: int, virtual: int, stage_layers: tuple[int, ...] | None, *, every: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Counts [devices, chunks, blocks] and ranks: of every device, or of the first of each kind, which is the fullest
    of its kind, since no later rank has more microbatches in flight."""
    counts = stage_counts(job.shape, pp, virtual, stage_layers)
    if every:
        return counts, np.arange(pp)
    seen: dict[bytes, int] = {}
    for d, row in enumerate(counts):
        seen.setdefault(row.tobytes(), d)
    first = np.array(sorted(seen.values()))
    return counts[first], first
