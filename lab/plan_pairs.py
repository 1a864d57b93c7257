"""How often two plans of one model on one cluster are ranked correctly, by the gap predicted between them, with each
source of runs left out of the fit in turn: ``python lab/plan_pairs.py SHARED`` (six minutes).

Gives `sartor.plans.next.CLOSE` and `RIGHT`. Plans of one model on one machine share most of their error, so the
interval of a single step says little about a pair.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_training import Runs, fit, guessed, held_out, table_of
from sartor.validate.training_predictions import TrainingOutcome, rivals, settled
from sartor.validate.training_rows import read_training

GAPS = (0.0, 0.02, 0.05, 0.075, 0.1, 0.25, np.inf)


def main(shared: str) -> None:
    rows = read_training(Path(shared) / "data" / "end_to_end")
    every = [settled(case)[0] for case in rows if not case.reason and case.measured_s == case.measured_s]
    runs = Runs(every)
    x, base, slope = fit(runs)
    found = runs.outcomes(table_of(x))
    show("in sample", found)
    show("source left out", guessed(found, held_out(runs, x, base, slope, [case.words["source"] for case in every])))


def show(title: str, found: Sequence[TrainingOutcome]) -> None:
    pairs = [pair for plans in rivals(found) for pair in combinations(plans, 2)]
    measured, predicted = np.log([[one / other for one, other in zip(*pair, strict=True)] for pair in pairs]).T
    error = np.median(np.abs(measured - predicted)) / 0.6745
    print(f"{title}: {len(pairs)} pairs; robust standard deviation of ln(ratio) {error:.3f}")
    for low, high in [*pairwise(GAPS), (0.0, 0.05), (0.05, np.inf)]:
        among = (np.abs(predicted) >= np.log1p(low)) & (np.abs(predicted) < np.log1p(high))
        right = np.mean(np.sign(measured[among]) == np.sign(predicted[among]))
        print(f"  predicted {100 * low:g}% to {100 * high:g}% apart: {among.sum()} pairs, {100 * right:.0f}% right")


if __name__ == "__main__":
    main(sys.argv[1])
