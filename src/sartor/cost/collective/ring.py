"""A collective on one tier of links: how many steps follow each other, how much of the buffer each device sends.

GPUs (``tiers``) and chips of the template (``link_time_s``) take the same steps; only what is known of the links
differs. Ring and tree: Thakur, Rabenseifner and Gropp, IJHPCA 2005, sec. 4.
"""

from __future__ import annotations

import numpy as np

from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.hardware.accelerator import Accelerator
from sartor.operators import Collective, CollectiveKind
from sartor.units import Floats


def hops(kind: CollectiveKind, n: Floats) -> Floats:
    """Steps that follow each other: around the ring twice or once; all-to-all and send/recv go straight."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1)
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return n - 1
    return np.ones_like(n)


def volume(kind: CollectiveKind, n: Floats) -> Floats:
    """Share of the buffer that leaves each device."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1) / n
    return np.ones_like(n) if kind is CollectiveKind.SEND_RECV else (n - 1) / n


def tree_steps(n: Floats) -> Floats:
    """Steps of a tree that sends the whole buffer: up to the root and down again, as small buffers go fastest."""
    return 2 * np.ceil(np.log2(np.maximum(n, 1)))


def link_time_s(op: Collective, accelerator: Accelerator) -> Floats:
    """Time of a collective over ``group_size`` accelerators on their own links [s]; shapes broadcast over candidates.

    It occupies no core. A message is striped over all links and reaches the stated rate; a step takes the stated
    latency. A group that spans more neighbours than links join goes at the pace of the network beyond. A group of one
    costs nothing; without links, infinity.
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
    """Share of the link's rate that ``n`` devices reach, seconds of a launch, seconds of a hop."""
    general = c.all_reduce_share if kind is CollectiveKind.ALL_REDUCE else c.link_share
    own = [each[1:4] for each in c.kinds if each[0] == kind.value]
    share, launch, hop = own[0] if own else (general, c.launch_s, c.hop_s)
    loss = 0.0 if kind is CollectiveKind.SEND_RECV and own else c.small_group_loss
    return share * (1 - loss / (n * n)), launch, hop
