"""Memory of a plan: bytes of every device of a pipeline, part by part, of the fullest, and whether they fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.model.plan import Depends, axes_with
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.step.rank_activations import KeptBytes, kept_bytes, microbatch_of
from sartor.step.results import Footprint, check_sum
from sartor.step.stages import (
    CHUNK,
    ChunkLayers,
    columns_of_each,
    distinct_rows,
    entries,
    flat_columns,
    grouped,
    is_v_shaped,
    plans_of,
    stage_counts,
)
from sartor.step.states import HeldBytes, held_bytes, params_of
from sartor.units import Array, BoolArray, Bools, FloatArray, Floats, IntArray, remembered_if_few

USABLE_SHARE = 0.99
"""Share of a device's memory that processes can use (recalled: PyTorch reports 79.15 to 79.33 GiB in total on 80-GiB
A100 and H100)."""

TIGHT_FRAGMENTATION = 1.03
"""Fragmentation on a full device, where the allocator frees cached blocks before it runs out of memory (assumed)."""


def usable_of(gpu: Gpu) -> float:
    """Bytes of a device's memory that a process can fill."""
    return gpu.hbm_bytes * ((1 - gpu.ecc_share) * USABLE_SHARE if gpu.accelerator is None else 1.0)


PEAK_SCALE = 0.042
"""Scale of ln(measured peak / predicted peak), distributed as Student's t with two degrees of freedom. *Fitted* by
likelihood on 183 published peaks, each of 8 sources counted once (`sartor validate memory`, 2026-12-01). Mean log
likelihood of a source left out of the fit: 1.02; logistic 0.82, normal 0.54. The mechanisms of memory have seen these
sources: a new one may be off by more."""

FIT_PROBABILITY = 0.9
"""Usual probability with which a plan must fit: running out of memory costs more than a little recomputation. A run
that fits with less, and does not with less than the rest, is in doubt."""


def fit_probability(peak_bytes: Floats, cluster: Cluster) -> FloatArray:
    """Probability that a training run with this predicted peak fits on a device of the cluster. A user's own chip is
    sure to hold what is predicted: its compiler lays out its memory.

    >>> from sartor.hardware.cluster_catalog import load_cluster
    >>> cluster = load_cluster("dgx-h100")
    >>> fit_probability(usable_bytes(cluster), cluster).tolist()
    0.5
    """
    room = usable_bytes(cluster) / np.maximum(peak_bytes, 1.0)
    if cluster.gpu.accelerator is not None:
        return np.where(room >= 1, 1.0, 0.0)
    deviates = np.log(room) / PEAK_SCALE
    return np.asarray(0.5 + deviates / (2 * np.sqrt(2 + deviates**2)))


def peak_quantile(probability: float, scale: float = PEAK_SCALE) -> float:
    """The measured peak, relative to the predicted one, that is not exceeded with this probability.

    >>> peak_quantile(0.5), peak_quantile(0.9) > 1
    (1.0, True)
    """
    return math.exp(scale * (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability)))


def margin(probability: float) -> float:
    """Share of a GPU's usable memory that a predicted peak must leave free to fit with this probability.

    >>> round(margin(0.5), 3), margin(0.99) > margin(0.9) > 0
    (0.0, True)
    """
    return 1 - 1 / peak_quantile(probability)


def likely_text(peak_bytes: float, cluster: Cluster) -> str:
    """``58% likely to fit``: the probability of fit in words."""
    share = float(fit_probability(peak_bytes, cluster))
    words = "over 99%" if share > 0.99 else "under 1%" if share < 0.01 else f"{share:.0%}"
    return f"{words} likely to fit"


