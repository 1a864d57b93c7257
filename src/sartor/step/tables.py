"""Quantities shared by plans, computed once: block seconds and parameters, traffic of replicas, stage transfers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.hardware.cluster import Cluster
from sartor.model.lower.setting import Kernels
from sartor.model.shape import BlockKind, blocks
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims, PipelineSchedule
from sartor.operators import CollectiveKind
from sartor.step.block_times import BlockSeconds, block_seconds, row_times
from sartor.step.coefficients import TrainingCoefficients, coefficients_for, in_a_run
from sartor.step.data_parallel import DataTraffic, data_traffic, network_cost
from sartor.step.mechanisms.offload import offload_seconds
from sartor.step.mechanisms.optimizer import OptimizerLine, optimizer_line
from sartor.step.question import kernels_of
from sartor.step.results import BlockTimes
from sartor.step.stages import BlockRows, block_rows, distinct_rows, plans_of
from sartor.step.states import block_params, gathered_bytes, weight_bytes
from sartor.units import BoolArray, FloatArray, IntArray, remembered, remembered_if_few


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTables:
    """Tables shared by plans: block seconds and parameters, traffic, transfers; indices map plans to rows."""

    job: TrainingJob
    cluster: Cluster
    calibration: Calibration
    c: TrainingCoefficients
    is_layer: IntArray
    seconds: BlockSeconds
    seconds_index: IntArray
    dense: FloatArray
    """[K, D]: parameters of a block on one device."""
    expert: FloatArray
    tied: FloatArray
    trained: FloatArray
    """[K, 1]: share of a block's parameters that is trained."""
    params_index: IntArray
    offload_s: FloatArray | None
    """[recomputations, K, D]: one microbatch over the host link, one way."""
    traffic: DataTraffic
    traffic_index: IntArray
    sharded: BoolArray
    transfer_s: FloatArray
    transfer_index: IntArray
    optimizer: OptimizerLine

    @property
    def gathered_bytes(self) -> FloatArray:
        """[K, 1]: bytes per parameter of each block in gathers."""
        outer, layer = (gathered_bytes(self.job, in_layer=inside) for inside in (False, True))
        return np.where(self.is_layer > 0, layer, outer)[:, None]


def _known_times(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration
) -> tuple[tuple[BlockTimes, ...], BlockRows]:
    """`row_times` of the plans; only rows not seen before are priced, for whatever search or switch."""
    rows = block_rows(plan)
    names = ("tp", "cp", "ep", "microbatch_size", "sequence_parallel")
    keys = list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))
    seconds_of = _known_rows(cluster, calibration, *_of_blocks(job)).setdefault(kernels_of(job, cluster), {})
    new = np.array([i for i, key in enumerate(keys) if key not in seconds_of], dtype=np.int64)
    if new.size:
        plans = plans_of({name: getattr(rows, name)[new] for name in names})
        times, _ = row_times(job, plans, cluster, calibration)
        table = np.array([[getattr(block_time, name) for name in _TIMES] for block_time in times])
        seconds_of.update(zip((keys[i] for i in new.tolist()), np.moveaxis(table, -1, 0), strict=True))
    priced = np.stack([seconds_of[key] for key in keys], axis=-1)
    by_block = zip(blocks(job.shape), priced, strict=True)
    return tuple(BlockTimes(name=b.name, **dict(zip(_TIMES, seconds, strict=True))) for b, seconds in by_block), rows


_TIMES = tuple(field.name for field in fields(BlockTimes) if field.name != "name")
_of_blocks = attrgetter(
    *("shape", "seq_len", "recipe", "attention_kernel", "routing_skew", "dropout", "recompute_modules"),
    *("document_len", "trainer.lockstep", "trainer.vocab_multiple", "trainer.splits_lone_experts"),
)
"""What the price of a block takes from a job besides its kernels."""


@partial(remembered, most=16)
def _known_rows(
    cluster: Cluster, calibration: Calibration, *facts: object
) -> dict[Kernels, dict[tuple[int, ...], FloatArray]]:
    """Seconds [blocks, fields of `BlockTimes`] of the blocks of a job with these ``facts`` (`_of_blocks`), by kernels
    and (tp, cp, ep, microbatch_size, sequence_parallel)."""
    return {}


def plan_tables(
    job: TrainingJob,
    columns: dict[str, IntArray],
    cluster: Cluster,
    calibration: Calibration | None,
    coefficients: TrainingCoefficients | None,
) -> PlanTables:
    """Tables of the plans. A plan's neighbours (other microbatches, recomputation or ZeRO stage) share its own."""
    return _tables(job, cluster, calibration, coefficients, tuple(columns), *columns.values())


