"""What a pipeline rank keeps of its microbatches for backward, and the extra bytes at their peak; in lockstep as
accelerator studies count them (PHAZE, sec. 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.shape import Block, BlockKind, blocks
from sartor.model.training import OffloadModule, PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import Loss, ParallelDims
from sartor.step.activations import Activations, Rows, layer_activations, rows_of
from sartor.step.stages import distinct_rows, entries, is_v_shaped, round_of, summed
from sartor.step.states import block_params, table_rows, weight_bytes
from sartor.units import FloatArray, Floats, IntArray, Ints, ceil_div, remembered_if_few

WORKSPACE_BYTES = {"hopper": 64e6, "blackwell": 64e6}
"""cuBLAS workspaces held in the allocator: 32 MiB each for PyTorch and Transformer Engine from Hopper on (recalled)."""
OTHER_WORKSPACE_BYTES = 13e6
"""Workspaces before Hopper: 8.1 MiB for PyTorch's cuBLAS and 4 MiB for Transformer Engine (recalled)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """Bytes [devices, plans]."""

    layers_kept: FloatArray
    """Activations of layers, all microbatches in flight."""
    head_kept: FloatArray
    """Kept by the final norm and the loss."""
    layer_peak: FloatArray
    """Backward of the largest layer, with recomputed activations, less what the loss has freed by then."""
    last_peak: FloatArray
    """Backward of the largest layer with all that it keeps, when nothing else is left."""
    fresh: FloatArray
    """1 where gradients appear in backward, 0 where they are there before (``MemoryHabits.fresh_grads``)."""
    head_peak: FloatArray
    """Logits and their gradients, beyond the kept part."""
    moving: FloatArray
    """Transfers between stages, the head's input gathered over tensor ranks, workspaces of libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Microbatch:
    """One microbatch on one device, for every plan: rows, and the activations of one layer of each block."""

    activations: tuple[Activations | None, ...]
    rows: Rows
    logits: Any
    """Local tokens times the local vocabulary."""
    table: Any
    """Parameters of the head with its table."""


def microbatch_of(job: TrainingJob, plan: TrainingPlan) -> _Microbatch:
    """Computed once for every distinct (tp, cp, ep, microbatch_size, sequence_parallel) of flat plans."""
    d = plan.dims
    few, back = distinct_rows([d.tp, d.cp, d.ep, plan.microbatch_size, d.sequence_parallel])
    by_plan: _Microbatch = entries(_microbatch(job, *few), back)
    return by_plan


@remembered_if_few
def _microbatch(
    job: TrainingJob, tp: IntArray, cp: IntArray, ep: IntArray, size: IntArray, split: IntArray
) -> _Microbatch:
    dims = ParallelDims(tp=tp, cp=cp, ep=ep, sequence_parallel=split.astype(bool))  # type: ignore[arg-type]
    rows, block_kinds = rows_of(job, TrainingPlan(dims=dims, microbatch_size=size)), blocks(job.shape)
    acts = [None if b.layer is None else layer_activations(rows, b.layer, b.stack.hidden_size) for b in block_kinds]
    head = block_params(job, dims)[-1]
    return _Microbatch(
        activations=tuple(acts),
        rows=rows,
        logits=rows.tokens * ceil_div(table_rows(job, tp), tp) if job.shape.lm_head else 0 * rows.tokens,
        table=np.asarray(head.dense + head.tied) * head.trained + 0 * tp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """R pipeline ranks of each of n plans: what they hold, and the microbatches in flight there at the peak."""

    device: IntArray
    """[R, n], or [R, 1] of one pipeline: position in it."""
    held: IntArray
    """[R, n, K], or [R, 1, K] of one pipeline: how many of each of `blocks`."""
    flying: IntArray
    """[R, n, K]: the same, each counted once for every microbatch in flight in its chunk."""
    last: IntArray
    """[R, n]: microbatches in flight in the rank's last chunk."""
    sent: IntArray
    """[R, n]: the sum over chunks of the microbatches in flight there."""
    entered: IntArray
    """[R, n]: microbatches in flight in the rank's first chunk."""


