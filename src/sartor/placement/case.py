"""One width, number of copies, interleaving and ZeRO stage: tables of stage times and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sartor.placement.problem import PlacementProblem, Width
from sartor.placement.tabulate import (
    StageSums,
    States,
    backward_times,
    forward_times,
    positions_that_fit,
    stage_loads,
    stage_sums,
)
from sartor.placement.terms import DeviceType, Network
from sartor.units import Array


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
        held = zero_bytes(sums.param_bytes, shared, optimizer, self.zero_stage)
        return np.asarray(held + self.tables.largest_layer if self.zero_stage == 3 else held)

    @cached_property
    def _fits(self) -> dict[float, Array]:
        return {}

    def microbatches_that_fit(self, memory_bytes: float) -> Array:
        """Most microbatches in flight for which a device holds the stage (and its other chunks).

        Without interleaving, the stage at position s from the end has s in flight.
        """
        if memory_bytes not in self._fits:
            sums = self.tables.sums
            held = self.virtual_stages * self.state_bytes + sums.activation_bytes
            stash = sums.entering_bytes if self.tables.problem.recompute else sums.activation_bytes
            self._fits[memory_bytes] = positions_that_fit(held, stash, memory_bytes, sums, most=4.0 * len(held))
        return self._fits[memory_bytes]
