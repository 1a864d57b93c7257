"""All microbatches' way through a pipeline, over equal devices or pools of different ones.

Two runtimes. Stages that advance at their own speed, by their schedule (`pipeline_laws`); and lockstep, which
accelerator studies assume (PHAZE, sec. 4.3): every slot lasts as long as the slowest device needs for one
microbatch, including transfers. With v chunks on each of S devices, a slot is one chunk's, and the devices work on
chunks with the same number: S slots on each, in turn. Nothing overlaps:

    pipeline = m * (sum over chunks of their slowest) + (S - 1) * slowest of all

`sartor.placement` proves the best placement for this formula with v = 1. With full recomputation a stage keeps its
input and runs its forward again while the gradient arrives; the last stage starts backward at once. Replicas exchange
and update the first device's parameters, which are complete last (`stage_exchange`): ZeRO 1 reduce-scatters gradients
and gathers weights, as many bytes as the all-reduce, and each replica updates its share. On a single stage, ZeRO 2
reduce-scatters after every microbatch, and ZeRO 3 also gathers weights before every forward and backward.

The tensor, context and data ranks of a stage are adjacent, so a stage is in one pool if it fits. One that straddles
pools waits for the slowest device and the slowest links of them all, whichever pool they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.model.shape import BlockKind, blocks
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob
from sartor.operators import DType
from sartor.step import mechanisms
from sartor.step.mechanisms.mechanism import COMPUTE, Mechanism, StageShare
from sartor.step.pipeline_laws import Chunks, PipelineWork, pipeline_time, stall_s
from sartor.step.results import check_none_negative
from sartor.step.stage_seconds import BESIDE, PER_STAGE, StageExchange, StageSeconds, Worked, stage_exchange
from sartor.step.stages import StageRows, each_device, stage_counts, stage_rows, summed
from sartor.step.tables import PlanTables
from sartor.units import FloatArray, IntArray, remembered


def _pools_of(cluster: Cluster) -> tuple[Cluster, ...]:
    """Each pool as its own cluster. Raises ``InputError`` if one of several pools has no ``num_devices``."""
    if not cluster.others:
        return (cluster,)
    for pool in cluster.pools:
        if not pool.num_devices:
            raise InputError("num_devices", 0, f"pool {pool.name} of a mixed cluster must say how many devices it has")
    return tuple(replace(pool, others=()) for pool in cluster.pools)


@remembered
def stretches_of(cluster: Cluster, dtype: DType) -> tuple[Cluster, ...]:
    """The pools, then for every first and last of several adjacent ones what a stage over all of them runs on."""
    pools = _pools_of(cluster)
    return (*pools, *(_slowest(pools[a : b + 1], dtype) for a, b in combinations(range(len(pools)), 2)))


def _slowest(pools: Sequence[Cluster], dtype: DType) -> Cluster:
    """The slowest device of all pools, on the slowest links that join as many neighbours in any of them.

    It has no number of devices, by which it is told from a pool."""
    base = min(pools, key=lambda p: (peak_flops_per_s(p.gpu, dtype), p.gpu.hbm_bytes_per_s, p.name))
    node = min(pool.devices_per_node for pool in pools)
    tiers = list[LinkTier]()
    for span in sorted({tier.span for pool in pools for tier in pool.tiers}, key=lambda span: span or np.inf):
        inner = tiers[-1].span if tiers else 1
        if not span or (span % inner == 0 and max(span, node) % min(span, node) == 0):
            slowest = min((_joining(pool, span) for pool in pools), key=_rate)
            latency_s = max(_joining(pool, span).latency_s for pool in pools)
            tiers.append(replace(slowest, name=slowest.name if not span else f"{span}", span=span, latency_s=latency_s))
    tiers[0] = replace(tiers[0], rails=False)
    return replace(base, devices_per_node=node, tiers=tuple(tiers), num_devices=0)


def _joining(pool: Cluster, span: int) -> LinkTier:
    """The innermost links of a pool that join ``span`` devices; 0: all."""
    return next((tier for tier in pool.tiers if span and tier.span >= span), pool.tiers[-1])


def _rate(tier: LinkTier) -> tuple[float, float, str]:
    return tier.bytes_per_s / tier.oversubscription, -tier.latency_s, tier.kind


def known_of(pool: Cluster, calibration: Calibration | None) -> Calibration | None:
    """The user's calibration if it is for the pool's device, else None."""
    return calibration if calibration is not None and calibration.gpu == pool.gpu.name else None


def devices_of_pools(pools: Sequence[Cluster], num_devices: int) -> list[int]:
    """How many of ``num_devices`` are in each pool, filled in order."""
    if len(pools) == 1:
        return [num_devices]
    ends = np.minimum(np.cumsum([pool.num_devices for pool in pools]), num_devices)
    taken: list[int] = np.diff(ends, prepend=0).tolist()
    return taken


def mean_peak_flops_per_s(pools: Sequence[Cluster], dtype: DType, num_devices: int) -> float:
    """Mean dense peak per device over the devices used."""
    counts = devices_of_pools(pools, num_devices)
    return sum(peak_flops_per_s(p.gpu, dtype) * n for p, n in zip(pools, counts, strict=True)) / sum(counts)


def pools_of_stages(pools: Sequence[Cluster], pp: int, devices_per_stage: int) -> IntArray:
    """Index into `stretches_of` of each of ``pp`` stages. Raises ``InputError`` if the pools have too few devices."""
    if len(pools) == 1:
        return np.zeros(pp, dtype=np.int64)
    ends = np.cumsum([pool.num_devices for pool in pools if pool.num_devices])
    if pp * devices_per_stage > ends[-1]:
        must = f"{pp} stages of {devices_per_stage} need {pp * devices_per_stage} devices"
        raise InputError("num_devices", int(ends[-1]), must, str(pp * devices_per_stage))
    first = np.arange(pp) * devices_per_stage
    starts, stops = (np.searchsorted(ends, x, side="right") for x in (first, first + devices_per_stage - 1))
    index = np.zeros((ends.size, ends.size), dtype=np.int64)
    index[np.diag_indices(ends.size)] = np.arange(ends.size)
    index[np.triu_indices(ends.size, 1)] = np.arange(ends.size, len(pools))
    where: IntArray = index[starts, stops]
    return where


def stage_seconds(tables: Sequence[PlanTables], rows: StageRows, work: dict[str, IntArray]) -> StageSeconds:
    """Seconds of distinct stages, each from the tables of its own pool."""
    if len(tables) == 1:
        return StageSeconds(tables[0], rows, work)
    return _MixedSeconds([StageSeconds(t, rows, work) for t in tables])


def exchange_of(tables: Sequence[PlanTables], rows: StageRows, structure: IntArray) -> StageExchange:
    """Gradient and parameter exchange of distinct stages, each within its own pool or stretch of them."""
    exchanges = [stage_exchange(t, rows, structure) for t in tables]
    if len(exchanges) == 1:
        return exchanges[0]
    by_pool = {name: _own([getattr(exchange, name) for exchange in exchanges], rows) for name in PER_STAGE}
    pools = [exchange for exchange, table in zip(exchanges, tables, strict=True) if table.cluster.num_devices]
    slowest = {
        name: np.maximum.reduce([getattr(exchange, name) for exchange in pools]) for name in ("norm_s", "tied_s")
    }
    return StageExchange(**by_pool, **slowest)


def _own(of_pools: Sequence[FloatArray], rows: StageRows) -> FloatArray:
    """For each row, the values of its pool."""
    stacked: FloatArray = np.stack(of_pools)[rows.pool, np.arange(rows.pool.size)]
    return stacked


class _MixedSeconds(StageSeconds):
    def __init__(self, of_pools: Sequence[StageSeconds]) -> None:
        first = of_pools[0]
        self.of_pools = of_pools
        self.t, self.rows, self.work, self.at, self.counts = first.t, first.rows, first.work, first.at, first.counts
        for name in ("wgrad_s", "forward_s", "backward_s"):
            setattr(self, name, _own([getattr(stages, name) for stages in of_pools], self.rows))
        self.shares = {name: self._share(name) for name in first.shares}

    def _share(self, name: str) -> StageShare:
        """A mechanism's share on each stage, from its pool."""
        shares = [stages.shares[name] for stages in self.of_pools]
        none = np.zeros_like(self.forward_s)
        return StageShare(
            **{f.name: _own([none + getattr(share, f.name) for share in shares], self.rows) for f in fields(StageShare)}
        )

    def block_part_s(self, name: str, slowest: npt.NDArray[np.intp]) -> FloatArray:
        return self._of_pool([stages.block_part_s(name, slowest) for stages in self.of_pools], slowest)

    def deviation_s(self, slowest: npt.NDArray[np.intp]) -> FloatArray:
        return self._of_pool([stages.deviation_s(slowest) for stages in self.of_pools], slowest)

    def _of_pool(self, of_pools: Sequence[FloatArray], slowest: npt.NDArray[np.intp]) -> FloatArray:
        """For each work row [W], the values of the slowest stage's pool."""
        return np.asarray(np.stack(of_pools)[self.rows.pool[slowest], np.arange(slowest.size)])

    def returned_s(self) -> FloatArray:
        return _own([pool.returned_s() for pool in self.of_pools], self.rows)

    def blocks_s(self) -> FloatArray:
        return np.concatenate([pool.blocks_s() for pool in self.of_pools])

    def evened_s(self, busy: FloatArray) -> Any:
        """Load per stage if work were divided ideally: each stage gets work in proportion to the speed of its pool."""
        alone = [stages.busy_s for stages in self.of_pools]
        faster = np.stack([(alone[0] / np.maximum(pool_s, 1e-30)).max(axis=0) for pool_s in alone])
        return self.rows.times @ alone[0] / (self.rows.times @ faster[self.rows.pool])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineStages:
    """The distinct devices of a pipeline, and its chunks if they hold unequal numbers of layers."""

    rows: StageRows
    parts: StageRows
    """In lockstep every chunk as a stage of its own, all first chunks before all second ones; else ``rows``."""
    chunks: Chunks | None


