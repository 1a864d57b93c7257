"""The joint search finds what trying everything finds, and its bounds never lie below what is reached."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from design_samples import QUESTIONS, SPACES, best_by_trying_all, every_option, question, small_shape, small_space
from effort import times
from sartor.cost.chip.ownership import too_hot
from sartor.designs import search
from sartor.designs.bounds import evaluated_joules, lower_models, plan_rates, work_rates
from sartor.designs.candidates import DesignStatus, Progress, candidates_of
from sartor.designs.parts import CopySplit
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_option, evaluate_point
from sartor.designs.question import AreaModel, Budgets, DesignCosts, DesignModel, DesignQuestion, Mean, Objective
from sartor.designs.search import search_design
from sartor.designs.sensitivity import cautions, left_out
from sartor.designs.space import AcceleratorSpace, published_space, space_from, taken
from sartor.designs.tasks import Result, Task, run_task
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.model.training import Optimizer, Recompute
from sartor.model.workload import Phase
from sartor.placement.problem import PlacementTerms
from sartor.report.design_words import not_buildable_text


def point(index: int, accelerator: Accelerator, hbm_bytes: float, options: tuple[Option, ...]) -> Point:
    return Point(index=index, accelerator=accelerator, hbm_bytes=hbm_bytes, options=options)


@pytest.mark.parametrize("objective", list(Objective))
def test_the_search_finds_what_trying_everything_finds(objective: Objective) -> None:
    result = search_design(replace(QUESTIONS[1], objective=objective), SPACES[1])
    assert result.status is DesignStatus.OPTIMAL
    assert result.best is not None
    assert result.best.objective == pytest.approx(best_by_trying_all(1, objective=objective), rel=1e-9)
    assert result.gap == 0
    assert result.evaluated < result.evaluated + result.pruned


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_random_spaces_are_searched_exactly(quarter: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces (a hundred in the long run, of every objective here too), whose every chip, memory and plan is
    evaluated; every other one in fine boxes, as a large space is."""
    for seed in range(25 * quarter, 25 * quarter + times(8, 25)):
        draw = np.random.default_rng(seed)
        axes = {
            "num_tensor_cores": [1, 2, 4, 8],
            "num_vector_cores": [1, 2, 4],
            "array_rows": [8, 16, 32],
            "array_cols": [8, 16, 32],
            "vector_lanes": [8, 32, 128],
            "tensor_core_sram_kib": [1, 2, 4, 16, 64, 256],
            "vector_core_sram_kib": [1, 8],
            "global_buffer_mib": [0.25, 1, 2],
            "clock_mhz": [700, 1400],
            "num_stacks": [1, 4],
            "num_links": [2, 6],
            "num_dies": [1, 2, 4],
            "num_io_dies": [0, 0, 2],
            "die_to_die_gb_per_s": [0.5, 20, 1000],
            "scale_up_devices": [1, 2, 4],
            "scale_out_gb_per_s": [5, 50],
        }
        several = set(draw.choice(list(axes), 3, replace=False))
        drawn = {key: draw.choice(v, 1 + (key in several), replace=False).tolist() for key, v in axes.items()}
        space = small_space(**drawn, area_model="die", node_nm=7, hbm_gb=[float(draw.choice([0.02, 0.05, 0.2]))])
        asked = question(objective=list(Objective)[seed % len(Objective)], microbatch_sizes=(int(draw.choice([1, 4])),))
        monkeypatch.setattr(search, "FINE", seed % 2 << 62)
        result, most = search_design(asked, space), best_of_all(asked, space)
        assert (result.best.objective if result.best else 0.0) == pytest.approx(most, rel=1e-9), seed


def best_of_all(asked: DesignQuestion, space: AcceleratorSpace) -> float:
    """The best objective of one model, by evaluating every option on every chip."""
    (candidates, _), options, store = candidates_of(asked, space), tuple(every_option(asked, 0)), ScheduleStore()
    most = 0.0
    for i in range(len(candidates)):
        for h in range(len(candidates.hbm_bytes)):
            at = point(i, candidates.accelerator(i), float(candidates.hbm_bytes[h, i]), options)
            most = max(most, evaluate_point(asked, at, store).rates[0] / candidates.divisor[h, i])
    return most


