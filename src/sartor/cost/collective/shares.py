"""Efficiency of links between nodes beyond their datasheets: shares of nominal rates that collectives reach.

Every default but ``pipeline`` is recalled or assumed, with its reason; ``[network]`` of ``calibration/training.toml``
(fitted on published runs) or a user's record replaces any of them. Symbols: docs/concepts/clusters.md.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.units import Floats

SHARES: Mapping[str, float] = {
    "nvlink": 0.75,
    "nvswitch": 0.75,
    "xgmi": 0.65,
    "pcie": 0.4,
    "smp": 0.5,
    "ici": 0.9,
    "infiniband": 0.9,
    "ethernet": 0.8,
    "tcp": 0.8,
    "efa": 0.7,
    "omnipath": 0.7,
    "slingshot": 0.75,
    "dcn": 0.7,
    "": 0.75,
}
"""Share of a tier's nominal rate that a large collective reaches, by kind of link. NVLink and PCIe: rounded from the
fits of this package's calibrations (A100 to B300; RTX PRO 6000), 2026-11-21. ICI: 45 of 50 GB/s a link (How to Scale
Your Model, jax-ml, 2025). InfiniBand: nccl-tests with one adapter per device reach about 0.9 of the wire (recalled).
RDMA over Ethernet, EFA, Omni-Path, Slingshot, DCN: recalled orders, low confidence; smp and others: assumed."""


SIGMAS: Mapping[str, float] = {"pcie": 0.1, "tcp": 0.3}
"""Standard deviations of ln(measured/predicted) for links beyond the innermost in collectives.parquet (vidur's bridged
cards, priced with other GPUs' constants): needed 0.04 over PCIe (one machine), and 0.19 and 0.5 over sockets (two
machines); 2026-11-21."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCoefficients:
    """Efficiencies of collectives across tiers; shares are from 0 to 1, times in seconds."""

    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)
    """Kind of link -> share of its nominal rate (missing kinds: ``SHARES``)."""
    all_to_all_share: float = 0.75
    """Further factor for all-to-all between nodes: unequal paths through the switches (assumed)."""
    tree_share: float = 0.9
    """Rate of a tree relative to a ring (NCCL src/graph/tuning.cc: busBw * .9)."""
    tree_hop: float = 2.0
    """Hop latency of a tree relative to a ring (same file: 8.5 to 4.0 us with LL128 on the network)."""
    in_network_share: float = 0.9
    """Rate of in-network reduction between nodes (same file, CollNet: busBw * .9)."""
    exposed_share: float = 0.1
    """Share of the faster tiers' time that the slowest tier does not hide (assumed; NCCL's model has 0)."""
    pipeline: float = 0.5
    """Factor on the cost of cutting a buffer into pieces between nodes, ``2 sqrt(hops x bytes)`` of both times. Between
    two fits of two-node all-reduces in collectives.parquet (vidur, A100): 0.25 for one device per node, 0.69 for four
    per node; 2026-11-21."""
    flow_bytes_per_s: float = 2.5e9
    """Most that a device sends through a host's socket (``tcp``): one stream on one core. Two nodes of A100 (Azure) and
    two of A40 agree; docs/concepts/collectives.md."""
    peer_s: float = 3e-7
    """Host and adapter time per peer of an all-to-all between nodes (assumed)."""
    log_sigma: float = 0.35
    """Standard deviation of ln(measured/predicted) of a collective between nodes (assumed), for links without an entry
    in ``log_sigmas``."""
    log_sigmas: Mapping[str, float] = field(default_factory=lambda: SIGMAS)
    """Kind of link -> its own standard deviation."""

    def __post_init__(self) -> None:
        for kind, share in self.shares.items():
            if kind not in SHARES:
                near = ", ".join(difflib.get_close_matches(kind, SHARES, n=2, cutoff=0.3))
                raise InputError(f"network.shares.{kind}", share, "is not a kind of link", near)
            _share(f"network.shares.{kind}", share)
        for name in ("all_to_all_share", "tree_share", "in_network_share"):
            _share(f"network.{name}", getattr(self, name))
        for name in ("tree_hop", "exposed_share", "pipeline", "flow_bytes_per_s", "peer_s", "log_sigma"):
            value = getattr(self, name)
            if not _finite(value) or value < 0:
                raise InputError(f"network.{name}", value, "must be a finite number not below 0")

    def sigma(self, kind: str) -> float:
        """Standard deviation of ln(measured/predicted) of a collective with outermost links of ``kind``."""
        return float(self.log_sigmas.get(kind, self.log_sigma))

    def share(self, kind: str) -> float:
        """Share of the nominal rate on links of ``kind``."""
        return float(self.shares.get(kind, SHARES.get(kind, SHARES[""])))


def network_coefficients(table: JsonMap) -> NetworkCoefficients:
    """Coefficients from a ``[network]`` table. Raises ``InputError`` for an unknown name or an invalid value."""
    names = {field.name for field in fields(NetworkCoefficients)}
    for name in table:
        if name not in names:
            near = ", ".join(difflib.get_close_matches(name, names, n=2, cutoff=0.4))
            raise InputError(f"network.{name}", table[name], "is not a network coefficient", near)
    values = dict(table)
    if "shares" in values:
        if not isinstance(values["shares"], Mapping):
            raise InputError("network.shares", values["shares"], "must be a table of kind of link = share")
        values["shares"] = {**SHARES, **values["shares"]}
    return replace(NetworkCoefficients(), **values)


def _share(name: str, value: Floats) -> None:
    if not _finite(value) or not 0 < value <= 1:
        raise InputError(name, value, "must be a share above 0 and at most 1")


def _finite(value: Floats) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
