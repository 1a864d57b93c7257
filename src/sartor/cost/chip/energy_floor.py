"""A lower bound on an operator's energy without its tiles, a hundred times cheaper than `operator_energy`: arithmetic,
registers, and what must move at least through memory, the global buffer and private buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.cost.chip.energy import (
    PICO,
    memory_pj_per_byte,
    operator_energy,
    place_pj,
    register_pj,
    sram_pj_per_byte,
)
from sartor.cost.chip.fused_attention import attention_products
from sartor.cost.chip.operator_floor import operator_floor
from sartor.cost.chip.systolic import Product, product_of
from sartor.cost.chip.technology import mac_energy_pj
from sartor.hardware.accelerator import Accelerator
from sartor.operators import Attention, DType, Gemm, GroupedGemm, Operator
from sartor.units import Floats, ceil_div


def energy_floor_j(op: Operator, a: Accelerator) -> Floats:
    """Joules of one execution beyond static power that `operator_energy` is never below; shapes broadcast."""
    if isinstance(op, Gemm | GroupedGemm):
        product = product_of(op, a)
        lane_cycles = 1.0 * product.batch * product.m * product.n * product.epilogue_cycles
        return _products_j((product,), op, op.dtype, lane_cycles, product.least_bytes, a)
    if isinstance(op, Attention):
        lanes = 1.0 * np.asarray(a.num_vector_cores) * a.vector_lanes
        lane_cycles = operator_floor(op, a).vector_s * lanes * a.clock_hz
        return _products_j(attention_products(op), op, a.dtype, lane_cycles, op.bytes_moved, a)
    energy = operator_energy(op, a)
    return energy.total_j - energy.static_j


def _products_j(
    products: Sequence[Product], op: Operator, dtype: DType, lane_cycles: Floats, memory_bytes: Floats, a: Accelerator
) -> Floats:
    """GEMMs, lane cycles and bytes of memory; each sum is read and written once per block of k in an array."""
    macs = sum(product.macs for product in products)
    sums = sum(2.0 * p.batch * p.m * p.n * ceil_div(p.k, a.array_rows) for p in products) * a.accumulator_bytes
    through = operator_floor(op, a).buffer_s * np.asarray(a.global_buffer_bytes_per_s)
    picojoules = (
        macs * (place_pj(a, dtype) + register_pj(a))
        + lane_cycles * (mac_energy_pj(DType.FP32, a.node_nm) + register_pj(a))
        + sums * sram_pj_per_byte(a.tensor_core_sram_bytes, a.node_nm)
        + through * sram_pj_per_byte(a.global_buffer_bytes, a.node_nm)
        + memory_bytes * memory_pj_per_byte(a)
    )
    return picojoules * PICO
