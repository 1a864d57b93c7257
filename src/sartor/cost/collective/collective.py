"""Time of a collective: NCCL's over the tiers of links it crosses, or a serving engine's own.

A serving framework's all-reduce has two more algorithms: every device reads all peers' buffers (one-shot), or reduces a
part and gathers the parts (two-shot); the fastest is used. docs/concepts/collectives.md has symbols and fit.

On a cluster the best algorithm over the tiers that a group crosses is taken. A group is ``group_size`` devices whose
numbers are ``stride`` apart. Inside the innermost tier its cost comes from the device's calibration; across tiers,
rings, trees and in-switch reduction are compared. docs/concepts/clusters.md has symbols, sources and the assumptions on
contention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sartor.cost.collective.links import NetworkCoefficients, fitted, hops, torus_terms, tree_steps, volume
from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.cost.correction.relatives import collectives_on
from sartor.cost.cost import Cost, Source, select_cost
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, LinkTier, own_links
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary
from sartor.units import Floats, Ints, plain

Mask: TypeAlias = npt.NDArray[np.bool_]

MEASURED_RING = 8
"""Devices in the largest group the calibrations were fitted on."""


def network_time_s(
    kind: CollectiveKind,
    message_bytes: Floats,
    group_size: Ints,
    stride: Ints,
    cluster: Cluster,
    calibration: Calibration,
    *,
    alone: bool = False,
) -> Cost:
    """Cost of a collective over ``group_size`` devices ``stride`` apart; all arguments but the kind broadcast.

    ``message_bytes`` is the whole, unsharded buffer, of an all-to-all that of each device. Every device is assumed to
    be in such a group at the same time, with its own share of links and rails, as all tensor- or data-parallel groups
    of a plan communicate together; ``alone`` is a single group with idle neighbours, as in benchmarks. ``SEND_RECV``
    passes the buffer to the next member over the group's slowest link. A group of one costs nothing.
    """
    if cluster.one_ring and len(cluster.tiers) > 1:
        return _one_ring(kind, message_bytes, group_size, stride, cluster, calibration, alone)
    arrays = (group_size, stride, message_bytes)
    n, s, size = np.broadcast_arrays(*(np.asarray(array, dtype=np.float64) for array in arrays))
    reach = members(n, s, cluster, alone=alone)
    names = _ways(kind, cluster, calibration.collective)
    placed = [reach, members(n, s, cluster)] if alone and cluster.num_devices else [reach]  # alone may lie as any does
    ways = [
        _Way(kind, name, n, s, placement, cluster, calibration, alone).seconds(size)
        for placement in placed
        for name in names
    ]
    network, overhead = ways[0]
    for alternative, around in ways[1:]:
        better = alternative + around < network + overhead
        network, overhead = np.where(better, alternative, network), np.where(better, around, overhead)
    together = n > 1
    network, overhead = np.where(together, network, 0.0), np.where(together, overhead, 0.0)
    near = _within_innermost(group_size, stride, cluster, alone=alone)
    source, mixed = _source_within(near, cluster, calibration)
    c = _local_coefficients(cluster.tiers[0], calibration)
    return Cost(
        time_s=plain(network + overhead),
        network_s=plain(network),
        overhead_s=plain(overhead),
        log_sigma=plain(_sigma(near, _ring_sigma(kind, c), reach, cluster, calibration.network)),
        source=source,
        details=mixed,
    )


def _one_ring(
    kind: CollectiveKind,
    size: Floats,
    group_size: Ints,
    stride: Ints,
    cluster: Cluster,
    calibration: Calibration,
    alone: bool,
) -> Cost:
    """All hops on the links that join all devices of the job, or of the group if it is alone or the job unknown."""
    near, far = (
        network_time_s(kind, size, group_size, stride, replace(cluster, tiers=(replace(tier, span=0),)), calibration)
        for tier in cluster.tiers
    )
    beyond = ((not alone and cluster.num_devices) or np.multiply(group_size, stride)) > cluster.tiers[0].span

    picked: JsonDict = {name: plain(np.where(beyond, getattr(far, name), getattr(near, name))) for name in _TERMS}
    return replace(near, **picked)


_TERMS = ("time_s", "network_s", "overhead_s", "log_sigma")


def _source_within(near: Mask, cluster: Cluster, calibration: Calibration) -> tuple[Source, JsonDict]:
    """Calibrated where groups stay on links that the device's own fit is of, and a cost's details where some do."""
    own_fit = _local_coefficients(cluster.tiers[0], calibration) is calibration.collective
    measured = np.logical_and(near, own_fit and "collective" in calibration.calibrated)
    if np.all(measured):
        return Source.CALIBRATED, {}
    return Source.ANALYTIC, {"fitted": measured} if np.any(measured) else {}


def _within_innermost(group_size: Ints, stride: Ints, cluster: Cluster, *, alone: bool = False) -> Mask:
    """Whether a group stays inside one innermost tier that is not a torus, where the single-node model holds."""
    n, s = np.asarray(group_size, dtype=np.float64), np.asarray(stride, dtype=np.float64)
    side_by_side = bool(cluster.num_devices) and not alone
    return (_members(n, s, _spans(cluster)[0], side_by_side) >= n) & (cluster.tiers[0].torus_axes == 0)


def _local_coefficients(tier: LinkTier, calibration: Calibration) -> CollectiveCoefficients:
    """Coefficients of the innermost links: the device's own fit if it is for links of that kind, else those of the
    links most similar to the tier's."""
    if not tier.kind or calibration.collective.over_pcie == (tier.kind == "pcie"):
        return calibration.collective
    return collectives_on(calibration.collective, pcie=tier.kind == "pcie", bytes_per_s=tier.bytes_per_s)