def in_doubt(peak_bytes: float, cluster: Cluster) -> bool:
    """Whether a training run with this predicted peak may fit as well as not."""
    return 1 - FIT_PROBABILITY < float(fit_probability(peak_bytes, cluster)) < FIT_PROBABILITY


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Bytes [devices, plans] of some devices of a pipeline (``device``: their ranks)."""

    device: IntArray
    held: HeldBytes
    kept: KeptBytes
    needed: FloatArray
    """Bytes that the allocator cannot free."""
    reserved: FloatArray
    """Bytes reserved by the allocator where it has room."""

    @property
    def late(self) -> FloatArray:
        """Gradients that are not there yet when backward begins."""
        return self.held.grads * self.kept.fresh

    @property
    def ends(self) -> BoolArray:
        """Whether memory peaks at the end of backward, with all gradients and one layer's activations."""
        starts = self.kept.layers_kept + self.kept.head_kept + np.maximum(self.kept.layer_peak, self.kept.head_peak)
        return self.late + self.kept.last_peak > starts

    @property
    def grads(self) -> FloatArray:
        """Gradients at the peak."""
        return self.held.grads - np.where(self.ends, 0.0, self.late)

    @property
    def gathered(self) -> FloatArray:
        """Whole weights and gradients of what ZeRO 3 shards."""
        return self.held.gathered + self.held.unsynced * (1 - self.kept.fresh)

    @property
    def stash(self) -> FloatArray:
        """Kept for backward, all microbatches in flight."""
        return np.where(self.ends, 0.0, self.kept.layers_kept + self.kept.head_kept)

    @property
    def buffers(self) -> FloatArray:
        """Communication buckets, transfers between stages, library workspaces."""
        return self.kept.moving + self.held.buckets

    @property
    def working(self) -> FloatArray:
        """Peak of forward and backward on top of what is kept."""
        peak = np.where(self.ends, self.kept.last_peak, np.maximum(self.kept.layer_peak, self.kept.head_peak))
        return peak + self.gathered + self.held.placeholders + self.buffers

    @property
    def steps(self) -> BoolArray:
        """Whether memory peaks in the optimizer's step."""
        return self.held.step_peak + self.buffers > self.stash + self.working

    @property
    def allocated(self) -> FloatArray:
        """Bytes allocated to tensors at the peak."""
        states = self.held.states - self.held.grads + self.grads
        return states + np.maximum(self.stash + self.working, self.held.step_peak + self.buffers)

    @property
    def device_bytes(self) -> FloatArray:
        return self.needed + self.held.context


def stage_bytes(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    counts: IntArray,
    device: IntArray,
) -> StageBytes:
    """Bytes of the pipeline ranks ``device`` that hold ``counts`` [devices, chunks, blocks] of `blocks`; the fields of
    ``plan`` are flat arrays of equal length with a single pp and number of virtual stages."""
    held = held_bytes(job, plan, cluster.gpu, params_of(job, plan), counts.sum(axis=1)[:, None])
    kept = kept_bytes(job, plan, cluster.gpu, microbatch_of(job, plan), [(counts, device)], [0, held.grads.shape[1]])
    late, starts = held.grads * kept.fresh, kept.layers_kept + kept.head_kept
    starts = starts + np.maximum(kept.layer_peak, kept.head_peak)
    whole = held.gathered + held.placeholders + held.unsynced * (1 - kept.fresh)
    needed, reserved = _allocator_bytes(
        job,
        cluster,
        held.states - late + held.buckets + kept.moving,
        np.maximum(starts, late + kept.last_peak) + whole,
        (np.maximum(starts, late * (1 - held.is_apart) + kept.last_peak) + whole, held.apart + late * held.is_apart),
        (held.step_peak, held.step_blocks),
        held.context,
    )
    return StageBytes(device=device, held=held, kept=kept, needed=needed, reserved=reserved)


