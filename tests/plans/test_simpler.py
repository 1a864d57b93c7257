"""Memory that stays free, and the simplest plan that is as good."""

from __future__ import annotations

import pytest

import sartor
from sartor.errors import InputError
from sartor.plans.next import CLOSE, mechanisms
from sartor.report.plan_words import plan_lines, room_words
from sartor.run.fields import Origin
from sartor.step.footprint import FIT_PROBABILITY, fit_probability, usable_bytes

ASKED = {"num_devices": 64, "global_batch_size": 512, "seq_len": 8192}


@pytest.fixture(scope="module")
def answer() -> sartor.answers.PlanAnswer:
    return sartor.plan("llama-3-8b", "dgx-h100", **ASKED)  # type: ignore[arg-type]


def test_8_bits_are_tried_on_a_near_plan_where_the_same_has_no_room() -> None:
    best = sartor.plan("llama-3-8b", "dgx-h100", num_devices=64)
    narrow = sartor.plan("llama-3-8b", "dgx-h100", num_devices=64, dtype="fp8_current")
    (step,) = (step for step in best.next_steps if "--dtype fp8_current" in step.change)
    assert "on a near plan with more room" in step.change
    assert narrow.best is not None
    assert best.best is not None
    assert 1 < step.speedup <= best.best.step_s / narrow.best.step_s


def test_every_plan_fits_with_the_usual_probability(answer: sartor.answers.PlanAnswer) -> None:
    plans = (*answer.search.top, *answer.front)
    assert all(fit_probability(plan.peak_bytes, answer.cluster) >= FIT_PROBABILITY for plan in plans)
    assert answer.fit_probability == answer.to_dict()["fit_probability"] >= FIT_PROBABILITY


def test_a_plan_that_must_fit_more_surely_is_not_faster(answer: sartor.answers.PlanAnswer) -> None:
    steps = []
    for probability in (0.5, 0.9, 0.99):
        found = sartor.plan("llama-3-8b", "dgx-h100", fit_probability=probability, **ASKED)  # type: ignore[arg-type]
        assert found.best is not None
        assert fit_probability(found.best.peak_bytes, found.cluster) >= probability
        assert found.run.origin("headroom") is Origin.IMPLIED
        steps.append(found.best.step_s)
    assert steps == sorted(steps)
    assert steps[1] == answer.best.step_s  # type: ignore[union-attr]


@pytest.mark.parametrize(("probability", "headroom"), [(0.3, None), (1.0, None), (0.95, 0.1)])
def test_a_probability_of_fit_is_one_and_stands_alone(probability: float, headroom: float | None) -> None:
    options = {"fit_probability": probability, "headroom": headroom}
    with pytest.raises(InputError, match=r"must be from 0\.5 to 0\.999|states another"):
        sartor.plan("llama-3-8b", "dgx-h100", **options, **ASKED)  # type: ignore[arg-type]


def test_a_chip_of_ones_own_holds_what_is_predicted() -> None:
    own = sartor.plan("llama-3-8b", "tpu_v4_like", num_devices=16, global_batch_size=64, seq_len=2048)
    assert own.search.headroom == 0
    assert own.fit_probability in (None, 1.0)


def test_more_headroom_never_makes_a_step_shorter(answer: sartor.answers.PlanAnswer) -> None:
    roomy = sartor.plan("llama-3-8b", "dgx-h100", headroom=0.3, **ASKED)  # type: ignore[arg-type]
    assert roomy.best is not None
    assert answer.best is not None
    assert roomy.best.step_s >= answer.best.step_s
    assert roomy.best.peak_bytes <= 0.7 * usable_bytes(answer.cluster)


@pytest.mark.parametrize("headroom", [-0.1, 1.0])
def test_headroom_is_a_share(headroom: float) -> None:
    with pytest.raises(InputError, match="share of memory, from 0 to below 1"):
        sartor.plan("llama-3-8b", "dgx-h100", headroom=headroom, **ASKED)  # type: ignore[arg-type]


def test_the_simpler_plan_has_fewer_mechanisms_and_is_about_as_fast(answer: sartor.answers.PlanAnswer) -> None:
    best, found = answer.best, answer.simpler
    assert best is not None
    assert found is not None
    assert len(mechanisms(found.priced.plan)) < len(mechanisms(best.plan))
    assert best.step_s <= found.priced.step_s < (1 + CLOSE) * best.step_s
    assert "pairs of plans this close are ranked correctly 70% of the time" in " ".join(plan_lines(answer))


def test_what_the_allocator_reserves_is_said_where_it_is_clearly_more(answer: sartor.answers.PlanAnswer) -> None:
    room = usable_bytes(answer.cluster)
    words = room_words(0.5 * room, answer.cluster, 0.0, 0.6 * room)
    assert "39.6 GiB of 79.2 GiB, the allocator will reserve 47.5 GiB, over 99%" in words
    assert "reserve" not in room_words(0.5 * room, answer.cluster, 0.0, 0.505 * room)
