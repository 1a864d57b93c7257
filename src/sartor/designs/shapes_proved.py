"""Shape, plan and chip in one proved search: every shape of the model's size on every chip of the space.

A chip that another of the space beats in cores and buffer, all else alike, needs no look. On the others every shape has
both bounds of `designs.bounds`, with all pairs of shape and chip in one array pass. Then shapes are searched by falling
bound, each on the chips that its bound leaves, with what was reached before as the value to beat. What ends the search
is the proof: no pair left can be better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sartor.designs.bounds import LoweredModel
from sartor.designs.candidates import Candidates, candidates_of
from sartor.designs.front import NamedSearch, plain_search
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.result import DesignStatus, JointResult, Progress
from sartor.designs.shape_axes import ShapeAxes, ShapeVariant
from sartor.designs.shape_bounds import ShapePairs, lowered_shapes
from sartor.designs.space import AcceleratorSpace
from sartor.hardware.accelerator import ARRAY_FIELDS
from sartor.interrupts import point
from sartor.units import Array

Told = Callable[[Progress], None] | None

MORE = ("num_tensor_cores", "num_vector_cores", "global_buffer_bytes")
"""Fields of which more is never slower, all others alike."""
MOST_ALIKE = 4096
"""Chips alike in all other fields that are compared with each other; of more, all are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestShape:
    """The shapes of one model's size, and the best of them."""

    model: str
    axes: ShapeAxes
    variant: ShapeVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class JointShapes:
    """The best shape with its chip and plan. ``result`` counts the points of all shapes; ``question`` is that of the
    best one."""

    shapes: tuple[BestShape, ...]
    """One of every model, with one for all its phases."""
    question: DesignQuestion
    result: JointResult
    as_it_is: JointResult
    """The model's own shape on the whole space."""
    in_turn: float | None
    """Objective of the best shape for the chip that is best for the model as it is; None: there was no time for it."""
    searched: int
    """Shapes that their bounds did not rule out."""

    @property
    def gain(self) -> float:
        """The objective against that of the model as it is with its best chip."""
        return _value(self.result) / _value(self.as_it_is)

    @property
    def gain_over_turns(self) -> float | None:
        """The objective against that of the chip first and then the shape."""
        return None if self.in_turn is None else _value(self.result) / self.in_turn


def _value(result: JointResult) -> float:
    return result.best.objective if result.best else 0.0


def search_with_shapes(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: ShapeAxes,
    *,
    search: NamedSearch = plain_search,
    tolerance: float = 0.0,
    deadline: float = float("inf"),
    told: Told = None,
) -> JointShapes | JointResult:
    """The best of all shapes of ``axes`` in place of the question's own, over the whole space, with its proof; where
    the model as it is fits nowhere or its search is interrupted, what that found. A model that is trained and served
    has one shape for both.

    ``search`` replaces `search_design` and ends by itself at the ``deadline`` (of ``time.perf_counter``).
    """
    start = time.perf_counter()
    as_it_is = search(question, space, "")
    if as_it_is.best is None or as_it_is.interrupted:
        return as_it_is
    asked = [with_shape(question, variant) for variant in axes.variants]
    state = _Shapes(asked, axes, space, as_it_is, tolerance, deadline, start, told)
    state.run(search)
    in_turn = None if state.interrupted else _in_turn(state, search)
    return JointShapes(
        shapes=(BestShape(model=question.models[0].shape.name, axes=axes, variant=axes.variants[state.best]),),
        question=asked[state.best],
        result=state.result(),
        as_it_is=as_it_is,
        in_turn=in_turn,
        searched=len(state.found),
    )


def with_shape(question: DesignQuestion, variant: ShapeVariant) -> DesignQuestion:
    """The question with another shape."""
    models = (replace(model, shape=variant.shape, expert_widths=()) for model in question.models)
    return replace(question, models=tuple(models))


def _in_turn(state: _Shapes, search: NamedSearch) -> float | None:
    """What the best shape reaches on the chip and memory that are best for the model as it is."""
    if time.perf_counter() > state.deadline:
        return None
    best, first = state.found[state.best].best, state.as_it_is.best
    assert best is not None
    assert first is not None
    chip, winner = first.evaluation.point, best.evaluation.point
    if winner.chip == chip.chip:
        return best.objective
    alone = state.only(np.array([chip.index]), (chip.hbm_bytes,))
    there = replace(state, space=alone, told=None, found={0: state.as_it_is}, best=0, trajectory=[])
    there.run(search)
    if there.value() > state.value():  # both are within the tolerance of the best
        state.found[there.best], state.best = there.found[there.best], there.best
    return None if time.perf_counter() > state.deadline or there.interrupted else there.value()


