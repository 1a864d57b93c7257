"""Runs that a row's blank cells leave open, and the one a competent team would have made: the fastest that fits.

Open are the microbatch, interleaving, expert parallelism and recomputation of a row that does not state them, V-shaped
schedules of a trainer that has some, and where the trainer is not known, the kind of context parallelism and how tokens
are exchanged with experts (`sartor.ask.alternatives` has their values). The other facts that stay open there keep their
usual value in the answer and widen its interval; so does a known trainer's every switch. Of 846 published runs, 401
have an open switch: the fastest value changes their median error from 7.6 to 7.9%, six sources become better and eleven
worse (2026-11-29). A precision is not open, since the narrowest would always be the fastest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from sartor.ask.alternatives import open_fields
from sartor.hardware.gpu import Gpu
from sartor.model.shape import TransformerShape
from sartor.model.training import OffloadModule, Recompute, RecomputeModule, TrainingJob, TrainingPlan
from sartor.model.workload import ContextParallel, ParallelDims, PipelineSchedule
from sartor.plans.fixed import SWITCHED, job_choices, settings
from sartor.plans.space import broken, rows_of
from sartor.records.rows import Unexpressed
from sartor.run.fields import Run
from sartor.step.results import Footprint, StepEstimate
from sartor.units import Floats, ceil_div
from sartor.validate.training_setup import is_partial, is_stated

MOST_SEQUENCES = 64
"""Largest microbatch, in sequences, assumed for a blank cell."""
MOST_CHUNKS = 16
"""Most chunks per pipeline stage assumed for a blank cell."""
MEMORY_DOUBT = 1.1
"""A run that was timed did fit: where none does, those that exceed the memory by less are taken to. The prediction's
own error is 2 to 5% where published runs state all that memory depends on (docs/accuracy.md)."""

PLAUSIBLE = 1.25
"""A run that fits is plausible if it takes at most this many times the fastest one's seconds: the union of the
intervals of such runs covers 0.78 of 328 published pipelines whose chunks, microbatch and recomputation are hidden, at
half the width of the root mean square over all runs that fit (2026-11-29); the factor was chosen on these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A job, and the plans of one pipeline (its chunks, their layers) as arrays over everything else that is open."""

    job: TrainingJob
    plans: TrainingPlan


def open_runs(row: Mapping[str, str], run: Run, job: TrainingJob, plan: TrainingPlan, gpu: Gpu) -> tuple[OpenRun, ...]:
    """Every run that the row's blank cells allow; empty if nothing is open. Unknown recomputation counts as open only
    beside something else, since what fits depends on it."""
    sizes, experts = _microbatches(row, plan), _experts(row, plan, job.shape)
    pipelines, jobs = list(_pipelines(row, run, job, plan)), _jobs(run, job, plan, gpu)
    if len(sizes) * len(experts) * len(pipelines) * len(jobs) == 1 and not is_partial(row):
        return ()
    return tuple(
        OpenRun(job=replace(changed, recompute_modules=way.modules, offload_modules=way.offload), plans=plans)
        for schedule, chunks, layers in pipelines
        for way in _ways(row, job, plan)
        for plans in _grid(plan, schedule, chunks, layers, itertools.product(sizes, experts, way.recomputed))
        for changed in jobs
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remat:
    """Kinds of recomputation with layers of a stage, and the modules that are recomputed and offloaded."""

    recomputed: list[tuple[int, int]]
    modules: frozenset[RecomputeModule]
    offload: frozenset[OffloadModule]


def _ways(row: Mapping[str, str], job: TrainingJob, plan: TrainingPlan) -> Iterator[_Remat]:
    """Every kind of recomputation that the row allows. A trainer that keeps named tensors (it always recomputes the
    rest) keeps those of attention or none, on the device or in host memory."""
    again, modules, offload = _recomputations(row, job, plan), job.recompute_modules, job.offload_modules
    yield _Remat(recomputed=again, modules=modules, offload=offload)
    if len(again) == 1 and not is_partial(row):
        return
    some = [(int(Recompute.SELECTIVE), -1)]
    if not job.trainer.always_again:
        if job.trainer.recomputes_parts and not is_partial(row):
            yield _Remat(recomputed=some, modules=_CHEAP.intersection(job.recomputable), offload=offload)
        return
    if not is_partial(row):
        return
    kept = {*job.trainer.always_again, *_PARTS.intersection(job.recomputable)}
    inputs = frozenset({OffloadModule.LAYER_INPUT}.intersection(job.offloadable))
    yield _Remat(recomputed=[(int(Recompute.FULL), -1)], modules=modules, offload=inputs)
    yield _Remat(recomputed=some, modules=frozenset(kept), offload=offload)
    yield _Remat(recomputed=some, modules=frozenset(kept), offload=inputs | _OF_ATTENTION.intersection(job.offloadable))


def more_sharded(row: Mapping[str, str], runs: Sequence[OpenRun]) -> tuple[tuple[OpenRun, ...], ...]:
    """The runs at each further ZeRO stage up to 2 that the row does not rule out."""
    stages = range(int(runs[0].plans.zero_stage) + 1, 3) if not row.get("zero_stage") else ()
    return tuple(tuple(replace(run, plans=replace(run.plans, zero_stage=stage)) for run in runs) for stage in stages)


def resorts(row: Mapping[str, str], runs: Sequence[OpenRun], gpu: Gpu) -> Iterator[tuple[tuple[OpenRun, ...], float]]:
    """Where to look next if no run fits, with the factor on the device's memory: further ZeRO stages, switches that
    save memory, layers in host memory, then the first two kinds within ``MEMORY_DOUBT``."""
    sharded = more_sharded(row, runs)
    yield from ((further, 1.0) for further in (*sharded, *_saving(row, runs, gpu), *_offloaded(row, runs)))
    yield from ((further, MEMORY_DOUBT) for further in (tuple(runs), *sharded))


def _saving(row: Mapping[str, str], runs: Sequence[OpenRun], gpu: Gpu) -> Iterator[tuple[OpenRun, ...]]:
    """The runs with their trainer's switches that save memory and the row does not state, one more after the other."""
    first = runs[0].job
    for name in first.trainer.saving:
        if is_stated(row, name) or not SWITCHED[name].affects(first, rows_of(_at(runs[0].plans, 0))).any():
            continue
        word = next(word for word in ("on", "off") if word != settings(first)[name])
        runs = tuple(replace(run, job=job_choices(run.job, [gpu], {name: word})[0][0].job) for run in runs)
        yield tuple(runs)


