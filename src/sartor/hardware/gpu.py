"""Devices as their datasheets describe them: dense peaks, memory, clocks, links, price; every entry sourced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.operators import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device (one die where a card's dies are separate devices). Peaks are dense, rates in SI units."""

    name: str
    vendor: str
    generation: str
    """volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4, tpu_v5p, ...: which kernels exist."""
    num_sms: int
    """SMs, compute units or cores that tiles are handed to; matrix engines on devices without such."""
    peak_flops_per_s: Mapping[DType, float]
    hbm_bytes: float
    hbm_bytes_per_s: float
    l2_bytes: float
    boost_clock_hz: float
    tdp_w: float
    compute_capability: str = ""
    link_bytes_per_s: float = 0.0
    """Scale-up link (NVLink, Infinity Fabric, ICI), one direction, all links of the device together."""
    link_latency_s: float = 2e-6
    devices_per_node: int = 8
    pcie_bytes_per_s: float = 0.0
    smem_bytes_per_sm: float = 0.0
    matrix_tile: int = 0
    """Side of the systolic array where there is one (128 or 256); 0 on GPUs."""
    released: str = ""
    price_usd_per_hour: float | None = None
    price_source: str = ""
    price_date: str = ""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name (or ``all``) -> document and date."""
    note: str = ""

    def ridge_flops_per_byte(self, dtype: DType) -> float:
        """Arithmetic intensity above which a dense product is bound by compute."""
        return self.peak_flops_per_s[dtype] / self.hbm_bytes_per_s
