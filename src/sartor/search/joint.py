"""Accelerator and plan searched together: bounds on everything, the best bound first, until nothing can be better.

Three bounds, each dearer and tighter than the one before: work over cores for every candidate at once; schedules and
placements bounded for the candidates in the order of the first, in chunks; and the exact evaluation of the point with
the largest bound, until that is no larger than the best value reached. What is returned is then proved.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.area import die_area, published_area_mm2
from sartor.cost.die_cost import die_cost
from sartor.cost.energy import power
from sartor.hardware.accelerator import Accelerator
from sartor.search.accelerator_space import AcceleratorSpace, taken
from sartor.search.joint_bounds import LoweredModel, lower_models, plan_rates, work_rates
from sartor.search.joint_infeasible import memory_constraint, tightest_constraint
from sartor.search.joint_parts import Split
from sartor.search.joint_point import SCHEDULE_LIMIT_S, Evaluation, Option, Point, ScheduleStore, evaluate_point
from sartor.search.joint_question import AreaModel, DesignQuestion, Objective
from sartor.search.joint_result import DesignStatus, JointResult, Progress, Ranked

Array = npt.NDArray[Any]
Evaluate = Callable[[Sequence[Point]], Iterable[Evaluation]]

FIRST_CHUNK, CHUNK = 96, 1536
"""Candidates bounded at a time: a few first, to have something to beat."""
EQUAL = 1e-9
"""Relative difference below which two values count as one."""
LONGEST_SCHEDULE_S = 60.0
"""Beyond this a schedule that is still not proved is left with its gap."""


def search_design(
    question: DesignQuestion,
    space: AcceleratorSpace,
    *,
    time_limit_s: float = float("inf"),
    tolerance: float = 0.0,
    evaluate: Evaluate | None = None,
    batch: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> JointResult:
    """The best point of ``space`` for ``question`` with its proof, or the best found and its gap at the limit.

    ``tolerance`` ends the search at that gap. ``evaluate`` runs ``batch`` points at a time (an executor); by default
    they run here, one by one. Ctrl-C ends the search, not the answer. Raises ``InputError`` for what cannot be asked.
    """
    run = _Run(question, space, time.perf_counter() + time_limit_s, tolerance, on_progress)
    evaluate = evaluate or partial(_evaluate_here, question, ScheduleStore())
    interrupted = False
    try:
        if not run.infeasible:
            _search(run, evaluate, batch)
    except KeyboardInterrupt:
        interrupted = True
    return _result(run, interrupted)


def _evaluate_here(question: DesignQuestion, store: ScheduleStore, points: Sequence[Point]) -> Iterator[Evaluation]:
    return (evaluate_point(question, point, store) for point in points)


def _search(run: _Run, evaluate: Evaluate, batch: int) -> None:
    while not run.out_of_time():
        if run.next_loose() > max(run.top(), run.enough()):
            run.bound_next()
            if run.hopeless():
                return
            points = list(run.pop(batch)) if run.improving() else []
            for evaluation in evaluate(points):
                run.add(evaluation)
            continue
        points = list(run.pop(batch))
        if not points:
            return
        for evaluation in evaluate(points):
            run.add(evaluation)


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates of a space, flat: which group and place each has, and what it costs."""

    groups: tuple[Accelerator, ...]
    group: Array
    place: Array
    area_mm2: Array
    power_w: Array
    die_usd: Array
    hbm_bytes: Array
    """[memories, candidates]; 0: no such memory within the budget."""
    divisor: Array

    def __len__(self) -> int:
        return len(self.group)

    def accelerator(self, index: int) -> Accelerator:
        return taken(self.groups[self.group[index]], int(self.place[index]))

    def of_groups(self, index: Array) -> Iterator[tuple[Array, Accelerator]]:
        """Positions within ``index`` of each group's candidates, and these."""
        for g in np.unique(self.group[index]):
            where = np.flatnonzero(self.group[index] == g)
            yield where, taken(self.groups[g], self.place[index][where])