@dataclass
class _Shapes:
    """What is known of each shape of ``axes`` on a space, and the best so far."""

    asked: Sequence[DesignQuestion]
    axes: ShapeAxes
    space: AcceleratorSpace
    as_it_is: JointResult
    tolerance: float
    deadline: float
    start: float
    told: Told
    models: list[tuple[LoweredModel, ...]] | None = None
    found: dict[int, JointResult] = field(default_factory=dict)
    """Shapes that were searched; the others have bounds only."""
    best: int = 0
    interrupted: bool = False
    trajectory: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found = self.found or {0: self.as_it_is}
        self.candidates, _ = candidates_of(self.asked[0], self.space)
        self.chips = undominated(self.asked[0], self.candidates)
        self.bounds = np.full((len(self.asked), len(self.chips)), np.inf)

    def value(self) -> float:
        return _value(self.found[self.best])

    def enough(self) -> float:
        """A bound no larger than this needs no look."""
        return self.value() * (1 + max(self.tolerance, EQUAL))

    def upper(self) -> float:
        """What no shape exceeds."""
        open_ = [most for s, most in enumerate(self.bounds.max(axis=1).tolist()) if s not in self.found]
        return float(max(self.value(), *open_, *(result.upper_bound for result in self.found.values())))

    def run(self, search: NamedSearch) -> None:
        """Bound all shapes, then search those that may be best."""
        try:
            if self._bound():
                self._report("bounds")
                self._search(search)
        except KeyboardInterrupt:
            self.interrupted = True

    def _bound(self) -> bool:
        """Both bounds of every shape on every chip; False where time ran out."""
        self.models = self.models or lowered_shapes(self.asked, self._late)
        if self.models is None:
            return False
        divisor = self.candidates.least_divisor[self.chips]
        pairs = ShapePairs(
            asked=self.asked, models=self.models, candidates=self.candidates, chips=self.chips, late=self._late
        )
        found = pairs.bounds(self.enough() * divisor)
        if found is None:
            return False
        self.bounds = found / divisor
        return True

    def _late(self) -> bool:
        point()
        return time.perf_counter() > self.deadline

    def _search(self, search: NamedSearch) -> None:
        """Shapes by falling bound, as long as that leaves hope and time."""
        most = self.bounds.max(axis=1)
        for s in np.argsort(-most, kind="stable").tolist():
            if s in self.found:
                continue
            if most[s] <= self.enough() or self._late():
                return
            few = self.only(self.chips[self.bounds[s] > self.enough()])
            name = f"shape {self.axes.variants[s].name}"
            self.found[s] = search(self.asked[s], few, name, floor=self.value())
            if _value(self.found[s]) > self.value():
                self.best = s
            self._report("search")
            if self.found[s].interrupted:
                self.interrupted = True
                return

    def only(self, index: Array, hbm_bytes: tuple[float, ...] = ()) -> AcceleratorSpace:
        """The space of some candidates."""
        groups = tuple(accelerator for _, accelerator in self.candidates.of_groups(index))
        return replace(self.space, groups=groups, hbm_bytes=hbm_bytes or self.space.hbm_bytes)

    def _report(self, phase: str) -> None:
        evaluated, most = self._evaluated(), self.bounds.max(axis=1)
        waiting = int((most > self.enough()).sum()) - len(self.found)
        now = time.perf_counter() - self.start
        self.trajectory.append(
            Progress(
                seconds=now,
                evaluated=evaluated,
                bound=self.upper(),
                incumbent=self.value(),
                waiting=max(waiting, 0),
                phase=phase,
                pruned=max(self._points() - evaluated, 0),
            )
        )
        if self.told:
            self.told(self.trajectory[-1])

    def _evaluated(self) -> int:
        return sum(result.evaluated for result in self.found.values())

    def _points(self) -> int:
        """Of all shapes, within budgets."""
        return (self.as_it_is.num_points - self.as_it_is.left_out) * self.axes.num_shapes

    def result(self) -> JointResult:
        """What is proved of all shapes together."""
        value, upper, own, shapes = self.value(), self.upper(), self.as_it_is, self.axes.num_shapes
        proved = upper <= value * (1 + EQUAL)
        open_ = [s for s, most in enumerate(self.bounds.max(axis=1)) if s not in self.found and most > self.enough()]
        waiting = sum(result.waiting for result in self.found.values())
        waiting += len(open_) * (own.num_points - own.left_out)
        return replace(
            self.found[self.best],
            status=DesignStatus.OPTIMAL if proved else DesignStatus.FEASIBLE,
            upper_bound=value if proved else upper,
            gap=0.0 if proved else (upper - value) / value,
            space_size=own.space_size * shapes,
            num_candidates=own.num_candidates,
            num_points=own.num_points * shapes,
            left_out=own.left_out * shapes,
            evaluated=self._evaluated(),
            pruned=self._points() - self._evaluated() - waiting,
            seconds=time.perf_counter() - self.start,
            trajectory=tuple(self.trajectory) or own.trajectory,
            interrupted=self.interrupted,
        )


def undominated(question: DesignQuestion, candidates: Candidates) -> Array:
    """Candidates that none beats in ``MORE`` and memory at no more of what the objective is per, all else alike. All of
    them where a plan's energy is limited: more cores draw more."""
    every = np.arange(len(candidates))
    if question.budgets.energy_j_per_token is not None:
        return every
    columns = {name: np.zeros(len(every)) for name in ARRAY_FIELDS}
    for g, group in enumerate(candidates.groups):
        where = candidates.group == g
        for name, column in columns.items():
            values = np.broadcast_to(getattr(group, name), group.shape).reshape(-1)
            column[where] = values[candidates.place[where]]
    alike = np.stack([candidates.group, *(column for name, column in columns.items() if name not in MORE)], axis=1)
    kind = np.unique(alike, axis=0, return_inverse=True)[1].reshape(-1)
    more = np.stack([*(columns[name] for name in MORE), *-candidates.divisor, *candidates.hbm_bytes], axis=1)
    order = np.argsort(kind, kind="stable")
    each = np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)
    return np.sort(np.concatenate([some[_maximal(more[some])] for some in each]))


def _maximal(values: Array) -> Array:
    """Rows [rows, columns] that no other equals or exceeds in every column; of equal ones the first."""
    if len(values) > MOST_ALIKE:
        return np.ones(len(values), dtype=bool)
    no_less = np.logical_and.reduce([column[:, None] >= column[None] for column in values.T])
    first = np.triu(np.ones(no_less.shape, dtype=bool), 1)
    return np.asarray(~(no_less & (first | ~no_less.T)).any(axis=0))
