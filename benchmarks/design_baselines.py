"""The searches of the papers beside the proof, on the same models and the same space.

    python benchmarks/design_baselines.py [MODEL ...] [--space FILE] [--devices N] [--batch B]

Only the architecture, sampled by a Bayesian optimizer under the experts' placements (a search like Spotlight's; needs
optuna); then the placement searched on the chip it found; and the order and stop rule of PHAZE. Each row: objective,
its share of the proved best, points evaluated, seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from published_order import published_order
from sampled_design import architecture_alone
from sartor.designs.baselines import compare
from sartor.designs.candidates import Baseline
from sartor.designs.point import ScheduleStore
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace
from sartor.model.zoo import load_model
from sartor.read.space_file import load_space


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["bert-large"])
    parser.add_argument("--space", default="phaze")
    parser.add_argument("--devices", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--limit-s", type=float, default=300.0)
    asked = parser.parse_args()
    models = tuple(design_model(name) for name in asked.models)
    question = DesignQuestion(models=models, num_devices=asked.devices, global_batch_size=asked.batch)
    space, start = load_space(asked.space), time.perf_counter()
    best = search_design(question, space).best
    proved = best.objective if best else float("nan")
    print(f"{'proved best':62} {proved:12.4g} {1:7.1%} {'':8} {time.perf_counter() - start:7.1f} s")
    for way in ways(question, space, asked.limit_s):
        reached = way.ranked.objective if way.ranked else 0.0
        share = f"{reached:12.4g} {reached / proved:7.1%}"
        print(f"{way.name:62} {share} {way.evaluations:8} {way.seconds:7.1f} s  {way.note[:60]}")


def design_model(name: str) -> DesignModel:
    """A zoo model at 512 tokens for BERT, else at most 4,096."""
    shape = load_model(name)
    return DesignModel(
        name=name, shape=shape, seq_len=512 if "bert" in name else min(4096, shape.max_positions or 4096)
    )


def ways(question: DesignQuestion, space: AcceleratorSpace, limit_s: float) -> Iterator[Baseline]:
    """Known chips as in `sartor design --baselines`, then the searches of the papers."""
    yield from compare(question, space)
    yield from architecture_alone(question, space, ScheduleStore(), time_limit_s=limit_s)
    yield published_order(question, space, time_limit_s=limit_s)


if __name__ == "__main__":
    main()
