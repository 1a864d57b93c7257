"""A training step: seconds of one plan or of a million, part by part.

Blocks are priced once per distinct (tp, cp, ep, microbatch), traffic among replicas once per distinct dims; plans that
share (pp, virtual stages) share their stages and are summed up together. docs/concepts/training-step.md has every
formula with its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.blocks import BlockKind, blocks
from sartor.model.lower.split import check
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.step.chip_blocks import LOG_SIGMA
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.distinct import distinct_rows
from sartor.step.lockstep import lockstep_parts
from sartor.step.mixed import known_of, mean_peak_flops_per_s, pools_of, pools_of_stages, stage_seconds
from sartor.step.orders import check_schedule
from sartor.step.pipeline import PipelineWork, pipeline_time
from sartor.step.results import StepEstimate
from sartor.step.stage_seconds import StageSeconds
from sartor.step.stages import StageRows, stage_counts, stage_rows
from sartor.step.stalls import Chunks, stall_s
from sartor.step.tables import PlanTables, plan_columns, plan_tables

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

    On a mixed cluster stages fill the pools in order, each at its own pool's pace; ``calibration`` is then of the pools
    of its device.
    """
    check_plan(job, plan, cluster)
    columns, shape = plan_columns(plan)
    pools = pools_of(cluster)
    tables = _tables(job, columns, cluster, calibration, coefficients)
    out = {name: np.empty(columns["tp"].size) for name in _PARTS}
    for stages, where in _groups(job, plan, columns, pools):
        for name, value in _price(tables, stages, {k: v[where] for k, v in columns.items()}, where).items():
            out[name][where] = value
    single = shape == ()
    return StepEstimate(**{k: float(v[0]) if single else v.reshape(shape) for k, v in out.items()})


def step_each(
    job: TrainingJob, plans: Sequence[TrainingPlan], cluster: Cluster, calibration: Calibration | None = None
) -> list[StepEstimate]:
    """`step` of single plans with ``stage_layers`` of their own; what they share is priced once."""
    if not plans:
        return []
    of_each = [plan_columns(plan)[0] for plan in plans]
    columns = {name: np.concatenate([each[name] for each in of_each]) for name in of_each[0]}
    pools, tables = pools_of(cluster), _tables(job, columns, cluster, calibration, None)
    found = []
    for index, (plan, own) in enumerate(zip(plans, of_each, strict=True)):
        ((stages, _),) = _groups(job, plan, own, pools)
        parts = _price(tables, stages, own, np.array([index]))
        found.append(StepEstimate(**{name: float(value[0]) for name, value in parts.items()}))
    return found


_PARTS = tuple(field.name for field in fields(StepEstimate))


def _tables(
    job: TrainingJob,
    columns: dict[str, IntArray],
    cluster: Cluster,
    calibration: Calibration | None,
    coefficients: TrainingCoefficients | None,
) -> list[PlanTables]:
    """Of every pool."""
    pools = pools_of(cluster)
    known = [known_of(pool, calibration) for pool in pools] if cluster.others else [calibration]
    return [plan_tables(job, columns, *each, coefficients) for each in zip(pools, known, strict=True)]


def check_plan(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> None:
    """``InputError`` for what no step can be priced of: a single plan that does not divide the model or that its
    schedule has no order for."""
    check(job.shape, plan.dims)
    d = plan.dims
    single = all(np.ndim(x) == 0 for x in (plan.schedule, d.pp, plan.virtual_stages, plan.num_microbatches))
    if single:
        schedule = PipelineSchedule(int(plan.schedule))
        check_schedule(schedule, int(d.pp), int(plan.virtual_stages), int(plan.num_microbatches))


def _groups(
    job: TrainingJob, plan: TrainingPlan, columns: dict[str, IntArray], pools: Sequence[Cluster]
) -> Iterator[tuple[_Stages, IntArray]]:
    """Plans that share their stages, a few thousand at a time."""
    per_stage = columns["tp"] * columns["cp"] * columns["dp"]
    wanted = [columns["pp"], columns["virtual"], per_stage if len(pools) > 1 else np.ones_like(per_stage)]
    (pps, virtuals, sizes), index = distinct_rows(wanted)
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=pps.size)).tolist()
    for pp, virtual, size, start, end in zip(
        pps.tolist(), virtuals.tolist(), sizes.tolist(), [0, *ends[:-1]], ends, strict=True
    ):
        stages = _stages(job, pp, virtual, plan.stage_layers, pools_of_stages(pools, job, pp, size), len(pools))
        for first in range(start, end, CHUNK):
            yield stages, order[first : min(first + CHUNK, end)]


class _Stages(NamedTuple):
    """The distinct devices of a pipeline, and its chunks where they hold unequal numbers of layers."""

    rows: StageRows
    chunks: Chunks | None


