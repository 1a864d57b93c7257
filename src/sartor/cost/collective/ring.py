"""A collective on one tier of links: how many steps follow each other, how much of the buffer each device sends."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.cost.correction.coefficients import CollectiveCoefficients
from sartor.operators import CollectiveKind


def hops(kind: CollectiveKind, n: Any) -> Any:
    """Steps that follow each other: around the ring twice or once; all-to-all and send/recv go straight."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1)
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return n - 1
    return np.ones_like(n)


def volume(kind: CollectiveKind, n: Any) -> Any:
    """Share of the buffer that leaves each device."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1) / n
    return np.ones_like(n) if kind is CollectiveKind.SEND_RECV else (n - 1) / n


def fitted(kind: CollectiveKind, n: Any, c: CollectiveCoefficients) -> tuple[Any, float, float]:
    """Share of the link's rate that ``n`` devices reach, seconds of a launch, seconds of a hop."""
    general = c.all_reduce_share if kind is CollectiveKind.ALL_REDUCE else c.link_share
    own = [each[1:4] for each in c.kinds if each[0] == kind.value]
    share, launch, hop = own[0] if own else (general, c.launch_s, c.hop_s)
    loss = 0.0 if kind is CollectiveKind.SEND_RECV and own else c.small_group_loss
    return share * (1 - loss / (n * n)), launch, hop
