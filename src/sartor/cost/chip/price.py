"""Costs of operators on a template accelerator, in the same `Cost` record as on a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.cost.chip.systolic import ProductCost, product_alternatives, product_cost, product_of
from sartor.cost.chip.vector_core import attention_cost, vector_cost
from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import Cost
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator
from sartor.units import Floats


def chip_cost(op: Operator, gpu: Gpu, calibration: Calibration, cluster: Cluster | None = None) -> Cost:
    """One operator on all cores of the chip described by ``gpu``; shapes broadcast.

    Terms overlap on the chip: matrix units, buffer ports and lanes count as compute, HBM as memory; the rest of the
    time, loading the first operands, is overhead. All cores are never slower than one. Nothing of the template has been
    measured, so every cost is analytic with the interval of a datasheet alone.
    """
    if isinstance(op, Collective):
        own_network = cluster is None or cluster.one_ring  # then its group alone decides which links it needs
        return collective_cost(op, gpu, calibration, None if own_network else cluster)
    assert gpu.accelerator is not None
    if not isinstance(op, MemoryBound):
        gpu.peak(op.dtype)  # raises for a type that the arrays do not multiply
    return _cost(op, gpu.accelerator)


def chip_alternatives(op: Gemm, accelerator: Accelerator) -> tuple[Cost, ...]:
    """Every core tile and split considered for one GEMM of scalar sizes, fastest first."""
    return tuple(
        _of_product(alternative) for alternative in product_alternatives(product_of(op, accelerator), accelerator)
    )


def _cost(op: Gemm | GroupedGemm | Attention | MemoryBound, a: Accelerator) -> Cost:
    if isinstance(op, (Gemm, GroupedGemm)):
        return _of_product(product_cost(product_of(op, a), a))
    if isinstance(op, Attention):
        attention = attention_cost(op, a)
        on_cores = np.maximum(attention.tensor_s, attention.vector_s)
        return _of_terms(on_cores, attention.memory_s, attention.time_s)
    stream = vector_cost(op, a)
    return _of_terms(np.maximum(stream.compute_s, stream.buffer_s), stream.memory_s, stream.time_s)


def _of_product(product: ProductCost) -> Cost:
    on_cores = np.maximum(np.maximum(product.compute_s, product.buffer_s), product.epilogue_s)
    details = {name: np.asarray(getattr(product, name)).astype(np.int64)[()] for name in COUNTS}
    details |= {name: getattr(product, name) for name in SHARES}
    return replace(_of_terms(on_cores, product.memory_s, product.time_s), details=details)


COUNTS = ("tile_m", "tile_n", "split_k", "waves")
SHARES = ("tile_efficiency", "wave_efficiency", "utilization")
"""With ``COUNTS``, the mapping details reported with a GEMM's cost."""


def _of_terms(on_cores_s: Floats, memory_s: Floats, time_s: Floats) -> Cost:
    rest_s = np.maximum(time_s - np.maximum(on_cores_s, memory_s), 0.0)
    return Cost(time_s=time_s, compute_s=on_cores_s, memory_s=memory_s, overhead_s=rest_s)
