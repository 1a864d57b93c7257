"""GPUs drawn in the chip template beside the same GPUs by the package's calibrated model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

import sartor
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.schedules.makespan import timing_fields

PAIRS = {"a100_like": "a100_sxm", "h100_like": "h100_sxm", "mi300x_like": "mi300x"}


@pytest.mark.parametrize("size", [4096, 8192])
@pytest.mark.parametrize("chip", PAIRS)
def test_a_gpu_in_the_template_multiplies_within_15_percent_of_its_calibrated_rate(chip: str, size: int) -> None:
    drawn, calibrated = (sartor.gemm(size, size, size, gpu=name).cost.time_s for name in (chip, PAIRS[chip]))
    assert drawn == pytest.approx(calibrated, rel=0.15)


@pytest.mark.parametrize("size", [2048, 4096, 8192])
def test_gpus_in_the_template_are_in_the_order_of_their_calibrated_rates(size: int) -> None:
    def times(names: tuple[str, str]) -> list[float]:
        return [float(sartor.gemm(size, size, size, gpu=name).cost.time_s) for name in names]

    for a, b in combinations(PAIRS, 2):
        drawn, calibrated = times((a, b)), times((PAIRS[a], PAIRS[b]))
        assert (drawn[0] < drawn[1]) == (calibrated[0] < calibrated[1])
        assert drawn[0] / drawn[1] == pytest.approx(calibrated[0] / calibrated[1], rel=0.4)


def test_a_share_of_the_peak_above_all_of_it_is_refused() -> None:
    with pytest.raises(InputError, match="sustained_share"):
        replace(load_accelerator("a100_like"), sustained_share=1.2)


def test_chips_that_differ_in_what_they_sustain_have_schedules_of_their_own() -> None:
    chip = load_accelerator("a100_like")
    assert timing_fields(chip) != timing_fields(replace(chip, sustained_share=0.5))
