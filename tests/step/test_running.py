"""Kernels inside a training run: what a serving framework falls back to is not what a trainer calls."""

from __future__ import annotations

import pytest

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.gpu.rates import LongRun, long_run
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import DType, Gemm
from sartor.step.coefficients import TrainingCoefficients, in_a_run
from sartor.step.question import training_job
from sartor.step.step import step
from sartor.step.trainers.maxtext import MAXTEXT


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
    plan = TrainingPlan(
        dims=ParallelDims(dp=32), microbatch_size=8, num_microbatches=1, zero_stage=3, recompute=Recompute.FULL
    )
    jobs = (TrainingJob(shape=s, seq_len=4096, global_batch_size=256, trainer=MAXTEXT) for s in (few, many))
    wide, narrow = (float(step(job, plan, load_cluster("tpu-v5p").reached(32)).step_s) for job in jobs)
    assert 1.5 < narrow / wide < 2


@pytest.mark.parametrize(("name", "slowed"), [("b200_sxm", 1.39), ("gb200", 1.37), ("gb300", 1.31)])
def test_a_step_in_16_bits_on_blackwell_slows_with_the_power_that_its_peak_asks_of_the_limit(
    name: str, slowed: float
) -> None:
    """(peak / (6e11 FLOP/J x TDP)) ** (1/4), on attention as on GEMMs: they share one clock (docs/concepts/gemm.md)."""
    gpu = load_gpu(name)
    run = in_a_run(load_calibration(gpu), TrainingCoefficients(flops_per_joule=6e11))
    long = long_run(gpu, DType.BF16, run.power, 0.3, Clock.SUSTAINED)
    assert long is not None
    assert long.uniform == pytest.approx(slowed, abs=0.005)
    assert long_run(gpu, DType.FP8, run.power, 0.3, Clock.SUSTAINED) == LongRun(uniform=1.3)


def test_flash_attention_stated_for_a_gpu_that_has_no_such_kernel_is_said_to_have_none() -> None:
    for gpu, words, told in (("v100_sxm", "flash", True), ("v100_sxm", None, False), ("a100_sxm", "flash", False)):
        _, notes = training_job(
            load_model("llama-3-8b"), load_gpu(gpu), global_batch_size=8, framework="megatron", attention=words
        )
        assert any("no kernel of megatron's runs on V100" in note for note in notes) is told
