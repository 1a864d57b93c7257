"""Whether predictions order shapes of near-equal work as they were measured: what a choice between shapes needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sartor.records.tables import Floats64, Index
from sartor.validate.predictions import Predicted

NEAR_WORK = 1.1
"""For rank agreement, shapes are compared if their work is in the same step of this factor."""

EQUAL_WORK = 1.02
"""For the share of pairs in order, shapes are compared if their work differs by at most this factor."""

FAR_TIME = 1.05
"""Such pairs count if their measured times differ by more than this factor: less is the noise of measurements."""

PAIRS = 64
"""Most other shapes that each shape is compared with."""


def near_tau(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """Kendall's tau among shapes of near-equal work, pooled per group.

    Work (FLOPs; bytes if there are none) is cut into steps of a factor ``NEAR_WORK``. Within a step, pairs with
    different measured times are concordant if the predictions order them the same way, discordant otherwise: tau = (C -
    D) / (C + D). In a step of more than ``PAIRS`` + 1 shapes each is paired with ``PAIRS`` others, drawn by a fixed
    shuffle.
    """
    step = np.floor(_log_work(predicted) / np.log(NEAR_WORK)).astype(np.int64)
    order = np.lexsort((_shuffle(step.size), step, _groups(predicted, group)))
    agree, pairs = np.zeros(groups), np.zeros(groups)
    for pair_group, apart, measured, guessed in _pairs(predicted, group, step, order):
        alike = np.sign(measured) * np.sign(guessed) * (apart == 0)
        agree += np.bincount(pair_group, weights=alike, minlength=groups)
        pairs += np.bincount(pair_group, weights=np.abs(alike), minlength=groups)
    return _ratio(agree, pairs)


def faster_picked(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """Share of the pairs of shapes within ``EQUAL_WORK`` of each other and more than ``FAR_TIME`` apart in measured
    time whose faster one is predicted to be faster, pooled per group. Each shape is paired with at most ``PAIRS``
    others, the nearest in work above its own (of equal ones, those of a fixed shuffle)."""
    work = _log_work(predicted)
    order = np.lexsort((_shuffle(work.size), work, _groups(predicted, group)))
    right, pairs = np.zeros(groups), np.zeros(groups)
    for pair_group, apart, measured, guessed in _pairs(predicted, group, work, order):
        counted = (apart <= np.log(EQUAL_WORK)) & (np.abs(measured) > np.log(FAR_TIME))
        right += np.bincount(pair_group, weights=counted & (np.sign(measured) == np.sign(guessed)), minlength=groups)
        pairs += np.bincount(pair_group, weights=counted, minlength=groups)
    return _ratio(right, pairs)


def _pairs(predicted: Predicted, group: Index, place: Any, order: Index) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Every shape with the next, the one after that and so on in ``order``: their group, how far apart their ``place``
    is, and the logarithms of one's measured and predicted time over the other's. Pairs across groups are left out."""
    expressed = np.flatnonzero(predicted.expressed)[order]
    g, place = group[expressed], place[order]
    measured, guessed = np.log(predicted.targets.measured_s[expressed]), np.log(predicted.time_s[expressed])
    for shift in range(1, min(PAIRS, expressed.size - 1) + 1):
        same = g[shift:] == g[:-shift]
        far, longer, thought = ((column[shift:] - column[:-shift])[same] for column in (place, measured, guessed))
        yield g[shift:][same], far, longer, thought


def _groups(predicted: Predicted, group: Index) -> Index:
    return group[np.flatnonzero(predicted.expressed)]


def _log_work(predicted: Predicted) -> Floats64:
    log_work: Floats64 = np.log(np.maximum(predicted.work[np.flatnonzero(predicted.expressed)], 1.0))
    return log_work


def _shuffle(size: int) -> Any:
    return (np.arange(size, dtype=np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(20)


def _ratio(part: Floats64, whole: Floats64) -> Floats64:
    ratio: Floats64 = np.divide(part, whole, where=whole > 0, out=np.full(whole.size, np.nan))
    return ratio
