"""Calibrating on a few runs of one's own: what they were off by tells what runs like them are off by.

A class of runs (one source, device and precision) is cut into K configurations that are looked at and all others that
are predicted; the same for several draws, so that no choice of runs flatters. Repeats of a configuration stay together.

ln(measured / predicted) of two runs is taken to vary together by three causes: a factor of compute all runs share, one
of all the rest, and one that runs share the more the more alike they are (model, recomputation, sizes of the plan).
Predictions move by what is then expected of them given the runs that were looked at (kriging; Rasmussen and Williams
2006, ISBN 026218253X, eq. 2.23).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.measure.training_predictions import TrainingOutcome

FloatArray = npt.NDArray[np.float64]

DRAWS = 20
SEED = 20261121

COMPUTE, REST, ALIKE, OWN = 0.1, 0.1, 0.1, 0.05
"""Standard deviations of ln(measured / predicted): of compute, of the rest, of runs that are alike, of one run alone.
Chosen among a dozen on data/end_to_end with every source's constants fitted on the others (2026-11-21)."""

WORDS = ("model", "recompute", "flash_attention", "ep", "zero_stage", "dtype")
SIZES = {"n_gpu": 0.1, "seq": 0.15, "tp": 0.15, "pp": 0.1, "mbs": 0.15, "grad_accum": 0.05}
WORD = 0.5
"""Distance of two runs: this for each word that differs, and of sizes so much for each factor of two; what they share
falls by e for each unit."""

BUSY = ("compute_s", "optimizer_s")
"""Parts of compute; bubbles count in the shares of the rest of the step."""


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
            runs = [i for of in members for i in of]
            found = _Class([outcomes[i] for i in runs])
            starts = np.cumsum([0, *(len(of) for of in members)])
            for draw in range(draws):
                order = np.random.default_rng(SEED + draw).permutation(len(members))
                seen, rest = (
                    np.concatenate([np.arange(starts[at], starts[at + 1]) for at in part])
                    for part in (order[:shots], order[shots:])
                )
                index += [runs[i] for i in rest]
                ratio += found.after(seen, rest).tolist()
    return Shots(index=np.asarray(index, dtype=np.int64), ratio=np.asarray(ratio))


class _Class:
    """Runs that share a calibration: how far off they are, and how that varies together."""

    def __init__(self, runs: Sequence[TrainingOutcome]) -> None:
        self.off = np.log([each.ratio for each in runs])
        busy = np.array([busy_share(each.parts) for each in runs])
        alike = np.exp(-distances([each.case.words for each in runs]))
        self.together = COMPUTE**2 * np.outer(busy, busy) + REST**2 * np.outer(1 - busy, 1 - busy) + ALIKE**2 * alike

    def after(self, seen: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> FloatArray:
        """Predicted over measured of ``rest`` once ``seen`` were looked at."""
        known = self.together[np.ix_(seen, seen)] + OWN**2 * np.eye(len(seen))
        expected = self.together[np.ix_(rest, seen)] @ np.linalg.solve(known, self.off[seen])
        left: FloatArray = np.exp(self.off[rest] - expected)
        return left


def distances(rows: Sequence[Mapping[str, str]]) -> FloatArray:
    """How unlike runs are [n, n]."""
    words = np.array([[row.get(name, "") for name in WORDS] for row in rows])
    sizes = np.array([[_octaves(row.get(name, "")) * weight for name, weight in SIZES.items()] for row in rows])
    differ = (words[:, None] != words).sum(axis=-1)
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
