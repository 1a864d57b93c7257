"""Kernels inside a training run: what a serving framework falls back to is not what a trainer calls."""

from __future__ import annotations

import pytest

import sartor
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.gpu.gemm import gemm_cost
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.model.editing import edit
from sartor.model.zoo import load_model
from sartor.operators import DType, Gemm
from sartor.step.coefficients import TrainingCoefficients, in_a_run


@pytest.mark.parametrize("name", GPUS.names())
def test_no_width_of_heads_is_slower_than_a_wider_one_on_padded_heads(name: str) -> None:
    efficiency = in_a_run(load_calibration(load_gpu(name)), TrainingCoefficients()).attention.efficiency
    for width, rate in efficiency:
        assert all(rate >= other * width / wide for wide, other in efficiency if wide > width)


def test_heads_of_192_on_blackwell_take_no_kernel_of_an_older_generation() -> None:
    table = load_calibration(load_gpu("gb200"))
    run = in_a_run(table, TrainingCoefficients())
    assert dict(table.attention.efficiency)[192] < 0.15
    assert dict(run.attention.efficiency)[192] > 0.35
    assert dict(run.attention.efficiency)[128] == dict(table.attention.efficiency)[128]


def test_unfused_scores_of_a_v100_are_written_at_a_third_of_its_bandwidth_and_more() -> None:
    """Its streaming kernels reach nine tenths whatever they write (data/measured, memory_bound); until 2026-11-23 a
    fit of sweeps that no result bounds made it an eighth."""
    v100 = load_gpu("v100_sxm")
    scores = Gemm(name="scores", batch=64, m=2048, n=2048, k=128, dtype=DType.FP16)
    seconds = float(gemm_cost(scores, v100, load_calibration(v100)).time_s)
    assert scores.bytes_moved / seconds > v100.hbm_bytes_per_s / 3


def test_many_narrow_experts_take_twice_as_long_on_a_tpu_as_a_few_wide_ones() -> None:
    """MFU of 25 to 28% for 50, as measured on v5p: rows are gathered one by one."""
    few = load_model("mixtral-8x7b")
    many = edit(few, num_experts=56, experts_per_token=14, expert_ffn_hidden_size=2048)
    job = {"cluster": "tpu-v5p", "num_devices": 32, "global_batch_size": 256}
    plan = {"microbatch_size": 8, "zero_stage": 3, "recompute": "full"}
    wide, narrow = (sartor.estimate(shape, **job, **plan).time_s for shape in (few, many))
    assert 1.5 < narrow / wide < 2
