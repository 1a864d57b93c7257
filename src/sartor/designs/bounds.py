"""Upper bounds on the throughput of thousands of accelerators in one pass, and lower bounds on their energy.

`work_rates`: operators' floors over cores by type, no tiles, no schedule, no placement. `plan_rates`: a bound on every
layer's schedule (`schedules.many`), with a bound on every placement (`placement.many`). Neither is ever below the
throughput of any plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from sartor.cost.chip.operator_latency import operator_floor
from sartor.cost.chip.ownership import operator_energy, static_power_w
from sartor.designs.equal_chunks import equal_times, stages_that_fit
from sartor.designs.parts import CopySplit, ModelPart, ModelParts, model_parts, parts_of
from sartor.designs.question import EQUAL, DesignModel, DesignQuestion
from sartor.hardware.accelerator import FIELD_NAMES, Accelerator
from sartor.model.training import Recompute
from sartor.operators import Operator, OperatorGraph
from sartor.placement.many import ChainSet, batch_time_bounds, work_shares
from sartor.placement.problem import PlacedLayer, PlacedOptimizer, PlacementProblem, Width, copies_together
from sartor.schedules.makespan import UNIT_S, in_turn_s, makespan_bounds, makespan_floors
from sartor.step.mechanisms.optimizer import chip_update_s_per_param
from sartor.step.rank_activations import WIDTH_BYTES
from sartor.units import Array, Floats, ceil_div

if TYPE_CHECKING:
    from sartor.designs.point import Evaluation, Option

Seconds = Callable[[ModelPart, OperatorGraph, Accelerator], Array]
"""Function for the seconds of one pass over a part [candidates]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredModel:
    """A model lowered at every split it may use."""

    model: DesignModel
    parts: Mapping[CopySplit, ModelParts]


def lower_models(question: DesignQuestion) -> tuple[LoweredModel, ...]:
    """Every model lowered at every split, without splits that do not divide it or exceed the devices."""
    out = []
    for model in question.models:
        parts_by_split = {
            split: model_parts(model, split, question.global_batch_size) for split in splits(question, model)
        }
        out.append(LoweredModel(model=model, parts={split: parts for split, parts in parts_by_split.items() if parts}))
    return tuple(out)


