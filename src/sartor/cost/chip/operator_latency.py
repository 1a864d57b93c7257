"""Seconds of operators on many candidate accelerators at once, and their `Cost` records on one.

Operator schedules choose between the two (``sartor.schedules``): l on one tensor core, one vector core or one of each,
and q on all cores with nothing else running.

Lower bounds on operator latency that ignore tiling: array passes, lane cycles, bytes, links.

A hundred times cheaper than `operator_latencies` and never above it, so whole spaces can be filtered first. Operands
narrower than the array waste rows and columns here too; losses from tiles, buffers and waves are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.chip.systolic import (
    Product,
    ProductCost,
    product_alternatives,
    product_cost,
    product_of,
    product_time_s,
)
from sartor.cost.chip.vector_core import (
    attention_cost,
    attention_products,
    softmax_cycles,
    vector_cost,
    vector_work,
)
from sartor.cost.collective.collective import collective_cost
from sartor.cost.collective.links import link_time_s
from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import Cost
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator, Dataflow
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator, OperatorGraph, Part
from sartor.units import Floats, Ints, ceil_div

Latencies = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """A GEMM and the streaming operator after it, fused: vector lanes process tiles as the arrays finish them, and the
    GEMM's result is not read back."""

    product: Gemm
    epilogue: MemoryBound

    @property
    def name(self) -> str:
        return f"{self.product.name}+{self.epilogue.name}"

    @property
    def count(self) -> Ints:
        return self.product.count


PACKAGE = ("num_dies", "num_io_dies", "die_to_die_bytes_per_s")
_MEMORY = ("clock_hz", "num_stacks", "stack_bytes_per_s", "global_buffer_bytes", "bank_bytes_per_cycle", *PACKAGE)
_TENSOR = ("num_tensor_cores", "array_rows", "array_cols", "tensor_core_sram_bytes")
_VECTOR = ("num_vector_cores", "vector_lanes", "vector_core_sram_bytes")
SCALE_OUT = ("scale_up_devices", "scale_out_bytes_per_s", "scale_out_latency_s")
_LINKS = ("num_links", "link_bytes_per_s", "link_latency_s", *SCALE_OUT)
_USES: dict[type, tuple[str, ...]] = {
    Gemm: (*_TENSOR, *_MEMORY),
    GroupedGemm: (*_TENSOR, *_MEMORY),
    Attention: (*_TENSOR, *_VECTOR, *_MEMORY),
    MemoryBound: (*_VECTOR, *_MEMORY),
    Collective: _LINKS,
    Fused: (*_TENSOR, *_VECTOR, *_MEMORY),
}
"""Fields an operator's time depends on: candidates equal in these are priced once."""


def _operator_time_s(op: Operator | Fused, accelerator: Accelerator) -> Floats:
    """Time of one execution on all cores [s]; shapes broadcast. Collectives run on the links."""
    start_s = accelerator.operator_start_s
    if isinstance(op, Fused):
        return product_time_s(_fused_product(op, accelerator), accelerator) + start_s
    if isinstance(op, Gemm | GroupedGemm):
        return product_time_s(product_of(op, accelerator), accelerator) + start_s
    if isinstance(op, Attention):
        return attention_cost(op, accelerator).time_s + start_s
    if isinstance(op, MemoryBound):
        return vector_cost(op, accelerator).time_s + start_s
    return link_time_s(op, accelerator)


def _fused_product(op: Fused, accelerator: Accelerator) -> Product:
    """The GEMM with its epilogue per element of C: lane cycles, and bytes that the streaming operator moves through
    memory besides reading C."""
    plain, work = product_of(op.product, accelerator), vector_work(op.epilogue, accelerator)
    outputs = 1.0 * plain.batch * plain.m * plain.n
    elements = 1.0 * op.epilogue.rows * op.epilogue.cols
    read_back = op.epilogue.dtype.bytes * outputs
    return replace(
        plain,
        epilogue_cycles=(elements * work.per_element + op.epilogue.flops * work.per_flop) / outputs,
        epilogue_bytes=np.maximum(op.epilogue.bytes_moved - read_back, 0.0) / outputs,
    )