def _allocator_bytes(
    job: TrainingJob,
    cluster: Cluster,
    base: FloatArray,
    passing: FloatArray,
    pools: tuple[FloatArray, FloatArray],
    step: tuple[FloatArray, FloatArray],
    context: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Bytes that the allocator needs and those that it reserves: states and buffers (``base``), activations and
    temporaries (``passing``) with fragmentation, and separate blocks for the optimizer's ``step`` (peak, unused
    blocks). ``pools`` are the largest parts of ``passing`` in the stream of kernels, and blocks of other streams, which
    do not share theirs. Near the device's limit the allocator frees idle blocks, so that more is reserved than needed
    only where there is room."""
    habits, (step_peak, step_blocks) = job.trainer.memory, step
    tight = min(habits.fragmentation, TIGHT_FRAGMENTATION)
    full = (usable_of(cluster.gpu) - context) * (1 - 1e-9)
    tight_bytes, loose = passing * tight, pools[0] * habits.fragmentation + pools[1]
    if np.any(step_peak):
        tight_bytes = np.maximum(tight_bytes, step_peak)
        loose = np.maximum(loose + step_peak + step_blocks if habits.steps_in_own_blocks else loose, step_peak)
    needed: FloatArray = base + tight_bytes
    return needed, np.maximum(needed, np.minimum(base + loose, full))


def _devices_of(
    job: TrainingJob,
    pp: int,
    virtual: int,
    stage_layers: tuple[int, ...] | None,
    *,
    every: bool,
    v_shaped: bool = False,
) -> tuple[IntArray, IntArray]:
    """Counts [devices, chunks, blocks] and ranks: of every device, or only of the first of each kind. The first needs
    the most memory of its kind, since no later rank has more microbatches in flight."""
    counts = stage_counts(job.shape, pp, virtual, stage_layers, v_shaped=v_shaped)
    if every or v_shaped:  # in a V the number in flight differs on every device
        return counts, np.arange(pp)
    seen: dict[bytes, int] = {}
    for d, row in enumerate(counts):
        seen.setdefault(row.tobytes(), d)
    first = np.array(sorted(seen.values()))
    return counts[first], first


_PARTS = (
    "param_bytes",
    "grad_bytes",
    "optimizer_bytes",
    "stash_bytes",
    "workspace_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "device_bytes",
    "stage",
)


def footprint(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, layers: ChunkLayers | None = None) -> Footprint:
    """Bytes of the fullest device at its peak, for one plan or for arrays of plans (``layers``: each with its own).

    Derivation: docs/concepts/memory.md. Raises ``InputError`` if ``stage_layers`` are not layers of the model.

    >>> from sartor.hardware.cluster_catalog import load_cluster
    >>> from sartor.model.zoo import load_model
    >>> job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=128)
    >>> plan = TrainingPlan(dims=ParallelDims(tp=2, dp=4), num_microbatches=32, zero_stage=1)
    >>> round(footprint(job, plan, load_cluster("dgx-h100")).allocated_bytes / 2**30)
    54
    """
    columns, shape = flat_columns(plan)
    splits, split = layers or ([plan.stage_layers], np.zeros_like(columns["pp"]))
    parts = _fullest(job, columns, cluster, splits, split)
    return _footprint([part.reshape(shape) if shape else float(part[0]) for part in parts])


def footprint_each(job: TrainingJob, plans: Sequence[TrainingPlan], cluster: Cluster) -> list[Footprint]:
    """`footprint` of single plans that have their own ``stage_layers``; what they share is computed once."""
    if not plans:
        return []
    columns, splits, split = columns_of_each(plans)
    parts = _fullest(job, columns, cluster, splits, split)
    return [_footprint(values) for values in parts.T.tolist()]


def _footprint(parts: Sequence[Any]) -> Footprint:
    values = dict(zip(_PARTS, parts, strict=True))
    stage = values.pop("stage")
    check_sum("memory", [values[name] for name in _PARTS[:5]], values["allocated_bytes"])
    return Footprint(**values, stage=stage.astype(np.int64) if isinstance(stage, np.ndarray) else int(stage))


def every_stage(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> StageBytes:
    """Bytes of all pipeline ranks of one plan, part by part: arrays [pp, 1]."""
    flat = plans_of(flat_columns(plan)[0])
    pp, virtual = int(flat.dims.pp[0]), int(flat.virtual_stages[0])  # type: ignore[index]
    is_v = is_v_shaped(plan.schedule, pp, virtual)
    counts, device = _devices_of(job, pp, virtual, plan.stage_layers, every=True, v_shaped=bool(is_v))
    return stage_bytes(job, flat, cluster, counts, device)


def fits(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Bools:
    """Whether the fullest device fits in its memory: a bool or an array over plans."""
    inside = np.asarray(footprint(job, plan, cluster).device_bytes) <= usable_bytes(cluster)
    return inside if inside.ndim else bool(inside)


def host_bytes(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Floats:
    """Bytes of optimizer states in a node's host memory: offloaded by the plan, or paged out by the optimizer where
    devices have no room for any."""
    inside = replace(job, optimizer=job.optimizer.unpaged), replace(plan, optimizer_offload=False)
    kept, here = (footprint(*asked, cluster).optimizer_bytes for asked in (inside, (job, plan)))
    return (kept - here) * np.minimum(cluster.devices_per_node, plan.num_devices)


def usable_bytes(cluster: Cluster) -> float:
    """Memory of a device of the cluster that a process can fill; of a mixed cluster, of its smallest device."""
    return min(usable_of(gpu) for gpu in cluster.gpus)


KEPT = ("num_microbatches", *axes_with(Depends.KEPT))
"""Columns that `kept_bytes` depends on, and `HELD` that `held_bytes` does, besides the pipeline."""
HELD = axes_with(Depends.HELD)


def _fullest(
    job: TrainingJob,
    columns: dict[str, IntArray],
    cluster: Cluster,
    splits: Sequence[tuple[int, ...] | None],
    split: IntArray,
) -> FloatArray:
    """The `_PARTS` [parts, plans] of every plan's fullest device; ``split`` is each plan's index into ``splits``.

    Bytes that depend on microbatches and bytes that do not are each computed once for their own distinct rows of plans,
    pipeline by pipeline and at most `CHUNK` at once."""
    pp, virtual = columns["pp"], columns["virtual_stages"]
    is_v = is_v_shaped(columns["schedule"], pp, virtual)
    ways, pipeline = distinct_rows([pp, virtual, is_v.astype(np.int64), split])
    pipelines = [
        _devices_of(job, stages, chunks, splits[layers], every=False, v_shaped=bool(v_shaped))
        for stages, chunks, v_shaped, layers in zip(*(way.tolist() for way in ways), strict=True)
    ]
    # Pipelines with equally many ranks are adjacent, and weighed together.
    ranks = range(len(pipelines)) if job.trainer.lockstep else [len(device) for _, device in pipelines]
    group = np.unique(ranks, return_inverse=True)[1]
    order, ends = grouped(group, int(group.max()) + 1)
    plans, plans_before = grouped(group[pipeline], len(ends) - 1)
    ways, pipelines, pipeline = [way[order] for way in ways], [pipelines[i] for i in order], np.argsort(order)[pipeline]
    kept_rows, kept_at = distinct_rows([pipeline, *(columns[name] for name in KEPT)])
    held_rows, held_at = distinct_rows([pipeline, *(columns[name] for name in HELD)])
    kept_plan = _plan_of(KEPT, *_of_ways(ways, kept_rows))
    microbatches = microbatch_of(job, kept_plan)
    kept_starts, held_starts = (np.searchsorted(rows[0], np.arange(order.size + 1)) for rows in (kept_rows, held_rows))
    out = np.empty((len(_PARTS), pp.size))
    for i, (first, end) in enumerate(pairwise(ends)):
        of_kept, of_held = (slice(*starts[[first, end]].tolist()) for starts in (kept_starts, held_starts))
        counts = np.stack([of_chunks.sum(axis=1) for of_chunks, _ in pipelines[first:end]], axis=1)
        held = _held(
            job,
            cluster.gpu,
            counts[:, held_rows[0][of_held] - first],
            *_of_ways(ways, [row[of_held] for row in held_rows]),
        )
        starts = kept_starts[first : end + 1] - of_kept.start
        batch = (microbatches, kept_plan) if len(ends) == 2 else entries((microbatches, kept_plan), of_kept)
        kept = kept_bytes(job, batch[1], cluster.gpu, batch[0], pipelines[first:end], starts.tolist())
        device = np.stack([device for _, device in pipelines[first:end]], axis=1)
        stop = plans_before[i + 1]
        chunks = [_as_slice(plans[k : min(k + CHUNK, stop)]) for k in range(plans_before[i], stop, CHUNK)]
        rows = ((kept_at[k] - of_kept.start, held_at[k] - of_held.start, pipeline[k] - first) for k in chunks)
        for chunk, parts in zip(chunks, _fullest_of(job, cluster, device, kept, held, rows), strict=True):
            for row, part in zip(out, parts, strict=True):
                row[chunk] = part
    return out


def _as_slice(positions: IntArray) -> IntArray | slice:
    """Ascending positions; as a slice if none is left out, which neither gathers nor scatters."""
    first, end = int(positions[0]), int(positions[-1]) + 1
    return slice(first, end) if end - first == positions.size else positions


def _of_ways(ways: Sequence[IntArray], rows: Sequence[IntArray]) -> list[IntArray]:
    """Devices and chunks of the pipelines whose index into ``ways`` is the rows' first column, then their others."""
    return [ways[0][rows[0]], ways[1][rows[0]], *rows[1:]]


