"""A training step: seconds of one plan or of a million, part by part.

Blocks are priced once per distinct (tp, cp, ep, microbatch), traffic among replicas once per distinct dims, pipelines
once per distinct work row; what remains per plan is a sum. docs/concepts/training-step.md has every formula with its
source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.blocks import BlockKind, blocks
from sartor.model.lower.split import check
from sartor.model.traced import products_dtype
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.operators import DType
from sartor.step.chip_blocks import LOG_SIGMA
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.distinct import distinct_rows, side_by_side
from sartor.step.lockstep import lockstep_parts
from sartor.step.mixed import exchange_of, known_of, mean_peak_flops_per_s, pools_of_stages, stage_seconds, stretches_of
from sartor.step.orders import check_schedule
from sartor.step.pipeline import PipelineWork, pipeline_time
from sartor.step.recipes import as_trained
from sartor.step.results import StepEstimate
from sartor.step.stage_exchange import PlanExchange, StageExchange, Worked
from sartor.step.stage_seconds import StageSeconds
from sartor.step.stages import StageRows, each_device, is_v_shaped, stage_counts, stage_rows, summed
from sartor.step.stalls import Chunks, stall_s
from sartor.step.tables import KnownBlocks, PlanTables, plan_columns, plan_tables
from sartor.units import FloatArray, IntArray

CHUNK = 8192
"""Plans summed up at once: their arrays fit in a core's cache."""

OPTIMIZER_SIGMA = 0.2
"""Standard deviation of ln of the optimizer step (assumed, from the gap between fused and unfused steps)."""


def step(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    coefficients: TrainingCoefficients | None = None,
    blocks_known: KnownBlocks | None = None,
) -> StepEstimate:
    """Predicted step of ``job`` under ``plan`` on ``cluster``; arrays in the plan give arrays of its shape.

    ``coefficients`` replaces the packaged ones of the job's trainer and device. Raises ``InputError`` for a single plan
    that does not divide the model or for which its schedule has no order; in arrays such plans are priced as if padded.

    On a mixed cluster stages fill the pools in order, each at its own pool's speed; ``calibration`` then applies to the
    pools with its device.
    """
    check_plan(job, plan, cluster)
    columns, shape = plan_columns(plan)
    split = np.zeros_like(columns["tp"])
    tables = partial(
        tables_of,
        cluster=cluster,
        calibration=calibration,
        coefficients=coefficients,
        blocks_known=blocks_known,
    )
    found = _step(job, {**columns, "split": split}, [plan.stage_layers], tables)
    single = shape == ()
    return StepEstimate(**{k: float(v[0]) if single else v.reshape(shape) for k, v in zip(_PARTS, found, strict=True)})


def step_each(
    job: TrainingJob,
    plans: Sequence[TrainingPlan],
    cluster: Cluster,
    calibration: Calibration | None = None,
    blocks_known: KnownBlocks | None = None,
) -> list[StepEstimate]:
    """`step` of single plans that have their own ``stage_layers``; what they share is priced once."""
    if not plans:
        return []
    of_each = [plan_columns(plan)[0] for plan in plans]
    columns = {name: np.concatenate([each[name] for each in of_each]) for name in of_each[0]}
    splits = [plan.stage_layers for plan in plans]
    tables = partial(tables_of, cluster=cluster, calibration=calibration, blocks_known=blocks_known)
    found = _step(job, {**columns, "split": np.arange(len(plans))}, splits, tables)
    return [StepEstimate(**dict(zip(_PARTS, values, strict=True))) for values in found.T.tolist()]


_PARTS = tuple(field.name for field in fields(StepEstimate))