_Pipeline = tuple[IntArray, IntArray]
"""What ranks of a pipeline hold, [R, chunks, K], and their positions in it [R]."""


def _ranks_of(plan: TrainingPlan, pipelines: Sequence[_Pipeline], starts: Sequence[int]) -> _Ranks:
    """Ranks of ``pipelines`` with equally many; the plans of each are between two of ``starts``."""
    flying, last, sent, entered = (list[IntArray]() for _ in range(4))
    for (counts, device), first, end in zip(pipelines, starts[:-1], starts[1:], strict=True):
        few, back = distinct_rows([plan.schedule[first:end], plan.num_microbatches[first:end]])  # type: ignore[index]
        pp, chunks = int(plan.dims.pp[first]), counts.shape[1]  # type: ignore[index]
        in_chunk = in_flight(few[0], device[:, None], pp, chunks, few[1])
        in_chunk = np.broadcast_to(in_chunk, (len(device), few[0].size, chunks))
        flying.append((in_chunk @ counts).take(back, axis=1))
        last.append(in_chunk[..., -1].take(back, axis=1))
        sent.append(in_chunk.sum(axis=2).take(back, axis=1))
        entered.append(in_chunk[..., 0].take(back, axis=1))
    device = np.stack([device for _, device in pipelines], axis=1)
    held = np.stack([counts.sum(axis=1) for counts, _ in pipelines], axis=1)
    if len(pipelines) > 1:
        of_plan = np.repeat(np.arange(len(pipelines)), np.diff(starts))
        device, held = device.take(of_plan, axis=1), held.take(of_plan, axis=1)
    return _Ranks(
        device=device,
        held=held,
        flying=np.concatenate(flying, axis=1),
        last=np.concatenate(last, axis=1),
        sent=np.concatenate(sent, axis=1),
        entered=np.concatenate(entered, axis=1),
    )


def kept_bytes(
    job: TrainingJob,
    plan: TrainingPlan,
    gpu: Gpu,
    microbatch: _Microbatch,
    pipelines: Sequence[_Pipeline],
    starts: Sequence[int],
) -> KeptBytes:
    """Bytes of the ranks of ``pipelines`` with equally many (in lockstep of one); ``plan`` has flat arrays of equal
    length, and the plans of each pipeline are between two of ``starts``."""
    if job.trainer.lockstep:
        return _kept_in_lockstep(job, plan, microbatch, *pipelines[0])
    ranks = _ranks_of(plan, pipelines, starts)
    layers_kept, layer_peak, last_peak = _layers(job, plan, microbatch, ranks)
    if job.trainer.memory.keeps_outputs:
        layers_kept = layers_kept + _outputs(job, plan, microbatch, ranks)
    head_kept, head_peak, head_freed = _head(job, plan, microbatch, ranks)
    return KeptBytes(
        layers_kept=layers_kept,
        head_kept=head_kept,
        layer_peak=np.maximum(layer_peak - head_freed, 0.0),
        last_peak=last_peak,
        fresh=np.broadcast_to(_fresh(job, plan), head_peak.shape),
        head_peak=head_peak,
        moving=_moving(job, plan, gpu, microbatch, ranks),
    )


def _fresh(job: TrainingJob, plan: TrainingPlan) -> FloatArray:
    single = np.equal(plan.num_microbatches, 1) & np.equal(plan.dims.pp, 1)
    return np.asarray(single & job.trainer.memory.fresh_grads, dtype=np.float64)