def _ring_sigma(kind: CollectiveKind, c: CollectiveCoefficients) -> float:
    """Standard deviation of ln(measured/predicted) of NCCL's kernel of that kind."""
    return next((row[-1] for row in c.kinds if row[0] == kind.value), c.log_sigma)


def _sigma(near: Mask, inside: float, reach: list[Floats], cluster: Cluster, c: NetworkCoefficients) -> Floats:
    """Standard deviation of the innermost links, or of the outermost tier that a group crosses."""
    log_sigma: Floats = inside
    for i, tier in enumerate(cluster.tiers):
        crossed = reach[i] > (reach[i - 1] if i else 1)
        log_sigma = np.where(crossed & ~near, c.sigma(tier.kind), log_sigma)
    return log_sigma


# ------------------------------------------------------------------------------------------- who is near whom


def members(n: Floats, s: Floats, cluster: Cluster, *, alone: bool = False) -> list[Floats]:
    """For each tier, innermost first, the members of a group of ``n`` devices, ``s`` apart, in one group of the tier;
    the last tier holds all."""
    sizes: list[Floats] = []
    side_by_side = bool(cluster.num_devices) and not alone
    for span in _spans(cluster):
        inner = sizes[-1] if sizes else np.ones_like(n)
        sizes.append(np.minimum(np.maximum(_members(n, s, span, side_by_side), inner), n))
    return sizes


