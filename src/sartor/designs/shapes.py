"""Joint search for accelerator, plan and the model's shape: shapes of equal size are one more axis.

The best chip of every shape is proved over the whole space; then all shapes are evaluated on all these chips (and on an
existing fleet) under all plans that are best somewhere, to see what each pairing loses against the best.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sartor.designs.baselines import NamedChip, point_on
from sartor.designs.bounds import lower_models
from sartor.designs.candidates import DesignStatus, JointResult, Keep, afresh
from sartor.designs.front import NamedSearch, plain_search
from sartor.designs.parts import CopySplit
from sartor.designs.point import ModelOutcome, Option, Point, ScheduleStore, evaluate_option, evaluate_point
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.shape_bounds import ShapeVariant
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.shape import TransformerShape
from sartor.model.training import Recompute
from sartor.model.workload import Workload
from sartor.shapes.search import search_shapes
from sartor.units import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeDesign:
    """All pairings of shapes, chips and plans. Regrets are shares of throughput lost, 0 for the best.

    ``rates`` [shapes, chips, plans] sequences/s (0: does not fit), ``reached`` [shapes, chips] with the plan searched,
    ``best_rate`` [shapes] the most on any chip of the space.
    """

    variants: tuple[ShapeVariant, ...]
    results: tuple[JointResult, ...]
    """Best chip and plan over the whole space, by shape."""
    chips: tuple[NamedChip, ...]
    """The distinct best chips of the shapes, the best chip for all of them together, then the fleet."""
    fleet: tuple[float, ...]
    """Weight of each chip in the fleet; without a fleet all zero, and chips count equally."""
    plans: tuple[tuple[CopySplit, Recompute], ...]
    rates: Array
    reached: Array
    best_rate: Array
    family: JointResult
    """The best chip for all shapes together, by geometric mean."""
    seconds: float

    @property
    def status(self) -> DesignStatus:
        """Optimal if the search of every shape is optimal."""
        statuses = {result.status for result in self.results}
        return DesignStatus.OPTIMAL if statuses == {DesignStatus.OPTIMAL} else DesignStatus.FEASIBLE

    @property
    def best(self) -> tuple[int, float]:
        """The best shape with its best chip: index and sequences/s."""
        return int(self.best_rate.argmax()), float(self.best_rate.max())

    @property
    def chip_regret(self) -> Array:
        """[shapes, chips]: what a shape loses on a chip against its own best chip."""
        return _regret(self.reached, self.best_rate[:, None])

    @property
    def shape_regret(self) -> Array:
        """[shapes, chips]: what a chip loses with a shape against its own best shape."""
        return _regret(self.reached, self.reached.max(axis=0, keepdims=True))

    @property
    def plan_regret(self) -> Array:
        """[shapes, chips, plans]: what a plan loses against the searched one of the same shape and chip."""
        return _regret(self.rates, self.reached[:, :, None])

    @property
    def chip_for_family(self) -> int:
        """The chip of the space with the smallest worst-case regret over the shapes."""
        of_space = np.asarray(self.fleet) == 0
        return int(np.where(of_space, self.chip_regret.max(axis=0), np.inf).argmin())

    @property
    def best_shape(self) -> Array:
        """[chips]: the fastest shape on each chip."""
        return np.asarray(self.reached.argmax(axis=0))

    @property
    def fleet_shape(self) -> tuple[int, float]:
        """The shape with the smallest worst-case weighted regret over the fleet's chips, and that regret (weights are
        scaled so that the largest is 1)."""
        weights = np.asarray(self.fleet) if any(self.fleet) else np.ones(len(self.chips))
        worst = (self.shape_regret * weights / weights.max()).max(axis=1)
        return int(worst.argmin()), float(worst.min())


def _regret(value: Array, best: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(best > 0, 1 - value / best, 0.0)


def shape_variants(
    shape: TransformerShape, seq_len: int, gpus: Sequence[Gpu], count: int, params_tolerance: float = 0.01
) -> tuple[ShapeVariant, ...]:
    """The model and up to ``count`` shapes of its size from the shape search: the fastest to train on each of ``gpus``,
    then the best overall. Raises ``InputError``."""
    if count < 1:
        raise InputError("shapes", count, "must be a whole number of at least 1", "4")
    workload = Workload(shape=shape, seq_len=seq_len)
    search = search_shapes(workload, gpus, params_tolerance=params_tolerance, top=count)
    distinct = {
        tuple(sorted(candidate.fields.items())): candidate
        for candidate in (*search.best_per_gpu.values(), *search.candidates)
    }
    others = [
        ShapeVariant(
            shape=replace(candidate.shape, name=shape.name),
            changed=tuple((name, int(old), int(new)) for name, (old, new) in candidate.changed.items()),
        )
        for candidate in distinct.values()
        if candidate.changed
    ]
    return (ShapeVariant(shape=shape, changed=()), *others[:count])


def search_design_shapes(
    question: DesignQuestion,
    space: AcceleratorSpace,
    variants: Sequence[ShapeVariant],
    fleet: Sequence[tuple[NamedChip, float]] = (),
    *,
    search: NamedSearch = plain_search,
    keep: Keep = afresh,
) -> ShapeDesign:
    """Every shape of ``variants`` in place of the question's model, on the whole space; then shapes x chips x plans.

    ``fleet``: existing chips with their weights. ``search`` replaces `search_design` (to add an executor or a time
    limit), ``keep`` may have stored pairings of shape, chip and plan.

    Raises ``InputError`` for several models, or if no shape fits anywhere.
    """
    if len(question.models) != 1:
        raise InputError("shapes", f"{len(question.models)} models", "asks about one model", "one model")
    start = time.perf_counter()
    questions = [question.with_shape(variant.shape) for variant in variants]
    names = [f"shape {i}: {variant.name}" for i, variant in enumerate(variants, 1)]
    results = [search(variant_question, space, name) for variant_question, name in zip(questions, names, strict=True)]
    fits = [i for i, result in enumerate(results) if result.best is not None]
    if not fits:
        raise InputError("shapes", len(variants), f"none of the shapes fits: {results[0].tightest}")
    questions, results, names = [questions[i] for i in fits], [results[i] for i in fits], [names[i] for i in fits]
    family = search(_together(question, [variants[i] for i in fits]), space, "all shapes together")
    chips = [*_chips([*results, family]), *(chip for chip, _ in fleet)]
    weights = [0.0] * (len(chips) - len(fleet)) + [weight for _, weight in fleet]
    pairs = [
        [keep(f"{name} {_pairing_key(chip)}", partial(_searched, variant_question, chip)) for chip in chips]
        for variant_question, name in zip(questions, names, strict=True)
    ]
    outcomes = [result.best.evaluation.outcomes[0] for result in results if result.best] + [
        o for row in pairs for o in row
    ]
    plans = tuple(dict.fromkeys((o.option.split, o.option.recompute) for o in outcomes if o))
    return ShapeDesign(
        variants=tuple(variants[i] for i in fits),
        results=tuple(results),
        chips=tuple(chips),
        fleet=tuple(weights),
        plans=plans,
        rates=np.array(
            [
                [
                    keep(f"{name} {_pairing_key(chip, plans)}", partial(_by_plan, variant_question, chip, plans))
                    for chip in chips
                ]
                for variant_question, name in zip(questions, names, strict=True)
            ]
        ),
        reached=np.array([[o.sequences_per_s if o else 0.0 for o in row] for row in pairs]),
        best_rate=np.array([result.best.evaluation.rates[0] for result in results if result.best]),
        family=family,
        seconds=time.perf_counter() - start,
    )


def _together(question: DesignQuestion, variants: Sequence[ShapeVariant]) -> DesignQuestion:
    """All shapes as models of one question."""
    model = question.models[0]

    def one(i: int, variant: ShapeVariant) -> DesignModel:
        return replace(model, name=f"{model.name} {i + 1}", shape=variant.shape, expert_widths=())

    return replace(question, models=tuple(one(i, variant) for i, variant in enumerate(variants)))


ALL = "all shapes"


def _chips(results: Sequence[JointResult]) -> list[NamedChip]:
    """The distinct best chips, named by the shapes they are best for."""
    chips: dict[Any, tuple[list[str], NamedChip]] = {}
    for i, result in enumerate(results):
        if result.best is None:
            continue
        point = result.best.evaluation.point
        last = i == len(results) - 1
        chip = NamedChip(name="", accelerator=point.accelerator, hbm_bytes=(point.hbm_bytes,))
        names, _ = chips.setdefault((point.index, point.hbm_bytes), ([], chip))
        names.append(ALL if last else f"shape {i + 1}")
    return [
        replace(chip, name="best for " + " and ".join(names), for_all_shapes=names[-1] == ALL)
        for names, chip in chips.values()
    ]


def _searched(question: DesignQuestion, chip: NamedChip) -> ModelOutcome | None:
    """The fastest plan of the question's model on the chip, over its memories."""
    models, store = lower_models(question), ScheduleStore()
    best: ModelOutcome | None = None
    for memory in chip.hbm_bytes:
        point = point_on(question, models, chip.accelerator, memory)
        outcome = evaluate_point(question, point, store).outcomes[0]
        if outcome and (best is None or outcome.sequences_per_s > best.sequences_per_s):
            best = outcome
    return best


def _pairing_key(chip: NamedChip, *details: object) -> str:
    """The `Keep` key of a pairing: the chip and whatever else the pairing depends on."""
    return f"on {chip.name} {hashlib.sha256(repr((chip, *details)).encode()).hexdigest()[:12]}"


def _by_plan(
    question: DesignQuestion, chip: NamedChip, plans: Sequence[tuple[CopySplit, Recompute]]
) -> tuple[float, ...]:
    """Sequences per second of the model on the chip with each plan's split and recomputation and the best placement."""
    store, out = ScheduleStore(), []
    for split, recompute in plans:
        best = 0.0
        for memory in chip.hbm_bytes:
            point = Point(index=-1, accelerator=chip.accelerator, hbm_bytes=memory, options=())
            option = Option(model=0, split=split, recompute=recompute)
            outcome, _ = evaluate_option(question, point, option, store)
            best = max(best, outcome.sequences_per_s if outcome else 0.0)
        out.append(best)
    return tuple(out)
