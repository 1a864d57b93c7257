"""Ranking of plans for one model on one cluster: pairs ordered correctly, and the loss from the predicted best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sartor.validate.training_predictions import TrainingOutcome

NEAR = 0.02
"""Plans whose measured times differ by less count as equal."""

SAME = ("source", "model", "L", "h", "a", "d_ff", "seq", "gpu", "n_gpu", "gbs", "dtype")
"""Columns that must match for two plans to be compared, besides the number of devices in the plans."""

LEAST = 3
"""Fewest plans for which the first choice is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """``right`` of ``pairs`` pairs are ordered as measured; ``regrets`` has one share of time lost per group."""

    pairs: int
    right: float
    regrets: tuple[float, ...]

    @property
    def pair_accuracy(self) -> float | None:
        return self.right / self.pairs if self.pairs else None

    @property
    def regret(self) -> float | None:
        """Mean over groups of the chosen plan's measured time over the best one's, minus 1."""
        return float(np.mean(self.regrets)) if self.regrets else None


def ranking(outcomes: Sequence[TrainingOutcome]) -> Ranking:
    """Pairs and regrets among timed runs."""
    pairs, right, regrets = 0, 0.0, []
    for times in rivals(outcomes):
        for (measured, guessed), (slower_s, other_guess) in combinations(times, 2):
            if abs(measured / slower_s - 1) > NEAR:
                pairs += 1
                right += float((measured < slower_s) == (guessed < other_guess)) if guessed != other_guess else 0.5
        if len(times) >= LEAST:
            chosen = min(times, key=lambda pair: pair[1])[0]
            regrets.append(chosen / min(measured for measured, _ in times) - 1)
    return Ranking(pairs=pairs, right=right, regrets=tuple(regrets))


def rivals(outcomes: Sequence[TrainingOutcome]) -> Iterator[list[tuple[float, float]]]:
    """Measured and predicted seconds of the plans of one model on one cluster, a list for each; repeats of a
    configuration count once, with their mean."""
    questions: dict[tuple[object, ...], dict[str, list[TrainingOutcome]]] = {}
    for i, outcome in enumerate(outcomes):
        if outcome.timed:
            words = outcome.case.words
            same = (*(words.get(name, "") for name in SAME), _devices(outcome))
            questions.setdefault(same, {}).setdefault(words.get("config_hash") or str(i), []).append(outcome)
    for plans in questions.values():
        yield [
            (float(np.mean([p.case.measured_s for p in members])), float(np.mean([p.predicted_s for p in members])))
            for members in plans.values()
        ]


def _devices(outcome: TrainingOutcome) -> int:
    assert outcome.case.plan is not None
    return int(np.ravel(outcome.case.plan.num_devices)[0])