@remembered_if_few
def _tables(
    job: TrainingJob,
    cluster: Cluster,
    calibration: Calibration | None,
    coefficients: TrainingCoefficients | None,
    names: tuple[str, ...],
    *values: IntArray,
) -> PlanTables:
    """`plan_tables` of the columns ``names`` with these ``values``."""
    columns = dict(zip(names, values, strict=True))
    c = coefficients or coefficients_for(job, cluster.gpu)
    run_calibration = in_a_run(calibration or load_calibration(cluster.gpu), c)
    times, rows = _known_times(job, plans_of(columns), cluster, run_calibration)
    params_of, params_index = distinct_rows([columns["tp"], columns["ep"]])
    params = block_params(job, ParallelDims(tp=params_of[0], ep=params_of[1]))
    traffic, traffic_index = _traffic(job, columns, cluster, run_calibration, c)
    transfer_s, transfer_index = _transfer(job, columns, cluster, run_calibration)
    seconds, seconds_index = _seconds(job, columns, times, rows, c)
    size, block_kinds = params_of[0].size, blocks(job.shape)
    owned = [
        b.weight_sets / b.count if b.kind is BlockKind.LAYER else 1.0 for b in block_kinds
    ]  # ALBERT's layers share

    def stacked(values: list[Any]) -> FloatArray:
        return np.stack([np.broadcast_to(np.asarray(x, dtype=np.float64), size) for x in values])

    return PlanTables(
        job=job,
        cluster=cluster,
        calibration=run_calibration,
        c=c,
        is_layer=np.array([block.kind is BlockKind.LAYER for block in block_kinds], dtype=np.int64),
        seconds=seconds,
        seconds_index=seconds_index,
        dense=stacked([p.dense * weight for p, weight in zip(params, owned, strict=True)]),
        expert=stacked([p.expert * weight for p, weight in zip(params, owned, strict=True)]),
        tied=stacked([p.tied for p in params])[-1],
        trained=np.array([[p.trained] for p in params]),
        params_index=params_index,
        offload_s=_twice(offload_seconds(job, rows, cluster), seconds.forward_s.shape[1]),
        traffic=traffic,
        traffic_index=traffic_index,
        sharded=columns["zero_stage"] >= 1,
        transfer_s=c.network_factor * transfer_s,
        transfer_index=transfer_index,
        optimizer=optimizer_line(job, cluster, run_calibration),
    )


def _seconds(
    job: TrainingJob,
    columns: dict[str, IntArray],
    times: tuple[BlockTimes, ...],
    rows: BlockRows,
    c: TrainingCoefficients,
) -> tuple[BlockSeconds, IntArray]:
    """Block seconds by distinct rows; twice as many rows if some plans hide an exchange that others wait for.

    The experts' all-to-all is hidden behind another microbatch by DualPipeV, whose schedule pairs a forward with a
    backward (DeepSeek-V3, 2024, sec. 3.2.1; torchtitan PR 1721), or if a trainer's switch does the same between the
    chunks of an interleaved pipeline.
    """
    kinds = [block.kind for block in blocks(job.shape)]
    plain, index = block_seconds(times, kinds, job.trainer, c), rows.index
    overlapped = columns["schedule"] == PipelineSchedule.DUAL_PIPE_V
    if job.trainer.ep_overlap:
        overlapped = overlapped | (columns["virtual_stages"] > 1)
    if not overlapped.any():
        return plain, index
    beside = block_seconds(times, kinds, job.trainer, c, overlapped=True)
    both = {
        field.name: np.concatenate([getattr(plain, field.name), getattr(beside, field.name)], axis=-1)
        for field in fields(BlockSeconds)
    }
    return BlockSeconds(**both), index + rows.size * overlapped


def _twice(offload_s: FloatArray | None, rows: int) -> FloatArray | None:
    """``offload_s`` repeated to as many rows as `_seconds` has."""
    return offload_s if offload_s is None else np.tile(offload_s, (1, 1, rows // offload_s.shape[2]))


def _traffic(
    job: TrainingJob, columns: dict[str, IntArray], cluster: Cluster, calibration: Calibration, c: TrainingCoefficients
) -> tuple[DataTraffic, IntArray]:
    names = ("tp", "cp", "dp", "ep", "pp", "shard_group", "zero_stage")
    rows, index = distinct_rows(
        [np.minimum(columns[name], 1) if name == "zero_stage" else columns[name] for name in names]
    )
    plans = plans_of(dict(zip(names, rows, strict=True)))
    return data_traffic(job, plans, cluster, calibration, c), index


def _transfer(
    job: TrainingJob, columns: dict[str, IntArray], cluster: Cluster, calibration: Calibration
) -> tuple[FloatArray, IntArray]:
    """Seconds of sending one microbatch's activations to the next stage: each tensor rank sends its share; without
    sequence parallelism the receiver gathers them again (Narayanan et al. 2021, sec. 4.1: scatter/gather)."""
    names = ("tp", "cp", "dp", "pp", "microbatch_size", "sequence_parallel")
    rows, index = distinct_rows([columns[name] for name in names])
    tp, cp, dp, pp, size, sequence = rows
    tokens = size * job.seq_len / cp
    whole = tokens * float(np.max(job.shape.hidden_size)) * weight_bytes(job)
    sent = network_cost(CollectiveKind.SEND_RECV, whole / tp, pp, tp * cp * dp, cluster, calibration)
    moved = sent.network_s if job.trainer.lockstep else sent.time_s
    gathered = network_cost(CollectiveKind.ALL_GATHER, whole, tp, 1, cluster, calibration).time_s
    return np.asarray(moved + np.where((sequence > 0) | (pp == 1), 0.0, gathered)), index
