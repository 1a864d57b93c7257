"""What an accelerator costs: a good die from its wafer, and a device over its life.

Cost of a die: dies per wafer, yield, price.

Cost of owning a chip: parts, package, and electricity over its years of use.
"""

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


INTERPOSER_WAFER_USD = 12_000.0
"""Price of a processed CoWoS-S wafer, which carries 28 packages of H100 or H200 (okx.com, post 64639582664800,
2026, read 2026-11-23). Uncertain by a factor of two: 300 to 2,000 USD a package (siliconanalysts.com, 2026)."""
H100_PACKAGES = 28
STACK_MM2 = 7.75 * 11.87
"""Footprint of an HBM2 stack (as in ``buildable``)."""
H100_SILICON_MM2 = 814 + 6 * STACK_MM2
"""Area on one such package: the die (NVIDIA H100 whitepaper, 2022) and six stack sites."""
PACKAGE_USD_PER_MM2 = INTERPOSER_WAFER_USD / H100_PACKAGES / H100_SILICON_MM2
"""0.31 USD per mm2 of die and stacks: the interposer area is proportional to what it carries."""
USD_PER_KWH = 0.0806
"""Mean US industrial price in 2023: EIA, by Statista (published 18 March 2024)."""
YEARS = 4.0
"""Assumption: how long a training chip is in use."""
PUE = 1.56
"""Data center power over the power of its computers: mean of Uptime Institute's survey of 2024 (recalled); the largest
operators report 1.1."""
HOURS_PER_YEAR = 8766.0


def package_usd(die_mm2: Floats, num_stacks: Floats) -> Floats:
    """Interposer and assembly of a die with its stacks [USD]."""
    return PACKAGE_USD_PER_MM2 * (die_mm2 + STACK_MM2 * num_stacks)


def electricity_usd(power_w: Floats, years: float = YEARS, usd_per_kwh: float = USD_PER_KWH) -> Floats:
    """Electricity of a device that always draws ``power_w``, including data center overhead [USD].

    >>> round(electricity_usd(700.0))
    3086
    """
    return power_w * (PUE * HOURS_PER_YEAR * years * usd_per_kwh / 1000)
