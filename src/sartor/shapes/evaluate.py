"""Times of many shapes at once, by the same ``lower`` and ``price`` as for one shape, and a sweep of one field.

The grid of a space is lowered once, as open axes: an operator that depends on hidden size and feed-forward width is
priced on those two axes only. Operators on the same axes are priced and summed together, and each sum is looked up at
the points. An operator whose own axes have more combinations than there are points is priced at the points instead.
This module has no cost formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, price, price_all
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.model.counts import count_params
from sartor.model.editing import EDITABLE, edit
from sartor.model.lower import feasible, lower
from sartor.model.lower.setting import Kernels
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import Operator, OperatorGraph
from sartor.shapes.space import Points, is_coupled
from sartor.step.coefficients import InRun
from sartor.units import FloatArray

Trained = Callable[[TransformerShape], TransformerShape]
"""A shape as its trainer pads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """How to price a shape: its split over devices, and the calibration of each device by name (default: looked up)."""

    dims: ParallelDims
    calibrations: Mapping[str, Calibration]
    sigma_factor: float = 1.0
    """Widens intervals: a configuration read with assumptions."""
    runs: Mapping[str, InRun] = field(default_factory=dict)
    """GPU name -> the run that trains the baseline there; without it, times are of a microbatch only."""

    kernels: Kernels | None = None
    """Of the engine that runs inference."""

    def graph(self, workload: Workload) -> OperatorGraph:
        """The operators of a workload whose shape may hold arrays."""
        kernels = next((run.kernels for run in self.runs.values()), None)
        return lower(workload, self.dims, kernels if workload.phase is Phase.TRAIN else self.kernels)

    def price(self, graph: OperatorGraph, gpu: Gpu, phase: Phase) -> Estimate:
        """Times and intervals of a graph on a device; of training, as the run counts them (``InRun.in_step``)."""
        run = self.runs.get(gpu.name) if phase is Phase.TRAIN else None
        calibration = run.calibration if run else self.calibrations.get(gpu.name)
        cost = price(graph, gpu, calibration, details=False, sigma_factor=self.sigma_factor)
        return run.in_step(cost) if run else cost

    def one(self, workload: Workload, gpu: Gpu) -> Estimate:
        """A single shape, without the grid."""
        return self.price(self.graph(workload), gpu, workload.phase)

    def times(self, points: Points, workload: Workload, gpus: tuple[Gpu, ...]) -> tuple[FloatArray, ...]:
        """Predicted seconds of ``workload`` with the shape of every point [N], on every device."""
        space = points.space
        graph = self.graph(replace(workload, shape=space.edited(space.grid())))
        groups, at_points = _grouped(graph, points)
        return tuple(self._sum(groups, at_points, points, gpu, workload.phase) for gpu in gpus)

    def flops(self, points: Points, workload: Workload) -> FloatArray:
        """FLOPs in matrix multiplications of ``workload`` with the shape of every point [N]."""
        space = points.space
        groups, at_points = _grouped(self.graph(replace(workload, shape=space.edited(space.grid()))), points)
        total = np.zeros(points.size)
        for operators in groups.values():
            total += look_up(OperatorGraph(operators=tuple(operators)).matmul_flops, points.index)
        total += OperatorGraph(operators=tuple(at_points)).matmul_flops
        return total

    def _sum(
        self,
        groups: dict[tuple[int, ...], list[Operator]],
        at_points: list[Operator],
        points: Points,
        gpu: Gpu,
        phase: Phase,
    ) -> FloatArray:
        total = np.zeros(points.size)
        for operators in groups.values():
            grid = self.price(OperatorGraph(operators=tuple(operators)), gpu, phase).time_s
            total += look_up(grid, points.index)
        if at_points:
            total += self.price(OperatorGraph(operators=tuple(at_points)), gpu, phase).time_s
        return total


def _grouped(graph: OperatorGraph, points: Points) -> tuple[dict[tuple[int, ...], list[Operator]], list[Operator]]:
    """Operators grouped by the axes of their sizes and counts; those with more combinations than points separately."""
    groups: dict[tuple[int, ...], list[Operator]] = {}
    at_points: list[Operator] = []
    for op in graph.operators:
        shape = np.broadcast_shapes(*(np.shape(getattr(op, attribute.name)) for attribute in fields(op)))
        if np.prod(shape, dtype=np.float64) > max(points.size, 1):
            at_points.append(_map_sizes(op, lambda size: look_up(size, points.index)))
        else:
            groups.setdefault(shape, []).append(op)
    return groups, at_points


def _map_sizes(op: Operator, change: Callable[[Any], Any]) -> Operator:
    """The operator with every array among its fields replaced."""
    values = {attribute.name: getattr(op, attribute.name) for attribute in fields(op)}
    return replace(op, **{name: change(v) for name, v in values.items() if isinstance(v, np.ndarray)})


def look_up(grid: Any, index: tuple[npt.NDArray[np.int64], ...]) -> Any:
    """Values [N] of an array over the open grid's axes (length 1 where it is constant) at positions [N]."""
    if np.ndim(grid) == 0:
        return grid
    assert np.ndim(grid) == len(index), "an array over the grid has one axis for each of the space's"
    return grid[tuple(i if n > 1 else 0 for i, n in zip(index, np.shape(grid), strict=True))]


