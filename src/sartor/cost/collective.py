"""Time of a collective inside a node: latency per hop and bytes over the links, ring or in-switch reduction.

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

    A device without such a link goes over PCIe.
    """
    c = calibration.collective
    n = np.asarray(op.group_size, dtype=np.float64)
    link = c.link_share * (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s or 16e9)
    hops, volume = _ring(op.kind, n)
    if op.kind is CollectiveKind.ALL_REDUCE:
        hops = np.minimum(hops, 2 * np.ceil(np.log2(np.maximum(n, 1))))  # a tree is taken where its latency is less
        volume = np.where((n > 2) & c.nvls, np.minimum(volume, 1.0 + 1.0 / np.maximum(n, 1)), volume)
    network = np.where(n > 1, volume * op.message_bytes / link, 0.0)
    overhead = np.where(n > 1, c.launch_s + hops * (gpu.link_latency_s + c.hop_s), 0.0)
    source = Source.CALIBRATED if "collective" in calibration.calibrated else Source.ANALYTIC
    return Cost(
        time_s=_plain(network + overhead),
        network_s=_plain(network),
        overhead_s=_plain(overhead),
        log_sigma=c.log_sigma,
        source=source,
    )


def _ring(kind: CollectiveKind, n: Any) -> tuple[Any, Any]:
    """Hops of a ring, and the share of the buffer each device sends."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (n - 1), 2 * (n - 1) / n
    if kind is CollectiveKind.SEND_RECV:
        return np.ones_like(n), np.ones_like(n)
    return n - 1, (n - 1) / n


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
