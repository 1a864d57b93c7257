"""Generations held out of the joint fit, by coefficients that never saw them: a gate on the rules that carry them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accuracy.measured_tables import gemm_targets
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.carrying import REFERENCE, Rates, rescaled
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.cost import Z80
from sartor.cost.gpu.gemm import gemm_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm

HELD_OUT = tomllib.loads(
    (Path(__file__).resolve().parents[2] / "lab" / "joint_held_out.toml").read_text(encoding="utf-8")
)
BF16 = [(generation, gpu) for generation, entry in HELD_OUT.items() for gpu in entry["bf16"]["errors"]]
SAMPLE = 1500


def without(generation: str, gpu: Gpu) -> Any:
    """Coefficients of bf16 products made from the other generations, on this device's datasheet."""
    table = HELD_OUT[generation]["bf16"]["gemm"]
    values = {key: tuple(map(tuple, value)) if key == "tiles" else value for key, value in table.items()}
    rates = Rates.of(gpu)
    assert rates is not None
    return rescaled(GemmCoefficients(**values), REFERENCE, rates)


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "name"), BF16)
def test_a_generation_nobody_measured_is_predicted_as_well_as_joint_toml_says(
    shared_dir: Path, generation: str, name: str
) -> None:
    rows, gpu = gemm_targets(shared_dir, name, "bf16"), load_gpu(name)
    chosen = np.random.default_rng(0).choice(len(rows["m"]), SAMPLE, replace=False)
    op = Gemm(name="held out", **{key: rows[key][chosen] for key in "mnk"}, dtype=DType.BF16)
    joint = load_calibration(load_gpu("l40s")).gemm[DType.BF16]
    c = replace(without(generation, gpu), log_sigma=joint.log_sigma, log_sigma_small=joint.log_sigma_small)
    known = load_calibration(gpu)
    cost = gemm_cost(op, gpu, replace(known, gemm={DType.BF16: c}), clock=Clock.BOOST)
    ratio = np.asarray(cost.time_s) / rows["seconds"][chosen]
    assert np.abs(ratio - 1).mean() <= 1.1 * HELD_OUT[generation]["bf16"]["errors"][name]["mape"]
    assert 0.65 <= (np.abs(np.log(ratio)) <= Z80 * np.asarray(cost.log_sigma)).mean() <= 0.95


def test_a_generation_nobody_measured_is_within_twelve_percent_in_sixteen_bits() -> None:
    means = [np.mean([error["mape"] for error in entry["bf16"]["errors"].values()]) for entry in HELD_OUT.values()]
    assert np.mean(means) <= 0.12
