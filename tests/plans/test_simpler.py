"""Memory that stays free, and the simplest plan that is as good."""

from __future__ import annotations

import pytest

import sartor
from sartor.errors import InputError
from sartor.plans.next import CLOSE, mechanisms
from sartor.report.plan_words import memory_text, plan_lines
from sartor.step.footprint import usable_bytes

ASKED = {"num_devices": 64, "global_batch_size": 512, "seq_len": 8192}


@pytest.fixture(scope="module")
def answer() -> sartor.answers.PlanAnswer:
    return sartor.plan("llama-3-8b", "dgx-h100", **ASKED)  # type: ignore[arg-type]


def test_every_plan_leaves_a_twentieth_of_the_memory_free(answer: sartor.answers.PlanAnswer) -> None:
    limit = 0.95 * usable_bytes(answer.cluster)
    assert answer.search.headroom == 0.05
    assert all(plan.peak_bytes <= limit for plan in (*answer.search.top, *answer.front))


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


def test_a_clamp_is_not_shown_as_a_prediction(answer: sartor.answers.PlanAnswer) -> None:
    assert answer.best is not None
    words = memory_text(answer.best, answer.best.peak_bytes)
    assert "of it in use" in words
