"""Lower bounds on operator latency that ignore tiling: array passes, lane cycles, bytes, links.

A hundred times cheaper than `operator_latencies` and never above it, so whole spaces can be filtered first. Operands
narrower than the array waste rows and columns here too; losses from tiles, buffers and waves are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sartor.cost.chip.fused_attention import BACKWARD_CYCLES, FORWARD_CYCLES, attention_products
from sartor.cost.chip.operator_latency import Fused, fused_product
from sartor.cost.chip.systolic import Product, product_of
from sartor.cost.chip.vector_core import vector_work
from sartor.cost.collective.ring import link_time_s
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.operators import Attention, Gemm, GroupedGemm, MemoryBound, Operator
from sartor.units import Floats, Ints, ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFloor:
    """Seconds of one execution. ``tensor_s``, ``vector_s``: all tensor (vector) cores together, however the operator is
    split; ``memory_s``, ``buffer_s``, ``link_s``: shared resources at full rate; ``least_s``: the whole operator, on
    one core or on all."""

    least_s: Floats
    tensor_s: Floats = 0.0
    vector_s: Floats = 0.0
    memory_s: Floats = 0.0
    buffer_s: Floats = 0.0
    link_s: Floats = 0.0

    def times(self, count: Ints) -> OperatorFloor:
        """The floor of ``count`` executions."""
        if isinstance(count, int) and count == 1:
            return self
        return OperatorFloor(**{term.name: getattr(self, term.name) * count for term in fields(self)})


def operator_floor(op: Operator | Fused, accelerator: Accelerator) -> OperatorFloor:
    """The floor of one operator; shapes broadcast over candidates. ``count`` is not applied."""
    a = accelerator
    if isinstance(op, Gemm | GroupedGemm | Fused):
        product = fused_product(op, a) if isinstance(op, Fused) else product_of(op, a)
        outputs = 1.0 * product.batch * product.m * product.n
        tensor, buffer = _product_floor(product, a)
        vector = _lanes(outputs * product.epilogue_cycles, a)
        return _floor(tensor, vector, buffer, product.least_bytes / np.asarray(a.streamed_bytes_per_s))
    if isinstance(op, Attention):
        pairs = [_product_floor(product, a) for product in attention_products(op)]
        tensor = sum((tensor_s for tensor_s, _ in pairs), np.asarray(0.0))
        alone = sum((np.maximum(*pair) for pair in pairs), np.asarray(0.0))
        each_pair = FORWARD_CYCLES if op.pass_.computes_outputs else BACKWARD_CYCLES
        vector = _lanes(1.0 * op.batch * op.num_heads * np.asarray(op.pairs) * each_pair, a)
        through = sum((memory_s for _, memory_s in pairs), np.asarray(0.0))
        return _floor(tensor, vector, through, op.bytes_moved / np.asarray(a.streamed_bytes_per_s), alone)
    if isinstance(op, MemoryBound):
        work = vector_work(op)
        cycles = 1.0 * op.rows * op.cols * work.per_element + op.flops * work.per_flop
        through = op.bytes_moved / (np.asarray(a.num_vector_cores) * a.vector_port_bytes_per_s)
        buffer, memory = (op.bytes_moved / np.asarray(r) for r in (a.global_buffer_bytes_per_s, a.streamed_bytes_per_s))
        return _floor(0.0, np.maximum(_lanes(cycles, a), through), buffer, memory)
    time_s = link_time_s(op, a)
    return OperatorFloor(least_s=time_s, link_s=time_s)


def _floor(
    tensor_s: Floats, vector_s: Floats, buffer_s: Floats, memory_s: Floats, least_s: Floats = 0.0
) -> OperatorFloor:
    floor_s = np.maximum.reduce(np.broadcast_arrays(tensor_s, vector_s, buffer_s, memory_s, least_s))
    return OperatorFloor(least_s=floor_s, tensor_s=tensor_s, vector_s=vector_s, memory_s=memory_s, buffer_s=buffer_s)


def _lanes(cycles: Floats, a: Accelerator) -> Floats:
    """Seconds of ``cycles`` lane cycles on all lanes."""
    return cycles / (1.0 * np.asarray(a.num_vector_cores) * a.vector_lanes * a.clock_hz)


def _product_floor(product: Product, a: Accelerator) -> tuple[Floats, Floats]:
    """Seconds of all tensor cores (array passes, or operands through their ports), and of the global buffer.

    A core tile of tall x wide sums reads k (tall + wide) operands, and the private buffer (or the array, if sums are in
    the global buffer) holds that many sums: so every multiply-accumulate costs at least 2 / sqrt(sums) operand reads.
    """
    p = product
    sums = np.maximum(np.asarray(a.tensor_core_sram_bytes) / a.accumulator_bytes, 1.0 * a.array_rows * a.array_cols)
    operands = np.maximum(p.batch * (1.0 * p.m * p.k + 1.0 * p.k * p.n), p.macs * 2 / np.sqrt(sums))
    moved = p.operand_bytes * operands + np.minimum(p.output_bytes, a.accumulator_bytes) * p.batch * p.m * p.n
    cores = np.asarray(a.num_tensor_cores)
    tensor = np.maximum(
        _cycles(p, a) / (cores * a.clock_hz * a.sustained_share), moved / (cores * a.tensor_port_bytes_per_s)
    )
    return tensor, moved / a.global_buffer_bytes_per_s


def _cycles(product: Product, a: Accelerator) -> Floats:
    """Cycles for an array to stream the whole GEMM through stationary blocks of rows x cols."""
    m, n, k = product.m, product.n, product.k
    if a.dataflow is Dataflow.OUTPUT_STATIONARY:
        cycles: Floats = 1.0 * product.batch * ceil_div(m, a.array_rows) * ceil_div(n, a.array_cols) * k
        return cycles
    across, streamed = (m, n) if a.dataflow is Dataflow.INPUT_STATIONARY else (n, m)
    cycles = 1.0 * product.batch * ceil_div(k, a.array_rows) * ceil_div(across, a.array_cols) * streamed
    return cycles
