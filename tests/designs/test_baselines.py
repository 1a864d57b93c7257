"""Baselines are priced by the same cost model, so the proved best of a space that holds them is never behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from design_samples import QUESTIONS, SPACES, question, small_shape, small_space
from sartor.designs.baselines import NamedChip, chip_baselines, known_chips
from sartor.designs.candidates import DesignStatus, candidates_of
from sartor.designs.front import front_over, not_dominated
from sartor.designs.question import DesignModel, ExpertPlan
from sartor.designs.search import search_design
from sartor.errors import InputError
from sartor.hardware.accelerator import IN_LONG_RUNS
from sartor.read.space_file import load_space

EXPERT = DesignModel(name="small", shape=small_shape(), seq_len=128, widths=(1, 2), expert=ExpertPlan(pp=2, dp=2, tp=2))


def test_expert_placement_is_no_faster_than_searched_and_searched_no_faster_than_the_best_chip() -> None:
    asked, space = question(models=(EXPERT,)), small_space()
    candidates, _ = candidates_of(asked, space)
    chip = NamedChip(name="first", accelerator=candidates.accelerator(0), hbm_bytes=space.hbm_bytes)
    expert, searched = chip_baselines(asked, [chip])
    best = search_design(asked, space).best
    assert expert.ranked is not None
    assert searched.ranked is not None
    assert best is not None
    assert expert.ranked.objective <= searched.ranked.objective * (1 + 1e-9)
    assert searched.ranked.objective <= best.objective * (1 + 1e-9)


@pytest.mark.parametrize("name", ["phaze", "modern"])
def test_known_chips_sustain_what_the_chips_of_the_space_do(name: str) -> None:
    space = load_space(name)
    wanted = [getattr(space.groups[0], field) for field in IN_LONG_RUNS]
    chips = [each.accelerator for each in known_chips(question(), space)]
    assert all([getattr(chip, field) for field in IN_LONG_RUNS] == wanted for chip in chips)


def test_a_placement_that_does_not_fit_is_a_sentence() -> None:
    asked = question(models=(EXPERT,))
    candidates, _ = candidates_of(asked, small_space())
    chip = NamedChip(name="tiny", accelerator=candidates.accelerator(0), hbm_bytes=(1e3,))
    expert, searched = chip_baselines(asked, [chip])
    assert expert.ranked is None
    assert searched.ranked is None
    assert "fit" in expert.note
    assert "fits" in searched.note


def test_a_front_over_area_rises_and_every_point_is_proved() -> None:
    results = front_over(QUESTIONS[1], SPACES[1], "area_mm2", steps=3)
    values = [result.best.objective for result in results if result.best]
    assert values == sorted(values)
    assert {result.status for result in results} == {DesignStatus.OPTIMAL}


def test_a_front_over_what_is_no_budget_is_refused() -> None:
    with pytest.raises(InputError, match="area_mm2"):
        front_over(QUESTIONS[1], SPACES[1], "colour")


def test_points_that_another_beats_are_left_out() -> None:
    result = search_design(QUESTIONS[1], SPACES[1])
    front = not_dominated(result.ranked)
    assert front[0].objective == result.ranked[0].objective
    areas = [(each.area_mm2, each.power_w) for each in front]
    assert len(set(areas)) == len(areas)
    nowhere = [replace(each, objective=0.0) for each in result.ranked]
    assert not_dominated(nowhere) == ()
    assert not_dominated([*result.ranked, *nowhere]) == front