@remembered
def pipeline_stages(
    job: TrainingJob,
    pp: int,
    virtual: int,
    stage_layers: tuple[int, ...] | None,
    in_pool: IntArray,
    pools: int,
    *,
    v_shaped: bool,
) -> _PipelineStages:
    """The stages of a pipeline of ``pp`` devices with ``virtual`` chunks each, in the pools ``in_pool`` [pp]."""
    counts = stage_counts(job.shape, pp, virtual, stage_layers, v_shaped=v_shaped)
    rows = stage_rows(counts, in_pool)
    if pp == 1 or virtual == 1 or v_shaped:
        return _PipelineStages(rows=rows, parts=rows, chunks=None)
    if job.trainer.lockstep:
        parts = each_device(chunk_by_chunk(counts), 1, np.tile(in_pool, virtual))
        return _PipelineStages(rows=rows, parts=parts, chunks=None)
    pool_of = (in_pool[:, None] == np.arange(pools)).astype(np.int64)  # blocks of different pools are distinct
    apart = (pool_of[:, None, :, None] * counts[:, :, None, :]).reshape(pp, virtual, -1)
    is_layer = np.array([block.kind is BlockKind.LAYER for block in blocks(job.shape)])
    chunks = Chunks(counts=apart, is_layer=np.tile(is_layer, pools), exact=stage_layers is not None)
    return _PipelineStages(rows=rows, parts=rows, chunks=chunks if chunks.unequal else None)


