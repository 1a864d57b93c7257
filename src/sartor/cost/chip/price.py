"""Costs of operators on an accelerator of the template, in the same record as a GPU's."""

from __future__ import annotations

import numpy as np

from sartor.cost.chip.fused_attention import attention_cost
from sartor.cost.chip.systolic import product_cost, product_of
from sartor.cost.chip.vector_core import vector_cost
from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import Cost
from sartor.hardware.accelerator import Accelerator
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator
from sartor.units import Floats


def chip_cost(op: Operator, gpu: Gpu, known: Calibration, cluster: Cluster | None = None) -> Cost:
    """One operator on all cores of the chip that ``gpu`` is the datasheet of; shapes broadcast.

    Terms overlap on the chip: matrix units, the buffer's ports and lanes count as compute, HBM as memory; what is left
    of the time, the first operands' way in, is overhead. All cores are never slower than one. Nothing of
    the template has been measured, so every cost is analytic with the interval of a datasheet alone.
    """
    if isinstance(op, Collective):
        return collective_cost(op, gpu, known, cluster)
    assert gpu.accelerator is not None
    if not isinstance(op, MemoryBound):
        gpu.peak(op.dtype)  # refuses a type that the arrays do not multiply
    compute_s, memory_s, time_s = _terms(op, gpu.accelerator)
    rest_s = np.maximum(time_s - np.maximum(compute_s, memory_s), 0.0)
    return Cost(time_s=time_s, compute_s=compute_s, memory_s=memory_s, overhead_s=rest_s)


def _terms(op: Gemm | GroupedGemm | Attention | MemoryBound, a: Accelerator) -> tuple[Floats, Floats, Floats]:
    if isinstance(op, (Gemm, GroupedGemm)):
        product = product_cost(product_of(op, a), a)
        on_cores = np.maximum(np.maximum(product.compute_s, product.buffer_s), product.epilogue_s)
        return on_cores, product.memory_s, product.time_s
    if isinstance(op, Attention):
        attention = attention_cost(op, a)
        return np.maximum(attention.tensor_s, attention.vector_s), attention.memory_s, attention.time_s
    stream = vector_cost(op, a)
    return np.maximum(stream.compute_s, stream.buffer_s), stream.memory_s, stream.time_s
