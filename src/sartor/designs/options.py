"""Every way to run every model on some accelerators, each with what it reaches at most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.designs.bounds import LoweredModel, plan_rates
from sartor.designs.point import Option
from sartor.designs.question import DesignQuestion
from sartor.hardware.accelerator import Accelerator
from sartor.units import Array


def options_of(
    question: DesignQuestion, models: Sequence[LoweredModel], candidates: Accelerator, hbm_bytes: Array
) -> list[tuple[Option, ...]]:
    """The options of each candidate [candidates] with its memory, those that nothing fits left out; one array pass."""
    found: list[list[Option]] = [[] for _ in range(len(hbm_bytes))]
    for m, model in enumerate(models):
        for split, parts in model.parts.items():
            rates = plan_rates(question, parts, candidates, hbm_bytes[None])[:, 0]
            for recompute, row in zip(question.recomputes, rates, strict=True):
                for i in np.flatnonzero(row > 0):
                    found[i].append(Option(model=m, split=split, recompute=recompute, bound=float(row[i])))
    return [tuple(options) for options in found]
