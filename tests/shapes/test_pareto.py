"""The non-dominated filter against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sartor.pareto import _of_several, _of_two, is_pareto


def brute_force(points: np.ndarray) -> np.ndarray:
    nowhere_larger = (points[:, None, :] <= points[None, :, :]).all(axis=2)
    somewhere_smaller = (points[:, None, :] < points[None, :, :]).any(axis=2)
    return ~(nowhere_larger & somewhere_smaller).any(axis=0)


small_points = hnp.arrays(
    np.float64,
    st.tuples(st.integers(0, 60), st.integers(1, 4)),
    elements=st.integers(0, 6).map(float) | st.just(float("inf")),
)


@given(small_points)
def test_the_front_is_what_the_definition_says(points: np.ndarray) -> None:
    assert is_pareto(points).tolist() == brute_force(points).tolist()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_the_front_of_many_points_is_what_the_definition_says(seed: int, objectives: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.round(rng.random((1500, objectives)), 2)
    assert is_pareto(points).tolist() == brute_force(points).tolist()


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 600), st.just(2)), elements=st.integers(0, 40).map(float)))
def test_sorting_two_objectives_finds_the_front_of_the_general_way(points: np.ndarray) -> None:
    points[::7, 1], points[::11, 0] = np.inf, -0.0
    assert sorted(_of_two(points)) == _of_several(points).tolist()


def test_equal_points_stand_or_fall_together() -> None:
    assert is_pareto([[1, 2], [1, 2], [2, 1], [2, 2]]).tolist() == [True, True, True, False]


def test_a_point_that_never_finishes_is_beaten_by_any_that_does() -> None:
    assert is_pareto([[np.inf, np.inf], [3.0, 3.0]]).tolist() == [False, True]


def test_the_order_of_the_points_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    points = np.round(rng.random((2000, 4)), 2)
    order = rng.permutation(len(points))
    assert is_pareto(points)[order].tolist() == is_pareto(points[order]).tolist()


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        is_pareto([[1.0, float("nan")]])


def test_one_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        is_pareto([1.0, 2.0])
