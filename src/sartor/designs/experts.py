"""Experts' placements, published or by Megatron's rule of thumb, and models under them without a search."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from sartor.designs.bounds import bare_problem
from sartor.designs.infeasible import bare_width
from sartor.designs.parts import CopySplit, ModelParts, parts_of
from sartor.designs.point import LayerTime, ModelOutcome, Option, Point, placement_problem
from sartor.designs.question import DesignQuestion, ExpertPlan
from sartor.model.training import Recompute
from sartor.placement.check import fixed_strategy_stages, price
from sartor.placement.plan import Plan
from sartor.placement.problem import FixedStrategy, PlacementProblem

NODE = 8
"""Devices per node with fast links, as in the rule of thumb."""


def expert_options(question: DesignQuestion, m: int, hbm_bytes: float) -> Iterator[tuple[Option, ExpertPlan]]:
    """Every microbatch and recomputation at the expert's width for model ``m``, with the expert's plan; empty if no
    plan of the rule of thumb fits."""
    expert = question.models[m].expert or rule_of_thumb(question, m, hbm_bytes)
    if expert is None:
        return
    for size in question.whole_microbatches:
        for recompute in question.recomputes:
            yield Option(model=m, split=CopySplit(size, expert.tp, expert.ep), recompute=Recompute(recompute)), expert


@lru_cache(maxsize=256)
def rule_of_thumb(question: DesignQuestion, m: int, hbm_bytes: float) -> ExpertPlan | None:
    """The smallest tensor x pipeline group that holds the model, tensor-parallel first and within a node; the rest
    are copies (Narayanan et al., SC 2021, takeaways 1 to 3); experts are shared among up to a node's copies."""
    model = question.models[m]
    ways = sorted((t * p, -t, p) for t in model.widths if t <= NODE for p in _stages(question, m))
    for group, width, stages in ways:
        room = question.num_devices // group
        copies = max((d for d in range(1, room + 1) if question.global_batch_size % d == 0), default=0)
        ep = max((e for e in model.expert_widths if e <= min(NODE, copies)), default=1)
        plan = ExpertPlan(tp=-width, pp=stages, dp=copies // ep * ep, ep=ep)
        if plan.dp and any(_fits(question, m, plan, size, hbm_bytes) for size in question.whole_microbatches):
            return plan
    return None


def _stages(question: DesignQuestion, m: int) -> list[int]:
    """Numbers of stages that divide the layers evenly or nearly, without empty stages."""
    layers = sum(int(run.count) for run in question.models[m].shape.main.runs)
    return [p for p in range(1, min(layers, question.num_devices) + 1) if -(-layers // p) * (p - 1) < layers]


def _fits(question: DesignQuestion, m: int, plan: ExpertPlan, size: int, hbm_bytes: float) -> bool:
    parts = parts_of(question, m, CopySplit(size, plan.tp, plan.ep))
    if parts is None:
        return False
    for recompute in question.recomputes:
        bare = bare_problem(question, size, hbm_bytes, Recompute(recompute))
        if not _priced(replace(bare, widths=(bare_width(parts),)), parts, plan)[1]:
            return True
    return False


def fixed_outcome(
    question: DesignQuestion,
    point: Point,
    option: Option,
    expert: ExpertPlan,
    timed_parts: tuple[ModelParts, tuple[LayerTime, ...]],
) -> ModelOutcome | None:
    """The expert's plan of one option with these layer times, priced by the placement's checker; None if it does not
    fit."""
    parts, layers = timed_parts
    model = question.models[option.model]
    priced, faults = _priced(placement_problem(question, point, option, parts, layers, use_bounds=False), parts, expert)
    if faults or priced is None:
        return None
    step_s = priced.time_per_batch_s
    return ModelOutcome(
        name=model.name,
        option=option,
        plan=priced,
        sequences_per_s=question.global_batch_size / step_s,
        tokens_per_s=question.global_batch_size * model.seq_len / step_s,
        step_s=step_s,
        layers=layers,
    )


def _priced(problem: PlacementProblem, parts: ModelParts, expert: ExpertPlan) -> tuple[Plan | None, tuple[str, ...]]:
    """The plan by the checker, without ZeRO, and what is wrong with it. Published plans may share a batch unevenly."""
    problem = replace(problem, zero_stage=0, even_copies=False)
    fixed = FixedStrategy(
        num_stages=expert.pp,
        tensor_parallel=expert.tp,
        data_parallel=expert.dp,
        num_transformer_layers=len(parts.order),
    )
    stages = fixed_strategy_stages(replace(problem, fixed=fixed))
    if not stages:
        return None, ("more stages than devices",)
    result = price(problem, problem.widths[0], stages, expert.dp)
    return result.plan, result.faults


PUBLISHED_DEVICES = 1024

_PUBLISHED: Mapping[str, ExpertPlan] = {
    "opt350m": ExpertPlan(pp=12, dp=85, tp=1),
    "bertlarge": ExpertPlan(pp=8, dp=128, tp=1),
    "megatronbert": ExpertPlan(pp=8, dp=128, tp=1),
    "gpt2xl": ExpertPlan(pp=32, dp=32, tp=1),
    "megatrongpt2xl": ExpertPlan(pp=8, dp=128, tp=1),
    "megatrongpt254": ExpertPlan(pp=8, dp=32, tp=4),
    "megatrongpt272": ExpertPlan(pp=8, dp=16, tp=8),
    "gpt3175b": ExpertPlan(pp=32, dp=8, tp=4),
    "llama27b": ExpertPlan(pp=8, dp=128, tp=1),
}
"""By squeezed name, on 1,024 devices (PHAZE, Solver/baseline_configs.py of its public code, version 1.0, June 2024;
reference/phaze.md sec. 8)."""


_LAUNCHED: Mapping[str, ExpertPlan] = {"deepseekv3": ExpertPlan(pp=16, dp=64, tp=1, ep=64)}
"""Launches by the models' authors: DeepSeek-V3 on 2,048 H800 with 16 stages and experts over 64 devices
(DeepSeek-AI 2024, arXiv 2412.19437, sec. 3.2), here with half the copies and without its ZeRO-1."""


def expert_plan(name: str, num_devices: int) -> ExpertPlan | None:
    """The published expert's placement of a model by name on ``num_devices``; None if none is known.

    Another number of devices changes the number of copies, rounded down; stages and width stay.
    """
    plan = {**_PUBLISHED, **_LAUNCHED}.get(re.sub(r"[^a-z0-9]+", "", name.lower()))
    if plan is None:
        return None
    copies = plan.dp if num_devices == PUBLISHED_DEVICES else num_devices // (plan.pp * plan.tp)
    return replace(plan, dp=copies // plan.ep * plan.ep) if copies >= plan.ep else None
