"""Limits on what can be built: clock, die size, die edge, power and heat.

Each limit is at or above what has shipped, so a chip beyond it is rejected, not just flagged. Sources marked "recalled"
are quoted from memory. Every GPU, TPU and template chip of the catalogue is within all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sartor.cost.chip.area import die_area
from sartor.cost.chip.energy import power
from sartor.cost.chip.ownership import RETICLE_MM2
from sartor.hardware.accelerator import Accelerator
from sartor.units import GIGA, MEGA, Floats

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
