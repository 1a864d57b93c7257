"""A collective on one tier of links: sequential steps, and share of the buffer that each device sends.

GPUs (``tiers``) and template chips (``link_time_s``) use the same steps; they differ only in the link parameters. Ring
and tree: Thakur, Rabenseifner and Gropp, IJHPCA 2005, sec. 4.
"""

from __future__ import annotations

import numpy as np

from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.hardware.accelerator import Accelerator
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
