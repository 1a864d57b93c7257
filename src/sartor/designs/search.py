"""Joint search for accelerator and plan by branch and bound: the best bound first, from one frozen state to the next.

Three levels, each more costly and tighter: work over cores, for every candidate at once; bounds on schedules and
placements, for chunks of candidates in the order of the first bound; and exact evaluation of the point with the largest
bound, until no bound is larger than the best value found, which is then proved.

The search submits tasks (`designs.tasks`) in rounds, or a few tasks ahead of the results. New tasks depend only on
earlier results in the order of submission, never on which worker computed them or when. So every executor gets the same
answer by the same steps, and a search with stored results can be replayed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf

import numpy as np

from sartor.designs.bounding import SearchState
from sartor.designs.candidates import Candidates, DesignStatus, JointResult, Progress
from sartor.designs.infeasible import LeastEnergy, least_energy, tightest_constraint
from sartor.designs.question import EQUAL, DesignModel, DesignQuestion, Objective
from sartor.designs.space import AcceleratorSpace
from sartor.designs.tasks import Result, Task, lowered, run_task
from sartor.interrupts import point

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
) -> JointResult:
    """The best point of ``space`` for ``question`` with its proof, or the best found and its gap at the limit.

    ``tolerance`` ends the search at that gap. ``floor`` is an objective reached elsewhere: if nothing exceeds it, the
    result has no best point, only an upper bound. ``run`` executes the tasks (see the executors of `engine.run`);
    default: in this process, one after another. ``already_s`` is time spent before, added to the seconds. Ctrl-C ends
    the search and returns the result so far. Raises ``InputError`` for an invalid question.
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
    )
    interrupted = False
    try:
        if not state.infeasible:
            run_tasks = partial(run_in_time, ask, deadline)
            state.order_by(run_tasks(state.work_tasks()))
            state.until_proved(run_tasks)
    except OutOfTime:
        pass
    except KeyboardInterrupt:
        interrupted = True
    return _result(state, interrupted, deadline)


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
    left_out = num_points - int(np.count_nonzero(state.candidates.hbm_bytes))
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
    upper, value = state.bound(), state.value()
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
        best=state.best,
        upper_bound=value if proved else upper,
        gap=0.0 if proved else gap,
        evaluated=len(state.ranked),
        pruned=state.pruned(),
        ranked=tuple(sorted(state.ranked.values(), key=lambda ranked: -ranked.objective)),
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
