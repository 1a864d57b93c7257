"""Clusters: equal devices, and the links between them from the innermost tier out.

Devices are numbered so that neighbours are close: ``k * span ... (k + 1) * span - 1`` share a group of a tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.hardware.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """Links among ``span`` neighbouring devices; the outermost tier has ``span`` 0: all devices there are."""

    name: str
    span: int
    bytes_per_s: float
    """What one device sends while it receives as much, all its links of this tier together, nominal."""
    latency_s: float
    oversubscription: float = 1.0
    """Bandwidth of all devices into the tier over what its core carries (1: full bisection)."""
    kind: str = ""
    """nvlink, nvswitch, pcie, infiniband, ethernet, ici, dcn, xgmi: what efficiency and algorithms it has."""
    in_network_reduction: bool = False
    """Switches add (NVLS on NVSwitch, SHARP on InfiniBand)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``num_devices`` of one type (0: as many as asked for), and its tiers, innermost first."""

    name: str
    gpu: Gpu
    devices_per_node: int
    tiers: tuple[LinkTier, ...]
    num_devices: int = 0
    others: tuple[Cluster, ...] = ()
    """Further pools of other devices, joined by the outermost tier (a mixed cluster)."""
    price_usd_per_device_hour: float | None = None
    price_source: str = ""
    price_date: str = ""
    title: str = ""
    note: str = ""
    confidence: str = "high"
    sources: Mapping[str, str] = field(default_factory=dict)
