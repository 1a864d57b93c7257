"""Every option to run every model on some accelerators, each with its upper bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.designs.bounds import LoweredModel, part_seconds, placed_rates
from sartor.designs.point import Option
from sartor.designs.question import DesignQuestion
from sartor.designs.shape_bounds import stacked_seconds
from sartor.designs.space import taken
from sartor.hardware.accelerator import Accelerator
from sartor.units import Array


def options_of(
    question: DesignQuestion, models: Sequence[LoweredModel], candidates: Accelerator, hbm_bytes: Array
) -> list[tuple[Option, ...]]:
    """The options of each candidate [candidates] with its memory, without those that do not fit; one array pass over
    splits and candidates."""
    found: list[list[Option]] = [[] for _ in range(len(hbm_bytes))]
    for m, model in enumerate(models):
        every, count = list(model.parts.values()), len(hbm_bytes)
        pairs = np.tile(np.arange(count), len(every))
        forward, backward = stacked_seconds(
            every, np.arange(len(pairs)) // count, taken(candidates, pairs), part_seconds
        )
        for s, parts in enumerate(every):
            mine = slice(s * count, (s + 1) * count)
            rates = placed_rates(question, parts, forward[:, mine], backward[:, mine], candidates, hbm_bytes[None])[
                :, 0
            ]
            for recompute, row in zip(question.recomputes, rates, strict=True):
                for i in np.flatnonzero(row > 0):
                    found[i].append(Option(model=m, split=parts.split, recompute=recompute, bound=float(row[i])))
    return [tuple(options) for options in found]
