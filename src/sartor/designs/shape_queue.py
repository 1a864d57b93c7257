"""The search over pairs of shape and chip that wait for their second bound or for evaluation, the best bound first."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sartor.designs.best_first import BestFirst, RunInTime
from sartor.designs.candidates import Candidates
from sartor.designs.point import Option
from sartor.designs.question import EQUAL, DesignQuestion
from sartor.designs.tasks import PointTask, Result, Row, SecondPairs, ShapeTask, Task, together
from sartor.model.shape import TransformerShape
from sartor.units import Array

FIRST_ROUND, ROUND = 64, 512
"""Pairs that get their second bound at a time: a few first, to get an incumbent early."""
OF_ONE_TASK = 64
"""Pairs per task of the second bound: some tenths of a second."""
MOST_BLUNT = 64
"""Waiting pairs for which all rows get their second bound at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Indices of ``shape`` and ``chip`` [pairs], and upper bounds ``rates`` of each row [rows, pairs]: the first bound
    where ``blunt``, else the second."""

    shape: Array
    chip: Array
    rates: Array
    blunt: Array
    others: float
    """Upper bound of the pairs that were left out."""


@dataclass(kw_only=True)
class ShapeQueue(BestFirst):
    """Waiting points, points in flight, and the best so far. ``names`` are the candidates' indices in the whole space;
    ``ranked`` may be shared by several queues over the same pairs."""

    shapes: Sequence[TransformerShape]
    rows: Sequence[Row]
    candidates: Candidates
    names: Array
    pairs: Pairs
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
        divisor = self.candidates.least_divisor[self.pairs.chip[pairs]]
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
            hopes=self.enough() * self.candidates.least_divisor[self.pairs.chip[pairs]],
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
