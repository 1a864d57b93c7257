"""Time of a fused attention kernel on the accelerator: GEMMs on tensor cores overlap softmax on the vector lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sartor.cost.chip.systolic import Product, product_time_s
from sartor.cost.chip.vector_core import EXPONENTIAL
from sartor.hardware.accelerator import Accelerator
from sartor.operators import Attention
from sartor.units import Floats, Ints, ceil_div, plain

FORWARD_CYCLES = 6 + EXPONENTIAL
"""Lane cycles per query-key pair: the softmax of ``vector_core``."""
BACKWARD_CYCLES = 5 + EXPONENTIAL
"""Recomputed probabilities (scale, subtract, exponential), then (dp - D) p and the scale."""
NEVER_BINDS = 1e30
"""Bandwidth in bytes per second that takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCost:
    """Predicted time and its terms, which overlap."""

    time_s: Floats
    tensor_s: Floats
    vector_s: Floats
    memory_s: Floats
    memory_bytes: Floats


def attention_products(op: Attention) -> tuple[Product, ...]:
    """The matrix multiplications of a kernel: two forward, five backward (Dao et al. 2022, sec. 3.1). Each query is
    multiplied with the mean number of unmasked keys, rounded up. The query heads that share a key/value head are rows
    of one product, so that its keys and values are loaded into an array once for all of them."""
    kv_heads = np.maximum(np.minimum(op.num_kv_heads, op.num_heads), 1)
    batch, q, d, dv = op.batch * kv_heads, op.seq_q * ceil_div(op.num_heads, kv_heads), op.head_dim, op.v_head_dim
    keys = np.ceil(np.asarray(op.pairs, dtype=np.float64) / op.seq_q)

    def product(m: Ints, n: Ints, k: Ints) -> Product:
        return Product(m=m, n=n, k=k, batch=batch, operand_bytes=op.dtype.bytes, output_bytes=op.dtype.bytes)

    scores, values = product(q, keys, d), product(q, dv, keys)
    if op.pass_.computes_outputs:
        return scores, values
    return scores, product(q, keys, dv), product(keys, dv, q), product(q, d, keys), product(keys, d, q)


def attention_cost(op: Attention, accelerator: Accelerator) -> AttentionCost:
    """Cost on all cores; shapes broadcast. Scores never leave the chip; keys and values are read once if one head's fit
    half the global buffer, else once per block of queries that fits."""
    a = accelerator
    on_chip = replace(a, stack_bytes_per_s=NEVER_BINDS)
    tensor = sum((np.asarray(product_time_s(p, on_chip)) for p in attention_products(op)), np.asarray(0.0))
    cycles = FORWARD_CYCLES if op.pass_.computes_outputs else BACKWARD_CYCLES
    lanes = 1.0 * np.asarray(a.num_vector_cores) * a.vector_lanes
    vector = np.ceil(op.batch * op.num_heads * np.asarray(op.pairs) / lanes) * cycles / a.clock_hz
    moved = np.asarray(op.bytes_moved) + _read_again(op, a)
    memory = moved / a.streamed_bytes_per_s
    return AttentionCost(
        time_s=plain(np.maximum(np.maximum(tensor, vector), memory)),
        tensor_s=plain(tensor),
        vector_s=plain(vector),
        memory_s=plain(memory),
        memory_bytes=plain(moved),
    )


def _read_again(op: Attention, a: Accelerator) -> Floats:
    """Bytes of keys and values read again after the first time."""
    row = (op.head_dim + op.v_head_dim) * op.dtype.bytes
    half = np.asarray(a.global_buffer_bytes) / 2
    blocks = np.ceil(op.seq_q / np.maximum(np.floor(half / row), 1))
    passes = 1.0 if op.pass_.computes_outputs else 2.0
    keys_and_values = passes * op.batch * op.num_kv_heads * np.asarray(op.seq_kv, dtype=np.float64) * row
    return np.where(op.seq_kv * row <= half, 0.0, (blocks - 1) * keys_and_values)