def splits(question: DesignQuestion, model: DesignModel) -> Iterator[CopySplit]:
    """Splits of a model that the devices and the batch allow. Experts are shared among copies with at least one
    microbatch each; a served copy has a full batch."""
    num_devices, batch = _most_devices(question), question.global_batch_size
    for size in model.batch_sizes if model.served else question.whole_microbatches:
        for width in model.widths:
            for experts, contexts in product(model.expert_widths, (1,) if model.served else question.context_widths):
                room = num_devices // (width * contexts)
                copies = room if model.served else min(room, batch // size)
                if copies_together(experts, contexts) <= copies:
                    yield from (CopySplit(size, width, experts, dtype, contexts) for dtype in question.dtypes)


def _most_devices(question: DesignQuestion) -> int:
    types = question.terms.device_types if question.terms else ()
    return sum(device_type.num_devices for device_type in types) or question.num_devices


def _quickest(question: DesignQuestion) -> float:
    """The least slowdown of a device type under the terms."""
    types = question.terms.device_types if question.terms else ()
    return min((device_type.slowdown for device_type in types), default=1.0)


# ---------------------------------------------------------------------------------------------- work over cores alone


def work_rates(question: DesignQuestion, parts: ModelParts, a: Accelerator, hbm_bytes: float = float("inf")) -> Array:
    """Sequences per second [candidates] if work were split perfectly over cores and over enough stages to hold the
    model in ``hbm_bytes`` each."""
    if not a.multiplies(parts.split.dtype):
        return np.zeros(a.shape)
    return rates_by_work(question, parts, *seconds_of(parts, a, part_floor), hbm_bytes)


def seconds_of(parts: ModelParts, a: Accelerator, seconds: Seconds) -> tuple[Array, Array]:
    """``seconds`` [parts, candidates] of the forward and of the backward pass; a served model has no backward."""
    forward = np.stack([seconds(part, part.forward, a) * part.in_run(a) for part in parts.parts])
    if parts.served:
        return forward, np.zeros(forward.shape)
    return forward, np.stack([seconds(part, part.backward, a) * part.in_run(a) for part in parts.parts])


def rates_by_work(
    question: DesignQuestion, parts: ModelParts, forward_s: Array, backward_s: Array, hbm_bytes: float = float("inf")
) -> Array:
    """`work_rates` from the seconds [parts, candidates] of each part."""
    counts = np.array([1, *parts.counts, 1])
    forward, backward = counts @ forward_s, counts @ backward_s
    if parts.served:
        return served_rates(question, parts, forward, np.asarray(hbm_bytes))
    shares = _shares(question, parts, hbm_bytes)
    if not shares:
        return np.zeros(forward.shape)
    if question.terms is not None or not np.isfinite(hbm_bytes):
        return _busy_rate(question, forward + backward, parts.split)
    least_s = np.min([share * (forward + backward) + again * forward for share, again in shares], axis=0)
    return np.asarray(question.global_batch_size / least_s)


def _shares(question: DesignQuestion, parts: ModelParts, hbm_bytes: float) -> list[tuple[float, float]]:
    """Least time of a batch in units of a microbatch's work, by recomputation; empty if nothing fits."""
    if question.terms is not None or not np.isfinite(hbm_bytes):
        return [(0.0, 0.0)]
    nothing = np.zeros((len(parts.parts), 1))
    chain, size = _chain(parts, nothing, nothing), parts.split.microbatch_size
    problems = [bare_problem(question, size, hbm_bytes, r) for r in question.recomputes]
    chunks = max(question.virtual_stages)
    shares = [work_shares(chain, p, chunks, stages_that_fit(question, parts, p)) for p in problems]
    return [(share, again) for share, again in shares if np.isfinite(share)]


def _busy_rate(question: DesignQuestion, seconds: Array, split: CopySplit) -> Array:
    """Sequences per second if devices do nothing but microbatches of ``seconds`` each."""
    return np.asarray(split.microbatch_size * _most_devices(question) / (seconds * split.devices * _quickest(question)))


def served_copies(question: DesignQuestion, split: CopySplit) -> int:
    """Number of copies of a served model that the devices hold, in whole groups that share experts."""
    return question.num_devices // split.width // split.expert_parallel * split.expert_parallel


def served_rates(question: DesignQuestion, parts: ModelParts, pass_s: Array, hbm_bytes: Array) -> Array:
    """Sequences per second of all copies, each with a batch per ``pass_s``; 0 if the model does not fit or the latency
    limit is exceeded."""
    served, size = parts.served, parts.split.microbatch_size
    assert served is not None
    fits = (served.device_bytes <= hbm_bytes) & (pass_s <= served.latency_s * (1 + EQUAL))
    return np.asarray(np.where(fits, served_copies(question, parts.split) * size / pass_s, 0.0))


def part_floor(part: ModelPart, graph: OperatorGraph, a: Accelerator) -> Array:
    """Least seconds [candidates] of one pass over a part, without tiles and schedules."""
    return np.asarray((_in_turn_floor if part.in_turn else makespan_floors)(graph, a))


def _in_turn_floor(graph: OperatorGraph, a: Accelerator) -> Floats:
    """Least seconds [candidates] of operators that run one after another."""
    return sum((operator_floor(op, a).least_s * float(op.count) for op in graph.operators), np.zeros(a.shape))


# ------------------------------------------------------------------------------------------ schedules and placement


def plan_rates(question: DesignQuestion, parts: ModelParts, a: Accelerator, hbm_bytes: Array) -> Array:
    """Sequences per second [recomputes, memories, candidates] that no plan of this split exceeds; ``hbm_bytes`` are the
    memories [memories, candidates] of each; 0 if no plan fits. A served model recomputes nothing."""
    if not a.multiplies(parts.split.dtype):
        return np.zeros((len(question.recomputes), *hbm_bytes.shape))
    return placed_rates(question, parts, *seconds_of(parts, a, part_seconds), a, hbm_bytes)


def placed_rates(
    question: DesignQuestion, parts: ModelParts, forward: Array, backward: Array, a: Accelerator, hbm_bytes: Array
) -> Array:
    """`plan_rates` from the seconds [parts, candidates] of each part."""
    if parts.served:
        rates = np.zeros((len(question.recomputes), *hbm_bytes.shape))
        rates[0] = served_rates(question, parts, np.array([1, *parts.counts, 1]) @ forward, hbm_bytes)
        return rates
    if question.terms is not None:
        counts = np.array([1, *parts.counts, 1])[:, None]
        rate = _busy_rate(question, ((forward + backward) * counts).sum(axis=0), parts.split)
        return np.broadcast_to(rate, (len(question.recomputes), *hbm_bytes.shape)).copy()
    update = update_s_per_byte(question, a)
    links = np.broadcast_to(a.reach(question.num_devices)[0], a.shape)
    out = np.zeros((len(question.recomputes), *hbm_bytes.shape))
    for r, recompute in enumerate(question.recomputes):
        for memory in np.unique(hbm_bytes[hbm_bytes > 0]):
            rows, columns = np.nonzero(hbm_bytes == memory)
            few = np.unique(columns)
            chain = _chain(parts, forward[:, few], backward[:, few])
            problem = bare_problem(question, parts.split.microbatch_size, float(memory), recompute)
            time_s = np.minimum(
                batch_time_bounds(chain, problem, links[few], update[few]),
                equal_times(question, parts, forward[:, few], backward[:, few], problem, links[few], update[few]),
            )
            rate = np.where(np.isfinite(time_s), question.global_batch_size / time_s, 0.0)
            out[r, rows, columns] = rate[np.searchsorted(few, columns)]
    return out


def part_seconds(part: ModelPart, graph: OperatorGraph, a: Accelerator) -> Array:
    """Least seconds [candidates] of one pass over a part."""
    if part.in_turn:
        return in_turn_s(graph, a)
    return np.asarray(makespan_bounds(graph, a).lower * UNIT_S)


def update_s_per_byte(question: DesignQuestion, a: Accelerator) -> Array:
    """Seconds [candidates] of the optimizer's step per parameter byte, on the vector cores and memory."""
    if not question.costs.counts_update:
        return np.zeros(a.shape)
    return np.broadcast_to(np.asarray(chip_update_s_per_param(a, question.optimizer)) / WIDTH_BYTES, a.shape)


def bare_problem(
    question: DesignQuestion, microbatch_size: int, hbm_bytes: float, recompute: Recompute
) -> PlacementProblem:
    """The placement problem of a candidate without its layers, bandwidth and update time."""
    nothing = PlacedLayer(id=0, param_bytes=0.0, activation_bytes=0.0, forward_s=0.0, backward_s=0.0, is_split=False)
    return PlacementProblem(
        widths=(Width(tensor_parallel=1, layers=(nothing,), edges=()),),
        memory_bytes=hbm_bytes,
        num_devices=question.num_devices,
        link_bytes_per_s=1.0,
        num_microbatches=int(ceil_div(question.global_batch_size, microbatch_size)),
        recompute=recompute is Recompute.FULL,
        optimizer=PlacedOptimizer.ADAM,
        optimizer_copies=question.optimizer_copies,
        resync_factor=question.costs.resync_factor,
        zero_stage=int(1 in question.zero_stages and question.terms is None),
        even_copies=True,
    )


def _chain(parts: ModelParts, forward: Array, backward: Array) -> ChainSet:
    return ChainSet(
        devices=parts.split.devices,
        context_parallel=parts.split.context_parallel,
        expert_parallel=parts.split.expert_parallel,
        counts=parts.counts,
        forward_s=forward,
        backward_s=backward,
        param_bytes=np.array([part.param_bytes for part in parts.parts]),
        expert_param_bytes=np.array([part.expert_param_bytes for part in parts.parts]),
        activation_bytes=np.array([part.activation_bytes for part in parts.parts]),
        boundary_bytes=parts.boundary_bytes,
        tied_bytes=parts.tied_bytes,
    )


Joules = Callable[[Operator, Accelerator], Floats]
"""Function for the joules [candidates] of one execution beyond static power: `dynamic_j`, or a bound on it."""


def joules_per_token(question: DesignQuestion, a: Accelerator, option: Option, step_s: float) -> float:
    """Energy of a batch per token [J]: data movement and computation of the operators, and static power of all devices,
    busy or not. So among placements of one option the fastest takes the least energy."""
    forward, backward = _cached_pass_j(question, option.model, option.split, _EnergyChip(a))
    dynamic = forward * (2.0 if option.recompute is Recompute.FULL else 1.0) + backward
    parts = parts_of(question, option.model, option.split)
    assert parts is not None
    sequences = question.global_batch_size
    if parts.served:
        sequences = served_copies(question, option.split) * option.microbatch_size
    return float(_per_token(question, option.model, parts, a, dynamic, sequences / step_s))


def evaluated_joules(question: DesignQuestion, evaluation: Evaluation, m: int) -> float | None:
    """Energy per token [J] of a model on an evaluated point; None if it does not fit."""
    outcome = evaluation.outcomes[m]
    if outcome is None:
        return None
    run = replace(outcome.option, recompute=outcome.recompute)
    return joules_per_token(question, evaluation.point.accelerator, run, outcome.step_s)


def least_joules(
    question: DesignQuestion, m: int, parts: ModelParts, a: Accelerator, rates: Array, joules: Joules
) -> Array:
    """Energy per token [J] that no plan of a split falls below if none exceeds ``rates`` [..., candidates] in sequences
    per second: operators take the same energy (``joules``) whatever their schedule, and idle power counts for the least
    time."""
    with np.errstate(divide="ignore"):
        return np.asarray(_per_token(question, m, parts, a, sum(_pass_j(parts, a, joules)), rates))


def within_energy(
    question: DesignQuestion, m: int, parts: ModelParts, a: Accelerator, rates: Array, joules: Joules
) -> Array:
    """``rates``, and 0 where every plan takes more energy than the budget."""
    limit = question.budgets.energy_j_per_token
    if limit is None or not a.multiplies(parts.split.dtype):
        return rates
    return np.where(least_joules(question, m, parts, a, rates, joules) <= limit * (1 + EQUAL), rates, 0.0)


def dynamic_j(op: Operator, a: Accelerator) -> Floats:
    """Joules [candidates] of one execution beyond static power."""
    energy = operator_energy(op, a)
    return energy.total_j - energy.static_j


def _per_token(
    question: DesignQuestion, m: int, parts: ModelParts, a: Accelerator, dynamic_j: Floats, rates: Floats
) -> Floats:
    """Joules per token from those of a device in a microbatch, and sequences per second."""
    tokens = parts.served.new_tokens if parts.served else question.models[m].seq_len
    moved = dynamic_j * parts.split.devices / parts.split.microbatch_size
    return (moved + static_power_w(a) * _most_devices(question) / rates) / tokens


def _pass_j(parts: ModelParts, a: Accelerator, joules: Joules) -> tuple[Floats, Floats]:
    """Joules [candidates] of a device beyond static power, in a forward and a backward pass over a microbatch."""
    counts = (1, *parts.counts, 1)
    forward = sum(n * _graph_j(part.forward, a, joules) for n, part in zip(counts, parts.parts, strict=True))
    backward = sum(n * _graph_j(part.backward, a, joules) for n, part in zip(counts, parts.parts, strict=True))
    return forward, backward


def _graph_j(graph: OperatorGraph, a: Accelerator, joules: Joules) -> Floats:
    return sum(float(op.count) * joules(op, a) for op in graph.operators)


class _EnergyChip:
    """An accelerator, equal to another whose operators take the same energy."""

    __slots__ = ("accelerator", "key")

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.key = tuple(getattr(accelerator, name) for name in FIELD_NAMES if name not in _WORDS)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EnergyChip) and self.key == other.key


_WORDS = ("name", "title", "note", "confidence", "sources")


@lru_cache(maxsize=1024)
def _cached_pass_j(question: DesignQuestion, m: int, split: CopySplit, chip: _EnergyChip) -> tuple[float, float]:
    """`_pass_j` of one chip, worked out once in a process."""
    parts = parts_of(question, m, split)
    assert parts is not None
    forward, backward = _pass_j(parts, chip.accelerator, dynamic_j)
    return float(forward), float(backward)