def _kept_in_lockstep(
    job: TrainingJob, plan: TrainingPlan, microbatch: _Microbatch, counts: IntArray, device: IntArray
) -> KeptBytes:
    """Bytes of the ranks ``device`` of one pipeline in lockstep, which hold ``counts`` [R, chunks, K].

    A chunk keeps all activations of its current microbatch, and of every other one in flight all of them or, under full
    recomputation, the chunk's input."""
    pp = int(plan.dims.pp[0])  # type: ignore[index]
    stashes = np.stack(
        [
            block_stash(job, microbatch.rows, block, microbatch.logits) + 0.0 * microbatch.logits
            for block in blocks(job.shape)
        ]
    )
    chunks = np.arange(counts.shape[1])
    activations = np.stack([summed(counts[:, c], stashes) for c in chunks], axis=-1)
    is_first = (device[:, None] == 0) & (chunks == 0)
    entering = np.where(is_first[:, None], 0.0, boundary_bytes(job, microbatch.rows)[..., None])  # type: ignore[index]
    stash = np.where(np.equal(plan.recompute, Recompute.FULL)[:, None], entering, activations)
    flying: Floats = (pp - device)[:, None, None]
    if len(chunks) > 1:
        schedule = PipelineSchedule.ONE_F_ONE_B
        flying = in_flight(schedule, device[:, None], pp, len(chunks), plan.num_microbatches)
    peak_bytes: FloatArray = (flying * stash).sum(axis=2) + (activations - stash).max(axis=2)
    nothing = np.zeros_like(peak_bytes)
    of_head = {"head_kept": nothing, "head_peak": nothing, "moving": nothing, "last_peak": nothing, "fresh": nothing}
    return KeptBytes(layers_kept=peak_bytes, layer_peak=nothing, **of_head)


