"""The published search order and stop rule: from the largest area down, until a few buckets bring no gain."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.designs.baselines import options_of
from sartor.designs.bounds import LoweredModel, lower_models
from sartor.designs.candidates import Baseline, Candidates, Keep, Ranked, afresh, all_prices, candidates_of, priced
from sartor.designs.point import Point, ScheduleStore, evaluate_point
from sartor.designs.question import DesignQuestion
from sartor.designs.space import AcceleratorSpace

BUCKET_MM2 = 0.01
"""Width of an area bucket in the published order: 10,000 square micrometres."""
PATIENCE = 5
"""The published search stops after this many buckets without a better throughput."""
MOST_VISITED = 200
"""Candidates after which the search ends if the stop rule has not ended it."""
CHUNK = 32
"""Number of candidates with options bounded together."""


def published_order(
    question: DesignQuestion, space: AcceleratorSpace, time_limit_s: float = float("inf"), keep: Keep = afresh
) -> Baseline:
    """Candidates from the largest area down in buckets, until the best of the last five buckets do not rise.

    The evaluation is ours (microbatches, recomputation and placement searched exactly, each candidate with its largest
    memory); only order and stop rule are the published ones. Ends after 200 candidates or at the time limit; the note
    then says so.
    """
    start = time.perf_counter()
    candidates, why = candidates_of(question, space)
    best: Ranked | None = None
    buckets: list[float] = []
    area_mm2 = all_prices(question, candidates)[0]
    order = np.argsort(-area_mm2, kind="stable")[:MOST_VISITED] if not why else np.zeros(0, dtype=np.int64)
    last = "with the space" if len(order) == len(candidates) else f"after {MOST_VISITED} candidates"
    visited, note = 0, why or f"ended {last}, before its rule did"
    names = np.floor(area_mm2[order] / BUCKET_MM2)
    evaluated = zip(names.tolist(), _evaluated(question, candidates, order, keep), strict=True)
    for _, bucket in groupby(evaluated, key=lambda each: each[0]):
        values = [0.0]
        for _, ranked in bucket:
            visited += 1
            values.append(ranked.objective)
            best = ranked if best is None or ranked.objective > best.objective else best
            if time.perf_counter() - start > time_limit_s:
                break
        buckets.append(max(values) or -1.0)
        latest = buckets[-PATIENCE:]
        if len(latest) == PATIENCE and all(a >= b for a, b in pairwise(latest)):
            note = f"stopped by its rule after {len(buckets)} buckets"
            break
        if time.perf_counter() - start > time_limit_s:
            note = f"ended by the clock after {len(buckets)} buckets, before its rule did"
            break
    return Baseline(
        name="published order and stop rule",
        ranked=best if best is not None and best.objective > 0 else None,
        evaluations=visited,
        seconds=time.perf_counter() - start,
        note=note,
    )


def _evaluated(
    question: DesignQuestion, candidates: Candidates, order: npt.NDArray[Any], keep: Keep
) -> Iterator[Ranked]:
    """Each candidate with its largest memory, evaluated exactly, one after another."""
    models, store = lower_models(question), ScheduleStore()

    def one(point: Point) -> Ranked:
        return priced(question, evaluate_point(question, point, store))

    for first in range(0, len(order), CHUNK):
        index = order[first : first + CHUNK]
        for point in _points(question, models, candidates, index):
            yield keep(f"published order, candidate {point.index}", partial(one, point))


def _points(
    question: DesignQuestion, models: Sequence[LoweredModel], candidates: Candidates, index: npt.NDArray[Any]
) -> list[Point]:
    points: dict[int, Point] = {}
    memory = candidates.hbm_bytes[:, index].max(axis=0)
    for where, accelerators in candidates.of_groups(index):
        options = options_of(question, models, accelerators, memory[where])
        for i, mine in zip(where.tolist(), options, strict=True):
            place = int(index[i])
            a = candidates.accelerator(place)
            points[i] = Point(index=place, accelerator=a, hbm_bytes=float(memory[i]), options=mine)
    return [points[i] for i in range(len(index))]
