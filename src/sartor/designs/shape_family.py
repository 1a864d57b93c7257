"""Several models on one chip, each in its best shape: shapes, plans and chip in one proved search.

The mean throughput grows with that of every model, so on a given chip and memory the best shape of a model does not
depend on the other models' shapes, and the mean of the best shapes' bounds is a bound of the chip. Chips wait by
falling bound. On the first of them, the model with the largest slack is chosen and its shape with the largest bound
evaluated, until no waiting chip can be better. A model that is trained and served has one shape for both.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from sartor.designs.baselines import point_on
from sartor.designs.best_first import LATER_TIME, MORE_TIME, Spot
from sartor.designs.bounds import LoweredModel, lower_models
from sartor.designs.candidates import JointResult, Progress, candidates_of, priced
from sartor.designs.front import NamedSearch, plain_search
from sartor.designs.point import Evaluation, ModelOutcome, Point, ScheduleStore, evaluate_point
from sartor.designs.question import EQUAL, DesignModel, DesignQuestion, Objective
from sartor.designs.search import RunTasks
from sartor.designs.shape_bounds import ShapeAxes, ShapePairs
from sartor.designs.shapes_proved import BestShape, JointShapes, over_shapes, undominated
from sartor.designs.space import AcceleratorSpace
from sartor.interrupts import point
from sartor.schedules.makespan import SCHEDULE_LIMIT_S
from sartor.units import Array

OnProgress = Callable[[Progress], None] | None
TRIES = 2
"""How often a shape is evaluated on a chip as long as others are open."""


def _limit_s(tried: int) -> float:
    """Seconds for the schedules of a shape on a chip, which was tried before without a proof."""
    return SCHEDULE_LIMIT_S * (MORE_TIME * LATER_TIME ** (tried - 1) if tried else 1)


def families(question: DesignQuestion) -> list[tuple[int, ...]]:
    """Indices of the question's models, grouped by shape."""
    shapes: list[Any] = []
    for model in question.models:
        shapes += [model.shape] if model.shape not in shapes else []
    return [tuple(m for m, model in enumerate(question.models) if model.shape == shape) for shape in shapes]


