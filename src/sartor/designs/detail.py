"""Details of an evaluated point: the parts of each model's step time, its stages, die area and power by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from sartor.cost.chip.area import die_area, published_area_parts
from sartor.cost.chip.ownership import power
from sartor.cost.cost import Cost, interval_80
from sartor.designs.bounds import update_s_per_byte
from sartor.designs.equal_chunks import Cut, peak_bytes, sizes_of
from sartor.designs.parts import ModelPart, ModelParts, design_job, parts_of
from sartor.designs.point import Evaluation, ModelOutcome, Point, placement_problem
from sartor.designs.question import EQUAL, AreaModel, DesignQuestion
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of
from sartor.hardware.cluster import Cluster, own_links
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import Phase
from sartor.operators import OperatorGraph
from sartor.placement.check import price
from sartor.placement.problem import PlacementProblem, Plan, expert_replicas
from sartor.schedules.makespan import SCHEDULE_LIMIT_S, schedule_problem
from sartor.schedules.problem import ScheduleResult
from sartor.schedules.solve import solve
from sartor.step.mechanisms import parts as step_parts
from sartor.step.mechanisms.mechanism import BUBBLE, COMPUTE, OPTIMIZER, REPLICAS
from sartor.step.results import StepEstimate
from sartor.units import FloatArray

LOG_SIGMA = float(Cost(time_s=1.0).log_sigma)
"""Standard deviation of ln(measured/predicted) assumed for every time here: that of analytic predictions, because no
accelerator of the template has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageDetail:
    """One pipeline stage, or chunk of one: its layers, devices per copy, seconds per microbatch, bytes per device (of
    all its chunks)."""

    stage: int
    num_layers: int
    holds: tuple[str, ...]
    devices: int
    forward_s: float
    load_s: float
    """Forward and backward, including recomputation and waiting."""
    peak_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetail:
    """A model on an evaluated point."""

    outcome: ModelOutcome
    step: StepEstimate
    """As `sartor.step` prices it, but for what microbatches exchange, which is part of the stage's compute."""
    stages: tuple[_StageDetail, ...]
    num_microbatches: int
    """Microbatches per copy."""
    low_s: float
    high_s: float
    phase: Phase = Phase.TRAIN

    @property
    def served(self) -> bool:
        return self.phase is not Phase.TRAIN

    @property
    def peak_bytes(self) -> float:
        return max(stage.peak_bytes for stage in self.stages)


def interval_s(seconds: float, mfu: float = 0.0) -> tuple[float, float]:
    """The 80% interval of a predicted time, not below that of its matrix multiplications at the peak."""
    low_s, high_s = interval_80(seconds, LOG_SIGMA, seconds * mfu)
    return float(low_s), float(high_s)


