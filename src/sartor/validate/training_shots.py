"""Calibrating on a few of one's own runs: their errors predict the errors of similar runs.

A class of runs (one source, device and precision) is divided into K observed configurations and the others, which are
predicted. `planned` chooses the K before anything is measured, to leave the least uncertainty about the rest. `drawn`
uses K runs that happen to be at hand: several random draws. Repeats of a configuration stay together.

ln(measured / predicted) of two runs is assumed to covary through three causes: a factor of compute that all runs share,
one of everything else, and one that grows with the similarity of the runs (model, recomputation, sizes of the plan).
Predictions move by its expected value given the observed runs (kriging; Rasmussen and Williams 2006, ISBN 026218253X,
eq. 2.23).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.units import FloatArray
from sartor.validate.training_predictions import TrainingOutcome

DRAWS = 20
SEED = 20261121

COMPUTE, REST, ALIKE, OWN = 0.1, 0.1, 0.1, 0.05
"""Standard deviations of ln(measured / predicted): of compute, of the rest, of similar runs, of a single run. Chosen
among a dozen on data/end_to_end with every source's constants fitted on the others (2026-11-21)."""

OWN_OF_EXPERTS = 0.15
"""The same for a single run of a model with experts: the same plan changes by up to twice between releases (README of
data/end_to_end, 2026-11-21)."""

WORDS = ("model", "recompute", "flash_attention", "ep", "zero_stage", "dtype")
RELEASE = "framework_version"
SIZES = {"n_gpu": 0.1, "seq": 0.15, "tp": 0.15, "pp": 0.1, "mbs": 0.15, "grad_accum": 0.05}
WORD = 0.5
"""Distance of two runs: ``WORD`` for each word that differs (half for the trainer's release), and for sizes their
weight per factor of two; shared variance falls by e per unit."""

BUSY = ("compute_s", "optimizer_s")
"""Parts that are compute; bubbles scale with the rest of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Predictions after calibration: one entry per choice of observed runs and unobserved run."""

    index: np.ndarray
    """Index of the outcome."""
    ratio: np.ndarray
    """Predicted over measured."""


def _class_of(outcome: TrainingOutcome) -> tuple[str, ...]:
    """The class that shares a calibration: source, device and precision."""
    words = outcome.case.words
    return (words.get("source", ""), words.get("gpu", ""), outcome.case.precision)


def planned(outcomes: Sequence[TrainingOutcome], shots: int) -> Shots:
    """Predictions of every timed run from the ``shots`` configurations of its class that are most informative about the
    others; classes with no more are left out. Measured times do not influence the choice."""
    return _calibrated(outcomes, shots, lambda group, members: [group.telling(members, shots)])


def drawn(outcomes: Sequence[TrainingOutcome], shots: int, draws: int = DRAWS) -> Shots:
    """The same from ``shots`` configurations drawn at random, ``draws`` times; the same input gives the same draws."""

    def choices(_: _Class, members: Members) -> list[list[int]]:
        orders = (np.random.default_rng(SEED + draw).permutation(len(members)) for draw in range(draws))
        return [order[:shots].tolist() for order in orders]

    return _calibrated(outcomes, shots, choices)


Members = Sequence[npt.NDArray[np.int64]]
"""The runs of every configuration of a class."""


def _calibrated(
    outcomes: Sequence[TrainingOutcome], shots: int, choices: Callable[[_Class, Members], list[list[int]]]
) -> Shots:
    index: list[int] = []
    ratio: list[float] = []
    for configurations in _classes(outcomes).values():
        if len(configurations) <= shots:
            continue
        runs = [i for configuration in configurations for i in configuration]
        group = _Class([outcomes[i] for i in runs])
        members = np.split(
            np.arange(len(runs)), np.cumsum([len(configuration) for configuration in configurations])[:-1]
        )
        for chosen in choices(group, members):
            seen = np.concatenate([members[member] for member in chosen])
            rest = np.setdiff1d(np.arange(len(runs)), seen)
            index += [runs[i] for i in rest]
            ratio += group.after(seen, rest).tolist()
    return Shots(index=np.asarray(index, dtype=np.int64), ratio=np.asarray(ratio))