def candidates_of(question: DesignQuestion, space: AcceleratorSpace) -> tuple[Candidates, str]:
    """The candidates within all budgets; where there are none, the constraint that rules out most by itself."""
    columns: dict[str, list[Array]] = {}
    for g, group in enumerate(space.groups):
        count = int(np.prod(group.shape, dtype=np.int64))
        memories = space.hbm_bytes or (np.nan,)
        area, watts = area_of(question, group), np.broadcast_to(power(group).tdp_w, group.shape)
        hbm = np.stack([np.broadcast_to(group.hbm_bytes if np.isnan(h) else h, group.shape) for h in memories])
        usd = np.broadcast_to(die_cost(area, group.node_nm).die_usd, group.shape)
        each = {"group": np.full(count, g), "place": np.arange(count), "area": area, "power": watts, "usd": usd}
        for name, value in {**each, "hbm": hbm}.items():
            columns.setdefault(name, []).append(np.asarray(value))
    all_ = {name: np.concatenate(parts, axis=-1) for name, parts in columns.items()}
    masks = _masks(question, space, all_)
    keep = np.logical_and.reduce([mask for _, mask in masks])
    hbm = np.where(all_["hbm"] <= (question.budgets.hbm_bytes or np.inf), all_["hbm"], 0.0)
    ones = np.ones(len(keep))
    divisors = {Objective.PER_MM2: all_["area"], Objective.PER_WATT: all_["power"], Objective.PER_DOLLAR: all_["usd"]}
    divisor = divisors.get(question.objective, ones)
    found = Candidates(
        groups=space.groups,
        group=all_["group"][keep],
        place=all_["place"][keep],
        area_mm2=all_["area"][keep],
        power_w=all_["power"][keep],
        die_usd=all_["usd"][keep],
        hbm_bytes=hbm[:, keep],
        divisor=divisor[keep],
    )
    return found, "" if keep.any() else _tightest(masks, question, space, all_)


def area_of(question: DesignQuestion, accelerator: Accelerator) -> Array:
    """Area [mm2] of every candidate by the question's model."""
    published = question.costs.area is AreaModel.PUBLISHED
    area = published_area_mm2(accelerator) if published else die_area(accelerator).total_mm2
    return np.broadcast_to(area, accelerator.shape)


def _masks(question: DesignQuestion, space: AcceleratorSpace, all_: dict[str, Array]) -> list[tuple[str, Array]]:
    limits, area = question.budgets, question.budgets.area_mm2 or np.inf
    own = space.area_limit_mm2 or np.inf
    hbm = np.less_equal(all_["hbm"], (limits.hbm_bytes or np.inf) * (1 + EQUAL)).any(axis=0)
    watts = np.less_equal(all_["power"], (limits.power_w or np.inf) * (1 + EQUAL))
    inside = np.less_equal(all_["area"], min(area, own) * (1 + EQUAL))
    return [("area_mm2", np.asarray(inside)), ("power_w", np.asarray(watts)), ("hbm_bytes", np.asarray(hbm))]


def _tightest(
    masks: list[tuple[str, Array]], question: DesignQuestion, space: AcceleratorSpace, all_: dict[str, Array]
) -> str:
    """The constraint with the fewest candidates of its own, and what the nearest would need."""
    name, mask = min(masks, key=lambda each: int(each[1].sum()))
    column = {"area_mm2": all_["area"], "power_w": all_["power"], "hbm_bytes": all_["hbm"].min(axis=0)}[name]
    limit = getattr(question.budgets, name) or space.area_limit_mm2
    if mask.any():
        both = np.logical_and.reduce([other for _, other in masks])
        assert not both.any()
        inside = ", ".join(f"{other} {int(its.sum())}" for other, its in masks)
        return f"no candidate is within all budgets at once (within each alone: {inside}); {name} leaves the fewest"
    return f"{name}={limit:.6g}: the smallest of {mask.size} candidates takes {float(column.min()):.6g}"


