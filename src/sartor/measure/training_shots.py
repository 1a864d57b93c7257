"""Calibrating on a few runs of one's own: two factors, for compute and for the rest of a step, ridge-shrunk to 1.

A class of runs (one source, device and precision) is cut into K configurations that are looked at and all others that
are predicted; the same for several draws, so that no choice of runs flatters. Repeats of a configuration stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sartor.measure.training_predictions import TrainingOutcome
from sartor.units import Floats

DRAWS = 20
SEED = 20261121
RIDGE = (2.0, 1.0)
"""Weight of (ln factor)^2 of compute and of the rest against squared ln errors: single runs are off by 5 to 10% for
reasons of their own, so three of them move the first factor six tenths of the way."""

BUSY = ("compute_s", "optimizer_s")
"""Parts that the first factor multiplies; bubbles take both in the shares of the rest of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Held-out predictions after calibration: one entry per (draw, run not looked at)."""

    index: np.ndarray
    """Which outcome."""
    ratio: np.ndarray
    """Predicted over measured."""


def class_of(outcome: TrainingOutcome) -> tuple[str, ...]:
    """What a calibration is of: source, device and precision."""
    words = outcome.case.words
    return (words.get("source", ""), words.get("gpu", ""), outcome.case.precision)


def calibrated(outcomes: Sequence[TrainingOutcome], shots: int, draws: int = DRAWS) -> Shots:
    """Predictions of every timed run from ``shots`` other configurations of its class; classes with no more are left
    out. The same input gives the same draws."""
    classes: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for i, each in enumerate(outcomes):
        if each.timed:
            configuration = each.case.words.get("config_hash") or str(i)
            classes.setdefault(class_of(each), {}).setdefault(configuration, []).append(i)
    index: list[int] = []
    ratio: list[float] = []
    for groups in classes.values():
        members = list(groups.values())
        if len(members) > shots:
            for draw in range(draws):
                order = np.random.default_rng(SEED + draw).permutation(len(members))
                seen = [i for at in order[:shots] for i in members[at]]
                rest = [i for at in order[shots:] for i in members[at]]
                found = _factors([outcomes[i] for i in seen])
                index += rest
                ratio += [_time(outcomes[i], found) / outcomes[i].case.measured_s for i in rest]
    return Shots(index=np.asarray(index, dtype=np.int64), ratio=np.asarray(ratio))


def _factors(seen: Sequence[TrainingOutcome]) -> tuple[float, float]:
    """(factor of compute, factor of the rest): ridge regression of ln time, by Gauss-Newton steps."""
    busy, rest = (np.asarray([_split(each.parts)[k] for each in seen]) for k in (0, 1))
    measured = np.asarray([each.case.measured_s for each in seen])
    logs = np.zeros(2)
    for _ in range(12):
        first, second = busy * np.exp(logs[0]), rest * np.exp(logs[1])
        total = first + second
        slope = np.stack([first / total, second / total], axis=1)
        left = np.log(measured / total) + slope @ logs
        logs = np.linalg.solve(slope.T @ slope + np.diag(RIDGE), slope.T @ left)
    return float(np.exp(logs[0])), float(np.exp(logs[1]))


def _split(parts: Mapping[str, float]) -> tuple[float, float]:
    """Seconds of compute (with its share of the bubble) and of everything else."""
    busy = sum(parts[name] for name in BUSY)
    bubble = parts["pp_bubble_s"]
    rest = sum(parts.values()) - busy - bubble
    share = busy / max(busy + rest, 1e-30)
    return busy + bubble * share, rest + bubble * (1 - share)


def _time(outcome: TrainingOutcome, factors: tuple[float, float]) -> Floats:
    busy, rest = _split(outcome.parts)
    return busy * factors[0] + rest * factors[1]
