"""Known chips with an expert's or a searched placement, priced by the same cost model as the search.

The searches of the papers are in benchmarks/design_baselines.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from sartor.cost.chip.operator_latency import SCALE_OUT
from sartor.designs.bounds import LoweredModel, bare_problem, lower_models, part_seconds, placed_rates
from sartor.designs.candidates import Baseline, Keep, Ranked, afresh, priced
from sartor.designs.parts import CopySplit, ModelParts, parts_of
from sartor.designs.point import (
    Evaluation,
    LayerTime,
    ModelOutcome,
    Option,
    Point,
    ScheduleStore,
    evaluate_point,
    layer_times,
    placement_problem,
)
from sartor.designs.question import EQUAL, AreaModel, DesignQuestion, ExpertPlan
from sartor.designs.shape_bounds import stacked_seconds
from sartor.designs.space import AcceleratorSpace, taken
from sartor.hardware.accelerator import IN_LONG_RUNS, Accelerator
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.model.training import Recompute
from sartor.placement.check import fixed_strategy_stages, price
from sartor.placement.problem import FixedStrategy, PlacementProblem, Plan
from sartor.units import Array

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
        if not _priced(replace(bare, widths=(parts.width(),)), parts, plan)[1]:
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


def compare(question: DesignQuestion, space: AcceleratorSpace, *, keep: Keep = afresh) -> Iterator[Baseline]:
    """Known chips with the experts' placements and with searched ones. Results that ``keep`` has are not computed
    again."""
    yield from chip_baselines(question, list(known_chips(question, space)), ScheduleStore(), keep)


def chip_baselines(
    question: DesignQuestion,
    chips: Sequence[NamedChip],
    store: ScheduleStore | None = None,
    keep: Keep = afresh,
) -> Iterator[Baseline]:
    """Every chip with the experts' placements (only for training) and with searched ones."""
    trained = not any(model.served for model in question.models)
    models, store = lower_models(question), store or ScheduleStore()
    for chip in chips:
        if trained:
            expert = partial(expert_point, question, chip.accelerator, store=store)
            fastest = partial(_at_its_memories, question, chip, "expert", expert, _MISSING, keep)
            yield keep(f"{chip.name}, expert placement", fastest)
        yield keep(f"{chip.name}, searched placement", partial(searched, question, models, chip, store, keep))


_MISSING = "the expert's placement does not fit, or its width does not split the model"


def searched(
    question: DesignQuestion,
    models: Sequence[LoweredModel],
    chip: NamedChip,
    store: ScheduleStore,
    keep: Keep = afresh,
) -> Baseline:
    """Only the placement searched: the best plans on a fixed chip, at the memory with which they are fastest."""

    def on(hbm_bytes: float) -> Ranked | None:
        point = point_on(question, models, chip.accelerator, hbm_bytes)
        return priced(question, evaluate_point(question, point, store))

    return _at_its_memories(question, chip, "searched", on, "no placement fits", keep, "placement alone")


def _at_its_memories(
    question: DesignQuestion,
    chip: NamedChip,
    way: str,
    on: Callable[[float], Ranked | None],
    missing: str,
    keep: Keep,
    *words: str,
) -> Baseline:
    """A fixed chip at the memory with which it is fastest; ``missing`` says why it has no plan."""
    start, name = time.perf_counter(), f"{chip.name}, {way} placement"
    points = [keep(f"{name}, {memory:.0f} bytes", partial(on, memory)) for memory in chip.hbm_bytes]
    best = max((p for p in points if p and p.objective > 0), key=lambda p: p.objective, default=None)
    return Baseline(
        name=name,
        ranked=best,
        evaluations=len(points),
        seconds=time.perf_counter() - start,
        note=_notes(*words, chip.note, _plans(best) if best else missing, _beyond(question, best)),
    )


def _notes(*words: str) -> str:
    return "; ".join(word for word in words if word)


def _plans(ranked: Ranked) -> str:
    """``t4 p32 d8 b1 recompute`` of every model."""
    return ", ".join(_plan_words(outcome) for outcome in ranked.evaluation.outcomes if outcome)


def _plan_words(outcome: ModelOutcome) -> str:
    """A plan in short words: width, stages, copies, experts, contexts, chunks, ZeRO, sequences per microbatch,
    recomputation."""
    plan, experts = outcome.plan, outcome.plan.expert_parallel
    words = [f"t{plan.tensor_parallel}", f"p{plan.num_stages}", f"d{plan.data_parallel}"]
    words += [f"e{experts}"] if experts > 1 else []
    words += [f"c{plan.context_parallel}"] if plan.context_parallel > 1 else []
    words += [f"v{plan.virtual_stages}"] if plan.virtual_stages > 1 else []
    words += [f"z{plan.zero_stage}"] if plan.zero_stage else []
    words.append(f"b{outcome.option.microbatch_size}")
    return " ".join([*words, *(["recompute"] if outcome.recompute is Recompute.FULL else [])])


def _beyond(question: DesignQuestion, ranked: Ranked | None) -> str:
    """The budgets that a known chip exceeds; it is compared anyway, with a note."""
    if ranked is None:
        return ""
    limits = {"area_mm2": (ranked.area_mm2, "mm2"), "power_w": (ranked.power_w, "W")}
    over = [
        f"{value:,.0f} {unit} is beyond {name}={limit:g}"
        for name, (value, unit) in limits.items()
        if (limit := getattr(question.budgets, name)) is not None and value > limit * (1 + EQUAL)
    ]
    return ", ".join(over)