def model_detail(question: DesignQuestion, evaluation: Evaluation, m: int) -> ModelDetail | None:
    """How model ``m`` runs on the point; None if it does not."""
    outcome, point = evaluation.outcomes[m], evaluation.point
    if outcome is None:
        return None
    parts, problem = _problem(question, point, outcome)
    if parts.served:
        return _served_detail(question, point, outcome, parts)
    microbatches = -(-problem.num_microbatches // outcome.plan.data_parallel)
    step = _estimate(question, point, outcome, parts, _step_parts(question, point, outcome, problem, microbatches))
    low_s, high_s = interval_s(outcome.step_s, float(step.mfu))
    return ModelDetail(
        outcome=outcome,
        step=step,
        stages=_stages(question, outcome, parts, problem),
        num_microbatches=microbatches,
        low_s=low_s,
        high_s=high_s,
    )


def _served_detail(question: DesignQuestion, point: Point, outcome: ModelOutcome, parts: ModelParts) -> ModelDetail:
    """The detail of a serving pass: one stage with one batch."""
    assert parts.served is not None
    step = _estimate(question, point, outcome, parts, {COMPUTE.key: outcome.step_s})
    low_s, high_s = interval_s(outcome.step_s, float(step.mfu))
    stage = _StageDetail(
        stage=0,
        num_layers=len(parts.order),
        holds=tuple(dict.fromkeys(layer.name for layer in outcome.layers)),
        devices=outcome.option.devices,
        forward_s=outcome.step_s,
        load_s=outcome.step_s,
        peak_bytes=parts.served.device_bytes,
    )
    return ModelDetail(
        outcome=outcome,
        step=step,
        stages=(stage,),
        num_microbatches=1,
        low_s=low_s,
        high_s=high_s,
        phase=question.models[outcome.option.model].phase,
    )


def training_step(
    question: DesignQuestion, evaluation: Evaluation, m: int
) -> tuple[TrainingJob, TrainingPlan, Cluster] | None:
    """The job, plan and cluster with which ``step`` gives model ``m`` the same price as the point; None if the model
    does not run or is served."""
    outcome, detail = evaluation.outcomes[m], model_detail(question, evaluation, m)
    if outcome is None or detail is None or question.models[m].served:
        return None
    placement, option, model = outcome.plan, outcome.option, question.models[m]
    layers = range(int(model.shape.num_layers))
    plan = TrainingPlan(
        dims=replace(option.split.dims, pp=placement.num_stages, dp=placement.data_parallel),
        microbatch_size=option.microbatch_size,
        num_microbatches=detail.num_microbatches,
        recompute=outcome.recompute,
        virtual_stages=placement.virtual_stages,
        zero_stage=placement.zero_stage,
        stage_layers=tuple(sum(layer in layers for layer in stage.layers) for stage in placement.stages),
    )
    return (
        design_job(model, question.global_batch_size, option.split.dtype, question.optimizer),
        plan,
        own_links(datasheet_of(evaluation.point.chip)).reached(question.num_devices),
    )


def _problem(question: DesignQuestion, point: Point, outcome: ModelOutcome) -> tuple[ModelParts, PlacementProblem]:
    parts = parts_of(question, outcome.option.model, outcome.option.split)
    assert parts is not None
    return parts, placement_problem(question, point, outcome.option, parts, outcome.layers, use_bounds=False)


def _step_parts(
    question: DesignQuestion, point: Point, outcome: ModelOutcome, problem: PlacementProblem, microbatches: int
) -> dict[str, float]:
    """The parts that a step of the plan has: work of the slowest stage, bubble, exchange of gradients, optimizer."""
    plan, width = outcome.plan, problem.widths[0]
    bottleneck = max(stage.load_s for stage in plan.stages)
    first = {id_ for stage in plan.stages[:: plan.num_stages] for id_ in stage.layers}  # all chunks of the first device
    ranks = plan.data_parallel * plan.context_parallel if plan.zero_stage else 1
    owners = expert_replicas(ranks, plan.expert_parallel)
    params = sum(
        (layer.param_bytes - layer.expert_param_bytes) / ranks + layer.expert_param_bytes / owners
        for layer in width.layers
        if layer.id in first
    )
    params -= width.tied_bytes / ranks if plan.num_stages == 1 else 0.0
    update = 0.0 if question.terms is not None else float(update_s_per_byte(question, point.accelerator)) * params
    loads = np.array([stage.load_s for stage in plan.stages]).reshape(plan.virtual_stages, plan.num_stages)
    slots = bottleneck * plan.virtual_stages if question.terms is not None else float(loads.max(axis=1).sum())
    work, fill = slots * microbatches, bottleneck * (plan.num_stages - 1)
    resync = plan.time_per_batch_s - work - fill - update
    return {
        COMPUTE.key: work,
        BUBBLE.key: fill,
        REPLICAS.key: resync if resync > EQUAL * plan.time_per_batch_s else 0.0,
        OPTIMIZER.key: update,
    }


def _stages(
    question: DesignQuestion, outcome: ModelOutcome, parts: ModelParts, problem: PlacementProblem
) -> tuple[_StageDetail, ...]:
    plan = outcome.plan
    kinds = (0, *parts.order, len(parts.parts) - 1)
    held_bytes = _held_bytes(question, plan, parts, problem)
    out = []
    for chunk, stage in enumerate(plan.stages):
        mine = [kinds[id_ + 1] for id_ in stage.layers]
        out.append(
            _StageDetail(
                stage=chunk % plan.num_stages,
                num_layers=sum(0 < k < len(parts.parts) - 1 for k in mine),
                holds=tuple(dict.fromkeys(outcome.layers[k].name for k in mine)),
                devices=stage.devices,
                forward_s=sum(outcome.layers[k].forward_s for k in mine),
                load_s=stage.load_s,
                peak_bytes=float(held_bytes[chunk % plan.num_stages]),
            )
        )
    return tuple(out)


def _held_bytes(
    question: DesignQuestion, plan: Plan, parts: ModelParts, problem: PlacementProblem
) -> Sequence[float] | FloatArray:
    """Bytes on a device of every stage."""
    if question.terms is None and (plan.virtual_stages > 1 or plan.zero_stage > 1):
        cut = Cut(num_stages=plan.num_stages, virtual_stages=plan.virtual_stages, zero_stage=plan.zero_stage)
        limits = np.array([plan.data_parallel]), problem.num_microbatches, problem.states
        return peak_bytes(sizes_of(parts), cut, *limits, recompute=problem.recompute)[:, 0]
    stages = [stage.layers for stage in plan.stages]
    return price(problem, problem.widths[0], stages, plan.data_parallel).memory_bytes


def _estimate(
    question: DesignQuestion, point: Point, outcome: ModelOutcome, parts: ModelParts, seconds: Mapping[str, float]
) -> StepEstimate:
    """The step with these parts; FLOPs are of GEMMs, over the dense peak of all devices."""
    flops = 0.0
    for part, count in zip(parts.parts, (1, *parts.counts, 1), strict=True):
        flops += count * (float(part.forward.matmul_flops) + float(part.backward.matmul_flops))
    microbatches = question.global_batch_size / outcome.option.microbatch_size
    if parts.served:
        microbatches = float(outcome.plan.data_parallel)
    flops *= outcome.option.devices * microbatches
    chip = point.accelerator
    peak = question.num_devices * float(chip.peak_flops_per_s) * chip.packing(outcome.option.split.dtype)
    return StepEstimate(
        step_s=outcome.step_s,
        log_sigma=LOG_SIGMA,
        parts={part.key: seconds.get(part.key, 0.0) for part in step_parts()},
        model_flops=flops,
        tokens_per_s_per_device=outcome.tokens_per_s / question.num_devices,
        mfu=flops / (peak * outcome.step_s),
    )


# ------------------------------------------------------------------------------------------------------- the chip


def area_parts(question: DesignQuestion, accelerator: Accelerator) -> dict[str, float]:
    """Area of the die by part [mm2], by the question's model; the parts add up to the die."""
    if question.costs.area is AreaModel.PUBLISHED:
        return {name: float(part) for name, part in published_area_parts(accelerator).items()}
    return {name: float(part) for name, part in die_area(accelerator).parts.items()}


def power_parts(accelerator: Accelerator) -> dict[str, float]:
    """Power by part with everything at its peak rate [W]; the parts add up to ``tdp_w``."""
    watts = power(accelerator)
    return {f.name: float(getattr(watts, f.name)) for f in fields(watts)}


# ---------------------------------------------------------------------------------------------------- one layer


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerSchedule:
    """The schedules of a model's most frequent kind of layer, forward and backward, in units of ``UNIT_S``."""

    name: str
    count: int
    forward: ScheduleResult
    backward: ScheduleResult


def layer_schedule(question: DesignQuestion, point: Point, outcome: ModelOutcome) -> _LayerSchedule:
    """Solve the schedules again: the search only keeps their seconds."""
    parts, _ = _problem(question, point, outcome)
    k = 1 + int(np.argmax(parts.counts))
    part: ModelPart = parts.parts[k]
    answer = partial(_solved, point.accelerator, max(point.schedule_limit_s, SCHEDULE_LIMIT_S))
    return _LayerSchedule(
        name=part.name, count=parts.counts[k - 1], forward=answer(part.forward), backward=answer(part.backward)
    )


def _solved(a: Accelerator, limit_s: float, graph: OperatorGraph) -> ScheduleResult:
    return solve(schedule_problem(graph, a), limit_s, by_work=True)


def plan_fields(detail: ModelDetail) -> dict[str, Any]:
    """The plan of a model in the glossary's words."""
    outcome = detail.outcome
    plan, option = outcome.plan, outcome.option
    return {
        "tp": plan.tensor_parallel,
        "pp": plan.num_stages,
        "dp": plan.data_parallel,
        "cp": plan.context_parallel,
        "ep": option.expert_parallel,
        "num_devices": plan.num_devices,
        "microbatch_size": option.microbatch_size,
        "num_microbatches": detail.num_microbatches,
        "recompute": outcome.recompute.word,
        "dtype": option.split.dtype.value,
        "virtual_stages": plan.virtual_stages,
        "zero_stage": plan.zero_stage,
    }
