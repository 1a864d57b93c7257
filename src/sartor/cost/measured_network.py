"""Time of a collective on a network it was measured on: the piece its size falls into, or the nearest group's, scaled.

A group that was not measured takes the nearest one of the same collective: its start in proportion to hops, its bytes
in proportion to what each device sends (``cost.ring``), and twice the interval. docs/concepts/collectives.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.cost.cost import Cost, Source
from sartor.cost.ring import hops, volume
from sartor.hardware.measured_network import MeasuredNetwork, Topology
from sartor.operators import Collective, CollectiveKind
from sartor.units import Ints

UNSEEN = 2.0
"""Factor on the interval of a group that was not measured: a judgement, no table holds one out."""


def measured_cost(op: Collective, per_node: Ints, network: MeasuredNetwork) -> Cost | None:
    """Cost of a collective over groups with ``per_node`` devices in a node; None where no such collective was
    measured. Sizes may be arrays."""
    known = [each for each in network.topologies if each.kind == op.kind.value]
    if not known:
        return None
    given = (op.group_size, per_node, op.message_bytes)
    n, near, size = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in given))
    start, moving, sigma = (np.empty(n.shape) for _ in range(3))
    groups = np.stack([n.reshape(-1), near.reshape(-1)])
    for members, inside in np.unique(groups, axis=1).T:
        where = (n == members) & (near == inside)
        start[where], moving[where], sigma[where] = _group(op.kind, members, inside, size[where], known)
    return Cost(
        time_s=_plain(start + moving),
        network_s=_plain(moving),
        overhead_s=_plain(start),
        log_sigma=_plain(sigma),
        source=Source.CALIBRATED,
    )


def _group(kind: CollectiveKind, n: float, near: float, size: Any, known: list[Topology]) -> tuple[Any, Any, float]:
    """Seconds of start, seconds of bytes and the interval's width, for groups that are alike."""
    other = min(known, key=lambda each: _distance(each, n, near))
    m = float(other.num_devices)
    ends, starts, slopes = (np.asarray(column) for column in zip(*other.pieces, strict=True))
    piece = np.minimum(np.searchsorted(ends, size), len(ends) - 1)
    exact = (n, near) == (m, other.per_node)
    start = starts[piece] * float(hops(kind, n) / hops(kind, m))
    moving = slopes[piece] * size * float(volume(kind, n) / volume(kind, m))
    return start, moving, other.log_sigma * (1.0 if exact else UNSEEN)


def _distance(each: Topology, n: float, near: float) -> float:
    """Of two groups: nodes crossed count more than devices in one."""
    nodes, others = max(n / near, 1.0), max(each.num_devices / each.per_node, 1.0)
    apart = abs(np.log2(nodes / others)) + (10.0 if (nodes > 1) != (others > 1) else 0.0)
    return float(4 * apart + abs(np.log2(n / each.num_devices)) + 0.1 * abs(np.log2(near / each.per_node)))


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
