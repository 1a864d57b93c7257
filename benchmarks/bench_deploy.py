"""The cheapest deployment: all layouts under all loads as arrays, and one call of ``serving`` per layout and load.

Run ``python benchmarks/bench_deploy.py``. The ratio is the result to compare: both sides run on the same machine. The
naive side tries every number of requests in flight of a few layouts; its seconds are scaled to all of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import sartor

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "32B on 32 H100": (
        "qwen2.5-32b",
        "h100",
        {"dtype": "fp8", "requests_per_s": 20, "tpot_s": 0.03, "most_devices": 32},
    ),
    "DeepSeek-V3 on 64 GB200": ("deepseek-v3", "gb200", {"dtype": "fp8_block", "requests_per_s": 10}),
    "DeepSeek-V3 on 64 H200": ("deepseek-v3", "h200", {"dtype": "fp8_block", "users": 500, "tpot_s": 0.05}),
}
ALONE = 5
"""Single calls that are timed."""


def main() -> None:
    sys.stdout.write(json.dumps({name: ratio(*case) for name, case in CASES.items()}, indent=2) + "\n")


def ratio(model: str, gpu: str, question: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of the search, and of one call per layout and number of requests in flight."""
    answer, search_s = _timed(lambda: sartor.deploy(model, gpu, **question))
    assert answer.best is not None
    server, most = answer.best.deployment.layout.server, answer.best.deployment.in_flight
    plan = {"dtype": question["dtype"], "tp": server.tp, "copies": server.copies, "ep": server.ep}
    _, alone_s = _timed(lambda: [sartor.serving(model, gpu, concurrency=most, **plan) for _ in range(ALONE)])
    loads = answer.num_layouts * most
    return {"layouts": answer.num_layouts, "search_cpu_s": search_s, "naive_cpu_s": alone_s / ALONE * loads,
            "ratio": alone_s / ALONE * loads / search_s}  # fmt: skip


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    call()
    start_s = time.process_time()
    answer = call()
    return answer, time.process_time() - start_s


if __name__ == "__main__":
    main()
