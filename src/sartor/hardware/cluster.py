"""Clusters: equal devices, and the links between them, innermost tier first.

Devices are numbered so that neighbours are close: ``k * span ... (k + 1) * span - 1`` share a group of a tier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu

HOP_LATENCY_S: Mapping[str, float] = {
    "nvlink": 2e-6,
    "nvswitch": 2e-6,
    "xgmi": 3e-6,
    "pcie": 2.5e-6,
    "smp": 3e-6,
    "ici": 1e-6,
    "infiniband": 4e-6,
    "ethernet": 6e-6,
    "tcp": 8e-6,
    "efa": 15e-6,
    "omnipath": 6e-6,
    "slingshot": 6e-6,
    "dcn": 20e-6,
    "": 6e-6,
}
"""Default seconds of a hop. PCIe and InfiniBand: the ring hops of NCCL's own cost model (src/graph/tuning.cc, LL128);
ICI: about 1 us (How to Scale Your Model, jax-ml, 2025); the others are assumed (2026-11-21): RDMA over Ethernet,
Omni-Path and Slingshot 1.5 times InfiniBand, EFA and DCN slower."""

LINK_KINDS = tuple(kind for kind in HOP_LATENCY_S if kind)
"""The kind of a tier: ``nvlink`` direct links, ``nvswitch`` through switches, ``xgmi`` AMD Infinity Fabric, ``smp`` the
bus between a host's sockets, ``ici`` a TPU torus, ``dcn`` a data-centre network between torus slices, ``ethernet`` with
RDMA, ``tcp`` any network through the hosts' sockets, the rest as named; empty: unknown."""

MAX_DEVICES = 2**24


YEAR_AGO = "2025-11"
"""A year before this release; older prices are said to be so."""


def dated_price(source: str, date: str) -> str:
    """``Amazon EC2, on demand, 2024-12, over a year old; elsewhere 2 to 5``: where a price is from."""
    source, *others = source.split("; ")
    dated = ", ".join(filter(None, (source, date))) + (", over a year old" if date and date < YEAR_AGO else "")
    return "; ".join((dated, *others))


