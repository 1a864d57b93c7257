"""Time of a collective on the accelerator's own links: latency per step and bytes per link, ring or tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.hardware.accelerator import Accelerator
from sartor.operators import Collective, CollectiveKind
from sartor.units import Floats


def link_time_s(op: Collective, accelerator: Accelerator) -> Floats:
    """Time of a collective over ``group_size`` accelerators [s]; occupies no core. Shapes broadcast.

    Ring: every step sends 1/n of the buffer, ``2 (n-1)`` steps to reduce and spread, ``n-1`` to gather, scatter or
    exchange. Tree: ``2 ceil(log2 n)`` steps of the whole buffer. The quicker is taken (Thakur, Rabenseifner and Gropp,
    IJHPCA 2005, sec. 4). A message is striped over all links. A group of one costs nothing; without links, infinity.
    """
    n = np.asarray(op.group_size, dtype=np.float64)
    size = np.asarray(op.message_bytes, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = size / np.asarray(accelerator.network_bytes_per_s)
        latency = accelerator.link_latency_s
        if op.kind is CollectiveKind.SEND_RECV:
            time = latency + whole
        elif op.kind is CollectiveKind.ALL_REDUCE:
            tree = 2 * np.ceil(np.log2(np.maximum(n, 1))) * (latency + whole)
            time = np.minimum(2 * (n - 1) * (latency + whole / n), tree)
        else:
            time = (n - 1) * (latency + whole / n)
    taken: Floats = _plain(np.where(n > 1, time, 0.0))
    return taken


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
