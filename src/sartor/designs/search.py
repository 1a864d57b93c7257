"""Joint search for accelerator and plan by branch and bound: the best bound first, from one frozen state to the next.

Three levels, each more costly and tighter: work over cores, for every candidate at once; bounds on schedules and
placements, for chunks of candidates in the order of the first bound; and exact evaluation of the point with the largest
bound, until no bound is larger than the best value found, which is then proved.

The search submits tasks (`designs.tasks`) in rounds, or a few tasks ahead of the results. New tasks depend only on
earlier results in the order of submission, never on which worker computed them or when. So every executor gets the same
answer by the same steps, and a search with stored results can be replayed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from sartor.cost.chip.ownership import energy_floor_j
from sartor.designs.best_first import BestFirst, RunInTime, Spot
from sartor.designs.bounds import within_energy, work_rates
from sartor.designs.candidates import (
    Candidates,
    DesignStatus,
    JointResult,
    Keep,
    Progress,
    Ranked,
    afresh,
    best_of,
    candidates_of,
    priced,
)
from sartor.designs.infeasible import LeastEnergy, least_energy, memory_constraint, tightest_constraint
from sartor.designs.point import Option
from sartor.designs.question import EQUAL, DesignModel, DesignQuestion, Objective
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import EvaluatedPoints, PlanTask, PointTask, Result, Task, WorkTask, lowered, run_task
from sartor.interrupts import point
from sartor.schedules.makespan import timing_fields
from sartor.units import Array

RunTasks = Callable[[DesignQuestion, Sequence[Task]], Iterable[Result]]
"""Function that runs tasks and yields results in the order of the tasks. Tasks may be appended to the sequence after
each result, so that workers do not wait for the slowest task of a round."""


def search_design(
    question: DesignQuestion,
    space: AcceleratorSpace,
    *,
    time_limit_s: float = float("inf"),
    tolerance: float = 0.0,
    run: RunTasks | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    already_s: float = 0.0,
    floor: float = 0.0,
    keep: Keep = afresh,
) -> JointResult:
    """The best point of ``space`` for ``question`` with its proof, or the best found and its gap at the limit.

    ``tolerance`` ends the search at that gap. ``floor`` is an objective reached elsewhere: if nothing exceeds it, the
    result has no best point, only an upper bound. ``run`` executes the tasks (see the executors of `engine.run`);
    default: in this process, one after another. ``keep`` stores the chips looked at ahead of the bounds. ``already_s``
    is time spent before, added to the seconds. Ctrl-C ends the search and returns the result so far. Raises
    ``InputError`` for an invalid question.
    """
    deadline = time.perf_counter() + time_limit_s
    ask = partial(run or partial(run_here, deadline=deadline), question)
    state = SearchState(
        question=question,
        space=space,
        tolerance=tolerance,
        on_progress=on_progress,
        start=time.perf_counter() - already_s,
        time_limit_s=time_limit_s,
        floor=floor,
        store=keep,
    )
    interrupted = False
    try:
        if not state.infeasible:
            run_tasks = partial(run_in_time, ask, deadline)
            state.bound_boxes(run_tasks)
            state.scout(run_tasks, partial(in_time, deadline))
            state.until_proved(run_tasks)
    except OutOfTime:
        interrupted = time_limit_s >= ANSWERED_S and not state.answered()
    except KeyboardInterrupt:
        interrupted = True
    return _result(state, interrupted, deadline)


ANSWERED_S = 1.0
"""Time limit from which a search ends with a chip, though it takes longer: on a busy machine the bounds alone may."""


class OutOfTime(Exception):
    """The time limit was reached."""


def run_here(question: DesignQuestion, tasks: Sequence[Task], *, deadline: float) -> Iterator[Result]:
    """Run every task in this process, until the deadline."""
    return (run_task(question, task, partial(in_time, deadline)) for task in tasks)


def in_time(deadline: float) -> None:
    """Raise `OutOfTime` after the deadline, and ``KeyboardInterrupt`` after Ctrl-C."""
    point()
    if time.perf_counter() > deadline:
        raise OutOfTime


def run_in_time(
    ask: Callable[[Sequence[Task]], Iterable[Result]], deadline: float, tasks: Sequence[Task]
) -> Iterator[Result]:
    """The results of the tasks in their order, until the deadline."""
    in_time(deadline)
    for result in ask(tasks) if tasks else ():
        yield result
        in_time(deadline)


def _result(state: SearchState, interrupted: bool, deadline: float) -> JointResult:
    question, space = state.question, state.space
    num_points = space.num_kept * max(len(space.hbm_bytes), 1)
    left_out = num_points - state.num_points
    common = {
        "space_size": num_points * question.num_ways,
        "num_candidates": space.num_kept,
        "num_points": num_points,
        "left_out": left_out,
        "seconds": time.perf_counter() - state.start,
        "assumptions": space.assumptions,
        "interrupted": interrupted,
        "trajectory": tuple(state.trajectory),
    }
    if state.infeasible:
        nothing = {"best": None, "upper_bound": 0.0, "gap": 0.0, "evaluated": 0, "pruned": num_points - left_out}
        return JointResult(status=DesignStatus.INFEASIBLE, tightest=state.infeasible, **nothing, **common)  # type: ignore[arg-type]
    ranked = {**state.ahead, **state.ranked}
    best = best_of((r.objective, r.area_mm2, r.evaluation.point.index, r) for r in ranked.values())
    best = best if best is not None and best.objective > state.floor else None
    upper, value = state.bound(), best.objective if best else state.value()
    if not value and not upper:
        nothing = {"best": None, "upper_bound": 0.0, "gap": 0.0, "evaluated": len(state.ranked)}
        nothing["pruned"] = num_points - left_out - len(state.ranked)
        memory, quickest_s = float(state.candidates.hbm_bytes.max()), partial(_quickest_s, question, space, deadline)
        energy = partial(_least_energy, question, state.candidates, deadline)
        why = tightest_constraint(question, lowered(question), memory, quickest_s, energy)
        return JointResult(status=DesignStatus.INFEASIBLE, tightest=why, **nothing, **common)  # type: ignore[arg-type]
    gap = (upper - value) / value if value else float("inf")
    proved = upper <= value * (1 + EQUAL)
    return JointResult(
        status=DesignStatus.OPTIMAL if proved else DesignStatus.FEASIBLE if value else DesignStatus.UNKNOWN,
        best=best,
        upper_bound=value if proved else upper,
        gap=0.0 if proved else gap,
        evaluated=len(ranked),
        pruned=min(state.pruned(), num_points - left_out - len(ranked)),
        ranked=tuple(sorted(ranked.values(), key=lambda entry: -entry.objective)),
        **common,  # type: ignore[arg-type]
    )


def _least_energy(question: DesignQuestion, candidates: Candidates, deadline: float) -> LeastEnergy:
    """The least energy of any plan, or nothing if time or patience runs out."""
    try:
        return least_energy(question, candidates, partial(in_time, deadline))
    except (OutOfTime, KeyboardInterrupt):
        return LeastEnergy(reached_j=inf, bound_j=0.0)


def _quickest_s(
    question: DesignQuestion, space: AcceleratorSpace, deadline: float, model: DesignModel
) -> tuple[float, bool]:
    """Seconds of a served model's fastest pass on any chip, and whether they are proved. One copy with its smallest
    batch suffices, since a larger one is never faster; copies that share experts are searched together."""
    quickest_s, proved = inf, True
    quick_model = replace(model, latency_s=None, batch_sizes=(min(model.batch_sizes),))
    for width, experts in product(sorted(model.widths, reverse=True), model.expert_widths):
        if width * experts > question.num_devices:
            continue
        variant = replace(
            question,
            models=(replace(quick_model, widths=(width,), expert_widths=(experts,)),),
            num_devices=width * experts,
            objective=Objective.THROUGHPUT,
            budgets=replace(question.budgets, energy_j_per_token=None),
        )
        floor = experts * quick_model.batch_sizes[0] / quickest_s
        result = search_design(variant, space, time_limit_s=max(deadline - time.perf_counter(), 0.0), floor=floor)
        if result.best is not None and (outcome := result.best.evaluation.outcomes[0]):
            quickest_s = min(quickest_s, outcome.step_s)
        proved &= result.status.proved
        if result.interrupted:
            return quickest_s, False
    return quickest_s, proved


FIRST_CHUNK, CHUNK = 96, 1536
"""Candidates bounded at a time: a few first, to get an incumbent early."""
WORK_CHUNK = 8192
"""Candidates per task of the first bound: some tenths of a second."""
FINE = 1 << 20
"""Candidates from which boxes are fine and get second bounds, before the bounds of their candidates."""
SHARPENED = 4096
"""Boxes that get a second bound at a time."""
FIRST_BOXES = 8
"""Boxes of candidates that are opened first."""
AHEAD = "ahead"
"""Key under which a study keeps a chip that was evaluated ahead of the bounds, with its number."""
SCOUTS = 3
"""Chips of these boxes that are evaluated at once, for a first incumbent."""
LOOSE = 0.7
"""Splits with a first bound below this share of the best split's get their second bound just before evaluation."""
MOST_BLUNT = 512
"""Most candidates per round for which such postponed splits are bounded."""
MOST_CHUNKS = 8
"""Most chunks per round: one at first and more later, so that little work is wasted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Candidates to be bounded together: ``rates`` [options, memories, candidates] by the first bound, and tasks for
    those that may still beat the incumbent, each with the rows and columns that it fills."""

    end: int
    index: Array
    rates: Array
    tasks: tuple[PlanTask, ...]
    fills: tuple[tuple[slice, Array], ...]


