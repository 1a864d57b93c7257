"""Pipelines over pools of different devices: stages fill the pools in order, each runs at its own pool's pace.

Tensor, context and data ranks of a stage stand side by side, so a stage lies in one pool; one that straddles two runs
at the pace of the slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.peaks import peak_flops_per_s
from sartor.model.training import TrainingJob
from sartor.operators import DType
from sartor.step.stage_seconds import StageSeconds
from sartor.step.stages import StageRows
from sartor.step.tables import PlanTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def pools_of(cluster: Cluster) -> tuple[Cluster, ...]:
    """Each pool as a cluster of its own. ``InputError`` where one of several does not say how many devices it has."""
    if not cluster.others:
        return (cluster,)
    for pool in cluster.pools:
        if not pool.num_devices:
            raise InputError("num_devices", 0, f"pool {pool.name} of a mixed cluster must say how many devices it has")
    return tuple(replace(pool, others=()) for pool in cluster.pools)


def known_of(pool: Cluster, calibration: Calibration | None) -> Calibration | None:
    """A calibration of one's own where it is of the pool's device."""
    return calibration if calibration is not None and calibration.gpu == pool.gpu.name else None


def devices_of_pools(pools: Sequence[Cluster], num_devices: int) -> list[int]:
    """How many of ``num_devices`` stand in each pool, filled in order."""
    if len(pools) == 1:
        return [num_devices]
    ends = np.minimum(np.cumsum([pool.num_devices for pool in pools]), num_devices)
    taken: list[int] = np.diff(ends, prepend=0).tolist()
    return taken


def mean_peak_flops_per_s(pools: Sequence[Cluster], dtype: DType, num_devices: int) -> float:
    """Dense peak of a device, over the devices of all pools that are used."""
    counts = devices_of_pools(pools, num_devices)
    return sum(peak_flops_per_s(p.gpu, dtype) * n for p, n in zip(pools, counts, strict=True)) / sum(counts)


def pools_of_stages(pools: Sequence[Cluster], job: TrainingJob, pp: int, devices_per_stage: int) -> IntArray:
    """Which pool each of ``pp`` stages stands in. ``InputError`` where the pools have too few devices."""
    if len(pools) == 1:
        return np.zeros(pp, dtype=np.int64)
    ends = np.cumsum([pool.num_devices for pool in pools])
    if pp * devices_per_stage > ends[-1]:
        must = f"{pp} stages of {devices_per_stage} need {pp * devices_per_stage} devices"
        raise InputError("num_devices", int(ends[-1]), must, str(pp * devices_per_stage))
    first = np.arange(pp) * devices_per_stage
    starts, stops = (np.searchsorted(ends, x, side="right") for x in (first, first + devices_per_stage - 1))
    pace = [peak_flops_per_s(pool.gpu, job.recipe.dtype) for pool in pools]
    slowest = [min(range(a, b + 1), key=pace.__getitem__) for a, b in zip(starts, stops, strict=True)]
    return np.array(slowest, dtype=np.int64)


def stage_seconds(
    tables: Sequence[PlanTables], rows: StageRows, p: dict[str, IntArray], where: IntArray
) -> StageSeconds:
    """Seconds of distinct stages, each from the tables of its own pool."""
    if len(tables) == 1:
        return StageSeconds(tables[0], rows, p, where)
    return _MixedSeconds([StageSeconds(t, rows, p, where) for t in tables])


_ARRAYS = (
    "tp_s",
    "ep_s",
    "cp_s",
    "host_s",
    "deviation_s",
    "wgrad_s",
    "forward_s",
    "backward_s",
    "layerwise_s",
)


class _MixedSeconds(StageSeconds):
    """Rows taken from the pools they stand in."""

    def __init__(self, of_pools: Sequence[StageSeconds]) -> None:
        first = of_pools[0]
        self.of_pools = of_pools
        self.t, self.rows, self.p, self.at, self.counts = first.t, first.rows, first.p, first.at, first.counts
        for name in _ARRAYS:
            setattr(self, name, self._own([getattr(s, name) for s in of_pools]))

    def _own(self, values: Sequence[Any]) -> FloatArray:
        shape = self.of_pools[0].forward_s.shape
        stacked = np.stack([np.broadcast_to(value, shape) for value in values])
        own: FloatArray = stacked[self.rows.pool, np.arange(shape[0])]
        return own

    def blocks_s(self) -> FloatArray:
        return np.concatenate([each.blocks_s() for each in self.of_pools])

    def evened_s(self, busy: FloatArray) -> Any:
        """All work at the first pool's pace, over stages that each do as much more of it as their pool is faster."""
        alone = [s.forward_s + s.backward_s + s.wgrad_s for s in self.of_pools]
        faster = np.stack([(alone[0] / np.maximum(each, 1e-30)).max(axis=0) for each in alone])
        return self.rows.times @ alone[0] / (self.rows.times @ faster[self.rows.pool])

    def reduced_s(self) -> Any:
        return self._own([s.reduced_s() for s in self.of_pools])

    def first_reduced_s(self) -> Any:
        return np.maximum.reduce([np.asarray(s.first_reduced_s()) for s in self.of_pools])

    def gathered_s(self) -> Any:
        return self._own([s.gathered_s() for s in self.of_pools])

    def earlier_s(self) -> Any:
        return np.maximum.reduce([np.asarray(s.earlier_s()) for s in self.of_pools])

    def tied_s(self) -> Any:
        return np.maximum.reduce([np.asarray(s.tied_s()) for s in self.of_pools])

    def updates_s(self) -> FloatArray:
        return self._own([s.updates_s() for s in self.of_pools])

    def optimizer_s(self) -> Any:
        norm = np.maximum.reduce([s.norm_s for s in self.of_pools]) if self.t.job.trains_weights else 0.0
        return self.updates_s().max(axis=0) + norm