def check_plan(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> None:
    """Raise ``InputError`` if no step can be priced: a single plan that does not divide the model or for which its
    schedule has no order."""
    check(as_trained(job, plan.dims), plan.dims)
    d = plan.dims
    single = all(np.ndim(x) == 0 for x in (plan.schedule, d.pp, plan.virtual_stages, plan.num_microbatches))
    if single:
        schedule = PipelineSchedule(int(plan.schedule))
        check_schedule(schedule, int(d.pp), int(plan.virtual_stages), int(plan.num_microbatches))


def tables_of(
    job: TrainingJob,
    columns: dict[str, IntArray],
    cluster: Cluster,
    calibration: Calibration | None = None,
    coefficients: TrainingCoefficients | None = None,
    blocks_known: KnownBlocks | None = None,
) -> list[PlanTables]:
    """One table per pool of the cluster and, of a mixed one, per stretch of pools that a stage may straddle."""
    pools = stretches_of(cluster, job.recipe.dtype)
    known = [known_of(pool, calibration) for pool in pools] if cluster.others else [calibration]
    return [plan_tables(job, columns, *each, coefficients, blocks_known) for each in zip(pools, known, strict=True)]


STRUCTURE = ("tp", "pp", "dp", "cp", "ep", "sequence", "microbatch_size", "shard_group", "virtual", "zero", "schedule")
"""Columns that tables depend on; of ``virtual`` only whether chunks interleave, of ``zero`` whether anything is
sharded, of ``schedule`` whether it hides the experts' all-to-all."""
WORK = ("pipeline", "structure", "recompute", "recompute_layers", "microbatches", "schedule", "zero")
"""Columns that a pipeline's time depends on; of ``zero`` only whether weights are gathered layer by layer."""


TablesFor = Callable[[TrainingJob, dict[str, IntArray]], list[PlanTables]]


def _step(
    job: TrainingJob,
    columns: dict[str, IntArray],
    splits: Sequence[tuple[int, ...] | None],
    tables_for: TablesFor,
) -> FloatArray:
    """The fields of ``StepEstimate`` [fields, plans]; column ``split`` is each plan's index into ``splits``."""
    sharded = columns["zero"] > 1
    apart = job.trainer.sharding_gradients
    if apart is job.trainer or not sharded.any():
        return _of_trainer(job, columns, splits, tables_for)
    out = np.empty((len(_PARTS), sharded.size))
    for one, own in ((job, np.flatnonzero(~sharded)), (replace(job, trainer=apart), np.flatnonzero(sharded))):
        if own.size:
            out[:, own] = _of_trainer(one, {name: column[own] for name, column in columns.items()}, splits, tables_for)
    return out


def _of_trainer(
    job: TrainingJob,
    columns: dict[str, IntArray],
    splits: Sequence[tuple[int, ...] | None],
    tables_for: TablesFor,
) -> FloatArray:
    plans = _plans(job, columns, splits, tables_for)
    out = np.empty((len(_PARTS), columns["tp"].size))
    for start in range(0, out.shape[1], CHUNK):
        some = slice(start, start + CHUNK)
        parts = plans.parts({name: column[some] for name, column in columns.items()}, some)
        for row, name in zip(out, _PARTS, strict=True):
            row[some] = parts[name]
    return out


def _plans(
    job: TrainingJob,
    columns: dict[str, IntArray],
    splits: Sequence[tuple[int, ...] | None],
    tables_for: TablesFor,
) -> _Plans:
    hides = (columns["schedule"] == PipelineSchedule.DUAL_PIPE_V) & (columns["ep"] > 1)
    told = {
        **columns,
        "virtual": np.minimum(columns["virtual"], 2),
        "zero": np.minimum(columns["zero"], 1),
        "schedule": np.where(hides, PipelineSchedule.DUAL_PIPE_V, 0),
    }
    few, structure = distinct_rows([told[name] for name in STRUCTURE])
    structures = dict(zip(STRUCTURE, few, strict=True))
    tables = tables_for(job, structures)
    pools = [each.cluster for each in tables]
    size = columns["tp"] * columns["cp"] * columns["dp"] if len(pools) > 1 else np.ones_like(columns["tp"])
    is_v = is_v_shaped(columns["schedule"], columns["pp"], columns["virtual"]).astype(np.int64)
    ways, pipeline = distinct_rows([columns["pp"], columns["virtual"], size, columns["split"], is_v])
    layerwise = np.where(columns["zero"] >= 3, 3, 0)
    told = {**columns, "pipeline": pipeline, "structure": structure, "zero": layerwise}
    work, of = distinct_rows([told[name] for name in WORK])
    exchanges, at = distinct_rows([pipeline, structure])
    worked, exchanged = list[Worked](), list[StageExchange]()
    starts = [np.searchsorted(rows[0], np.arange(ways[0].size + 1)).tolist() for rows in (work, exchanges)]
    for i, (pp, virtual, per_stage, split, v_shaped) in enumerate(zip(*(way.tolist() for way in ways), strict=True)):
        in_pool = pools_of_stages(pools, pp, per_stage)
        stages = _stages(job, pp, virtual, splits[split], in_pool, len(pools), v_shaped=bool(v_shaped))
        exchanged.append(exchange_of(tables, stages.rows, exchanges[1][starts[1][i] : starts[1][i + 1]]))
        for first in range(starts[0][i], starts[0][i + 1], CHUNK):
            mine = slice(first, min(first + CHUNK, starts[0][i + 1]))
            rows = {name: row[mine] for name, row in zip(WORK, work, strict=True)}
            worked.append(_work(tables, stages, {**rows, "virtual": np.full(rows["structure"].size, virtual)}))
    exchange = _beside(exchanged)
    return _Plans(
        tables=tables,
        work=Worked(**{f.name: side_by_side([getattr(each, f.name) for each in worked]) for f in fields(Worked)}),
        exchange=exchange,
        optimizer_s=exchange.optimizer_s(),
        of=of,
        at=at,
    )


def _beside(of_pipelines: list[StageExchange]) -> StageExchange:
    def joined(name: str) -> FloatArray:
        arrays = [getattr(each, name) for each in of_pipelines]
        return np.concatenate(arrays) if arrays[0].ndim == 1 else np.asarray(side_by_side(arrays))

    return StageExchange(**{field.name: joined(field.name) for field in fields(StageExchange)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """The distinct devices of a pipeline, and its chunks if they hold unequal numbers of layers."""

    rows: StageRows
    parts: StageRows
    """In lockstep every chunk as a stage of its own, all first chunks before all second ones; else ``rows``."""
    chunks: Chunks | None


def _stages(
    job: TrainingJob,
    pp: int,
    virtual: int,
    given: tuple[int, ...] | None,
    in_pool: IntArray,
    pools: int,
    *,
    v_shaped: bool,
) -> _Stages:
    rows = stage_rows(job.shape, pp, virtual, given, in_pool, v_shaped=v_shaped)
    if pp == 1 or virtual == 1 or v_shaped:
        return _Stages(rows=rows, parts=rows, chunks=None)
    counts = stage_counts(job.shape, pp, virtual, given)
    if job.trainer.lockstep:
        every = counts.swapaxes(0, 1).reshape(pp * virtual, -1)
        return _Stages(rows=rows, parts=each_device(every, 1, np.tile(in_pool, virtual)), chunks=None)
    own = (in_pool[:, None] == np.arange(pools)).astype(np.int64)  # blocks of different pools are distinct
    apart = (own[:, None, :, None] * counts[:, :, None, :]).reshape(pp, virtual, -1)
    is_layer = np.array([block.kind is BlockKind.LAYER for block in blocks(job.shape)])
    chunks = Chunks(counts=apart, is_layer=np.tile(is_layer, pools), exact=given is not None)
    return _Stages(rows=rows, parts=rows, chunks=chunks if chunks.unequal else None)


OF_STEP = ("compute_s", "tp_s", "ep_s", "cp_s", "host_s", "offload_s", "layerwise_s", "bubble_s", "transfer_s")
"""Parts of the step within the pipeline; they add up to its makespan."""
BESIDE = ("deviation_s", "imbalance_s", "flops")


def _work(tables: Sequence[PlanTables], stages: _Stages, work: dict[str, IntArray]) -> Worked:
    rows, t, m = stages.rows, tables[0], work["microbatches"]
    transfer_s = np.maximum.reduce([each.transfer_s[each.transfer_index[work["structure"]]] for each in tables])
    if t.job.trainer.lockstep:
        s = stage_seconds(tables, stages.parts, work)
        hides = np.zeros((rows.last.size, m.size))
        beside = dict.fromkeys((field.name for field in fields(Worked)), hides)
        parts = lockstep_parts(s, work, transfer_s, rows.pp)
        return Worked(**{**beside, "parts": _stacked({**parts, "flops": s.flops() * m}, m.size)})
    s = stage_seconds(tables, rows, work)
    before = rows.before_first / rows.virtual_stages
    rear = s.backward_s + s.wgrad_s
    parts = {**_overlapping_parts(t, stages, s, work, transfer_s), "flops": s.flops() * m}
    return Worked(
        forward_s=s.forward_s,
        rear_s=rear,
        gather_s=s.gather_s,
        scatter_s=s.scatter_s,
        hides_gather_s=np.asarray(summed(before, s.forward_s)),
        hides_reduce_s=np.asarray(summed(before, rear)),
        parts=_stacked(parts, m.size),
    )


def _stacked(parts: dict[str, FloatArray], size: int) -> FloatArray:
    """`Worked.parts` of ``size`` work rows; parts that are not given are 0."""
    return np.stack([parts.get(name, np.zeros(size)) for name in (*OF_STEP, *BESIDE)])


def _overlapping_parts(
    t: PlanTables, stages: _Stages, s: StageSeconds, work: dict[str, IntArray], transfer_s: FloatArray
) -> dict[str, FloatArray]:
    """Parts of a pipeline whose stages advance at their own speed, by its schedule."""
    m = work["microbatches"]
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
    slow = {name: m * s.of_slowest(name, pipe.slowest) for name in ("tp_s", "ep_s", "cp_s", "host_s")}
    for name in ("layerwise_s", "offload_s"):
        slow[name] = m * getattr(s, name)[pipe.slowest, np.arange(m.size)]
    busy = s.forward_s + s.backward_s + s.wgrad_s
    work_share = (pipe.time_s - pipe.transfer_s) / np.maximum(pipe.busy_s, 1e-30)
    return {
        **slow,
        "compute_s": pipe.busy_s - sum(slow.values()),
        "bubble_s": np.maximum(pipe.bubble_s + stalled, 0.0),  # rounding
        "transfer_s": pipe.transfer_s,
        "deviation_s": m * s.of_slowest("deviation_s", pipe.slowest) * work_share,
        "imbalance_s": m * (busy.max(axis=0) - s.evened_s(busy)) + np.maximum(stalled, 0.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plans:
    """Plans by index: ``of`` into ``work``, ``at`` into ``exchange``."""

    tables: Sequence[PlanTables]
    work: Worked
    exchange: StageExchange
    optimizer_s: FloatArray
    of: IntArray
    at: IntArray

    def parts(self, p: dict[str, IntArray], plans: slice) -> dict[str, FloatArray]:
        """Parts of the step of some plans; they add up to ``step_s``."""
        t, c, of, at = self.tables[0], self.tables[0].c, self.of[plans], self.at[plans]
        w = dict(zip((*OF_STEP, *BESIDE), self.work.parts.take(of, axis=1), strict=True))
        optimizer = self.optimizer_s.take(np.where(p["offload"] > 0, self.optimizer_s.shape[1], 0) + at)
        devices = p["tp"] * p["pp"] * p["dp"] * p["cp"]
        dp = w["layerwise_s"] + self._exchange_s(p, of, at)
        pipeline = sum(w[name] for name in OF_STEP)
        waits = c.fixed_step_s + c.waiting(devices) * (pipeline + optimizer)
        parts = {
            "compute_s": w["compute_s"],
            "tp_s": w["tp_s"],
            "pp_bubble_s": w["bubble_s"],
            "pp_transfer_s": w["transfer_s"],
            "dp_exposed_s": dp,
            "ep_s": w["ep_s"],
            "cp_s": w["cp_s"],
            "optimizer_s": optimizer,
            "overhead_s": w["host_s"] + w["offload_s"] + (0.0 if t.job.trainer.lockstep else waits),
        }
        step_s = sum(parts.values())
        flops = w["flops"] * (p["tp"] * p["dp"] * p["cp"])
        clusters = [each.cluster for each in self.tables]
        per_device = 1.0 / (step_s * devices)
        network = t.calibration.network.log_sigma * (dp + w["transfer_s"])
        variance = w["deviation_s"] ** 2 + network**2 + (OPTIMIZER_SIGMA * optimizer) ** 2
        variance = (LOG_SIGMA * step_s) ** 2 if t.job.trainer.lockstep else variance
        return {
            **parts,
            "imbalance_s": w["imbalance_s"],
            "step_s": step_s,
            "log_sigma": np.sqrt(variance / step_s**2 + c.step_sigma**2),
            "model_flops": flops,
            "tokens_per_s_per_device": t.job.tokens_per_step * per_device,
            "mfu": flops * per_device / mean_peak_flops_per_s(clusters, _peak_dtype(t.job), int(devices[0])),
        }

    def _exchange_s(self, p: dict[str, IntArray], of: IntArray, at: IntArray) -> FloatArray:
        """Gradient and parameter exchange once a step, beyond what compute and the bubble hide."""
        work, t = self.work, self.tables[0]
        x, trainer = self.exchange, t.job.trainer
        of_plans = {"zero": p["zero"], "pp": p["pp"], "virtual": p["virtual"]}
        each = PlanExchange(c=t.c, trainer=trainer, work=work, of=of, x=x, at=at, **of_plans)
        out = np.maximum(each.reduced_s() - work.hides_reduce_s.take(of, axis=1), 0.0).max(axis=0)
        into = np.maximum(each.gathered_s() - work.hides_gather_s.take(of, axis=1), 0.0).max(axis=0)
        exchanged: FloatArray = out + into + each.earlier_s(p["microbatches"]) + x.tied_s.take(at)
        return exchanged


def _peak_dtype(job: TrainingJob) -> DType:
    """The dtype whose peak the MFU is against: the recipe's, or that of a traced model's own GEMMs."""
    return job.recipe.dtype if job.shape.traced is None else products_dtype(job.shape.traced)