def _plan_of(names: Sequence[str], *columns: IntArray) -> TrainingPlan:
    return plans_of(dict(zip(("pp", "virtual_stages", *names), columns, strict=True)))


@remembered_if_few
def _held(job: TrainingJob, gpu: Gpu, counts: IntArray, *columns: IntArray) -> HeldBytes:
    """`held_bytes` of plans with these columns: devices and chunks of their pipelines, then `HELD`."""
    plan = _plan_of(HELD, *columns)
    return held_bytes(job, plan, gpu, params_of(job, plan), counts)


def _fullest_of(
    job: TrainingJob,
    cluster: Cluster,
    device: IntArray,
    kept: KeptBytes,
    held: HeldBytes,
    rows: Iterable[tuple[IntArray, IntArray, IntArray]],
) -> Iterator[tuple[Array, ...]]:
    """The `_PARTS` [plans] of the device that holds most, of the ranks ``device`` [devices, pipelines] with their bytes
    [devices, rows], for every chunk of plans: their kept rows, held rows and pipelines."""
    passing = kept.layers_kept + kept.head_kept, np.maximum(kept.layer_peak, kept.head_peak)
    has_fresh, nothing = bool(kept.fresh.any()), np.zeros(1)
    states = held.weights + held.narrow_weights, held.grads, held.optimizer
    lasting, at_peak, gathered = held.states + held.buckets, passing[0] + passing[1], held.gathered + held.placeholders
    has_peak, has_waiting = bool(held.step_peak.any()), bool(held.unsynced.any())
    for k, h, pipeline in rows:
        base = kept.moving.take(k, axis=1) + lasting.take(h, axis=1)
        busy, context = at_peak.take(k, axis=1), held.context[0].take(h)
        pool, apart = busy, held.apart.take(h, axis=1)
        if has_fresh:
            late, is_apart = held.grads.take(h, axis=1) * kept.fresh.take(k, axis=1), held.is_apart.take(h)
            last, apart = kept.last_peak.take(k, axis=1), apart + late * is_apart
            base, is_end = base - late, late + last > busy
            busy, pool = np.maximum(busy, late + last), np.maximum(busy, late * (1 - is_apart) + last)
        whole = gathered.take(h, axis=1)
        if has_waiting:
            whole = whole + held.unsynced.take(h, axis=1) * (1 - kept.fresh.take(k, axis=1))
        busy, pool = busy + whole, pool + whole
        step, blocks = (part.take(h, axis=1) if has_peak else nothing for part in (held.step_peak, held.step_blocks))
        needed, reserved = _allocator_bytes(job, cluster, base, busy, (pool, apart), (step, blocks), context)
        fullest, full = _largest(needed)
        of_kept, of_held = fullest * at_peak.shape[1] + k, fullest * lasting.shape[1] + h
        moving, stash, peak = (part.take(of_kept) for part in (kept.moving, *passing))
        params, grads, optimizer = (part.take(of_held) for part in states)
        at = fullest * busy.shape[1] + np.arange(busy.shape[1])
        extra, reserved = whole.take(at), reserved.take(at)
        if has_fresh:
            ends = is_end.take(at)
            grads = grads - np.where(ends, 0.0, late.take(at))
            stash, peak = np.where(ends, 0.0, stash), np.where(ends, kept.last_peak.take(of_kept), peak)
        buckets, step = held.buckets[0].take(h), held.step_peak.take(of_held) if has_peak else nothing
        stepping, working = step + moving + buckets, peak + extra + moving + buckets
        steps = stepping > stash + working
        yield (
            params,
            grads,
            optimizer,
            np.where(steps, 0.0, stash),
            np.where(steps, stepping, working),
            params + grads + optimizer + np.maximum(stash + working, stepping),
            reserved,
            full + context,
            device[fullest, pipeline],
        )


def _largest(values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Index of the largest row per column, the first of equal ones, and its value; there are few rows."""
    stage, best = np.zeros(values.shape[1], dtype=np.int64), values[0]
    for r in range(1, len(values)):
        stage = np.where(values[r] > best, r, stage)
        best = np.maximum(best, values[r])
    return stage, best