def _stages(
    job: TrainingJob, pp: int, virtual: int, given: tuple[int, ...] | None, in_pool: IntArray, pools: int
) -> _Stages:
    rows = stage_rows(job.shape, pp, virtual, given, in_pool)
    if pp == 1 or virtual == 1:
        return _Stages(rows, None)
    counts = stage_counts(job.shape, pp, virtual, given)
    own = (in_pool[:, None] == np.arange(pools)).astype(np.int64)  # a block counts apart in every pool
    apart = (own[:, None, :, None] * counts[:, :, None, :]).reshape(pp, virtual, -1)
    is_layer = np.array([block.kind is BlockKind.LAYER for block in blocks(job.shape)])
    chunks = Chunks(counts=apart, is_layer=np.tile(is_layer, pools), exact=given is not None)
    return _Stages(rows, chunks if chunks.unequal else None)


def _price(tables: Sequence[PlanTables], stages: _Stages, p: dict[str, IntArray], where: IntArray) -> dict[str, Any]:
    """Parts of the step of plans that share ``stages``; they add up to ``step_s``."""
    rows, chunks = stages
    t = tables[0]
    s, c, m = stage_seconds(tables, rows, p, where), t.c, p["microbatches"]
    transfer_s = np.maximum.reduce([each.transfer_s[each.transfer_index[where]] for each in tables])
    if t.job.trainer.lockstep:
        parts, imbalance_s = lockstep_parts(s, p, transfer_s)
        deviation = LOG_SIGMA * np.asarray(sum(parts.values()))
        return {**_totals(tables, s, p, parts, deviation), "imbalance_s": imbalance_s}
    hidden = c.p2p_overlap_share if t.job.trainer.p2p_overlap else None
    work = PipelineWork(
        rows=rows,
        forward_s=s.forward_s,
        dgrad_s=s.backward_s,
        wgrad_s=s.wgrad_s,
        transfer_s=transfer_s,
        hidden_share=hidden,
    )
    pipe = pipeline_time(work, m, p["schedule"])
    stalled = np.zeros(m.size) if chunks is None else stall_s(chunks, s.blocks_s(), m)

    def of_slowest(values: FloatArray) -> FloatArray:
        taken: FloatArray = m * np.take_along_axis(values, pipe.slowest[None], axis=0)[0]
        return taken

    tp, ep, cp, host = (of_slowest(x) for x in (s.tp_s, s.ep_s, s.cp_s, s.host_s))
    layerwise_s = of_slowest(s.layerwise_s)
    dp = layerwise_s + s.exchange_s()
    optimizer = s.optimizer_s()
    devices = p["tp"] * p["pp"] * p["dp"] * p["cp"]
    jitter = c.jitter * np.sqrt(2 * np.log(devices)) * (pipe.time_s + stalled + optimizer)
    parts = {
        "compute_s": pipe.busy_s - tp - ep - cp - host - layerwise_s,
        "tp_s": tp,
        "pp_bubble_s": pipe.bubble_s + stalled,
        "pp_transfer_s": pipe.transfer_s,
        "dp_exposed_s": dp,
        "ep_s": ep,
        "cp_s": cp,
        "optimizer_s": optimizer,
        "overhead_s": host + c.fixed_step_s + jitter,
    }
    work_share = (pipe.time_s - pipe.transfer_s) / np.maximum(pipe.busy_s, 1e-30)
    network = t.calibration.network.log_sigma * (dp + pipe.transfer_s)
    deviation = np.sqrt((of_slowest(s.deviation_s) * work_share) ** 2 + network**2 + (OPTIMIZER_SIGMA * optimizer) ** 2)
    busy = s.forward_s + s.backward_s + s.wgrad_s
    imbalance_s = m * (busy.max(axis=0) - s.evened_s(busy)) + np.maximum(stalled, 0.0)
    return {**_totals(tables, s, p, parts, deviation), "imbalance_s": imbalance_s}


def _totals(
    tables: Sequence[PlanTables],
    s: StageSeconds,
    p: dict[str, IntArray],
    parts: dict[str, FloatArray],
    deviation_s: FloatArray,
) -> dict[str, Any]:
    """The parts of a step with what follows from their sum; ``deviation_s`` is the standard deviation of kernels."""
    t, devices = tables[0], p["tp"] * p["pp"] * p["dp"] * p["cp"]
    step_s = sum(parts.values())
    flops = s.flops() * p["microbatches"] * p["tp"] * p["dp"] * p["cp"]
    rate = mean_peak_flops_per_s([each.cluster for each in tables], t.job.recipe.dtype, int(devices[0]))
    return {
        **parts,
        "step_s": step_s,
        "log_sigma": np.sqrt((deviation_s / step_s) ** 2 + t.c.step_sigma**2),
        "model_flops": flops,
        "tokens_per_s_per_device": t.job.tokens_per_step / step_s / devices,
        "mfu": flops / step_s / devices / rate,
    }