def _offloaded(row: Mapping[str, str], runs: Sequence[OpenRun]) -> Iterator[tuple[OpenRun, ...]]:
    """A single run with eighths of its layers in host memory, if its trainer can and the row does not say what is."""
    run = runs[0]
    job, plan = run.job, _at(run.plans, 0)
    stated = any(is_stated(row, name) for name in ("offload_modules", "offload_layers"))
    several = len(runs) * np.size(run.plans.microbatch_size) > 1
    if stated or several or job.offload_modules or OffloadModule.LAYER not in job.offloadable:
        return
    layers = {int(job.shape.num_layers) * eighths // 8 for eighths in range(1, 9)} - {0}
    moved = frozenset({OffloadModule.LAYER})
    jobs = (replace(job, offload_modules=moved, offload_layers=count) for count in sorted(layers))
    usual = set(broken(job, plan))
    if able := tuple(OpenRun(job=other, plans=run.plans) for other in jobs if usual.issuperset(broken(other, plan))):
        yield able


def _grid(
    plan: TrainingPlan,
    schedule: PipelineSchedule,
    chunks: int,
    layers: tuple[int, ...] | None,
    points: Iterable[tuple[int, int, tuple[int, int]]],
) -> Iterator[TrainingPlan]:
    """The plans of one pipeline as arrays; none if its schedule can run no number of microbatches."""
    d, share = plan.dims, plan.microbatch_size * plan.num_microbatches
    runs = [point for point in points if _has_order(schedule, chunks, int(d.pp), int(share) // point[0])]
    if not runs:
        return
    micro, ep, again = (np.array(column, dtype=np.int64) for column in zip(*runs, strict=True))
    yield replace(
        plan,
        dims=ParallelDims(tp=d.tp, pp=d.pp, dp=d.dp, cp=d.cp, ep=ep, sequence_parallel=d.sequence_parallel),
        microbatch_size=micro,
        num_microbatches=share // micro,
        virtual_stages=np.full_like(micro, chunks),
        schedule=np.full_like(micro, int(schedule)),
        recompute=again[:, 0],
        recompute_layers=again[:, 1],
        stage_layers=layers,
    )


def _has_order(schedule: PipelineSchedule, chunks: int, pp: int, microbatches: int) -> bool:
    """Interleaved schedules need microbatches in multiples of pp, V-shaped ones two rounds of them."""
    if schedule >= PipelineSchedule.ZERO_BUBBLE_V:
        return microbatches >= 2 * pp
    return chunks == 1 or microbatches % pp == 0


def _microbatches(row: Mapping[str, str], plan: TrainingPlan) -> list[int]:
    stated = row.get("mbs") or row.get("grad_accum")
    share = int(plan.microbatch_size * plan.num_microbatches)
    return [int(plan.microbatch_size)] if stated else list(_divisors(share, MOST_SEQUENCES))


def _pipelines(
    row: Mapping[str, str], run: Run, job: TrainingJob, plan: TrainingPlan
) -> Iterator[tuple[PipelineSchedule, int, tuple[int, ...] | None]]:
    """Schedule, chunks per device and the layers of each chunk (None: equal), of every pipeline the row allows."""
    pp, stated = int(plan.dims.pp), PipelineSchedule(int(plan.schedule))
    if row.get("vp") or row.get("stage_layers") or pp == 1 or not job.trainer.interleaves:
        yield stated, int(plan.virtual_stages), plan.stage_layers
        return
    layers = int(job.shape.num_layers)
    if stated < PipelineSchedule.ZERO_BUBBLE_V:
        for chunks in _interleavings(layers, pp):
            yield stated, chunks, layers_by_chunk(layers, pp * chunks)
    likely = job.trainer.schedules if run.states("framework") or job.shape.moe_ffn is None else tuple(PipelineSchedule)
    for schedule in (stated,) if run.states("schedule") else likely:
        if schedule >= PipelineSchedule.ZERO_BUBBLE_V and 2 * pp <= layers:
            yield schedule, 2, layers_by_chunk(layers, 2 * pp)


def _interleavings(layers: int, pp: int) -> list[int]:
    """Chunks per device: those that divide the layers, or the layers with embedding and head; else powers of two."""
    even = [n for n in range(1, MOST_CHUNKS + 1) if layers % (pp * n) == 0 or (layers + 2) % (pp * n) == 0]
    if even and even[-1] > 1:
        return sorted({1, *even})
    return [n for n in (1, 2, 4, 8) if pp * n <= layers]


def layers_by_chunk(layers: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of every pipeline chunk if they do not divide evenly, else None. Raises ``Unexpressed``.

    Embedding and head count as one layer each if that divides (``account_for_embedding_in_pipeline_split``): 126 layers
    in 64 chunks are 1, 62 x 2, 1. Otherwise all chunks but the last are filled; the last also holds the head.
    """
    if chunks == 1 or layers % chunks == 0:
        return None
    depth, left = divmod(layers + 2, chunks)
    if left == 0:
        return (depth - 1, *[depth] * (chunks - 2), depth - 1)
    if chunks > layers:
        raise Unexpressed(f"{chunks} chunks of the pipeline for {layers} layers")
    depth = int(ceil_div(layers, chunks))
    return tuple(max(min(depth, layers - depth * i), 0) for i in range(chunks))


def _experts(row: Mapping[str, str], plan: TrainingPlan, shape: TransformerShape) -> list[int]:
    moe, d = shape.moe_ffn, plan.dims
    if row.get("ep") or moe is None:
        return [int(d.ep)]
    return list(_divisors(math.gcd(int(np.max(moe.num_experts)), int(d.dp * d.cp)), int(d.dp * d.cp)))


def _recomputations(row: Mapping[str, str], job: TrainingJob, plan: TrainingPlan) -> list[tuple[int, int]]:
    """Kinds of recomputation with the recomputed layers of a stage (-1: all): eighths of them where the trainer can."""
    word = row.get("recompute", "").strip().lower()
    if word not in ("", "unknown") and not is_partial(row):
        return [(int(plan.recompute), int(plan.recompute_layers))]
    depth = int(ceil_div(job.shape.num_layers, plan.dims.pp))
    some = sorted({depth * eighths // 8 for eighths in range(1, 8)} - {0}) if job.trainer.recomputes_some_layers else []
    kinds = [Recompute.FULL] if is_partial(row) else list(Recompute)
    return [*((int(kind), -1) for kind in kinds), *((int(Recompute.FULL), layers) for layers in some)]


_CHEAP = frozenset((RecomputeModule.LAYERNORM, RecomputeModule.MLA_UP_PROJ, RecomputeModule.MOE_ACT))
"""Modules that cost only memory traffic or one small GEMM to compute again."""


_PARTS = frozenset((RecomputeModule.MLP, RecomputeModule.MOE))
_OF_ATTENTION = frozenset((OffloadModule.CORE_ATTN, OffloadModule.ATTN_PROJ))


_TAKEN = ("context_parallel", "deepep", "ep_overlap")
"""Facts whose fastest value is taken where the trainer, and so what is usual, is not known."""


def _jobs(run: Run, job: TrainingJob, plan: TrainingPlan, gpu: Gpu) -> list[TrainingJob]:
    """The job with each kind of context parallelism that can run, if its trainer has several; of a trainer that is not
    known, with each way to exchange tokens with experts too."""
    ring = job.trainer.usual_context_parallel is ContextParallel.RING  # Megatron's cp_comm_type has them all
    taken = _TAKEN if not run.states("framework") else _TAKEN[:1] if ring else ()
    if not taken:
        return [job]
    fields = [field for field in open_fields(run, job.shape, job, rows_of(plan), gpu) if field.name in taken]
    usual = set(broken(job, plan))
    jobs = [
        reduce(lambda changed, change: change(changed), changes, job)
        for changes in itertools.product(*(((lambda same: same), *field.others.values()) for field in fields))
    ]
    return [changed for changed in jobs if usual.issuperset(broken(changed, plan))]


def _divisors(number: int, largest: int) -> Iterator[int]:
    return (size for size in range(1, min(number, largest) + 1) if number % size == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The run that is taken."""

    job: TrainingJob
    plan: TrainingPlan
    fits: bool
    step_s: float
    slowest: float
    """Seconds of the slowest run that is plausible (``PLAUSIBLE``) relative to this one."""

    @property
    def recomputes(self) -> bool:
        """Whether it computes whole layers again."""
        return int(self.plan.recompute) == Recompute.FULL


def fastest(
    runs: Sequence[OpenRun], estimates: Sequence[StepEstimate], memories: Sequence[Footprint], capacity_bytes: float
) -> Settled:
    """The fastest run that fits, the smallest if none does."""
    needed = np.concatenate([np.ravel(memory.device_bytes) for memory in memories])
    seconds = np.concatenate([np.ravel(estimate.step_s) for estimate in estimates])
    places = [(run, i) for run in runs for i in range(np.size(run.plans.microbatch_size))]
    fits = needed <= capacity_bytes
    best = int(np.where(fits, seconds, np.inf).argmin() if fits.any() else needed.argmin())
    ratios = seconds[fits] / seconds[best]
    slowest = float(ratios[ratios <= PLAUSIBLE].max()) if fits.any() else 1.0
    run, index = places[best]
    return Settled(
        job=run.job,
        plan=_at(run.plans, index),
        fits=bool(fits.any()),
        step_s=float(seconds[best]) if fits.any() else np.inf,
        slowest=slowest,
    )


def _at(plans: TrainingPlan, index: int) -> TrainingPlan:
    def value(values: Floats) -> int:
        return int(np.ravel(values)[index])

    return replace(
        plans,
        dims=replace(plans.dims, ep=value(plans.dims.ep)),
        microbatch_size=value(plans.microbatch_size),
        num_microbatches=value(plans.num_microbatches),
        virtual_stages=value(plans.virtual_stages),
        schedule=PipelineSchedule(value(plans.schedule)),
        recompute=Recompute(value(plans.recompute)),
        recompute_layers=value(plans.recompute_layers),
    )


def _again_words(plan: TrainingPlan, modules: Iterable[RecomputeModule]) -> str:
    kind = Recompute(int(plan.recompute)).word
    if plan.recompute == Recompute.SELECTIVE:
        return f"{kind} ({', '.join(sorted(module.value for module in modules))})"
    return f"{kind}, {plan.recompute_layers} layer(s) of a stage" if plan.recompute_layers >= 0 else kind


def settled_words(chosen: Settled, runs: Sequence[OpenRun]) -> tuple[str, ...]:
    """What was chosen for each open fact, as phrases; ``runs`` are all that were open."""
    job, plan = chosen.job, chosen.plan
    plans = [run.plans for run in runs]
    facts = (
        (f"{plan.microbatch_size} sequence(s) per microbatch", [p.microbatch_size for p in plans]),
        (f"{plan.virtual_stages} chunk(s) per pipeline stage", [p.virtual_stages for p in plans]),
        (f"schedule {PipelineSchedule(int(plan.schedule)).name.lower()}", [p.schedule for p in plans]),
        (f"ep {plan.dims.ep}", [p.dims.ep for p in plans]),
        (f"recompute {_again_words(plan, job.recompute_modules)}", [p.recompute for p in plans]),
    )
    words = [phrase for phrase, values in facts if np.unique(np.concatenate([np.ravel(v) for v in values])).size > 1]
    if len({run.job.context_parallel for run in runs}) > 1:
        words.append(f"context parallelism {job.context_parallel.value}")
    usual = runs[0].job
    if any(run.job.trainer.dispatch_once != job.trainer.dispatch_once for run in runs):
        once = "once per node" if job.trainer.dispatch_once else "once per expert"
        words.append(f"tokens sent {once}{', beside compute' if job.trainer.ep_overlap else ''}")
    words += [
        f"{name} {word}"
        for name, word in settings(job).items()
        if name in usual.trainer.saving and word != settings(usual)[name]
    ]
    if job.offload_layers != usual.offload_layers:
        words.append(f"{job.offload_layers} layers in host memory")
    if int(plan.zero_stage) != int(runs[0].plans.zero_stage):
        words.append(f"ZeRO {int(plan.zero_stage)}")
    return tuple(f"{word}: the fastest that fits" for word in words)
