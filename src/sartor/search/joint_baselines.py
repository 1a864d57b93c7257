"""Other ways to choose, priced by the same cost model: a known chip with an expert's or a searched placement, and the
published order of search with its stop rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sartor.cost.die_cost import die_cost
from sartor.cost.energy import power
from sartor.hardware.accelerator import Accelerator
from sartor.model.training import Recompute
from sartor.placement.check import fixed_strategy_stages, price
from sartor.placement.problem import FixedStrategy
from sartor.search.accelerator_space import AcceleratorSpace
from sartor.search.joint import area_of, candidates_of, priced
from sartor.search.joint_bounds import LoweredModel, lower_models, plan_rates
from sartor.search.joint_parts import Split
from sartor.search.joint_point import (
    Evaluation,
    ModelOutcome,
    Option,
    Point,
    ScheduleStore,
    evaluate_point,
    layer_times,
    placement_problem,
)
from sartor.search.joint_question import DesignQuestion, Objective
from sartor.search.joint_result import Baseline, Ranked

BUCKET_MM2 = 0.01
"""Areas that count as one in the published order: 10,000 square micrometres."""
PATIENCE = 5
"""Buckets whose best throughputs must not rise for the published search to stop."""
MOST_VISITED = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChip:
    """A known accelerator and the memories it may stand with [bytes]."""

    name: str
    accelerator: Accelerator
    hbm_bytes: tuple[float, ...]


def chip_baselines(question: DesignQuestion, chips: Sequence[NamedChip]) -> Iterator[Baseline]:
    """Every chip with searched placement, and with the experts' where every model has one."""
    models, store = lower_models(question), ScheduleStore()
    for chip in chips:
        if all(model.expert for model in question.models):
            start = time.perf_counter()
            found = [_expert(question, chip, memory, store) for memory in chip.hbm_bytes]
            best = _best([each for each in found if each is not None])
            note = "" if best else "the expert's placement does not fit, or its width does not split the model"
            yield Baseline(
                name=f"{chip.name}, expert placement",
                ranked=best,
                evaluations=len(found),
                seconds=time.perf_counter() - start,
                note=note,
            )
        start = time.perf_counter()
        points = [_point(question, models, chip.accelerator, memory) for memory in chip.hbm_bytes]
        ranked = [alone(question, evaluate_point(question, point, store)) for point in points]
        best = _best([each for each in ranked if each.objective > 0])
        yield Baseline(
            name=f"{chip.name}, searched placement",
            ranked=best,
            evaluations=len(points),
            seconds=time.perf_counter() - start,
            note="" if best else "no placement fits",
        )


def _best(ranked: Sequence[Ranked]) -> Ranked | None:
    return max(ranked, key=lambda each: each.objective, default=None)


def _point(question: DesignQuestion, models: Sequence[LoweredModel], a: Accelerator, hbm_bytes: float) -> Point:
    return Point(index=-1, accelerator=a, hbm_bytes=hbm_bytes, options=tuple(_options(question, models, a, hbm_bytes)))


def _options(
    question: DesignQuestion, models: Sequence[LoweredModel], a: Accelerator, hbm_bytes: float
) -> Iterator[Option]:
    """Every option of every model with its bound, on one accelerator."""
    as_array = replace(a, num_tensor_cores=np.array([a.num_tensor_cores]))
    for m, model in enumerate(models):
        for split, parts in model.parts.items():
            rates = plan_rates(question, parts, as_array, np.full((1, 1), hbm_bytes))[:, 0, 0]
            for recompute, rate in zip(question.recomputes, rates, strict=True):
                if rate > 0:
                    yield Option(model=m, split=split, recompute=recompute, bound=float(rate))


def alone(question: DesignQuestion, evaluation: Evaluation) -> Ranked:
    """An evaluation of an accelerator that belongs to no space, with its price and objective."""
    a = evaluation.point.accelerator
    area, watts = float(area_of(question, a)), float(power(a).tdp_w)
    usd = float(die_cost(area, a.node_nm).die_usd)
    divisors = {Objective.PER_MM2: area, Objective.PER_WATT: watts, Objective.PER_DOLLAR: usd}
    divisor = divisors.get(question.objective, 1.0)
    return Ranked(
        evaluation=evaluation,
        objective=float(question.together(np.array(evaluation.rates))) / divisor,
        bound=float(question.together(np.array(evaluation.bounds))) / divisor,
        area_mm2=area,
        power_w=watts,
        die_usd=usd,
    )


