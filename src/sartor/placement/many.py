"""Lower bounds on the batch time of thousands of chips at once, for one chain of layers.

Any result of :func:`sartor.placement.place` without extended terms takes at least this long. With one kind of layer
between first and last, the bound counts how many layers each stage can hold, so it is nearly exact; with several kinds
it divides the work evenly.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.placement.problem import PlacementProblem, copies_together, expert_replicas
from sartor.placement.tabulate import ROUNDING
from sartor.units import Array, Floats, Ints, ceil_div

HALVINGS = 14
"""Bisection steps of a bracket one to three layers wide; what remains is 1e-4 of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSet:
    """A first layer, ``counts`` of each kind in between, and a last, at one width of ``devices`` devices per stage.

    ``forward_s`` and ``backward_s`` are [parts, candidates], the parts being first, kinds, last; ``param_bytes`` and
    ``activation_bytes`` are [parts]; every boundary between layers carries ``boundary_bytes``.
    """

    devices: int
    counts: tuple[int, ...]
    forward_s: Array
    backward_s: Array
    param_bytes: Array
    activation_bytes: Array
    boundary_bytes: float
    expert_param_bytes: Array | None = None
    expert_parallel: int = 1
    """Devices of copies and contexts that share the experts."""
    context_parallel: int = 1
    """Devices of a stage that hold the same parameters, each for its part of the sequence."""
    tied_bytes: float = 0.0
    """Parameters counted in the first and the last part: a single stage holds them once."""

    @property
    def copies_together(self) -> int:
        return copies_together(self.expert_parallel, self.context_parallel)

    @property
    def num_of(self) -> Array:
        """Layers of each part."""
        return np.array([1, *self.counts, 1])


