"""A question without a plan is completed by one that fits: every model of the zoo, on devices of every kind."""

from __future__ import annotations

import itertools

import pytest

from effort import times
from sartor import api
from sartor.ask.complete import MOST_DEVICES
from sartor.model.zoo import model_names

DEVICES = ("h100_sxm", "a100_sxm", "h200_sxm", "b200_sxm", "mi300x", "tpu_v5p", "v100_sxm_32gb", "l40s")
PAIRS = [*itertools.product(model_names(), DEVICES)]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "device"), PAIRS[:: times(101, 1)])
def test_a_model_without_a_plan_is_priced_on_one_that_fits(model: str, device: str) -> None:
    held = api.ask(model, device).held
    assert held is not None
    assert held.searched is not None
    fits = float(held.searched.footprint.device_bytes) <= held.limit_bytes
    assert fits or held.num_devices == MOST_DEVICES