def _spans(cluster: Cluster) -> list[int]:
    """Devices per group of each tier that a job uses. If ``num_devices`` do not fill whole groups of nodes: the largest
    number of nodes that does and leaves at most a quarter idle (64 devices of an NVL72 rack), or else the full size."""
    used, unit = [], cluster.devices_per_node
    for tier in cluster.tiers:
        span, total = tier.span, cluster.num_devices
        if span > unit and total > span and total % span:
            equal = [d for d in range(span // unit * unit, -(-3 * span // 4) - 1, -unit) if total % d == 0]
            span = equal[0] if equal else span
        used.append(span if span and (not total or span < total) else 0)
        unit = max(used[-1], unit)
    return used


def _members(n: Floats, s: Floats, span: int, side_by_side: bool) -> Floats:
    """Adjacent members in one group of ``span`` devices (0: all). Of a job's groups side by side, one that does not
    divide the span straddles two, and the smallest piece sets the speed. A group alone, or one of an unknown number of
    devices, is a job of its own, in as few and as equal pieces as possible."""
    if not span:
        return n
    extent, spacing = np.maximum(n * s, 1).astype(np.int64), np.maximum(s, 1).astype(np.int64)
    pieces = np.gcd(extent, span) // spacing if side_by_side else n // np.ceil(extent / span)
    return np.maximum(pieces, 1).astype(np.float64)


# ------------------------------------------------------------------------------------------- one way to do it


def _ways(kind: CollectiveKind, cluster: Cluster, c: CollectiveCoefficients) -> tuple[str, ...]:
    """All-gather and reduce-scatter have the ring alone, so small ones of many devices take longer than an all-reduce,
    which has trees. NCCL is so: its PAT (2.23) is for one device per node, and still counts 2.8 us a device
    (src/graph/tuning.cc, nNodes == nRanks, nRanks * 2.8), as long as a hop of the ring."""
    if kind is not CollectiveKind.ALL_REDUCE:
        return ("ring",)
    adding = any(tier.in_network_reduction for tier in cluster.tiers[1:])
    between = () if len(cluster.tiers) == 1 else ("tree", "switch") if adding else ("tree",)
    return ("ring", *between, *(("whole",) if c.whole_tree else ()))


@dataclass(frozen=True, slots=True)
class _Way:
    """A collective with one algorithm: ``ring`` through all devices, ``tree`` between nodes, reduction in the
    ``switch``, or a tree inside nodes too, which sends the ``whole`` buffer in every step."""

    kind: CollectiveKind
    name: str
    n: Floats
    stride: Floats
    reach: list[Floats]
    cluster: Cluster
    calibration: Calibration
    alone: bool

    def seconds(self, size: Floats) -> tuple[Floats, Floats]:
        """Seconds on the links, and overhead: the tiers overlap, so the slowest counts fully."""
        times: list[Floats] = []
        latency, pipelined, slowest = self._launch(), np.zeros_like(self.n), np.zeros_like(self.n)
        for i in range(len(self.cluster.tiers)):
            share_of_buffer, rate, hop_s, filling_s = self._tier(i)
            times.append(share_of_buffer * size / rate)
            latency = latency + hop_s
            pipelined = pipelined + 2 * np.sqrt(filling_s * times[-1])
            slowest = np.maximum(slowest, times[-1])
        rest = np.maximum(sum(times) - slowest, 0.0)
        return slowest + self.calibration.network.exposed_share * rest, latency + pipelined

    def _tier(self, i: int) -> tuple[Floats, Floats, Floats, Floats]:
        """For tier i: share of the buffer each device sends, rate, seconds of hops, and of filling the pipeline."""
        inner = self.reach[i - 1] if i else np.ones_like(self.n)
        outer, tier = self.reach[i], self.cluster.tiers[i]
        crossed = outer > inner
        if self.kind is CollectiveKind.SEND_RECV:  # the slowest link alone
            crossed = np.logical_and(crossed, np.less_equal(self.reach[-1], outer))
        filling_s: Floats = 0.0
        if tier.torus_axes:
            part, rate, hop_s = self._torus(i, inner, outer)
        elif i == 0:
            part, rate, hop_s, filling_s = self._innermost(tier)
        else:
            part, rate, hop_s = self._between(i, inner, outer)
            cut = self.kind is not CollectiveKind.SEND_RECV  # a single hop needs no pieces
            filling_s = self.calibration.network.pipeline**2 * np.where(crossed, hop_s, 0.0) if cut else 0.0
        return np.where(crossed, part, 0.0), rate, np.where(crossed, hop_s, 0.0), filling_s

    def _innermost(self, tier: LinkTier) -> tuple[Floats, Floats, Floats, Floats]:
        """Like the single-node model: the calibrated share of the link for this number of members."""
        c, m, kind = _local_coefficients(tier, self.calibration), self.reach[0], self.kind
        share, _, hop = fitted(kind, m, c)
        hop *= self._slower(tier)
        steps = near = hops(kind, m)
        if self.name == "ring" and kind in _RINGS:  # the ring passes through every group of the tier
            steps = near / np.maximum(m - 1, 1) * (self.n - self.n / m)
        if tier.in_network_reduction and kind is CollectiveKind.ALL_REDUCE:  # switches add: no more than measured
            steps, near = (np.minimum(count, 2 * (MEASURED_RING - 1)) for count in (steps, near))
        part = (m - 1) / self.n + self._forwarded() if kind is CollectiveKind.ALL_TO_ALL else volume(kind, self.n)
        if self.name == "whole":
            steps = near = part = tree_steps(m)
        rate = share * tier.bytes_per_s / tier.oversubscription
        if kind is CollectiveKind.ALL_TO_ALL:
            steps = np.zeros_like(m)  # part of the launch
        return part, rate, steps * hop, c.pipeline**2 * near * hop

    def _between(self, i: int, inner: Floats, outer: Floats) -> tuple[Floats, Floats, Floats]:
        """Links between groups of the next inner tier: each device sends its share of what leaves the group."""
        tier, c, n, kind = self.cluster.tiers[i], self.calibration.network, self.n, self.kind
        rate = c.share(tier.kind) * self._capacity(tier, inner) / self._core(i, inner)
        if tier.kind == "tcp":
            rate = np.minimum(rate, c.flow_bytes_per_s)
        if kind is CollectiveKind.ALL_TO_ALL:
            beyond = n if self._shares_port(i) else outer
            return (beyond - inner) / n, rate * c.all_to_all_share, tier.latency_s + c.peer_s * (outer - inner)
        if kind is CollectiveKind.SEND_RECV:
            return 1.0, rate, np.full_like(n, tier.latency_s)
        groups = outer / inner
        if self.name == "switch" and tier.in_network_reduction:
            return 1 / inner, rate * c.in_network_share, np.full_like(n, 2 * tier.latency_s)
        if self.name != "ring":
            steps = 2 * c.tree_hop * np.ceil(np.log2(np.maximum(groups, 1)))
            return 2 / inner, rate * c.tree_share, steps * tier.latency_s  # NCCL's double tree: inner node and leaf
        turns = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
        turns_taken: Floats = turns * (n / inner - n / outer)
        near = volume(kind, groups) if tier.kind == "dcn" else volume(kind, n)  # slices exchange their reduced shards
        return near / inner, rate, turns_taken * tier.latency_s

    def _core(self, i: int, inner: Floats) -> Floats:
        """Slowdown factor of the core network on a tier: rings and trees between nodes stay within rails if members
        have the same position in their nodes; an all-to-all crosses the core with whatever its inner links do not
        forward to the right rail."""
        tier, node = self.cluster.tiers[i], self.cluster.tiers[0].span
        sending = self._crossing(i)
        if not tier.rails or not node:
            return np.maximum(tier.oversubscription * sending, 1.0)
        alike = (np.mod(self.stride, node) == 0) | (np.mod(node, np.maximum(self.stride, 1)) == 0)
        if self.kind is CollectiveKind.SEND_RECV:
            alike = np.mod(self.stride, node) == 0
        across: Floats = np.where(alike, 0.0, 1.0)
        if self.kind is CollectiveKind.ALL_TO_ALL:
            across = 0.0 * inner if self._forwards() else 1 - 1 / inner
        return 1 + (np.maximum(tier.oversubscription * sending, 1.0) - 1) * across

    def _crossing(self, i: int) -> Floats:
        """Share of the devices that send over a tier: for a transfer to the next member, only those whose next member
        is outside the inner tier's group; they have the core to themselves."""
        inside = _spans(self.cluster)[i - 1]
        if self.kind is not CollectiveKind.SEND_RECV or not inside:
            return np.ones_like(self.n)
        return np.minimum(self.stride / inside, 1.0)

    def _forwards(self) -> bool:
        """Whether data for another rail goes over the node's own links first (NCCL's PXN, which needs NVLink)."""
        return any(tier.rails for tier in self.cluster.tiers) and self.cluster.tiers[0].kind in _FORWARDING

    def _forwarded(self) -> Floats:
        """Share of an all-to-all's buffer that a device hands to a neighbour on the right rail: all that leaves the
        node, except the part for the same position in other nodes."""
        inside = self.reach[0]
        return (self.n - inside) / self.n * (1 - 1 / inside) if self._forwards() else np.zeros_like(self.n)

    def _capacity(self, tier: LinkTier, inner: Floats) -> Floats:
        """Bandwidth of one of ``inner`` members in a node: its share, or more if neighbours are idle."""
        if not self.alone:
            return tier.bytes_per_s
        fastest = max(tier.alone_bytes_per_s, tier.bytes_per_s)
        share = tier.bytes_per_s * self.cluster.devices_per_node / inner
        return np.minimum(np.maximum(share, tier.bytes_per_s), fastest)

    def _shares_port(self, i: int) -> bool:
        """Whether the next outer tier uses the same adapters."""
        tiers = self.cluster.tiers
        return i + 1 < len(tiers) and tiers[i + 1].kind == tiers[i].kind

    def _torus(self, i: int, inner: Floats, outer: Floats) -> tuple[Floats, Floats, Floats]:
        tier = self.cluster.tiers[i]
        slices = _spans(self.cluster)[i] or self.cluster.num_devices or tier.span
        share = self.calibration.network.share(tier.kind)
        part, rate, steps = torus_terms(self.kind, outer / inner, np.maximum(self.stride, 1), tier, slices)
        return part / inner, rate * share / tier.oversubscription, steps * tier.latency_s

    def _launch(self) -> Floats:
        """Launch overhead of the kernel; an all-to-all always pays its step inside a node."""
        c = _local_coefficients(self.cluster.tiers[0], self.calibration)
        launch, hop = fitted(self.kind, self.n, c)[1:]
        swap = self.kind is CollectiveKind.ALL_TO_ALL and not self.cluster.tiers[0].torus_axes
        return launch + (hop * self._slower(self.cluster.tiers[0]) if swap else 0.0) + np.zeros_like(self.n)

    def _slower(self, tier: LinkTier) -> float:
        """Latency of the innermost links relative to the device's own, on which the calibration was fitted."""
        return tier.latency_s / (self.cluster.gpu.link_latency_s or tier.latency_s or 1.0)


_FORWARDING = ("nvlink", "nvswitch", "xgmi")
_RINGS = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


DIRECT_MOST_BYTES = 8 * 2**20
"""Largest message of vLLM's and SGLang's own all-reduce: 8 MiB, recalled, consistent with the tables (2026)."""


def collective_cost(op: Collective, gpu: Gpu, calibration: Calibration, cluster: Cluster | None = None) -> Cost:
    """Cost of one collective over ``group_size`` devices; zero for a group of one.

    Without a ``cluster`` the devices are connected by the scale-up link (or PCIe); with one, bytes go over the tiers
    that the group, with its ``stride``, crosses.
    """
    where = cluster or own_links(gpu)
    if cluster is None and gpu.accelerator is not None and not gpu.link_bytes_per_s and np.any(op.group_size > 1):
        must = f"joins no {np.max(op.group_size)} chips: {gpu.name} has no links of its own"
        raise InputError("num_links", 0, must, "1 or more, or a cluster file")
    group = (op.message_bytes, op.group_size, op.stride)
    across = network_time_s(op.kind, *group, where, calibration, alone=op.alone)
    if op.library is CollectiveLibrary.NCCL and not op.eager:
        return across
    near = _within_innermost(op.group_size, op.stride, where, alone=op.alone)
    return select_cost(near, _of_engine(op, gpu, calibration, across), across) if np.any(near) else across


def collective_costs(
    ops: Sequence[Collective], gpu: Gpu, calibration: Calibration, cluster: Cluster | None = None
) -> list[Cost]:
    """Costs of collectives, in the order given: those of one kind are evaluated together, as flat arrays."""
    costs: dict[int, Cost] = {}
    for kind in dict.fromkeys(_kind(op) for op in ops):
        chosen = [i for i, op in enumerate(ops) if _kind(op) == kind]
        costs |= dict(zip(chosen, _together([ops[i] for i in chosen], gpu, calibration, cluster), strict=True))
    return [costs[i] for i in range(len(ops))]


def _kind(op: Collective) -> tuple[object, ...]:
    return op.kind, op.library, op.eager, op.alone


def _together(ops: Sequence[Collective], gpu: Gpu, calibration: Calibration, cluster: Cluster | None) -> Iterator[Cost]:
    if len(ops) == 1:
        yield collective_cost(ops[0], gpu, calibration, cluster)
        return
    parts = [np.broadcast_arrays(op.message_bytes, op.group_size, op.stride) for op in ops]
    size, group, stride = (
        np.concatenate([np.ravel(column) for column in columns]) for columns in zip(*parts, strict=True)
    )
    flat = replace(ops[0], message_bytes=size, group_size=group, stride=stride)
    whole, where, start = collective_cost(flat, gpu, calibration, cluster), cluster or own_links(gpu), 0
    near = _within_innermost(group, stride, where, alone=flat.alone)
    for message_bytes, *_ in parts:
        of_one, start = slice(start, start + message_bytes.size), start + message_bytes.size
        terms: JsonDict = {name: _part(getattr(whole, name), of_one, message_bytes.shape) for name in _TERMS}
        source, mixed = _source_within(near[of_one].reshape(message_bytes.shape), where, calibration)
        yield Cost(**terms, source=source, details=mixed)


def _part(values: Floats, where: slice, shape: tuple[int, ...]) -> Floats:
    """One collective's entries of a flat row (or the number that stands for all)."""
    part: Floats = plain(values[where].reshape(shape)) if isinstance(values, np.ndarray) else values
    return part


def _of_engine(op: Collective, gpu: Gpu, calibration: Calibration, ring: Cost) -> Cost:
    """A serving engine's all-reduce among devices on the scale-up link; ``ring`` is NCCL's cost."""
    c = calibration.collective
    link = own_links(gpu).tiers[0].bytes_per_s
    n = np.asarray(op.group_size, dtype=np.float64)
    size = np.asarray(op.message_bytes, dtype=np.float64)
    network, overhead = ring.network_s, ring.overhead_s
    if op.kind is CollectiveKind.ALL_REDUCE and op.library is not CollectiveLibrary.NCCL:
        near, start = _direct(op.library, n, size, link, c)
        faster = (near + start < network + overhead) & (size <= DIRECT_MOST_BYTES)
        network, overhead = np.where(faster, near, network), np.where(faster, start, overhead)
    if op.eager:  # the host's call hides the kernel, or the copy into a shared buffer comes on top
        overhead = overhead + 2 * size / (_COPY_SHARE * gpu.hbm_bytes_per_s)
        overhead = np.maximum(overhead, c.eager_s - network)
    together = n > 1
    network, overhead = np.where(together, network, 0.0), np.where(together, overhead, 0.0)
    return replace(
        ring,
        time_s=plain(network + overhead),
        network_s=plain(network),
        overhead_s=plain(overhead),
        log_sigma=_library_sigma(op, c),
    )


_COPY_SHARE = 0.87
"""Share of HBM bandwidth of a copy: from eager minus graph-replayed times at 1 GiB on three GPUs of collectives.parquet
(2026-11-21), not fitted."""


def _direct(
    library: CollectiveLibrary, n: Ints, size: Ints, link: float, c: CollectiveCoefficients
) -> tuple[Floats, Floats]:
    """The faster of one-shot and two-shot: seconds on the links, and overhead."""
    launch, peer, one_share, second, two_share = next(row[1:6] for row in c.direct if row[0] == library.value)
    one_way_s = (n - 1) * size / (one_share * link)
    two = 2 * (n - 1) / n * size / (two_share * link)
    start = launch + peer * (n - 1)
    twice = two + second < one_way_s
    return np.where(twice, two, one_way_s), start + np.where(twice, second, 0.0)


def _library_sigma(op: Collective, c: CollectiveCoefficients) -> float:
    if op.library is CollectiveLibrary.NCCL:
        return _ring_sigma(op.kind, c)
    return next((row[-1] for row in c.direct if row[0] == op.library.value), c.log_sigma)
