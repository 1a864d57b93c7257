"""How firmly the best chip stands: ranges within 1% of it and 30% errors, beside every chip priced by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from design_samples import question, small_space
from sartor.designs.baselines import point_on
from sartor.designs.bounds import lower_models
from sartor.designs.candidates import JointResult, candidates_of, priced
from sartor.designs.point import evaluate_point
from sartor.designs.question import Budgets, Objective
from sartor.designs.search import search_design
from sartor.designs.sensitivity import PLATEAU, SWINGS, Nearby, nearby
from sartor.model.training import Recompute

pytestmark = pytest.mark.slow

ASKED = question(microbatch_sizes=(4,), recomputes=(Recompute.NONE,))
SPACE = small_space(num_tensor_cores=[4], array_rows=[16], num_vector_cores=[1, 2], global_buffer_mib=[1, 2, 4])


@pytest.fixture(scope="module", name="result")
def _result() -> JointResult:
    return search_design(ASKED, SPACE)


@pytest.fixture(scope="module", name="found")
def _found(result: JointResult) -> Nearby:
    found = nearby(ASKED, SPACE, result)
    assert found is not None
    return found


def test_a_range_holds_the_neighbours_on_its_axis_within_one_percent_of_the_best(
    result: JointResult, found: Nearby
) -> None:
    best, models = result.best, lower_models(ASKED)
    assert best is not None
    chip, hbm = best.evaluation.point.accelerator, best.evaluation.point.hbm_bytes
    assert set(found.near_best) == {"num_vector_cores", "global_buffer_mib"}
    candidates, _ = candidates_of(ASKED, SPACE)
    for other in map(candidates.accelerator, range(len(candidates))):
        rate = priced(ASKED, evaluate_point(ASKED, point_on(ASKED, models, other, hbm))).objective
        if other.num_vector_cores == chip.num_vector_cores:
            low, high = found.near_best["global_buffer_mib"]
            assert (low <= other.global_buffer_bytes / 2**20 <= high) == (rate >= (1 - PLATEAU) * best.objective)


def test_each_assumption_is_changed_both_ways_and_faster_is_never_slower(result: JointResult, found: Nearby) -> None:
    assert result.best is not None
    assert [(each.assumption, each.change) for each in found.swings] == [
        each for each in SWINGS if each[0] != "scale-out rate"
    ], "the chips' links join all devices"
    by = {(each.assumption, each.change): each for each in found.swings}
    for name in ("HBM rate", "link rate"):
        assert by[name, -0.3].objective <= result.best.objective * (1 + 1e-6) <= by[name, 0.3].objective * (1 + 2e-6)
    for each in found.swings:
        assert each.survives == (each.objective >= each.best_objective * (1 - 1e-9))
        assert each.num_rivals > 0


def test_a_slower_rate_is_never_a_gain_per_watt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sartor.designs.sensitivity.RIVALS", 0)
    asked = replace(ASKED, objective=Objective.PER_WATT)
    best = search_design(asked, SPACE)
    found = nearby(asked, SPACE, best)
    assert best.best is not None
    assert found is not None
    for each in found.swings:
        low, high = each.objective, best.best.objective
        if (each.change > 0) != (each.assumption == "link latency"):
            low, high = high, low
        assert low <= high * (1 + 1e-6), each


def test_without_a_best_chip_there_is_no_neighbourhood() -> None:
    none = question(budgets=Budgets(area_mm2=0.01))
    assert nearby(none, SPACE, search_design(none, SPACE)) is None
