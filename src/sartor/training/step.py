"""A training step: seconds of one plan or of a million, part by part.

Blocks are priced once per distinct (tp, cp, ep, microbatch), traffic among replicas once per distinct dims; plans that
share (pp, virtual stages) share their stages and are summed up together. docs/concepts/training-step.md has every
formula with its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.gemm import peak_flops_per_s
from sartor.cost.network import network_time_s
from sartor.errors import InputError
from sartor.hardware.calibration import Calibration, load_calibration
from sartor.hardware.cluster import Cluster
from sartor.model.lower.split import check
from sartor.model.parallel import ParallelDims
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.operators import CollectiveKind
from sartor.training.block_seconds import BlockSeconds, block_seconds
from sartor.training.block_times import row_times
from sartor.training.blocks import BlockKind, block_params, blocks
from sartor.training.coefficients import TrainingCoefficients, coefficients_for
from sartor.training.data_parallel import (
    DataTraffic,
    GroupTraffic,
    LayerwiseGather,
    Line,
    data_traffic,
    grad_exchange,
    layerwise,
    param_exchange,
)
from sartor.training.distinct import distinct_rows
from sartor.training.optimizer import OptimizerLine, norm_s, optimizer_line
from sartor.training.orders import check_schedule
from sartor.training.pipeline import PipelineWork, pipeline_time
from sartor.training.results import StepEstimate
from sartor.training.running import in_a_run
from sartor.training.stages import StageRows, stage_rows, summed
from sartor.training.states import weight_bytes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CHUNK = 8192
"""Plans summed up at once: their arrays stay in a core's cache."""

OPTIMIZER_SIGMA = 0.2
"""Standard deviation of ln of the optimizer step (assumed: how far apart fused and unfused steps lie)."""


def step(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    coefficients: TrainingCoefficients | None = None,
) -> StepEstimate:
    """Predicted step of ``job`` as ``plan`` spreads it over ``cluster``; arrays in the plan give arrays of its shape.

    ``coefficients`` in place of the package's for the job's trainer and device. Raises ``InputError`` for a single plan
    that does not divide the model or that its schedule has no order for; of arrays such plans are priced as if padded.
    """
    _check(job, plan, cluster)
    columns, shape = _columns(plan)
    table = _tables(job, columns, cluster, calibration, coefficients)
    out = {name: np.empty(columns["tp"].size) for name in _PARTS}
    for rows, where in _groups(job, plan, columns):
        for name, value in _price(table, rows, {k: v[where] for k, v in columns.items()}, where).items():
            out[name][where] = value
    single = shape == ()
    return StepEstimate(**{k: float(v[0]) if single else v.reshape(shape) for k, v in out.items()})


_PARTS = tuple(field.name for field in fields(StepEstimate))


