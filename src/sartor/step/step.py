"""A training step: seconds of one plan or of a million, part by part.

Blocks are priced once per distinct (tp, cp, ep, microbatch), traffic among replicas once per distinct dims, pipelines
once per distinct work row; what remains per plan is a sum. docs/concepts/training-step.md has every formula with its
source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.model.lower.setting import check
from sartor.model.plan import Depends, axes_with
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.operators import DType
from sartor.step import mechanisms
from sartor.step.block_times import LOG_SIGMA
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.mechanisms.mechanism import Mechanism
from sartor.step.orders import check_schedule
from sartor.step.pipeline import (
    exchange_of,
    known_of,
    mean_peak_flops_per_s,
    pipeline_stages,
    pools_of_stages,
    stretches_of,
    worked,
)
from sartor.step.question import as_trained
from sartor.step.results import StepEstimate, check_none_negative
from sartor.step.stage_seconds import StageExchange, StepWork, Worked
from sartor.step.stages import CHUNK, ChunkLayers, columns_of_each, distinct_rows, flat_columns, grouped, is_v_shaped
from sartor.step.tables import PlanTables, plan_tables
from sartor.units import FloatArray, IntArray, remembered, shaped


def step(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    coefficients: TrainingCoefficients | None = None,
    layers: ChunkLayers | None = None,
) -> StepEstimate:
    """Predicted step of ``job`` under ``plan`` on ``cluster``; arrays in the plan give arrays of its shape, ``layers``
    (not the plan's) its own to each.

    ``coefficients`` replaces the packaged ones of the job's trainer and device. Raises ``InputError`` for a single plan
    that does not divide the model or for which its schedule has no order; in arrays such plans are priced as if padded.

    On a mixed cluster stages fill the pools in order, each at its own pool's speed; ``calibration`` then applies to the
    pools with its device.
    """
    check_plan(job, plan, cluster)
    columns, shape = flat_columns(plan)
    splits, split = layers or ([plan.stage_layers], np.zeros_like(columns["tp"]))
    tables = partial(
        tables_of,
        cluster=cluster,
        calibration=calibration,
        coefficients=coefficients,
    )
    priced = _step(job, {**columns, "split": split}, splits, tables)
    return _estimate([shaped(values, shape) for values in priced])


def step_each(
    job: TrainingJob,
    plans: Sequence[TrainingPlan],
    cluster: Cluster,
    calibration: Calibration | None = None,
) -> list[StepEstimate]:
    """`step` of single plans that have their own ``stage_layers``; what they share is priced once."""
    if not plans:
        return []
    columns, splits, split = columns_of_each(plans)
    tables = partial(tables_of, cluster=cluster, calibration=calibration)
    priced = _step(job, {**columns, "split": split}, splits, tables)
    return [_estimate(values) for values in priced.T.tolist()]


_WHOLE = tuple(field.name for field in fields(StepEstimate) if field.name != "parts")


def _results() -> tuple[str, ...]:
    """Names of the rows that `_step` gives: what an estimate says of the whole step, then its parts."""
    return (*_WHOLE, *(part.key for part in mechanisms.parts()))


def _estimate(values: Sequence[Any]) -> StepEstimate:
    whole, parts = values[: len(_WHOLE)], values[len(_WHOLE) :]
    by_key = {part.key: seconds for part, seconds in zip(mechanisms.parts(), parts, strict=True)}
    return StepEstimate(**dict(zip(_WHOLE, whole, strict=True)), parts=by_key)


def check_plan(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> None:
    """Raise ``InputError`` if no step can be priced: a single plan that does not divide the model or for which its
    schedule has no order."""
    check(as_trained(job, plan.dims), plan.dims)
    d = plan.dims
    single = all(np.ndim(x) == 0 for x in (plan.schedule, d.pp, plan.virtual_stages, plan.num_microbatches))
    if single:
        schedule, ragged = PipelineSchedule(int(plan.schedule)), job.trainer.ragged_rounds
        check_schedule(schedule, int(d.pp), int(plan.virtual_stages), int(plan.num_microbatches), ragged=ragged)


def tables_of(
    job: TrainingJob,
    columns: dict[str, IntArray],
    cluster: Cluster,
    calibration: Calibration | None = None,
    coefficients: TrainingCoefficients | None = None,
) -> list[PlanTables]:
    """One table per pool of the cluster and, of a mixed one, per stretch of pools that a stage may straddle."""
    pools = stretches_of(cluster, job.recipe.dtype)
    calibrations = [known_of(pool, calibration) for pool in pools] if cluster.others else [calibration]
    return [
        plan_tables(job, columns, *pool_calibration, coefficients)
        for pool_calibration in zip(pools, calibrations, strict=True)
    ]


STRUCTURE = axes_with(Depends.BLOCKS)
"""Columns that tables depend on; of ``virtual_stages`` whether chunks interleave, of ``zero_stage`` whether anything is
sharded, of ``schedule`` whether it hides the experts' all-to-all."""
SHARING = ("zero_stage", "shard_group")
"""Of these, how replicas share states: pipelines that do not gather weights layer by layer do not depend on it."""
ALONE = ("microbatch_size", "sequence_parallel", "virtual_stages", "schedule")
"""Of these, what the exchange among replicas does not depend on."""
WORK = ("pipeline", "structure", "num_microbatches", *axes_with(Depends.PIPELINE))
"""Columns that a pipeline's time depends on; of ``zero_stage`` only whether weights are gathered layer by layer."""


TablesFor = Callable[[TrainingJob, dict[str, IntArray]], list[PlanTables]]


def _step(
    job: TrainingJob,
    columns: dict[str, IntArray],
    splits: Sequence[tuple[int, ...] | None],
    tables_for: TablesFor,
) -> FloatArray:
    """`_results` [fields, plans]; column ``split`` is each plan's index into ``splits``."""
    sharded = columns["zero_stage"] > 1
    apart = job.trainer.sharding_gradients
    if apart is job.trainer or not sharded.any():
        return _of_trainer(job, columns, splits, tables_for)
    out = np.empty((len(_results()), sharded.size))
    for trainer_job, rows in ((job, np.flatnonzero(~sharded)), (_sharding_gradients(job), np.flatnonzero(sharded))):
        if rows.size:
            out[:, rows] = _of_trainer(
                trainer_job, {name: column[rows] for name, column in columns.items()}, splits, tables_for
            )
    return out


@remembered
def _sharding_gradients(job: TrainingJob) -> TrainingJob:
    return replace(job, trainer=job.trainer.sharding_gradients)


def _of_trainer(
    job: TrainingJob,
    columns: dict[str, IntArray],
    splits: Sequence[tuple[int, ...] | None],
    tables_for: TablesFor,
) -> FloatArray:
    out = np.empty((len(_results()), columns["tp"].size))
    for plans in _plans(job, columns, splits, tables_for):
        estimates = plans.estimates({name: column.take(plans.index) for name, column in columns.items()})
        for name, row in zip(_results(), out, strict=True):
            row[plans.index] = estimates[name]
    return out


def _plans(
    job: TrainingJob,
    columns: dict[str, IntArray],
    splits: Sequence[tuple[int, ...] | None],
    tables_for: TablesFor,
) -> Iterator[_Plans]:
    """All plans, pipeline by pipeline, at most `CHUNK` at once."""
    hides = (columns["schedule"] == PipelineSchedule.DUAL_PIPE_V) & (columns["ep"] > 1)
    all_columns = {
        **columns,
        "virtual_stages": np.minimum(columns["virtual_stages"], 2),
        "zero_stage": np.minimum(columns["zero_stage"], 1),
        "schedule": np.where(hides, PipelineSchedule.DUAL_PIPE_V, 0),
    }
    few, structure = distinct_rows([all_columns[name] for name in STRUCTURE])
    tables = tables_for(job, dict(zip(STRUCTURE, few, strict=True)))
    pools = [table.cluster for table in tables]
    size = columns["tp"] * columns["cp"] * columns["dp"] if len(pools) > 1 else np.ones_like(columns["tp"])
    is_v = is_v_shaped(columns["schedule"], columns["pp"], columns["virtual_stages"]).astype(np.int64)
    ways, pipeline = distinct_rows([columns["pp"], columns["virtual_stages"], size, columns["split"], is_v])
    layerwise = np.where(columns["zero_stage"] >= 3, 3, 0)
    working = np.where(layerwise > 0, structure, _alike_but(SHARING, few)[structure])
    exchanging = _alike_but(ALONE, few)[structure]
    all_columns = {**columns, "pipeline": pipeline, "structure": working, "zero_stage": layerwise}
    work, work_row = distinct_rows([all_columns[name] for name in WORK])
    order, plans_before = grouped(work_row, work[0].size)
    starts = np.searchsorted(work[0], np.arange(ways[0].size + 1)).tolist()
    for i, (pp, virtual, per_stage, split, v_shaped) in enumerate(zip(*(way.tolist() for way in ways), strict=True)):
        in_pool = pools_of_stages(pools, pp, per_stage)
        stages = pipeline_stages(job, pp, virtual, splits[split], in_pool, len(pools), v_shaped=bool(v_shaped))
        for first in range(starts[i], starts[i + 1], CHUNK):
            mine = slice(first, min(first + CHUNK, starts[i + 1]))
            rows = {name: row[mine] for name, row in zip(WORK, work, strict=True)}
            seconds, every = worked(tables, stages, rows), order[plans_before[mine.start] : plans_before[mine.stop]]
            (exchanges,), at = distinct_rows([exchanging[every]])
            exchange = exchange_of(tables, stages.rows, exchanges)
            for part in (slice(start, start + CHUNK) for start in range(0, every.size, CHUNK)):
                of = work_row[every[part]] - first
                yield _Plans(index=every[part], tables=tables, work=seconds, exchange=exchange, of=of, at=at[part])


def _alike_but(names: Sequence[str], structures: Sequence[IntArray]) -> IntArray:
    """For each of some `STRUCTURE` rows, the first that is equal but for the columns ``names``."""
    _, alike = distinct_rows([row for name, row in zip(STRUCTURE, structures, strict=True) if name not in names])
    _, first = np.unique(alike, return_index=True)
    return np.asarray(first[alike])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plans:
    """Plans of one pipeline, ``index`` among all: ``of`` into ``work``, ``at`` into ``exchange``."""

    index: IntArray
    tables: Sequence[PlanTables]
    work: Worked
    exchange: StageExchange
    of: IntArray
    at: IntArray

    def estimates(self, p: dict[str, IntArray]) -> dict[str, FloatArray]:
        """`_results` of the plans with the columns ``p``."""
        s, parts, (deviation_s, imbalance_s, flops) = self.work_of(p)
        for _ in once_a_step(s, parts):
            pass
        step_s = sum(parts.values(), np.zeros(s.at.size))
        check_none_negative("a step", parts, step_s)
        return {
            **parts,
            "step_s": step_s,
            "log_sigma": self._log_sigma(parts, step_s, deviation_s),
            "imbalance_s": imbalance_s,
            **self._rates(s, step_s, flops),
        }

    def work_of(self, p: dict[str, IntArray]) -> tuple[StepWork, dict[str, FloatArray], FloatArray]:
        """What the plans do once a step, the parts of their pipelines' makespans, and `BESIDE`."""
        rows = self.work.parts.take(self.of, axis=1)
        parts = dict(zip((part.key for part in mechanisms.parts()), rows, strict=False))
        s = StepWork(
            c=self.tables[0].c,
            trainer=self.tables[0].job.trainer,
            columns=p,
            work=self.work,
            of=self.of,
            x=self.exchange,
            at=self.at,
            optimizer_s=self.exchange.optimizer_s(),
            pipeline_s=sum(parts.values(), np.zeros(self.of.size)),  # row by row: the same for one plan and for many
        )
        return s, parts, rows[len(parts) :]

    def _log_sigma(self, parts: dict[str, FloatArray], step_s: FloatArray, deviation_s: FloatArray) -> FloatArray:
        """Kernels, network and the parts with an uncertainty of their own are independent; all steps share
        ``step_sigma``."""
        t, all_parts = self.tables[0], mechanisms.parts()
        exchanged = sum((parts[part.key] for part in all_parts if part.network), np.zeros_like(step_s))
        network = t.calibration.network.log_sigma * exchanged
        variance = deviation_s**2 + network**2
        for part in all_parts:
            if part.log_sigma:
                variance = variance + (part.log_sigma * parts[part.key]) ** 2
        variance = (LOG_SIGMA * step_s) ** 2 if t.job.trainer.lockstep else variance
        return np.sqrt(variance / step_s**2 + t.c.step_sigma**2)

    def _rates(self, s: StepWork, step_s: FloatArray, flops: FloatArray) -> dict[str, FloatArray]:
        """FLOPs of all replicas, and what a second of a device does."""
        t, p, devices = self.tables[0], s.columns, s.devices
        whole = flops * (p["tp"] * p["dp"] * p["cp"])
        peak = mean_peak_flops_per_s([table.cluster for table in self.tables], _peak_dtype(t.job), int(devices[0]))
        per_device = 1.0 / (step_s * devices)
        return {
            "model_flops": whole,
            "tokens_per_s_per_device": t.job.tokens_per_step * per_device,
            "mfu": whole * per_device / peak,
        }


def once_a_step(s: StepWork, parts: dict[str, FloatArray]) -> Iterator[tuple[Mechanism, FloatArray]]:
    """The mechanisms that act once a step, in order, with their seconds, which are added to ``parts``."""
    for mechanism in mechanisms.acting("at_step"):
        assert mechanism.at_step is not None
        seconds = mechanism.at_step(s, parts)
        parts[mechanism.part.key] = parts[mechanism.part.key] + seconds
        yield mechanism, seconds


def one_step(
    job: TrainingJob,
    plan: TrainingPlan,
    tables: list[PlanTables],
) -> tuple[StepWork, dict[str, FloatArray]]:
    """What a single plan does once a step, and the parts of its pipeline's makespan; ``tables`` as `tables_of` it."""
    columns, _ = flat_columns(plan)
    columns = {**columns, "split": np.zeros_like(columns["tp"])}
    (plans,) = _plans(job, columns, [plan.stage_layers], lambda *_: tables)
    s, parts, _ = plans.work_of(columns)
    return s, parts


def _peak_dtype(job: TrainingJob) -> DType:
    """The dtype whose peak the MFU is against: the recipe's, or that of a traced model's own GEMMs."""
    if job.shape.traced is None:
        return job.recipe.dtype
    from sartor.model.traced import products_dtype  # a traced model is rare

    return products_dtype(job.shape.traced)
