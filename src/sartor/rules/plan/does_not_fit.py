"""The plan does not fit in device memory.

## What it finds

A plan whose weights, gradients, optimizer states, activations, workspaces and driver need more memory than a device
has, on the pipeline rank that needs most. A warning, not an error, where it is too much by less than the error of a
predicted peak, or the launch has a switch that may save as much and has no price here.

## Why it costs

The run ends in an out-of-memory error, in the first step or at the first long sequence.

## Fix

The fastest single change that makes it fit: more recomputation, a smaller microbatch, a higher ZeRO stage or more model
parallelism.

## Source

``sartor.step.footprint``; its accuracy against published peaks is in docs/accuracy.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonMap
from sartor.model.lower import feasible
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel
from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, Remedy
from sartor.rules.rule import Grade
from sartor.step.footprint import footprint, in_doubt, likely_text, usable_bytes
from sartor.step.question import as_trained, usual_attention
from sartor.step.step import step
from sartor.units import format_bytes


def does_not_fit(context: PlanContext) -> Iterator[PlanSuspicion]:
    if context.fits:
        return
    need, room = float(context.footprint.device_bytes), context.limit_bytes
    stage = int(context.footprint.stage)
    changes = what_to_change(context.job, context.plan, context.cluster, context.calibration, room)
    where = f"stage {stage} needs" if int(context.plan.dims.pp) > 1 else "a device needs"
    left = f" with {100 * context.headroom:.3g}% headroom" if context.headroom else ""
    none = "" if changes else "; no single change makes it fit"
    doubt = f"; without a price here, and could save as much: {', '.join(context.unpriced)}" if context.unpriced else ""
    doubt += (
        f"; {likely_text(need, context.cluster)}" if not context.own_margin and in_doubt(need, context.cluster) else ""
    )
    yield PlanSuspicion(
        grade=Grade.WARN if doubt else Grade.ERROR,
        message=f"{where} {format_bytes(need)}, {format_bytes(need - room)} more than"
        f" {context.cluster.gpu.label} has available{left}{none}{doubt}",
        field="peak_bytes",
        value=need,
        remedies=tuple(Remedy(fix=_fix(c.field, c.value), plan=c.plan, job=c.job) for c in changes),
        blocking=True,
    )


def _fix(fields: str, values: str) -> JsonMap:
    """``pp and optimizer_offload``, ``4 and true`` as two fields."""
    return dict(zip(fields.split(" and "), values.split(" and "), strict=True))


RULE = PlanRule(code="P1", check=does_not_fit, page=__doc__ or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanChange:
    """One change that makes a plan fit; the number of devices and the global batch stay the same."""

    field: str
    value: str
    sentence: str
    plan: TrainingPlan
    job: TrainingJob
    saved_bytes: float = math.nan
    """Saved on the fullest device."""
    device_bytes: float = math.nan
    """Bytes of the fullest device afterwards."""
    step_s: float = math.nan
    """Predicted afterwards; NaN if the change cannot be priced."""


def what_to_change(
    job: TrainingJob,
    plan: TrainingPlan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    limit_bytes: float | None = None,
) -> tuple[_PlanChange, ...]:
    """For each field the smallest change with which the plan fits, fastest predicted step first; if no single change is
    enough, or each makes the step more than ``LONGEST`` times as long, faster pairs: the largest change of one field
    with the smallest of another.

    ``limit_bytes`` is what a device may hold (default: all that is usable). Empty if the plan fits already, or if no
    pair is enough.
    """
    limit = usable_bytes(cluster) if limit_bytes is None else limit_bytes
    before = float(footprint(job, plan, cluster).device_bytes)
    if before <= limit:
        return ()
    singles = list(_proposals(job, plan, cluster))
    own_s = _seconds(job, plan, cluster, calibration)
    priced: list[_PlanChange] = []
    for proposals in (lambda: singles, lambda: _pairs(singles, cluster)):
        fastest = min((change.step_s for change in priced), default=math.inf)
        if not fastest <= LONGEST * own_s:
            more = (
                replace(c, saved_bytes=before - c.device_bytes, step_s=_seconds(c.job, c.plan, cluster, calibration))
                for c in _that_fit(proposals(), cluster, limit)
            )
            priced += (change for change in more if not change.step_s >= fastest)
    return tuple(sorted(priced, key=lambda c: (math.isnan(c.step_s), c.step_s, c.saved_bytes)))


LONGEST = 2
"""A change that makes the step so many times as long is no remedy if another is."""


def _that_fit(proposals: Iterable[_PlanChange], cluster: Cluster, limit: float) -> list[_PlanChange]:
    """The first proposal of every field that fits."""
    fitting: dict[str, _PlanChange] = {}
    for proposal in proposals:
        if proposal.field not in fitting:
            after = float(footprint(proposal.job, proposal.plan, cluster).device_bytes)
            if after <= limit:
                fitting[proposal.field] = replace(proposal, device_bytes=after)
    return list(fitting.values())


def _pairs(singles: list[_PlanChange], cluster: Cluster) -> Iterator[_PlanChange]:
    by_field = {proposal.field: proposal for proposal in singles}
    for i, (field, first) in enumerate(by_field.items()):
        later = set(list(by_field)[i + 1 :])
        for second in _proposals(first.job, first.plan, cluster):
            if second.field in later:
                sentence = f"{first.sentence}, and {second.sentence}"
                names = f"{field} and {second.field}"
                yield replace(second, field=names, value=f"{first.value} and {second.value}", sentence=sentence)


def _seconds(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None) -> float:
    try:
        return float(step(job, plan, cluster, calibration).step_s)
    except InputError:
        return math.nan


def _proposals(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Iterator[_PlanChange]:
    """Single changes, the smallest of each field first."""

    def other(field: str, value: str, sentence: str, new: TrainingPlan) -> _PlanChange:
        return _PlanChange(field=field, value=value, sentence=sentence, job=job, plan=new)

    yield from _recompute(job, plan)
    yield from _smaller_microbatch(job, plan)
    for zero in range(int(plan.zero_stage) + 1, 4):
        yield other("zero_stage", str(zero), f"shard with ZeRO stage {zero}", replace(plan, zero_stage=zero))
    for name in ("tp", "cp", "pp", "ep"):
        yield from _more(job, plan, cluster, name)
    d = plan.dims
    if int(d.tp) > 1 and not d.sequence_parallel:
        new = replace(plan, dims=replace(d, sequence_parallel=True))
        yield other("sequence_parallel", "true", "split activations along the sequence", new)
    if not plan.optimizer_offload:
        new = replace(plan, optimizer_offload=True)
        yield other("optimizer_offload", "true", "keep the optimizer's states in host memory", new)
    if int(plan.schedule) == PipelineSchedule.GPIPE and int(d.pp) > 1:
        new = replace(plan, schedule=PipelineSchedule.ONE_F_ONE_B)
        yield other("schedule", "1f1b", "begin backward as early as 1F1B does", new)
    if job.attention_kernel is not usual_attention(job.trainer, cluster.gpus):
        flash = replace(job, attention_kernel=AttentionKernel.FLASH)
        yield replace(other("attention", "flash", "use a flash attention kernel", plan), job=flash)


def _recompute(job: TrainingJob, plan: TrainingPlan) -> Iterator[_PlanChange]:
    def other(value: str, sentence: str, kind: Recompute, layers: int = -1) -> _PlanChange:
        new = replace(plan, recompute=kind, recompute_layers=layers)
        return _PlanChange(field="recompute", value=value, sentence=sentence, job=job, plan=new)

    now = int(plan.recompute)
    if now < Recompute.SELECTIVE and not job.recomputes_nothing:
        yield other("selective", "recompute the attention core", Recompute.SELECTIVE)
    if now == Recompute.FULL and int(plan.recompute_layers) < 0:
        return
    layers = -(-int(job.shape.num_layers) // int(plan.dims.pp))
    first = int(plan.recompute_layers) + 1 if now == Recompute.FULL else 1
    for n in range(first, layers):
        yield other(f"full, {n} layers", f"recompute {n} of {layers} layers per stage", Recompute.FULL, n)
    yield other("full", "recompute all layers", Recompute.FULL)


def _smaller_microbatch(job: TrainingJob, plan: TrainingPlan) -> Iterator[_PlanChange]:
    size = int(plan.microbatch_size)
    for less in (n for n in range(size - 1, 0, -1) if size % n == 0):
        new = replace(plan, microbatch_size=less, num_microbatches=int(plan.num_microbatches) * (size // less))
        sentence = f"microbatches of {less} instead of {size} sequences"
        yield _PlanChange(field="microbatch_size", value=str(less), sentence=sentence, job=job, plan=new)


def _more(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, name: str) -> Iterator[_PlanChange]:
    """A degree doubled repeatedly; the devices come from data parallelism (``ep`` lies within that)."""
    d, factor = plan.dims, 2
    while True:
        degree = int(getattr(d, name)) * factor
        fields: dict[str, Any] = {name: degree}
        if name != "ep":
            if int(d.dp) % factor:
                return
            fields["dp"] = int(d.dp) // factor
        dims = replace(d, **fields)
        if not _possible(job, plan, cluster, dims):
            return
        microbatches = int(plan.num_microbatches) * (1 if name == "ep" else factor)
        new = replace(plan, dims=dims, num_microbatches=microbatches, stage_layers=None)
        sentence = f"{name} {degree} instead of {getattr(d, name)}"
        yield _PlanChange(field=name, value=str(degree), sentence=sentence, job=job, plan=new)
        factor *= 2


def _possible(job: TrainingJob, plan: TrainingPlan, cluster: Cluster, dims: Any) -> bool:
    layers = int(job.shape.num_layers)
    within = int(dims.tp) <= cluster.devices_per_node and int(dims.pp) * int(plan.virtual_stages) <= layers
    ranks = int(dims.dp) * int(dims.cp) * int(dims.tp) // int(job.trainer.expert_tp(dims.tp, dims.ep))
    experts = int(dims.ep) == 1 or (job.shape.moe_ffn is not None and ranks % int(dims.ep) == 0)
    return within and experts and job.seq_len % (2 * int(dims.cp)) == 0 and bool(feasible(as_trained(job, dims), dims))
