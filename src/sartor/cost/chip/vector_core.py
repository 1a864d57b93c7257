"""Time of streaming operators on the accelerator's vector cores: lane cycles, passes over rows, memory traffic.

Norms and softmax need statistics over a row and then the row again. Cycles of divisions, roots and exponentials are
those of PHAZE's vector core (reference/phaze.md sec. 4). docs/concepts/systolic.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.hardware.accelerator import Accelerator
from sartor.operators import MemoryBound, MemoryBoundKind, Pass
from sartor.units import Floats, plain

DIVIDE, ROOT, EXPONENTIAL = 10, 15, 10
"""Lane cycles of a division, a square root, an exponential (PHAZE's tables); any other operation takes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorWork:
    """Vector-lane work of one kind of operator."""

    per_element: float
    """Lane cycles."""
    per_row: float = 0.0
    reductions: int = 0
    """Sums or maxima over the row: the lanes' partial results are combined in log2(lanes) steps each."""
    passes: int = 1
    """Times the row is read; more than one only costs time if a row does not fit the private buffer."""
    per_flop: float = 0.0
    """Lane cycles per FLOP of the operator, for kinds without a fixed number of cycles per element."""


_FORWARD: dict[MemoryBoundKind, VectorWork] = {
    # sum, sum of squares; then subtract-and-scale, affine
    MemoryBoundKind.NORM: VectorWork(per_element=4, per_row=ROOT + DIVIDE, reductions=2, passes=2),
    # scale, mask, maximum; subtract, exponential, sum; multiply by the reciprocal
    MemoryBoundKind.SOFTMAX: VectorWork(per_element=6 + EXPONENTIAL, per_row=DIVIDE, reductions=2, passes=3),
    # x / (1 + exp(-x)): sigmoid-shaped, GELU by its sigmoid form (Hendrycks and Gimpel 2016)
    MemoryBoundKind.ACTIVATION: VectorWork(per_element=2 + EXPONENTIAL + DIVIDE),
    MemoryBoundKind.RESIDUAL: VectorWork(per_element=1),
    MemoryBoundKind.ROTARY: VectorWork(per_element=2),
    MemoryBoundKind.EMBEDDING: VectorWork(per_element=1),
    # maximum; subtract, exponential, sum; normalise
    MemoryBoundKind.CROSS_ENTROPY: VectorWork(per_element=4 + EXPONENTIAL, per_row=DIVIDE, reductions=2, passes=3),
    # two moments (5), root, division, step (2)
    MemoryBoundKind.OPTIMIZER: VectorWork(per_element=7 + ROOT + DIVIDE),
    MemoryBoundKind.CONV: VectorWork(per_element=0, per_flop=0.5),
    MemoryBoundKind.SCAN: VectorWork(per_element=0, per_flop=(5 + EXPONENTIAL) / 9),
    MemoryBoundKind.ROUTING: VectorWork(per_element=1, per_flop=(4 + EXPONENTIAL) / 5),
    MemoryBoundKind.CAST: VectorWork(per_element=3),
}
_BACKWARD: dict[MemoryBoundKind, VectorWork] = {
    **_FORWARD,
    # x-hat, g = dy gamma, sum g, sum g x-hat, d gamma, d beta; then three for dx
    MemoryBoundKind.NORM: VectorWork(per_element=9, per_row=ROOT + DIVIDE, reductions=2, passes=2),
    # sum p dp; then (dp - sum) p, scale
    MemoryBoundKind.SOFTMAX: VectorWork(per_element=4, reductions=1, passes=2),
    MemoryBoundKind.ACTIVATION: VectorWork(per_element=7 + EXPONENTIAL + DIVIDE),
    MemoryBoundKind.CROSS_ENTROPY: VectorWork(per_element=2),
}
"""Kinds not listed for backward take forward's cycles."""


def vector_work(op: MemoryBound) -> VectorWork:
    """Vector-lane work of an operator."""
    table = _BACKWARD if op.pass_ is Pass.BACKWARD else _FORWARD
    return table[op.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorCost:
    """Predicted time on all vector cores and its terms, which overlap."""

    time_s: Floats
    compute_s: Floats
    buffer_s: Floats
    memory_s: Floats
    lane_cycles: Floats
    """Cycles summed over lanes, for energy."""
    buffer_bytes: Floats


def vector_cost(op: MemoryBound, accelerator: Accelerator) -> VectorCost:
    """Cost of a streaming operator on all vector cores; shapes broadcast.

    Rows with statistics are distributed whole over the cores, elements of other operators individually. Every byte of
    ``bytes_moved`` comes from or goes to memory; rows longer than the private buffer are read again from the global
    buffer for every further pass.
    """
    a, work = accelerator, vector_work(op)
    rows, cols = np.asarray(op.rows, dtype=np.float64), np.asarray(op.cols, dtype=np.float64)
    elements = rows * cols
    per_element = work.per_element + work.per_flop * np.asarray(op.flops, dtype=np.float64) / np.maximum(elements, 1)
    lanes, cores = np.asarray(a.vector_lanes, dtype=np.float64), np.asarray(a.num_vector_cores, dtype=np.float64)
    if work.reductions:
        per_row = work.per_row + work.reductions * np.ceil(np.log2(lanes))
        cycles = np.ceil(rows / cores) * (np.ceil(cols / lanes) * per_element + per_row)
    else:
        cycles = np.ceil(elements / (lanes * cores)) * per_element
    element_bytes = op.dtype.bytes
    again = np.where(cols * element_bytes > a.vector_core_sram_bytes, work.passes - 1, 0) * elements * element_bytes
    through = np.asarray(op.bytes_moved, dtype=np.float64) + again
    compute_s = cycles / a.clock_hz
    buffer_s = np.maximum(through / (cores * a.vector_port_bytes_per_s), through / a.global_buffer_bytes_per_s)
    memory_s = np.asarray(op.bytes_moved, dtype=np.float64) / a.streamed_bytes_per_s
    return VectorCost(
        time_s=plain(np.maximum(np.maximum(compute_s, buffer_s), memory_s)),
        compute_s=plain(compute_s),
        buffer_s=plain(buffer_s),
        memory_s=plain(memory_s),
        lane_cycles=plain(elements * per_element),
        buffer_bytes=plain(through),
    )
