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

import sartor
from sartor.api.words import cluster_or_usual
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.training import OffloadModule, Optimizer, Recompute, TrainingJob
from sartor.model.workload import PipelineSchedule
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.step.mechanisms import gradient_reduction, offload, optimizer, pipeline_bubble
from sartor.step.stage_seconds import StepWork
from sartor.step.states import moment_bytes
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
    monkeypatch.setattr(gradient_reduction, "_last_s", lambda s: np.array([[5.0]]))
    assert gradient_reduction._on_ranks(stage).tolist() == [[5 + 0.5 + 0.25]]  # both tables on the only stage
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
    rounds, plain = pipeline_bubble._batch_limits, replace(MEGATRON, schedules=MEGATRON.schedules[:1])
    ragged, whole, program = (
        replace(JOB, global_batch_size=96, trainer=trainer)
        for trainer in (
            plain,
            replace(plain, ragged_rounds=False),
            replace(plain, ragged_rounds=False, one_program=True),
        )
    )
    chunks = {"pp": 4, "virtual_stages": 2}
    assert [allowed(rounds, job, dp=24, **chunks) for job in (ragged, whole, program)] == [True] * 3  # 4 microbatches
    assert [allowed(rounds, job, dp=16, **chunks) for job in (ragged, whole, program)] == [True, False, False]  # 6
    assert [allowed(rounds, job, dp=32, **chunks) for job in (ragged, whole, program)] == [False] * 3  # 3
    assert [allowed(rounds, job, dp=16, pp=4) for job in (ragged, whole, program)] == [True, True, False]
    bent = replace(whole, trainer=replace(whole.trainer, schedules=(PipelineSchedule.ZERO_BUBBLE_V,)))
    assert [allowed(rounds, bent, dp=16, pp=4, virtual_stages=v) for v in (2, 3)] == [True, False]


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
    eighteen = replace(job, shape=edit(JOB.shape, num_layers=18))
    assert not allowed(pipeline_bubble._chunk_limits, eighteen, pp=6, virtual_stages=2)


def test_embedding_and_head_alone_are_chunks_of_an_interleaved_pipeline_alone() -> None:
    assert allowed(pipeline_bubble._chunk_limits, pp=5, virtual_stages=2)
    assert not allowed(pipeline_bubble._chunk_limits, pp=10)


