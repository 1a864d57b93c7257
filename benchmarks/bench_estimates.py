"""Estimates of stated plans per second of one core: one call with arrays, and a loop of single calls.

Run ``python benchmarks/bench_estimates.py``. The ratio is the result to compare: both sides run on the same machine.
Against d23335ee (2026-11-29, in turn on a busy machine) the pipelined grid takes 0.68 of the CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import sartor

STATED = {"num_devices": 64, "global_batch_size": 512, "pp": 1, "sequence_parallel": True}
GRIDS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "train": (
        STATED,
        {"microbatch_size": [1, 2, 4, 8], "tp": [1, 2, 4, 8], "cp": [1, 2, 4, 8], "zero_stage": [0, 1, 2, 3]}
        | {"recompute": ["none", "full"], "shard_group": [0], "seq_len": [4096, 8192]},
    ),
    "train, pipelined": (
        STATED | {"cp": 1, "zero_stage": 1, "schedule": "1f1b"},
        {"microbatch_size": [1, 2, 4], "tp": [1, 2, 4], "pp": [2, 4, 8], "virtual_stages": [1, 2, 4]}
        | {"recompute": ["none", "full"]},
    ),
    "decode": ({"phase": "decode"}, {"microbatch_size": list(range(1, 251)), "tp": [1, 2, 4, 8]}),
}
ALONE = 5
"""Single calls that are timed."""


def main() -> None:
    found = {name: ratio(*grid) for name, grid in GRIDS.items()}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def ratio(stated: dict[str, Any], axes: dict[str, list[Any]]) -> dict[str, float]:
    """CPU seconds of 1,000 estimates in one call with arrays, and their ratio to those of single calls."""
    grid, together_s = _timed(lambda: sartor.estimate("llama-3.1-8b", "h100", **stated | axes))
    one = {name: values[-1] for name, values in axes.items()} | {"tp": 2, "microbatch_size": 1}
    _, alone_s = _timed(lambda: [sartor.estimate("llama-3.1-8b", "h100", **stated | one) for _ in range(ALONE)])
    per_point_s = together_s / grid.num_points
    return {"points": grid.num_points, "s_per_1000": 1e3 * per_point_s, "ratio": alone_s / ALONE / per_point_s}


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    call()
    start_s = time.process_time()
    answer = call()
    return answer, time.process_time() - start_s


if __name__ == "__main__":
    main()
