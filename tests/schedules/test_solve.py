"""How an answer comes about: limits, what needs no solver, equal layers, interruption, doubtful solvers.

Together with tests/schedules/test_optimality.py, every defect of the published code's scheduling part that
docs/concepts/schedule.md lists has its test here.
"""

from __future__ import annotations

import _thread
import builtins
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sartor.errors import InputError, MissingExtraError, install_command
from sartor.schedules import CoreType, ScheduledOperator, ScheduleProblem, Solver, Status, cp_sat, milp, prefixes, solve
from sartor.schedules.solve import ScheduleCache
from sartor.schedules.split import BlockAnswer
from schedules.instances import operator, problem, random_problem

HARD = random_problem(1, 14, 2, 2)
"""Small, and not settled by list scheduling and the bounds."""


@pytest.fixture
def no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any call of a solver fails the test."""

    def refuse(*_: Any) -> BlockAnswer:
        raise AssertionError("no solver is needed here")

    monkeypatch.setattr(prefixes, "improve", refuse)
    monkeypatch.setattr(cp_sat, "solve_block", refuse)
    monkeypatch.setattr(milp, "solve_block", refuse)


@pytest.mark.usefixtures("no_solver")
def test_a_chain_needs_no_solver() -> None:
    rows = [(k, ("TC", "VC", "TCandVC", "Nop")[k % 4], 10 + k, 20 - k) for k in range(20)]
    found = solve(problem(4, 2, rows, *((k, k + 1) for k in range(19))))
    assert found.status is Status.OPTIMAL
    assert found.makespan == sum(min(l, q) for _, kind, l, q in rows if kind != "Nop")  # noqa: E741


@pytest.mark.usefixtures("no_solver")
@pytest.mark.parametrize("rows", [[], [(0, "Nop", 5, 5)], [(k, "Nop", 0, 0) for k in range(5)]])
def test_a_layer_of_nothing_but_nops_takes_no_time_and_no_solver(rows: list[Any]) -> None:
    found = solve(problem(8, 2, rows))
    assert (found.status, found.makespan, found.lower_bound, found.gap) == (Status.OPTIMAL, 0, 0, 0.0)
    assert found.operators == ()


@pytest.mark.usefixtures("no_solver")
def test_where_list_scheduling_meets_the_bound_no_solver_is_asked() -> None:
    assert solve(problem(2, 1, [(0, "TC", 8, 5), (1, "TC", 8, 5)])).status is Status.OPTIMAL


@pytest.mark.usefixtures("no_solver")
def test_a_limit_of_zero_is_a_valid_schedule_and_an_honest_gap() -> None:
    found = solve(random_problem(1, 30, 4, 2), 0)
    assert found.checked
    assert found.status is Status.FEASIBLE
    assert 0 < found.gap < 0.5
    assert found.lower_bound < found.makespan


def test_time_running_out_is_an_answer_with_a_gap_and_not_an_exception() -> None:
    begin = time.process_time()  # of 8 threads
    found = solve(random_problem(1, 60, 4, 4, 0.15), 1.5)
    assert time.process_time() - begin < 8 * 1.5 + 10
    assert found.checked
    assert found.lower_bound <= found.makespan
    assert (found.status is Status.OPTIMAL) == (found.gap == 0)


def test_a_solver_that_says_infeasible_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = HARD
    monkeypatch.setattr(prefixes, "MOST_OPERATORS", 0)
    monkeypatch.setattr(cp_sat, "_run", lambda solver, model: (cp_sat.cp_model().INFEASIBLE, False))
    found = solve(given)
    assert found.checked
    assert (found.makespan, found.lower_bound) == (solve(given, 0).makespan, solve(given, 0).lower_bound)


def test_an_answer_that_is_no_schedule_never_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(block: Any, hint: Any, lower_bound: int, limit_s: float) -> BlockAnswer:
        everything_at_once = type(hint)(starts=(0,) * block.size, split=hint.split)
        return BlockAnswer(timetable=everything_at_once, lower_bound=0)

    monkeypatch.setattr(prefixes, "MOST_OPERATORS", 0)
    monkeypatch.setattr(cp_sat, "solve_block", wrong)
    with pytest.raises(AssertionError, match="invalid schedule"):
        solve(HARD)


def test_equal_layers_are_solved_once_within_a_problem_and_across(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = prefixes.improve
    monkeypatch.setattr(prefixes, "improve", lambda block, *rest: (asked.append(block.size), real(block, *rest))[1])
    cache = ScheduleCache()
    one = solve(_layers(1), cache=cache)
    once = len(asked)
    assert once
    assert solve(_layers(4), cache=cache).makespan == 4 * one.makespan
    assert len(asked) == once
    assert solve(_layers(4)).makespan == 4 * one.makespan
    assert len(asked) == 2 * once


def _layers(count: int) -> ScheduleProblem:
    """The same layer several times, every other one listed backwards, with a Nop between them."""
    layer = random_problem(4, 14, 2, 2)
    rows: list[ScheduledOperator] = []
    edges: list[tuple[Any, Any]] = []
    for k in range(count):
        own = [replace(op, id=f"{k}.{op.id}") for op in layer.operators]
        end = operator(f"end {k}", "Nop", 0, 0)
        rows += [*(reversed(own) if k % 2 else own), end]
        edges += [(f"{k}.{a}", f"{k}.{b}") for a, b in layer.edges]
        edges += [(op.id, end.id) for op in own] + ([(f"end {k - 1}", op.id) for op in own] if k else [])
    return replace(layer, operators=tuple(rows), edges=tuple(edges))


def test_the_busy_share_of_vector_cores_counts_vector_cores() -> None:
    # 8 tensor cores, 2 vector cores; one vector operator on one of them, next to a tensor operator of equal length.
    found = solve(problem(8, 2, [(0, "VC", 10, 10), (1, "TC", 10, 10)]))
    assert found.makespan == 10
    assert found.utilization == {"tc": 1 / 8, "vc": 1 / 2}


def test_optimal_means_a_gap_of_zero_and_not_of_one_percent() -> None:
    for seed in range(15):
        found = solve(random_problem(seed, 8, 2, 2))
        assert found.status is Status.OPTIMAL
        assert found.lower_bound == found.makespan


def test_real_layers_are_not_too_large_for_the_default_solver() -> None:
    # The paper's program of 40 operators has 1,800 variables and 70,000 rows, past the free licence's 2,000.
    assert solve(random_problem(7, 40, 8, 2, 0.4), 3).checked


@pytest.mark.parametrize(("solver", "package", "extra"), [("cp_sat", "ortools", "solve"), ("milp", "scipy", "milp")])
def test_a_missing_solver_names_its_install_command(
    solver: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=rf"pip install .*\[{extra}\]"):
        solve(random_problem(1, 14, 2, 2, shared=solver == "cp_sat"), solver=Solver(solver))
    assert solve(HARD, solver=Solver.GREEDY).checked
    assert solve(HARD).status is Status.OPTIMAL, "prefixes need neither"


def test_the_papers_program_says_when_a_problem_is_too_large_for_it() -> None:
    with pytest.raises(ValueError, match="milp: must have at most 64 operators"):
        solve(random_problem(1, 120, 2, 2, 0.05), solver=Solver.MILP)


def test_the_papers_program_knows_cores_only_and_is_asked_about_parts_left_open_alone() -> None:
    one = ScheduledOperator(id=0, core_type=CoreType.TC, latency=8, intra_latency=5, traffic=(("hbm", 5),))
    assert solve(ScheduleProblem(num_tc=2, num_vc=0, operators=(one,)), solver=Solver.MILP).status is Status.OPTIMAL
    with pytest.raises(InputError, match="milp: knows cores only"):
        solve(random_problem(1, 14, 2, 2, shared=True), solver=Solver.MILP)


INTERRUPTED = """
import sys
import threading
sys.path.insert(0, {folder!r})
import os, signal, threading
from schedules.instances import random_problem
from sartor.schedules import solve
threading.Timer(4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
found = solve(random_problem(1, 60, 4, 4, 0.15), 600)
print(found.interrupted, found.checked, found.status, found.lower_bound <= found.makespan)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("and Python still hears Ctrl-C")
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_search_and_keeps_what_was_found() -> None:
    code = INTERRUPTED.format(folder=str(Path(__file__).parents[1]))
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.splitlines() == ["True True feasible True", "and Python still hears Ctrl-C"]


class LateListener:
    """A solver to which the first word to stop comes before it has begun to listen."""

    def __init__(self) -> None:
        self.told, self.heard = 0, threading.Event()

    def solve(self, model: Any) -> str:
        time.sleep(0.3)
        _thread.interrupt_main()
        assert self.heard.wait(30)
        return "stopped"

    def stop_search(self) -> None:
        self.told += 1
        if self.told > 1:
            self.heard.set()


def test_ctrl_c_before_the_search_has_begun_is_heard_when_it_has() -> None:
    assert cp_sat._run(LateListener(), None) == ("stopped", True)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ("", "pip install 'anyio>=4.4' starlette"),
        ('{"url": "file:///src/sartor", "dir_info": {"editable": true}}', "pip install -e '/src/sartor[web]'"),
        ('{"url": "file:///src/sartor", "dir_info": {}}', "pip install 'sartor[web] @ file:///src/sartor'"),
    ],
)
def test_a_missing_extra_is_installed_from_where_this_copy_came(
    origin: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["numpy", "anyio>=4.4; extra == 'web'", 'starlette; extra == "web"', "pyarrow; extra == 'data'"]
    copy = SimpleNamespace(read_text=lambda name: origin or None, requires=wanted)
    monkeypatch.setattr(metadata, "distribution", lambda _: copy)
    assert install_command("web") == command
