"""Time of a collective inside a node: hops, bytes over the links, and what pipelining leaves of both.

An all-reduce of a serving framework has two more ways: every device reads all peers' buffers (one shot), or reduces
a part and gathers the parts (two shots); the fastest is taken. docs/concepts/collectives.md has symbols and fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.cost.cost import Cost, Source
from sartor.hardware.calibration import Calibration, CollectiveCoefficients
from sartor.hardware.gpu import Gpu
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary

DIRECT_MOST_BYTES = 8 * 2**20
"""Largest message of vLLM's and SGLang's own all-reduce: 8 MiB, recalled, consistent with the tables (2026)."""


def collective_cost(op: Collective, gpu: Gpu, calibration: Calibration) -> Cost:
    """Cost of one collective over ``group_size`` devices joined by the scale-up link; zero for a group of one.

    A device without a link of its own goes over PCIe.
    """
    c = calibration.collective
    link = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s or 16e9
    n = np.asarray(op.group_size, dtype=np.float64)
    size = np.asarray(op.message_bytes, dtype=np.float64)
    network, overhead = _ring(op.kind, n, size, link, c)
    if op.kind is CollectiveKind.ALL_REDUCE and op.library is not CollectiveLibrary.NCCL:
        near, start = _direct(op.library, n, size, link, c)
        faster = (near + start < network + overhead) & (size <= DIRECT_MOST_BYTES)
        network, overhead = np.where(faster, near, network), np.where(faster, start, overhead)
    if op.eager:  # the host's call hides the kernel, or the copy into a shared buffer comes on top
        overhead = overhead + 2 * size / (_COPY_SHARE * gpu.hbm_bytes_per_s)
        overhead = np.maximum(overhead, c.eager_s - network)
    together = n > 1
    network, overhead = np.where(together, network, 0.0), np.where(together, overhead, 0.0)
    return Cost(
        time_s=_plain(network + overhead),
        network_s=_plain(network),
        overhead_s=_plain(overhead),
        log_sigma=_sigma(op, c),
        source=Source.CALIBRATED if "collective" in calibration.calibrated else Source.ANALYTIC,
    )


_COPY_SHARE = 0.87
"""Share of HBM bandwidth of a copy: read off eager minus graph-replayed times at 1 GiB on three GPUs of
collectives.parquet (2026-11-21), not fitted."""


def _ring(kind: CollectiveKind, n: Any, size: Any, link: float, c: CollectiveCoefficients) -> tuple[Any, Any]:
    """Seconds on the links and around them.

    A buffer cut into s pieces takes (hops + s) times (latency + bytes / s / rate); the best s gives
    ``hops x latency + bytes / rate + 2 sqrt(both)``, of whose last term ``pipeline`` is seen.
    """
    general = c.all_reduce_share if kind is CollectiveKind.ALL_REDUCE else c.link_share
    own = [each[1:4] for each in c.kinds if each[0] == kind.value]
    share, launch, hop = own[0] if own else (general, c.launch_s, c.hop_s)
    loss = 0.0 if kind is CollectiveKind.SEND_RECV and own else c.small_group_loss
    network = _volume(kind, n) * size / (share * (1 - loss / (n * n)) * link)
    latency = _hops(kind, n) * hop
    return network, launch + latency + 2 * c.pipeline * np.sqrt(latency * network)


def _direct(library: CollectiveLibrary, n: Any, size: Any, link: float, c: CollectiveCoefficients) -> tuple[Any, Any]:
    """The faster of one shot and two: seconds on the links and around them."""
    launch, peer, one_share, second, two_share = next(row[1:6] for row in c.direct if row[0] == library.value)
    one = (n - 1) * size / (one_share * link)
    two = 2 * (n - 1) / n * size / (two_share * link)
    start = launch + peer * (n - 1)
    twice = two + second < one
    return np.where(twice, two, one), start + np.where(twice, second, 0.0)


def _sigma(op: Collective, c: CollectiveCoefficients) -> float:
    rows = c.kinds if op.library is CollectiveLibrary.NCCL else c.direct
    name = op.kind.value if op.library is CollectiveLibrary.NCCL else op.library.value
    return next((row[-1] for row in rows if row[0] == name), c.log_sigma)


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
