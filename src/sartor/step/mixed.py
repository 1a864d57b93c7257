"""Pipelines over pools of different devices: stages fill the pools in order, and each runs at the speed of its pool.

The tensor, context and data ranks of a stage are adjacent, so a stage is in one pool if it fits. One that straddles
pools waits for the slowest device and the slowest links of them all, whichever pool they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.operators import DType
from sartor.step.mechanisms.mechanism import StageShare
from sartor.step.stage_seconds import PER_STAGE, StageExchange, StageSeconds, stage_exchange
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


def stretches_of(cluster: Cluster, dtype: DType) -> tuple[Cluster, ...]:
    """The pools, then for every first and last of several adjacent ones what a stage over all of them runs on."""
    pools = pools_of(cluster)
    return (*pools, *(_slowest(pools[a : b + 1], dtype) for a, b in combinations(range(len(pools)), 2)))


def _slowest(pools: Sequence[Cluster], dtype: DType) -> Cluster:
    """The slowest device of all pools, on the slowest links that join as many neighbours in any of them.

    It has no number of devices, by which it is told from a pool."""
    base = min(pools, key=lambda p: (peak_flops_per_s(p.gpu, dtype), p.gpu.hbm_bytes_per_s, p.name))
    node = min(pool.devices_per_node for pool in pools)
    tiers = list[LinkTier]()
    for span in sorted({tier.span for pool in pools for tier in pool.tiers}, key=lambda span: span or np.inf):
        inner = tiers[-1].span if tiers else 1
        if not span or (span % inner == 0 and max(span, node) % min(span, node) == 0):
            slowest = min((_joining(pool, span) for pool in pools), key=_rate)
            latency_s = max(_joining(pool, span).latency_s for pool in pools)
            tiers.append(replace(slowest, name=slowest.name if not span else f"{span}", span=span, latency_s=latency_s))
    tiers[0] = replace(tiers[0], rails=False)
    return replace(base, devices_per_node=node, tiers=tuple(tiers), num_devices=0)


def _joining(pool: Cluster, span: int) -> LinkTier:
    """The innermost links of a pool that join ``span`` devices; 0: all."""
    return next((tier for tier in pool.tiers if span and tier.span >= span), pool.tiers[-1])


def _rate(tier: LinkTier) -> tuple[float, float, str]:
    return tier.bytes_per_s / tier.oversubscription, -tier.latency_s, tier.kind


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


def pools_of_stages(pools: Sequence[Cluster], pp: int, devices_per_stage: int) -> IntArray:
    """Index into `stretches_of` of each of ``pp`` stages. Raises ``InputError`` if the pools have too few devices."""
    if len(pools) == 1:
        return np.zeros(pp, dtype=np.int64)
    ends = np.cumsum([pool.num_devices for pool in pools if pool.num_devices])
    if pp * devices_per_stage > ends[-1]:
        must = f"{pp} stages of {devices_per_stage} need {pp * devices_per_stage} devices"
        raise InputError("num_devices", int(ends[-1]), must, str(pp * devices_per_stage))
    first = np.arange(pp) * devices_per_stage
    starts, stops = (np.searchsorted(ends, x, side="right") for x in (first, first + devices_per_stage - 1))
    index = np.zeros((ends.size, ends.size), dtype=np.int64)
    index[np.diag_indices(ends.size)] = np.arange(ends.size)
    index[np.triu_indices(ends.size, 1)] = np.arange(ends.size, len(pools))
    where: IntArray = index[starts, stops]
    return where


def stage_seconds(tables: Sequence[PlanTables], rows: StageRows, work: dict[str, IntArray]) -> StageSeconds:
    """Seconds of distinct stages, each from the tables of its own pool."""
    if len(tables) == 1:
        return StageSeconds(tables[0], rows, work)
    return _MixedSeconds([StageSeconds(t, rows, work) for t in tables])


def exchange_of(tables: Sequence[PlanTables], rows: StageRows, structure: IntArray) -> StageExchange:
    """Gradient and parameter exchange of distinct stages, each within its own pool or stretch of them."""
    exchanges = [stage_exchange(t, rows, structure) for t in tables]
    if len(exchanges) == 1:
        return exchanges[0]
    by_pool = {name: _own([getattr(exchange, name) for exchange in exchanges], rows) for name in PER_STAGE}
    pools = [exchange for exchange, table in zip(exchanges, tables, strict=True) if table.cluster.num_devices]
    slowest = {
        name: np.maximum.reduce([getattr(exchange, name) for exchange in pools]) for name in ("norm_s", "tied_s")
    }
    return StageExchange(**by_pool, **slowest)


def _own(of_pools: Sequence[FloatArray], rows: StageRows) -> FloatArray:
    """For each row, the values of its pool."""
    stacked: FloatArray = np.stack(of_pools)[rows.pool, np.arange(rows.pool.size)]
    return stacked


class _MixedSeconds(StageSeconds):
    def __init__(self, of_pools: Sequence[StageSeconds]) -> None:
        first = of_pools[0]
        self.of_pools = of_pools
        self.t, self.rows, self.work, self.at, self.counts = first.t, first.rows, first.work, first.at, first.counts
        for name in ("wgrad_s", "forward_s", "backward_s"):
            setattr(self, name, _own([getattr(stages, name) for stages in of_pools], self.rows))
        self.shares = {name: self._share(name) for name in first.shares}

    def _share(self, name: str) -> StageShare:
        """A mechanism's share on each stage, from its pool."""
        shares = [stages.shares[name] for stages in self.of_pools]
        none = np.zeros_like(self.forward_s)
        return StageShare(
            **{f.name: _own([none + getattr(share, f.name) for share in shares], self.rows) for f in fields(StageShare)}
        )

    def block_part_s(self, name: str, slowest: npt.NDArray[np.intp]) -> FloatArray:
        return self._of_pool([stages.block_part_s(name, slowest) for stages in self.of_pools], slowest)

    def deviation_s(self, slowest: npt.NDArray[np.intp]) -> FloatArray:
        return self._of_pool([stages.deviation_s(slowest) for stages in self.of_pools], slowest)

    def _of_pool(self, of_pools: Sequence[FloatArray], slowest: npt.NDArray[np.intp]) -> FloatArray:
        """For each work row [W], the values of the slowest stage's pool."""
        return np.asarray(np.stack(of_pools)[self.rows.pool[slowest], np.arange(slowest.size)])

    def returned_s(self) -> FloatArray:
        return _own([pool.returned_s() for pool in self.of_pools], self.rows)

    def blocks_s(self) -> FloatArray:
        return np.concatenate([pool.blocks_s() for pool in self.of_pools])

    def evened_s(self, busy: FloatArray) -> Any:
        """Load per stage if work were divided ideally: each stage gets work in proportion to the speed of its pool."""
        alone = [stages.busy_s for stages in self.of_pools]
        faster = np.stack([(alone[0] / np.maximum(pool_s, 1e-30)).max(axis=0) for pool_s in alone])
        return self.rows.times @ alone[0] / (self.rows.times @ faster[self.rows.pool])
