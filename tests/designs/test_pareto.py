"""Fronts hold what trying everything finds, and everything is covered by them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from design_samples import QUESTIONS, SPACES, every_option, question, small_space
from sartor.designs.candidates import Ranked, candidates_of, priced
from sartor.designs.front import METRICS, pareto_front, value_of
from sartor.designs.point import Point, ScheduleStore, evaluate_point
from sartor.designs.question import Budgets
from sartor.errors import InputError
from sartor.pareto import is_pareto


@pytest.fixture(scope="module")
def everything() -> list[Ranked]:
    """Every accelerator and memory of the small space, with every option tried."""
    asked, space = QUESTIONS[1], SPACES[1]
    candidates, _ = candidates_of(asked, space)
    store, options = ScheduleStore(), tuple(every_option(asked, 0))
    points = [
        Point(index=i, accelerator=candidates.accelerator(i), hbm_bytes=float(hbm), options=options)
        for i in range(len(candidates))
        for hbm in candidates.hbm_bytes[:, i]
    ]
    ranked = [priced(asked, evaluate_point(asked, point, store)) for point in points]
    return [each for each in ranked if each.objective > 0]


def rows(points: list[Ranked] | tuple[Ranked, ...], metrics: tuple[str, ...]) -> np.ndarray:  # type: ignore[type-arg]
    sign = [-1.0 if name == "objective" else 1.0 for name in metrics]
    return np.array([[s * value_of(point, name) for s, name in zip(sign, metrics, strict=True)] for point in points])


PAIRS = list(combinations(METRICS, 2))


@pytest.mark.parametrize(
    "metrics", [*PAIRS[:4], PAIRS[4], ("objective", "area_mm2", "usd"), ("objective", "power_w", "hbm_bytes")]
)
def test_a_front_is_that_of_all_points(everything: list[Ranked], metrics: tuple[str, ...]) -> None:
    front = pareto_front(QUESTIONS[1], SPACES[1], metrics)
    whole = rows(everything, metrics)
    expected = np.unique(np.round(whole[is_pareto(whole)], 9), axis=0)
    found = np.unique(np.round(rows(front.points, metrics), 9), axis=0)
    assert front.complete
    assert found == pytest.approx(expected)


def test_within_a_tolerance_every_point_is_covered_and_fewer_are_evaluated(everything: list[Ranked]) -> None:
    exact, rough = (pareto_front(QUESTIONS[1], SPACES[1], ("objective", "area_mm2"), tolerance=t) for t in (0.0, 0.5))
    assert rough.evaluated <= exact.evaluated
    for point in everything:
        assert any(
            each.area_mm2 <= point.area_mm2 * (1 + 1e-9) and each.objective * 1.5 >= point.objective * (1 - 1e-9)
            for each in rough.points
        )


def test_a_front_out_of_time_says_what_is_open() -> None:
    front = pareto_front(QUESTIONS[1], SPACES[1], ("objective", "power_w"), time_limit_s=0.0)
    assert not front.complete
    assert front.open_points > 0


def test_a_space_beyond_the_budget_has_no_front_and_says_why() -> None:
    front = pareto_front(question(budgets=Budgets(area_mm2=0.01)), small_space(), ("objective", "area_mm2"))
    assert front.points == ()
    assert "area_mm2" in front.why


@pytest.mark.parametrize("metrics", [("objective",), ("objective", "colour")])
def test_metrics_that_make_no_front_are_refused(metrics: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"^pareto="):
        pareto_front(QUESTIONS[1], SPACES[1], metrics)
