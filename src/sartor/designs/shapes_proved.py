"""One proved search for shape, plan and chip: every shape of the model's size on every chip of the space.

Chips that another chip beats in cores and buffer, all else equal, are left out. On the others every shape gets the
first bound of `designs.bounds`, many pairs of shape and chip in one array pass. Pairs are then searched as in
`designs.search`: second bounds in the order of the first, few at first, then exact
evaluation in the order of the bounds. The search ends with a proof that no remaining pair can be better.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import numpy as np

from sartor.designs.best_first import BestFirst, RunInTime, Spot
from sartor.designs.bounds import splits
from sartor.designs.candidates import Candidates, DesignStatus, JointResult, Progress, Ranked, candidates_of
from sartor.designs.front import NamedSearch, plain_search
from sartor.designs.point import Option
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.search import OutOfTime, RunTasks, run_here, run_in_time
from sartor.designs.shape_bounds import ShapeAxes, ShapeVariant
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import FirstPairs, PointTask, Result, Row, SecondPairs, ShapeTask, Task, together
from sartor.hardware.accelerator import ARRAY_FIELDS
from sartor.model.shape import TransformerShape
from sartor.units import Array

FIRST_ROUND, ROUND = 64, 512
"""Pairs that get their second bound at a time: a few first, to get an incumbent early."""
OF_ONE_TASK = 64
"""Pairs per task of the second bound: some tenths of a second."""
MOST_BLUNT = 64
"""Waiting pairs for which all rows get their second bound at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Indices of ``shape`` and ``chip`` [pairs], and upper bounds ``rates`` of each row [rows, pairs]: the first bound
    where ``blunt``, else the second."""

    shape: Array
    chip: Array
    rates: Array
    blunt: Array
    others: float
    """Upper bound of the pairs that were left out."""


@dataclass(kw_only=True)
class _ShapeQueue(BestFirst):
    """Waiting points, points in flight, and the best so far. ``names`` are the candidates' indices in the whole space;
    ``ranked`` may be shared by several queues over the same pairs."""

    shapes: Sequence[TransformerShape]
    rows: Sequence[Row]
    candidates: Candidates
    names: Array
    pairs: _Pairs
    deadline: float = inf
    on_report: Callable[[str], None] = lambda phase: None
    order: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    memories: dict[int, list[int]] = field(default_factory=dict)
    """Memories to evaluate, by chip."""
    position: int = 0
    falling: Array = field(default_factory=lambda: np.zeros(0))
    firsts: int = 0
    in_progress: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Pairs with second bounds being computed, in the order of the tasks."""
    sharp: set[int] = field(default_factory=set)
    """Pairs for which every row that may beat the incumbent has its second bound."""
    is_ordered: bool = False

    def all_memories(self, pairs: Array) -> None:
        """Search these pairs with every memory except those for which a larger one costs no more."""
        self._look(pairs, {c: list(self.candidates.memories(c)) for c in range(len(self.candidates))})

    def one_memory(self, pairs: Array, memory: int) -> None:
        """Search these pairs with only this memory."""
        self._look(pairs, {c: [memory] for c in range(len(self.candidates))})

    def _look(self, pairs: Array, memories: dict[int, list[int]]) -> None:
        self.memories, self.is_ordered, self.dropped = memories, True, self.pairs.others
        for (pair, h), ranked in self.ranked.items():
            if h in memories[int(self.pairs.chip[pair])] and ranked.objective > self.value() and pair in pairs:
                self.best, self.best_spot = ranked, (pair, h)
        bounds = self._joint(pairs)
        falling = np.argsort(-bounds, kind="stable")
        hopeful = max(int((bounds > self.enough()).sum()), 1)
        first = np.unique(np.linspace(0, hopeful - 1, FIRST_ROUND).astype(np.int64))[: len(pairs)]
        later = np.delete(falling, first)
        self.order, self.firsts = pairs[np.concatenate([falling[first], later])], len(first)
        self.falling = np.concatenate([np.full(len(first), bounds.max(initial=0.0)), bounds[later]])

    # What is known

    def next_first(self) -> float:
        return float(self.falling[self.position]) if self.position < len(self.order) else 0.0

    def bound(self) -> float:
        """Upper bound on all pairs; inf before anything is known."""
        if not self.is_ordered:
            return float("inf")
        open_bounds = *self.in_flight.values(), *self.put_off.values()
        return max(self.top(), self.next_first(), self.dropped, *open_bounds, self.value())

    def waiting(self) -> int:
        """Number of points that may beat the incumbent."""
        later = (
            self.order[self.position :][self.falling[self.position :] > self.enough()]
            if self.is_ordered
            else self.order
        )
        return (
            len(self.heap) + len(self.in_flight) + sum(len(self.memories[c]) for c in self.pairs.chip[later].tolist())
        )

    def _joint(self, pairs: Array) -> Array:
        """Bounds [pairs] on the objective, with the memory that has the least divisor."""
        divisor = self.candidates.least_divisor(self.pairs.chip[pairs])
        return together(self.question, self.rows, self.pairs.rates[:, pairs]) / divisor

    # Second bounds

    def bound_next(self, run: RunInTime) -> None:
        self._sharpen(run(self._second_tasks()))

    def sharpen_best(self, run: RunInTime) -> bool:
        if tasks := self._blunt_tasks():
            self._sharpen(run(tasks))
        return bool(tasks)

    def is_blunt(self, number: int) -> bool:
        return number not in self.sharp

    def _second_tasks(self) -> list[Task]:
        """Second-bound tasks for the next pairs in the order of their first bounds."""
        size = ROUND if self.rounds else self.firsts
        pairs = self.order[self.position : self.position + size]
        self.position, self.rounds = self.position + size, self.rounds + 1
        self.in_progress = pairs[self._hopeful(pairs)]
        return self._tasks(every_row=False)

    def _blunt_tasks(self) -> list[Task]:
        """Tasks for the remaining second bounds of the best waiting pairs."""
        if self.top() <= self.enough() or self.heap[0][1] in self.sharp:
            return []
        first = dict.fromkeys(pair for _, pair, _ in heapq.nsmallest(MOST_BLUNT, self.heap) if pair not in self.sharp)
        self.in_progress, self.sharp = np.array(list(first)), self.sharp | first.keys()
        self.heap = [entry for entry in self.heap if entry[1] not in first]
        heapq.heapify(self.heap)
        return self._tasks(every_row=True)

    def _hopeful(self, pairs: Array) -> Array:
        """Mask of the pairs that may beat the incumbent; remembers the largest bound of the others."""
        bounds = self._joint(pairs)
        self.drop(bounds)
        return bounds > self.enough()

    def _tasks(self, *, every_row: bool) -> list[Task]:
        """Second-bound tasks for ``asked``, with pairs of one shape together."""
        self.in_progress = self.in_progress[np.argsort(self.pairs.shape[self.in_progress], kind="stable")]
        few = max(-(-len(self.in_progress) // OF_ONE_TASK), 1)
        return [self._task(pairs, every_row=every_row) for pairs in np.array_split(self.in_progress, few) if len(pairs)]

    def _task(self, pairs: Array, *, every_row: bool) -> SecondPairs:
        numbers, place = np.unique(self.pairs.shape[pairs], return_inverse=True)
        chips, chip = np.unique(self.pairs.chip[pairs], return_inverse=True)
        return SecondPairs(
            shapes=tuple(self.shapes[s] for s in numbers.tolist()),
            rows=tuple(self.rows),
            candidates=self.candidates.only(chips),
            shape=place.reshape(-1),
            chip=chip.reshape(-1),
            rates=self.pairs.rates[:, pairs],
            blunt=self.pairs.blunt[:, pairs],
            hopes=self.enough() * self.candidates.least_divisor(self.pairs.chip[pairs]),
            every_row=every_row,
        )

    def _sharpen(self, results: Iterable[Result]) -> None:
        """Store the second bounds of ``asked`` and queue the points that may beat the incumbent."""
        tables = [np.asarray(result) for result in results]
        if tables:
            rates, blunt = np.concatenate(tables, axis=2)
            self.pairs.rates[:, self.in_progress], self.pairs.blunt[:, self.in_progress] = rates, blunt > 0
        joint = together(self.question, self.rows, self.pairs.rates[:, self.in_progress])
        for pair, bound in zip(self.in_progress.tolist(), joint.tolist(), strict=True):
            for h in self.memories[int(self.pairs.chip[pair])]:
                self._wait(pair, h, bound / float(self.candidates.divisor[h, self.pairs.chip[pair]]))

    def _wait(self, pair: int, h: int, bound: float) -> None:
        before = self.ranked.get((pair, h))
        if before is not None and (pair, h) not in self.again:
            bound = min(bound, before.bound)
            if before.bound <= before.objective * (1 + EQUAL):
                return
        if bound > self.enough():
            heapq.heappush(self.heap, (-bound, pair, h))
        else:
            self.dropped = max(self.dropped, bound)

    # Points

    def chip(self, number: int) -> int:
        return int(self.pairs.chip[number])

    def name(self, number: int) -> int:
        return int(self.names[self.chip(number)])

    def shaped(self, number: int) -> DesignQuestion:
        return self.question.with_shape(self.shapes[self.pairs.shape[number]])

    def task(self, number: int, points: PointTask) -> ShapeTask:
        return ShapeTask(shape=self.shapes[self.pairs.shape[number]], task=points)

    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    def report(self, phase: str) -> None:
        self.on_report(phase)

    def options(self, number: int, h: int) -> Iterator[Option]:
        for (m, split), bound in zip(self.rows, self.pairs.rates[:, number].tolist(), strict=True):
            served = self.question.models[m].served
            for recompute in self.question.recomputes[: 1 if served else None] if bound > 0 else ():
                yield Option(model=m, split=split, recompute=recompute, bound=bound)


OnProgress = Callable[[Progress], None] | None

SHAPES = 32
"""Shapes per task of the first bound: a second or two."""

MORE = ("num_tensor_cores", "num_vector_cores", "global_buffer_bytes")
"""Fields for which a larger value is never slower, with all others equal."""
MOST_ALIKE = 4096
"""Most chips equal in all other fields that are compared with each other; of larger groups, all are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestShape:
    """All shapes of one model's size, and the best of them."""

    model: str
    axes: ShapeAxes
    variant: ShapeVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class JointShapes:
    """The best shape with its chip and plan. ``result`` counts the points of all shapes; ``question`` has the best
    shape."""

    shapes: tuple[BestShape, ...]
    """One entry per model, for all its phases together."""
    question: DesignQuestion
    result: JointResult
    as_it_is: JointResult
    """The result for the model's own shape on the whole space."""
    in_turn: float | None
    """Objective of the best shape on the chip that is best for the unchanged model; None if there was no time."""
    searched: int
    """Number of shapes not ruled out by bounds."""

    @property
    def gain(self) -> float:
        """The objective over that of the unchanged model with its best chip."""
        return _value(self.result) / _value(self.as_it_is)

    @property
    def gain_over_turns(self) -> float | None:
        """The objective over that of choosing first the chip, then the shape."""
        return None if self.in_turn is None else _value(self.result) / self.in_turn


def _value(result: JointResult) -> float:
    return result.best.objective if result.best else 0.0


def search_with_shapes(
    question: DesignQuestion,
    space: AcceleratorSpace,
    axes: ShapeAxes,
    *,
    search: NamedSearch = plain_search,
    run: RunTasks | None = None,
    tolerance: float = 0.0,
    deadline: float = float("inf"),
    on_progress: OnProgress = None,
) -> JointShapes | JointResult:
    """The best of all shapes of ``axes`` in place of the question's own, over the whole space, with its proof; or the
    result for the unchanged model if it fits nowhere or its search is interrupted. A model that is trained and served
    has one shape for both.

    ``search`` replaces `search_design`, ``run`` executes tasks as there; both must end by themselves at ``deadline``
    (of ``time.perf_counter``).
    """
    start = time.perf_counter()
    as_it_is = search(question, space, "")
    if as_it_is.best is None or as_it_is.interrupted:
        return as_it_is
    run = run or partial(run_here, deadline=deadline)
    tasks = partial(run_in_time, partial(run, question), deadline)
    state = _Shapes(question, axes, space, as_it_is, tasks, tolerance, deadline, start, on_progress)
    state.search()
    return JointShapes(
        shapes=(BestShape(model=question.models[0].shape.name, axes=axes, variant=axes.variants[state.best_shape]),),
        question=question.with_shape(axes.variants[state.best_shape].shape),
        result=state.result(),
        as_it_is=as_it_is,
        in_turn=state.in_turn,
        searched=1 + len({state.pairs.shape[pair] for pair, _ in state.ranked}),
    )


@dataclass
class _Shapes:
    """The state of the search over all shapes of ``axes``, and the best so far."""

    question: DesignQuestion
    axes: ShapeAxes
    space: AcceleratorSpace
    as_it_is: JointResult
    run: RunInTime
    tolerance: float
    deadline: float
    start: float
    on_progress: OnProgress
    ranked: dict[Spot, Ranked] = field(default_factory=dict)
    in_turn: float | None = None
    """Objective of the best shape on the chip and memory that are best for the unchanged model."""
    interrupted: bool = False
    trajectory: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        candidates, _ = candidates_of(self.question, self.space)
        assert self.as_it_is.best is not None
        self.first = self.as_it_is.best.evaluation.point
        self.chips = np.union1d(undominated(self.question, candidates), [self.first.index])
        self.candidates = candidates.only(self.chips)
        self.shapes = tuple(variant.shape for variant in self.axes.variants)
        self.rows = _rows_of(self.question, self.shapes)
        self.pairs = _pairs_of([], len(self.rows))
        self.queue = self._queue()

    def _queue(self, on_report: Callable[[str], None] = lambda phase: None) -> _ShapeQueue:
        """A queue without anything evaluated yet."""
        return _ShapeQueue(
            question=self.question,
            shapes=self.shapes,
            rows=self.rows,
            candidates=self.candidates,
            names=self.chips,
            pairs=self.pairs,
            ranked=self.ranked,
            tolerance=self.tolerance,
            best=self.as_it_is.best,
            deadline=self.deadline,
            on_report=on_report,
        )

    @property
    def best_shape(self) -> int:
        """The index of the best shape; 0: the unchanged model."""
        spot = self.queue.best_spot
        return 0 if spot is None else int(self.pairs.shape[spot[0]])

    def search(self) -> None:
        """Search all pairs, then those of the chip that is best for the unchanged model."""
        try:
            self.pairs = self._first_bounds()
            self.queue = self._queue(self._report)
            self.queue.all_memories(np.arange(len(self.pairs.shape)))
            self._report("bounds")
            self.queue.until_proved(self.run)
            self.in_turn = self._in_turn()
        except OutOfTime:
            pass
        except KeyboardInterrupt:
            self.interrupted = True

    def _first_bounds(self) -> _Pairs:
        """Pairs of the other shapes that the first bound does not rule out."""
        hopes = self.queue.enough() * self.candidates.least_divisor()
        tasks: list[Task] = [
            FirstPairs(
                start=start,
                shapes=self.shapes[start : start + SHAPES],
                rows=self.rows,
                candidates=self.candidates,
                hopes=hopes,
            )
            for start in range(1, len(self.shapes), SHAPES)
        ]
        return _pairs_of([np.asarray(result) for result in self.run(tasks)], len(self.rows))

    def _in_turn(self) -> float:
        """Objective of the best shape on the chip and memory that are best for the unchanged model."""
        best = self.queue.best
        assert best is not None
        chip = self.first.chip
        if best.evaluation.point.chip == chip:
            return best.objective
        place = int(np.searchsorted(self.chips, self.first.index))
        memory = int(np.argmin(abs(self.candidates.hbm_bytes[:, place] - self.first.hbm_bytes)))
        queue = self._queue()
        queue.one_memory(np.flatnonzero(self.pairs.chip == place), memory)
        queue.until_proved(self.run)
        if queue.value() > self.queue.value():  # both are within the tolerance of the best
            self.queue.best, self.queue.best_spot = queue.best, queue.best_spot
        return queue.value()

    # Answer

    def _report(self, phase: str) -> None:
        evaluated = self.as_it_is.evaluated + len(self.ranked)
        self.trajectory.append(
            Progress(
                seconds=time.perf_counter() - self.start,
                evaluated=evaluated,
                bound=self._upper(),
                incumbent=self.queue.value(),
                waiting=self.queue.waiting(),
                phase=phase,
                pruned=max(self._points() - evaluated - self.queue.waiting(), 0),
            )
        )
        if self.on_progress:
            self.on_progress(self.trajectory[-1])

    def _points(self) -> int:
        """Number of points of all shapes within budgets."""
        return (self.as_it_is.num_points - self.as_it_is.left_out) * self.axes.num_shapes

    def _upper(self) -> float:
        """Upper bound over all shapes."""
        return max(self.queue.bound(), self.as_it_is.upper_bound, self.queue.value())

    def result(self) -> JointResult:
        """The result of the search over all shapes."""
        upper, unchanged, best = self._upper(), self.as_it_is, self.best_shape
        evaluated = unchanged.evaluated + len(self.ranked)
        waiting = self._points() if np.isinf(upper) else unchanged.waiting + self.queue.waiting()
        mine = (ranked for (pair, _), ranked in self.ranked.items() if self.pairs.shape[pair] == best)
        return replace(
            over_shapes(unchanged, self.axes.num_shapes, self.queue.value(), upper, evaluated, waiting),
            best=self.queue.best,
            ranked=tuple(sorted(mine, key=lambda ranked: -ranked.objective)) if best else unchanged.ranked,
            seconds=time.perf_counter() - self.start,
            trajectory=tuple(self.trajectory) or unchanged.trajectory,
            interrupted=self.interrupted,
        )


def _rows_of(question: DesignQuestion, shapes: Sequence[TransformerShape]) -> tuple[Row, ...]:
    """The rows that occur for any of the shapes."""
    rows = dict[Row, None]()
    for shape in shapes:
        variant = question.with_shape(shape)
        rows |= dict.fromkeys((m, split) for m, model in enumerate(variant.models) for split in splits(variant, model))
    return tuple(sorted(rows, key=lambda row: row[0]))


def _pairs_of(first: Sequence[Array], rows: int) -> _Pairs:
    """Pairs from the results of first-bound tasks; without results, none."""
    columns = np.concatenate([np.zeros((2 + rows, 0)), *(table[:, 1:] for table in first)], axis=1)
    shape, chip = columns[:2].astype(np.int64)
    others = max((float(table[0, 0]) for table in first), default=0.0)
    return _Pairs(
        shape=shape, chip=chip, rates=columns[2:], blunt=np.ones((rows, len(shape)), dtype=bool), others=others
    )


def over_shapes(
    unchanged: JointResult, shapes: int, value: float, upper: float, evaluated: int, waiting: int
) -> JointResult:
    """The result of the unchanged model as one over ``shapes`` times its points: what is proved, and the counts.
    ``waiting``: at most so many points were neither evaluated nor ruled out."""
    proved, points = upper <= value * (1 + EQUAL), (unchanged.num_points - unchanged.left_out) * shapes
    return replace(
        unchanged,
        status=DesignStatus.OPTIMAL if proved else DesignStatus.FEASIBLE,
        upper_bound=value if proved else upper,
        gap=0.0 if proved else (upper - value) / value,
        space_size=unchanged.space_size * shapes,
        num_points=unchanged.num_points * shapes,
        left_out=unchanged.left_out * shapes,
        evaluated=evaluated,
        pruned=max(points - evaluated - waiting, 0),
    )


def undominated(question: DesignQuestion, candidates: Candidates) -> Array:
    """Candidates that no other beats in ``MORE`` and memory with at most the same divisor of the objective and all else
    equal. All candidates if energy is limited, since more cores draw more power."""
    indices = np.arange(len(candidates))
    if question.budgets.energy_j_per_token is not None:
        return indices
    columns = {name: candidates.column(name) for name in ARRAY_FIELDS}
    alike = np.stack([candidates.group, *(column for name, column in columns.items() if name not in MORE)], axis=1)
    kind = np.unique(alike, axis=0, return_inverse=True)[1].reshape(-1)
    merits = np.stack([*(columns[name] for name in MORE), *-candidates.divisor, *candidates.hbm_bytes], axis=1)
    order = np.argsort(kind, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)
    return np.sort(np.concatenate([indices_alike[_maximal(merits[indices_alike])] for indices_alike in groups]))


def _maximal(values: Array) -> Array:
    """Rows [rows, columns] that no other row equals or exceeds in every column; of equal rows, the first."""
    if len(values) > MOST_ALIKE:
        return np.ones(len(values), dtype=bool)
    no_less = np.logical_and.reduce([column[:, None] >= column[None] for column in values.T])
    first = np.triu(np.ones(no_less.shape, dtype=bool), 1)
    return np.asarray(~(no_less & (first | ~no_less.T)).any(axis=0))
