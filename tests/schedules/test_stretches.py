"""The way over downsets is a schedule and a bound: nothing is shorter than one or misses the other."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate
from math import ceil
from typing import Any

import pytest
from hypothesis import assume, given, settings

from effort import times
from sartor.schedules import Status, cp_sat, solve
from sartor.schedules.downsets import FAR, Lattice, downsets
from sartor.schedules.solve import _without_solver
from sartor.schedules.split import OpBlock, Timetable
from sartor.schedules.stretches import MOST_DOWNSETS, improve, lower_bound, stretch
from schedules.instances import best_by_enumeration, problem, problems, random_problem
from schedules.test_second_clock import block_of, is_schedule


def in_turn(block: OpBlock) -> Timetable:
    """The longest schedule worth having."""
    starts = [sum(block.serial[:i]) for i in range(block.size)]
    return Timetable(starts=tuple(starts), split=block.may_split)


def by_cp_sat(block: OpBlock) -> int:
    """The optimum, by CP-SAT alone."""
    lists = _without_solver(block)
    found = cp_sat.solve_block_by_work(block, lists.timetable, lists.lower_bound, 60)
    assert found.lower_bound == found.timetable.makespan(block)
    return found.lower_bound


def proves(block: OpBlock, optimum: int) -> bool:
    """Whether it says the optimum, with a schedule, from lists and from the worst hint there is."""
    lists = _without_solver(block)
    for hint, least in ((lists.timetable, lists.lower_bound), (in_turn(block), 0)):
        found = improve(block, hint, least, 60)
        assert found.lower_bound == optimum == found.timetable.makespan(block)
        assert is_schedule(block, found.timetable)
    return True


@settings(max_examples=times(60, 2000), deadline=None)
@given(problems())
def test_it_proves_what_enumeration_finds(small: Any) -> None:
    block = block_of(small)
    assume(block.size)
    assert proves(block, best_by_enumeration(small))


@pytest.mark.parametrize("seed", range(times(40, 400)))
def test_so_it_does_with_several_cores(seed: int) -> None:
    given_ = random_problem(seed, 3 + seed % 4, 1 + seed % 3, 1 + seed // 3 % 3)
    assert proves(block_of(given_), best_by_enumeration(given_))


@pytest.mark.parametrize("seed", range(times(8, 200)))
def test_larger_ones_are_as_cp_sat_proves_them(seed: int) -> None:
    given_ = random_problem(seed, 12, 1 + seed % 4, 1 + seed // 2 % 3)
    assert proves(block_of(given_), by_cp_sat(block_of(given_)))


@pytest.mark.parametrize("seed", range(times(20, 200)))
def test_perfect_splits_are_as_cp_sat_proves_them(seed: int) -> None:
    cores = 2 + seed % 3
    given_ = random_problem(seed, 9, cores, cores)
    rows = (replace(op, intra_latency=ceil(op.latency / cores)) for op in given_.operators)
    given_ = replace(given_, operators=tuple(rows))
    assert proves(block_of(given_), by_cp_sat(block_of(given_)))


def test_a_stretch_of_more_equal_operators_than_cores_needs_whole_rounds() -> None:
    five = block_of(problem(4, 1, [(k, "TC", 8, 2) for k in range(5)]))
    assert lower_bound(stretch(five, 0b11111)) == 16
    assert lower_bound(stretch(five, 0b01111)) == 8


def test_a_wide_block_is_left_as_it_is() -> None:
    wide = block_of(problem(2, 1, [(k, "TC", 8 + k, 5) for k in range(16)]))
    assert downsets(wide, MOST_DOWNSETS) is None
    hint = in_turn(wide)
    found = improve(wide, hint, 3, 60)
    assert (found.timetable, found.lower_bound) == (hint, 3)


SLOW = problem(
    2,
    2,
    [
        *((0, "TC", 1955, 980), (1, "TCandVC", 3333, 1667), (2, "TC", 1955, 980), (3, "TC", 1955, 980)),
        *((4, "VC", 2158, 1079), (5, "VC", 196, 98), (6, "TC", 3126, 1565), (7, "TC", 3126, 1565)),
        *((8, "TCandVC", 2582, 1302), (9, "TC", 9367, 4686), (10, "TC", 9367, 4686), (11, "VC", 2158, 1079)),
        (12, "VC", 196, 98),
    ],
    *((1, 2), (1, 3), (3, 4), (4, 5), (5, 6), (5, 7), (7, 8), (8, 9), (8, 10), (10, 11), (11, 12)),
)
"""A layer of a small model in backward, 2% open after 3.2 s of CP-SAT's work."""


def test_a_limit_on_work_is_the_same_on_every_run_and_proves_what_cp_sat_leaves_open() -> None:
    block = block_of(SLOW)
    found = [improve(block, in_turn(block), 0, work_s=work) for work in (0.05, 0.05, 1.6)]
    assert found[0] == found[1]
    assert found[0].lower_bound < found[2].lower_bound == found[2].timetable.makespan(block) == 19_837
    assert solve(SLOW, 3.2, by_work=True).status is Status.OPTIMAL


@pytest.mark.parametrize("seed", range(times(3, 60)))
def test_no_stretch_is_shorter_than_its_bounds(seed: int) -> None:
    block = block_of(random_problem(seed, 10, 2, 1 + seed % 3))
    masks = downsets(block, MOST_DOWNSETS)
    assert masks
    lattice = Lattice(block, masks)
    edges, cost = lattice.stretches(FAR)
    bounds = [cost, lattice.longest_chains(edges), lattice.busy(edges)]
    for k in random.Random(seed).sample(range(len(cost)), 20):
        part = stretch(block, int(lattice.masks[edges.after[k]] & ~lattice.masks[edges.before[k]]))
        in_turn_ = Timetable(starts=tuple(accumulate((0, *part.latency)))[:-1], split=(False,) * part.size)
        least, table, _ = cp_sat.solve_stretch(part, in_turn_, 0, sum(part.latency), 10.0)
        assert max(int(each[k]) for each in bounds) <= least == table.makespan(part)
