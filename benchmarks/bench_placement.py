"""Speed of the placement solver: against the public C++ program's CPU seconds, and against a naive recurrence here.

The C++ seconds are those listed beside the reference instances (g++ 12.2 -O3, best of 3, on another run of the same
kind of machine); the naive recurrence is the published dp[layers][devices][stages] in NumPy, run in this process, on
the same tables. Solve only: reading and checking a file is not counted on either side. CPU seconds, best of 5.

Run from the repository: `python benchmarks/bench_placement.py` (the reference instances lie beside the checkout;
without them only the generated ones are timed).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sartor.placement.check import price_with_terms
from sartor.placement.place import solve_with_terms
from sartor.placement.plain import resync_s_per_byte, slots, solve
from sartor.placement.problem import (
    DeviceType,
    Edge,
    PlacedLayer,
    PlacedOptimizer,
    PlacementProblem,
    PlacementTerms,
    Tier,
    Width,
)
from sartor.placement.tabulate import find_states, tabulate
from sartor.read.problems_json import read_placement

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference" / "placement"
NAIVE_LIMIT = 100
"""Layers up to which the naive recurrence is run; it takes minutes beyond."""


def main() -> None:
    print(f"{'instance':36}{'layers':>7}{'devices':>8}{'ours':>10}{'C++':>9}{'ratio':>8}{'naive':>9}{'ratio':>8}")
    missed = []
    for expected_file in sorted(REFERENCE.glob("*.expected.json")):
        expected = json.loads(expected_file.read_text())
        problem = read_placement(expected_file.with_name(expected["name"] + ".json"))
        ratio = report(expected["name"], problem, expected["phaze_program_cpu_seconds"])
        if len(problem.layer_ids) >= 98 and problem.num_devices >= 1024 and ratio < 50:
            missed.append(expected["name"])
    for layers, devices in ((200, 4096), (400, 4096), (800, 8192)):
        report("generated, t in 1,2,4,8", generated(layers, devices), None)
    for name in ("gpt3_t48_d1024_h32_rec", "llama405b126_t8_d2048"):
        file = REFERENCE / f"{name}.json"
        if file.exists():
            report_terms(name, read_placement(file))
    if missed:
        sys.exit(f"less than 50 times the C++ program's speed: {', '.join(missed)}")


def report(name: str, problem: PlacementProblem, cpp_s: float | None) -> float:
    num_layers = len(problem.layer_ids)
    ours = best_of(5 if num_layers <= 200 else 1, lambda: solve(problem))
    ratio = cpp_s / ours if cpp_s else float("nan")
    row = f"{name:36}{num_layers:7d}{problem.num_devices:8d}{ours:10.4f}"
    row += f"{cpp_s:9.3f}{ratio:8.0f}" if cpp_s else f"{'':17}"
    if num_layers <= NAIVE_LIMIT and all(x.is_split == (w.devices > 1) for w in problem.widths for x in w.layers):
        expected, plan = naive(problem), solve(problem)
        assert plan is None or abs(expected / plan.time_per_batch_s - 1) < 1e-9
        seconds = best_of(1, lambda: naive(problem))
        row += f"{seconds:9.3f}{seconds / ours:8.0f}"
    print(row, flush=True)
    return ratio


def report_terms(name: str, problem: PlacementProblem) -> None:
    """Richer terms: seconds, and how much faster than the plain plan in the same network."""
    rate, devices = problem.link_bytes_per_s, problem.num_devices
    tiers = (
        Tier(size=8, bytes_per_s=300e9, latency_s=3e-6),
        Tier(size=256, bytes_per_s=2 * rate, latency_s=8e-6),
        Tier(size=devices, bytes_per_s=rate, latency_s=15e-6),
    )
    halves = (
        DeviceType(name="new", num_devices=devices // 2, memory_bytes=problem.memory_bytes),
        DeviceType(name="old", num_devices=devices // 2, memory_bytes=problem.memory_bytes / 1.25, slowdown=1.6),
    )
    tiered = PlacementTerms(resync_every_stage=True, tiers=tiers)
    plain = solve(problem)
    for words, terms in (
        ("link tiers, every stage's resync", tiered),
        ("and interleaving 1, 2, 4, ZeRO 0-3", replace(tiered, virtual_stages=(1, 2, 4), zero_stages=(0, 1, 2, 3))),
        ("and two device types, ZeRO 0, 1", replace(tiered, zero_stages=(0, 1), device_types=halves)),
    ):
        seconds = best_of(1, lambda terms=terms: solve_with_terms(problem, terms))
        plan = solve_with_terms(problem, terms)
        row = f"{name:36}{words:36}{seconds:8.3f} s"
        if plan and plain and not terms.device_types:
            repriced = price_with_terms(problem, terms, plain).time_per_batch_s
            row += f", {repriced / plan.time_per_batch_s:.4f} times as fast as the plain plan"
        print(row, flush=True)


def best_of(times: int, call: Callable[[], Any]) -> float:
    """CPU seconds of the fastest of some calls."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def naive(problem: PlacementProblem) -> float:
    """The published recurrence over layers, devices and stages, one table per width (the same for all layers)."""
    best, states = np.inf, find_states(problem)
    for width in problem.widths:
        table = tabulate(problem, width, states)
        num, most = len(states), problem.num_devices
        a, limit = width.devices, min(len(states) - 1, problem.num_devices // width.devices)
        suffix = np.full((num, most + 1, limit + 1), np.inf)
        suffix[-1, :, 0] = 0.0
        for i in range(num - 2, -1, -1):
            for s in range(1, limit + 1):
                for j in range(i + 1, num):
                    if table.max_position[i, j] >= s:
                        value = np.maximum(suffix[j, : most + 1 - a, s - 1], table.load_s[i, j])
                        np.minimum(suffix[i, a:, s], value, out=suffix[i, a:, s])
                        if i == 0:
                            best = min(best, _over_copies(problem, value, a, s, table.first_param_bytes[j]))
    return float(best)


def _over_copies(problem: PlacementProblem, value: Any, a: int, s: int, params: float) -> float:
    copies = np.arange(1, min(problem.num_devices, problem.num_microbatches) + 1)
    left = problem.num_devices // copies - a
    copies, left = copies[left >= 0], left[left >= 0]
    if not len(copies):
        return np.inf
    times = value[left] * slots(problem.num_microbatches, copies, s)
    return float((times + resync_s_per_byte(copies, problem.link_bytes_per_s) * params).min())


def generated(num_layers: int, num_devices: int) -> PlacementProblem:
    """Layers that all differ a little, at four widths, with memory for a fifth of the model per device."""
    rng = np.random.default_rng(num_layers)
    base = [
        PlacedLayer(
            id=v,
            param_bytes=1e9 * rng.uniform(0.9, 1.1),
            activation_bytes=1e9 * rng.uniform(0.5, 1.5),
            forward_s=0.02 * rng.uniform(0.8, 1.2),
            backward_s=0.04 * rng.uniform(0.8, 1.2),
            is_split=False,
        )
        for v in range(num_layers)
    ]
    edges = tuple(Edge(source=v - 1, dest=v, size_bytes=2e7) for v in range(1, num_layers))
    return PlacementProblem(
        widths=tuple(
            Width(tensor_parallel=t, layers=tuple(split(layer, t) for layer in base), edges=edges) for t in (1, 2, 4, 8)
        ),
        memory_bytes=8e10,
        num_devices=num_devices,
        link_bytes_per_s=5e9,
        num_microbatches=4096,
        recompute=True,
        optimizer=PlacedOptimizer.ADAM,
    )


def split(layer: PlacedLayer, t: int) -> PlacedLayer:
    return replace(
        layer,
        is_split=t > 1,
        param_bytes=layer.param_bytes / t,
        activation_bytes=layer.activation_bytes / t,
        forward_s=layer.forward_s / t**0.9,
        backward_s=layer.backward_s / t**0.9,
    )


if __name__ == "__main__":
    main()