class _Sharper(NamedTuple):
    """The task of a postponed second bound, and the options that it bounds."""

    rows: slice
    task: PlanTask


@dataclass(kw_only=True)
class SearchState(BestFirst):
    """The state of the search over chips. The bounds themselves come from tasks."""

    space: AcceleratorSpace
    on_progress: Callable[[Progress], None] | None
    start: float
    time_limit_s: float
    store: Keep = afresh
    rates: dict[int, Array] = field(default_factory=dict)
    """Second bounds [options, memories] of candidates with waiting points."""
    blunt: dict[int, Array] = field(default_factory=dict)
    """Mask [options] of such a candidate's options that still have their first bound."""
    bounded: int = 0
    ahead: dict[Spot, Ranked] = field(default_factory=dict)
    """Points evaluated ahead of the bounds."""
    scouted: Ranked | None = None
    """A point to beat, while nothing better is known."""
    trajectory: list[Progress] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.candidates, self.infeasible = candidates_of(self.question, self.space)
        self.num_points = int(np.count_nonzero(self.candidates.hbm_bytes))
        self.now = time.perf_counter()
        self.loose = np.zeros((len(self.question.models), len(self.candidates)))
        self.loose_joint = np.zeros(len(self.candidates))
        self.falling = self.falling_boxes = np.zeros(0)
        self.order = np.zeros(0, dtype=np.int64)
        self.boxes: list[Array] = []
        self.closed = self.opened = np.zeros(0, dtype=np.int64)
        if not self.infeasible:
            self.memory = float(self.candidates.hbm_bytes.max())
            self.every_option = tuple(_options(self.question))

    # What is known

    def next_first(self) -> float:
        return max(_first(self.falling[self.bounded :]), _first(self.falling_boxes))

    def bound(self) -> float:
        """Upper bound on the objective of all points; inf before anything is known."""
        if not self.boxes:
            return float("inf")
        return max(
            self.top(), self.next_first(), self.dropped, self.value(), *self.in_flight.values(), *self.put_off.values()
        )

    def hopeless(self) -> bool:
        """Whether some model fits in no memory on any accelerator; checked once, if nothing in the first chunk fits."""
        if self.rounds != 1 or self.heap or self.floor or self.question.terms is not None:
            return False
        self.infeasible = memory_constraint(self.question, lowered(self.question), self.memory)
        return bool(self.infeasible)

    def pruned(self) -> int:
        """Number of points ruled out by bounds: not evaluated, not waiting, and not still to be bounded."""
        if not self.boxes:
            return 0
        memories = len(self.candidates.hbm_bytes)
        looked_at = len(self.ranked) + len(self.heap) + len(self.in_flight) - len(self.again)
        return max(self.num_points - looked_at - self._later(self.enough()) * memories, 0)

    def _later(self, enough: float) -> int:
        """Candidates not bounded yet whose first bound, or that of their box, exceeds ``enough``."""
        closed = int(self.box_sizes[self.closed][self.falling_boxes > enough].sum())
        return closed + int(np.count_nonzero(self.falling[self.bounded :] > enough))

    # The first bound

    def bound_boxes(self, run: RunInTime) -> None:
        """Order the boxes by the first bounds of chips that are nowhere worse than any in them."""
        fine = len(self.candidates) > FINE
        boxes, self.box_chips = self.candidates.boxes(fine=fine)
        best = tuple(self.box_chips.of_groups(np.arange(len(boxes))))
        (loose,) = run([WorkTask(start=-1, count=len(boxes), candidates=best, hbm_bytes=self.memory)])
        self.box_joint = np.asarray(self.question.together(np.asarray(loose))) / self.box_chips.least_divisor()
        self.box_sizes = np.array([len(box) for box in boxes])
        self.box_blunt = np.full(len(boxes), fine and self.question.budgets.energy_j_per_token is None)
        self.closed = _order(self.box_joint, FIRST_BOXES)
        self.falling_boxes = _most_of_rest(self.box_joint[self.closed])
        self.boxes = boxes
        self.report("bounds")

    def _sharpen_boxes(self, run: RunInTime) -> None:
        """Second bounds of the closed boxes with the best first ones, by their chips that are nowhere worse."""
        due = self.closed[self.box_blunt[self.closed]][:SHARPENED]
        step = len(self.question.recomputes)
        tasks = [self._plan_task(row, due, self.box_chips) for row in range(0, len(self.every_option), step)]
        rates = np.concatenate([np.asarray(result) for result in run(tasks)])
        joint = np.asarray(self.question.together(self._best(rates))) / self.box_chips.divisor[:, due]
        self.box_joint[due] = np.minimum(self.box_joint[due], joint.max(axis=0))
        self.box_blunt[due] = False
        self.closed = self.closed[np.lexsort((self.closed, -self.box_joint[self.closed]))]
        self.falling_boxes = self.box_joint[self.closed]
        self.report("bounds")

    def answered(self) -> bool:
        """Whether there is an incumbent, found now if there was none; False if Ctrl-C ended that."""
        run = partial(run_here, self.question, deadline=inf)
        try:
            if not (self.infeasible or self.value()):
                if not self.boxes:
                    self.bound_boxes(run)
                self.scout(run, point, only_one=True)
        except KeyboardInterrupt:
            return False
        return True

    def scout(self, run: RunInTime, check: Callable[[], None], *, only_one: bool = False) -> None:
        """A first incumbent of a large space (of any, if ``only_one`` is wanted): the best of a few boxes by its first
        bound, each model on the split with the largest second bound. It is a value to beat, whose point is evaluated
        again where it counts."""
        if len(self.candidates) <= FIRST_CHUNK and not only_one:
            return
        if not len(self.opened):
            self._open_next(run)
        boxes = [self.boxes[b] for b in self.opened]
        leaders = sorted((int(box[self.loose_joint[box].argmax()]) for box in boxes), key=self._rank)
        for i in leaders[: 1 if only_one else SCOUTS]:
            h = int(self.candidates.hbm_bytes[:, i].argmax())
            ranked = self.ahead[i, h] = self.store(f"{AHEAD} {i}", partial(self._looked_at, i, h, check))
            if ranked.objective > self.value():
                self.scouted = ranked
                self.floor = ranked.objective * (1 - 2 * EQUAL)  # so that it is found again
            self.report("bounds")

    def _looked_at(self, i: int, h: int, check: Callable[[], None]) -> Ranked:
        """A candidate with each model by its likely option."""
        likely = [self._likely(m, i, check) for m in range(len(self.question.models))]
        point = replace(self._point(i, h, tuple(likely)), floor=())
        result = run_task(self.question, PointTask(points=(point,)), check)
        assert isinstance(result, EvaluatedPoints)
        return priced(self.question, result.evaluations[0])

    def _rank(self, number: int) -> tuple[float, int]:
        return -float(self.loose_joint[number]), number

    def _likely(self, m: int, i: int, check: Callable[[], None]) -> Option:
        """The option of a model with the largest second bound on a candidate with its largest memory."""
        chip, h = self.candidates.accelerator(i), int(self.candidates.hbm_bytes[:, i].argmax())
        first = {
            row: float(work_rates(self.question, lowered(self.question)[m].parts[option.split], chip, self.memory))
            for row, option in enumerate(self.every_option[:: len(self.question.recomputes)])
            if option.model == m
        }
        best = replace(next(o for o in self.every_option if o.model == m), bound=0.0)
        for row in sorted(first, key=lambda row: -first[row]):
            if best.bound >= first[row]:
                break
            start = row * len(self.question.recomputes)
            rates = np.asarray(run_task(self.question, self._plan_task(start, np.array([i])), check))[:, h, 0]
            if rates.max() > best.bound:
                best = replace(self.every_option[start + int(rates.argmax())], bound=float(rates.max()))
        return best

    def _open_next(self, run: RunInTime) -> None:
        """First bounds of the candidates in the next boxes, which join those to be bounded again."""
        sizes = np.cumsum(self.box_sizes[self.closed])
        count = int(np.searchsorted(sizes, WORK_CHUNK * MOST_CHUNKS)) + 1 if len(self.opened) else FIRST_BOXES
        boxes = self.closed[:count]
        if len(self.opened) and (blunt := self.box_blunt[boxes]).any():
            boxes = boxes[: int(blunt.argmax())]
        index = np.concatenate([self.boxes[b] for b in boxes])
        start, tasks = len(self.order), []
        for positions in np.split(index, range(WORK_CHUNK, len(index), WORK_CHUNK)):
            groups = tuple(self.candidates.of_groups(positions))
            tasks.append(WorkTask(start=start, count=len(positions), candidates=groups, hbm_bytes=self.memory))
            start += len(positions)
        self.loose[:, index] = np.concatenate([np.asarray(result) for result in run(tasks)], axis=1)
        joint = np.asarray(self.question.together(self.loose[:, index]))
        of_boxes = np.repeat(self.box_joint[boxes], self.box_sizes[boxes])
        self.loose_joint[index] = np.minimum(joint / self.candidates.least_divisor(index), of_boxes)
        self.opened, self.closed = np.concatenate([self.opened, boxes]), self.closed[len(boxes) :]
        self.falling_boxes = self.falling_boxes[len(boxes) :]
        rest = np.sort(np.concatenate([self.order[self.bounded :], index]))
        rest = rest[_order(self.loose_joint[rest], 0 if self.bounded else FIRST_CHUNK)]
        self.order = np.concatenate([self.order[: self.bounded], rest])
        self.falling = _most_of_rest(self.loose_joint[self.order])
        self.report("bounds")

    # The second bound

    def bound_next(self, run: RunInTime) -> None:
        waits = self.bounded < len(self.order)
        if self.next_first() > _first(self.falling[self.bounded :]) and (self.rounds or not waits):
            (self._sharpen_boxes if self.box_blunt[self.closed[0]] else self._open_next)(run)
        else:
            chunks = self._next_chunks()
            self._keep(chunks, run([task for chunk in chunks for task in chunk.tasks]))

    def sharpen_best(self, run: RunInTime) -> bool:
        if sharper := self._next_blunt():
            self._sharpen(sharper, run([entry.task for entry in sharper]))
        return bool(sharper)

    def is_blunt(self, number: int) -> bool:
        return number in self.blunt

    def _next_chunks(self) -> list[_Chunk]:
        """The next chunks to bound, in the order of the first bound."""
        count = min(MOST_CHUNKS, max(1, self.rounds // MOST_CHUNKS))
        chunks, start = [], self.bounded
        for _ in range(count):
            size = CHUNK if start else FIRST_CHUNK
            index = self.order[start : start + size]
            start = min(start + size, len(self.order))
            self.drop(self.loose_joint[index])
            chunks.append(self._chunk(start, index[self.loose_joint[index] > self.enough()]))
        return chunks

    def _chunk(self, end: int, index: Array) -> _Chunk:
        question, candidates = self.question, self.candidates
        loose, hbm, num_recomputes = self.loose[:, index], candidates.hbm_bytes[:, index], len(question.recomputes)
        rates, tasks, fills = np.zeros((len(self.every_option), *hbm.shape)), [], []
        for row in range(0, len(self.every_option), num_recomputes):
            m, split = self.every_option[row].model, self.every_option[row].split
            mine = np.zeros(len(index))
            for where, accelerator in candidates.of_groups(index):
                parts = lowered(question)[m].parts[split]
                work = work_rates(question, parts, accelerator, self.memory)
                mine[where] = within_energy(question, m, parts, accelerator, work, energy_floor_j)
            hopeful = self._with(loose, m, mine) / candidates.least_divisor(index) > self.enough()
            worth = np.flatnonzero(hopeful & (mine > LOOSE * loose[m]))
            rates[row : row + num_recomputes] = mine
            if len(worth):
                tasks.append(self._plan_task(row, index[worth]))
                fills.append((slice(row, row + num_recomputes), worth))
        return _Chunk(end=end, index=index, rates=rates, tasks=tuple(tasks), fills=tuple(fills))

    def _keep(self, chunks: Sequence[_Chunk], results: Iterator[Result]) -> None:
        """Store the second bounds of the chunks and queue the points that may beat the incumbent."""
        for chunk in chunks:
            rates, index, hbm = chunk.rates, chunk.index, self.candidates.hbm_bytes[:, chunk.index]
            blunt = np.ones((len(rates), len(index)), dtype=bool)
            for rows, columns in chunk.fills:
                rates[rows, :, columns] = np.asarray(next(results))
                blunt[rows, columns] = False
            rates = np.where(hbm > 0, rates, 0.0)
            joint = self._joint(rates, index)
            self.drop(joint)
            for h, c in zip(*np.nonzero(joint > self.enough()), strict=True):
                heapq.heappush(self.heap, (-float(joint[h, c]), int(index[c]), int(h)))
                self.rates[int(index[c])], self.blunt[int(index[c])] = rates[:, :, c], blunt[:, c]
            self.bounded = chunk.end
            self.rounds += chunk is chunks[-1]
            self.report("bounds")

    def _best(self, rates: Array) -> Array:
        """The best rate of every model [models, ...] from those of options [options, ...]."""
        of_model = np.array([option.model for option in self.every_option])
        return np.stack([rates[of_model == m].max(axis=0) for m in range(len(self.question.models))])

    def _with(self, best: Array, m: int, mine: Array) -> Array:
        """Rates of all models together [...] from the best of each [models, ...], with ``mine`` for model ``m``."""
        return np.asarray(self.question.together(np.concatenate([best[:m], mine[None], best[m + 1 :]])))

    def _joint(self, rates: Array, index: Array) -> Array:
        """The objective's bound [memories, candidates] from those of options [options, memories, candidates]."""
        return np.asarray(self.question.together(self._best(rates))) / self.candidates.divisor[:, index]

    def _next_blunt(self) -> list[_Sharper]:
        """The postponed second bounds (of splits with poor first ones) of the best waiting candidates."""
        if self.top() <= self.enough() or self.heap[0][1] not in self.blunt:
            return []
        first = dict.fromkeys(i for _, i, _ in heapq.nsmallest(MOST_BLUNT, self.heap) if i in self.blunt)
        index, num_recomputes = np.array(list(first)), len(self.question.recomputes)
        rates = np.stack([self.rates[i] for i in first], axis=2)
        blunt = np.stack([self.blunt.pop(i) for i in first], axis=1)
        best, out = self._best(rates), []
        for row in range(0, len(self.every_option), num_recomputes):
            m = self.every_option[row].model
            joint = self._with(best, m, rates[row : row + num_recomputes].max(axis=0))
            hopeful = (joint / self.candidates.divisor[:, index] > self.enough()).any(axis=0)
            few = index[hopeful & blunt[row]]
            if len(few):
                out.append(_Sharper(slice(row, row + num_recomputes), self._plan_task(row, few)))
        return out

    def _plan_task(self, row: int, index: Array, of: Candidates | None = None) -> PlanTask:
        """The second bound of candidates for the split of an option; of chips ``of`` boxes, which count below 0."""
        chips = of or self.candidates
        return PlanTask(
            model=self.every_option[row].model,
            split=self.every_option[row].split,
            index=-1 - index if of else index,
            candidates=tuple(chips.of_groups(index)),
            hbm_bytes=chips.hbm_bytes[:, index],
        )

    def _sharpen(self, sharper: Sequence[_Sharper], results: Iterable[Result]) -> None:
        """Update waiting points with the second bounds of their postponed splits."""
        for entry, result in zip(sharper, results, strict=True):
            for k, i in enumerate(entry.task.index.tolist()):
                self.rates[i][entry.rows] = np.minimum(self.rates[i][entry.rows], np.asarray(result)[:, :, k])
        changed = {i for entry in sharper for i in entry.task.index.tolist()}
        joint = {i: self._joint(self.rates[i][:, :, None], np.array([i]))[:, 0] for i in changed}
        heap = [(max(b, -float(joint[i][h])) if i in changed else b, i, h) for b, i, h in self.heap]
        self.drop(np.array([-b for b, _, _ in heap]))
        self.keep_waiting(heap)
        self.report("bounds")

    # Points

    def chip(self, number: int) -> int:
        return number

    def cores(self, number: int) -> Hashable:
        return timing_fields(self.candidates.accelerator(number))

    def options(self, number: int, h: int) -> Iterator[Option]:
        rates = self.rates[number][:, h]
        return (replace(o, bound=float(r)) for o, r in zip(self.every_option, rates, strict=True) if r > 0)

    # Progress

    def report(self, phase: str) -> None:
        now = time.perf_counter()
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.now
        self.now = now
        ahead = self.ahead.keys() - self.ranked.keys()  # evaluated, and ruled out as well if its bound is low
        before = self.trajectory[-1].pruned if self.trajectory else 0
        progress = Progress(
            seconds=now - self.start,
            evaluated=len(self.ranked) + len(ahead),
            bound=self.bound(),
            incumbent=self.value(),
            waiting=len(self.heap),
            phase=phase,
            pruned=max(self.pruned() - len(ahead - self.in_flight.keys()), before),
            left_s=self._pace_s(now),
        )
        self.trajectory.append(progress)
        if self.on_progress:
            self.on_progress(progress)

    def left_s(self) -> float:
        return self.time_limit_s - (time.perf_counter() - self.start)

    def _pace_s(self, now: float) -> float | None:
        """Remaining seconds at the pace so far, if nothing better is found; at most the remaining time limit."""
        if not self.bounded:
            return None
        pace = self.spent.get("search", 0.0) / max(len(self.ranked), 1)
        left = (len(self.heap) + len(self.in_flight)) * pace
        left += self._later(max(self.enough(), self.top())) * self.spent["bounds"] / self.bounded
        return min(left, max(self.time_limit_s - (now - self.start), 0.0))


def _options(question: DesignQuestion) -> Iterator[Option]:
    for m, model in enumerate(lowered(question)):
        for split in model.parts:
            for recompute in question.recomputes:
                yield Option(model=m, split=split, recompute=recompute)


def _first(falling: Array) -> float:
    return float(falling[0]) if len(falling) else 0.0


def _most_of_rest(bounds: Array) -> Array:
    """The largest bound of each and all that follow."""
    return np.maximum.accumulate(bounds[::-1])[::-1]


def _order(loose: Array, count: int) -> Array:
    """Positions by falling bound, except for a first ``count`` spread over those with at least half of the best bound:
    an incumbent that does not depend on the bound's errors."""
    order = np.lexsort((np.arange(len(loose)), -loose))
    better = max(int((loose >= loose[order[0]] / 2).sum()), 1)
    first = np.unique(np.linspace(0, better - 1, count).astype(np.int64))
    rest = np.ones(len(order), dtype=bool)
    rest[first] = False
    return np.concatenate([order[first], order[rest]])
