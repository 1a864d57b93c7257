"""Time of a collective inside a node: hops, bytes over the links, and what pipelining leaves of both.

docs/concepts/collectives.md has symbols, fit and accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.cost.cost import Cost, Source
from sartor.hardware.calibration import Calibration
from sartor.hardware.gpu import Gpu
from sartor.operators import Collective, CollectiveKind


def collective_cost(op: Collective, gpu: Gpu, calibration: Calibration) -> Cost:
    """Cost of one collective over ``group_size`` devices joined by the scale-up link; zero for a group of one.

    A buffer cut into s pieces takes (hops + s) times (latency + bytes / s / rate); the best s gives
    ``hops x latency + bytes / rate + 2 sqrt(both)``, of whose last term ``pipeline`` is seen. A device without a
    link of its own goes over PCIe.
    """
    c = calibration.collective
    n = np.asarray(op.group_size, dtype=np.float64)
    hops, volume = _hops(op.kind, n), _volume(op.kind, n)
    share = c.all_reduce_share if op.kind is CollectiveKind.ALL_REDUCE else c.link_share
    link = share * (1 - c.small_group_loss / (n * n)) * (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s or 16e9)
    together = n > 1
    latency = np.where(together, hops * c.hop_s, 0.0)
    network = np.where(together, volume * np.asarray(op.message_bytes, dtype=np.float64) / link, 0.0)
    overhead = np.where(together, c.launch_s, 0.0) + latency + 2 * c.pipeline * np.sqrt(latency * network)
    return Cost(
        time_s=_plain(network + overhead),
        network_s=_plain(network),
        overhead_s=_plain(overhead),
        log_sigma=c.log_sigma,
        source=Source.CALIBRATED if "collective" in calibration.calibrated else Source.ANALYTIC,
    )


def _hops(kind: CollectiveKind, n: Any) -> Any:
    """Steps that follow each other: around the ring twice or once; all-to-all and send/recv go straight."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1)
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return n - 1
    return np.ones_like(n)


def _volume(kind: CollectiveKind, n: Any) -> Any:
    """Share of the buffer that leaves each device."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1) / n
    return np.ones_like(n) if kind is CollectiveKind.SEND_RECV else (n - 1) / n


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
