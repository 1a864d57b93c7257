"""Latency of any operator on the accelerator: on one core, and split over all of them.

The two numbers are what an operator schedule chooses between (``sartor.schedules``): l on one tensor core, one vector
core or one of each, and q on all cores while nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sartor.cost.chip.fused_attention import attention_cost
from sartor.cost.chip.systolic import Product, product_of, product_time_s
from sartor.cost.chip.vector_core import vector_cost, vector_work
from sartor.cost.collective.ring import link_time_s
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator, OperatorGraph, Part
from sartor.units import Floats

Latencies = npt.NDArray[np.float64]
AnyOperator = TypeVar("AnyOperator", bound=Operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """A product and the streaming operator that follows it, as one: the lanes work on tiles as the arrays finish them,
    and the product's result is not read back."""

    product: Gemm
    epilogue: MemoryBound

    @property
    def name(self) -> str:
        return f"{self.product.name}+{self.epilogue.name}"


_MEMORY = ("clock_hz", "num_stacks", "stack_bytes_per_s", "global_buffer_bytes", "bank_bytes_per_cycle")
_TENSOR = ("num_tensor_cores", "array_rows", "array_cols", "tensor_core_sram_bytes")
_VECTOR = ("num_vector_cores", "vector_lanes", "vector_core_sram_bytes")
_SCALE_OUT = ("scale_up_devices", "scale_out_bytes_per_s", "scale_out_latency_s")
_LINKS = ("num_links", "link_bytes_per_s", "link_latency_s", *_SCALE_OUT)
_USES: dict[type, tuple[str, ...]] = {
    Gemm: (*_TENSOR, *_MEMORY),
    GroupedGemm: (*_TENSOR, *_MEMORY),
    Attention: (*_TENSOR, *_VECTOR, *_MEMORY),
    MemoryBound: (*_VECTOR, *_MEMORY),
    Collective: _LINKS,
    Fused: (*_TENSOR, *_VECTOR, *_MEMORY),
}
"""Fields an operator's time depends on: candidates that agree in them are priced once."""


def operator_time_s(op: Operator | Fused, accelerator: Accelerator) -> Floats:
    """Time of one execution on all cores [s]; shapes broadcast. Collectives run on the links."""
    if isinstance(op, Fused):
        return product_time_s(fused_product(op, accelerator), accelerator)
    if isinstance(op, Gemm | GroupedGemm):
        return product_time_s(product_of(op, accelerator), accelerator)
    if isinstance(op, Attention):
        return attention_cost(op, accelerator).time_s
    if isinstance(op, MemoryBound):
        return vector_cost(op, accelerator).time_s
    return link_time_s(op, accelerator)


def fused_product(op: Fused, accelerator: Accelerator) -> Product:
    """The product with its epilogue per element of C: lane cycles, and what the streaming operator moves through memory
    besides reading C."""
    plain, work = product_of(op.product, accelerator), vector_work(op.epilogue)
    outputs = 1.0 * plain.batch * plain.m * plain.n
    elements = 1.0 * op.epilogue.rows * op.epilogue.cols
    read_back = op.epilogue.dtype.bytes * outputs
    return replace(
        plain,
        epilogue_cycles=(elements * work.per_element + op.epilogue.flops * work.per_flop) / outputs,
        epilogue_bytes=np.maximum(op.epilogue.bytes_moved - read_back, 0.0) / outputs,
    )


def one_core(accelerator: Accelerator) -> Accelerator:
    """The accelerator as one tensor core and one vector core see it: all of the global buffer, memory and links."""
    return replace(accelerator, num_tensor_cores=1, num_vector_cores=1)


def operator_latencies(
    operators: OperatorGraph | Sequence[Operator | Fused], accelerator: Accelerator
) -> tuple[Latencies, Latencies]:
    """``(one_core_s, all_cores_s)``, each of shape (operators, *candidates) [s]; ``count`` is not applied.

    Candidates are the accelerator's arrays. Equal operators are priced once, and candidates that differ only in what an
    operator does not use share its price, so a grid of thousands of candidates costs as much as its distinct
    tensor-core and vector-core configurations. Sizes of an operator may be arrays over the candidates; then each is
    priced.
    """
    ops = operators.operators if isinstance(operators, OperatorGraph) else tuple(operators)
    known: dict[Any, tuple[Latencies, Latencies]] = {}
    pairs = []
    for op in ops:
        each = _priced_each if has_arrays(op) else _over_distinct
        key = op.name if has_arrays(op) else _anonymous(op)
        if key not in known:
            known[key] = each(op, one_core(accelerator), accelerator.shape), each(op, accelerator, accelerator.shape)
        pairs.append(known[key])
    empty = np.zeros((0, *accelerator.shape))
    single, together = (np.stack([pair[i] for pair in pairs]) if pairs else empty for i in (0, 1))
    return single, together


def _anonymous(op: Operator | Fused) -> Operator | Fused:
    """What the price depends on: everything but the count and what the operator is in its model."""
    return Fused(product=_bare(op.product), epilogue=_bare(op.epilogue)) if isinstance(op, Fused) else _bare(op)


def _bare(op: AnyOperator) -> AnyOperator:
    return replace(op, name="", count=1, role=None, block=0, part=Part.LAYER)


def has_arrays(op: Operator | Fused) -> bool:
    """Whether some size differs between candidates."""
    if isinstance(op, Fused):
        return has_arrays(op.product) or has_arrays(op.epilogue)
    return any(isinstance(getattr(op, each.name), np.ndarray) for each in fields(op))


def _priced_each(op: Operator | Fused, accelerator: Accelerator, shape: tuple[int, ...]) -> Latencies:
    return np.asarray(np.broadcast_to(operator_time_s(op, accelerator), shape), dtype=np.float64)


def _over_distinct(op: Operator | Fused, accelerator: Accelerator, shape: tuple[int, ...]) -> Latencies:
    return over_distinct(accelerator, _USES[type(op)], shape, lambda small: operator_time_s(op, small))


def over_distinct(
    accelerator: Accelerator,
    uses: Iterable[str],
    shape: tuple[int, ...],
    price: Callable[[Accelerator], Floats],
) -> Latencies:
    """``price`` of every candidate, computed once per distinct combination of the fields it ``uses``."""
    varying = [name for name in ARRAY_FIELDS if np.ndim(getattr(accelerator, name))]
    used = [name for name in varying if name in set(uses)]
    fixed = {name: np.asarray(getattr(accelerator, name)).flat[0].item() for name in varying if name not in used}
    if not used:
        return np.broadcast_to(np.asarray(price(replace(accelerator, **fixed)), dtype=np.float64), shape)
    columns = [np.broadcast_to(getattr(accelerator, name), shape).reshape(-1) for name in used]
    first, inverse = _distinct_rows(columns)
    small = replace(accelerator, **fixed, **{name: c[first] for name, c in zip(used, columns, strict=True)})
    priced: Latencies = np.asarray(price(small), dtype=np.float64)
    spread: Latencies = priced[inverse].reshape(shape)
    return spread


def _distinct_rows(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Positions of the first of each distinct row, and for every row the number of its kind."""
    code = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + index, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return first, code
