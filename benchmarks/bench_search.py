"""Shapes priced per second, all at once and one at a time, in one run on one core.

    python benchmarks/bench_search.py [MODEL] [GPU]

Every shape is a whole model: all its operators forward and backward, the optimizer's step, and the total. Both ways use
the same ``lower`` and ``estimate``; their predicted times are compared as well.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.near import build_space
from sartor.shapes.quality import QualityGuard
from sartor.shapes.search import search_shapes
from sartor.shapes.space import same_size

SAMPLE = 200
"""Shapes priced one at a time."""


def main(model: str = "qwen3-32b", gpu_name: str = "h100") -> None:
    """Print how many shapes per second each way prices, their ratio, and how long the default search takes."""
    gpu, dims = load_gpu(gpu_name), ParallelDims()
    workload = Workload(shape=load_model(model), seq_len=2048, microbatch_size=4)
    evaluator, guard = Evaluator(dims=dims, calibrations={}), QualityGuard()

    started = time.perf_counter()
    space = build_space(workload, dims, guard, keep_tp=(), free=("num_layers",))
    points = same_size(space, dims, 0.05, guard)
    found_s = time.perf_counter() - started
    started = time.perf_counter()
    (together,) = evaluator.times(points, workload, (gpu,))
    together_s = time.perf_counter() - started

    fields = points.fields()
    sample = np.random.default_rng(0).integers(0, points.size, SAMPLE)
    started = time.perf_counter()
    alone = [
        evaluator.one(
            replace(workload, shape=edit(workload.shape, **{name: int(v[i]) for name, v in fields.items()})), gpu
        ).time_s
        for i in sample
    ]
    alone_s = time.perf_counter() - started
    worst = float(np.max(np.abs(together[sample] / np.asarray(alone) - 1)))

    rate, rate_alone = points.size / together_s, SAMPLE / alone_s
    rate_found = points.size / (together_s + found_s)
    print(f"{model} on {gpu.name}, training: {space.size:,} combinations, {points.size:,} within 5% of its size")
    print(f"  together   {rate:12,.0f} full-model shapes/s  ({rate_found:,.0f} with finding those of its size)")
    print(f"  one by one {rate_alone:12,.0f} full-model shapes/s")
    print(f"  ratio      {rate / rate_alone:12,.0f}x; largest difference of a time {worst:.1e}")
    for name in (model, "llama-3.1-8b"):
        found = search_shapes(replace(workload, shape=load_model(name)), [gpu])
        print(
            f"  whole search, {name}: {found.wall_s:.2f} s for {found.grid_size:,} combinations, "
            f"{found.evaluated:,} priced in three phases, with front, intervals and stability"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
