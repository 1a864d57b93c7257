"""What the second clock says of a block is a schedule and a bound: nothing is shorter than one or misses the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings

from sartor.schedules import ScheduleProblem, Status, solve
from sartor.schedules.cp_sat import improve, timetable
from sartor.schedules.solve import _without_solver
from sartor.schedules.split import OpBlock, contract, crowds
from schedules.instances import best_by_enumeration, problem, problems, random_problem

LARGER = [(seed, 14, 1 + seed % 4, 1 + seed // 2 % 3) for seed in range(8)]


def block_of(given_: ScheduleProblem) -> OpBlock:
    return contract(given_)[0]


@settings(max_examples=60, deadline=None)
@given(problems())
def test_its_bound_is_never_above_what_enumeration_finds_and_its_schedule_never_below(small: Any) -> None:
    block = block_of(small)
    assume(block.size)
    assert brackets(block, best_by_enumeration(small))


@pytest.mark.parametrize("seed", range(40))
def test_so_it_is_with_several_cores(seed: int) -> None:
    given_ = random_problem(seed, 3 + seed % 4, 1 + seed % 3, 1 + seed // 3 % 3)
    assert brackets(block_of(given_), best_by_enumeration(given_))


@pytest.mark.parametrize("of", LARGER)
def test_so_it_is_against_what_is_proved_of_larger_ones(of: tuple[int, int, int, int]) -> None:
    given_ = random_problem(*of, shared=bool(of[0] % 2))
    proved = solve(given_, 60)
    assert proved.status is Status.OPTIMAL
    assert brackets(block_of(given_), proved.makespan)


def brackets(block: OpBlock, optimum: int) -> bool:
    """Whether bound and schedule lie on both sides of the optimum, from two starts."""
    lists = _without_solver(block)
    # from what is known, and from the worst there is to know
    serial = timetable(block, block.may_split, range(block.size))
    for hint, least in ((lists.timetable, lists.lower_bound), (serial, 0)):
        found = improve(block, hint, least)
        assert found.lower_bound <= optimum <= found.timetable.makespan(block) <= hint.makespan(block)
        assert found.lower_bound >= least
        assert is_schedule(block, found.timetable)
    return True


def is_schedule(block: OpBlock, table: Any) -> bool:
    """Precedence, split operators alone, cores at every start."""
    ends, size = table.ends(block), block.size
    order = all(ends[i] <= table.starts[j] for i in range(size) for j in range(size) if block.after[i] >> j & 1)
    alone = all(
        ends[j] <= table.starts[i] or ends[i] <= table.starts[j]
        for i in range(size)
        for j in range(size)
        if i != j and table.split[i]
    )
    room = True
    for at in table.starts:
        running = [block.core_types[i] for i in range(size) if table.starts[i] <= at < ends[i] and not table.split[i]]
        room &= sum(kind.needs_tensor_core for kind in running) <= block.num_tc
        room &= sum(kind.needs_vector_core for kind in running) <= block.num_vc
    return order and alone and room and not crowds(block, table)


@pytest.mark.parametrize("seed", range(20))
def test_any_modes_in_any_order_make_a_schedule(seed: int) -> None:
    block = block_of(random_problem(seed, 12, 2, 2))
    clock = [(i * 7919 + seed) % 13 for i in range(block.size)]
    split = tuple(may and bool(i + seed & 1) for i, may in enumerate(block.may_split))
    assert is_schedule(block, timetable(block, split, clock))


def test_by_work_the_answer_is_the_same_on_every_run() -> None:
    given_ = random_problem(5, 24, 3, 3)
    answers = [solve(given_, 0.05, by_work=True) for _ in range(3)]
    for one, other in pairwise(answers):
        assert (one.makespan, one.lower_bound, one.operators) == (other.makespan, other.lower_bound, other.operators)


def test_a_long_product_hides_behind_what_gains_nothing_from_more_cores() -> None:
    # Two tensor cores, one vector core. Norm 6, after it nothing; product 12 on one core, 7 on both.
    # Split: 7 + 6 = 13. On one core beside the norm: 12.
    given_ = problem(2, 1, [("product", "TC", 12, 7), ("norm", "VC", 6, 6)])
    block = block_of(given_)
    serial = timetable(block, block.may_split, [0, 1])
    assert serial.makespan(block) == 13
    found = improve(block, serial, 0)
    assert (found.timetable.makespan(block), found.lower_bound) == (12, 12)


def test_its_bound_is_exact_for_long_times_too() -> None:
    million = 1_234_567
    block = block_of(
        problem(2, 1, [("product", "TC", 12 * million, 7 * million), ("norm", "VC", 6 * million, 6 * million)])
    )
    found = improve(block, timetable(block, block.may_split, [0, 1]), 0)
    assert found.lower_bound == found.timetable.makespan(block) == 12 * million
