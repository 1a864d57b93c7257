"""Terms of a step's price by hand: one number each, and each limit reached and passed by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import Optimizer, TrainingJob
from sartor.model.workload import PipelineSchedule
from sartor.model.zoo import load_model
from sartor.step.mechanisms import gradient_reduction, optimizer, pipeline_bubble
from sartor.step.stage_seconds import StepWork
from sartor.step.trainers.megatron import MEGATRON

CLUSTER = load_cluster("dgx-h100")
JOB = TrainingJob(
    shape=edit(load_model("llama-3.1-8b"), num_layers=8), seq_len=4096, global_batch_size=64, trainer=MEGATRON
)
CALIBRATION = load_calibration(CLUSTER.gpu)
ADAM_BYTES = 3 * 4 + 2 * 2 * 4 + 2 + 12
"""Gradient, weight read and written in fp32; two moments read and written; the bf16 copy; the gradient's norm."""


def test_an_update_moves_each_type_once() -> None:
    assert optimizer._bytes_per_param(JOB) == ADAM_BYTES
    assert optimizer._bytes_per_param(replace(JOB, optimizer=Optimizer.SGD)) == ADAM_BYTES - 8
    in_host = optimizer._in_host_s_per_param(JOB, CLUSTER)
    link, memory = CLUSTER.host_link_bytes_per_s, CLUSTER.host_memory_bytes_per_s
    assert in_host == pytest.approx((4 + 2) / link + ADAM_BYTES / memory)


def test_muon_multiplies_fifteen_matrices_at_half_the_peak() -> None:
    muon = replace(JOB, optimizer=Optimizer.MUON)
    peak = peak_flops_per_s(CLUSTER.gpu, CLUSTER.gpu.default_dtype)
    assert optimizer._newton_schulz_s(muon, CLUSTER) == pytest.approx(5 * 6 * 4096 / (0.5 * peak))
    assert optimizer._newton_schulz_s(JOB, CLUSTER) == 0
    plain, orthogonal = (optimizer.optimizer_line(job, CLUSTER, CALIBRATION) for job in (JOB, muon))
    moved = ADAM_BYTES - 8 * (Optimizer.ADAM.moments() - Optimizer.MUON.moments())
    ratio = (orthogonal.s_per_param - 5 * 6 * 4096 / (0.5 * peak)) / plain.s_per_param
    assert ratio == pytest.approx(moved / ADAM_BYTES, rel=1e-6)


def test_an_update_begins_once_and_takes_seconds_per_parameter() -> None:
    line = optimizer.OptimizerLine(start_s=3.0, s_per_param=0.5, offload_s_per_param=2.0)
    assert line.seconds(np.array([0.0, 4.0])).tolist() == [0.0, 3.0 + 4 * 0.5]
    assert line.seconds(np.array([4.0, 4.0]), np.array([False, True])).tolist() == [5.0, 3.0 + 4 * 2.0]
    slope = optimizer.optimizer_line(JOB, CLUSTER, CALIBRATION).s_per_param
    assert ADAM_BYTES / CLUSTER.gpu.hbm_bytes_per_s < slope < 1.5 * ADAM_BYTES / CLUSTER.gpu.hbm_bytes_per_s


def work(**columns: int) -> Any:
    """A stage of 1 s forward and 2 s backward, whose gradients take 3 s of links; half of that time may hide them."""
    axes = {"zero_stage": 2, "pp": 1, "virtual_stages": 1, "num_microbatches": 4} | columns
    trainer = replace(MEGATRON, dp_overlap=True)
    return SimpleNamespace(
        at=np.array([0]),
        of=np.array([0]),
        columns={name: np.array([value]) for name, value in axes.items()},
        trainer=trainer,
        x=SimpleNamespace(grads_total=np.array([[3.0]])),
        work=SimpleNamespace(forward_s=np.array([[1.0]]), rear_s=np.array([[2.0]])),
        c=SimpleNamespace(dp_overlap_share=0.5, sm_contention=0.1),
    )


def test_every_reduction_before_the_last_shows_what_compute_does_not_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_reduction, "reductions", lambda *_: np.array([4]))
    alone = gradient_reduction._earlier_s(work())
    assert alone.tolist() == pytest.approx([3 * (3 - 1.5 + 0.1 * 1.5)])
    staged = gradient_reduction._earlier_s(work(pp=2))  # beside two stages' work of 3 s, all 3 s are hidden
    assert staged.tolist() == pytest.approx([3 * 0.1 * 3])
    monkeypatch.setattr(gradient_reduction, "reductions", lambda *_: np.array([1]))
    assert gradient_reduction._earlier_s(work()).tolist() == [0.0]