@pytest.mark.parametrize(("kind", "moved"), [("none", 0.5 * 8 + 0.5 * 16), ("selective", 14.0)])
def test_a_copy_to_the_host_shows_what_the_compute_beside_it_does_not_hide(
    kind: str, moved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the 2 x 3 layers recompute all, which moves 8 s instead of 16; a quarter of that is offloaded at all.
    Forward takes 2 s; backward 0.25 + 0.5 s, and 1 s of recomputation."""
    monkeypatch.setattr(offload, "full_share", lambda s: np.array([0.5]))
    monkeypatch.setattr(offload, "again_s", lambda s: np.array([1.0]))
    monkeypatch.setattr(offload, "mean_layers", lambda s: np.array([6.0]))
    monkeypatch.setattr(offload, "share_moved", lambda job, layers: 1.5 / layers)
    seconds = {"forward_s": 2.0, "backward_s": 0.25, "wgrad_s": 0.5}
    times = SimpleNamespace(**{name: np.array([[value]]) for name, value in seconds.items()})
    moves = np.array([16.0, 14.0, 8.0])[:, None, None]
    stage: Any = SimpleNamespace(
        t=SimpleNamespace(offload_s=moves, seconds=times, job=JOB), at=np.array([0]), counts=np.array([3.0]),
        work={"recompute": np.array([Recompute[kind.upper()]])},
    )  # fmt: skip
    share = offload._at_stage(stage)
    assert share is not None
    assert np.ravel(share.forward_s) == pytest.approx([3 * (moved / 4 - 2)])
    assert np.ravel(share.backward_s) == pytest.approx([3 * (moved / 4 - 1.75)])


def test_seconds_over_the_host_link_are_bytes_over_the_slower_of_link_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload, "microbatch_of", lambda *_: SimpleNamespace(activations=[None, "a block"]))
    monkeypatch.setattr(offload, "moved_bytes", lambda job, act: {kind: 64e9 * (1 + kind) for kind in Recompute})
    rows: Any = SimpleNamespace(tp=1, cp=1, ep=1, sequence_parallel=False, microbatch_size=1, size=2)
    slow: Any = SimpleNamespace(host_link_bytes_per_s=32e9, host_memory_bytes_per_s=64e9)
    job = replace(JOB, offload_modules=(OffloadModule.CORE_ATTN,))
    seconds = offload.offload_seconds(job, rows, slow)
    assert seconds is not None
    assert seconds.tolist() == [[[0, 0], [2 * (1 + kind)] * 2] for kind in Recompute]
    assert offload.offload_seconds(JOB, rows, slow) is None


def test_an_update_in_16_bits_writes_no_copy() -> None:
    half = replace(JOB, trainer=replace(MEGATRON, main_dtype=DType.BF16))
    moments = 2 * 2 * moment_bytes(half)
    assert optimizer._bytes_per_param(half) == 3 * 2 + moments + 12 / 2


def test_an_update_on_a_chip_adds_the_products_of_muon() -> None:
    chip = cluster_or_usual("tpu_v4_like")[0]
    accelerator = chip.gpu.accelerator
    assert accelerator is not None
    muon = replace(JOB, optimizer=Optimizer.MUON)
    update = optimizer.chip_update_s_per_param(accelerator, Optimizer.MUON) + optimizer._newton_schulz_s(muon, chip)
    assert optimizer.optimizer_line(muon, chip, CALIBRATION).s_per_param == pytest.approx(float(update))


def test_a_stage_takes_the_update_of_its_own_place() -> None:
    stage: Any = SimpleNamespace(
        optimizer_s=np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        columns={"optimizer_offload": np.array([0, 1])},
        at=np.array([2, 2]),
    )
    assert optimizer._at_step(stage, {}).tolist() == [3, 6]


def test_each_limit_of_states_is_reached_and_not_passed() -> None:
    muon = replace(JOB, optimizer=Optimizer.MUON, trainer=replace(MEGATRON, most_zero_with_muon=1))
    assert allowed(optimizer._zero_limits, muon, zero_stage=1)
    assert not allowed(optimizer._zero_limits, muon, zero_stage=2)
    adam_alone = replace(JOB, trainer=replace(MEGATRON, offloads_states_of=(Optimizer.ADAM,)), optimizer=Optimizer.SGD)
    assert allowed(optimizer._offload_limits, adam_alone, optimizer_offload=0)
    assert not allowed(optimizer._offload_limits, adam_alone, optimizer_offload=1, zero_stage=1)


def test_a_whole_layer_is_offloaded_without_a_pipeline_alone() -> None:
    job = replace(JOB, trainer=replace(MEGATRON, offloads_layers_alone=True), offload_modules=(OffloadModule.LAYER,))
    assert allowed(offload._pipeline_limits, job, pp=1)
    assert not allowed(offload._pipeline_limits, job, pp=2)


def test_chunks_that_interleave_in_lockstep_are_equal() -> None:
    job = replace(JOB, trainer=replace(MEGATRON, lockstep=True))
    assert allowed(pipeline_bubble._chunk_limits, job, pp=2, virtual_stages=2)
    assert not allowed(pipeline_bubble._chunk_limits, job, pp=3, virtual_stages=2)
    assert allowed(pipeline_bubble._chunk_limits, job, pp=3)
    eighteen = replace(job, shape=edit(JOB.shape, num_layers=18))
    assert not allowed(pipeline_bubble._chunk_limits, eighteen, pp=6, virtual_stages=2)


def test_a_trainer_without_a_pipeline_has_one_stage() -> None:
    plain = replace(JOB, trainer=replace(MEGATRON, pipelines=False))
    tied = replace(
        JOB, shape=replace(JOB.shape, tied_embeddings=True), trainer=replace(MEGATRON, ties_over_stages=False)
    )
    for job in (plain, tied):
        assert allowed(pipeline_bubble._stage_limits, job, pp=1)
        assert not allowed(pipeline_bubble._stage_limits, job, pp=2)


def test_a_search_tries_uneven_chunks_up_to_a_number_and_equal_ones_beyond() -> None:
    few, eighteen = pipeline_bubble.UNEVEN_CHUNKS, replace(JOB, shape=edit(JOB.shape, num_layers=18))
    (tried,) = (row for row in pipeline_bubble._chunk_limits(eighteen) if row.of_search)
    for pp, chunks, is_tried in ((7, few, True), (2, few + 1, True), (4, few + 1, False), (18, few + 1, False)):
        assert bool(tried.ok({"pp": np.array([pp]), "virtual_stages": np.array([chunks])})[0]) is is_tried


def test_a_trainer_that_does_not_interleave_has_one_chunk_a_stage() -> None:
    job = replace(JOB, trainer=replace(MEGATRON, interleaves=False))
    assert allowed(pipeline_bubble._chunk_limits, job, pp=2)
    assert not allowed(pipeline_bubble._chunk_limits, job, pp=2, virtual_stages=2)


def test_four_bits_of_microscaling_are_priced_by_their_own_tables() -> None:
    """MI355X multiplies MXFP4 at twice the rate of MXFP8 and has no NVFP4."""
    steps = {
        name: sartor.estimate("llama-3.1-8b", "mi355x", dtype=name, dp=8, tp=1, pp=1).time_s
        for name in ("bf16", "mxfp8", "mxfp4")
    }
    assert steps["mxfp4"] < steps["mxfp8"] < steps["bf16"]
    with pytest.raises(InputError, match="no matrix units"):
        sartor.estimate("llama-3.1-8b", "mi355x", dtype="nvfp4", dp=8, tp=1, pp=1)
