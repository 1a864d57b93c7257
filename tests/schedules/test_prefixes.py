"""The search by prefixes is a schedule and a bound: nothing is shorter than one or misses the other."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from effort import times
from sartor.read.problems_json import read_schedule_problem
from sartor.schedules import ScheduledOperator, Status, cp_sat, prefixes, solve
from sartor.schedules.prefixes import MOST_OPERATORS, _undominated, improve
from sartor.schedules.solve import _without_solver
from sartor.schedules.split import OpBlock, Timetable
from schedules.instances import best_by_enumeration, problem, problems, random_problem
from schedules.test_second_clock import block_of, is_schedule


def in_turn(block: OpBlock) -> Timetable:
    """The longest schedule worth having."""
    starts = [sum(block.serial[:i]) for i in range(block.size)]
    return Timetable(starts=tuple(starts), split=block.may_split)


def by_cp_sat(block: OpBlock) -> int:
    """The optimum, by CP-SAT alone."""
    lists = _without_solver(block)
    found = cp_sat.solve_block(block, lists.timetable, lists.lower_bound, 60)
    assert found.lower_bound == found.timetable.makespan(block)
    return found.lower_bound


def proves(block: OpBlock, optimum: int) -> bool:
    """Whether it says the optimum, with a schedule, from lists and from the worst hint there is. One operator is left
    as it is."""
    lists = _without_solver(block)
    if block.size == 1:
        return True
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


@pytest.mark.parametrize("seed", range(times(20, 200)))
def test_a_narrow_search_gives_up_prefixes_and_still_has_a_schedule_and_a_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of(random_problem(seed, 12, 1 + seed % 4, 1 + seed // 2 % 3))
    optimum = by_cp_sat(block)
    for width in (1, 5, 30):
        monkeypatch.setattr(prefixes, "WIDTHS", (width,))
        found = improve(block, in_turn(block), 0)
        assert found.lower_bound <= optimum <= found.timetable.makespan(block)
        assert is_schedule(block, found.timetable)


def test_operators_that_share_memory_or_are_too_many_are_left_as_they_are() -> None:
    shared = block_of(random_problem(3, 10, 2, 2, shared=True))
    many = block_of(problem(2, 1, [(k, "TC", 8 + k, 5) for k in range(MOST_OPERATORS + 1)]))
    for block in (shared, many):
        found = improve(block, in_turn(block), 3, 60)
        assert (found.timetable, found.lower_bound) == (in_turn(block), 3)


def test_times_whose_sums_need_more_than_64_bits_are_left_as_they_are() -> None:
    block = block_of(problem(2, 1, [(k, "TC", 8 + k, 5) for k in range(3)]))
    huge = replace(block, latency=tuple(time << 56 for time in block.latency))
    assert improve(huge, in_turn(huge), 3, 60).lower_bound == 3


@pytest.mark.parametrize("seed", range(times(8, 60)))
def test_none_of_many_prefixes_that_others_beat_is_kept_and_each_other_one_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times_ = rng.integers(0, 6, (3 + seed % 3, 200))
    times_ = times_[:, np.argsort(times_.sum(axis=0), kind="stable")]
    best = [
        k
        for k in range(200)
        if not any(
            (times_[:, j] <= times_[:, k]).all() and (j < k or (times_[:, j] < times_[:, k]).any())
            for j in range(200)
            if j != k
        )
    ]
    assert _undominated(times_).tolist() == best


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
    found = [improve(block, in_turn(block), 0, work_s=work) for work in (0.004, 0.004, 1.6)]
    assert found[0] == found[1]
    assert found[0].lower_bound < found[2].lower_bound == found[2].timetable.makespan(block) == 19_837
    assert solve(SLOW, 3.2, by_work=True).status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("name", "cores", "makespan"),
    [
        *(("gpt3_t4_bwd_c8x2", 2, 60_019), ("llama7b_bwd_c8x2", 2, 59_923), ("bertlarge_bwd_c8x2_w128", 2, 4_299)),
        *(("llama7b_bwd_c8x2", 4, 31_501), ("bertlarge_bwd_c8x2_w128", 4, 2_299)),
        pytest.param("gpt3_t4_bwd_c8x2", 4, 30_842, marks=pytest.mark.slow),
    ],
)
def test_backward_layers_with_perfect_splits_are_proved(name: str, cores: int, makespan: int, shared_dir: Path) -> None:
    given_ = read_schedule_problem(shared_dir / "reference" / "scheduling" / f"{name}.json")
    rows = (replace(op, intra_latency=ceil(op.latency / cores)) for op in given_.operators)
    found = solve(replace(given_, num_tc=cores, num_vc=cores, operators=tuple(rows)), 300.0)  # a busy machine is slow
    assert (found.lower_bound, found.makespan) == (makespan, makespan)


@pytest.mark.parametrize("cores", [2, pytest.param(4, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("name", ["gpt3_t4_bwd_c8x2", "llama7b_bwd_c8x2", "bertlarge_bwd_c8x2_w128"])
def test_backward_layers_that_share_memory_and_buffer_are_proved_too(name: str, cores: int, shared_dir: Path) -> None:
    given_ = read_schedule_problem(shared_dir / "reference" / "scheduling" / f"{name}.json")
    draw = np.random.default_rng(cores)

    def sharing(op: ScheduledOperator) -> ScheduledOperator:
        split = ceil(op.latency / cores)
        moved = tuple((each, int(split * draw.uniform(0.1, 0.9))) for each in ("buffer", "hbm"))
        return replace(op, intra_latency=split, traffic=moved if op.takes_time else ())

    found = solve(replace(given_, num_tc=cores, num_vc=cores, operators=tuple(map(sharing, given_.operators))))
    assert found.gap <= 0.01
