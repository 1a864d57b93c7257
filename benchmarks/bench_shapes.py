"""GEMMs and full-model shapes that one core prices per second, all at once and one by one.

Run ``python benchmarks/bench_shapes.py``. The ratio is the result to compare: both sides run on the same machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.gpu.gemm import gemm_cost, gemm_costs
from sartor.cost.price import price
from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import Gemm


def main() -> None:
    found = {"gemm": gemms(), "model": models()}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def gemms(count: int = 300_000, alone: int = 300) -> dict[str, float]:
    """Random GEMMs on a calibrated device: one call with arrays, and one call each."""
    gpu = load_gpu("h200_sxm")
    calibration = load_calibration(gpu)
    m, n, k = np.random.default_rng(0).integers(1, 16384, (3, count))
    together = Gemm(name="many", m=m, n=n, k=k)
    fast = _seconds(lambda: gemm_costs([together], gpu, calibration, details=False)) / count
    full = _seconds(lambda: gemm_costs([together], gpu, calibration)) / count
    ones = [Gemm(name="one", m=int(m[i]), n=int(n[i]), k=int(k[i])) for i in range(alone)]
    slow = _seconds(lambda: [gemm_cost(one, gpu, calibration) for one in ones]) / alone
    return {"per_s": 1 / fast, "per_s_with_details": 1 / full, "one_by_one_per_s": 1 / slow, "ratio": slow / fast}


def models(alone: int = 20) -> dict[str, float]:
    """Training steps of Llama-3-8B-like shapes over open axes: lowered and priced together, and one at a time."""
    shape = load_model("llama-3-8b")
    workload = Workload(shape=shape, microbatch_size=4, seq_len=2048)
    axes = {
        "hidden_size": np.arange(3072, 5120, 64)[:, None, None, None],
        "ffn_hidden_size": np.arange(8192, 20480, 256)[None, :, None, None],
        "num_layers": np.arange(24, 40)[None, None, :, None],
        "vocab_size": np.arange(120000, 136000, 1000)[None, None, None, :],
    }
    gpu = load_gpu("h200_sxm")
    calibration = load_calibration(gpu)

    def step(changes: dict[str, Any]) -> Any:
        graph = lower(replace(workload, shape=edit(shape, **changes)), ParallelDims())
        return price(graph, gpu, calibration, details=False).time_s

    count = int(np.prod([np.size(axis) for axis in axes.values()]))
    fast = _seconds(lambda: step(axes)) / count
    picks = [{name: int(axis.flat[i % axis.size]) for name, axis in axes.items()} for i in range(alone)]
    slow = _seconds(lambda: [step(pick) for pick in picks]) / alone
    return {"shapes": count, "per_s": 1 / fast, "one_by_one_per_s": 1 / slow, "ratio": slow / fast}


def _seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
