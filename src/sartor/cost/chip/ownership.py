"""Cost of owning a chip: parts, package, and electricity over its years of use."""

from __future__ import annotations

from sartor.units import Floats

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