def _check(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> None:
    check(job.shape, plan.dims)
    if cluster.others:
        must = "has pools of different devices, which a step is not priced on: name one pool's cluster"
        raise InputError("cluster", cluster.name, must, cluster.gpu.name)
    d = plan.dims
    single = all(np.ndim(x) == 0 for x in (plan.schedule, d.pp, plan.virtual_stages, plan.num_microbatches))
    if single:
        schedule = PipelineSchedule(int(plan.schedule))
        check_schedule(schedule, int(d.pp), int(plan.virtual_stages), int(plan.num_microbatches))


def _columns(plan: TrainingPlan) -> tuple[dict[str, IntArray], tuple[int, ...]]:
    """Every field of the plans as one flat array each, and the shape they broadcast to."""
    d = plan.dims
    named: dict[str, Any] = {
        "tp": d.tp,
        "pp": d.pp,
        "dp": d.dp,
        "cp": d.cp,
        "ep": d.ep,
        "sequence": d.sequence_parallel,
        "microbatch_size": plan.microbatch_size,
        "microbatches": plan.num_microbatches,
        "virtual": plan.virtual_stages,
        "schedule": plan.schedule,
        "zero": plan.zero_stage,
        "shard_group": plan.shard_group,
        "recompute": plan.recompute,
        "recompute_layers": plan.recompute_layers,
        "offload": plan.optimizer_offload,
    }
    whole = np.broadcast_arrays(*(np.asarray(x, dtype=np.int64) for x in named.values()))
    return {name: np.ravel(x) for name, x in zip(named, whole, strict=True)}, whole[0].shape


# ------------------------------------------------------------------------------------------ what plans share


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """What plans share: blocks' seconds and parameters, traffic, transfers; an index says which each plan has."""

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
    params_index: IntArray
    traffic: DataTraffic
    norm_s: FloatArray
    traffic_index: IntArray
    transfer_s: FloatArray
    transfer_index: IntArray
    optimizer: OptimizerLine


def _tables(
    job: TrainingJob,
    columns: dict[str, IntArray],
    cluster: Cluster,
    calibration: Calibration | None,
    coefficients: TrainingCoefficients | None,
) -> _Tables:
    c = coefficients or coefficients_for(job, cluster.gpu)
    known = in_a_run(calibration or load_calibration(cluster.gpu), c)
    times, rows = row_times(job, _plan(columns), cluster, known)
    params_of, params_index = distinct_rows([columns["tp"], columns["ep"]])
    held = block_params(job, ParallelDims(tp=params_of[0], ep=params_of[1]))
    traffic, traffic_index = _traffic(job, columns, cluster, known, c)
    transfer_s, transfer_index = _transfer(job, columns, cluster, known)
    size = params_of[0].size

    def stacked(values: list[Any]) -> FloatArray:
        return np.stack([np.broadcast_to(np.asarray(x, dtype=np.float64), size) for x in values])

    return _Tables(
        job=job,
        cluster=cluster,
        calibration=known,
        c=c,
        is_layer=np.array([block.kind is BlockKind.LAYER for block in blocks(job.shape)], dtype=np.int64),
        seconds=block_seconds(times, job.framework, c),
        seconds_index=rows.index,
        dense=stacked([p.dense for p in held]),
        expert=stacked([p.expert for p in held]),
        tied=stacked([p.tied for p in held])[-1],
        params_index=params_index,
        traffic=traffic[0],
        norm_s=traffic[1],
        traffic_index=traffic_index,
        transfer_s=c.network_factor * transfer_s,
        transfer_index=transfer_index,
        optimizer=optimizer_line(job, cluster, known),
    )


def _plan(columns: dict[str, IntArray]) -> TrainingPlan:
    """Plans of flat columns (what `block_times` and `data_traffic` read of them)."""
    dims = ParallelDims(
        **{name: columns[name] for name in ("tp", "pp", "dp", "cp", "ep") if name in columns},
        sequence_parallel=columns.get("sequence", np.ones(1, np.int64)).astype(bool),  # type: ignore[arg-type]
    )
    return TrainingPlan(
        dims=dims,
        microbatch_size=columns.get("microbatch_size", 1),
        zero_stage=columns.get("zero", 0),
        shard_group=columns.get("shard_group", 0),
    )


def _traffic(
    job: TrainingJob, columns: dict[str, IntArray], cluster: Cluster, known: Calibration, c: TrainingCoefficients
) -> tuple[tuple[DataTraffic, FloatArray], IntArray]:
    names = ("tp", "cp", "dp", "ep", "pp", "shard_group", "zero")
    found, index = distinct_rows([np.minimum(columns[name], 1) if name == "zero" else columns[name] for name in names])
    of = dict(zip(names, found, strict=True))
    traffic = data_traffic(job, _plan(of), cluster, known, c.bucket_bytes)
    devices = of["tp"] * of["cp"] * of["dp"] * of["pp"]
    return (_scaled(traffic, c.network_factor), norm_s(devices, cluster, known)), index


def _scaled(traffic: DataTraffic, factor: float) -> DataTraffic:
    def line(of: Line) -> Line:
        return Line(start_s=of.start_s * factor, s_per_byte=of.s_per_byte * factor)

    def group(of: GroupTraffic) -> GroupTraffic:
        return replace(of, reduce=line(of.reduce), gather=line(of.gather))

    return DataTraffic(dense=group(traffic.dense), expert=group(traffic.expert), tied=line(traffic.tied))


def _transfer(
    job: TrainingJob, columns: dict[str, IntArray], cluster: Cluster, known: Calibration
) -> tuple[FloatArray, IntArray]:
    """One microbatch's activations to the next stage: each tensor rank sends its share; without sequence parallelism
    they are gathered anew at the other end (Narayanan et al. 2021, sec. 4.1: scatter/gather)."""
    names = ("tp", "cp", "dp", "pp", "microbatch_size", "sequence")
    found, index = distinct_rows([columns[name] for name in names])
    tp, cp, dp, pp, size, sequence = found
    tokens = size * job.seq_len / cp
    whole = tokens * float(np.max(job.shape.hidden_size)) * weight_bytes(job)
    moved = network_time_s(CollectiveKind.SEND_RECV, whole / tp, pp, tp * cp * dp, cluster, known).time_s
    gathered = network_time_s(CollectiveKind.ALL_GATHER, whole, tp, 1, cluster, known).time_s
    return np.asarray(moved + np.where((sequence > 0) | (pp == 1), 0.0, gathered)), index


def _groups(job: TrainingJob, plan: TrainingPlan, columns: dict[str, IntArray]) -> Iterator[tuple[StageRows, IntArray]]:
    """Plans that share their stages, a few thousand at a time."""
    (pps, virtuals), index = distinct_rows([columns["pp"], columns["virtual"]])
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=pps.size))
    for pp, virtual, start, end in zip(
        pps.tolist(), virtuals.tolist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True
    ):
        rows = stage_rows(job.shape, pp, virtual, plan.stage_layers)
        for first in range(start, end, CHUNK):
            yield rows, order[first : min(first + CHUNK, end)]