@pytest.mark.slow
def test_a_search_that_scouts_first_finds_what_trying_everything_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FIRST_CHUNK", 1)
    monkeypatch.setattr(search, "FIRST_BOXES", 2)
    steps: list[Progress] = []
    result = search_design(QUESTIONS[1], SPACES[1], on_progress=steps.append)
    assert [step.phase for step in steps[:3]] == ["bounds"] * 3
    assert 0 < steps[2].incumbent <= result.upper_bound <= steps[2].bound
    assert result.best is not None
    assert result.best.objective == pytest.approx(best_by_trying_all(1), rel=1e-9)
    assert result.best in result.ranked


def test_a_scouted_chip_of_a_search_cut_short_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_time(*_: object) -> None:
        raise search.OutOfTime

    monkeypatch.setattr(search, "FIRST_CHUNK", 1)
    monkeypatch.setattr(search, "FIRST_BOXES", 2)
    monkeypatch.setattr(search.SearchState, "until_proved", out_of_time)
    result = search_design(QUESTIONS[1], SPACES[1])
    assert result.best is not None
    assert result.evaluated == len(result.ranked) == 2
    assert result.ranked[0] == result.best
    assert result.evaluated + result.pruned + result.left_out + result.waiting == result.num_points


def test_a_search_out_of_time_before_its_first_chip_still_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a limit of seconds may pass while the space is bounded."""

    def out_of_time(*_: object) -> None:
        raise search.OutOfTime

    monkeypatch.setattr(search, "run_in_time", out_of_time)
    result = search_design(QUESTIONS[1], SPACES[1], time_limit_s=search.ANSWERED_S)
    assert result.status is DesignStatus.FEASIBLE
    assert result.best is not None
    assert 0 < result.best.objective <= best_by_trying_all(1) <= result.upper_bound * (1 + 1e-9) < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("kind", [1, 2])
def test_a_box_is_bounded_by_no_less_than_any_chip_in_it(kind: int) -> None:
    varied = {"num_stacks": [2, 4], "num_links": [2, 6], "vector_lanes": [16, 32], "memory": ["hbm2", "hbm3"]}
    varied |= {"num_dies": [1, 2], "die_to_die_gb_per_s": [1, 100]}
    space = small_space(**varied, global_buffer_mib=[1, 2], scale_up_devices=[2, 8], scale_out_gb_per_s=[10, 50])
    asked, (candidates, _) = QUESTIONS[kind], candidates_of(QUESTIONS[kind], space)
    members_of_boxes, chips = candidates.boxes()
    boxes = [(members, chips.accelerator(b)) for b, members in enumerate(members_of_boxes)]
    assert sorted(np.concatenate([members for members, _ in boxes])) == list(range(len(candidates)))
    for model in lower_models(asked):
        for parts in model.parts.values():
            for members, best in boxes[::7]:
                rates = [work_rates(asked, parts, candidates.accelerator(i), 2e8) for i in members]
                assert max(rates) <= work_rates(asked, parts, best, 2e8) * (1 + 1e-12)


@pytest.mark.slow
def test_with_every_kind_of_plan_the_search_finds_what_trying_everything_finds() -> None:
    result = search_design(QUESTIONS["plans"], SPACES["plans"])
    assert result.best is not None
    assert result.status is DesignStatus.OPTIMAL
    assert result.best.objective == pytest.approx(best_by_trying_all("plans"), rel=1e-9)
    published = search_design(question(microbatch_sizes=(1,)), SPACES["plans"])
    assert published.best is None or published.best.objective < result.best.objective


@pytest.mark.slow
@pytest.mark.parametrize("mean", list(Mean))
def test_several_models_are_weighed_as_asked(mean: Mean) -> None:
    result = search_design(replace(QUESTIONS[2], mean=mean), SPACES[2])
    assert result.best is not None
    assert result.status is DesignStatus.OPTIMAL
    assert result.best.objective == pytest.approx(best_by_trying_all(2, mean=mean), rel=1e-9)
    rates = np.array(result.best.evaluation.rates)
    by_hand = (rates * [1, 2]).sum() / 3 if mean is Mean.ARITHMETIC else (rates[0] * rates[1] ** 2) ** (1 / 3)
    assert result.best.objective == pytest.approx(by_hand)


@pytest.mark.slow
def test_chips_no_one_can_build_are_left_out_or_priced_and_marked() -> None:
    space = small_space(clock_mhz=[1000, 9000], num_tensor_cores=[1], array_rows=[16])
    asked = question(costs=DesignCosts(area=AreaModel.DIE), recomputes=(Recompute.NONE,))
    free = replace(asked, budgets=Budgets(plausible=False))
    results = [search_design(each, space) for each in (asked, free)]
    best, mad = (each.best for each in results)
    assert best is not None
    assert mad is not None
    assert (best.evaluation.point.accelerator.clock_hz, mad.evaluation.point.accelerator.clock_hz) == (1e9, 9e9)
    assert "this chip cannot be built: clock_mhz=9,000" in cautions(free, space, results[1])[0]
    assert any("clock_mhz=1000 is the smallest of its axis" in each for each in cautions(asked, space, results[0]))
    assert next(left_out(asked, space)).startswith("2 of 4 chips are left out because they cannot be built")
    assert list(left_out(free, space)) == []
    published = replace(asked, costs=DesignCosts())
    (marked, *_) = cautions(published, space, search_design(published, space))
    assert "this chip cannot be built: clock_mhz=9,000" in marked
    assert "counts only cores and buffers" in marked
    chips = [each.evaluation.point.accelerator for each in (best, mad)]
    assert not_buildable_text(published, chips[0]) == ""
    assert not_buildable_text(published, chips[1]).startswith("A chip that cannot be built (clock_mhz=9,000")
    assert "--space modern searches chips that can" in not_buildable_text(published, chips[1])
    assert "--plausibility searches chips that can" in not_buildable_text(free, chips[1])


def test_a_best_chip_on_a_plateau_or_hotter_than_most_is_marked() -> None:
    space = small_space(num_vector_cores=[1], array_rows=[32], num_tensor_cores=[4])
    asked = question(recomputes=(Recompute.NONE,))
    result = search_design(asked, space)
    assert result.best is not None
    assert not any("plateau" in each for each in cautions(asked, space, replace(result, ranked=(result.best,))))
    point = result.best.evaluation.point
    other = replace(point, accelerator=replace(point.accelerator, num_vector_cores=3))
    twin = replace(result.best, evaluation=replace(result.best.evaluation, point=other))
    for share, is_near in ((0.995, True), (0.98, False)):
        near = replace(twin, objective=share * result.best.objective)
        told = cautions(asked, space, replace(result, ranked=(result.best, near)))
        assert any("on a plateau: at least another chip comes within 1%" in each for each in told) == is_near
    hot = replace(load_accelerator("h100_like"), clock_hz=2.5e9)
    assert "W/cm2 on the die with all parts at peak rate: H100 has 86" in too_hot(hot)
    assert too_hot(load_accelerator("a100_like")) == ""


def test_a_space_no_one_can_build_is_refused_with_the_number_that_breaks_it() -> None:
    found = search_design(question(costs=DesignCosts(area=AreaModel.DIE)), small_space(clock_mhz=[9000]))
    assert found.status is DesignStatus.INFEASIBLE
    assert "candidates can be built" in found.tightest
    assert "clock_mhz=9,000" in found.tightest


def test_memory_decides_between_recomputing_and_keeping() -> None:
    asked = question(microbatch_sizes=(4,))
    answers = [search_design(asked, small_space(hbm_gb=[gb])) for gb in (0.02, 2.0)]
    rates = [answer.best.objective if answer.best else 0.0 for answer in answers]
    assert rates[0] < rates[1]
    outcome = answers[1].best.evaluation.outcomes[0] if answers[1].best else None
    assert outcome is not None
    assert outcome.option.recompute is Recompute.NONE


def test_richer_placement_terms_are_searched_exactly_too() -> None:
    terms = PlacementTerms(zero_stages=(1,), virtual_stages=(2,), resync_factor=2.0)
    asked = question(terms=terms, microbatch_sizes=(1,))
    space = small_space(num_vector_cores=[2], hbm_gb=[0.02])
    result = search_design(asked, space)
    assert result.best is not None
    candidates, _ = candidates_of(asked, space)
    everything = [
        evaluate_point(asked, point(i, candidates.accelerator(i), 2e7, tuple(every_option(asked, 0)))).rates[0]
        for i in range(len(candidates))
    ]
    assert result.best.objective == pytest.approx(max(everything), rel=1e-9)


def test_no_memory_that_holds_the_model_is_an_answer() -> None:
    result = search_design(question(), small_space(hbm_gb=[0.0001]))
    assert result.status is DesignStatus.INFEASIBLE
    assert result.best is None
    assert "hbm" in result.tightest


@pytest.mark.parametrize(
    ("budgets", "named"),
    [(Budgets(area_mm2=0.01), "area_mm2"), (Budgets(power_w=1e-3), "power_w"), (Budgets(hbm_bytes=1.0), "hbm_bytes")],
)
def test_an_impossible_budget_is_named_with_what_the_smallest_candidate_takes(budgets: Budgets, named: str) -> None:
    result = search_design(question(budgets=budgets), small_space())
    assert result.status is DesignStatus.INFEASIBLE
    assert result.tightest.startswith(named)


@pytest.mark.slow
def test_a_budget_keeps_its_candidates_out() -> None:
    space = small_space()
    free = search_design(question(), space).best
    assert free is not None
    tight = search_design(question(budgets=Budgets(area_mm2=free.area_mm2 * 0.9)), space).best
    assert tight is not None
    assert tight.area_mm2 <= free.area_mm2 * 0.9
    assert tight.objective <= free.objective


def test_an_energy_budget_leaves_only_plans_within_it() -> None:
    asked, space = question(microbatch_sizes=(4,)), small_space(num_tensor_cores=[4], num_vector_cores=[2])
    assert search_design(replace(asked, budgets=Budgets(energy_j_per_token=1e-30)), space).best is None
    assert search_design(replace(asked, budgets=Budgets(energy_j_per_token=1e30)), space).best is not None


@pytest.mark.slow
@pytest.mark.parametrize("served", [False, True])
def test_an_energy_budget_that_nothing_meets_names_the_nearest_without_looking_at_points(served: bool) -> None:
    asked, space = question(microbatch_sizes=(4,)), small_space(num_tensor_cores=[1, 4], num_vector_cores=[2])
    if served:
        asked = replace(asked, models=tuple(replace(model, phase=Phase.PREFILL) for model in asked.models))
    result = search_design(replace(asked, budgets=Budgets(energy_j_per_token=1e-30)), space)
    assert result.status is DesignStatus.INFEASIBLE
    assert result.evaluated == 0
    near = float(result.tightest.partition("; energy_j_per_token=")[2].removesuffix(" is reached"))
    found = search_design(replace(asked, budgets=Budgets(energy_j_per_token=near)), space).best
    assert found is not None
    taken = [evaluated_joules(asked, found.evaluation, m) or 0.0 for m in range(len(asked.models))]
    assert 0 < max(taken) <= near
    below = search_design(replace(asked, budgets=Budgets(energy_j_per_token=0.5 * near)), space)
    assert below.best is None


def test_a_search_out_of_time_says_how_far_from_the_best_it_can_be() -> None:
    best = search_design(question(), small_space()).best
    result = search_design(question(), small_space(), time_limit_s=0.0)
    assert result.status is DesignStatus.UNKNOWN
    assert best is not None
    assert result.upper_bound >= best.objective


def test_an_interrupt_keeps_the_best_and_its_gap() -> None:
    def stop(progress: Progress) -> None:
        if progress.evaluated == 1:
            raise KeyboardInterrupt

    result = search_design(question(), small_space(), on_progress=stop)
    assert result.interrupted
    assert result.best is not None
    assert result.upper_bound >= result.best.objective


def test_the_bound_falls_and_the_incumbent_rises() -> None:
    result = search_design(question(), small_space())
    bounds, values = ([getattr(p, name) for p in result.trajectory] for name in ("bound", "incumbent"))
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(bounds))
    assert all(a <= b for a, b in pairwise(values))


def test_work_done_elsewhere_gives_the_same_answer() -> None:
    asked, space = question(), small_space()

    def through_pickles(asked: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
        return (pickle.loads(pickle.dumps(run_task(*pickle.loads(pickle.dumps((asked, task)))))) for task in tasks)

    alone, elsewhere = search_design(asked, space), search_design(asked, space, run=through_pickles)
    assert elsewhere.best == alone.best
    assert elsewhere.ranked == alone.ranked
    assert [(p.bound, p.incumbent) for p in elsewhere.trajectory] == [(p.bound, p.incumbent) for p in alone.trajectory]


@pytest.mark.slow
def test_a_tolerance_is_part_of_the_proof() -> None:
    best, asked = search_design(question(), small_space()).best, question()
    assert best is not None
    result = search_design(asked, small_space(), tolerance=0.5)
    assert result.best is not None
    assert result.best.objective <= best.objective <= result.upper_bound * (1 + 1e-9)
    assert result.gap <= 0.5


@pytest.mark.slow
@settings(max_examples=times(16, 50), deadline=None)
@given(
    index=st.integers(0, 29_359),
    hbm=st.sampled_from((6e6, 8e6, 1.2e7, 3e7, 1e9)),
    sized=st.sampled_from(((1, 1), (1, 2), (4, 1), (4, 2))),
    contexts=st.sampled_from((1, 2)),
    plans=st.fixed_dictionaries(
        {
            "zero_stages": st.sampled_from(((0,), (0, 1), (2,), (0, 1, 2, 3))),
            "virtual_stages": st.sampled_from(((1,), (1, 2), (1, 2, 4))),
            "optimizer": st.sampled_from((Optimizer.ADAM, Optimizer.SGD)),
        }
    ),
)
def test_no_point_of_the_published_space_reaches_more_than_its_bounds(
    index: int, hbm: float, sized: tuple[int, int], contexts: int, plans: dict[str, Any]
) -> None:
    asked, group = question(context_widths=(contexts,), **plans), published_space().groups[0]
    split, accelerator = CopySplit(*sized, context_parallel=contexts), taken(group, np.array([index]))
    parts = lower_models(asked)[0].parts[split]
    loose = min(work_rates(asked, parts, accelerator)[0], work_rates(asked, parts, accelerator, hbm)[0])
    tight = plan_rates(asked, parts, accelerator, np.full((1, 1), hbm))[:, 0, 0]
    assert (tight <= loose * (1 + 1e-9)).all()
    here = point(index, taken(group, index), hbm, ())
    for option in every_option(asked, 0):
        if option.split == split:
            outcome, bound = evaluate_option(asked, here, option, ScheduleStore())
            reached = outcome.sequences_per_s if outcome else 0.0
            assert reached <= bound * (1 + 1e-12)
            assert reached <= tight[list(asked.recomputes).index(option.recompute)] * (1 + 1e-9)


def test_the_published_space_is_the_published_one() -> None:
    space = published_space()
    assert space.num_points == 75_712
    assert space.num_kept == 29_360
    found, _ = candidates_of(question(), space)
    assert len(found) == 29_360


def test_every_candidate_of_a_space_is_counted_once_in_all_its_groups() -> None:
    space = small_space(node_nm=[22, 7], memory=["hbm2", "hbm3"], clock_mhz={"from": 800, "to": 1200, "step": 200})
    assert len(space.groups) == 4
    assert space.num_kept == space.num_points == 4 * 3 * 8


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tensor_cores": 1}, "num_tensor_cores"),
        ({"array_rows": [0]}, "array_rows"),
        ({"array_rows": [1.5]}, "array_rows"),
        ({"array_rows": {"from": 8, "to": 4, "step": 1}}, "array_rows"),
        ({"array_rows": {"from": 8, "to": 4}}, "array_rows"),
        ({"array_rows": {"from": 8, "to": 64, "factor": 1}}, "array_rows"),
        ({"array_rows": "wide"}, "array_rows"),
        ({"node_nm": 6}, "node_nm"),
        ({"memory": "hbm9"}, "memory"),
        ({"clock_mhz": {"from": 1, "to": 1e9, "step": 1e-3}}, "clock_mhz"),
    ],
)
def test_a_space_that_cannot_be_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(InputError) as caught:
        small_space(**change)
    assert named in str(caught.value)


def test_a_space_must_state_its_cores() -> None:
    with pytest.raises(InputError, match="num_vector_cores"):
        space_from({"num_tensor_cores": 1})


def test_a_model_that_no_width_splits_leaves_nothing() -> None:
    asked = question(models=(DesignModel(name="small", shape=small_shape(), seq_len=128, widths=(3,)),))
    assert search_design(asked, small_space()).status is DesignStatus.INFEASIBLE


def test_every_chip_with_a_memory_is_counted_once() -> None:
    asked = question(microbatch_sizes=(4,), recomputes=(Recompute.NONE,))
    space = small_space(num_vector_cores=[1], array_rows=[16])
    most = search_design(asked, space)
    assert most.best is not None
    tight = search_design(replace(asked, budgets=Budgets(area_mm2=most.best.area_mm2 * 0.9)), space)
    nothing = search_design(replace(asked, budgets=Budgets(area_mm2=0.01)), space)
    late = search_design(asked, space, time_limit_s=1e-6)
    for found in (most, tight, nothing, late):
        assert (found.num_candidates, found.num_points) == (2, 2 * 2)
        assert found.space_size == found.num_points * len(asked.microbatch_sizes) * len(asked.recomputes)
        counts = (found.evaluated, found.pruned, found.left_out, found.waiting)
        assert sum(counts) == found.num_points
    assert (most.left_out, most.waiting, nothing.left_out, late.waiting) == (0, 0, 4, 4)
    assert tight.left_out == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [1, 2, "plans"])
def test_fine_boxes_with_second_bounds_of_their_own_change_no_answer(
    kind: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a space of millions is searched: boxes differ in memories, buffers and links alone, and are bounded twice."""
    varied = {"num_stacks": [2, 4], "num_links": [2, 6], "tensor_core_sram_kib": [4, 16], "memory": ["hbm2", "hbm3"]}
    space, asked = small_space(**varied, num_tensor_cores=[1, 4], global_buffer_mib=[1, 2]), QUESTIONS[kind]
    plain = search_design(asked, space)
    monkeypatch.setattr(search, "FINE", 0)
    monkeypatch.setattr(search, "SHARPENED", 2)
    fine = search_design(asked, space)
    assert plain.best is not None
    assert fine.best is not None
    assert fine.best.objective == pytest.approx(plain.best.objective, rel=1e-9)
    assert fine.status is plain.status is DesignStatus.OPTIMAL


def test_a_point_whose_bound_ties_with_the_rest_is_evaluated() -> None:
    """A box's bound is that of its best chip, once that one is bounded: waiting for a larger one would never end."""

    class Tied(search.SearchState):
        def next_first(self) -> float:
            return 7.0

        def is_blunt(self, number: int) -> bool:
            return False

        def _point_task(self, number: int) -> Any:
            self.heap = []
            return number

    space = small_space(num_vector_cores=[2])
    state = Tied(question=QUESTIONS[1], space=space, tolerance=0.0, on_progress=None, start=0.0, time_limit_s=1.0)
    state.rounds, state.heap = 2, [(-7.0, 3, 0)]
    assert state.point_tasks() == [3]
