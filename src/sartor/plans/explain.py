"""Which single changed fact of a plan would bring the prediction closest to a measured run.

Every fact that the user did not state is tried with its other values; each is priced by the same ``step`` and
``footprint`` as any plan. Seconds count in units of the step's own uncertainty, bytes in units of ``MEMORY_SIGMA``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import PipelineSchedule, Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel
from sartor.plans.result import PricedPlan
from sartor.step.footprint import footprint
from sartor.step.measured_run import MeasuredRun
from sartor.step.recipes import supports
from sartor.step.step import step

MEMORY_SIGMA = 0.10
"""Standard deviation of the logarithm of predicted over measured peak memory (docs/concepts/memory.md: half of the
published runs are within 5 to 8%)."""
WORTH = 2.0
"""A change is reported only if it lowers the misfit by this much (in squared standard deviations)."""
EQUAL = 1.0
"""Changes whose misfits differ by less cannot be distinguished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A prediction with one fact changed, and its distance from the measured run."""

    field: str
    """Empty if nothing is changed."""
    value: str
    job: TrainingJob
    priced: PricedPlan
    misfit: float
    """Squared distance in standard deviations, of step time and memory together."""


def explanations(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    measured: MeasuredRun,
    *,
    said: Collection[str] = (),
    calibration: Calibration | None = None,
) -> tuple[Explanation, ...]:
    """The plan as it is, then every single change of a fact not in ``said``, closest first.

    Raises ``InputError`` if the plan itself cannot be priced.
    """
    base = _explained("", "", job, plan, cluster, measured, calibration)
    others = list[Explanation]()
    for name, value, new_job, new_plan in _changes(job, plan, cluster):
        if name in said:
            continue
        try:
            others.append(_explained(name, value, new_job, new_plan, cluster, measured, calibration))
        except InputError:
            continue
    return (base, *sorted((each for each in others if _differs(each, base)), key=unlikely))


UNLIKELY = {"cp": 6.0, "tp": 6.0, "pp": 6.0, "optimizer_offload": 4.0, "schedule": 4.0}
"""Penalty on changes to facts that few runs leave unstated: -2 ln of their odds against a switch (1 in 20 and 1 in 7,
estimated, not measured)."""


def unlikely(each: Explanation) -> float:
    """The misfit plus the penalty for an unlikely change."""
    return each.misfit + UNLIKELY.get(each.field, 0.0)


def _differs(one: Explanation, other: Explanation) -> bool:
    """Whether a change affects the prediction at all."""
    return abs(one.misfit - other.misfit) > 1e-9 * max(other.misfit, 1.0)


def nearest(found: tuple[Explanation, ...]) -> tuple[Explanation, ...]:
    """The change that explains the run best, and those indistinguishable from it; empty if none improves enough."""
    base, *others = found
    if not others or base.misfit - unlikely(others[0]) < WORTH:
        return ()
    return tuple(each for each in others if unlikely(each) < unlikely(others[0]) + EQUAL)


def misfit(priced: PricedPlan, measured: MeasuredRun) -> float:
    """Squared distance between a prediction and a measured run, in standard deviations."""
    total = _squared(measured.step_s, priced.step_s, float(priced.step.log_sigma))
    held = priced.footprint
    for seen, said in (
        (measured.allocated_bytes, held.allocated_bytes),
        (measured.reserved_bytes, held.reserved_bytes),
    ):
        if math.isfinite(seen):  # one of the two is enough: they are not independent
            return total + _squared(seen, float(said), MEMORY_SIGMA)
    return total


def _squared(seen: float, said: float, sigma: float) -> float:
    return (math.log(seen / said) / max(sigma, 1e-3)) ** 2 if seen > 0 and said > 0 else 0.0


def _explained(
    name: str,
    value: str,
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    measured: MeasuredRun,
    calibration: Calibration | None,
) -> Explanation:
    priced = PricedPlan(plan=plan, step=step(job, plan, cluster, calibration), footprint=footprint(job, plan, cluster))
    if not math.isfinite(priced.step_s):
        raise InputError(name or "plan", value, "cannot be priced")
    return Explanation(field=name, value=value, job=job, priced=priced, misfit=misfit(priced, measured))


_Changed = tuple[str, str, TrainingJob, TrainingPlan]


def _changes(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Iterator[_Changed]:
    """Single changes of facts that logs and launch files often omit."""
    yield from _recomputed(job, plan)
    for name, value, new in (*_microbatches(plan), *_pipelined(plan), *_sharded(plan)):
        yield name, value, job, new
    d = plan.dims
    if int(d.tp) > 1 and job.seq_len % (int(d.tp) * int(d.cp)) == 0 and job.trainer.optional_sequence_parallel:
        other = not d.sequence_parallel
        yield "sequence_parallel", str(other).lower(), job, replace(plan, dims=replace(d, sequence_parallel=other))
    for recipe in _recipes(job, cluster):
        yield "dtype", recipe.value, replace(job, recipe=recipe), plan
    unfused = job.attention_kernel is AttentionKernel.UNFUSED
    kernel = AttentionKernel.FLASH if unfused else AttentionKernel.UNFUSED
    yield "attention", kernel.value, replace(job, attention_kernel=kernel), plan
    for name in ("fused_kernels", "dp_overlap", "tp_overlap", "fused_loss"):
        if name == "tp_overlap" and int(d.tp) == 1:
            continue
        switched: Any = {name: not getattr(job.trainer, name)}
        yield name, str(switched[name]).lower(), replace(job, trainer=replace(job.trainer, **switched)), plan
    for name in ("tp", "pp", "cp"):
        yield from ((name, str(getattr(new.dims, name)), job, new) for new in _spread(job, plan, name))


def _recomputed(job: TrainingJob, plan: TrainingPlan) -> Iterator[_Changed]:
    now, layers = int(plan.recompute), int(job.shape.num_layers) // int(plan.dims.pp)
    by_operator = job.trainer.shards_fully and layers > 1  # torchtitan's selective_ac_option = "op"
    for kind in Recompute:
        useless = kind is Recompute.SELECTIVE and (by_operator or job.recomputes_nothing)
        if (kind != now or int(plan.recompute_layers) >= 0) and not useless:
            yield "recompute", kind.word, job, replace(plan, recompute=kind, recompute_layers=-1)
    if by_operator:
        half = replace(plan, recompute=Recompute.FULL, recompute_layers=layers // 2)
        some = replace(job, trainer=replace(job.trainer, checkpoints_operators=True))
        yield "recompute", "selective", some, half
        yield "recompute_layers", str(layers // 2), job, half


def _microbatches(plan: TrainingPlan) -> Iterator[tuple[str, str, TrainingPlan]]:
    size, count = int(plan.microbatch_size), int(plan.num_microbatches)
    for new in (size // 2, size // 4, size * 2, size * 4):
        if new and size * count % new == 0:
            yield "microbatch_size", str(new), replace(plan, microbatch_size=new, num_microbatches=size * count // new)


def _pipelined(plan: TrainingPlan) -> Iterator[tuple[str, str, TrainingPlan]]:
    if int(plan.dims.pp) == 1 or plan.stage_layers is not None:
        return
    for stages in (1, 2, 4):
        if stages != int(plan.virtual_stages):
            yield "virtual_stages", str(stages), replace(plan, virtual_stages=stages)
    if int(plan.schedule) == PipelineSchedule.ONE_F_ONE_B and int(plan.virtual_stages) == 1:
        yield "schedule", "gpipe", replace(plan, schedule=PipelineSchedule.GPIPE)


def _sharded(plan: TrainingPlan) -> Iterator[tuple[str, str, TrainingPlan]]:
    if int(plan.dims.dp) * int(plan.dims.cp) > 1:
        for stage in range(4):
            if stage != int(plan.zero_stage):
                yield "zero_stage", str(stage), replace(plan, zero_stage=stage)
    other = not plan.optimizer_offload
    yield "optimizer_offload", str(other).lower(), replace(plan, optimizer_offload=other)


def _recipes(job: TrainingJob, cluster: Cluster) -> Iterable[Recipe]:
    """Other precisions that the devices support: 16 bits instead of 8, and 8 instead of 16."""
    half, narrow = (Recipe.BF16, Recipe.FP16), (Recipe.FP8_CURRENT, Recipe.FP8_DELAYED, Recipe.MXFP8)
    wanted = narrow if job.recipe in half else half[:1]
    return [each for each in wanted if all(supports(each, gpu) for gpu in cluster.gpus)]


def _spread(job: TrainingJob, plan: TrainingPlan, name: str) -> Iterator[TrainingPlan]:
    """The plan with other degrees, data parallelism making up the difference."""
    d, rows = plan.dims, int(plan.microbatch_size)
    for degree in (1, 2, 4, 8):
        old = int(getattr(d, name))
        if degree == old or int(d.dp) * old % degree:
            continue
        dp = int(d.dp) * old // degree
        if job.global_batch_size % (dp * rows) or (dp * int(d.cp)) % int(d.ep):
            continue
        changed: Any = {name: degree, "dp": dp}
        count = job.global_batch_size // (dp * rows)
        yield replace(plan, dims=replace(d, **changed), num_microbatches=count, stage_layers=None)
