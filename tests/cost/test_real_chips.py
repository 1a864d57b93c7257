"""GPUs drawn in the chip template beside the same GPUs by the package's calibrated model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

import sartor
from sartor.cost.chip.operator_latency import _operator_time_s, operator_floor
from sartor.errors import InputError
from sartor.hardware.accelerator import SUSTAINED_SHARES
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.operators import Collective, CollectiveKind, Gemm, MemoryBound, MemoryBoundKind
from sartor.schedules.makespan import timing_fields

PAIRS = {
    "a100_like": "a100_sxm",
    "h100_like": "h100_sxm",
    "mi300x_like": "mi300x",
    "tpu_v4_lanes": "tpu_v4",
    "tpu_v5e_like": "tpu_v5e",
    "tpu_v6e_like": "tpu_v6e",
}


@pytest.mark.parametrize("size", [4096, 8192])
@pytest.mark.parametrize("chip", PAIRS)
def test_a_device_in_the_template_multiplies_within_15_percent_of_its_catalogue_rate(chip: str, size: int) -> None:
    drawn, calibrated = (sartor.gemm(size, size, size, gpu=name).cost.time_s for name in (chip, PAIRS[chip]))
    assert drawn == pytest.approx(calibrated, rel=0.15)


@pytest.mark.parametrize("size", [2048, 4096, 8192])
def test_gpus_in_the_template_are_in_the_order_of_their_calibrated_rates(size: int) -> None:
    def times(names: tuple[str, str]) -> list[float]:
        return [float(sartor.gemm(size, size, size, gpu=name).cost.time_s) for name in names]

    for a, b in combinations([*PAIRS][:3], 2):  # the measured ones
        drawn, calibrated = times((a, b)), times((PAIRS[a], PAIRS[b]))
        assert (drawn[0] < drawn[1]) == (calibrated[0] < calibrated[1])
        assert drawn[0] / drawn[1] == pytest.approx(calibrated[0] / calibrated[1], rel=0.4)


@pytest.mark.parametrize("name", SUSTAINED_SHARES)
def test_a_share_of_the_peak_above_all_of_it_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        replace(load_accelerator("a100_like"), **{name: 1.2})


@pytest.mark.parametrize("name", SUSTAINED_SHARES)
def test_chips_that_differ_in_what_they_sustain_have_schedules_of_their_own(name: str) -> None:
    chip = load_accelerator("a100_like")
    assert timing_fields(chip) != timing_fields(replace(chip, **{name: 0.5}))


def test_half_of_every_peak_takes_twice_as_long() -> None:
    chip = replace(load_accelerator("tpu_v4_lanes"), **dict.fromkeys(SUSTAINED_SHARES, 1.0), link_latency_s=0.0)
    half = replace(chip, **dict.fromkeys(SUSTAINED_SHARES, 0.5))
    stream = MemoryBound(name="residual", kind=MemoryBoundKind.RESIDUAL, rows=8192, cols=8192, bytes_moved=4e8)
    sent = Collective(name="sum", kind=CollectiveKind.ALL_GATHER, message_bytes=1e8, group_size=4)
    product = Gemm(name="product", m=8192, n=8192, k=8192)
    for op in (stream, sent, product):
        assert _operator_time_s(op, half) == pytest.approx(2 * _operator_time_s(op, chip), rel=0.01)
        assert operator_floor(op, half).least_s <= _operator_time_s(op, half) * (1 + 1e-12)
