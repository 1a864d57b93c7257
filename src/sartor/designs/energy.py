"""Energy per token of a plan, and a lower bound on it for many candidates at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sartor.cost.chip.energy import operator_energy, static_power_w
from sartor.designs.bounds import most_devices, served_copies
from sartor.designs.parts import CopySplit, ModelParts, parts_of
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.hardware.accelerator import FIELD_NAMES, Accelerator
from sartor.model.training import Recompute
from sartor.operators import Operator, OperatorGraph
from sartor.units import Array, Floats

if TYPE_CHECKING:
    from sartor.designs.point import Evaluation, Option

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
    return (moved + static_power_w(a) * most_devices(question) / rates) / tokens


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
