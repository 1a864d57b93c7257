"""Plans that a row's blank cells leave open, and the one a competent team would have run: the fastest that fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.training import Recompute, Trainer, TrainingPlan
from sartor.step.results import Footprint, StepEstimate
from sartor.units import Floats

MOST_SEQUENCES = 64
"""Largest microbatch, in sequences, assumed for a blank cell."""
MOST_CHUNKS = 16
"""Most chunks per pipeline stage assumed for a blank cell."""


def open_plans(
    row: Mapping[str, str], plan: TrainingPlan, shape: TransformerShape, trainer: Trainer
) -> TrainingPlan | None:
    """All plans that the row's empty microbatch, interleaving and expert parallelism allow, as arrays; None if nothing
    is open. Unknown recomputation is then open too, since what fits depends on it."""
    sizes, chunks, experts = _microbatches(row, plan), _virtual(row, plan, shape, trainer), _experts(row, plan, shape)
    if len(sizes) * len(chunks) * len(experts) == 1:
        return None
    unknown = row.get("recompute", "").strip().lower() in ("", "unknown")
    again = list(Recompute) if unknown else [plan.recompute]
    grid = [point for point in itertools.product(sizes, chunks, experts, again) if _runs(plan, point[0], point[1])]
    micro, virtual, ep, recompute = (np.array(column, dtype=np.int64) for column in zip(*grid, strict=True))
    d, share = plan.dims, plan.microbatch_size * plan.num_microbatches
    return replace(
        plan,
        dims=ParallelDims(tp=d.tp, pp=d.pp, dp=d.dp, cp=d.cp, ep=ep, sequence_parallel=d.sequence_parallel),
        microbatch_size=micro,
        num_microbatches=share // micro,
        virtual_stages=virtual,
        recompute=recompute,
    )


def _microbatches(row: Mapping[str, str], plan: TrainingPlan) -> list[int]:
    stated = row.get("mbs") or row.get("grad_accum")
    share = int(plan.microbatch_size * plan.num_microbatches)
    return [int(plan.microbatch_size)] if stated else list(_divisors(share, MOST_SEQUENCES))


def _virtual(row: Mapping[str, str], plan: TrainingPlan, shape: TransformerShape, trainer: Trainer) -> list[int]:
    fixed = row.get("vp") or plan.stage_layers or int(plan.dims.pp) == 1 or not trainer.interleaves
    stage_depth = int(shape.num_layers) // int(plan.dims.pp)
    return [int(plan.virtual_stages)] if fixed else list(_divisors(stage_depth, MOST_CHUNKS))


def _experts(row: Mapping[str, str], plan: TrainingPlan, shape: TransformerShape) -> list[int]:
    moe, d = shape.moe_ffn, plan.dims
    if row.get("ep") or moe is None:
        return [int(d.ep)]
    return list(_divisors(math.gcd(int(np.max(moe.num_experts)), int(d.dp * d.cp)), int(d.dp * d.cp)))


def _divisors(number: int, largest: int) -> Iterator[int]:
    return (size for size in range(1, min(number, largest) + 1) if number % size == 0)


def _runs(plan: TrainingPlan, micro: int, virtual: int) -> bool:
    """Interleaved schedules need microbatches in multiples of pp."""
    steps = int(plan.microbatch_size * plan.num_microbatches) // micro
    return virtual == 1 or steps % int(plan.dims.pp) == 0


def fastest(plans: TrainingPlan, estimate: StepEstimate, memory: Footprint, gpu: Gpu) -> tuple[TrainingPlan, float]:
    """The fastest plan that fits (the smallest if none does), and how far the others that fit are from it: root mean
    square of ln(seconds)."""
    needed, seconds = np.ravel(needed_bytes(memory)), np.ravel(estimate.step_s)
    fits = needed <= gpu.hbm_bytes
    if not fits.any():
        return _at(plans, int(needed.argmin())), 0.0
    best = int(np.where(fits, seconds, np.inf).argmin())
    return _at(plans, best), float(np.sqrt(np.mean(np.log(seconds[fits] / seconds[best]) ** 2)))


def needed_bytes(memory: Footprint) -> Floats:
    """Allocated bytes plus context: an allocator frees cached gaps before it runs out of memory."""
    return memory.device_bytes - memory.reserved_bytes + memory.allocated_bytes


def _at(plans: TrainingPlan, i: int) -> TrainingPlan:
    def one(values: Floats) -> int:
        return int(np.ravel(values)[i])

    return replace(
        plans,
        dims=replace(plans.dims, ep=one(plans.dims.ep)),
        microbatch_size=one(plans.microbatch_size),
        num_microbatches=one(plans.num_microbatches),
        virtual_stages=one(plans.virtual_stages),
        recompute=Recompute(one(plans.recompute)),
    )
