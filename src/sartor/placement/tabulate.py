"""Time and memory of every possible stage, as tables over pairs of states.

A state is a downset of the layer graph; in a chain of L layers state i is its first i layers. Entry ``[i, j]`` of a
table is the stage with the layers in state j but not in state i. Every table has shape ``(num_states, num_states)``;
entries that are not a stage are 0 (sums) or infinite (times).

Within a stage the device runs one layer after another and never idles while a layer is ready. Its end time is the
maximum, over arrivals r, of r plus the time of all layers that arrive at or after r or depend on one that does. For a
chain this is the published recurrence, and no other order of a branching stage ends earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sartor.placement.dynamic_programming import Pairs, downsets
from sartor.placement.problem import PlacedLayer, PlacementProblem, Width
from sartor.units import Array, Ints, distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The cuts a pipeline may use: ``masks`` over positions in ``order`` (None for a chain), ``sizes`` in layers."""

    order: tuple[int, ...]
    masks: tuple[int, ...] | None
    sizes: Array

    def __len__(self) -> int:
        return len(self.sizes)

    def layers(self, i: int, j: int) -> tuple[int, ...]:
        """Ids of the stage between states i and j, in topological order."""
        if self.masks is None:
            return self.order[i:j]
        stage = self.masks[j] & ~self.masks[i]
        return tuple(id_ for v, id_ in enumerate(self.order) if stage >> v & 1)

    def members(self) -> Array:
        """``[state, position]``: whether the layer is in the state."""
        positions = np.arange(len(self.order))
        if self.masks is None:
            return self.sizes[:, None] > positions
        width = (len(self.order) + 7) // 8
        packed = b"".join(mask.to_bytes(width, "little") for mask in self.masks)
        rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(self), width)
        return np.unpackbits(rows, axis=1, count=len(self.order), bitorder="little").astype(bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSums:
    """Sums over a stage that do not depend on links: bytes, seconds of its layers, incoming bytes, device kind."""

    is_stage: Array
    param_bytes: Array
    expert_param_bytes: Array
    activation_bytes: Array
    entering_bytes: Array
    forward_s: Array
    backward_s: Array
    is_split: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """One width's stages as tables for the recurrence.

    ``load_s`` is infinite for entries that are not a stage; ``max_position`` is the farthest position from the end (1 =
    last stage) at which the stage fits in memory, 0 for none; ``is_split`` marks stages that take ``width.devices``.
    """

    width: Width
    states: States
    sums: StageSums
    load_s: Array
    max_position: Array

    @property
    def first_param_bytes(self) -> Array:
        """Parameter bytes of the first stage when it ends at each state."""
        return np.asarray(self.sums.param_bytes[0])


def find_states(problem: PlacementProblem) -> States:
    """Prefixes of a chain, or the downsets of a branching graph (`InputError` if there are too many)."""
    order, pairs = problem.layer_ids, [(e.source, e.dest) for e in problem.widths[0].edges]
    if _is_chain(order, pairs):
        return States(order=order, masks=None, sizes=np.arange(len(order) + 1))
    masks = tuple(downsets(order, pairs))
    return States(order=order, masks=masks, sizes=np.array([mask.bit_count() for mask in masks]))


def _is_chain(order: Sequence[int], pairs: Pairs) -> bool:
    """Whether all consecutive layers are connected by an edge (there may be further, skipping edges)."""
    joined = set(pairs)
    return all(pair in joined for pair in pairwise(order))


def tabulate(problem: PlacementProblem, width: Width, states: States, copies: int = 1) -> StageTable:
    """The published loads and memory of every stage at one width (formulas: docs/concepts/placement.md); with ZeRO 1,
    memory is that of this many copies."""
    sums = stage_sums(width, states)
    forward = forward_times(width, states, problem.link_bytes_per_s)
    backward = backward_times(width, states, problem.link_bytes_per_s)
    return StageTable(
        width=width,
        states=states,
        sums=sums,
        load_s=stage_loads(sums, forward, backward, recompute=problem.recompute),
        max_position=max_positions(problem, sums, width, copies),
    )


def stage_loads(sums: StageSums, forward_s: Array, backward_s: Array, *, recompute: bool) -> Array:
    """Forward plus backward; recomputation adds a forward before backward, overlapped with the arriving gradients."""
    if not recompute:
        return forward_s + backward_s
    again = np.maximum(sums.forward_s + sums.backward_s, backward_s)
    again[:, -1] = backward_s[:, -1]  # The last stage starts backward at once, without recomputing.
    return np.asarray(forward_s + again)


def max_positions(problem: PlacementProblem, sums: StageSums, width: Width, copies: int = 1) -> Array:
    """Farthest position s from the end with ``held + (s - 1) * stash <= memory``; 0 if even s = 1 does not fit."""
    stash = sums.entering_bytes if problem.recompute else sums.activation_bytes
    resident = held_bytes(problem, sums, width, copies)
    return positions_that_fit(resident, stash, problem.memory_bytes, sums, largest=float(len(resident)))


def held_bytes(problem: PlacementProblem, sums: StageSums, width: Width, copies: int) -> Array:
    """Bytes of every stage with one microbatch, in this many copies."""
    dense, experts = sums.param_bytes - sums.expert_param_bytes, sums.expert_param_bytes
    ranks = stage_ranks(sums.is_split, width, copies)
    return np.asarray(problem.state_bytes(dense, experts, ranks, width.expert_parallel) + sums.activation_bytes)


def stage_ranks(is_split: Array, width: Width, copies: Ints) -> Array:
    """Replicas of each parameter of a stage: every device of a context-parallel group has all of its layer."""
    return np.where(is_split, copies * width.context_parallel, copies)


ROUNDING = 1e-12
"""Relative tolerance of a memory limit: sums of bytes are exact to a few units in the last place."""


def positions_that_fit(resident: Array, stash: Array, memory_bytes: float, sums: StageSums, largest: float) -> Array:
    """The largest s up to ``largest`` for each stage with ``held + (s - 1) * stash <= memory_bytes``; 0 for none."""
    room = memory_bytes * (1 + ROUNDING) - resident
    with np.errstate(divide="ignore", invalid="ignore"):
        farthest = np.where(stash > 0, np.floor(room / stash) + 1, largest)
    return np.where(sums.is_stage & (room >= 0), np.minimum(farthest, largest), 0).astype(np.int32)


def stage_sums(width: Width, states: States) -> StageSums:
    """Sums over the layers of every stage, by differences of sums over states."""
    layers = _in_order(width, states.order)
    members = states.members()
    columns = np.array([_quantities(layer) for layer in layers]).T
    if states.masks is None:
        of_state = np.concatenate([np.zeros((len(columns), 1)), np.cumsum(columns, axis=1)], axis=1)
        is_stage = np.triu(np.ones((len(states),) * 2, dtype=bool), 1)
    else:
        of_state = columns @ members.T
        inside = (members.astype(np.float32) @ members.T.astype(np.float32)).astype(int)
        is_stage = (inside == states.sizes[:, None]) & (states.sizes[:, None] < states.sizes)
    param, expert, activation, forward, backward, split = (
        np.where(is_stage, until - until[:, None], 0.0) for until in of_state
    )
    param[0, -1] -= width.tied_bytes
    return StageSums(
        is_stage=is_stage,
        param_bytes=param,
        expert_param_bytes=expert,
        activation_bytes=activation,
        entering_bytes=np.where(is_stage, _entering_bytes(width, states, members), 0.0),
        forward_s=forward,
        backward_s=backward,
        is_split=split > 0.5,
    )


def _in_order(width: Width, order: tuple[int, ...]) -> list[PlacedLayer]:
    by_id = {layer.id: layer for layer in width.layers}
    return [by_id[id_] for id_ in order]


def _quantities(layer: PlacedLayer) -> tuple[float, ...]:
    x = layer
    return x.param_bytes, x.expert_param_bytes, x.activation_bytes, x.forward_s, x.backward_s, float(x.is_split)


def _links(width: Width, order: tuple[int, ...]) -> list[tuple[int, int, float]]:
    """Edges as positions and bytes, one per pair: tensors between the same two layers share the link."""
    position = {id_: index for index, id_ in enumerate(order)}
    merged: dict[tuple[int, int], float] = {}
    for edge in width.edges:
        pair = position[edge.source], position[edge.dest]
        merged[pair] = merged.get(pair, 0.0) + edge.size_bytes
    return [(u, v, size) for (u, v), size in merged.items()]


def _entering_bytes(width: Width, states: States, members: Array) -> Array:
    """Bytes of the edges into each stage from earlier ones, every edge counted."""
    links = _links(width, states.order)
    into = np.zeros((len(states), len(states.order)))  # [state i, layer v]: bytes from i's layers into v
    if states.masks is None:
        for u, v, size in links:
            into[u + 1 : v + 1, v] += size
        total = np.cumsum(into, axis=1)
        return np.concatenate([np.zeros((len(states), 1)), total], axis=1)
    for u, v, size in links:
        into[:, v] += np.where(members[:, u] & ~members[:, v], size, 0.0)
    return np.asarray(into @ members.T)


def forward_times(width: Width, states: States, bytes_per_s: float, latency_s: float = 0.0) -> Array:
    """Forward seconds of every stage; a tensor from an earlier stage arrives at ``latency_s + bytes / rate``."""
    seconds = np.array([layer.forward_s for layer in _in_order(width, states.order)])
    arrivals = [(u, v, latency_s + size / bytes_per_s) for u, v, size in _links(width, states.order)]
    if states.masks is None:
        return _chain_finish(seconds, arrivals)
    return _graph_finish(seconds, arrivals, states.members())


def backward_times(width: Width, states: States, bytes_per_s: float, latency_s: float = 0.0) -> Array:
    """Backward seconds of every stage: the forward pass of the reversed graph."""
    last = len(states.order) - 1
    seconds = np.array([layer.backward_s for layer in _in_order(width, states.order)])[::-1]
    arrivals = [(last - v, last - u, latency_s + size / bytes_per_s) for u, v, size in _links(width, states.order)]
    if states.masks is None:
        return _chain_finish(seconds, arrivals)[::-1, ::-1].T
    return _graph_finish(seconds, arrivals, ~states.members()[:, ::-1]).T


Arrivals = Sequence[tuple[int, int, float]]


def _chain_finish(seconds: Array, arrivals: Arrivals) -> Array:
    """``[i, j]``: end of the stage of layers i..j-1, the maximum over v of (arrival at v) + (time of v..j-1)."""
    num = len(seconds)
    until = np.concatenate([[0.0], np.cumsum(seconds)])
    at_start = np.zeros(num)
    skips = [(u, v, time_s) for u, v, time_s in arrivals if v > u + 1]
    for u, v, time_s in arrivals:
        if v == u + 1:
            at_start[v] = time_s
    if skips:
        arrive = np.full((num, num), -np.inf)
        arrive[np.diag_indices(num)] = at_start
        for u, v, time_s in skips:
            np.maximum(arrive[u + 1 : v + 1, v], time_s, out=arrive[u + 1 : v + 1, v])
        latest = np.maximum.accumulate(arrive - until[:-1], axis=1)
    else:
        latest = np.broadcast_to((at_start - until[:-1])[:, None], (num, num))
    finish = np.full((num + 1, num + 1), np.inf)
    ends = np.triu(np.ones((num, num), dtype=bool))
    finish[:-1, 1:] = np.where(ends, latest + until[1:], np.inf)
    return finish


def _graph_finish(seconds: Array, arrivals: Arrivals, members: Array) -> Array:
    """``[i, j]`` for any states given by ``members[state, position]``, positions in topological order.

    The end of a stage is the maximum, over releases r of its layers, of r plus the time of its layers released at r or
    later. Few edges cross a cut, so there are few distinct releases: one matrix product serves them all.
    """
    release, sizes, inside = _releases(arrivals, members), members.sum(axis=1), members.astype(float)
    finish = np.full((len(members),) * 2, np.inf)
    for i, (mine, ready) in enumerate(zip(members, release, strict=True)):
        levels = distinct(ready[~mine])
        late = (ready[:, None] >= levels) & ~mine[:, None]
        lasts = inside @ (late * seconds[:, None])
        follows = inside @ late > 0
        is_stage = (inside @ mine == sizes[i]) & (sizes > sizes[i])
        ends = np.where(follows, levels + lasts, 0.0).max(axis=1, initial=0.0)
        finish[i] = np.where(is_stage, ends, np.inf)
    return finish


def _releases(arrivals: Arrivals, members: Array) -> Array:
    """``[state, layer]``: the last arrival that a layer, or one of its predecessors, waits for.

    A stage starting at the state contains, with a layer, its predecessors beyond the state: its end is irrelevant.
    """
    release = np.zeros(members.shape)
    for u, v, time_s in sorted(arrivals, key=lambda link: link[1]):
        release[:, v] = np.maximum(release[:, v], np.where(members[:, u], time_s, release[:, u]))
    return release
