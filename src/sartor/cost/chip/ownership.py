"""What limits and costs an accelerator: clock, die, power and heat that can be built, and its price over its life.

Each limit is at or above what has shipped, so a chip beyond it is rejected, not just flagged. Sources marked "recalled"
are quoted from memory. Every GPU, TPU and template chip of the catalogue is within all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sartor.cost.chip.area import CLUSTERING, DEFECTS_PER_MM2, WAFER_USD, die_area
from sartor.cost.chip.energy import power
from sartor.hardware.accelerator import Accelerator
from sartor.units import GIGA, MEGA, Floats, plain

WAFER_MM = 300.0
RETICLE_MM2 = 858.0
"""26 mm x 33 mm: the largest field a scanner exposes (ASML datasheets). A larger die cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DieCost:
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
) -> _DieCost:
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
    return _DieCost(dies_per_wafer=plain(dies), yield_share=plain(good), die_usd=plain(usd))


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


MAX_CLOCK_HZ = 3.5 * GIGA
"""A quarter above the fastest accelerators of the catalogue: Trainium and Inferentia2 at 2.8 GHz (AWS Neuron
documentation). Single processor cores reach 6.2 GHz (Intel Core i9-14900KS, March 2024, recalled), not arrays."""
MAX_PACKAGE_W = 1400.0
"""Highest power in one package: GB300 and MI355X (NVIDIA and AMD datasheets, 2025). Counts all parts at peak rate."""
MAX_W_PER_MM2 = 2.0
"""Power density of the die, without memory. H100 has 0.86 (700 W on 814 mm2), the template's H100 1.05 (its die is
modelled too small). Channels in the silicon cooled 7.9 in a laboratory (Tuckerman and Pease, 1981, recalled)."""
HOT_W_PER_MM2 = 1.05
"""The template's H100; only its TPU v6e has more (1.32), so a chip above this needs unusual cooling."""
STACK_EDGE_MM = 7.75
"""Short side of an HBM2 stack, 7.75 mm x 11.87 mm (SK hynix and Samsung, 2016, recalled); later stacks are wider. A
stack needs die edge for its 1024 wires. LPDDR packages are placed farther away and need none here."""
LINK_BYTES_PER_S_PER_MM = 60 * GIGA
"""Highest bandwidth of long-reach serial links, one direction per mm of die edge: a single-die switch of 51.2 Tb/s
(Broadcom Tomahawk 5, August 2022, recalled) has 6.4 TB/s on a die of at most 858 mm2, 55 GB/s. H100 has 4."""
EDGE_OF_ROOT = 3 * 2**0.5
"""Perimeter of a die twice as long as wide, over the root of its area: the longest edge assumed."""
WORDS = {
    "clock": "clock_mhz={needs:,.0f}: no array has shipped above 2,800 MHz; at most {most:,.0f} is taken as possible",
    "die": "a whole die of {needs:,.0f} mm2 at {node} nm with links and control: scanners expose {most:.0f} mm2",
    "edge": "{where} need {needs:,.0f} mm of die edge; a die of {die:,.0f} mm2 has at most {most:,.0f} mm",
    "power": "{needs:,.0f} W with all parts at peak rate: the most in one package is {most:,.0f} W (GB300, 2025)",
    "cooling": "{needs:.3g} W/mm2 on the die: cold plates take about {most:.3g}",
}


def _limits(a: Accelerator) -> dict[str, tuple[Floats, Floats]]:
    """What a chip needs and the maximum, by limit; both broadcast over candidates."""
    die, watts = np.asarray(die_area(a).total_mm2), power(a)
    stacks = np.asarray(a.num_stacks) * (STACK_EDGE_MM if a.memory.value.startswith("hbm") else 0.0)
    return {
        "clock": (np.asarray(a.clock_hz) / MEGA, MAX_CLOCK_HZ / MEGA),
        "die": (die, RETICLE_MM2),
        "edge": (stacks + (a.network_bytes_per_s + a.scale_out_bytes_per_s) / LINK_BYTES_PER_S_PER_MM,
                 EDGE_OF_ROOT * np.sqrt(die)),
        "power": (watts.tdp_w, MAX_PACKAGE_W),
        "cooling": ((watts.tdp_w - np.asarray(watts.memory_w)) / die, MAX_W_PER_MM2),
    }  # fmt: skip


def too_hot(a: Accelerator) -> str:
    """A sentence if a chip can be built but is hotter than ``HOT_W_PER_MM2``; else empty."""
    density = float(_limits(a)["cooling"][0])
    if not HOT_W_PER_MM2 < density <= MAX_W_PER_MM2:
        return ""
    return (
        f"{100 * density:.0f} W/cm2 on the die with all parts at peak rate: an H100 drawn in the same way has "
        f"{100 * HOT_W_PER_MM2:.0f}, so it needs better cooling"
    )


def excess(a: Accelerator) -> Floats:
    """The largest ratio of need to maximum over all limits: above 1 the chip cannot be built."""
    shares = (np.broadcast_to(np.divide(needs, limit), a.shape) for needs, limit in _limits(a).values())
    largest_share: Floats = np.maximum.reduce(list(shares))
    return largest_share


def faults(a: Accelerator) -> Iterator[str]:
    """Why a chip cannot be built: a sentence for each limit it exceeds, with both numbers."""
    needs_and_limits = _limits(a)
    die = float(needs_and_limits["die"][0])
    joined = f"{a.num_stacks} stacks of {a.memory.value} and {a.num_links} links of {a.link_bytes_per_s / GIGA:g} GB/s"
    joined += f" and {a.scale_out_bytes_per_s / GIGA:g} GB/s beyond" if a.scale_out_bytes_per_s else ""
    for name, (needs, limit) in needs_and_limits.items():
        if float(needs) > float(limit):
            yield WORDS[name].format(needs=float(needs), most=float(limit), die=die, where=joined, node=a.node_nm)
