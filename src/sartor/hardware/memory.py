"""Off-chip memory by generation: capacity, bandwidth and energy of one stack or package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from sartor.bounded import packaged_toml
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
        return _stacks()[self.value]


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


@cache
def _stacks() -> dict[str, MemoryStack]:
    """Stacks by the generation's name."""
    table = packaged_toml("hardware", "memory.toml")
    return {
        name: MemoryStack(bytes=row.pop("gib") * GIB, bytes_per_s=row.pop("gb_per_s") * GIGA, **row)
        for name, row in table.items()
    }