def test_the_reduction_after_the_last_microbatch_hides_behind_other_stages_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_reduction, "_last_s", lambda s: np.array([[5.0], [7.0]]))
    monkeypatch.setattr(gradient_reduction, "_earlier_s", lambda s: np.array([0.5]))
    stage = work()
    stage.work.hides_reduce_s, stage.x.tied_s = np.array([[1.0], [4.0]]), np.array([0.25])
    assert gradient_reduction._at_step(stage, {}).tolist() == [max(5 - 1, 7 - 4) + 0.5 + 0.25]
    assert gradient_reduction._on_ranks(stage).tolist() == [[5 + 0.5 + 0.25], [7 + 0.5 + 0.25]]
    stage.work.hides_reduce_s = np.array([[9.0], [9.0]])
    assert gradient_reduction._at_step(stage, {}).tolist() == [0.75]


@given(st.integers(1, 64), st.integers(1, 16), st.floats(0, 20), st.floats(0, 20))
def test_chunks_hide_an_exchange_behind_rounds_of_the_other_chunks(pp: int, v: int, rest: float, beside: float) -> None:
    def exposed(chunks: int, stages: int = pp, kind: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B) -> float:
        columns = {"pp": stages, "virtual_stages": chunks, "schedule": int(kind)}
        fields = dict.fromkeys((f.name for f in dataclasses.fields(StepWork)), None)
        axes = {name: np.array([value]) for name, value in columns.items()}
        step = StepWork(**fields | {"at": np.array([0]), "columns": axes})  # type: ignore[arg-type]
        one = np.array([[1.0]])
        return float(step.exposed_s(0.5 * one, rest * one, 0.9 * one, beside * one)[0, 0])

    alone = 0.5 + max(rest - 0.9 * beside, 0)
    assert exposed(1) == pytest.approx(alone)
    assert exposed(v, kind=PipelineSchedule.DUAL_PIPE_V) == pytest.approx(alone)
    assert 0.5 + max(rest - 0.9 * beside, 0) / v - 1e-9 <= exposed(v) <= alone + 1e-9
    assert exposed(v, pp + 1) <= exposed(v) + 1e-9


def allowed(limits: Callable[[TrainingJob], Any], job: TrainingJob = JOB, **axes: int) -> bool:
    """Whether plans with these axes pass every condition, but for those of the search alone."""
    rows = {"pp": 1, "virtual_stages": 1, "microbatch_size": 1, "dp": 1, "zero_stage": 0, "optimizer_offload": 0} | axes
    columns = {name: np.array([value]) for name, value in rows.items()}
    return all(bool(np.all(each.ok(columns))) for each in limits(job) if not each.of_search)


@pytest.mark.parametrize(
    ("limits", "reached", "passed"),
    [
        (pipeline_bubble._stage_limits, {"pp": 8}, {"pp": 9}),
        (pipeline_bubble._chunk_limits, {"pp": 2, "virtual_stages": 4}, {"pp": 3, "virtual_stages": 3}),
        (pipeline_bubble._chunk_limits, {"pp": 5, "virtual_stages": 2}, {"pp": 1, "virtual_stages": 2}),
        (pipeline_bubble._chunk_limits, {"pp": 1, "virtual_stages": 1}, {"pp": 6, "virtual_stages": 2}),
        (gradient_reduction._replica_limits, {"dp": 64}, {"dp": 63}),
    ],
)
def test_a_degree_may_reach_its_limit_and_not_pass_it(
    limits: Callable[[TrainingJob], Any], reached: dict[str, int], passed: dict[str, int]
) -> None:
    assert allowed(limits, **reached)
    assert not allowed(limits, **passed)


def test_an_interleaved_pipeline_takes_microbatches_in_rounds() -> None:
    rounds = pipeline_bubble._batch_limits
    megatron = replace(JOB, trainer=replace(MEGATRON, schedules=MEGATRON.schedules[:1]))
    assert allowed(rounds, megatron, pp=4, virtual_stages=2, dp=16)  # 4 microbatches
    assert not allowed(rounds, megatron, pp=4, virtual_stages=2, dp=32)  # 2 microbatches
    assert allowed(rounds, megatron, pp=4, virtual_stages=1, dp=32)


def test_a_trainer_that_offloads_sharded_states_alone_refuses_whole_ones() -> None:
    job = replace(JOB, trainer=replace(MEGATRON, offloads_unsharded=False))
    offloading = optimizer._offload_limits
    assert allowed(offloading, job, optimizer_offload=0, zero_stage=0)
    assert allowed(offloading, job, optimizer_offload=1, zero_stage=1)
    assert not allowed(offloading, job, optimizer_offload=1, zero_stage=0)


def test_one_program_has_equal_chunks() -> None:
    job = replace(JOB, trainer=replace(MEGATRON, one_program=True))
    assert allowed(pipeline_bubble._chunk_limits, job, pp=4)
    assert not allowed(pipeline_bubble._chunk_limits, job, pp=3)
