"""The pipelines of a case: its kinds of stages, and their cost by position.

A stage's cost depends on the link tiers its tensors cross, and so on the devices behind it. These follow from the
counts of stages that run after it, which the recurrence tracks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from math import inf

import numpy as np

from sartor.placement.case import Case
from sartor.placement.dynamic_programming import Counts, Kind, less_one
from sartor.placement.pipeline import slots
from sartor.placement.problem import PlacementProblem
from sartor.placement.terms import DeviceType, Network
from sartor.units import Array, ceil_div, distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePipeline:
    """Pipelines of a case with fixed kinds of stages.

    ``kinds(limit, ceiling)`` admits stages with a resync up to ``limit`` and a time up to ``ceiling``.
    ``rounds(counts)`` is the number of bottlenecks per batch; infinite for counts that do not make a whole pipeline.
    """

    kinds: Callable[[float, float], list[Kind]]
    types: tuple[DeviceType, ...]
    rounds: Callable[[Counts], float]
    least_rounds: int
    max_stages: int
    max_devices: int


def pipelines(case: Case, problem: PlacementProblem, types: tuple[DeviceType, ...]) -> Iterator[CasePipeline]:
    num_layers, copies = len(case.tables.states.order), case.copies
    per_copy = ceil_div(problem.num_microbatches, copies)
    if case.virtual_stages == 1:
        for order in permutations(types):
            yield _one_chunk_each(case, order, lambda counts: slots(problem.num_microbatches, copies, sum(counts)))
        return
    v, a, device = case.virtual_stages, case.tables.group_devices, types[0]
    for num_stages in range(2, min(num_layers // v, device.num_devices // (a * copies)) + 1):
        if per_copy % num_stages == 0:
            yield _interleaved(case, device, num_stages, float(v * per_copy + num_stages - 1))


class _Masked:
    """Stage times with infeasible stages masked out; tables are cached by their inputs."""

    def __init__(self, case: Case, limit: float, ceiling: float) -> None:
        self.case, self.limit, self.ceiling = case, limit, ceiling
        self._fits: dict[str, tuple[Array, Array]] = {}
        self._tables: dict[tuple[object, ...], Array] = {}

    def table(self, device: DeviceType, tiers: tuple[int, int], in_flight: int, split: bool | None) -> Array | None:
        if device.name not in self._fits:
            fits = self.case.microbatches_that_fit(device.memory_bytes)
            fits = np.where(self.case.resync_s <= self.limit, fits, 0)
            self._fits[device.name] = fits, distinct(fits)
        fits, limits = self._fits[device.name]
        level = int(np.searchsorted(limits, in_flight))
        if level == len(limits):
            return None
        key = device.name, tiers, level, split
        if key not in self._tables:
            allowed = fits >= limits[level]
            if split is not None:
                allowed &= self.case.tables.sums.is_split == split
            loads = self.case.loads(device, *tiers)
            self._tables[key] = np.where(allowed & (loads <= self.ceiling), loads, inf)
        return self._tables[key]


@dataclass(frozen=True, slots=True)
class _Role:
    """A kind of stage: its device type (position in the order), split or not (None: no distinction), and whether the
    stage before it is on another type."""

    pool: int
    split: bool | None
    enters: bool
    devices: int


def _one_chunk_each(case: Case, order: tuple[DeviceType, ...], rounds: Callable[[Counts], float]) -> CasePipeline:
    """Stages on device types in this order, counted from the end."""
    tables, network = case.tables, case.tables.network
    splits = [(True, tables.width.devices), (False, 1)] if tables.has_unsplit else [(None, tables.group_devices)]
    roles = [
        _Role(pool, split, enters, devices)
        for pool in range(len(order))
        for enters in ((False, True) if len(order) > 1 else (False,))
        for split, devices in splits
    ]

    def kinds(limit: float, ceiling: float) -> list[Kind]:
        masked = _Masked(case, limit, ceiling)
        return [_kind(k, roles, case, order, network, masked) for k in range(len(roles))]

    return CasePipeline(
        kinds=kinds,
        types=tuple(order[role.pool] for role in roles),
        rounds=rounds,
        least_rounds=int(rounds((1,))),
        max_stages=len(tables.states.order),
        max_devices=sum(each.num_devices for each in order) // case.copies,
    )


def _kind(
    k: int, roles: list[_Role], case: Case, order: tuple[DeviceType, ...], network: Network, masked: _Masked
) -> Kind:
    role, copies = roles[k], case.copies
    device, reach = order[role.pool], copies * case.tables.group_devices

    def cost_at(counts: Counts) -> Array | None:
        behind = less_one(counts, k)
        if not _may_come_next(role, behind, roles):
            return None
        below = copies * sum(n * r.devices for n, r in zip(behind, roles, strict=True) if r.pool == role.pool)
        above = below + copies * role.devices
        if above > device.num_devices:
            return None
        out = network.tier_at(below, reach) if below else network.outermost
        into = network.outermost if role.enters else network.tier_at(above, reach)
        return masked.table(device, (into, out), sum(counts), role.split)

    most = 1 if role.enters else device.num_devices // (copies * role.devices)
    if role.split is False:
        most = min(most, sum(not layer.is_split for layer in case.tables.width.layers))
    return Kind(devices=role.devices, limit=min(most, len(case.tables.states.order)), cost_at=cost_at)


def _may_come_next(role: _Role, behind: Counts, roles: list[_Role]) -> bool:
    """Device types come in order; a type is left only through a stage entered from another type."""
    for pool in {r.pool for n, r in zip(behind, roles, strict=True) if n}:
        entered = any(n and r.pool == pool and r.enters for n, r in zip(behind, roles, strict=True))
        if pool > role.pool or entered != (pool < role.pool):
            return False
    return True


def _interleaved(case: Case, device: DeviceType, num_stages: int, rounds: float) -> CasePipeline:
    """``v`` chunks on each of ``num_stages`` device groups; chunk e from the end is on group e mod num_stages."""
    v, a, copies, network = case.virtual_stages, case.tables.group_devices, case.copies, case.tables.network
    chunks, length = num_stages * v, copies * a
    around = network.tier_holding(0, length * num_stages - 1)

    def tier_between(group: int) -> int:
        """Tier from ``group`` to the next one, wrapping around after the last."""
        return network.tier_at(length * (group + 1), length) if group < num_stages - 1 else around

    def kinds(limit: float, ceiling: float) -> list[Kind]:
        masked = _Masked(case, limit, ceiling)

        def cost_at(counts: Counts) -> Array | None:
            group = (counts[0] - 1) % num_stages
            in_flight = (v - 1) * num_stages + 2 * group + 1
            tiers = tier_between(group), tier_between((group - 1) % num_stages)
            return masked.table(device, tiers, in_flight, None)

        return [Kind(devices=1, limit=chunks, cost_at=cost_at)]

    return CasePipeline(
        kinds=kinds,
        types=(device,),
        rounds=lambda counts: rounds if counts[0] == chunks else inf,
        least_rounds=int(rounds),
        max_stages=chunks,
        max_devices=chunks,
    )