def batch_time_bounds(
    chain: ChainSet, problem: PlacementProblem, link_bytes_per_s: Any, update_s_per_byte: Any = 0.0
) -> Array:
    """Lower bounds [candidates] on the time of any placement of the chain; infinite if memory or devices are too small.

    ``problem`` gives memory, devices, microbatches, recomputation and optimizer copies; its widths, bandwidth and
    update time are ignored, because the last two vary per candidate.
    """
    copies = chain.devices * chain.copies_together
    num_stages = np.arange(1, min(int(chain.num_of.sum()), problem.num_devices // copies) + 1)
    if not len(num_stages) or chain.copies_together > problem.num_microbatches:
        return np.full(chain.forward_s.shape[1], np.inf)
    transfer = chain.boundary_bytes / np.broadcast_to(link_bytes_per_s, chain.forward_s.shape[1])
    simpler = _of_one_kind(chain)
    caps = [_caps(kind_chain, problem, num_stages) for kind_chain in simpler]
    fits = _fits(chain, problem, num_stages, caps)
    bottleneck = _by_work(chain, problem, num_stages)
    worth = fits & _promising(chain, problem, num_stages, bottleneck, fits)
    if worth.any():
        few = num_stages[worth]
        for kind_chain, chain_caps in zip(simpler, caps, strict=True):
            bottleneck[:, worth] = _by_layers(
                kind_chain, problem, few, chain_caps.of(worth), bottleneck[:, worth], transfer
            )
    times = _batch_times(chain, problem, num_stages, bottleneck, link_bytes_per_s, update_s_per_byte)
    return np.asarray(np.where(fits, times, np.inf).min(axis=1))


def work_shares(
    chain: ChainSet, problem: PlacementProblem, virtual_stages: int = 1, also: Collection[int] = ()
) -> tuple[float, float]:
    """Smallest batch time in units of one microbatch's work on one copy: of forward and backward, and of recomputation.
    Infinite if no plan fits. The chain's seconds are not used. With up to ``virtual_stages`` chunks per device the
    pipeline fills faster; ``also`` are numbers of stages that fit by means that ``problem`` does not know (chunks, ZeRO
    2 and 3)."""
    most_stages = min(int(chain.num_of.sum()), problem.num_devices // (chain.devices * chain.copies_together))
    num_stages = np.arange(1, most_stages + 1)
    if not most_stages or chain.copies_together > problem.num_microbatches:
        return np.inf, np.inf
    caps = [_caps(kind_chain, problem, num_stages) for kind_chain in _of_one_kind(chain)]
    fits = _fits(chain, problem, num_stages, caps)
    fits |= np.isin(num_stages, list(also))
    chunks = np.clip(chain.num_of.sum() // num_stages, 1, virtual_stages)
    rounds = _rounds(chain, problem, num_stages) - (num_stages - 1) * (1 - 1 / chunks)
    rounds = np.where(fits, rounds, np.inf)
    share = float((rounds / num_stages).min())
    if not problem.recompute or fits[0] or not fits.any():
        return share, 0.0
    share = float((rounds / (num_stages + 1.0)).min())  # the last stage recomputes nothing: at most one stage's work
    return share, share


def _of_one_kind(chain: ChainSet) -> list[ChainSet]:
    """Chains with one kind of layer in between that take no longer: the minimum of all kinds, and each single kind that
    makes up at least half of the layers."""
    if len(chain.counts) == 1:
        return [chain]
    num_layers = sum(chain.counts)
    heavy = [1 + kind for kind, count in enumerate(chain.counts) if 2 * count >= num_layers]
    return [
        _reduced(chain, slice(1, -1), num_layers),
        *(_reduced(chain, slice(i, i + 1), chain.counts[i - 1]) for i in heavy),
    ]


def _reduced(chain: ChainSet, parts: slice, count: int) -> ChainSet:
    def least(values: Array) -> Array:
        return np.concatenate([values[:1], values[parts].min(axis=0, keepdims=True), values[-1:]])

    return replace(
        chain,
        counts=(count,),
        forward_s=least(chain.forward_s),
        backward_s=least(chain.backward_s),
        param_bytes=least(chain.param_bytes),
        activation_bytes=least(chain.activation_bytes),
        expert_param_bytes=None,
    )


def _fits(chain: ChainSet, problem: PlacementProblem, num_stages: Array, caps: list[_Caps]) -> Any:
    """Numbers of stages with which the model may fit."""
    fits = _may_hold(chain, problem, num_stages)
    for kind_chain, chain_caps in zip(_of_one_kind(chain), caps, strict=True):
        fits = fits & (chain_caps.most.sum(axis=0) >= kind_chain.counts[0])
    return fits


def _held(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> Array:
    """Bytes of each part with one microbatch [parts, stages]; shared states are those of the most copies."""
    ranks = (_copies(chain, problem, num_stages) * chain.context_parallel)[None]
    experts = _expert_bytes(chain)[:, None]
    states = problem.state_bytes(chain.param_bytes[:, None] - experts, experts, ranks, chain.expert_parallel)
    return np.asarray(states + chain.activation_bytes[:, None] + 0.0 * num_stages)


def _held_once(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> Array:
    """Bytes of the tied parameters [stages] that `_held` counts twice: those of a single stage."""
    ranks = _copies(chain, problem, num_stages) * chain.context_parallel
    states = problem.state_bytes(chain.tied_bytes, 0.0, ranks, chain.expert_parallel)
    return np.where(num_stages == 1, states, 0.0)


def _expert_bytes(chain: ChainSet) -> Array:
    return np.zeros(len(chain.param_bytes)) if chain.expert_param_bytes is None else chain.expert_param_bytes


def _may_hold(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> Any:
    """Whether the devices of this many stages hold the model, and each of its layers."""
    resident, room = _held(chain, problem, num_stages), problem.memory_bytes * (1 + ROUNDING)
    total = (resident * chain.num_of[:, None]).sum(axis=0) - _held_once(chain, problem, num_stages)
    return (num_stages * room >= total) & (resident <= room).all(axis=0)


def _by_work(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> Array:
    """Bottleneck [candidates, stages] if work could be divided freely, without cutting a layer.

    With recomputation every stage but the last runs its forward twice; the last one's is at most a share of its load.
    """
    both = chain.forward_s + chain.backward_s
    work = (both * chain.num_of[:, None]).sum(axis=0)[:, None]
    longest, parts = both.max(axis=0)[:, None], num_stages.astype(np.float64)
    if problem.recompute:
        again = (chain.forward_s * chain.num_of[:, None]).sum(axis=0)[:, None]
        share = (chain.forward_s / np.maximum(both, 1e-300)).max(axis=0)[:, None]
        alone = num_stages == 1
        work, parts = np.where(alone, work, work + again), np.where(alone, 1.0, parts + share)
    return np.asarray(np.maximum(work / parts, longest))


def _promising(chain: ChainSet, problem: PlacementProblem, num_stages: Array, bottleneck: Array, fits: Array) -> Any:
    """Numbers of stages that could be best for some candidate: the bottleneck grows by less than three layers."""
    rounds = _rounds(chain, problem, num_stages)
    slack = 3 * (2 * chain.forward_s + chain.backward_s).max(axis=0)[:, None]
    lower, upper = bottleneck * rounds, (bottleneck + slack) * rounds
    return (lower <= np.where(fits, upper, np.inf).min(axis=1, keepdims=True)).any(axis=0)


def _rounds(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> Array:
    """Number of bottlenecks per batch, with as many copies as there are devices for."""
    return np.asarray(ceil_div(problem.num_microbatches, _copies(chain, problem, num_stages)) + num_stages - 1)


def _copies(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> Array:
    """Most copies of this many stages; one expert-parallel group if there is no room."""
    most_copies = np.minimum(problem.num_devices // (chain.devices * num_stages), problem.num_microbatches)
    if problem.even_copies:
        whole = np.arange(1, int(most_copies.max(initial=1)) + 1)
        whole = whole[problem.num_microbatches % whole == 0]
        most_copies = whole[np.searchsorted(whole, np.maximum(most_copies, 1), side="right") - 1]
    return np.asarray(np.maximum(most_copies // chain.copies_together, 1) * chain.copies_together)


@dataclass(frozen=True, slots=True)
class _Caps:
    """Layers that fit in the first and the last stage for each number of stages, and ``middle[m, stages]``, the sum of
    min(m, layers that fit) over the stages in between."""

    first: Array
    last: Array
    middle: Array

    @property
    def most(self) -> Array:
        return np.stack([self.first, self.last, self.middle[-1]])

    def of(self, chosen: Any) -> _Caps:
        return _Caps(self.first[chosen], self.last[chosen], self.middle[:, chosen])


def _caps(chain: ChainSet, problem: PlacementProblem, num_stages: Array) -> _Caps:
    resident, room, num_layers = (
        _held(chain, problem, num_stages),
        problem.memory_bytes * (1 + ROUNDING),
        chain.counts[0],
    )
    activations, behind = chain.activation_bytes, num_stages - 1.0

    def whole(space: Floats, size: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            number = np.where(size > 0, np.floor(np.maximum(space, 0) / size * (1 + 1e-12)), num_layers)
        return np.clip(number, 0, num_layers)

    def middle(layer_bytes: Array) -> Floats:
        """At each position from the end, for stages of which a layer takes ``layer_bytes`` bytes."""
        if problem.recompute:
            return whole(room - behind * chain.boundary_bytes, layer_bytes)
        return whole(room, layer_bytes + behind * activations[1])

    if problem.recompute:
        first = whole(room - resident[0] + 0 * behind, resident[1])
    else:
        first = whole(room - resident[0] - behind * activations[0], resident[1] + behind * activations[1])
    last = whole(room - resident[-1] + 0 * behind, resident[1])
    alone = whole(room - resident[0] - resident[-1] + _held_once(chain, problem, num_stages), resident[1])
    first, last = np.where(num_stages == 1, 0, first), np.where(num_stages == 1, alone, last)
    counts = np.arange(num_layers + 1)[:, None]
    if problem.zero_stage:  # more stages leave room for fewer copies, and what they share is more for each
        middle_stages = np.where((behind >= 1) & (behind < behind[:, None]), middle(resident[1][:, None]), 0)
        between = np.minimum(counts[..., None], middle_stages).sum(axis=2)
    else:
        at_most = np.minimum(counts, middle(resident[1]))  # [m, position from the end - 1]
        until = np.cumsum(at_most, axis=1) - at_most[:, :1]  # positions 2, 3, ... s
        between = np.concatenate([np.zeros((num_layers + 1, 1)), until[:, :-1]], axis=1)  # up to that before the first
    return _Caps(first, last, between)


def _by_layers(
    chain: ChainSet, problem: PlacementProblem, num_stages: Array, caps: _Caps, low: Array, transfer: Array
) -> Array:
    """Bottleneck [candidates, stages] below which the stages cannot hold all layers, by bisection."""
    slack = 3 * (2 * chain.forward_s + chain.backward_s).max(axis=0)[:, None] + 2 * transfer[:, None]
    low, high = low.copy(), low + slack
    enough = _hold(chain, problem, num_stages, caps, low, transfer) >= chain.counts[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = _hold(chain, problem, num_stages, caps, middle, transfer) >= chain.counts[0]
        low, high = np.where(holds | enough, low, middle), np.where(holds, middle, high)
    return low


def _hold(
    chain: ChainSet, problem: PlacementProblem, num_stages: Array, caps: _Caps, limit: Array, transfer: Array
) -> Array:
    """Layers that all stages together can hold with no time above ``limit`` [candidates, stages]."""
    forward, backward, num_layers = chain.forward_s, chain.backward_s, chain.counts[0]
    c = transfer[:, None]

    def whole(space: Floats, size: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            number = np.where(size > 0, np.floor(space / size * (1 + 1e-9)), num_layers)
        return np.where(space >= -1e-9 * limit, np.clip(number, 0, num_layers), 0)

    e_f, f, h_f = (x[:, None] for x in forward)
    e_b, b, h_b = (x[:, None] for x in backward)
    last = whole(limit - h_f - h_b - c, f + b)
    if problem.recompute:
        middle = np.minimum(whole(limit - c, 2 * f + b), whole(limit - 2 * c, f + b))
        first = np.minimum(whole(limit - 2 * e_f - e_b, 2 * f + b), whole(limit - e_f - e_b - c, f + b))
    else:
        middle = whole(limit - 2 * c, f + b)
        first = whole(limit - e_f - e_b - c, f + b)
    alone = whole(limit - e_f - e_b - h_f - h_b, f + b)
    single = num_stages == 1
    first, last = np.where(single, 0, first), np.where(single, alone, last)
    columns = np.arange(len(num_stages))
    return np.asarray(
        np.minimum(first, caps.first) + np.minimum(last, caps.last) + caps.middle[middle.astype(np.int64), columns]
    )


def _batch_times(
    chain: ChainSet,
    problem: PlacementProblem,
    num_stages: Array,
    bottleneck: Array,
    link_bytes_per_s: Ints,
    update_s_per_byte: Floats,
) -> Array:
    """Bottlenecks times rounds, plus the smallest time for the first stage's gradients and parameters.

    With a real number d of copies of c devices that hold the same, and an update U that they share (0 if each makes
    its own), T N / d + R (1 - 1/(c d)) + U/(c d) falls with d if T N c + U >= R, and is smallest at d = 1 otherwise.
    """
    n, copies = problem.num_microbatches, _copies(chain, problem, num_stages)
    experts, contexts = _expert_bytes(chain), chain.context_parallel
    dense = chain.param_bytes - experts
    tied = chain.tied_bytes
    whole, dense_, experts_ = (
        np.where(num_stages == 1, (x * chain.num_of).sum() - twice, x[0])
        for x, twice in ((chain.param_bytes, tied), (dense, tied), (experts, 0.0))
    )
    per_byte = np.broadcast_to(update_s_per_byte, len(bottleneck))[:, None]
    agree = problem.resync_factor / np.broadcast_to(link_bytes_per_s, len(bottleneck))[:, None] * dense_
    shared, unsharded = (dense_, experts_ / expert_replicas(copies * contexts, chain.expert_parallel))
    if not problem.zero_stage:
        shared, unsharded = 0.0 * whole, whole
    shared, update = per_byte * shared, per_byte * unsharded

    def smooth_at(d: Any) -> Any:
        return bottleneck * (n / d + num_stages - 1) + agree * (1 - 1 / (d * contexts)) + shared / (d * contexts)

    both, others = chain.forward_s + chain.backward_s, np.maximum(num_stages - 1, 1)
    work = (both * chain.num_of[:, None]).sum(axis=0) - both[0]
    beyond = np.where(num_stages > 1, np.maximum(work[:, None] - bottleneck * others, 0.0), 0.0)
    densest = (dense[1:-1, None] / np.maximum(both[1:-1], 1e-300)).min(axis=0)[:, None]
    in_first = problem.resync_factor / np.broadcast_to(link_bytes_per_s, len(bottleneck))[:, None] * densest
    later = np.minimum(in_first * (1 - 1 / (copies * contexts)), (n / copies + num_stages - 1) / others) * beyond
    smooth = np.minimum(smooth_at(copies) + later, smooth_at(1))
    slowest = bottleneck * (ceil_div(n, copies) + num_stages - 1)
    return np.asarray(np.maximum(smooth, slowest + shared / (copies * contexts)) + update)