def price_text(usd: float, source: str, date: str, *, brief: bool = False) -> str:
    """``6.88 per device-hour (Amazon EC2, 2026-07)``; ``brief``: of the source its date, if any, or ``2024, old``."""
    words = dated_price(source, date)
    if brief and date:
        words = f"{date.partition('-')[0]}, old" if date < YEAR_AGO else date
    return f"{usd:.2f} per device-hour ({words})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """Links among ``span`` neighbouring devices; ``span`` 0 in the outermost tier means all devices."""

    name: str
    span: int
    bytes_per_s: float
    """Nominal bandwidth of one device over all its links of this tier, sending and receiving at once."""
    latency_s: float
    """Latency from one device's memory to another's over this tier: one hop of a ring."""
    oversubscription: float = 1.0
    """Oversubscription: bandwidth of all devices over that of the core network (1: full bisection)."""
    rails: bool = False
    """Devices with the same position in their nodes share a switch (a rail); ``oversubscription`` is that of the core
    between rails, which traffic within a rail does not use (rail-optimized; Wang et al. 2023, arXiv 2307.12169)."""
    kind: str = ""
    """One of ``LINK_KINDS``, which decides efficiency and algorithms."""
    in_network_reduction: bool = False
    """Switches reduce in hardware (NVLS on NVSwitch, SHARP on InfiniBand)."""
    torus_axes: int = 0
    """Axes of a torus (TPU: 2 or 3), all counted in ``bytes_per_s``; 0 for switched links."""
    torus_wrap: int = 4
    """Shortest axis of a torus that closes to a ring."""
    alone_bytes_per_s: float = 0.0
    """Peak bandwidth of one device when its neighbours are idle, if devices share an adapter (0: ``bytes_per_s``)."""

    def __post_init__(self) -> None:
        where = f"tiers.{self.name}"
        _whole(f"{where}.span", self.span, minimum=0)
        _number(f"{where}.bytes_per_s", self.bytes_per_s, above=0.0)
        _number(f"{where}.latency_s", self.latency_s, minimum=0.0)
        _number(f"{where}.alone_bytes_per_s", self.alone_bytes_per_s, minimum=0.0)
        _number(f"{where}.oversubscription", self.oversubscription, minimum=1.0)
        _whole(f"{where}.torus_axes", self.torus_axes, minimum=0, maximum=3)
        _whole(f"{where}.torus_wrap", self.torus_wrap, minimum=1)
        if self.kind and self.kind not in LINK_KINDS:
            raise InputError(f"{where}.kind", self.kind, "is not a kind of link", ", ".join(LINK_KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``num_devices`` of one type (0: any number), and its tiers, innermost first.

    Construction refuses impossible tiers (none, spans that do not grow by whole factors, an outermost tier that leaves
    devices unconnected) with an ``InputError`` that names the field.
    """

    name: str
    gpu: Gpu
    devices_per_node: int
    tiers: tuple[LinkTier, ...]
    num_devices: int = 0
    others: tuple[Cluster, ...] = ()
    """Further pools of other devices, joined by the outermost tier (a mixed cluster)."""
    one_ring: bool = False
    """All traffic of a job runs at the speed of the outermost tier that its devices need, since some hop of a ring
    crosses it: a chip's own network as `sartor.designs` prices it. Else a ring per position within the inner tier."""
    host_memory_bytes: float = 0.0
    """Of one node's host; 0: unknown."""
    price_usd_per_device_hour: float | None = None
    price_source: str = ""
    price_date: str = ""
    title: str = ""
    note: str = ""
    confidence: str = "high"
    sources: Mapping[str, str] = field(default_factory=dict)
    unstated: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Rates that a user's file leaves to the device, each in a sentence with its value."""

    def __post_init__(self) -> None:
        _whole("devices_per_node", self.devices_per_node, minimum=1, maximum=MAX_DEVICES)
        _whole("num_devices", self.num_devices, minimum=0, maximum=MAX_DEVICES)
        _check_spans(self.tiers)
        _check_rails(self.tiers)
        _check_nodes(self.tiers, self.devices_per_node)
        _check_pools(self.gpu, self.others)
        if self.price_usd_per_device_hour is not None:
            _number("price_usd_per_device_hour", self.price_usd_per_device_hour, minimum=0.0)
        if self.confidence not in ("high", "medium", "low"):
            raise InputError("confidence", self.confidence, "must be high, medium or low")

    @property
    def pools(self) -> tuple[Cluster, ...]:
        """This pool and the others, each of one device type."""
        return (self, *self.others)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The device type of every pool."""
        return tuple(pool.gpu for pool in self.pools)

    @property
    def total_devices(self) -> int:
        """Devices of all pools; 0: any number."""
        return sum(pool.num_devices for pool in self.pools)

    @property
    def host_link_bytes_per_s(self) -> float:
        """Between a device and its host, one way."""
        return self.gpu.host_link_bytes_per_s or self.gpu.pcie_bytes_per_s or UNSAID_BYTES_PER_S

    @property
    def host_memory_bytes_per_s(self) -> float:
        """A device's share of its host's memory, sustained."""
        if self.gpu.host_memory_bytes_per_s:
            return self.gpu.host_memory_bytes_per_s * SERVER_MEMORY_BYTES_PER_S / SERVER_MEMORY_NOMINAL_BYTES_PER_S
        return SERVER_MEMORY_BYTES_PER_S / self.devices_per_node

    def with_price(self, usd: float | None) -> Cluster:
        """The cluster at a stated price of each device and hour; None keeps its own. Raises ``InputError``."""
        if usd is None:
            return self
        _number("price", usd, minimum=0.0)
        others = tuple(pool.with_price(usd) for pool in self.others)
        return replace(self, others=others, price_usd_per_device_hour=usd, price_source="stated", price_date="")

    def reached(self, num_devices: int) -> Cluster:
        """The pools that ``num_devices`` devices fill, in file order; of a single one that many devices, so that groups
        know which tiers a job fills."""
        starts = accumulate((pool.num_devices for pool in self.pools[:-1]), initial=0)
        used_pools = [pool for pool, start in zip(self.pools, starts, strict=True) if start < num_devices]
        if len(used_pools) == len(self.pools) and (used_pools[1:] or num_devices == self.num_devices):
            return self
        return replace(
            self, others=tuple(used_pools[1:]), num_devices=self.num_devices if used_pools[1:] else num_devices
        )


def own_links(gpu: Gpu) -> Cluster:
    """A cluster of any number of devices connected by their own scale-up link, or PCIe; a chip whose links join only so
    many devices has its scale-out network beyond."""
    rate = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s or UNSAID_BYTES_PER_S
    near = LinkTier(name="scale-up", span=0, bytes_per_s=rate, latency_s=gpu.link_latency_s)
    chip = gpu.accelerator
    joined = int(chip.scale_up_devices) if chip else 0
    if chip is None or not joined:
        return Cluster(name=gpu.name, gpu=gpu, devices_per_node=1, tiers=(near,))
    beyond, latency_s = float(chip.scale_out_bytes_per_s), float(chip.scale_out_latency_s)
    far = LinkTier(name="scale-out", span=0, bytes_per_s=beyond, latency_s=latency_s)
    tiers = replace(near, span=joined), far
    return Cluster(name=gpu.name, gpu=gpu, devices_per_node=1, tiers=tiers, one_ring=True)


UNSAID_BYTES_PER_S = 16e9
"""Link of a device without one in its datasheet: PCIe 3.0 x16 in one direction, rounded (PCI-SIG, 2010)."""

SERVER_MEMORY_NOMINAL_BYTES_PER_S = 410e9
SERVER_MEMORY_BYTES_PER_S = 300e9
"""Nominal and sustained memory bandwidth of a two-socket host, shared by its devices (recalled: 8 channels of DDR4-3200
per socket)."""


def _check_spans(tiers: tuple[LinkTier, ...]) -> None:
    if not tiers:
        raise InputError("tiers", "none", 'a cluster needs at least one tier of links, the last with span = "all"')
    if tiers[-1].span != 0:
        must = f'the outermost tier must join all devices, span = "all"; {tiers[-1].name} stops at {tiers[-1].span}'
        raise InputError("tiers.span", tiers[-1].span, must, '"all", or one more tier with span = "all"')
    for inner, outer in pairwise(tiers):
        if inner.span == 0:
            raise InputError(f"tiers.{inner.name}.span", 0, "only the last tier joins all devices (span 0)")
        if outer.span and (outer.span % inner.span or outer.span == inner.span):
            near = ", ".join(str(k * inner.span) for k in _multiples(outer.span, inner.span))
            must = f"must be a multiple of the tier inside it, {inner.name} of {inner.span} devices"
            raise InputError(f"tiers.{outer.name}.span", outer.span, must, near)


def _check_rails(tiers: tuple[LinkTier, ...]) -> None:
    if tiers[0].rails:
        must = "rails join devices of different nodes; the innermost tier lies within one"
        raise InputError(f"tiers.{tiers[0].name}.rails", "true", must, "rails = true in the tier between nodes")


def _check_pools(first: Gpu, others: tuple[Cluster, ...]) -> None:
    """Pools must be all GPUs or all accelerators, since a plan is priced with one kind of block."""
    for i, pool in enumerate(others):
        if (pool.gpu.accelerator is None) is not (first.accelerator is None):
            word = "an accelerator" if first.accelerator else "a GPU"
            must = f"must be {word} like {first.name}: a cluster has GPUs or accelerators, not both"
            raise InputError(f"others.{i}.gpu", pool.gpu.name, must, first.name)


def _check_nodes(tiers: tuple[LinkTier, ...], devices_per_node: int) -> None:
    """Groups of a tier must be parts of a node, or whole nodes."""
    for tier in tiers:
        if tier.span and max(tier.span, devices_per_node) % min(tier.span, devices_per_node):
            must = f"must divide devices_per_node={devices_per_node} or be a multiple of it"
            parts = [d for d in range(1, devices_per_node + 1) if devices_per_node % d == 0]
            near = sorted({*parts, 2 * devices_per_node}, key=lambda span: abs(span - tier.span))[:2]
            raise InputError(f"tiers.{tier.name}.span", tier.span, must, " or ".join(map(str, sorted(near))))


def _multiples(span: int, unit: int) -> tuple[int, ...]:
    below = max(span // unit, 2)
    return (below, below + 1)


def _number(name: str, value: object, *, above: float = -math.inf, minimum: float = -math.inf) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not (value > above and value >= minimum):  # type: ignore[operator]
        must = f"above {above:g}" if above > -math.inf else f"not below {minimum:g}"
        raise InputError(name, value, f"must be a finite number {must}")


def _whole(name: str, value: object, *, minimum: int, maximum: int = 2**53) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool)
    if not ok or not minimum <= value <= maximum:  # type: ignore[operator]
        raise InputError(name, value, f"must be a whole number from {minimum} to {maximum}")
