"""One width, number of copies, interleaving and ZeRO stage: tables of stage times and memory, and its pipelines.

A stage's cost depends on the link tiers its tensors cross, and so on the devices behind it. These follow from the
counts of stages that run after it, which the recurrence tracks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import inf

import numpy as np

from sartor.placement.dynamic_programming import Counts, Kind, less_one
from sartor.placement.plain import slots
from sartor.placement.problem import DeviceType, Network, PlacementProblem, Width
from sartor.placement.tabulate import (
    StageSums,
    States,
    backward_times,
    forward_times,
    positions_that_fit,
    stage_loads,
    stage_sums,
)
from sartor.units import Array, ceil_div, distinct


@dataclass(frozen=True)
class WidthTables:
    """Tables shared by all cases of one width, computed when first needed."""

    problem: PlacementProblem
    width: Width
    states: States
    network: Network

    @cached_property
    def sums(self) -> StageSums:
        return stage_sums(self.width, self.states)

    @property
    def has_unsplit(self) -> bool:
        """Whether some stages take one device and others ``width.devices``."""
        splits = [layer.is_split for layer in self.width.layers]
        return self.width.devices > 1 and any(splits) and not all(splits)

    @property
    def group_devices(self) -> int:
        """Devices of a stage with a split layer; 1 if no layer is split."""
        return self.width.devices if any(layer.is_split for layer in self.width.layers) else 1

    @cached_property
    def largest_layer(self) -> Array:
        """Parameter bytes of the largest layer of every stage, which ZeRO 3 gathers while it runs."""
        largest = np.zeros_like(self.sums.param_bytes)
        members = self.states.members()
        by_id = {layer.id: layer.param_bytes for layer in self.width.layers}
        for v, id_ in enumerate(self.states.order):
            inside = members[:, v] & ~members[:, v][:, None]
            np.maximum(largest, np.where(inside, by_id[id_], 0.0), out=largest)
        return largest

    @cached_property
    def _loads(self) -> dict[tuple[float, int, int], Array]:
        return {}

    def loads(self, slowdown: float, tier_in: int, tier_out: int) -> Array:
        """Times of all stages on devices of this speed, with these link tiers for incoming and outgoing tensors."""
        key = slowdown, tier_in, tier_out
        if key not in self._loads:
            width, states = slowed(self.width, slowdown), self.states
            came, went = self.network.tiers[tier_in], self.network.tiers[tier_out]
            forward = forward_times(width, states, came.bytes_per_s, came.latency_s)
            backward = backward_times(width, states, went.bytes_per_s, went.latency_s)
            sums = stage_sums(width, states) if slowdown != 1 else self.sums
            self._loads[key] = stage_loads(sums, forward, backward, recompute=self.problem.recompute)
        return self._loads[key]


def slowed(width: Width, factor: float) -> Width:
    """The width on devices where layers take ``factor`` times as long."""
    layers = (replace(x, forward_s=x.forward_s * factor, backward_s=x.backward_s * factor) for x in width.layers)
    return width if factor == 1 else replace(width, layers=tuple(layers))


def zero_bytes(whole: Array, shared: Array, optimizer_states: float, zero_stage: int) -> Array:
    """Bytes of optimizer states, gradients and parameters on one device, sharded from ZeRO stages 1, 2 and 3 on."""
    optimizer, gradients, parameters = (shared if zero_stage >= stage else whole for stage in (1, 2, 3))
    return np.asarray(optimizer_states * optimizer + gradients + parameters)


@dataclass(frozen=True)
class Case:
    """A width with its copies, chunks per device group and ZeRO stage."""

    tables: WidthTables
    copies: int
    virtual_stages: int
    zero_stage: int

    @cached_property
    def agreement_s(self) -> Array:
        """``[i, j]``: seconds for the stage's copies to reduce all gradients (and, in ZeRO 3, gather parameters)."""
        sums, width = self.tables.sums, self.tables.width
        dense, experts = sums.param_bytes - sums.expert_param_bytes, sums.expert_param_bytes
        t, e, copies = width.tensor_parallel, width.expert_parallel, self.copies
        split = self._agree(dense, copies * width.context_parallel, t)
        split = split + self._agree(experts, copies * width.context_parallel // e, t * e)
        whole = self._agree(dense, copies, 1) + self._agree(experts, max(1, copies // e), e)
        return np.asarray(np.where(sums.is_split, split, whole))

    def _agree(self, size_bytes: Array, ranks: int, stride: int) -> Array:
        network = self.tables.network
        latency = np.where(size_bytes > 0, network.resync_latency_s(ranks, stride), 0.0)
        return size_bytes * network.resync_s_per_byte(ranks, stride) + latency

    @cached_property
    def resync_s(self) -> Array:
        """Seconds of reduction after the last microbatch; half if ZeRO 3 already gathers in every microbatch."""
        return self.agreement_s * (0.5 if self.zero_stage == 3 else 1.0)

    def loads(self, device: DeviceType, tier_in: int, tier_out: int) -> Array:
        """Times of all stages; ZeRO 3 adds the parameter gathers in forward and backward (two halves)."""
        loads = self.tables.loads(device.slowdown, tier_in, tier_out)
        return loads + self.agreement_s if self.zero_stage == 3 else loads

    @cached_property
    def state_bytes(self) -> Array:
        """Bytes of parameters, gradients and optimizer states on one device, after ZeRO sharding."""
        sums, width = self.tables.sums, self.tables.width
        optimizer = self.tables.problem.states
        dense, experts = sums.param_bytes - sums.expert_param_bytes, sums.expert_param_bytes
        ranks = np.where(sums.is_split, self.copies * width.context_parallel, self.copies)
        shared = dense / ranks + experts / np.maximum(1, ranks // width.expert_parallel)
        bytes_ = zero_bytes(sums.param_bytes, shared, optimizer, self.zero_stage)
        return np.asarray(bytes_ + self.tables.largest_layer if self.zero_stage == 3 else bytes_)

    @cached_property
    def _fits(self) -> dict[float, Array]:
        return {}

    def microbatches_that_fit(self, memory_bytes: float) -> Array:
        """Most microbatches in flight for which a device holds the stage (and its other chunks).

        Without interleaving, the stage at position s from the end has s in flight.
        """
        if memory_bytes not in self._fits:
            sums = self.tables.sums
            resident = self.virtual_stages * self.state_bytes + sums.activation_bytes
            stash = sums.entering_bytes if self.tables.problem.recompute else sums.activation_bytes
            self._fits[memory_bytes] = positions_that_fit(
                resident, stash, memory_bytes, sums, largest=4.0 * len(resident)
            )
        return self._fits[memory_bytes]


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
        max_devices=sum(device_type.num_devices for device_type in order) // case.copies,
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

    most_stages = 1 if role.enters else device.num_devices // (copies * role.devices)
    if role.split is False:
        most_stages = min(most_stages, sum(not layer.is_split for layer in case.tables.width.layers))
    return Kind(devices=role.devices, limit=min(most_stages, len(case.tables.states.order)), cost_at=cost_at)


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
