"""Chips no one can build are named with the number that breaks each limit; chips that exist are within all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accelerators import TPU
from sartor.cost.chip.area import die_area
from sartor.cost.chip.ownership import (
    MAX_CLOCK_HZ,
    MAX_PACKAGE_W,
    MAX_W_PER_MM2,
    RETICLE_MM2,
    dies_usd,
    excess,
    faults,
    fits_reticle,
)
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.hardware.catalog import ACCELERATORS, GPUS, load_gpu

CHIP = replace(TPU, node_nm=7)


@pytest.mark.parametrize("name", ACCELERATORS.names())
def test_every_chip_of_the_catalogue_can_be_built(name: str) -> None:
    chip = load_accelerator(name)
    assert list(faults(chip)) == []
    assert float(excess(chip)) <= 1


@pytest.mark.parametrize("name", GPUS.names())
def test_no_limit_lies_below_a_gpu_or_tpu_of_the_catalogue(name: str) -> None:
    gpu = load_gpu(name)
    assert max(gpu.boost_clock_hz, gpu.max_clock_hz) <= MAX_CLOCK_HZ
    assert gpu.tdp_w <= MAX_PACKAGE_W
    assert gpu.die_mm2 <= RETICLE_MM2
    assert gpu.tdp_w <= MAX_W_PER_MM2 * (gpu.die_mm2 or np.inf)


@pytest.mark.parametrize(
    ("chip", "words"),
    [
        (replace(CHIP, clock_hz=10e9), "clock_mhz=10,000: no array has shipped above 2,800 MHz"),
        (replace(CHIP, clock_hz=10e9), "W/mm2 on the die: cold plates take about 2"),
        (replace(CHIP, num_stacks=9), "need 70 mm for stacks: the two long edges of a die of"),
        (replace(CHIP, num_stacks=64), "64 stacks of hbm2 and 6 links of 50 GB/s need 501 mm of die edge"),
        (replace(CHIP, num_links=600), "4 stacks of hbm2 and 600 links of 50 GB/s need 531 mm of die edge"),
        (replace(CHIP, num_links=600), "a whole die of 4,027 mm2"),
        (replace(CHIP, num_tensor_cores=512), "the most in one package is 1,400 W"),
    ],
)
def test_what_no_one_can_build_is_told_with_the_number_that_breaks_it(chip: Accelerator, words: str) -> None:
    assert list(faults(CHIP)) == []
    assert words in "; ".join(faults(chip))


def test_a_chip_chosen_among_many_must_fit_the_reticle_surely() -> None:
    chip = load_accelerator("h100_like")
    assert fits_reticle(chip) == pytest.approx(0.68, abs=0.01)
    assert float(excess(chip)) <= 1 < float(excess(chip, surely=True))
    (words,) = faults(chip, surely=True)
    assert words.endswith("scanners expose 858 mm2 (68% sure to fit; a search asks for 84%)")


def test_many_chips_are_judged_as_each_alone() -> None:
    many = replace(CHIP, clock_hz=np.array([1e9, 10e9, 1e9]), num_links=np.array([6, 6, 600]))
    alone = [float(excess(replace(CHIP, clock_hz=c, num_links=n))) for c, n in ((1e9, 6), (10e9, 6), (1e9, 600))]
    assert np.asarray(excess(many)).tolist() == alone
    assert [each <= 1 for each in alone] == [True, False, False]


def test_a_die_beyond_the_reticle_is_refused_by_its_own_size_not_by_the_packages() -> None:
    large = replace(CHIP, num_tensor_cores=24)
    (words,) = faults(large)
    assert words.startswith("a whole die of 874 mm2")
    halves = replace(large, num_dies=2, die_to_die_bytes_per_s=5e12)
    assert list(faults(halves)) == []
    quarters = replace(CHIP, num_tensor_cores=72, num_dies=2, die_to_die_bytes_per_s=5e12)
    assert any("(each of 2)" in fault and "scanners expose 858 mm2" in fault for fault in faults(quarters))
    assert np.isinf(dies_usd(large, die_area(large).total_mm2))
    assert np.isfinite(dies_usd(halves, die_area(halves).total_mm2))


def test_several_small_dies_yield_more_than_a_large_one() -> None:
    """Each die is tested before it is mounted: only its own defects cost it."""
    area = 800.0
    one, four = (dies_usd(replace(CHIP, num_dies=n, die_to_die_bytes_per_s=1e12), area) for n in (1, 4))
    assert four < 0.85 * one
    on_io = replace(CHIP, num_dies=4, num_io_dies=2, io_node_nm=22, die_to_die_bytes_per_s=1e12)
    assert dies_usd(on_io, area) < four  # the rest of the area at the older node's price


def test_a_package_has_room_for_its_dies_and_stacks() -> None:
    many = replace(CHIP, num_dies=8, die_to_die_bytes_per_s=1e12, num_tensor_cores=48, num_stacks=24)
    assert any(words.startswith("dies and stacks of ") for words in faults(many))


def test_dies_that_share_a_package_need_a_link() -> None:
    with pytest.raises(InputError, match="die_to_die_gb_per_s=0: must be above 0 where 2 dies share a package"):
        replace(CHIP, num_dies=2)
    with pytest.raises(InputError, match="io_node_nm=6: no area or energy is known for it; nearest: 7 or 5"):
        replace(CHIP, num_io_dies=2, die_to_die_bytes_per_s=1e12, io_node_nm=6)
