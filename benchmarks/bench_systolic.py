"""Speed of latency estimates on the accelerator template: the whole published space against one call per point.

All operators of GPT-3 (175B), forward and backward with the optimizer, t in {1, 2, 4, 8}, on one core and on all cores,
over the 29,360 kept points of the published grid (4,186 tensor-core and 697 vector-core configurations). The naive way
is the same formula called point by point, timed on a sample and scaled. The published toolchain takes 2 to 4 s per GEMM
and configuration (reference/phaze.md sec. 4); zigzag-dse took 1.7 to 7.5 s per GEMM here (2026-11-21).

Run from the repository: `python benchmarks/bench_systolic.py`. CPU seconds of one core.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from sartor.cost.chip.area import published_grid
from sartor.cost.chip.operator_latency import operator_latencies
from sartor.cost.chip.systolic import Product, product_time_s
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.model.lower import lower
from sartor.model.lower.graph import lower_layer
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import OperatorGraph
from sartor.schedules.makespan import schedule_problems

WIDTHS = (1, 2, 4, 8)
SAMPLE = 40
LIMIT_S = 10.0


def main() -> None:
    shape = replace(load_model("gpt3-175b"), vocab_size=51200)
    workload = Workload(shape=shape, seq_len=2048, attention_kernel=AttentionKernel.UNFUSED)
    dims = [ParallelDims(tp=t, sequence_parallel=False) for t in WIDTHS]
    chips = kept_points()
    whole_s = whole_space([lower(workload, d) for d in dims], chips)
    schedules(workload, dims, chips)
    scaling()
    if whole_s > LIMIT_S:
        sys.exit(f"missed: the whole space took {whole_s:.1f} s, limit {LIMIT_S:.0f} s")


def kept_points() -> Accelerator:
    grid = published_grid()
    return at(grid.accelerators, np.flatnonzero(grid.kept))


def at(chips: Accelerator, rows: np.ndarray | int) -> Accelerator:
    varying = {name: np.asarray(getattr(chips, name)) for name in ARRAY_FIELDS if np.ndim(getattr(chips, name))}
    taken = {name: values[rows] for name, values in varying.items()}
    return replace(chips, **{name: v.item() if np.ndim(v) == 0 else v for name, v in taken.items()})


def whole_space(graphs: list[OperatorGraph], chips: Accelerator) -> float:
    start = time.process_time()
    tables = [operator_latencies(graph, chips) for graph in graphs]
    whole_s = time.process_time() - start
    assert all(np.isfinite(one).all() and (together <= one).all() for one, together in tables)
    sample = np.random.default_rng(0).choice(chips.shape[0], SAMPLE, replace=False)
    start = time.process_time()
    for row in sample:
        point = at(chips, int(row))
        for graph, (_, together) in zip(graphs, tables, strict=True):
            assert (operator_latencies(graph, point)[1] == together[:, row]).all()
    naive_s = (time.process_time() - start) * chips.shape[0] / SAMPLE
    count = sum(len(graph.operators) for graph in graphs)
    print(f"{count} operators x {chips.shape[0]} points, one core and all: {whole_s:.1f} s at once")
    print(f"  point by point {naive_s:.0f} s (from {SAMPLE} points, entries equal): {naive_s / whole_s:.0f}x")
    return whole_s


def schedules(workload: Workload, dims: list[ParallelDims], chips: Accelerator) -> None:
    """Problems of one decoder layer, forward and backward, for every t and the first thousand points."""
    some, built = at(chips, np.arange(1000)), 0
    start = time.process_time()
    for d in dims:
        layer = lower_layer(workload, d)
        for graph in (layer.forward, layer.backward):
            built += sum(1 for _ in schedule_problems(graph, some))
    spent = time.process_time() - start
    print(
        f"{built} schedule problems (layer forward and backward, {len(dims)} widths): {spent / built * 1e3:.2f} ms each"
    )


def scaling() -> None:
    chip = load_accelerator("tpu_v4_like")
    cube = Product(m=4096, n=4096, k=4096)
    ratio = product_time_s(cube, replace(chip, num_tensor_cores=1)) / product_time_s(cube, chip)
    print(f"8 tensor cores against 1 on 4096^3: {ratio:.2f}x (published estimator: 1.00x)")


if __name__ == "__main__":
    main()