@dataclass
class _Run:
    """State of a search: what is bounded how far, what is waiting, the best so far."""

    question: DesignQuestion
    space: AcceleratorSpace
    deadline: float
    tolerance: float
    on_progress: Callable[[Progress], None] | None
    start: float = field(default_factory=time.perf_counter)
    best: Ranked | None = None
    ranked: dict[tuple[int, float], Ranked] = field(default_factory=dict)
    heap: list[tuple[float, int, int]] = field(default_factory=list)
    limits: dict[tuple[int, int], float] = field(default_factory=dict)
    given_up: float = 0.0
    """Largest bound of a point whose schedules nobody proves in time."""
    bounded: int = 0
    trajectory: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.candidates, self.infeasible = candidates_of(self.question, self.space)
        self.models = () if self.infeasible else lower_models(self.question)
        self.chunks: dict[int, tuple[_Bounds, int]] = {}
        if not self.infeasible:
            self.loose_of = _loose(self.question, self.models, self.candidates)
            loose = np.stack([np.maximum.reduce(list(of.values())) for of in self.loose_of])
            self.loose = loose
            self.loose_joint = np.asarray(self.question.together(loose)) / self.candidates.divisor
            self.order = _order(self.loose_joint)

    # What is known

    def value(self) -> float:
        return self.best.objective if self.best else 0.0

    def enough(self) -> float:
        """A bound no larger than this needs no look."""
        return self.value() * (1 + max(self.tolerance, EQUAL))

    def top(self) -> float:
        return -self.heap[0][0] if self.heap else 0.0

    def next_loose(self) -> float:
        return float(self.loose_joint[self.order[self.bounded]]) if self.bounded < len(self.order) else 0.0

    def bound(self) -> float:
        return max(self.top(), self.next_loose_of_all(), self.given_up, self.value())

    def next_loose_of_all(self) -> float:
        rest = self.order[self.bounded :]
        return float(self.loose_joint[rest].max()) if len(rest) else 0.0

    def out_of_time(self) -> bool:
        return time.perf_counter() > self.deadline

    def hopeless(self) -> bool:
        """Whether no memory holds some model, whatever the accelerator: asked once, if the first chunk holds none."""
        if self.bounded != FIRST_CHUNK or self.heap or self.question.terms is not None:
            return False
        memory = float(self.candidates.hbm_bytes.max())
        self.infeasible = memory_constraint(self.question, self.models, memory)
        return bool(self.infeasible)

    def improving(self) -> bool:
        """Whether the best waiting point is worth a look before the rest is bounded: early on, a good value to beat
        saves more bounds than the look costs."""
        return len(self.chunks) <= FIRST_CHUNK

    # Steps

    def bound_next(self) -> None:
        """The second bound of the next candidates in order."""
        size = FIRST_CHUNK if not self.bounded else CHUNK
        index = self.order[self.bounded : self.bounded + size]
        index = index[self.loose_joint[index] > self.enough()]
        self.bounded += size
        if not len(index):
            return
        bounds = _bounds(self, index)
        joint = np.asarray(self.question.together(bounds.best())) / self.candidates.divisor[index]
        for h, c in zip(*np.nonzero(joint > self.enough()), strict=True):
            heapq.heappush(self.heap, (-float(joint[h, c]), int(index[c]), int(h)))
        self.chunks.update({int(i): (bounds, c) for c, i in enumerate(index)})
        self.report("bounds")

    def pop(self, batch: int) -> Iterator[Point]:
        """Up to ``batch`` points with the largest bounds that still exceed what is reached."""
        for _ in range(batch):
            if not self.heap or -self.heap[0][0] <= self.enough():
                return
            _, index, h = heapq.heappop(self.heap)
            yield self.point(index, h)

    def point(self, index: int, h: int) -> Point:
        bounds, column = self.chunks[index]
        options = tuple(bounds.options(h, column))
        alone = len(self.question.models) == 1
        floor = self.value() * float(self.candidates.divisor[index])
        return Point(
            index=index,
            accelerator=self.candidates.accelerator(index),
            hbm_bytes=float(self.candidates.hbm_bytes[h, index]),
            options=options,
            floor=(floor,) if alone else (),
            schedule_limit_s=self.limits.get((index, h), SCHEDULE_LIMIT_S),
        )

    def add(self, evaluation: Evaluation) -> None:
        """Keep what a point reached; if it may reach more, it waits with its new bound and more time."""
        ranked = priced(self.question, self.candidates, evaluation)
        point = evaluation.point
        key = point.index, point.hbm_bytes
        before = self.ranked.get(key)
        if before is None or ranked.objective >= before.objective:
            self.ranked[key] = ranked
        if ranked.objective > self.value():
            self.best = ranked
        if ranked.bound > max(self.enough(), ranked.objective * (1 + EQUAL)):
            h = int(np.flatnonzero(self.candidates.hbm_bytes[:, point.index] == point.hbm_bytes)[0])
            limit = point.schedule_limit_s * 4
            if limit > LONGEST_SCHEDULE_S:
                self.given_up = max(self.given_up, ranked.bound)
            else:
                self.limits[point.index, h] = limit
                heapq.heappush(self.heap, (-ranked.bound, point.index, h))
        self.report("search")

    def report(self, phase: str) -> None:
        progress = Progress(
            seconds=time.perf_counter() - self.start,
            evaluated=len(self.ranked),
            bound=self.bound(),
            incumbent=self.value(),
            waiting=len(self.heap),
            phase=phase,
        )
        self.trajectory.append(progress)
        if self.on_progress:
            self.on_progress(progress)


def _order(loose: Array) -> Array:
    """Candidates by falling bound, but for a first chunk that is spread over the better half of it: something to beat
    that does not hang on what the bound overlooks."""
    order = np.lexsort((np.arange(len(loose)), -loose))
    better = max(int((loose >= loose[order[0]] / 2).sum()), 1)
    first = np.unique(np.linspace(0, better - 1, FIRST_CHUNK).astype(np.int64))
    rest = np.ones(len(order), dtype=bool)
    rest[first] = False
    return np.concatenate([order[first], order[rest]])


