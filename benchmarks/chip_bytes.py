"""Random chips and blocks whose schedules must not move bytes faster than memory, global buffer and links allow.

    python benchmarks/chip_bytes.py [--blocks 100] [--chips 100] [--every 20] [--seed 0]

Prints for how many of blocks x chips the checker would accept a schedule that moves its compulsory bytes faster than
the bandwidth (must be 0); of those solved, for how many this happens, and how many are limited by shared resources.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sartor.cost.chip.area import published_grid
from sartor.designs.space import taken
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.model.lower.graph import lower_layer
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model, model_names
from sartor.operators import OperatorGraph
from sartor.schedules.makespan import UNIT_S, schedule_problems
from sartor.schedules.solve import solve

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("", "schedules")]
from test_many import compulsory_s  # noqa: E402


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--chips", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="solve one of so many")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    count = solved = below = free = 0
    for _, graph in zip(range(asked.blocks), blocks(rng), strict=False):
        chips = random_chips(rng, asked.chips)
        least = np.max([np.broadcast_to(each, asked.chips) for each in compulsory_s(graph, chips).values()], axis=0)
        for problem, seconds in zip(schedule_problems(graph, chips), least * (1 - 1e-9), strict=True):
            count += 1
            below += problem.shared_time * UNIT_S < seconds  # the checker refuses any shorter schedule
            if not count % asked.every:
                found, solved = solve(problem, 0), solved + 1
                below += found.makespan * UNIT_S < seconds
                free += bool(found.held_by)
        print(f"{count} chips and blocks, {solved} solved: {below} below their bytes, {free} held by them", flush=True)


def blocks(rng: np.random.Generator) -> Iterator[OperatorGraph]:
    """Layers of zoo models, forward and backward, at random lengths, microbatches and degrees."""
    names = model_names()
    while True:
        shape = load_model(str(rng.choice(names)))
        work = Workload(shape=shape, seq_len=int(rng.choice((128, 512, 2048))), microbatch_size=int(rng.choice((1, 4))))
        try:
            layer = lower_layer(work, ParallelDims(tp=int(rng.choice((1, 2, 4, 8)))))
        except InputError:  # more positions than the model has, or heads that do not split
            continue
        yield layer.backward if rng.random() < 0.7 else layer.forward


def random_chips(rng: np.random.Generator, count: int) -> Accelerator:
    """Published cores and buffers with memories, clocks, banks and links of any rate."""
    grid = published_grid()
    chips = taken(grid.accelerators, rng.choice(np.flatnonzero(grid.kept), count))
    return replace(
        chips,
        clock_hz=rng.choice((0.2e9, 0.94e9, 1.8e9), count),
        num_stacks=rng.integers(1, 9, count),
        stack_bytes_per_s=rng.choice((17e9, 100e9, 307e9, 1200e9), count),
        bank_bytes_per_cycle=rng.choice((8, 64, 128), count),
        num_links=rng.integers(1, 19, count),
        link_bytes_per_s=rng.choice((5e9, 25e9, 100e9), count),
    )


if __name__ == "__main__":
    main()
