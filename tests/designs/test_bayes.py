"""The architecture searched alone by a Bayesian optimizer: seeded, never ahead of the proof, and optional."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from design_samples import question, small_shape, small_space
from sartor.designs import baselines as joint_baselines
from sartor.designs.baselines import architecture_alone
from sartor.designs.bayes import architecture_search
from sartor.designs.fixed import rule_of_thumb
from sartor.designs.point import ScheduleStore
from sartor.designs.question import DesignModel, ExpertPlan
from sartor.designs.search import search_design

EXPERT = DesignModel(name="small", shape=small_shape(), seq_len=128, widths=(1, 2), expert=ExpertPlan(pp=2, dp=2, tp=2))
ASKED = question(models=(EXPERT,), microbatch_sizes=(1,))
SPACE = small_space(hbm_gb=[0.2], num_vector_cores=[2])


def test_the_same_seed_finds_the_same_architecture() -> None:
    pytest.importorskip("optuna", reason="extra bayes is not installed")
    one, two = (architecture_search(ASKED, SPACE, trials=8, seed=3) for _ in range(2))
    assert one == two
    assert one.trials == 8
    assert one.accelerator is not None


def test_sampled_architectures_are_never_ahead_of_the_proved_best() -> None:
    pytest.importorskip("optuna", reason="extra bayes is not installed")
    alone, then = architecture_alone(ASKED, SPACE, ScheduleStore(), trials=8)
    best = search_design(ASKED, SPACE).best
    assert best is not None
    assert alone.ranked is not None
    assert then.ranked is not None
    assert alone.ranked.objective <= then.ranked.objective * (1 + 1e-9)
    assert then.ranked.objective <= best.objective * (1 + 1e-9)


def test_without_optuna_the_row_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr(joint_baselines, "known_chips", lambda *_: ())
    row, in_order = joint_baselines.compare(ASKED, SPACE)
    assert row.ranked is None
    assert "pip install 'sartor[bayes]'" in row.note
    assert in_order.name.startswith("published order")


def test_the_rule_of_thumb_takes_the_smallest_group_that_holds_the_model() -> None:
    asked = replace(ASKED, models=(replace(EXPERT, expert=None),))
    roomy, tight = rule_of_thumb(asked, 0, 2e8), rule_of_thumb(asked, 0, 2e7)
    assert roomy == ExpertPlan(tp=1, pp=1, dp=8)
    assert tight is not None
    assert tight.tp * tight.pp > 1
    assert rule_of_thumb(asked, 0, 1e3) is None
