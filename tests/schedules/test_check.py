"""The checker accepts what is a schedule and names what is not: every rule broken once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sartor.schedules import Mode, OperatorRun
from sartor.schedules.problem import violations
from schedules.instances import problem, sharing

PROBLEM = problem(
    2, 2, [("a", "TC", 4, 2), ("n", "Nop", 9, 9), ("b", "VC", 3, 2), ("f", "TCandVC", 5, 3)], ("a", "n"), ("n", "b")
)


def row(id_: str, start: int, end: int, mode: str, tensor: tuple[int, ...], vector: tuple[int, ...]) -> OperatorRun:
    return OperatorRun(id=id_, start=start, end=end, mode=Mode(mode), tensor_cores=tensor, vector_cores=vector)


GOOD = (row("a", 0, 4, "single", (0,), ()), row("f", 0, 5, "single", (1,), (1,)), row("b", 4, 7, "single", (), (0,)))


def test_a_schedule_is_accepted() -> None:
    assert violations(PROBLEM, GOOD, 7) == ()


def changed(position: int, **fields: Any) -> tuple[OperatorRun, ...]:
    return tuple(replace(r, **fields) if k == position else r for k, r in enumerate(GOOD))


@pytest.mark.parametrize(
    ("rows", "makespan", "said"),
    [
        (GOOD, 8, "stated makespan 8"),
        (GOOD[:2], 5, "'b' runs 0 times"),
        ((*GOOD, GOOD[0]), 7, "'a' runs 2 times"),
        ((*GOOD, row("n", 4, 4, "single", (), ())), 7, "'n' runs 1 times, not 0"),
        ((*GOOD, row("z", 0, 1, "single", (0,), ())), 7, "'z' is not an operator"),
        (changed(0, start=-1, end=3), 7, "before 0"),
        (changed(0, end=3), 7, "takes 3 in mode single, not 4"),
        (changed(2, start=4, end=6), 6, "takes 2 in mode single, not 3"),
        (changed(2, start=3, end=6), 6, "'b' starts at 3, before its predecessors end at 4"),
        (changed(2, start=4, end=6, mode=Mode.INTRA_OP, vector_cores=(0, 1)), 6, "must run alone"),
        (changed(0, tensor_cores=(1,)), 7, "tensor core 1 serves"),
        (changed(0, tensor_cores=(0, 1)), 7, "it needs 1 of 2"),
        (changed(0, tensor_cores=(2,)), 7, "it needs 1 of 2"),
        (changed(0, vector_cores=(0,)), 7, "holds vector cores [0]; it needs 0"),
        (changed(1, vector_cores=()), 7, "it needs 1 of 2"),
        (changed(2, vector_cores=(1,)), 7, "vector core 1 serves"),
    ],
)
def test_what_is_wrong_is_named(rows: tuple[OperatorRun, ...], makespan: int, said: str) -> None:
    assert any(said in sentence for sentence in violations(PROBLEM, rows, makespan)), violations(
        PROBLEM, rows, makespan
    )


def test_traffic_beyond_the_whole_of_a_shared_resource_is_named() -> None:
    assert violations(sharing(PROBLEM, {"hbm": 2}, {}, {"hbm": 2}, {"hbm": 3}), GOOD, 7) == ()
    crowded = sharing(PROBLEM, {"hbm": 2}, {}, {}, {"hbm": 3})
    late = (replace(GOOD[0], start=1, end=5), GOOD[1], replace(GOOD[2], start=5, end=8))
    assert violations(crowded, late, 8) == ()
    both = sharing(problem(1, 1, [(0, "TC", 9, 9), (1, "VC", 9, 9)]), {"hbm": 9}, {"hbm": 9})
    rows = (
        OperatorRun(id=0, start=0, end=9, mode=Mode.SINGLE, tensor_cores=(0,), vector_cores=()),
        OperatorRun(id=1, start=0, end=9, mode=Mode.SINGLE, tensor_cores=(), vector_cores=(0,)),
    )
    assert "hbm needs 18 for all that is moved, longer than the makespan 9" in violations(both, rows, 9)


def test_an_empty_interval_overlaps_nothing() -> None:
    given = problem(1, 1, [(0, "TC", 4, 4), (1, "VC", 0, 7)])
    rows = (
        OperatorRun(id=0, start=0, end=4, mode=Mode.INTRA_OP, tensor_cores=(0,), vector_cores=()),
        OperatorRun(id=1, start=2, end=2, mode=Mode.SINGLE, tensor_cores=(), vector_cores=(0,)),
    )
    assert violations(given, rows, 4) == ()


def test_a_shared_resource_may_be_busy_until_the_makespan_and_not_one_longer() -> None:
    assert violations(replace(PROBLEM, shared=(("hbm", 7),)), GOOD, 7) == ()
    assert "hbm needs 8, longer than the makespan 7" in violations(replace(PROBLEM, shared=(("hbm", 8),)), GOOD, 7)


def test_traffic_between_two_moments_may_fill_them_and_no_more() -> None:
    """Two operators run from 4 to 7: 3 of traffic fill these 3, 4 do not, though the 7 of the makespan hold them."""
    late = problem(2, 1, [(0, "TC", 4, 4), (1, "TC", 3, 3), (2, "TC", 3, 3)])
    times = ((0, 0, 4, (0,)), (1, 4, 7, (0,)), (2, 4, 7, (1,)))
    rows = tuple(replace(row("", *span, "single", core, ()), id=id_) for id_, *span, core in times)
    assert violations(sharing(late, {}, {"hbm": 2}, {"hbm": 1}), rows, 7) == ()
    faults = violations(sharing(late, {}, {"hbm": 2}, {"hbm": 2}), rows, 7)
    assert faults == ("hbm needs 4 for what is moved from 4 to 7",)


@pytest.mark.parametrize(("start", "faults"), [(4, 0), (3, 1)])
def test_a_core_serves_the_next_operator_from_the_end_of_the_last(start: int, faults: int) -> None:
    one_core = problem(1, 1, [(0, "TC", 4, 4), (1, "TC", 0, 0), (2, "TC", 3, 3)])
    rows = [row("", *times, "single", (0,), ()) for times in ((0, 4), (2, 2), (start, start + 3))]
    times = tuple(replace(each, id=id_) for id_, each in enumerate(rows))
    assert len(violations(one_core, times, start + 3)) == faults
