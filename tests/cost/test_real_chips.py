"""GPUs drawn in the chip template beside the same GPUs by the package's calibrated model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

import sartor
from sartor.cost.chip.operator_latency import _operator_time_s, operator_floor, operator_latencies
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.price import price
from sartor.errors import InputError
from sartor.hardware.accelerator import SUSTAINED_SHARES
from sartor.hardware.accelerator_catalog import load_accelerator, load_device
from sartor.model.lower import lower
from sartor.model.training import Recipe, TrainingJob
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import Attention, Collective, CollectiveKind, Gemm, MemoryBound, MemoryBoundKind, Part
from sartor.schedules.makespan import timing_fields
from sartor.step.coefficients import coefficients_for, in_a_run
from sartor.step.trainers import TRAINERS

PAIRS = {
    "a100_like": "a100_sxm",
    "h100_like": "h100_sxm",
    "mi300x_like": "mi300x",
    "tpu_v4_lanes": "tpu_v4",
    "tpu_v5e_like": "tpu_v5e",
    "tpu_v6e_like": "tpu_v6e",
}
HEADS = {"num_heads": 16, "num_kv_heads": 16, "head_dim": 128, "v_head_dim": 128}
ATTENTION = Attention(name="attention", batch=1, seq_q=2048, seq_kv=2048, **HEADS)  # type: ignore[arg-type]


PACKAGES = {"b200_like": "b200_sxm", "tpu_v7_like": "tpu_v7", "trainium2_like": "trainium2"}


@pytest.mark.parametrize("size", [4096, 8192])
@pytest.mark.parametrize("chip", [*PAIRS, "b200_like", "tpu_v7_like"])
def test_a_device_in_the_template_multiplies_within_15_percent_of_its_catalogue_rate(chip: str, size: int) -> None:
    device = (PAIRS | PACKAGES)[chip]
    drawn, calibrated = (sartor.gemm(size, size, size, gpu=name).cost.time_s for name in (chip, device))
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


def test_an_operator_starts_after_the_one_before_it() -> None:
    chip = load_accelerator("tpu_v4_lanes")
    late = replace(chip, operator_start_s=5e-6)
    product = Gemm(name="product", m=512, n=512, k=512)
    stream = MemoryBound(name="residual", kind=MemoryBoundKind.RESIDUAL, rows=512, cols=512, bytes_moved=1e6)
    for op in (product, stream, ATTENTION):
        assert _operator_time_s(op, late) == pytest.approx(_operator_time_s(op, chip) + 5e-6)
        assert operator_floor(op, late).least_s == pytest.approx(operator_floor(op, chip).least_s + 5e-6)
        assert operator_latencies([op], late)[1] == pytest.approx(_operator_time_s(op, late))
    sent = Collective(name="sum", kind=CollectiveKind.ALL_GATHER, message_bytes=1e8, group_size=4)
    assert _operator_time_s(sent, late) == _operator_time_s(sent, chip)
    assert timing_fields(late) != timing_fields(chip)


JOBS = {"gpt2-xl": (1024, 4), "bert-large": (512, 16), "llama-2-7b": (4096, 1), "llama-3.1-70b": (8192, 1)}
JOBS |= {"gpt3-175b": (2048, 1)}
"""Model -> tokens per sequence, sequences."""


def share_of_the_calibrated(chip: str, model: str) -> float:
    """Seconds of a training microbatch on one device drawn in the template over those of the calibrated device."""
    drawn, calibrated = microbatch_s(chip, model)
    return drawn / calibrated


@cache
def microbatch_s(chip: str, model: str) -> tuple[float, float]:
    """Seconds on the device drawn in the template, and on the calibrated one."""
    tokens, sequences = JOBS[model]
    shape = load_model(model)
    work = Workload(shape=shape, microbatch_size=sequences, seq_len=tokens)
    seconds = []
    for name in (chip, (PAIRS | PACKAGES)[chip]):
        device = load_device(name)
        trainer = TRAINERS["maxtext" if "tpu" in name else "megatron"]
        job = TrainingJob(shape=shape, seq_len=tokens, global_batch_size=sequences, recipe=Recipe.BF16, trainer=trainer)
        constants = coefficients_for(job, device)
        estimate = price(lower(work, ParallelDims()), device, in_a_run(load_calibration(device), constants))
        costs = zip(estimate.graph.operators, estimate.costs, strict=True)
        factor = {Part.LAYER: constants.compute_factor}
        seconds.append(sum(float(cost.time_s) * float(op.count) * factor.get(op.part, 1.0) for op, cost in costs))
    return seconds[0], seconds[1]


@pytest.mark.parametrize("chip", PAIRS)
def test_a_training_microbatch_in_the_template_takes_what_the_calibrated_device_takes(chip: str) -> None:
    """Within a tenth in two of three cases, at worst 28% fast (BERT on TPU v6e, attention with heads of 64 on arrays of
    256, which nobody timed) and 17% slow."""
    shares = np.array([share_of_the_calibrated(chip, model) for model in JOBS])
    assert np.exp(np.mean(np.log(shares))) == pytest.approx(1, abs=0.15)
    assert shares.min() > 0.72
    assert shares.max() < 1.18


def test_most_training_microbatches_in_the_template_are_within_a_tenth() -> None:
    shares = np.array([share_of_the_calibrated(chip, model) for chip in PAIRS for model in JOBS])
    assert np.mean(np.abs(shares - 1) <= 0.1) >= 0.6


def test_which_of_two_chips_is_faster_is_right_in_95_percent_of_pairs() -> None:
    """Nine real chips on five jobs, drawn and calibrated (of Trainium2 and TPU7x, nothing was timed)."""
    right = []
    for model in JOBS:
        for a, b in combinations((microbatch_s(chip, model) for chip in PAIRS | PACKAGES), 2):
            right.append((a[0] < b[0]) == (a[1] < b[1]))
    assert len(right) == 180
    assert np.mean(right) >= 0.95
