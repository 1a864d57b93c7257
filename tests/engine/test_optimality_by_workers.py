"""What many workers find is what trying every point finds, for every objective and constraint, whoever is late or dies;
and cut short anywhere, the answer never claims more than is proved."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from design_samples import TWO, every_option, question, small_space
from effort import LONG, times
from sartor.designs.candidates import DesignStatus, JointResult, Ranked, candidates_of, priced
from sartor.designs.point import Point, ScheduleStore, evaluate_point
from sartor.designs.question import Budgets, DesignQuestion, Objective
from sartor.designs.search import run_here, search_design
from sartor.designs.tasks import Result, Task
from sartor.engine.executors import Submitting, start_pool
from sartor.engine.run import Remembering

SPACE = small_space(num_tensor_cores=[1, 2, 4], num_vector_cores=[2], array_rows=[32], hbm_gb=[0.02, 0.2])
ONE = question(microbatch_sizes=(1,))
ENOUGH_S = 3.2
"""For every schedule, as long as a search gives any."""
ASKED = {
    **{objective.value: replace(ONE, objective=objective) for objective in Objective},
    "hbm": replace(ONE, budgets=Budgets(hbm_bytes=0.1e9)),
    "area": replace(ONE, budgets=Budgets(area_mm2=5.5)),
    "few devices": question(microbatch_sizes=(1,), num_devices=3),
    "two models": question(models=TWO, microbatch_sizes=(1,)),
}


@cache
def every_point(name: str) -> tuple[Ranked, ...]:
    """Every option of every model on every point within the budgets."""
    asked = ASKED[name]
    candidates, _ = candidates_of(asked, SPACE)
    options = tuple(option for m in range(len(asked.models)) for option in every_option(asked, m))
    store = ScheduleStore()
    points = [
        Point(index=i, accelerator=candidates.accelerator(i), hbm_bytes=h, options=options, schedule_limit_s=ENOUGH_S)
        for i in range(len(candidates))
        for h in candidates.hbm_bytes[:, i].tolist()
        if h > 0
    ]
    return tuple(priced(asked, evaluate_point(asked, point, store)) for point in points)


def best_of(name: str) -> float:
    return max(each.objective for each in every_point(name))


@pytest.fixture(scope="module")
def pool() -> Iterator[Submitting]:
    by = Submitting(name="pool", start=lambda: start_pool(3))
    yield by
    by.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED if LONG else ["throughput", "hbm", "few devices"])
def test_a_pool_of_workers_finds_what_trying_everything_finds(name: str, pool: Submitting) -> None:
    found = search_design(ASKED[name], SPACE, run=Remembering(by=pool, stored=None, deadline=float("inf")))
    assert found.status is DesignStatus.OPTIMAL
    assert found.best
    assert found.best.objective == pytest.approx(best_of(name), rel=1e-9)


def test_with_a_worker_killed_after_every_few_results_it_is_found_as_well(pool: Submitting) -> None:
    inner, seen, killed = Remembering(by=pool, stored=None, deadline=float("inf")), 0, []

    def run(asked: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
        nonlocal seen
        for result in inner(asked, tasks):
            seen += 1
            processes = list(getattr(pool.executor, "_processes", None) or ())
            if processes and seen % 6 == 0 and len(killed) < 3:
                os.kill(processes[0], signal.SIGKILL)
                killed.append(processes[0])
            yield result

    found = search_design(ASKED["throughput"], SPACE, run=run)
    assert killed
    assert found.status is DesignStatus.OPTIMAL
    assert found.best
    assert found.best.objective == pytest.approx(best_of("throughput"), rel=1e-9)


class Late(Executor):
    """Does what it was asked in any order, one task each time somebody waits for one."""

    def __init__(self, seed: int) -> None:
        self.random, self.waiting = random.Random(seed), list[tuple[Future[Any], Callable[[], Any]]]()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        if len(self.waiting) > self.random.randrange(4):
            self.work()
        return future

    def work(self) -> None:
        future, do = self.waiting.pop(self.random.randrange(len(self.waiting)))
        if future.set_running_or_notify_cancel():
            future.set_result(do())


@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_late_changes_neither_answer_nor_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import sartor.engine.executors as module

    late, wait = Late(seed), module.wait

    def waits(futures: Any, **how: Any) -> Any:
        while late.waiting and not any(future.done() for future in futures):
            late.work()
        return wait(futures, **how)

    monkeypatch.setattr(module, "wait", waits)
    by = Submitting(name="late", start=lambda: late)
    found = search_design(ONE, SPACE, run=Remembering(by=by, stored=None, deadline=float("inf")))
    assert steps(found) == steps(search_design(ONE, SPACE))


def steps(found: JointResult) -> Any:
    told = [(each.phase, each.evaluated, each.bound, each.incumbent, each.waiting) for each in found.trajectory]
    return found.best, found.ranked, found.upper_bound, found.pruned, told


@pytest.mark.parametrize("name", ["throughput", "throughput_per_dollar", "area", *(["two models"] if LONG else [])])
def test_cut_after_any_result_the_gap_is_never_less_than_the_true_one(name: str) -> None:
    asked, optimum, known = ASKED[name], best_of(name), dict[str, Result]()
    after, whole = 0, False
    while not whole:
        left = after

        def run(asked: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
            nonlocal left
            for task, result in zip(tasks, remembered(known, asked, tasks), strict=False):
                if not left:
                    raise KeyboardInterrupt
                left -= 1
                assert task
                yield result

        found = search_design(asked, SPACE, run=run)
        value = found.best.objective if found.best else 0.0
        assert value <= optimum * (1 + 1e-9)
        assert found.upper_bound >= optimum * (1 - 1e-9)
        if found.best:
            assert found.gap >= optimum / value - 1 - 1e-9
        whole, after = not found.interrupted, after + times(4, 1)
    assert found.status is DesignStatus.OPTIMAL
    assert after > 5


def remembered(known: dict[str, Result], asked: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
    """Results in order, computed once for all cuts."""
    for task in tasks:
        key = repr(task)
        if key not in known:
            (known[key],) = islice(run_here(asked, [task], deadline=np.inf), 1)
        yield known[key]
