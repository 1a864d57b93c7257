"""What a row leaves blank is the fastest plan that fits, and the interval spans the others that fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sartor.validate.training_predictions import TrainingOutcome, predict_training, settled
from sartor.validate.training_rows import _training_case
from validate.training_rows_made import made

BLANK = {"mbs": "", "grad_accum": ""}


def priced(**change: Any) -> TrainingOutcome:
    (found,) = predict_training([_training_case(made(**change))])
    assert found.reason == ""
    return found


def test_a_row_that_states_its_plan_leaves_nothing_open() -> None:
    case = _training_case(made())
    assert case.open_plans is None
    assert settled(case) == (case, 0.0)


@pytest.mark.parametrize("change", [BLANK, {"vp": ""}, BLANK | {"vp": "", "recompute": "unknown"}])
def test_no_stated_plan_that_fits_is_faster_than_what_a_blank_becomes(change: dict[str, Any]) -> None:
    blank = priced(**change)
    plan = blank.case.plan
    assert plan is not None
    assert blank.fits
    for size in (1, 2, 4) if "mbs" in change else ():
        stated = priced(mbs=size, grad_accum=16 // size, vp=plan.virtual_stages)
        assert not stated.fits or blank.predicted_s <= stated.predicted_s * (1 + 1e-9)


def test_the_interval_is_wider_by_the_spread_of_the_plans_that_fit() -> None:
    case = _training_case(made(**BLANK))
    chosen, spread = settled(case)
    assert spread > 0
    (stated,) = predict_training([chosen])
    assert math.isclose(priced(**BLANK).log_sigma, math.hypot(stated.log_sigma, spread))


def test_what_does_not_fit_is_not_chosen() -> None:
    small = priced(**BLANK, seq=16384, recompute="none")
    assert small.fits
    assert small.case.plan is not None
    assert np.all(np.less_equal(small.case.plan.microbatch_size, 2))


def test_expert_parallelism_left_blank_divides_experts_and_ranks() -> None:
    moe = {"experts": 64, "topk": 8, "moe_d_ff": 1024, "ep": "", "vp": 1}
    case = _training_case(made(**moe))
    assert case.open_plans is not None
    assert set(np.ravel(case.open_plans.dims.ep).tolist()) == {1, 2, 4}
    assert any("expert parallelism not stated" in phrase for phrase in case.assumed)
