"""Several graphs priced in one pass: operators of one kind from all graphs become one array-valued operator.

Graphs that differ in one size each (a sweep of every field, the fixes of every rule) share most operators, and a shared
operator is priced once. An entry of an array equals the scalar call to the last bit, so the times are those of
``price``, graph by graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.cost import Cost
from sartor.cost.price import Estimate, operator_costs, total_s
from sartor.hardware.gpu import Gpu
from sartor.operators import PLACE, Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator, OperatorGraph
from sartor.units import shaped

Key: TypeAlias = tuple[Any, ...]


def price_all(
    graphs: Sequence[OperatorGraph],
    gpu: Gpu,
    calibration: Calibration | None = None,
    *,
    sigma_factor: float = 1.0,
) -> list[Estimate]:
    """Each graph's estimate: total and, per operator, time [s] and its spread; terms and tiles are left out.

    Sizes may be arrays, with a different length in every graph. Arguments as in ``price``.
    """
    rows = [[_key(op) for op in graph.operators] for graph in graphs]
    distinct = {
        key: op for row, graph in zip(rows, graphs, strict=True) for key, op in zip(row, graph.operators, strict=True)
    }
    costs = _priced(distinct, gpu, calibration, sigma_factor)
    totals = []
    for graph, row in zip(graphs, rows, strict=True):
        row_costs = tuple(costs[key] for key in row)
        time_s = total_s(graph.operators, row_costs)
        totals.append(Estimate(graph=graph, device=gpu, costs=row_costs, time_s=time_s, sigma_factor=sigma_factor))
    return totals


def _priced(
    distinct: dict[Key, Operator], gpu: Gpu, calibration: Calibration | None, sigma_factor: float
) -> dict[Key, Cost]:
    groups: dict[Key, dict[Key, Operator]] = {}
    for key, op in distinct.items():
        groups.setdefault((type(op), *(getattr(op, name) for name in _NAMES[type(op)].words)), {})[key] = op
    shapes = {key: np.broadcast_shapes(*map(np.shape, _sizes(op))) for key, op in distinct.items()}
    joined = [_joined(list(group.values()), [shapes[key] for key in group]) for group in groups.values()]
    whole = operator_costs(joined, gpu, calibration, details=False, sigma_factor=sigma_factor)
    costs: dict[Key, Cost] = {}
    for group, cost in zip(groups.values(), whole, strict=True):
        costs |= _parted(cost, {key: shapes[key] for key in group})
    return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Fields of an operator that its cost depends on: numbers (possibly arrays), and the rest."""

    sizes: tuple[str, ...]
    words: tuple[str, ...]


def _names(kind: type) -> _Names:
    used = [field for field in fields(kind) if field.name not in PLACE]
    sizes = tuple(field.name for field in used if field.type in ("Ints", "Floats"))
    return _Names(sizes=sizes, words=tuple(field.name for field in used if field.name not in sizes))


_NAMES: dict[type, _Names] = {kind: _names(kind) for kind in (Gemm, GroupedGemm, Attention, MemoryBound, Collective)}


def _sizes(op: Operator) -> list[Any]:
    return [getattr(op, name) for name in _NAMES[type(op)].sizes]


def _key(op: Operator) -> Key:
    """A key that is equal for operators of equal cost; arrays are compared by identity."""
    words = (getattr(op, name) for name in _NAMES[type(op)].words)
    return (type(op), *words, *(id(v) if isinstance(v, np.ndarray) else v for v in _sizes(op)))


def _joined(operators: Sequence[Operator], shapes: Sequence[tuple[int, ...]]) -> Operator:
    """Operators that differ only in sizes as one, with flat arrays as sizes (numbers if equal in all)."""
    if len(operators) == 1:
        return operators[0]
    changed: dict[str, Any] = {}
    for name in _NAMES[type(operators[0])].sizes:
        values = [getattr(op, name) for op in operators]
        if any(isinstance(v, np.ndarray) for v in values) or len(set(values)) > 1:
            changed[name] = np.concatenate(
                [np.broadcast_to(v, shape).reshape(-1) for v, shape in zip(values, shapes, strict=True)]
            )
    return replace(operators[0], **changed)


def _parted(cost: Cost, shapes: dict[Key, tuple[int, ...]]) -> dict[Key, Cost]:
    """Each operator's own time and spread, split from the joined cost."""
    if len(shapes) == 1:
        return {key: Cost(time_s=cost.time_s, log_sigma=cost.log_sigma, source=cost.source) for key in shapes}
    stops = np.cumsum([int(np.prod(shape)) for shape in shapes.values()]).tolist()
    time_s, sigma = (np.broadcast_to(array, (stops[-1],)) for array in (cost.time_s, cost.log_sigma))
    costs, start = {}, 0
    for (key, shape), stop in zip(shapes.items(), stops, strict=True):
        terms = (shaped(array[start:stop], shape) for array in (time_s, sigma))
        costs[key] = Cost(**dict(zip(("time_s", "log_sigma"), terms, strict=True)), source=cost.source)
        start = stop
    return costs
