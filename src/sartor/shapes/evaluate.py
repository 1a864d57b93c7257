"""Times of many shapes at once, by the same ``lower`` and ``price`` as for one shape.

The grid of a space is lowered once, as open axes: an operator that depends on hidden size and feed-forward width is
priced on those two axes only. Operators on the same axes are priced and summed together, and each sum is looked up at
the points. An operator whose own axes have more combinations than there are points is priced at the points instead.
This module has no cost formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, price
from sartor.hardware.gpu import Gpu
from sartor.model.lower import lower
from sartor.model.lower.setting import Kernels
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import Operator, OperatorGraph
from sartor.shapes.space import Points
from sartor.step.running import InRun
from sartor.units import FloatArray


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
