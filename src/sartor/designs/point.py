"""One point of the joint search evaluated exactly: schedules of its distinct layers, then the placement.

`evaluate_point` is pure, and its arguments and result can be pickled, so any executor may run it; a `ScheduleStore`
only saves repeated work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from sartor.designs.bounds import bare_problem, joules_per_token, served_copies, served_rates, update_s_per_byte
from sartor.designs.equal_chunks import equal_plan
from sartor.designs.parts import CopySplit, ModelParts, parts_of
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.hardware.accelerator import Accelerator
from sartor.model.training import Recompute
from sartor.operators import OperatorGraph
from sartor.placement.place import place
from sartor.placement.problem import PlacementProblem, Plan, Stage
from sartor.schedules.makespan import SCHEDULE_LIMIT_S, known_in_turn_s, makespan_s, timing_fields
from sartor.schedules.solve import ScheduleCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a model may run on a point; ``bound`` is an upper bound on its throughput [sequences/s]."""

    model: int
    split: CopySplit
    recompute: Recompute
    bound: float = float("inf")

    @property
    def microbatch_size(self) -> int:
        return self.split.microbatch_size

    @property
    def devices(self) -> int:
        """Devices of a stage of one copy."""
        return self.split.devices

    @property
    def expert_parallel(self) -> int:
        return self.split.expert_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One accelerator with one memory, and the options to evaluate for every model.

    ``floor`` [sequences/s, by model]: options with a bound up to it are not evaluated and keep their bound.
    """

    index: int
    accelerator: Accelerator
    hbm_bytes: float
    options: tuple[Option, ...]
    floor: tuple[float, ...] = ()
    schedule_limit_s: float = SCHEDULE_LIMIT_S

    @property
    def chip(self) -> Accelerator:
        """The accelerator with the point's memory in its stacks."""
        return replace(self.accelerator, stack_bytes=self.hbm_bytes / self.accelerator.num_stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one pass over a kind of layer: of the best schedule found, and the proved lower bound."""

    name: str
    forward_s: float
    backward_s: float
    forward_least_s: float
    backward_least_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """The best plan found for a model on a point. In serving, ``step_s`` is one pass, and ``sequences_per_s`` counts
    prompts read, or tokens generated (one per sequence and pass)."""

    name: str
    option: Option
    plan: Plan
    sequences_per_s: float
    tokens_per_s: float
    step_s: float
    layers: tuple[LayerTime, ...]

    @property
    def recompute(self) -> Recompute:
        """What the plan recomputes: nothing on the last stage, so nothing at all on a single one."""
        return self.option.recompute if self.plan.num_stages > 1 else Recompute.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcomes of a point by model (None: nothing found above the floor), and upper bounds."""

    point: Point
    outcomes: tuple[ModelOutcome | None, ...]
    bounds: tuple[float, ...]
    """Upper bound for each model on this point [sequences/s]."""

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(outcome.sequences_per_s if outcome else 0.0 for outcome in self.outcomes)


Interval = tuple[float, float]


def nothing() -> None:
    """A check that never stops."""


@dataclass(frozen=True, slots=True)
class ScheduleStore:
    """Seconds of layers (lower bound, reached) by cores and name, and proved blocks, shared between points.

    ``check`` is called before every option and may raise to give the point up.
    """

    seconds: dict[tuple[Any, str], Interval] = field(default_factory=dict)
    blocks: ScheduleCache = field(default_factory=ScheduleCache)
    check: Callable[[], None] = nothing


def evaluate_point(question: DesignQuestion, point: Point, store: ScheduleStore | None = None) -> Evaluation:
    """Schedule and place every model on the point, its options best bound first."""
    store = store or ScheduleStore()
    outcomes, bounds = [], []
    for m in range(len(question.models)):
        floor = point.floor[m] if point.floor else 0.0
        outcome, bound = _best_option(question, point, m, floor, store)
        outcomes.append(outcome)
        bounds.append(bound)
    return Evaluation(point=point, outcomes=tuple(outcomes), bounds=tuple(bounds))


def _best_option(
    question: DesignQuestion, point: Point, m: int, floor: float, store: ScheduleStore
) -> tuple[ModelOutcome | None, float]:
    """The fastest option of a model and the largest bound of all."""
    best: ModelOutcome | None = None
    best_bound = 0.0
    for option in sorted((x for x in point.options if x.model == m), key=lambda x: -x.bound):
        if option.bound <= max(floor, best.sequences_per_s if best else 0.0):
            best_bound = max(best_bound, option.bound)
            break
        store.check()
        outcome, bound = evaluate_option(question, point, option, store)
        best_bound = max(best_bound, min(bound, option.bound))
        if outcome and (best is None or outcome.sequences_per_s > best.sequences_per_s):
            best = outcome
    return best, max(best_bound, best.sequences_per_s if best else 0.0)


def evaluate_option(
    question: DesignQuestion, point: Point, option: Option, store: ScheduleStore
) -> tuple[ModelOutcome | None, float]:
    """The best plan of one option (None if it does not fit or the chip does not support its type), and an upper bound
    [sequences/s]."""
    if not point.accelerator.multiplies(option.split.dtype):
        return None, 0.0
    model = question.models[option.model]
    timed_parts = layer_times(question, point, option, store)
    if timed_parts is None:
        return None, 0.0
    parts, layers = timed_parts
    if parts.served:
        return _served(question, point, option, parts, layers)
    reached = _fastest(question, parts, placement_problem(question, point, option, parts, layers, use_bounds=False))
    if reached is None:
        return None, 0.0
    outcome = ModelOutcome(
        name=model.name,
        option=option,
        plan=reached,
        sequences_per_s=question.global_batch_size / reached.time_per_batch_s,
        tokens_per_s=question.global_batch_size * model.seq_len / reached.time_per_batch_s,
        step_s=reached.time_per_batch_s,
        layers=layers,
    )
    least_s = outcome.step_s
    if any(x.forward_least_s < x.forward_s or x.backward_least_s < x.backward_s for x in layers):
        bound_plan = _fastest(
            question, parts, placement_problem(question, point, option, parts, layers, use_bounds=True)
        )
        assert bound_plan is not None
        least_s = min(least_s, bound_plan.time_per_batch_s)
    bound = question.global_batch_size / least_s
    limit = question.budgets.energy_j_per_token
    if limit is None:
        return outcome, bound
    run = replace(option, recompute=outcome.recompute)
    if joules_per_token(question, point.accelerator, run, least_s) > limit:
        return None, 0.0
    return outcome if joules_per_token(question, point.accelerator, run, outcome.step_s) <= limit else None, bound


def _fastest(question: DesignQuestion, parts: ModelParts, problem: PlacementProblem) -> Plan | None:
    """The fastest plan, placed or of equal chunks."""
    placed = place(problem, question.terms).plan
    below_s = placed.time_per_batch_s * (1 - EQUAL) if placed else inf  # a placed plan is simpler
    return equal_plan(question, parts, problem, below_s) or placed


def _served(
    question: DesignQuestion, point: Point, option: Option, parts: ModelParts, layers: tuple[LayerTime, ...]
) -> tuple[ModelOutcome | None, float]:
    """The outcome of a served model: every copy runs one batch after another."""
    assert parts.served is not None
    counts, model = (1, *parts.counts, 1), question.models[option.model]
    pass_s = sum(n * layer.forward_s for n, layer in zip(counts, layers, strict=True))
    least_s = sum(n * layer.forward_least_s for n, layer in zip(counts, layers, strict=True))
    memory = np.asarray(point.hbm_bytes)
    bound = float(served_rates(question, parts, np.asarray(least_s), memory))
    rate = float(served_rates(question, parts, np.asarray(pass_s), memory))
    limit = question.budgets.energy_j_per_token or inf
    if not rate or joules_per_token(question, point.accelerator, option, pass_s) > limit:
        return None, bound
    ids = tuple(range(-1, len(parts.order) + 1))
    plan = Plan(
        tensor_parallel=option.split.width,
        data_parallel=served_copies(question, option.split),
        stages=(Stage(layers=ids, devices=option.devices, load_s=pass_s),),
        time_per_batch_s=pass_s,
        expert_parallel=option.expert_parallel,
    )
    outcome = ModelOutcome(
        name=model.name,
        option=option,
        plan=plan,
        sequences_per_s=rate,
        tokens_per_s=rate * parts.served.new_tokens,
        step_s=pass_s,
        layers=layers,
    )
    return outcome, bound


def layer_times(
    question: DesignQuestion, point: Point, option: Option, store: ScheduleStore
) -> tuple[ModelParts, tuple[LayerTime, ...]] | None:
    """The parts of an option's model and their scheduled seconds; None if the model does not split over its width."""
    parts = parts_of(question, option.model, option.split)
    return None if parts is None else (parts, tuple(_layer_times(question, point, option, parts, store)))


def _layer_times(
    question: DesignQuestion, point: Point, option: Option, parts: ModelParts, store: ScheduleStore
) -> Iterator[LayerTime]:
    a = point.accelerator
    cores, split = timing_fields(a), option.split.key
    for k, part in enumerate(parts.parts):
        times = []
        for way, graph in (("forward", part.forward), ("backward", part.backward)):
            if part.in_turn or not graph.operators:
                seconds = known_in_turn_s(graph, a)
                times.append((seconds, seconds))
            else:
                times.append(
                    _scheduled_s(graph, a, (cores, f"{option.model}/{split}/{k}/{way}"), point.schedule_limit_s, store)
                )
        (forward_least, forward), (backward_least, backward) = times
        yield LayerTime(
            name=part.name,
            forward_s=forward * part.in_run(a),
            backward_s=backward * part.in_run(a),
            forward_least_s=forward_least * part.in_run(a),
            backward_least_s=backward_least * part.in_run(a),
        )


def _scheduled_s(graph: OperatorGraph, a: Accelerator, key: Any, limit_s: float, store: ScheduleStore) -> Interval:
    """Lower bound and reached seconds of a layer's schedule."""
    interval = store.seconds.get(key)
    if interval is None or (interval[0] < interval[1] and limit_s > SCHEDULE_LIMIT_S):
        lower, reached = makespan_s(graph, a, limit_s, store.blocks)
        interval = (max(lower, interval[0]), min(reached, interval[1])) if interval else (lower, reached)
        store.seconds[key] = interval
    return interval


def placement_problem(
    question: DesignQuestion,
    point: Point,
    option: Option,
    parts: ModelParts,
    times: tuple[LayerTime, ...],
    *,
    use_bounds: bool,
) -> PlacementProblem:
    """The placement problem with the layers' reached seconds, or with their proved lower bounds (``use_bounds``)."""
    a = point.accelerator
    seconds = [(x.forward_least_s, x.backward_least_s) if use_bounds else (x.forward_s, x.backward_s) for x in times]
    return replace(
        bare_problem(question, option.microbatch_size, point.hbm_bytes, option.recompute),
        widths=(parts.width(seconds),),
        link_bytes_per_s=float(a.reach(question.num_devices)[0]),
        update_s_per_byte=float(update_s_per_byte(question, a)),
    )