def _one_core(accelerator: Accelerator) -> Accelerator:
    """The accelerator with one tensor core and one vector core, with all of the buffer, memory and links."""
    return replace(accelerator, num_tensor_cores=1, num_vector_cores=1)


def operator_latencies(
    operators: OperatorGraph | Sequence[Operator | Fused], accelerator: Accelerator
) -> tuple[Latencies, Latencies]:
    """``(one_core_s, all_cores_s)``, each of shape (operators, *candidates) [s]; ``count`` is not applied.

    Candidates are the accelerator's arrays. Equal operators are priced once, and candidates that differ only in fields
    an operator does not use share its price, so a grid of thousands of candidates costs as much as its distinct
    tensor-core and vector-core configurations. If an operator's sizes are arrays over the candidates, each candidate is
    priced.
    """
    ops = operators.operators if isinstance(operators, OperatorGraph) else tuple(operators)
    names = [op.name if _has_arrays(op) else _what_is_priced(op, accelerator) for op in ops]
    named_ops = dict(zip(names, ops, strict=True))
    latencies_by_cores = [_priced(named_ops, a, accelerator.shape) for a in (_one_core(accelerator), accelerator)]
    empty = np.zeros((0, *accelerator.shape))
    single, together = (
        np.stack([latencies[name] for name in names]) if names else empty for latencies in latencies_by_cores
    )
    return single, together


def _has_arrays(op: Operator | Fused) -> bool:
    """Whether some size is an array over candidates."""
    if isinstance(op, Fused):
        return _has_arrays(op.product) or _has_arrays(op.epilogue)
    return any(isinstance(getattr(op, name), np.ndarray) for name in _FIELDS[type(op)])


_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind))
    for kind in (Gemm, GroupedGemm, Attention, MemoryBound, Collective)
}


def _what_is_priced(op: Operator | Fused, accelerator: Accelerator) -> tuple[type, Product | Operator]:
    """What the price depends on: a GEMM's sizes, or all fields except the count and the place in the model."""
    if isinstance(op, Fused):
        return Fused, _fused_product(op, accelerator)
    if isinstance(op, Gemm | GroupedGemm):
        return Gemm, product_of(op, accelerator)
    return type(op), replace(op, name="", count=1, role=None, block=0, part=Part.LAYER)


def _priced(
    named_ops: Mapping[Any, Operator | Fused], accelerator: Accelerator, shape: tuple[int, ...]
) -> dict[Any, Latencies]:
    """Seconds of each operator, in the candidates' ``shape``. GEMMs are priced together, stacked in one column."""
    distinct: dict[tuple[str, ...], _Distinct] = {}
    latencies: dict[Any, Latencies] = {}
    for kind in (Gemm, Fused):
        if names := [name for name in named_ops if isinstance(name, tuple) and name[0] is kind]:
            column = _column([product for _, product in names])
            group = distinct.setdefault(_USES[kind], _Distinct(accelerator, _USES[kind], shape))
            seconds = product_time_s(column, group.candidates) + accelerator.operator_start_s
            latencies |= zip(names, group.spread(seconds), strict=True)
    for name, op in named_ops.items():
        if isinstance(name, str):
            latencies[name] = np.asarray(np.broadcast_to(_operator_time_s(op, accelerator), shape), np.float64)
        elif name not in latencies:
            uses = _USES[type(op)]
            group = distinct.get(uses) or distinct.setdefault(uses, _Distinct(accelerator, uses, shape))
            latencies[name] = group.spread(_operator_time_s(op, group.candidates))[0]
    return latencies


def _column(products: Sequence[Product]) -> Product:
    """All GEMMs as one with sizes of shape (products, 1)."""
    return Product(**{field.name: np.array([[getattr(p, field.name)] for p in products]) for field in fields(Product)})


