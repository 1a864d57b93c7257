"""Time of a kernel that streams: bytes over the achieved bandwidth, faster inside L2, plus its launches.

docs/concepts/memory-bound.md has symbols, fit and accuracy.
"""

from __future__ import annotations

import numpy as np

from sartor.cost.cost import Cost, Source
from sartor.hardware.calibration import Calibration
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound


def memory_bound_cost(op: MemoryBound, gpu: Gpu, calibration: Calibration) -> Cost:
    """Cost of one streaming operator; shapes broadcast. The first L2-full of bytes goes at L2's rate."""
    c = calibration.memory_bound
    rate = c.hbm_share * gpu.hbm_bytes_per_s
    bytes_moved = np.asarray(op.bytes_moved, dtype=np.float64)
    near = np.minimum(bytes_moved, gpu.l2_bytes / 2)
    memory = near / (rate * c.l2_speedup) + (bytes_moved - near) / rate
    overhead = c.launch_s * op.kernels
    time = memory + overhead
    source = Source.CALIBRATED if "memory_bound" in calibration.calibrated else Source.ANALYTIC
    scalar = np.ndim(time) == 0
    return Cost(
        time_s=float(time) if scalar else time,
        memory_s=float(memory) if np.ndim(memory) == 0 else memory,
        overhead_s=overhead,
        log_sigma=c.log_sigma,
        source=source,
    )