# ------------------------------------------------------------------------------------------ one group of plans


def _price(t: _Tables, rows: StageRows, p: dict[str, IntArray], where: IntArray) -> dict[str, Any]:
    """Parts of the step of plans that share ``rows``; they add up to ``step_s``."""
    s, c, m = _Stage(t, rows, p, where), t.c, p["microbatches"]
    hidden = c.p2p_overlap_share if t.job.framework.p2p_overlap else None
    work = PipelineWork(
        rows=rows,
        forward_s=s.forward_s,
        dgrad_s=s.backward_s,
        wgrad_s=s.wgrad_s,
        transfer_s=t.transfer_s[t.transfer_index[where]],
        hidden_share=hidden,
    )
    pipe = pipeline_time(work, m, p["schedule"])

    def of_slowest(values: FloatArray) -> FloatArray:
        taken: FloatArray = m * np.take_along_axis(values, pipe.slowest[None], axis=0)[0]
        return taken

    tp, ep, cp, host = (of_slowest(x) for x in (s.tp_s, s.ep_s, s.cp_s, s.host_s))
    layerwise_s = of_slowest(s.layerwise_s)
    dp = layerwise_s + s.exchange_s()
    optimizer = s.optimizer_s()
    devices = p["tp"] * p["pp"] * p["dp"] * p["cp"]
    jitter = c.jitter * np.sqrt(2 * np.log(devices)) * (pipe.time_s + optimizer)
    parts = {
        "compute_s": pipe.busy_s - tp - ep - cp - host - layerwise_s,
        "tp_s": tp,
        "pp_bubble_s": pipe.bubble_s,
        "pp_transfer_s": pipe.transfer_s,
        "dp_exposed_s": dp,
        "ep_s": ep,
        "cp_s": cp,
        "optimizer_s": optimizer,
        "overhead_s": host + c.fixed_step_s + jitter,
    }
    step_s = sum(parts.values())
    flops = s.flops() * m * p["tp"] * p["dp"] * p["cp"]
    rate = peak_flops_per_s(t.cluster.gpu, t.job.recipe.dtype)
    work_share = (pipe.time_s - pipe.transfer_s) / np.maximum(pipe.busy_s, 1e-30)
    network = t.calibration.network.log_sigma * (dp + pipe.transfer_s)
    deviation = np.sqrt((of_slowest(s.deviation_s) * work_share) ** 2 + network**2 + (OPTIMIZER_SIGMA * optimizer) ** 2)
    return {
        **parts,
        "step_s": step_s,
        "log_sigma": np.sqrt((deviation / step_s) ** 2 + c.step_sigma**2),
        "model_flops": flops,
        "tokens_per_s_per_device": t.job.tokens_per_step / step_s / devices,
        "mfu": flops / step_s / devices / rate,
    }