def _layers(
    job: TrainingJob, plan: TrainingPlan, microbatch: _Microbatch, ranks: _Ranks
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Activations that layers keep, the peak of one layer's backward with its recomputed activations, and the same with
    what the layer keeps."""
    again, full = np.asarray(plan.recompute), np.asarray(plan.recompute) == Recompute.FULL
    layers = _layers_of(microbatch, ranks.held)
    share = _recomputed_share(plan, layers)
    by_operator = full & (np.asarray(plan.recompute_layers) >= 0) & job.trainer.checkpoints_operators
    whole_layers = full & np.less(share, 1) & ~by_operator
    stash_bytes = np.zeros((len(ranks.held), full.size))
    peak, last = np.zeros_like(stash_bytes), np.zeros_like(stash_bytes)
    for i, act in enumerate(microbatch.activations):
        if act is None:
            continue
        per_layer = np.where(again == Recompute.SELECTIVE, act.selective, act.whole)
        per_layer = np.where(full, share * act.inputs + (1 - share) * act.whole, per_layer)
        per_layer = np.where(by_operator, act.operators, per_layer)
        stash_bytes = stash_bytes + per_layer * ranks.flying[..., i]
        if job.offload_modules:
            plain, selective, inputs = moved_bytes(job, act)
            moved = np.where(again == Recompute.SELECTIVE, selective, plain)
            moved = np.where(full, share * inputs + (1 - share) * plain, moved)
            gone = share_moved(job, layers) * ranks.flying[..., i]
            stash_bytes = stash_bytes - np.maximum(gone - STAY, 0) * moved
        extra = np.where(whole_layers, 0.0, act.whole - per_layer)
        peak = np.maximum(peak, np.where(ranks.held[..., i] > 0, act.backward + extra, 0.0))
        last = np.maximum(last, np.where(ranks.held[..., i] > 0, act.backward + per_layer + extra, 0.0))
    return stash_bytes, peak, last


SPLIT = tuple(int(schedule) for schedule in PipelineSchedule if schedule.splits)
STAY = 2
"""Layers whose activations stay on the device despite offloading: the last ones, needed first in backward, or one in
use and one on its way back (Megatron-Core keeps the last groups; the number is assumed)."""


def moved_bytes(job: TrainingJob, act: Activations) -> tuple[Floats, Floats, Floats]:
    """Offloaded bytes of a block and microbatch: without recomputation, with selective, with full."""
    inputs = act.inputs if OffloadModule.LAYER_INPUT in job.offload_modules else 0
    return act.whole_offloaded, act.selective_offloaded, inputs


def share_moved(job: TrainingJob, layers: Floats) -> Floats:
    """Share of a device's ``layers`` whose activations are offloaded."""
    return np.minimum(job.offload_layers / np.maximum(layers, 1), 1.0) if job.offload_layers else 1.0


def _outputs(job: TrainingJob, plan: TrainingPlan, microbatch: _Microbatch, ranks: _Ranks) -> FloatArray:
    """Chunk outputs held until their gradient comes back, for all chunks but the model's last."""
    sent = ranks.sent - np.where(ranks.device == np.asarray(plan.dims.pp) - 1, ranks.last, 0)
    return np.asarray(sent * (microbatch.rows.outer * job.shape.hidden_size * microbatch.rows.wide), dtype=np.float64)


def _recomputed_share(plan: TrainingPlan, layers: IntArray) -> Floats:
    """Share of a rank's ``layers`` [R, n] that full recomputation recomputes."""
    num_recomputed = np.asarray(plan.recompute_layers)
    return np.where(num_recomputed < 0, 1.0, np.minimum(num_recomputed / layers, 1.0))


def _layers_of(microbatch: _Microbatch, counts: IntArray) -> IntArray:
    """Number of layers on every rank [R, n]."""
    is_layer = np.array([act is not None for act in microbatch.activations])
    layers: IntArray = np.maximum(counts[..., is_layer].sum(axis=2), 1)
    return layers


def _head(
    job: TrainingJob, plan: TrainingPlan, microbatch: _Microbatch, ranks: _Ranks
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Kept and peak bytes of final norm, logits and loss (once more for every MTP module), and the kept bytes that are
    free when the last layer's backward begins: one microbatch's. A loss that is computed with the head has as many
    logits at once as its input has values (Liger's chunks: tokens x hidden size; ops/fused_linear_cross_entropy.py,
    recalled, 2026-11-29)."""
    losses = ranks.held[..., [b.kind in (BlockKind.HEAD, BlockKind.MTP) for b in blocks(job.shape)]].sum(axis=2)
    rows, h, habits = microbatch.rows, job.shape.hidden_size, job.trainer.habits
    last = np.where(np.isin(plan.schedule, SPLIT), 1, ranks.last)
    logits = microbatch.logits
    if not job.trainer.fused_loss.keeps_logits:
        logits = np.minimum(logits, rows.tokens * h) * (0 if job.trainer.fused_loss is Loss.CUT else 1)
    logit_stash = (rows.outer + rows.entering) * h * rows.wide + habits.kept_logit_bytes * logits
    width = weight_bytes(job)
    split = habits.split_logit_bytes or habits.logit_bytes
    logit_peak = np.where(np.greater(plan.dims.tp, 1), split, habits.logit_bytes)
    loss = (logit_peak - habits.kept_logit_bytes) * logits
    weight_grad = microbatch.table * width * (1 if job.trains_weights else 0)
    product = width * logits + (rows.tokens + rows.gathered) * h * rows.wide + weight_grad
    peak = np.maximum(loss, product - habits.kept_logit_bytes * logits)
    returned: Floats = 0.0
    if habits.returns_logits:
        several = np.asarray(plan.num_microbatches) * np.greater(plan.dims.pp, 1)
        returned = np.maximum(several - last, 0) * rows.wide * logits
        peak = np.maximum(peak, (several * rows.wide - habits.kept_logit_bytes) * logits)
    kept = losses * (logit_stash * last + returned)
    return kept, np.minimum(losses, 1) * peak, losses * logit_stash * np.minimum(last, 1)


def _moving(job: TrainingJob, plan: TrainingPlan, gpu: Gpu, microbatch: _Microbatch, ranks: _Ranks) -> FloatArray:
    """Transfers between stages (activation, gradient); the head's input gathered over tensor ranks; workspaces."""
    rows, h = microbatch.rows, job.shape.hidden_size
    buffers_held: Floats = _received(plan, ranks) if job.trainer.memory.buffers_each_microbatch else 2
    between = np.where(np.greater(plan.dims.pp, 1), buffers_held * rows.outer * h * rows.wide, 0.0)
    head = np.minimum(ranks.held[..., [b.kind is BlockKind.HEAD for b in blocks(job.shape)]].sum(axis=2), 1)
    gathered = head * rows.gathered * h * rows.wide
    buffers: FloatArray = between + gathered + WORKSPACE_BYTES.get(gpu.generation, OTHER_WORKSPACE_BYTES)
    return buffers


def _received(plan: TrainingPlan, ranks: _Ranks) -> FloatArray:
    """Activations and gradients received of all microbatches, beside the activations in flight that the chunks' first
    layers keep: none enters the model's first chunk, no gradient its last."""
    pp, chunks, m = np.asarray(plan.dims.pp), np.asarray(plan.virtual_stages), np.asarray(plan.num_microbatches)
    first = ranks.device == 0
    last = np.where(is_v_shaped(plan.schedule, pp, chunks), first, ranks.device == pp - 1)
    activations = m * (chunks - first) - (ranks.sent - first * ranks.entered)
    return np.asarray(activations + m * (chunks - last), dtype=np.float64)


def in_flight(schedule: Floats, device: Floats, pp: int, virtual: int, microbatches: Ints) -> Floats:
    """Microbatches whose forward has begun and whose backward (with a zero bubble: weight gradient) has not ended, on
    rank ``device`` at its peak: broadcast of the arguments' arrays with a last axis of ``virtual`` chunks.

    1F1B fills the pipeline: rank d holds pp - d (Narayanan et al. 2021, sec. 2.2); interleaved, it has begun 2 (pp - d
    - 1) + (v - 1) pp + 1 passes through a chunk. In ZB-H1 a rank delays as many weight gradients as there are devices
    before it, so every rank holds pp. GPipe holds all. In a V, rank d holds 2 pp chunk microbatches (Qi et al. 2024,
    table 2), d + 1 of them in its second chunk, and DualPipeV holds one more.
    """
    m = np.asarray(microbatches)[..., None]
    d = np.asarray(device)[..., None]
    kind = np.asarray(schedule)[..., None]
    if virtual == 1:
        steady = np.minimum(m, pp - d)
        whole = np.where(kind == PipelineSchedule.ZERO_BUBBLE, np.minimum(m, pp), steady)
        return np.where(kind == PipelineSchedule.GPIPE, m, whole)
    late = np.where(kind == PipelineSchedule.ZERO_BUBBLE, d, 0)  # delayed weight gradients
    size = round_of(pp, m)
    begun = np.minimum((pp - 1 - d) * 2 + (virtual - 1) * size + 1 + late, m * virtual)
    rounds, rest = begun // (size * virtual), begun % (size * virtual)
    last = np.clip(m - rounds * size, 1, size)
    of_chunk = rounds * size + np.clip(rest - np.arange(virtual) * last, 0, last)
    if np.any(kind >= PipelineSchedule.ZERO_BUBBLE_V) and virtual == 2:
        first = 2 * pp - d - np.where(kind == PipelineSchedule.ZERO_BUBBLE_V, 1, 0)
        v = np.minimum(m, np.where(np.arange(2) == 0, first, d + 1))
        of_chunk = np.where(kind >= PipelineSchedule.ZERO_BUBBLE_V, v, of_chunk)
    return np.where(kind == PipelineSchedule.GPIPE, m, of_chunk)


WIDTH_BYTES = 2.0
"""Bytes of a weight, a gradient and an activation in compute and transfers."""
LOGIT_BYTES = 6.0
"""Per logit: 16-bit logits and their probabilities in fp32, kept for the last stage's current microbatch."""


def block_stash(job: TrainingJob, rows: Rows, block: Block, logits: Floats) -> Floats:
    """Activations that one microbatch leaves in a block until its backward [bytes over plans]."""
    if block.kind is BlockKind.LAYER:
        assert block.layer is not None
        return layer_activations(rows, block.layer, block.stack.hidden_size).whole
    stream = boundary_bytes(job, rows)
    if block.kind is BlockKind.EMBEDDING:
        return stream
    return LOGIT_BYTES * logits + (2 * stream if block.kind is BlockKind.HEAD else 0.0)


def boundary_bytes(job: TrainingJob, rows: Rows) -> Floats:
    """One microbatch's activation between two layers, on one device."""
    return WIDTH_BYTES * rows.outer * job.shape.hidden_size