class _Distinct:
    """The distinct combinations of the candidates' fields that an operator ``uses``."""

    def __init__(self, accelerator: Accelerator, uses: Iterable[str], shape: tuple[int, ...]) -> None:
        varying = [name for name in ARRAY_FIELDS if np.ndim(getattr(accelerator, name))]
        used = [name for name in varying if name in set(uses)]
        fixed = {name: np.asarray(getattr(accelerator, name)).flat[0].item() for name in varying if name not in used}
        self.shape, self.inverse = shape, np.zeros(shape, dtype=np.int64).reshape(-1)
        if used:
            columns = [np.broadcast_to(getattr(accelerator, name), self.shape).reshape(-1) for name in used]
            first, self.inverse = distinct_rows(columns)
            fixed |= {name: column[first] for name, column in zip(used, columns, strict=True)}
        self.candidates = replace(accelerator, **fixed) if fixed else accelerator

    def spread(self, seconds: Floats) -> Latencies:
        """Seconds of shape (operators, distinct candidates or 1), expanded to (operators, *candidates)."""
        rows: Latencies = np.atleast_2d(np.asarray(seconds, dtype=np.float64))
        rows = rows if rows.shape[1] > 1 else np.broadcast_to(rows, (len(rows), self.inverse.max(initial=0) + 1))
        return rows[:, self.inverse].reshape(len(rows), *self.shape)


def distinct_rows(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Positions of the first of each distinct row, and the index of every row's distinct row."""
    code = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + index, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return first, code


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
    floor, start_s = (
        _floor_of_work(op, accelerator),
        0.0 if isinstance(op, Collective) else accelerator.operator_start_s,
    )
    return replace(floor, least_s=floor.least_s + start_s) if start_s else floor


def _floor_of_work(op: Operator | Fused, a: Accelerator) -> OperatorFloor:
    """The floor without what starts the operator."""
    if isinstance(op, Gemm | GroupedGemm | Fused):
        product = _fused_product(op, a) if isinstance(op, Fused) else product_of(op, a)
        outputs = 1.0 * product.batch * product.m * product.n
        tensor, buffer = _product_floor(product, a)
        vector = _lanes(outputs * product.epilogue_cycles, a)
        return _floor(tensor, vector, buffer, product.least_bytes / np.asarray(a.streamed_bytes_per_s))
    if isinstance(op, Attention):
        pairs = [_product_floor(product, a) for product in attention_products(op, a)]
        tensor = sum((tensor_s for tensor_s, _ in pairs), np.asarray(0.0))
        alone = sum((np.maximum(*pair) for pair in pairs), np.asarray(0.0))
        vector = _lanes(softmax_cycles(op, a), a)
        through = sum((memory_s for _, memory_s in pairs), np.asarray(0.0))
        return _floor(tensor, vector, through, op.bytes_moved / np.asarray(a.streamed_bytes_per_s), alone)
    if isinstance(op, MemoryBound):
        work = vector_work(op, a)
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
        _of_product(alternative, accelerator.operator_start_s)
        for alternative in product_alternatives(product_of(op, accelerator), accelerator)
    )


def _cost(op: Gemm | GroupedGemm | Attention | MemoryBound, a: Accelerator) -> Cost:
    if isinstance(op, (Gemm, GroupedGemm)):
        return _of_product(product_cost(product_of(op, a), a), a.operator_start_s)
    if isinstance(op, Attention):
        attention = attention_cost(op, a)
        on_cores = np.maximum(attention.tensor_s, attention.vector_s)
        return _of_terms(on_cores, attention.memory_s, attention.time_s + a.operator_start_s)
    stream = vector_cost(op, a)
    on_cores = np.maximum(stream.compute_s, stream.buffer_s)
    return _of_terms(on_cores, stream.memory_s, stream.time_s + a.operator_start_s)


def _of_product(product: ProductCost, start_s: float) -> Cost:
    on_cores = np.maximum(np.maximum(product.compute_s, product.buffer_s), product.epilogue_s)
    details = {name: np.asarray(getattr(product, name)).astype(np.int64)[()] for name in COUNTS}
    details |= {name: getattr(product, name) for name in SHARES}
    return replace(_of_terms(on_cores, product.memory_s, product.time_s + start_s), details=details)


COUNTS = ("tile_m", "tile_n", "split_k", "waves")
SHARES = ("tile_efficiency", "wave_efficiency", "utilization")
"""With ``COUNTS``, the mapping details reported with a GEMM's cost."""


def _of_terms(on_cores_s: Floats, memory_s: Floats, time_s: Floats) -> Cost:
    rest_s = np.maximum(time_s - np.maximum(on_cores_s, memory_s), 0.0)
    return Cost(time_s=time_s, compute_s=on_cores_s, memory_s=memory_s, overhead_s=rest_s)