def _classes(outcomes: Sequence[TrainingOutcome]) -> dict[tuple[str, ...], list[list[int]]]:
    """Timed runs by class and configuration."""
    classes: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for i, outcome in enumerate(outcomes):
        if outcome.timed:
            configuration = outcome.case.words.get("config_hash") or str(i)
            classes.setdefault(_class_of(outcome), {}).setdefault(configuration, []).append(i)
    return {name: list(groups.values()) for name, groups in classes.items()}


class _Class:
    """Runs that share a calibration: their errors and the covariance of these."""

    def __init__(self, runs: Sequence[TrainingOutcome]) -> None:
        self.off = np.log([outcome.ratio for outcome in runs])
        busy = np.array([_busy_share(outcome.parts) for outcome in runs])
        alike = np.exp(-_distances([outcome.case.words for outcome in runs]))
        self.together = COMPUTE**2 * np.outer(busy, busy) + REST**2 * np.outer(1 - busy, 1 - busy) + ALIKE**2 * alike
        self.own = np.array([OWN_OF_EXPERTS if outcome.case.experts == "moe" else OWN for outcome in runs]) ** 2

    def telling(self, members: Members, shots: int) -> list[int]:
        """Configurations to observe, chosen greedily to leave the least uncertainty about unobserved runs (the sum of
        their standard deviations). Each is represented by its first run; errors of single runs average out."""
        first, repeats = (
            np.array([configuration[0] for configuration in members]),
            np.array([len(configuration) for configuration in members]),
        )
        left, own_variance = self.together[np.ix_(first, first)], self.own[first] / repeats
        rest = repeats[:, None] * (1.0 - np.eye(len(members)))  # [i, j]: runs of i left after observing j
        chosen: list[int] = []
        for _ in range(shots):
            removed = left**2 / (np.diag(left) + own_variance)  # [i, j]: variance of i removed by observing j
            unknown = (rest * np.sqrt(np.maximum(np.diag(left)[:, None] - removed, 0.0))).sum(axis=0)
            unknown[chosen] = np.inf
            best = int(np.argmin(unknown))
            chosen.append(best)
            rest[best] = 0.0
            left = left - np.outer(left[best], left[best]) / (left[best, best] + own_variance[best])
        return chosen

    def after(self, seen: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> FloatArray:
        """Predicted over measured of ``rest`` after observing ``seen``."""
        covariance = self.together[np.ix_(seen, seen)] + np.diag(self.own[seen])
        expected = self.together[np.ix_(rest, seen)] @ np.linalg.solve(covariance, self.off[seen])
        left: FloatArray = np.exp(self.off[rest] - expected)
        return left


def _distances(rows: Sequence[Mapping[str, str]]) -> FloatArray:
    """Distances between runs [n, n]."""
    words = np.array([[row.get(name, "") for name in WORDS] for row in rows])
    sizes = np.array([[_octaves(row.get(name, "")) * weight for name, weight in SIZES.items()] for row in rows])
    releases = np.array([row.get(RELEASE, "") for row in rows])
    differ = (words[:, None] != words).sum(axis=-1) + (releases[:, None] != releases) / 2
    far: FloatArray = WORD * differ + np.abs(sizes[:, None] - sizes).sum(axis=-1)
    return far


def _octaves(word: str) -> float:
    try:
        size = float(word or 1)
    except ValueError:
        return 0.0
    return math.log2(size) if 1 <= size < math.inf else 0.0


def _busy_share(parts: Mapping[str, float]) -> float:
    """Share of compute in a step, without the bubble."""
    busy, bubble = sum(parts[name] for name in BUSY), parts["pp_bubble_s"]
    return busy / max(sum(parts.values()) - bubble, 1e-30)
