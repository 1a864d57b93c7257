"""Times looked up on the open grid are those of each shape priced alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.shapes.evaluate import Evaluator, look_up
from sartor.shapes.near import build_space
from sartor.shapes.space import same_size

GPUS = (load_gpu("a100"), load_gpu("mi300x"))


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    ("name", "tp", "kernel"),
    [
        ("gpt3-2.7b", 1, AttentionKernel.UNFUSED),
        ("falcon-7b", 1, AttentionKernel.FLASH),
        ("llama-3.1-8b", 4, AttentionKernel.FLASH),
        ("deepseek-v2-lite", 2, AttentionKernel.FLASH),
        ("gpt-j-6b", 2, AttentionKernel.FLASH),
    ],
)
def test_times_of_many_are_the_times_of_each(name: str, tp: int, kernel: AttentionKernel, phase: Phase) -> None:
    dims = ParallelDims(tp=tp)
    workload = Workload(
        shape=load_model(name), phase=phase, microbatch_size=2, seq_len=1024, context_len=512, attention_kernel=kernel
    )
    points = same_size(build_space(workload, dims), dims)
    evaluator = Evaluator(dims=dims, calibrations={})
    many = evaluator.times(points, workload, GPUS)
    fields = points.fields()
    for i in np.random.default_rng(1).integers(0, points.size, 5):
        shape = edit(workload.shape, **{field: int(values[i]) for field, values in fields.items()})
        for gpu, times in zip(GPUS, many, strict=True):
            alone = evaluator.one(replace(workload, shape=shape), gpu).time_s
            assert times[i] == pytest.approx(alone, rel=1e-12)


def test_looking_up_reads_every_axis_the_array_has() -> None:
    grid = np.arange(6).reshape(2, 1, 3)
    index = (np.asarray([0, 1]), np.asarray([4, 5]), np.asarray([2, 0]))
    assert look_up(grid, index).tolist() == [2, 3]
    assert look_up(7.0, index) == 7.0


def test_few_points_are_priced_alone_and_alike() -> None:
    """With fewer points than combinations of an operator's axes, operators are priced at the points."""
    workload = Workload(shape=load_model("llama-3.1-8b"), seq_len=2048, microbatch_size=1)
    points = same_size(build_space(workload, ParallelDims()), ParallelDims())
    evaluator = Evaluator(dims=ParallelDims(), calibrations={})
    (whole,) = evaluator.times(points, workload, GPUS[:1])
    (few,) = evaluator.times(points.take(slice(0, 3)), workload, GPUS[:1])
    assert few == pytest.approx(whole[:3], rel=1e-12)


def least_s(run: Callable[[], object], times: int = 5) -> float:
    """Of the first run, which fills caches, and some more."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return min(taken)


def test_together_is_a_hundred_times_as_fast_as_one_by_one() -> None:
    workload = Workload(shape=load_model("qwen3-32b"), seq_len=2048, microbatch_size=4)
    points = same_size(build_space(workload, ParallelDims()), ParallelDims())
    evaluator = Evaluator(dims=ParallelDims(), calibrations={})
    together_s = least_s(lambda: evaluator.times(points, workload, GPUS[:1])) / points.size
    alone_s = least_s(lambda: evaluator.one(workload, GPUS[0]))
    assert alone_s / together_s > 100