def _loose(
    question: DesignQuestion, models: Sequence[LoweredModel], candidates: Candidates
) -> list[dict[Split, Array]]:
    """By model: the first bound [candidates] of every split."""
    everyone = np.arange(len(candidates))
    out = []
    for model in models:
        of: dict[Split, Array] = {}
        for split, parts in model.parts.items():
            rates = np.zeros(len(candidates))
            for where, accelerator in candidates.of_groups(everyone):
                rates[where] = work_rates(question, parts, accelerator)
            of[split] = rates
        out.append(of or {Split(0, 0): np.zeros(len(candidates))})
    return out


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Of a chunk: every option, and what it reaches at most [options, memories, candidates]."""

    known: list[Option]
    rates: Array
    num_models: int

    def best(self) -> Array:
        """[models, memories, candidates]"""
        of = np.array([option.model for option in self.known])
        return np.stack([self.rates[of == m].max(axis=0) for m in range(self.num_models)])

    def options(self, h: int, column: int) -> Iterator[Option]:
        for option, rate in zip(self.known, self.rates[:, h, column], strict=True):
            if rate > 0:
                yield replace(option, bound=float(rate))


def _bounds(run: _Run, index: Array) -> _Bounds:
    question, candidates = run.question, run.candidates
    hbm, floor = candidates.hbm_bytes[:, index], run.enough()
    known, rates = [], []
    loose = run.loose[:, index]
    for m, model in enumerate(run.models):
        for split, parts in model.parts.items():
            mine = run.loose_of[m][split][index]
            joint = np.asarray(question.together(np.concatenate([loose[:m], mine[None], loose[m + 1 :]])))
            worth = np.flatnonzero(joint / candidates.divisor[index] > floor)
            rate = np.broadcast_to(mine, (len(question.recomputes), *hbm.shape)).copy()
            for where, accelerator in candidates.of_groups(index[worth]):
                columns = worth[where]
                rate[:, :, columns] = plan_rates(question, parts, accelerator, hbm[:, columns])
            for r, recompute in enumerate(question.recomputes):
                known.append(Option(model=m, split=split, recompute=recompute))
                rates.append(np.where(hbm > 0, rate[r], 0.0))
    return _Bounds(known=known, rates=np.stack(rates), num_models=len(run.models))


def priced(question: DesignQuestion, candidates: Candidates, evaluation: Evaluation) -> Ranked:
    """An evaluation with its objective and its price."""
    i = evaluation.point.index
    divisor = float(candidates.divisor[i])
    return Ranked(
        evaluation=evaluation,
        objective=float(question.together(np.array(evaluation.rates))) / divisor,
        bound=float(question.together(np.array(evaluation.bounds))) / divisor,
        area_mm2=float(candidates.area_mm2[i]),
        power_w=float(candidates.power_w[i]),
        die_usd=float(candidates.die_usd[i]),
    )


def _result(run: _Run, interrupted: bool) -> JointResult:
    question, space = run.question, run.space
    each = len(question.microbatch_sizes) * len(question.recomputes) * max(len(space.hbm_bytes), 1)
    common = {
        "space_size": space.num_points * each,
        "num_candidates": space.num_kept,
        "seconds": time.perf_counter() - run.start,
        "assumptions": space.assumptions,
        "interrupted": interrupted,
        "trajectory": tuple(run.trajectory),
    }
    if run.infeasible:
        nothing = {"best": None, "upper_bound": 0.0, "gap": 0.0, "evaluated": 0, "pruned": 0}
        return JointResult(status=DesignStatus.INFEASIBLE, tightest=run.infeasible, **nothing, **common)  # type: ignore[arg-type]
    upper, value = run.bound(), run.value()
    if not value and not upper:
        nothing = {"best": None, "upper_bound": 0.0, "gap": 0.0, "evaluated": len(run.ranked), "pruned": 0}
        why = tightest_constraint(question, run.models, float(run.candidates.hbm_bytes.max()))
        return JointResult(status=DesignStatus.INFEASIBLE, tightest=why, **nothing, **common)  # type: ignore[arg-type]
    points = len(run.candidates) * len(run.candidates.hbm_bytes)
    gap = (upper - value) / value if value else float("inf")
    proved = upper <= value * (1 + EQUAL)
    return JointResult(
        status=DesignStatus.OPTIMAL if proved else DesignStatus.FEASIBLE,
        best=run.best,
        upper_bound=value if proved else upper,
        gap=0.0 if proved else gap,
        evaluated=len(run.ranked),
        pruned=points - len(run.ranked),
        ranked=tuple(sorted(run.ranked.values(), key=lambda each: -each.objective)),
        **common,  # type: ignore[arg-type]
    )