def point_on(question: DesignQuestion, models: Sequence[LoweredModel], a: Accelerator, hbm_bytes: float) -> Point:
    """A chip with one memory as a point, every option of every model with its bound."""
    as_array = replace(a, num_tensor_cores=np.array([a.num_tensor_cores]))
    (options,) = options_of(question, models, as_array, np.array([hbm_bytes]))
    return Point(index=-1, accelerator=a, hbm_bytes=hbm_bytes, options=options)


def expert_point(
    question: DesignQuestion, accelerator: Accelerator, hbm_bytes: float, store: ScheduleStore
) -> Ranked | None:
    """An accelerator under every model's expert placement, at the best microbatch and recomputation that fit."""
    point = Point(index=-1, accelerator=accelerator, hbm_bytes=hbm_bytes, options=())
    outcomes = [_expert_outcome(question, point, m, store) for m in range(len(question.models))]
    if any(outcome is None for outcome in outcomes):
        return None
    rates = tuple(outcome.sequences_per_s if outcome else 0.0 for outcome in outcomes)
    return priced(question, Evaluation(point=point, outcomes=tuple(outcomes), bounds=rates))


def _expert_outcome(question: DesignQuestion, point: Point, m: int, store: ScheduleStore) -> ModelOutcome | None:
    best: ModelOutcome | None = None
    for option, expert in expert_options(question, m, point.hbm_bytes):
        timed_parts = layer_times(question, point, option, store)
        outcome = fixed_outcome(question, point, option, expert, timed_parts) if timed_parts else None
        if outcome and (best is None or outcome.step_s < best.step_s):
            best = outcome
    return best


CHIPS = {
    "TPUv4-like": ("tpu_v4_like", "the published template's point (8, 2, 128, 128, 128, 128 MiB)"),
    "TPUv4 with its lanes": (
        "tpu_v4_lanes",
        "the same with the real chip's 2 x 2048 vector lanes and 2 x 16 MiB beside them",
    ),
    "A100-like": (
        "a100_like",
        "the tensor cores of each of 108 SMs drawn as a 32 x 32 array, its lanes as a vector core (whitepaper, 2020)",
    ),
    "H100-like": (
        "h100_like",
        "the tensor cores of each of 132 SMs drawn as a 64 x 32 array, its lanes as a vector core (whitepaper, 2022)",
    ),
}
"""Name in the comparison -> catalogue accelerator, with notes on how it follows from the datasheet."""
LIKE = "what they sustain of their peak rates, and the network beyond their links, is what the space's chips have"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChip:
    """A known accelerator and the memory sizes it may have [bytes]."""

    name: str
    accelerator: Accelerator
    hbm_bytes: tuple[float, ...]
    note: str = ""
    for_all_shapes: bool = False
    """Whether this is the best chip for all shapes together."""


def known_chips(question: DesignQuestion, space: AcceleratorSpace) -> Iterator[NamedChip]:
    """`CHIPS` with the space's memory sizes within the budget (else their own).

    They sustain the shares of their peaks that the space's candidates do, in the same network beyond their links:
    differences of real chips that no candidate has would count as differences of design.
    If area is the published closed form (always at 22 nm), power is also taken at the space's node, so that chips
    differ by their parts and not by their year. A whole die is priced at the chip's own node.
    """
    limit, first = question.budgets.hbm_bytes or float("inf"), space.groups[0]
    shares: dict[str, Any] = {field: getattr(first, field) for field in IN_LONG_RUNS}
    network = {field: getattr(first, field) for field in SCALE_OUT}
    if not any(map(np.ndim, network.values())):
        shares |= network
    for name, (entry, how) in CHIPS.items():
        chip = load_accelerator(entry)
        sizes = tuple(size for size in space.hbm_bytes or (float(chip.hbm_bytes),) if size <= limit)
        node = first.node_nm if question.costs.area is AreaModel.PUBLISHED else chip.node_nm
        moved = f"; area and power at {node} nm" if node != chip.node_nm else ""
        yield NamedChip(
            name=name,
            accelerator=replace(chip, node_nm=node, **shares),
            hbm_bytes=sizes or (limit,),
            note=f"{how}{moved}; {LIKE}",
        )


def options_of(
    question: DesignQuestion, models: Sequence[LoweredModel], candidates: Accelerator, hbm_bytes: Array
) -> list[tuple[Option, ...]]:
    """The options of each candidate [candidates] with its memory, without those that do not fit; one array pass over
    splits and candidates."""
    per_candidate: list[list[Option]] = [[] for _ in range(len(hbm_bytes))]
    for m, model in enumerate(models):
        split_parts, count = list(model.parts.values()), len(hbm_bytes)
        pairs = np.tile(np.arange(count), len(split_parts))
        forward, backward = stacked_seconds(
            split_parts, np.arange(len(pairs)) // count, taken(candidates, pairs), part_seconds
        )
        for s, parts in enumerate(split_parts):
            mine = slice(s * count, (s + 1) * count)
            rates = placed_rates(question, parts, forward[:, mine], backward[:, mine], candidates, hbm_bytes[None])[
                :, 0
            ]
            for recompute, row in zip(question.recomputes, rates, strict=True):
                for i in np.flatnonzero(row > 0):
                    per_candidate[i].append(
                        Option(model=m, split=parts.split, recompute=recompute, bound=float(row[i]))
                    )
    return [tuple(options) for options in per_candidate]
