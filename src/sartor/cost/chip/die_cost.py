"""Cost of a die: dies per wafer, yield, price."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.cost.chip.technology import CLUSTERING, DEFECTS_PER_MM2, WAFER_USD
from sartor.units import Floats, plain

WAFER_MM = 300.0
RETICLE_MM2 = 858.0
"""26 mm x 33 mm: the largest field a scanner exposes (ASML datasheets). A larger die cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DieCost:
    """A die's price [USD of ``WAFER_USD``'s date], without packaging, memory stacks, test and margins."""

    dies_per_wafer: Floats
    yield_share: Floats
    die_usd: Floats


def die_cost(
    area_mm2: Floats,
    node_nm: int,
    wafer_usd: float | None = None,
    defects_per_mm2: float | None = None,
    clustering: float = CLUSTERING,
) -> DieCost:
    """Cost of a good die of ``area_mm2``; infinite beyond the reticle. Broadcasts.

    Dies per wafer: pi (d/2)^2 / A - pi d / sqrt(2 A). Yield: (1 + A D / c)^-c, the negative binomial, which approaches
    exp(-A D) for large c. Price and defects default to ``WAFER_USD`` and ``DEFECTS_PER_MM2``: assumptions.
    """
    price = WAFER_USD[node_nm] if wafer_usd is None else wafer_usd
    defects = DEFECTS_PER_MM2[node_nm] if defects_per_mm2 is None else defects_per_mm2
    area = np.asarray(area_mm2, dtype=np.float64)
    dies = np.pi * (WAFER_MM / 2) ** 2 / area - np.pi * WAFER_MM / np.sqrt(2 * area)
    good = (1 + area * defects / clustering) ** -clustering
    usd = np.where(area <= RETICLE_MM2, price / (dies * good), np.inf)
    return DieCost(dies_per_wafer=plain(dies), yield_share=plain(good), die_usd=plain(usd))
