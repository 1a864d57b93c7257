"""Speed of `sartor page`: a sweep of a 70B model in one call and value by value, the answer to a drag, the start.

Times are medians on this machine, as ratios where that says more. ``python benchmarks/bench_serve.py``.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

MODEL = "llama-2-70b"


def median_s(ask: Callable[[int], Any], turns: int = 9) -> float:
    """Median seconds of ``ask(turn)``; the first, which warms up, is left out."""
    ask(0)
    taken = []
    for turn in range(1, turns + 1):
        began = time.perf_counter()
        ask(turn)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    command = [sys.executable, "-c", "from sartor.cli import main; main()", "page", "--port", "0"]
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = re.search(r"http://\S+?(?=/\s)", process.stderr.readline())
        assert address
        client = httpx.Client(base_url=address[0], timeout=60)
        client.get("/").raise_for_status()
        first_s = time.perf_counter() - began
        client.post("/api/shape", json={"model": MODEL}).raise_for_status()
        answer_s = time.perf_counter() - began
        report(client, first_s, answer_s)
        process.terminate()


def report(client: httpx.Client, first_s: float, answer_s: float) -> None:
    def post(path: str, **body: Any) -> None:
        client.post(path, json={"model": MODEL, **body}).raise_for_status()

    values = list(range(7692, 8692))
    many_s = median_s(lambda turn: post("/api/sweep", field="hidden_size", values=[v + turn for v in values]))
    one_s = median_s(lambda turn: post("/api/estimate", set={"ffn_hidden_size": 28000 + turn}))
    drag_s = median_s(lambda turn: post("/api/shape", set={"ffn_hidden_size": 28000 + 8 * turn}))
    again_s = median_s(lambda turn: post("/api/shape", set={"ffn_hidden_size": 28672}))
    page_s = median_s(lambda turn: client.get("/").raise_for_status())
    print(f"first page after the start of the program  {1e3 * first_s:7.0f} ms")
    print(f"first answer after the start               {1e3 * answer_s:7.0f} ms")
    print(f"page, once it runs                         {1e3 * page_s:7.1f} ms")
    print(f"1,000 hidden sizes of {MODEL} in one call  {1e3 * many_s:7.1f} ms")
    print(f"one of them                                {1e3 * one_s:7.1f} ms")
    print(f"one call for all against a call for each   {1000 * one_s / many_s:7.0f} x")
    print(f"a drag's whole answer, seven fields swept  {1e3 * drag_s:7.1f} ms")
    print(f"the same once more (undo)                  {1e3 * again_s:7.1f} ms")


if __name__ == "__main__":
    main()