def _expert(question: DesignQuestion, chip: NamedChip, hbm_bytes: float, store: ScheduleStore) -> Ranked | None:
    """The chip under every model's expert placement, at the best microbatch and recomputation that fit."""
    point = Point(index=-1, accelerator=chip.accelerator, hbm_bytes=hbm_bytes, options=())
    outcomes = [_expert_outcome(question, point, m, store) for m in range(len(question.models))]
    if any(outcome is None for outcome in outcomes):
        return None
    rates = tuple(outcome.sequences_per_s if outcome else 0.0 for outcome in outcomes)
    return alone(question, Evaluation(point=point, outcomes=tuple(outcomes), bounds=rates))


def _expert_outcome(question: DesignQuestion, point: Point, m: int, store: ScheduleStore) -> ModelOutcome | None:
    model, best = question.models[m], None
    assert model.expert is not None
    for size in question.microbatch_sizes:
        for recompute in question.recomputes:
            option = Option(
                model=m, split=Split(size, model.expert.tp, model.expert.ep), recompute=Recompute(recompute)
            )
            outcome = _fixed(question, point, option, store)
            if outcome and (best is None or outcome.step_s < best.step_s):
                best = outcome
    return best


def _fixed(question: DesignQuestion, point: Point, option: Option, store: ScheduleStore) -> ModelOutcome | None:
    """The expert's plan of one option, priced by the placement's checker; None where it does not fit."""
    model = question.models[option.model]
    found = layer_times(question, point, option, store)
    if found is None or model.expert is None:
        return None
    parts, layers = found
    fixed = FixedStrategy(
        num_stages=model.expert.pp,
        tensor_parallel=model.expert.tp,
        data_parallel=model.expert.dp,
        num_transformer_layers=len(parts.order),
    )
    problem = replace(placement_problem(question, point, option, parts, layers, least=False), fixed=fixed)
    stages = fixed_strategy_stages(problem)
    result = price(problem, problem.widths[0], stages, model.expert.dp) if stages else None
    if result is None or result.faults:
        return None
    step_s = result.time_per_batch_s
    return ModelOutcome(
        name=model.name,
        option=option,
        plan=result.plan,
        sequences_per_s=question.global_batch_size / step_s,
        tokens_per_s=question.global_batch_size * model.seq_len / step_s,
        step_s=step_s,
        layers=layers,
    )


def published_order(question: DesignQuestion, space: AcceleratorSpace, time_limit_s: float = 120.0) -> Baseline:
    """Candidates from the largest area down in buckets, until the best of the last five buckets do not rise.

    The evaluation is ours (microbatches, recomputation and memories searched exactly); only order and stop rule are
    the published ones. Ends at a time limit or after 400 candidates, which the note then says.
    """
    start = time.perf_counter()
    candidates, why = candidates_of(question, space)
    models, store = lower_models(question), ScheduleStore()
    best: Ranked | None = None
    buckets: list[float] = []
    visited, note = 0, why
    order = np.argsort(-candidates.area_mm2, kind="stable") if not why else np.zeros(0, dtype=np.int64)
    names = np.floor(candidates.area_mm2[order] / BUCKET_MM2)
    for name in dict.fromkeys(names.tolist()):
        values = [0.0]
        for index in order[names == name]:
            for h in np.unique(candidates.hbm_bytes[:, index]):
                if h > 0:
                    point = _point(question, models, candidates.accelerator(int(index)), float(h))
                    ranked = priced(
                        question, candidates, evaluate_point(question, replace(point, index=int(index)), store)
                    )
                    values.append(ranked.objective)
                    best = ranked if best is None or ranked.objective > best.objective else best
            visited += 1
        buckets.append(max(values) or -1.0)
        last = buckets[-PATIENCE:]
        if len(last) == PATIENCE and all(a >= b for a, b in pairwise(last)):
            note = f"stopped by its rule after {len(buckets)} buckets"
            break
        if time.perf_counter() - start > time_limit_s or visited >= MOST_VISITED:
            note = f"ended after {len(buckets)} buckets before its rule did"
            break
    return Baseline(
        name="published order and stop rule",
        ranked=best if best is not None and best.objective > 0 else None,
        evaluations=visited,
        seconds=time.perf_counter() - start,
        note=note,
    )
