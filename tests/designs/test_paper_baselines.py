"""The searches of the papers (benchmarks/): a sampled architecture and a published order, never ahead of the proof."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from design_samples import QUESTIONS, SPACES, question, small_shape, small_space
from sartor.designs.baselines import rule_of_thumb
from sartor.designs.point import ScheduleStore
from sartor.designs.question import DesignModel, ExpertPlan
from sartor.designs.search import search_design

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from published_order import published_order
from sampled_design import architecture_alone, architecture_search

EXPERT = DesignModel(name="small", shape=small_shape(), seq_len=128, widths=(1, 2), expert=ExpertPlan(pp=2, dp=2, tp=2))
ASKED = question(models=(EXPERT,), microbatch_sizes=(1,))
SPACE = small_space(hbm_gb=[0.2], num_vector_cores=[2])


def test_the_same_seed_finds_the_same_architecture() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    one, two = (architecture_search(ASKED, SPACE, trials=8, seed=3) for _ in range(2))
    assert one == two
    assert one.trials == 8
    assert one.accelerator is not None


def test_sampled_architectures_are_never_ahead_of_the_proved_best() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    alone, then = architecture_alone(ASKED, SPACE, ScheduleStore(), trials=8)
    best = search_design(ASKED, SPACE).best
    assert best is not None
    assert alone.ranked is not None
    assert then.ranked is not None
    assert alone.ranked.objective <= then.ranked.objective * (1 + 1e-9)
    assert then.ranked.objective <= best.objective * (1 + 1e-9)


def test_the_published_order_never_beats_the_proof() -> None:
    found, best = published_order(QUESTIONS[1], SPACES[1]), search_design(QUESTIONS[1], SPACES[1]).best
    assert found.ranked is not None
    assert best is not None
    assert found.ranked.objective <= best.objective * (1 + 1e-9)
    assert found.evaluations >= 5 or "before" in found.note or found.evaluations == 8


def test_the_rule_of_thumb_takes_the_smallest_group_that_holds_the_model() -> None:
    asked = replace(ASKED, models=(replace(EXPERT, expert=None),))
    roomy, tight = rule_of_thumb(asked, 0, 2e8), rule_of_thumb(asked, 0, 2e7)
    assert roomy == ExpertPlan(tp=1, pp=1, dp=8)
    assert tight is not None
    assert tight.tp * tight.pp > 1
    assert rule_of_thumb(asked, 0, 1e3) is None
