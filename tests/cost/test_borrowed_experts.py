"""Whose expert coefficients a device takes whose generation has none of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.relatives import _experts_relative
from sartor.cost.cost import Source
from sartor.cost.gpu.grouped import grouped_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import GroupedGemm

EXPERTS = GroupedGemm(name="e", groups=64, rows=1024, n=4096, k=2048, tokens=128, experts=64)


def of(like: str, generation: str) -> Gpu:
    """A datasheet of one's own."""
    return replace(load_gpu(like), name="mine", generation=generation)


@pytest.mark.parametrize(
    ("like", "generation", "lender"),
    [
        ("l40s", "ada", "rtx_pro_6000_server"),
        ("a100_sxm", "ada", "a100_sxm"),
        ("b200_sxm", "next", "b200_sxm"),
        ("rtx_5090", "next", "rtx_pro_6000_server"),
        ("mi355x", "next", "mi355x"),
        ("h200_sxm", "ada", "h100_sxm"),
        ("mi250x", "cdna2", "mi300x"),
    ],
)
def test_a_generation_nobody_measured_takes_the_experts_of_like_sms_or_of_the_architecture_before_it(
    like: str, generation: str, lender: str
) -> None:
    """Those of the next one if none is measured before it."""
    gpu = of(like, generation)
    assert _experts_relative(gpu).name == lender
    known = load_calibration(gpu)
    assert known.owner("grouped") == f"borrowed from {lender}"
    theirs = load_calibration(load_gpu(lender))
    assert known.grouped.log_sigma > theirs.grouped.log_sigma
    assert known.grouped_families.keys() == theirs.grouped_families.keys()
    cost = grouped_cost(EXPERTS, gpu, known)
    assert cost.source is Source.ANALYTIC
    assert np.isfinite(cost.time_s)


@pytest.mark.parametrize("name", ["h20", "a40", "gh200", "rtx_5090", "mi325x"])
def test_inside_a_measured_generation_the_relative_lends(name: str) -> None:
    relative = _experts_relative(load_gpu(name))
    assert relative.widen < 3
    assert load_gpu(relative.name).generation == load_gpu(name).generation


@pytest.mark.parametrize("name", ["v100_sxm", "t4", "p100_pcie_16gb", "gaudi3", "tpu_v5p"])
def test_without_bf16_or_a_measured_device_of_the_maker_experts_are_assumed(name: str) -> None:
    assert load_calibration(load_gpu(name)).owner("grouped") == "generation"
