"""Pipelines over pools of different devices: stages fill the pools in order, and each runs at the speed of its pool.

The tensor, context and data ranks of a stage are adjacent, so a stage is in one pool; one that straddles two pools runs
at the speed of the slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.peaks import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import TrainingJob
from sartor.operators import DType
from sartor.step.stage_exchange import PER_STAGE, StageExchange, stage_exchange
from sartor.step.stage_seconds import StageSeconds
from sartor.step.stages import StageRows
from sartor.step.tables import PlanTables
from sartor.units import FloatArray, IntArray


def pools_of(cluster: Cluster) -> tuple[Cluster, ...]:
    """Each pool as its own cluster. Raises ``InputError`` if one of several pools has no ``num_devices``."""
    if not cluster.others:
        return (cluster,)
    for pool in cluster.pools:
        if not pool.num_devices:
            raise InputError("num_devices", 0, f"pool {pool.name} of a mixed cluster must say how many devices it has")
    return tuple(replace(pool, others=()) for pool in cluster.pools)


def known_of(pool: Cluster, calibration: Calibration | None) -> Calibration | None:
    """The user's calibration if it is for the pool's device, else None."""
    return calibration if calibration is not None and calibration.gpu == pool.gpu.name else None


def devices_of_pools(pools: Sequence[Cluster], num_devices: int) -> list[int]:
    """How many of ``num_devices`` are in each pool, filled in order."""
    if len(pools) == 1:
        return [num_devices]
    ends = np.minimum(np.cumsum([pool.num_devices for pool in pools]), num_devices)
    taken: list[int] = np.diff(ends, prepend=0).tolist()
    return taken


def mean_peak_flops_per_s(pools: Sequence[Cluster], dtype: DType, num_devices: int) -> float:
    """Mean dense peak per device over the devices used."""
    counts = devices_of_pools(pools, num_devices)
    return sum(peak_flops_per_s(p.gpu, dtype) * n for p, n in zip(pools, counts, strict=True)) / sum(counts)


def pools_of_stages(pools: Sequence[Cluster], job: TrainingJob, pp: int, devices_per_stage: int) -> IntArray:
    """Index of the pool of each of ``pp`` stages. Raises ``InputError`` if the pools have too few devices."""
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


def stage_seconds(tables: Sequence[PlanTables], rows: StageRows, work: dict[str, IntArray]) -> StageSeconds:
    """Seconds of distinct stages, each from the tables of its own pool."""
    if len(tables) == 1:
        return StageSeconds(tables[0], rows, work)
    return _MixedSeconds([StageSeconds(t, rows, work) for t in tables])


def exchange_of(tables: Sequence[PlanTables], rows: StageRows, structure: IntArray) -> StageExchange:
    """Gradient and parameter exchange of distinct stages, each within its own pool."""
    found = [stage_exchange(t, rows, structure) for t in tables]
    if len(found) == 1:
        return found[0]
    own = {name: _own([getattr(each, name) for each in found], rows) for name in PER_STAGE}
    slowest = {name: np.maximum.reduce([getattr(each, name) for each in found]) for name in ("norm_s", "tied_s")}
    return StageExchange(**own, **slowest)


def _own(of_pools: Sequence[FloatArray], rows: StageRows) -> FloatArray:
    """For each row, the values of its pool."""
    stacked: FloatArray = np.stack(of_pools)[rows.pool, np.arange(rows.pool.size)]
    return stacked


_ARRAYS = ("wgrad_s", "forward_s", "backward_s", "layerwise_s", "regathered_s", "offload_s", "gather_s", "scatter_s")


class _MixedSeconds(StageSeconds):
    def __init__(self, of_pools: Sequence[StageSeconds]) -> None:
        first = of_pools[0]
        self.of_pools = of_pools
        self.t, self.rows, self.work, self.at, self.counts = first.t, first.rows, first.work, first.at, first.counts
        for name in _ARRAYS:
            setattr(self, name, _own([getattr(each, name) for each in of_pools], self.rows))

    def of_slowest(self, name: str, slowest: npt.NDArray[np.intp]) -> FloatArray:
        found = np.stack([each.of_slowest(name, slowest) for each in self.of_pools])
        return np.asarray(found[self.rows.pool[slowest], np.arange(slowest.size)])

    def returned_s(self) -> FloatArray:
        return _own([each.returned_s() for each in self.of_pools], self.rows)

    def blocks_s(self) -> FloatArray:
        return np.concatenate([each.blocks_s() for each in self.of_pools])

    def evened_s(self, busy: FloatArray) -> Any:
        """Load per stage if work were divided ideally: each stage gets work in proportion to the speed of its pool."""
        alone = [s.forward_s + s.backward_s + s.wgrad_s for s in self.of_pools]
        faster = np.stack([(alone[0] / np.maximum(each, 1e-30)).max(axis=0) for each in alone])
        return self.rows.times @ alone[0] / (self.rows.times @ faster[self.rows.pool])
