"""The least time that a device's datasheet allows an operator."""

from __future__ import annotations

import numpy as np

from sartor.cost.peaks import peak_flops_per_s
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, Operator
from sartor.units import Floats


def least_s(op: Operator, gpu: Gpu) -> Floats:
    """Seconds of one execution: FLOPs at the dense peak, and bytes beyond what caches hold at memory's rate. Windows
    skip keys and routing skips experts, so attention and grouped GEMMs have their FLOPs only; collectives have 0."""
    if isinstance(op, Collective):
        return 0.0
    beyond = np.maximum(op.bytes_moved - gpu.l2_bytes - gpu.memory_side_cache_bytes, 0.0) / gpu.hbm_bytes_per_s
    if not isinstance(op, (Gemm, GroupedGemm, Attention)):
        return np.asarray(beyond)
    multiplied = op.flops / peak_flops_per_s(gpu, op.dtype)
    return np.asarray(np.maximum(multiplied, beyond) if isinstance(op, Gemm) else multiplied)