class _Stage:
    """Distinct stages [R, plans] of plans that share their cuts: seconds of a microbatch, parameters, exchange."""

    def __init__(self, t: _Tables, rows: StageRows, p: dict[str, IntArray], where: IntArray) -> None:
        self.t, self.rows, self.p = t, rows, p
        self.at = t.seconds_index[where]
        self.traffic = _taken(t.traffic, t.traffic_index[where])
        self.norm_s = t.norm_s[t.traffic_index[where]]
        self.params_at = t.params_index[where]
        self.counts = rows.counts.astype(np.float64)
        seconds = t.seconds
        self.tp_s, self.ep_s, self.cp_s = self._sum(seconds.tp_s), self._sum(seconds.ep_s), self._sum(seconds.cp_s)
        self.host_s, self.deviation_s = self._sum(seconds.host_s), self._sum(seconds.deviation_s)
        self.wgrad_s = self._sum(seconds.wgrad_s)
        self.forward_s = self._sum(seconds.forward_s)
        self.backward_s = self._sum(seconds.backward_s) + self._recomputed_s()
        self.layerwise_s = np.zeros_like(self.forward_s)
        self.ends_s = np.zeros(where.size)
        if np.any(p["zero"] >= 3):
            self._gather_layerwise()

    def _sum(self, of_blocks: FloatArray) -> FloatArray:
        """Over the blocks of each stage: [R, K] @ [K, D] handed out to the plans."""
        stages: FloatArray = summed(self.counts, of_blocks)[:, self.at]
        return stages

    def _recomputed_s(self) -> Any:
        kind, some = self.p["recompute"], self.p["recompute_layers"]
        if not np.any(kind):
            return 0.0
        layers = self.rows.counts @ self.t.is_layer
        share = np.where(some < 0, 1.0, np.minimum(some / np.maximum(layers, 1)[:, None], 1.0))
        full = share * self._sum(self.t.seconds.full_s * self.t.is_layer[:, None])
        selective = self._sum(self.t.seconds.selective_s)
        return np.where(kind == Recompute.FULL, full, np.where(kind == Recompute.SELECTIVE, selective, 0.0))

    def _gather_layerwise(self) -> None:
        """ZeRO 3: what gathering and scattering every block's weights add to its forward and backward."""
        t, c = self.t, self.t.c
        dense, expert = t.dense[:, self.params_at], t.expert[:, self.params_at]
        params = param_exchange(t.job, self.traffic, dense, expert, c.bucket_bytes)
        grads = grad_exchange(t.job, self.traffic, dense, expert, c.bucket_bytes)
        seconds, share = t.seconds, c.dp_overlap_share
        beside = share * seconds.forward_s[:, self.at], share * (seconds.backward_s + seconds.wgrad_s)[:, self.at]
        each: LayerwiseGather = layerwise(params, grads, *beside, t.job.framework.dp_overlap, c.sm_contention)
        is_3 = self.p["zero"] >= 3
        forward, backward = np.where(is_3, each.forward_s, 0.0), np.where(is_3, each.backward_s, 0.0)
        self.forward_s = self.forward_s + summed(self.counts, forward)
        self.backward_s = self.backward_s + summed(self.counts, backward)
        self.layerwise_s = summed(self.counts, forward + backward)
        if t.job.framework.dp_overlap:
            self.ends_s = np.where(is_3, np.asarray(each.first_s)[0] + np.asarray(each.last_s)[0], 0.0)

    def exchange_s(self) -> Any:
        """Gradients and parameters among replicas once a step, beyond what compute and the bubble hide."""
        t, c, zero = self.t, self.t.c, self.p["zero"]
        overlaps, grads, params = t.job.framework.dp_overlap, self._grads(), self._params()
        share = c.dp_overlap_share
        backward = self.backward_s + self.wgrad_s
        # Stage s is done with its last microbatch while those before it still work, and starts after them.
        before = self.rows.before_first / self.rows.virtual_stages
        reduced = grads.seen_s(share * backward, overlaps, c.sm_contention)
        gathered = params.seen_s(share * self.forward_s, overlaps, c.sm_contention)
        out = np.maximum(reduced - summed(before, backward), 0.0).max(axis=0)
        into = np.maximum(gathered - summed(before, self.forward_s), 0.0).max(axis=0)
        earlier = self._earlier_microbatches(grads.total_s, share * (self.forward_s + backward), overlaps)
        once = out + np.where(zero >= 1, into, 0.0) + np.where(zero == 2, earlier, 0.0)
        return np.where(zero >= 3, self.ends_s, once) + self._tied_s()

    def _earlier_microbatches(self, total: Any, window: Any, overlaps: bool) -> Any:
        """ZeRO 2 keeps no whole gradient between microbatches: each reduces its own."""
        hidden = np.minimum(total, window) if overlaps else 0.0
        each = total - hidden + self.t.c.sm_contention * hidden
        return (self.p["microbatches"] - 1) * np.max(each, axis=0)

    def _grads(self) -> Any:
        dense, expert = self._params_held()
        return grad_exchange(self.t.job, self.traffic, dense, expert, self.t.c.bucket_bytes)

    def _params(self) -> Any:
        dense, expert = self._params_held()
        return param_exchange(self.t.job, self.traffic, dense, expert, self.t.c.bucket_bytes)

    def _params_held(self) -> tuple[FloatArray, FloatArray]:
        t = self.t
        dense = summed(self.counts, t.dense)[:, self.params_at]
        if self.rows.pp > 1:  # a copy of the embedding's table beside the head
            dense[-1] += t.tied[self.params_at]
        return dense, summed(self.counts, t.expert)[:, self.params_at]

    def _tied_s(self) -> Any:
        """The table's gradients of first and last stage are added after all else."""
        t = self.t
        if self.rows.pp == 1 or not np.any(t.tied) or not t.job.trains_weights:
            return 0.0
        size = t.tied[self.params_at] * t.job.framework.grad_dtype.bytes
        return self.traffic.tied.total_s(size, t.c.bucket_bytes)

    def optimizer_s(self) -> Any:
        t, zero = self.t, self.p["zero"]
        dense, expert = self._params_held()
        own = [np.where(zero >= 1, of.shards, 1) for of in (self.traffic.dense, self.traffic.expert)]
        most = (dense / own[0] + expert / own[1]).max(axis=0)
        norm = self.norm_s if t.job.trains_weights else 0.0
        return t.c.optimizer_factor * t.optimizer.seconds(most, self.p["offload"] > 0) + norm

    def flops(self) -> Any:
        """Product FLOPs of one microbatch over one device of every stage."""
        return summed(self.rows.times @ self.counts, self.t.seconds.flops)[self.at]


def _taken(traffic: DataTraffic, index: IntArray) -> DataTraffic:
    def line(of: Line) -> Line:
        return Line(start_s=np.asarray(of.start_s)[index], s_per_byte=np.asarray(of.s_per_byte)[index])

    def group(of: GroupTraffic) -> GroupTraffic:
        return GroupTraffic(reduce=line(of.reduce), gather=line(of.gather), shards=np.asarray(of.shards)[index])

    return DataTraffic(dense=group(traffic.dense), expert=group(traffic.expert), tied=line(traffic.tied))
