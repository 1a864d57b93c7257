"""The vector core of an accelerator, and attention fused with it: two products around a softmax that stays on the chip.

Time of streaming operators on the accelerator's vector cores: lane cycles, passes over rows, memory traffic.

Norms and softmax need statistics over a row and then the row again. Cycles of divisions, roots and exponentials are
those of PHAZE's vector core (reference/phaze.md sec. 4). docs/concepts/systolic.md has the table.

Time of a fused attention kernel on the accelerator: GEMMs on tensor cores overlap softmax on the vector lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sartor.cost.chip.systolic import Product, in_turn_s
from sartor.hardware.accelerator import Accelerator
from sartor.operators import Attention, MemoryBound, MemoryBoundKind, Pass
from sartor.units import Floats, Ints, ceil_div, plain

DIVIDE, ROOT, EXPONENTIAL = 10, 15, 10
"""Lane cycles of a division, a square root, an exponential (PHAZE's tables); any other operation takes one."""
ROWS_AT_ONCE = 2.0 ** np.arange(13)
"""How many rows share a vector core's lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _VectorWork:
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


@cache
def _forward(unit: float) -> dict[MemoryBoundKind, _VectorWork]:
    """Work of a chip whose special functions take ``unit`` lane cycles."""

    def with_(plain: float, special: float) -> float:
        return cycles_with(plain, special, unit)

    return {
        # sum, sum of squares; then subtract-and-scale, affine
        MemoryBoundKind.NORM: _VectorWork(per_element=4, per_row=with_(0, ROOT + DIVIDE), reductions=2, passes=2),
        # scale, mask, maximum; subtract, exponential, sum; multiply by the reciprocal
        MemoryBoundKind.SOFTMAX: _VectorWork(
            per_element=with_(6, EXPONENTIAL), per_row=with_(0, DIVIDE), reductions=2, passes=3
        ),
        # x / (1 + exp(-x)): sigmoid-shaped, GELU by its sigmoid form (Hendrycks and Gimpel 2016)
        MemoryBoundKind.ACTIVATION: _VectorWork(per_element=with_(2, EXPONENTIAL + DIVIDE)),
        MemoryBoundKind.RESIDUAL: _VectorWork(per_element=1),
        MemoryBoundKind.ROTARY: _VectorWork(per_element=2),
        MemoryBoundKind.EMBEDDING: _VectorWork(per_element=1),
        # maximum; subtract, exponential, sum; normalise
        MemoryBoundKind.CROSS_ENTROPY: _VectorWork(
            per_element=with_(4, EXPONENTIAL), per_row=with_(0, DIVIDE), reductions=2, passes=3
        ),
        # two moments (5), root, division, step (2)
        MemoryBoundKind.OPTIMIZER: _VectorWork(per_element=with_(7, ROOT + DIVIDE)),
        MemoryBoundKind.CONV: _VectorWork(per_element=0, per_flop=0.5),
        MemoryBoundKind.SCAN: _VectorWork(per_element=0, per_flop=with_(5, EXPONENTIAL) / 9),
        MemoryBoundKind.ROUTING: _VectorWork(per_element=1, per_flop=with_(4, EXPONENTIAL) / 5),
        MemoryBoundKind.CAST: _VectorWork(per_element=3),
    }


@cache
def _backward(unit: float) -> dict[MemoryBoundKind, _VectorWork]:
    """Kinds not listed take forward's cycles."""
    return {
        **_forward(unit),
        # x-hat, g = dy gamma, sum g, sum g x-hat, d gamma, d beta; then three for dx
        MemoryBoundKind.NORM: replace(_forward(unit)[MemoryBoundKind.NORM], per_element=9),
        # sum p dp; then (dp - sum) p, scale
        MemoryBoundKind.SOFTMAX: _VectorWork(per_element=4, reductions=1, passes=2),
        MemoryBoundKind.ACTIVATION: _VectorWork(per_element=cycles_with(7, EXPONENTIAL + DIVIDE, unit)),
        MemoryBoundKind.CROSS_ENTROPY: _VectorWork(per_element=2),
    }


def cycles_with(plain: float, special: float, unit: float) -> float:
    """Lane cycles of plain operations and of special functions that take ``special`` cycles on the lanes: one after the
    other, or on units beside them, each function of ten cycles in ``unit`` cycles of a lane."""
    return max(plain, special / EXPONENTIAL * unit) if unit else plain + special


def vector_work(op: MemoryBound, accelerator: Accelerator) -> _VectorWork:
    """Vector-lane work of an operator."""
    table = _backward if op.pass_ is Pass.BACKWARD else _forward
    return table(accelerator.special_cycles)[op.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class _VectorCost:
    """Predicted time on all vector cores and its terms, which overlap."""

    time_s: Floats
    compute_s: Floats
    buffer_s: Floats
    memory_s: Floats
    lane_cycles: Floats
    """Cycles summed over lanes, for energy."""
    buffer_bytes: Floats


def vector_cost(op: MemoryBound, accelerator: Accelerator) -> _VectorCost:
    """Cost of a streaming operator on all vector cores; shapes broadcast.

    Rows with statistics are distributed whole over the cores, elements of other operators individually. Every byte of
    ``bytes_moved`` comes from or goes to memory; rows longer than the private buffer are read again from the global
    buffer for every further pass.
    """
    a, work = accelerator, vector_work(op, accelerator)
    rows, cols = np.asarray(op.rows, dtype=np.float64), np.asarray(op.cols, dtype=np.float64)
    elements = rows * cols
    per_element = work.per_element + work.per_flop * np.asarray(op.flops, dtype=np.float64) / np.maximum(elements, 1)
    lanes, cores = np.asarray(a.vector_lanes, dtype=np.float64), np.asarray(a.num_vector_cores, dtype=np.float64)
    if work.reductions:
        cycles = _cycles_of_rows(rows, cols, per_element, op, a)
    else:
        cycles = np.ceil(elements / (lanes * cores)) * per_element
    element_bytes = op.dtype.bytes
    again = np.where(cols * element_bytes > a.vector_core_sram_bytes, work.passes - 1, 0) * elements * element_bytes
    moved = np.asarray(op.bytes_moved, dtype=np.float64)
    if op.kind is MemoryBoundKind.NORM and op.pass_ is Pass.BACKWARD and a.operator_start_s:
        moved = moved + 2 * elements * element_bytes
    through = moved + again
    compute_s = cycles / a.clock_hz
    buffer_s = np.maximum(through / (cores * a.vector_port_bytes_per_s), through / a.global_buffer_bytes_per_s)
    memory_s = moved / a.streamed_bytes_per_s
    return _VectorCost(
        time_s=plain(np.maximum(np.maximum(compute_s, buffer_s), memory_s)),
        compute_s=plain(compute_s),
        buffer_s=plain(buffer_s),
        memory_s=plain(memory_s),
        lane_cycles=plain(elements * per_element),
        buffer_bytes=plain(through),
    )


def _cycles_of_rows(rows: Floats, cols: Floats, per_element: Floats, op: MemoryBound, a: Accelerator) -> Floats:
    """Cycles of rows with statistics. A core takes a row with all its lanes, or several, each with its share of them,
    if the private buffer holds those rows together: statistics then take fewer steps and are of all these rows."""
    work = vector_work(op, a)
    rows, cols, per_element = (np.asarray(x, dtype=np.float64)[..., None] for x in (rows, cols, per_element))
    lanes, cores, held = (
        np.asarray(x)[..., None] for x in (a.vector_lanes, a.num_vector_cores, a.vector_core_sram_bytes)
    )
    shared = np.minimum(ROWS_AT_ONCE, lanes)
    per_row = work.per_row + work.reductions * np.ceil(np.log2(lanes / shared))
    cycles = np.ceil(rows / (cores * shared)) * (np.ceil(cols * shared / lanes) * per_element + per_row)
    fits = (shared == 1) | (shared * cols * op.dtype.bytes <= held)
    least: Floats = np.where(fits, cycles, np.inf).min(axis=-1)
    return least


BLOCK_OF_KEYS = 128
"""Keys that a kernel multiplies at once: FlashAttention's 2 and 3 (Dao 2023; Shah et al. 2024)."""
NEVER_BINDS = 1e30
"""Bandwidth in bytes per second that takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionCost:
    """Predicted time and its terms, which overlap (``vector_s`` by ``Accelerator.softmax_overlap``)."""

    time_s: Floats
    tensor_s: Floats
    vector_s: Floats
    memory_s: Floats
    memory_bytes: Floats


def attention_products(op: Attention, a: Accelerator) -> tuple[Product, ...]:
    """The matrix multiplications of a kernel: two forward, five backward (Dao et al. 2022, sec. 3.1), of which scores
    and their gradients once in each of ``a.backward_passes``. Each query is multiplied with the mean number of unmasked
    keys, rounded up. The query heads that share a key/value head are rows of one product, so that its keys and values
    are loaded into an array once for all of them."""
    kv_heads = np.maximum(np.minimum(op.num_kv_heads, op.num_heads), 1)
    batch, q, d, dv = op.batch * kv_heads, op.seq_q * ceil_div(op.num_heads, kv_heads), op.head_dim, op.v_head_dim
    keys = np.ceil(np.asarray(op.pairs, dtype=np.float64) / op.seq_q)

    def product(m: Ints, n: Ints, k: Ints) -> Product:
        return Product(m=m, n=n, k=k, batch=batch, operand_bytes=op.dtype.bytes, output_bytes=op.dtype.bytes)

    scores, values = product(q, keys, d), product(q, dv, keys)
    if op.pass_.computes_outputs:
        return scores, values
    gradients = product(keys, dv, q), product(q, d, keys), product(keys, d, q)
    return (scores, product(q, keys, dv)) * a.backward_passes + gradients


def _in_one_pass_s(op: Attention, a: Accelerator) -> Floats:
    """Seconds that backward in one pass takes beside its products where ``buffer_add_share`` is known: probabilities
    and gradients of scores leave the arrays and return as operands of three products (5 elements a pair), and each
    block of keys adds to the gradients of its queries in the global buffer, in 4 bytes."""
    if op.pass_.computes_outputs or not a.buffer_add_share:
        return 0.0
    pairs = 1.0 * op.batch * op.num_heads * np.asarray(op.pairs)
    returned = 5 * op.dtype.bytes * pairs / (a.num_tensor_cores * a.tensor_port_bytes_per_s)
    added = 4 * op.head_dim * pairs / BLOCK_OF_KEYS
    return returned + added / (a.global_buffer_bytes_per_s * a.buffer_add_share)


def attention_cost(op: Attention, accelerator: Accelerator) -> _AttentionCost:
    """Cost on all cores; shapes broadcast. Scores never leave the chip; keys and values are read once if one head's fit
    half the global buffer, else once per block of queries that fits."""
    a = accelerator
    between = plain(np.where(a.stacked, a.die_to_die_bytes_per_s, NEVER_BINDS))  # each die has heads of its own
    on_chip = replace(a, stack_bytes_per_s=NEVER_BINDS, die_to_die_bytes_per_s=between)
    tensor = in_turn_s(attention_products(op, a), on_chip) + _in_one_pass_s(op, a)
    lanes = 1.0 * np.asarray(a.num_vector_cores) * a.vector_lanes
    vector = np.ceil(softmax_cycles(op, a) / lanes) / a.clock_hz
    moved = np.asarray(op.bytes_moved) + _read_again(op, a)
    memory = moved / a.streamed_bytes_per_s
    on_cores = np.maximum(tensor, vector) + (1 - a.softmax_overlap) * np.minimum(tensor, vector)
    return _AttentionCost(
        time_s=plain(np.maximum(on_cores, memory)),
        tensor_s=plain(tensor),
        vector_s=plain(vector),
        memory_s=plain(memory),
        memory_bytes=plain(moved),
    )


def softmax_cycles(op: Attention, a: Accelerator) -> Floats:
    """Lane cycles of all pairs of a query and a key. Forward: scale, mask, maximum, subtract, exponential, sum,
    rescale; backward in each pass: probabilities (scale, subtract, exponential), then (dp - D) p and the scale."""
    forward = op.pass_.computes_outputs
    of_a_pair = cycles_with(6 if forward else 5, EXPONENTIAL, a.special_cycles) * (1 if forward else a.backward_passes)
    cycles: Floats = op.batch * op.num_heads * np.asarray(op.pairs) * of_a_pair
    return cycles


def _read_again(op: Attention, a: Accelerator) -> Floats:
    """Bytes of keys and values read again after the first time."""
    row = (op.head_dim + op.v_head_dim) * op.dtype.bytes
    half = np.asarray(a.global_buffer_bytes) / 2
    blocks = np.ceil(op.seq_q / np.maximum(np.floor(half / row), 1))
    passes = 1.0 if op.pass_.computes_outputs else 2.0
    keys_and_values = passes * op.batch * op.num_kv_heads * np.asarray(op.seq_kv, dtype=np.float64) * row
    return np.where(op.seq_kv * row <= half, 0.0, (blocks - 1) * keys_and_values)
