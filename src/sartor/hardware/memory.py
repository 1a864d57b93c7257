"""Off-chip memory by generation: capacity, bandwidth and energy of one stack or package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sartor.units import GIB, GIGA


class Memory(Enum):
    """Generations of off-chip memory."""

    HBM2 = "hbm2"
    HBM2E = "hbm2e"
    HBM3 = "hbm3"
    HBM3E = "hbm3e"
    HBM4 = "hbm4"
    LPDDR4X = "lpddr4x"
    LPDDR5 = "lpddr5"

    @property
    def stack(self) -> MemoryStack:
        """One stack of this generation, from its standard and vendors."""
        return _STACKS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStack:
    """One stack: capacity, peak rate, energy of moving a bit, and the interface's width."""

    bytes: float
    bytes_per_s: float
    energy_pj_per_bit: float
    width_bits: int
    source: str
    uncertain: str = ""
    """Uncertain parts of the entry; empty if none."""


_CONTINUED = "energy taken as HBM2's times the maker's stated gain; no measurement of a bit's energy is published"

_STACKS = {
    Memory.HBM2: MemoryStack(
        bytes=8 * GIB,
        bytes_per_s=307.2 * GIGA,
        energy_pj_per_bit=3.9,
        width_bits=1024,
        source="JEDEC JESD235B (2018), 2.4 Gb/s a pin; energy: O'Connor et al., MICRO 2017, table 1 (3.92 pJ/bit)",
    ),
    Memory.HBM2E: MemoryStack(
        bytes=16 * GIB,
        bytes_per_s=460.8 * GIGA,
        energy_pj_per_bit=3.9,
        width_bits=1024,
        source="JEDEC JESD235D (2021), 3.6 Gb/s a pin (SK hynix, 2020)",
        uncertain="energy taken as HBM2's",
    ),
    Memory.HBM3: MemoryStack(
        bytes=16 * GIB,
        bytes_per_s=819.2 * GIGA,
        energy_pj_per_bit=3.3,
        width_bits=1024,
        source="JEDEC JESD238 (2022), 6.4 Gb/s a pin; signalling 1.1 V and 0.4 V for 1.2 V",
        uncertain="energy scaled from HBM2's by the supply voltage squared, (1.1/1.2)^2",
    ),
    Memory.HBM3E: MemoryStack(
        bytes=24 * GIB,
        bytes_per_s=1177.6 * GIGA,
        energy_pj_per_bit=3.0,
        width_bits=1024,
        source="Micron HBM3 Gen2 announcement (July 2023): 24 GB of 8 dies, 9.2 Gb/s a pin",
        uncertain=_CONTINUED,
    ),
    Memory.HBM4: MemoryStack(
        bytes=36 * GIB,
        bytes_per_s=2048.0 * GIGA,
        energy_pj_per_bit=2.4,
        width_bits=2048,
        source="JEDEC JESD270-4 (April 2025): 2048 bits at 8 Gb/s a pin",
        uncertain=_CONTINUED,
    ),
    Memory.LPDDR4X: MemoryStack(
        bytes=4 * GIB,
        bytes_per_s=34.1 * GIGA,
        energy_pj_per_bit=6.0,
        width_bits=64,
        source="JEDEC JESD209-4-1 (2017), 4266 Mb/s a pin on 64 bits",
        uncertain="energy is an assumption between HBM2's and DDR4's (Jouppi et al. 2021, table 2: 20 pJ/bit)",
    ),
    Memory.LPDDR5: MemoryStack(
        bytes=8 * GIB,
        bytes_per_s=51.2 * GIGA,
        energy_pj_per_bit=5.0,
        width_bits=64,
        source="JEDEC JESD209-5 (2019), 6400 Mb/s a pin on 64 bits",
        uncertain="energy is an assumption between HBM2's and DDR4's (Jouppi et al. 2021, table 2: 20 pJ/bit)",
    ),
}