def chunk_by_chunk(counts: IntArray) -> IntArray:
    """``counts`` [devices, chunks, blocks] with every chunk as a stage: all first ones before all second ones."""
    return counts.swapaxes(0, 1).reshape(-1, counts.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """Seconds of all microbatches, by distinct work row [W]: the slowest stage's ``busy_s``, then what is added."""

    stages: StageSeconds
    microbatches: IntArray
    slowest: npt.NDArray[np.intp]
    """[W]: row of the slowest stage; in lockstep of every chunk's [chunks, W]."""
    busy_s: FloatArray
    bubble_s: FloatArray
    transfer_s: FloatArray
    deviation_s: FloatArray
    imbalance_s: FloatArray

    def parts(self) -> dict[str, FloatArray]:
        """Parts of the pipeline's makespan, by key: what each mechanism adds; compute is what no other mechanism claims
        of the slowest stage's busy time."""
        none = np.zeros(self.microbatches.size)
        parts = {part.key: none for part in mechanisms.parts()}
        claimed = none
        for mechanism in mechanisms.MECHANISMS:
            if mechanism.at_pipeline is not None:
                parts[mechanism.part.key] = parts[mechanism.part.key] + mechanism.at_pipeline(self)
            elif mechanism.part is not COMPUTE and (seconds := self._of_slowest(mechanism)) is not None:
                claimed = claimed + seconds
                parts[mechanism.part.key] = parts[mechanism.part.key] + seconds
        parts[COMPUTE.key] = self.busy_s - claimed
        check_none_negative("a pipeline", parts, self.busy_s)
        return parts

    def _of_slowest(self, mechanism: Mechanism) -> FloatArray | None:
        """What a mechanism adds to the slowest stage, all microbatches; None if it adds nothing to any."""
        s, chunks = self.stages, self.slowest.reshape(-1, self.microbatches.size)
        if mechanism.at_block is not None:
            seconds = [s.block_part_s(mechanism.name, slowest) for slowest in chunks]
            return np.asarray(self.microbatches * summed(np.ones(len(seconds)), seconds))
        share = s.shares.get(mechanism.name)
        if share is None:
            return None
        added, order = np.asarray(share.forward_s + share.backward_s), np.arange(self.microbatches.size)
        return np.asarray(self.microbatches * summed(np.ones(len(chunks)), added[chunks, order]))


def worked(tables: Sequence[PlanTables], stages: _PipelineStages, work: dict[str, IntArray]) -> Worked:
    """The work rows' pipelines, with their parts, and what of them hides the exchange among replicas."""
    rows, t, m = stages.rows, tables[0], work["num_microbatches"]
    transfer_s = np.maximum.reduce([table.transfer_s[table.transfer_index[work["structure"]]] for table in tables])
    if t.job.trainer.lockstep:
        s = stage_seconds(tables, stages.parts, work)
        none = np.zeros((rows.last.size, m.size))
        pipeline = _in_lockstep(s, work, transfer_s, rows.pp)
        hiding = dict.fromkeys(_HIDING, none)
    else:
        s = stage_seconds(tables, rows, work)
        pipeline = _at_own_speed(t, stages, s, work, transfer_s)
        hiding = _hiding(s)
    beside = {"deviation_s": pipeline.deviation_s, "imbalance_s": pipeline.imbalance_s, "flops": s.flops() * m}
    return Worked(**hiding, parts=np.stack([*pipeline.parts().values(), *(beside[name] for name in BESIDE)]))


_HIDING = ("forward_s", "rear_s", "first_s", "last_s", "hides_gather_s", "hides_reduce_s")


def _hiding(s: StageSeconds) -> dict[str, FloatArray]:
    before, rear_s = s.rows.before_first / s.rows.virtual_stages, s.backward_s + s.wgrad_s
    return {
        "forward_s": s.forward_s,
        "rear_s": rear_s,
        "first_s": s.first_s,
        "last_s": s.last_s,
        "hides_gather_s": np.asarray(summed(before, s.forward_s)),
        "hides_reduce_s": np.asarray(summed(before, rear_s)),
    }


def _at_own_speed(
    t: PlanTables, stages: _PipelineStages, s: StageSeconds, work: dict[str, IntArray], transfer_s: FloatArray
) -> Pipelined:
    """A pipeline whose stages advance at their own speed, by its schedule."""
    m = work["num_microbatches"]
    pipeline = PipelineWork(
        rows=s.rows,
        forward_s=s.forward_s,
        dgrad_s=s.backward_s,
        wgrad_s=s.wgrad_s,
        transfer_s=transfer_s,
        hidden_share=t.c.p2p_overlap_share if t.job.trainer.p2p_overlap else None,
    )
    pipe = pipeline_time(pipeline, m, work["schedule"])
    stalled = np.zeros(m.size) if stages.chunks is None else stall_s(stages.chunks, s.blocks_s(), m)
    stalled = np.where(work["schedule"] == PipelineSchedule.GPIPE, 0.0, stalled)  # GPipe has no stalls in between
    work_share = (pipe.time_s - pipe.transfer_s) / np.maximum(pipe.busy_s, 1e-30)
    return Pipelined(
        stages=s,
        microbatches=m,
        slowest=pipe.slowest,
        busy_s=pipe.busy_s,
        bubble_s=np.maximum(pipe.bubble_s + stalled, 0.0),  # rounding
        transfer_s=pipe.transfer_s,
        deviation_s=m * s.deviation_s(pipe.slowest) * work_share,
        imbalance_s=m * (s.busy_s.max(axis=0) - s.evened_s(s.busy_s)) + np.maximum(stalled, 0.0),
    )


def _in_lockstep(s: StageSeconds, work: dict[str, IntArray], transfer_s: FloatArray, devices: int) -> Pipelined:
    """A pipeline in lockstep. ``s`` has the seconds of the stages, or of all chunks of ``devices`` devices;
    ``transfer_s`` [W] is one microbatch's activation to the next of them."""
    m, load = work["num_microbatches"], lockstep_load(s, work, transfer_s)
    chunks = max(s.rows.pp // devices, 1)
    slowest = np.argmax(load.slot_s.reshape(chunks, -1, m.size), axis=1)
    slowest = slowest + np.arange(chunks)[:, None] * (len(load.slot_s) // chunks)
    slot, busy = (summed(np.ones(chunks), np.take_along_axis(x, slowest, axis=0)) for x in (load.slot_s, load.busy_s))
    bottleneck, even = load.slot_s.max(axis=0), s.evened_s(load.slot_s)
    return Pipelined(
        stages=s,
        microbatches=m,
        slowest=slowest,
        busy_s=m * busy,
        bubble_s=(devices - 1) * bottleneck,
        transfer_s=m * (slot - busy),
        deviation_s=np.zeros(m.size),
        imbalance_s=m * (slot - chunks * even) + (devices - 1) * (bottleneck - even),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockstepLoad:
    """Seconds of a microbatch on every stage in lockstep [R, W]: at work, and with transfers."""

    busy_s: FloatArray
    slot_s: FloatArray


def lockstep_load(s: StageSeconds, work: dict[str, IntArray], transfer_s: FloatArray) -> _LockstepLoad:
    rows, forward_s = s.rows, s.forward_s
    arrives = np.where(rows.first == 0, 0.0, 1.0)[:, None] * transfer_s
    returns = np.where(rows.last == rows.pp - 1, 0.0, 1.0)[:, None] * transfer_s
    again = (work["recompute"] == Recompute.FULL) & (rows.last < rows.pp - 1)[:, None]
    busy = forward_s + s.returned_s() + np.where(again, np.maximum(forward_s - returns, 0.0), 0.0)
    return _LockstepLoad(busy_s=busy, slot_s=busy + arrives + returns)
