"""Bad problems are named in one sentence: which field, its value, what must hold."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.schedules import ScheduleProblem, solve
from sartor.schedules.problem import MAX_OPERATORS
from schedules.instances import operator, problem

TC = (0, "TC", 4, 2)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: problem(1, 1, [(0, "GPU", 1, 1)]), "operator 0 type=GPU: must be one of TC, VC, TCandVC, Nop"),
        (lambda: problem(1, 1, [(0, "tcandvc", 1, 1)]), "nearest: TCandVC"),
        (lambda: operator(0, "TC", -5, 1), "operator 0 latency=-5: must be a whole number of at least 0"),
        (lambda: operator(0, "TC", 5, -1), "intra_latency=-1"),
        (lambda: operator(0, "TC", 2.5, 1), "latency=2.5: must be a whole number of at least 0; nearest: 2"),  # type: ignore[arg-type]
        (lambda: operator(0, "TC", float("nan"), 1), "latency=nan"),  # type: ignore[arg-type]
        (lambda: operator(0, "TC", float("inf"), 1), "latency=inf"),  # type: ignore[arg-type]
        (lambda: operator(0, "TC", "5", 1), "must be a whole number"),  # type: ignore[arg-type]
        (lambda: operator(0, "TC", True, 1), "latency=true"),
        (lambda: problem(1, 1, [TC, TC]), "operator id=0: must be given once"),
        (lambda: problem(1, 1, [(1.5, "TC", 1, 1)]), "must be a whole number or a text"),
        (lambda: problem(1, 1, [TC], (0, 7)), "edges=[0, 7]: 7 is not an operator's id"),
        (
            lambda: problem(1, 1, [TC], (0, 0)),
            "edges=[0, 0]: must be free of cycles",
        ),
        (lambda: problem(0, 1, [TC]), "num_tc=0: must be at least 1: operator 0 of type TC needs a tensor core"),
        (lambda: problem(1, 0, [(0, "TCandVC", 1, 1)]), "num_vc=0: must be at least 1"),
        (lambda: problem(-1, 1, []), "num_tc=-1"),
        (lambda: problem(2.0, 1, []), "num_tc=2.0"),  # type: ignore[arg-type]
        (lambda: problem(2**21, 1, []), "must be at most 1048576 cores"),
        (lambda: problem(1, 1, [(0, "TC", 2**51, 1)]), "use a coarser unit"),
        (lambda: problem(1, 1, [(k, "TC", 1, 1) for k in range(MAX_OPERATORS + 1)]), "one layer at a time"),
        (lambda: problem(1, 1, [TC], (0,)), "must be pairs"),  # type: ignore[arg-type]
        (lambda: problem(1, 1, [TC], (0, [0])), "is not an operator's id"),  # type: ignore[arg-type]
        (lambda: solve(problem(1, 1, [TC]), -1), "time_limit=-1"),
        (lambda: solve(problem(1, 1, [TC]), float("nan")), "time_limit=nan"),
    ],
)
def test_what_cannot_be_scheduled_is_named(build: Any, said: str) -> None:
    with pytest.raises(InputError) as error:
        build()
    assert said in str(error.value)
    assert len(str(error.value)) < 300


def test_a_cycle_is_named_by_the_ids_on_it_and_only_those() -> None:
    rows = [(k, "TC", 1, 1) for k in (1, 2, 3, 4, 5)]
    with pytest.raises(InputError) as error:
        problem(1, 1, rows, (1, 2), (2, 3), (3, 4), (4, 2), (4, 5))
    cycle = str(error.value).rsplit(": ", 1)[1].split(" -> ")
    assert set(cycle) == {"2", "3", "4"}
    assert cycle[0] == cycle[-1]
    assert all((int(a), int(b)) in {(2, 3), (3, 4), (4, 2)} for a, b in pairwise(cycle))


def test_a_name_with_control_characters_is_escaped_in_the_sentence() -> None:
    with pytest.raises(InputError) as error:
        problem(1, 1, [("\x1b[31m", "TC", -1, 1)])
    assert "\x1b" not in str(error.value)


def test_cores_that_nothing_needs_may_be_missing() -> None:
    assert solve(problem(1, 0, [TC])).makespan == 2
    assert solve(problem(0, 0, [(0, "Nop", 3, 3)])).makespan == 0


def test_an_edge_given_twice_is_one_edge() -> None:
    twice = problem(1, 1, [TC, (1, "VC", 3, 3)], (0, 1), (0, 1))
    assert isinstance(twice, ScheduleProblem)
    assert solve(twice).makespan == 5
