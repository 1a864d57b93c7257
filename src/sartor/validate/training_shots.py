"""Calibrating on a few runs of one's own: what they were off by tells what runs like them are off by.

A class of runs (one source, device and precision) is cut into K configurations that are looked at and all others that
are predicted. Which K is settled before anything is measured: those after which least is unknown of the rest
(`planned`). `drawn` says what K runs that happened to be at hand give: the same for several draws. Repeats of a
configuration stay together.

ln(measured / predicted) of two runs is taken to vary together by three causes: a factor of compute all runs share, one
of all the rest, and one that runs share the more the more alike they are (model, recomputation, sizes of the plan).
Predictions move by what is then expected of them given the runs that were looked at (kriging; Rasmussen and Williams
2006, ISBN 026218253X, eq. 2.23).
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
"""Standard deviations of ln(measured / predicted): of compute, of the rest, of runs that are alike, of one run alone.
Chosen among a dozen on data/end_to_end with every source's constants fitted on the others (2026-11-21)."""

OWN_OF_EXPERTS = 0.15
"""The same of one run of a model with experts: the same plan moves by up to twice between releases (README of
data/end_to_end, 2026-11-21)."""

WORDS = ("model", "recompute", "flash_attention", "ep", "zero_stage", "dtype")
RELEASE = "framework_version"
SIZES = {"n_gpu": 0.1, "seq": 0.15, "tp": 0.15, "pp": 0.1, "mbs": 0.15, "grad_accum": 0.05}
WORD = 0.5
"""Distance of two runs: this for each word that differs (half for the trainer's release), and of sizes so much for
each factor of two; what they share falls by e for each unit."""

BUSY = ("compute_s", "optimizer_s")
"""Parts of compute; bubbles count in the shares of the rest of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Predictions after calibration: one entry per choice of runs to look at and run not looked at."""

    index: np.ndarray
    """Which outcome."""
    ratio: np.ndarray
    """Predicted over measured."""


def class_of(outcome: TrainingOutcome) -> tuple[str, ...]:
    """What a calibration is of: source, device and precision."""
    words = outcome.case.words
    return (words.get("source", ""), words.get("gpu", ""), outcome.case.precision)


def planned(outcomes: Sequence[TrainingOutcome], shots: int) -> Shots:
    """Predictions of every timed run from those ``shots`` configurations of its class that tell most of the others;
    classes with no more are left out. No measured time has a say in the choice."""
    return _calibrated(outcomes, shots, lambda of, members: [of.telling(members, shots)])


def drawn(outcomes: Sequence[TrainingOutcome], shots: int, draws: int = DRAWS) -> Shots:
    """The same from ``shots`` configurations drawn at random, ``draws`` times; the same input gives the same draws."""

    def choices(_: _Class, members: Members) -> list[list[int]]:
        orders = (np.random.default_rng(SEED + draw).permutation(len(members)) for draw in range(draws))
        return [order[:shots].tolist() for order in orders]

    return _calibrated(outcomes, shots, choices)


Members = Sequence[npt.NDArray[np.int64]]
"""Of every configuration of a class: its runs."""


def _calibrated(
    outcomes: Sequence[TrainingOutcome], shots: int, choices: Callable[[_Class, Members], list[list[int]]]
) -> Shots:
    index: list[int] = []
    ratio: list[float] = []
    for configurations in _classes(outcomes).values():
        if len(configurations) <= shots:
            continue
        runs = [i for of in configurations for i in of]
        found = _Class([outcomes[i] for i in runs])
        members = np.split(np.arange(len(runs)), np.cumsum([len(of) for of in configurations])[:-1])
        for chosen in choices(found, members):
            seen = np.concatenate([members[at] for at in chosen])
            rest = np.setdiff1d(np.arange(len(runs)), seen)
            index += [runs[i] for i in rest]
            ratio += found.after(seen, rest).tolist()
    return Shots(index=np.asarray(index, dtype=np.int64), ratio=np.asarray(ratio))


def _classes(outcomes: Sequence[TrainingOutcome]) -> dict[tuple[str, ...], list[list[int]]]:
    """Timed runs by class and configuration."""
    classes: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for i, each in enumerate(outcomes):
        if each.timed:
            configuration = each.case.words.get("config_hash") or str(i)
            classes.setdefault(class_of(each), {}).setdefault(configuration, []).append(i)
    return {name: list(groups.values()) for name, groups in classes.items()}


class _Class:
    """Runs that share a calibration: how far off they are, and how that varies together."""

    def __init__(self, runs: Sequence[TrainingOutcome]) -> None:
        self.off = np.log([each.ratio for each in runs])
        busy = np.array([busy_share(each.parts) for each in runs])
        alike = np.exp(-distances([each.case.words for each in runs]))
        self.together = COMPUTE**2 * np.outer(busy, busy) + REST**2 * np.outer(1 - busy, 1 - busy) + ALIKE**2 * alike
        self.own = np.array([OWN_OF_EXPERTS if each.case.experts == "moe" else OWN for each in runs]) ** 2

    def telling(self, members: Members, shots: int) -> list[int]:
        """Configurations to look at, one after the other the one that leaves least unknown of runs not looked at (the
        sum of their standard deviations). Its first run stands for each; what is a run's own averages out."""
        first, repeats = np.array([of[0] for of in members]), np.array([len(of) for of in members])
        left, own = self.together[np.ix_(first, first)], self.own[first] / repeats
        rest = repeats[:, None] * (1.0 - np.eye(len(members)))  # [i, j]: runs of i left once j was looked at
        chosen: list[int] = []
        for _ in range(shots):
            told = left**2 / (np.diag(left) + own)  # [i, j]: variance of i that looking at j takes away
            unknown = (rest * np.sqrt(np.maximum(np.diag(left)[:, None] - told, 0.0))).sum(axis=0)
            unknown[chosen] = np.inf
            best = int(np.argmin(unknown))
            chosen.append(best)
            rest[best] = 0.0
            left = left - np.outer(left[best], left[best]) / (left[best, best] + own[best])
        return chosen

    def after(self, seen: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> FloatArray:
        """Predicted over measured of ``rest`` once ``seen`` were looked at."""
        known = self.together[np.ix_(seen, seen)] + np.diag(self.own[seen])
        expected = self.together[np.ix_(rest, seen)] @ np.linalg.solve(known, self.off[seen])
        left: FloatArray = np.exp(self.off[rest] - expected)
        return left


def distances(rows: Sequence[Mapping[str, str]]) -> FloatArray:
    """How unlike runs are [n, n]."""
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


def busy_share(parts: Mapping[str, float]) -> float:
    """Share of compute in a step."""
    busy, bubble = sum(parts[name] for name in BUSY), parts["pp_bubble_s"]
    return busy / max(sum(parts.values()) - bubble, 1e-30)