def search_with_family(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: Sequence[ShapeAxes],
    *,
    search: NamedSearch = plain_search,
    run: RunTasks | None = None,
    tolerance: float = 0.0,
    deadline: float = float("inf"),
    on_progress: OnProgress = None,
) -> JointShapes | JointResult:
    """The best chip with the best of all shapes of ``axes`` (one for each of the `families`) and its proof; or the
    result for the unchanged models if they fit nowhere or their search is interrupted. A study only stores the search
    of the unchanged models."""
    start = time.perf_counter()
    as_it_is = search(question, space, "")
    if as_it_is.best is None or as_it_is.interrupted:
        return as_it_is
    return _Family(question, space, axes, as_it_is, tolerance, deadline, start, on_progress).answer()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One model in all its shapes: ``numbers`` are the indices of its phases among the question's models, ``bounds``
    [shapes, chips] the upper bounds of these phases together."""

    numbers: tuple[int, ...]
    questions: Sequence[DesignQuestion]
    models: Sequence[tuple[LoweredModel, ...]]
    bounds: Array
    stores: dict[int, ScheduleStore] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """One model on one chip with its memory: upper bound and number of evaluations of each shape [shapes], and the best
    so far."""

    upper: Array
    tried: Array
    rate: float = 0.0
    shape: int = 0
    outcomes: tuple[ModelOutcome | None, ...] = ()

    @property
    def bound(self) -> float:
        return max(self.rate, float(self.upper.max()))

    def is_open(self, tries: int) -> bool:
        """Whether some shape may be better and was evaluated less often than this."""
        return bool(self.bound > self.rate * (1 + EQUAL) and self.tried[self.upper.argmax()] < tries)

    def slack(self, tries: int) -> float:
        """The bound over the best rate; 0 if no shape is open."""
        if not self.is_open(tries):
            return 0.0
        return self.bound / self.rate if self.rate else float("inf")


@dataclass
class _Family:
    question: DesignQuestion
    space: AcceleratorSpace
    axes: Sequence[ShapeAxes]
    as_it_is: JointResult
    tolerance: float
    deadline: float
    start: float
    on_progress: OnProgress
    visited: dict[Spot, list[_Known]] = field(default_factory=dict)
    trajectory: list[Progress] = field(default_factory=list)
    evaluated: int = 0
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.candidates, _ = candidates_of(self.question, self.space)
        first = self.as_it_is.best
        assert first is not None
        self.first, self.least = first.evaluation.point, first.objective
        self.chips = np.union1d(undominated(self.question, self.candidates), [self.first.index])
        self.numbers = families(self.question)
        self.whole = replace(self.question, models=tuple(self._as_one(numbers) for numbers in self.numbers))
        self.members: list[_Member] = []
        self.value, self.upper, self.waiting = self.least, float("inf"), self.candidates.hbm_bytes.size
        self.best: Spot | None = None

    def _as_one(self, numbers: tuple[int, ...]) -> DesignModel:
        """The model, with the summed weights of all its phases."""
        models = [self.question.models[m] for m in numbers]
        return replace(models[0], weight=sum(model.weight for model in models))

    def answer(self) -> JointShapes:
        """Search all chips, then the chip that is best for the unchanged models."""
        in_turn = None
        try:
            if self._bound():
                spots = [(c, h) for c in range(len(self.chips)) for h in self.candidates.memories(self.chips[c])]
                self.value, self.upper, self.best = self._best_of(spots)
                value_in_turn, _, spot = self._best_of([self._first_spot()])
                if value_in_turn > self.value:  # both are within the tolerance of the best
                    self.value, self.best = value_in_turn, spot
                in_turn = None if self._late() else value_in_turn
        except KeyboardInterrupt:
            self.interrupted = True
        chosen = [state.shape for state in self.visited[self.best]] if self.best else [0] * len(self.axes)
        shapes = tuple(
            BestShape(model=self.question.models[m].shape.name, axes=axes, variant=axes.variants[s])
            for (m, *_), axes, s in zip(self.numbers, self.axes, chosen, strict=True)
        )
        question = self._with(shapes)
        return JointShapes(
            shapes=shapes,
            question=question,
            result=self._result(question),
            as_it_is=self.as_it_is,
            in_turn=in_turn,
            searched=sum(len(member.stores) for member in self.members),
        )

    def _with(self, shapes: Sequence[BestShape]) -> DesignQuestion:
        models = list(self.question.models)
        for numbers, shape in zip(self.numbers, shapes, strict=True):
            for m in numbers:
                models[m] = replace(models[m], shape=shape.variant.shape, expert_widths=())
        return replace(self.question, models=tuple(models))

    def _late(self) -> bool:
        point()
        return self._left_s() < 0

    def _left_s(self) -> float:
        return self.deadline - time.perf_counter()

    # Bounds

    def _bound(self) -> bool:
        """Compute bounds of all shapes of every model on every chip; False if time ran out."""
        divisor = self.candidates.least_divisor(self.chips)
        pairs_or_none = [self._pairs(numbers, axes) for numbers, axes in zip(self.numbers, self.axes, strict=True)]
        pairs = [shape_pairs for shape_pairs in pairs_or_none if shape_pairs is not None]
        if len(pairs) < len(pairs_or_none):
            return False
        best_rates = np.stack([shape_pairs.most() for shape_pairs in pairs])
        for m, shape_pairs in enumerate(pairs):
            bounds = shape_pairs.bounds(self.whole.needed(self.least * (1 + EQUAL) * divisor, best_rates, m))
            if bounds is None:
                return False
            best_rates[m] = bounds.max(axis=0)
            self.members.append(
                _Member(
                    numbers=self.numbers[m], questions=shape_pairs.questions, models=shape_pairs.models, bounds=bounds
                )
            )
        return True

    def _pairs(self, numbers: tuple[int, ...], axes: ShapeAxes) -> ShapePairs | None:
        """One model's shapes on all chips; None if time ran out."""
        models = tuple(self.question.models[m] for m in numbers)
        throughput_question = replace(self.question, models=models, objective=Objective.THROUGHPUT)
        questions = [throughput_question.with_shape(variant.shape) for variant in axes.variants]
        lowered = _lowered_shapes(questions, self._late)
        if lowered is None:
            return None
        return ShapePairs(
            questions=questions, models=lowered, candidates=self.candidates, chips=self.chips, late=self._late
        )

    def _first_spot(self) -> Spot:
        hbm = self.candidates.hbm_bytes[:, self.first.index]
        return int(np.searchsorted(self.chips, self.first.index)), int(np.argmin(abs(hbm - self.first.hbm_bytes)))

    # Search

    def _best_of(self, spots: Sequence[Spot]) -> tuple[float, float, Spot | None]:
        """The best objective over ``spots``, its upper bound, and the best spot (None: the unchanged models)."""
        value, tries, search = self.least, TRIES, len(spots) > 1
        best: Spot | None = None
        closed = list[tuple[float, Spot]]()
        for spot in self.visited.keys() & spots:
            if (before := self._reached(spot)) > value:
                value, best = before, spot
        heap = [(-self._bound_at(spot), spot) for spot in spots]
        heapq.heapify(heap)
        while not self._late():
            if _top(heap) <= self._enough(value):
                if _top(closed) <= self._enough(value) or self._left_s() < _limit_s(tries):
                    break
                heap, closed, tries = sorted([*heap, *closed]), [], tries + 1
            bound, spot = heapq.heappop(heap)
            states = self._known(spot)
            if not any(state.is_open(tries) for state in states):
                heapq.heappush(closed, (bound, spot))
                continue
            self._price(spot, max(range(len(states)), key=lambda m: states[m].slack(tries)))
            heapq.heappush(heap, (-self._bound_at(spot), spot))
            if (now := self._reached(spot)) > value:
                value, best = now, spot
            if search:
                self._report(value, max(value, _top(heap), _top(closed)), len(heap))
        if search:
            self.waiting = sum(-bound > self._enough(value) for bound, _ in heap)
        return value, max(value, _top(heap), _top(closed)), best

    def _enough(self, value: float) -> float:
        """Chips with a bound up to this need not be searched further."""
        return value * (1 + max(self.tolerance, EQUAL))

    def _known(self, spot: Spot) -> list[_Known]:
        if spot not in self.visited:
            columns = [member.bounds[:, spot[0]].copy() for member in self.members]
            self.visited[spot] = [_Known(column, np.zeros(len(column), dtype=np.int64)) for column in columns]
        return self.visited[spot]

    def _bound_at(self, spot: Spot) -> float:
        if spot in self.visited:
            return self._divided(spot, [state.bound for state in self.visited[spot]])
        return self._divided(spot, [member.bounds[:, spot[0]].max() for member in self.members])

    def _reached(self, spot: Spot) -> float:
        return self._divided(spot, [state.rate for state in self.visited[spot]])

    def _divided(self, spot: Spot, rates: Sequence[float]) -> float:
        c, h = spot
        return float(self.whole.together(np.array(rates))) / float(self.candidates.divisor[h, self.chips[c]])

    def _price(self, spot: Spot, m: int) -> None:
        """Evaluate the model's shape with the largest bound on a chip, with a larger time limit at the second try."""
        state, member, chip_point = self.visited[spot][m], self.members[m], self._point(spot)
        s = int(state.upper.argmax())
        store = member.stores.setdefault(s, ScheduleStore())
        options = point_on(member.questions[s], member.models[s], chip_point.accelerator, chip_point.hbm_bytes).options
        floor = (state.rate,) if len(member.numbers) == 1 else ()
        limit_s = _limit_s(int(state.tried[s]))
        evaluation = evaluate_point(
            member.questions[s], replace(chip_point, options=options, floor=floor, schedule_limit_s=limit_s), store
        )
        rate, upper = (
            float(member.questions[s].together(np.array(values))) for values in (evaluation.rates, evaluation.bounds)
        )
        state.upper[s] = min(state.upper[s], upper)
        state.tried[s] += 1
        self.evaluated += 1
        if rate > state.rate:
            state.rate, state.shape, state.outcomes = rate, s, evaluation.outcomes

    def _point(self, spot: Spot) -> Point:
        c, h = spot
        index = int(self.chips[c])
        hbm = float(self.candidates.hbm_bytes[h, index])
        return Point(index=index, accelerator=self.candidates.accelerator(index), hbm_bytes=hbm, options=())

    # Answer

    def _report(self, value: float, upper: float, waiting: int) -> None:
        progress = Progress(
            seconds=time.perf_counter() - self.start,
            evaluated=self._evaluated(),
            bound=upper,
            incumbent=value,
            waiting=waiting,
            phase="search",
            pruned=0,
        )
        self.trajectory.append(progress)
        if self.on_progress:
            self.on_progress(progress)

    def _evaluated(self) -> int:
        return self.as_it_is.evaluated + self.evaluated

    def _result(self, question: DesignQuestion) -> JointResult:
        best = self.as_it_is.best
        if self.best is not None:
            best = priced(question, self._evaluation(self.best))
        shapes, evaluated = prod(axes.num_shapes for axes in self.axes), self._evaluated()
        result = over_shapes(
            self.as_it_is, shapes, self.value, max(self.value, self.upper), evaluated, self.waiting * shapes
        )
        return replace(
            result,
            best=best,
            ranked=() if best is None else (best,),
            seconds=time.perf_counter() - self.start,
            trajectory=tuple(self.trajectory) or result.trajectory,
            interrupted=self.interrupted,
        )

    def _evaluation(self, spot: Spot) -> Evaluation:
        outcomes: list[ModelOutcome | None] = [None] * len(self.question.models)
        for member, state in zip(self.members, self.visited[spot], strict=True):
            for m, outcome in zip(member.numbers, state.outcomes, strict=True):
                assert outcome is not None
                outcomes[m] = replace(outcome, option=replace(outcome.option, model=m))
        rates = tuple(reached.sequences_per_s for reached in outcomes if reached)
        return Evaluation(point=self._point(spot), outcomes=tuple(outcomes), bounds=rates)


def _lowered_shapes(
    questions: Sequence[DesignQuestion], late: Callable[[], bool]
) -> list[tuple[LoweredModel, ...]] | None:
    """The lowered models of each shape's question; None if time ran out."""
    models = []
    for question in questions:
        if late():
            return None
        models.append(lower_models(question))
    return models


def _top(heap: Sequence[tuple[float, Spot]]) -> float:
    """The largest bound in a heap; 0 if it is empty."""
    return -heap[0][0] if heap else 0.0