WORKLOAD_FIELDS = ("microbatch_size", "seq_len", "context_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Arrays [values]: seconds by GPU (infinite for invalid values), parameters and GEMM FLOPs."""

    field: str
    baseline: int
    values: npt.NDArray[np.int64]
    time_s: Mapping[str, npt.NDArray[np.float64]]
    num_params: npt.NDArray[np.int64]
    matmul_flops: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A sweep lowered but not priced: its operators over all values, and which values are valid."""

    field: str
    baseline: int
    values: npt.NDArray[np.int64]
    possible: npt.NDArray[np.bool_]
    workload: Workload
    graph: OperatorGraph


def sweep(
    workload: Workload,
    gpus: Sequence[Gpu],
    dims: ParallelDims | None = None,
    *,
    field: str,
    values: Sequence[int] | npt.NDArray[np.int64],
    calibrations: Mapping[str, Calibration] | None = None,
    kernels: Kernels | None = None,
    trained: Trained | None = None,
) -> Sweep:
    """Times of a workload for every one of ``values`` of one field of its shape, or of the workload itself.

    Derived sizes follow: if heads x head_dim is the hidden size, it stays so (the head dimension adapts, and values
    without a valid one are infeasible); key/value heads of a multi-head model stay equal to its heads. ``trained`` says
    how a trainer pads a shape. Raises ``InputError`` for an unknown field.
    """
    laid = lay(workload, dims, field=field, values=values, kernels=kernels, trained=trained)
    return price_sweeps([laid], gpus, calibrations)[0]


def lay(
    workload: Workload,
    dims: ParallelDims | None = None,
    *,
    field: str,
    values: Sequence[int] | npt.NDArray[np.int64],
    kernels: Kernels | None = None,
    trained: Trained | None = None,
) -> Laid:
    """A sweep before pricing; arguments as in ``sweep``. Raises ``InputError``."""
    numbers = np.asarray(values, dtype=np.int64)
    if numbers.ndim != 1 or not len(numbers) or numbers.min() < 1:
        raise InputError("values", values, "must be a list of positive integers")
    split = dims or ParallelDims()
    varied, possible, baseline = _varied(workload, field, numbers)
    priced = replace(varied, shape=trained(varied.shape)) if trained else varied
    return Laid(
        field=field,
        baseline=baseline,
        values=numbers,
        possible=possible & np.asarray(feasible(priced.shape, split)),
        workload=varied,
        graph=lower(priced, split, kernels),
    )


def price_sweeps(
    laid: Sequence[Laid], gpus: Sequence[Gpu], calibrations: Mapping[str, Calibration] | None = None
) -> list[Sweep]:
    """Sweeps with their times: all of them in one pass through the cost model for each device."""
    by_gpu = calibrations or {}
    costs = {gpu.name: price_all([laid_sweep.graph for laid_sweep in laid], gpu, by_gpu.get(gpu.name)) for gpu in gpus}
    return [
        _sweep(laid_sweep, {name: answers[i].time_s for name, answers in costs.items()})
        for i, laid_sweep in enumerate(laid)
    ]


def _sweep(laid: Laid, time_s: JsonMap) -> Sweep:
    def whole(value: object) -> Any:
        return np.broadcast_to(np.asarray(value), laid.values.shape)

    return Sweep(
        field=laid.field,
        baseline=laid.baseline,
        values=laid.values,
        time_s={name: np.where(laid.possible, seconds, np.inf) for name, seconds in time_s.items()},
        num_params=whole(count_params(laid.workload.shape).total),
        matmul_flops=whole(laid.graph.matmul_flops),
        tokens=whole(laid.workload.tokens),
    )


def _varied(
    workload: Workload, field: str, values: npt.NDArray[np.int64]
) -> tuple[Workload, npt.NDArray[np.bool_], int]:
    """The workload over all values, which of them are valid, and its current value."""
    everywhere = np.ones(len(values), dtype=np.bool_)
    if field == "microbatch_size":
        return replace(workload, microbatch_size=values), everywhere, int(np.max(workload.microbatch_size))
    if field == "seq_len":
        return replace(workload, seq_len=values), everywhere, int(np.max(workload.seq_len))
    if field == "context_len":
        return replace(workload, context_len=values), everywhere, int(np.max(workload.context_len))
    fields = {name: int(value) for name, value in workload.shape.fields().items()}
    if field not in fields:
        names = [name for name in EDITABLE if name in fields]
        raise InputError("field", field, "is not a size of this model", ", ".join([*names, *WORKLOAD_FIELDS]))
    edited = _followed(fields, field, values)
    possible = everywhere & _heads_fit(fields, {**fields, **edited}) if "num_heads" in fields else everywhere
    return replace(workload, shape=edit(workload.shape, **edited)), possible, fields[field]


def _followed(fields: Mapping[str, int], field: str, values: npt.NDArray[np.int64]) -> JsonDict:
    """Values of the field and of the fields derived from it."""
    edited: JsonDict = {field: values}
    if "num_heads" not in fields:
        return edited
    if field == "num_heads" and fields["num_heads"] == fields["num_kv_heads"]:
        edited["num_kv_heads"] = values
    if field in ("num_heads", "hidden_size") and is_coupled(fields):
        sizes: JsonDict = {**fields, **edited}
        edited["head_dim"] = np.maximum(sizes["hidden_size"] // sizes["num_heads"], 1) * np.ones_like(values)
    return edited


def _heads_fit(fields: Mapping[str, int], sizes: JsonMap) -> npt.NDArray[np.bool_]:
    """Whole groups of heads, and heads that fill the hidden size if the baseline's do."""
    fits = np.equal(np.asarray(sizes["num_heads"]) % sizes["num_kv_heads"], 0)
    if is_coupled(fields) and (np.ndim(sizes["hidden_size"]) or np.ndim(sizes["num_heads"])):
        fits = fits & is_coupled(sizes)
    return np.asarray(fits)
