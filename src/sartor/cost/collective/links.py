"""Laws of links: a ring, the rings of a torus, and the coefficients of networks between nodes.

A collective on one tier of links: sequential steps, and share of the buffer that each device sends.

GPUs (``tiers``) and template chips (``link_time_s``) use the same steps; they differ only in the link parameters. Ring
and tree: Thakur, Rabenseifner and Gropp, IJHPCA 2005, sec. 4.

Collectives on a torus of links (TPU): a group uses all axes it covers, and an axis it covers only in part at half.

Devices are numbered along the axes of a slice that is as close to a cube (a square) as its size allows. Sources: How to
Scale Your Model (jax-ml/scaling-book, 2025), chapters TPUs and Sharding: a bidirectional ring along an axis uses both
links, an axis without wraparound takes twice the time, an all-to-all a quarter of an all-gather's.

Efficiency of links between nodes beyond their datasheets: shares of nominal rates that collectives reach.

Every default but ``pipeline`` is recalled or assumed, with its reason; ``[network]`` of ``calibration/training.toml``
(fitted on published runs) or a user's record replaces any of them. Symbols: docs/concepts/clusters.md.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import LinkTier
from sartor.json_types import JsonMap
from sartor.operators import Collective, CollectiveKind
from sartor.units import Floats


def hops(kind: CollectiveKind, n: Floats) -> Floats:
    """Sequential steps: around the ring twice or once; one for all-to-all and send/recv."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1)
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return n - 1
    return np.ones_like(n)


def volume(kind: CollectiveKind, n: Floats) -> Floats:
    """Share of the buffer that each device sends."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1) / n
    return np.ones_like(n) if kind is CollectiveKind.SEND_RECV else (n - 1) / n


def tree_steps(n: Floats) -> Floats:
    """Steps of a tree that sends the whole buffer up to the root and down again, the fastest way for small buffers."""
    return 2 * np.ceil(np.log2(np.maximum(n, 1)))


def link_time_s(op: Collective, accelerator: Accelerator) -> Floats:
    """Time of a collective over ``group_size`` accelerators on their own links [s]; shapes broadcast over candidates.

    It uses no core. A message is striped over all links and reaches the nominal rate; a step takes the nominal latency.
    A group that spans more devices than the links connect runs at the speed of the scale-out network. A group of one
    costs nothing; without links the time is infinite.
    """
    n = np.asarray(op.group_size, dtype=np.float64)
    bytes_per_s, latency_s = accelerator.reach(op.group_size * op.stride)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole_s = np.asarray(op.message_bytes, dtype=np.float64) / np.asarray(bytes_per_s)
        time_s = hops(op.kind, n) * latency_s + volume(op.kind, n) * whole_s
        if op.kind is CollectiveKind.ALL_REDUCE:
            time_s = np.minimum(time_s, tree_steps(n) * (latency_s + whole_s))
    taken = np.where(n > 1, time_s, 0.0)
    return float(taken) if taken.ndim == 0 else taken


def fitted(kind: CollectiveKind, n: Floats, c: CollectiveCoefficients) -> tuple[Floats, float, float]:
    """Share of the link's rate that ``n`` devices reach, launch seconds, seconds per hop."""
    general = c.all_reduce_share if kind is CollectiveKind.ALL_REDUCE else c.link_share
    rows = [row[1:4] for row in c.kinds if row[0] == kind.value]
    share, launch, hop = rows[0] if rows else (general, c.launch_s, c.hop_s)
    loss = 0.0 if kind is CollectiveKind.SEND_RECV and rows else c.small_group_loss
    return share * (1 - loss / (n * n)), launch, hop


_EPSILON = 1e-6


def torus_terms(
    kind: CollectiveKind, n: Floats, stride: Floats, tier: LinkTier, slice_devices: int
) -> tuple[Floats, Floats, Floats]:
    """Share of the buffer each device sends, its nominal rate [bytes/s], and the number of sequential hops.

    ``n`` members ``stride`` apart on a torus of ``slice_devices`` (0: as many as the largest group needs).
    """
    axes = tier.torus_axes
    devices = slice_devices or float(np.max(n * stride, initial=1.0))
    side = max(devices, 2.0) ** (1.0 / axes)
    full, partial = _axes(n, stride, side, axes)
    covered = np.maximum(full + partial, 1.0)
    if kind is CollectiveKind.SEND_RECV:
        return 1.0, tier.bytes_per_s / (2 * axes) + np.zeros_like(n), np.ones_like(n)
    ring = 1.0 if side + _EPSILON >= tier.torus_wrap else 0.5
    rate = tier.bytes_per_s * np.maximum(full * ring + partial * 0.5, 0.5) / axes
    length = np.maximum(n, 1.0) ** (1.0 / covered)
    if kind is CollectiveKind.ALL_TO_ALL:  # mean distance along an axis: a quarter of its length
        return volume(kind, n) * np.maximum(covered * length / 4, 1.0), rate, np.ceil(covered * length / 2)
    turns = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return volume(kind, n), rate, turns * np.ceil(covered * length / 2)


def _axes(n: Floats, stride: Floats, side: float, axes: int) -> tuple[Floats, Floats]:
    """How many axes a group covers fully, and how many in part."""
    first = np.log(stride) / np.log(side)
    last = np.log(np.maximum(n * stride, 1.0)) / np.log(side)
    start, end = np.floor(first + _EPSILON), np.ceil(last - _EPSILON)
    touched = np.clip(end - start, 1.0, axes)
    full = np.clip(np.floor(last + _EPSILON) - np.ceil(first - _EPSILON), 0.0, touched)
    return full, touched - full


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
