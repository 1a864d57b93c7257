"""Plans beyond those of `sartor.placement`: pipelines that interleave equal chunks of layers, and one stage with ZeRO 2
or 3.

With S devices and v chunks each, a pipeline has v S chunks of as many layers each, as Megatron requires, the embedding
in the first and the head in the last; the number of microbatches of a copy is a multiple of S. So a plan is S, v, the
ZeRO stage and the number of copies, and its time and memory follow in closed form (`sartor.step.pipeline` has the same
formulas), for thousands of chips at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from sartor.designs.parts import ModelParts
from sartor.designs.question import DesignQuestion
from sartor.model.training import PipelineSchedule
from sartor.placement.problem import PlacementProblem, Plan, Stage, copies_together, expert_replicas
from sartor.placement.tabulate import ROUNDING
from sartor.step.rank_activations import in_flight
from sartor.units import Array

GATHERED = 2.0
"""Bytes per parameter byte of its largest part that a device holds besides its shards with ZeRO 3: weights and
gradients of the part at work."""


class Cut(NamedTuple):
    """``num_stages`` devices of ``virtual_stages`` chunks each, and a ZeRO stage."""

    num_stages: int
    virtual_stages: int
    zero_stage: int

    @property
    def chunks(self) -> int:
        return self.num_stages * self.virtual_stages


def _cuts_of(question: DesignQuestion, parts: ModelParts) -> Iterator[Cut]:
    """The cuts that divide the model and have devices."""
    if parts.served or question.terms is not None:
        return
    for zero in sorted({2, 3} & set(question.zero_stages)):
        yield Cut(num_stages=1, virtual_stages=1, zero_stage=zero)
    layers, most_stages = len(parts.order), question.num_devices // parts.split.devices
    shards = int(1 in question.zero_stages)
    for v in sorted(set(question.virtual_stages) - {1}):
        for num_stages in range(2, min(layers // v, most_stages) + 1):
            if layers % (v * num_stages) == 0:
                yield Cut(num_stages=num_stages, virtual_stages=v, zero_stage=shards)


def equal_times(
    question: DesignQuestion,
    parts: ModelParts,
    forward_s: Array,
    backward_s: Array,
    problem: PlacementProblem,
    link_bytes_per_s: Any,
    update_s_per_byte: Any,
) -> Array:
    """Least time of a batch [candidates] over all cuts and copies, from the seconds [parts, candidates] of each part;
    infinite if none fits. ``problem`` gives memory, devices, microbatches, recomputation and optimizer states."""
    least_s = np.full(forward_s.shape[1], np.inf)
    for ways in _ways_of(_cuts_of(question, parts), parts, problem):
        times = _times(ways, forward_s, backward_s, problem, link_bytes_per_s, update_s_per_byte)
        least_s = np.minimum(least_s, times.min(axis=0))
    return least_s


def stages_that_fit(question: DesignQuestion, parts: ModelParts, problem: PlacementProblem) -> set[int]:
    """Numbers of stages with which some cut fits: with recomputation also where no pipeline of whole stages does, since
    only one chunk's activations are kept at a time."""
    return {ways.cut.num_stages for ways in _ways_of(_cuts_of(question, parts), parts, problem)}


def least_bytes(question: DesignQuestion, parts: ModelParts, problem: PlacementProblem) -> float:
    """Least memory of a device with which some cut fits."""
    smallest, sizes = inf, sizes_of(parts)
    for cut in _cuts_of(question, parts):
        copies = _copies(sizes, cut, problem.num_devices, problem.num_microbatches)
        if len(copies):
            limits = copies, problem.num_microbatches, problem.states
            peak = peak_bytes(sizes, cut, *limits, recompute=problem.recompute)
            smallest = min(smallest, float(peak.max(axis=0).min()))
    return smallest


def equal_plan(
    question: DesignQuestion, parts: ModelParts, problem: PlacementProblem, below_s: float = inf
) -> Plan | None:
    """The fastest plan of all cuts if it takes less than ``below_s``; ``problem`` has the layers of ``parts`` at one
    width, with their seconds."""
    layers, order = problem.widths[0].layers, (0, *parts.order, len(parts.parts) - 1)
    of_part = [layers[order.index(k)] for k in range(len(parts.parts))]
    forward, backward = (np.array([[getattr(x, name)] for x in of_part]) for name in ("forward_s", "backward_s"))
    best: tuple[float, _Ways, int] | None = None
    for ways in _ways_of(_cuts_of(question, parts), parts, problem):
        rates = problem.link_bytes_per_s, problem.update_s_per_byte
        times = _times(ways, forward, backward, problem, *rates)[:, 0]
        way = int(times.argmin())
        if times[way] < (best[0] if best else below_s):
            best = float(times[way]), ways, way
    if best is None:
        return None
    time_s, ways, way = best
    loads = _loads(ways, forward, backward, problem, np.array([problem.link_bytes_per_s]))[:, 0]
    return _plan(parts, ways, way, time_s, loads[ways.chunks.which])


def _plan(parts: ModelParts, ways: _Ways, way: int, time_s: float, loads: Array) -> Plan:
    cut, split = ways.cut, parts.split
    layers = [tuple(numbers.tolist()) for numbers in np.array_split(np.arange(len(parts.order)), cut.chunks)]
    layers[0] = (-1, *layers[0])
    layers[-1] = (*layers[-1], len(parts.order))
    return Plan(
        tensor_parallel=split.width,
        context_parallel=split.context_parallel,
        expert_parallel=split.expert_parallel,
        data_parallel=int(ways.copies[way]),
        stages=tuple(
            Stage(layers=ids, devices=split.devices, load_s=float(load))
            for ids, load in zip(layers, loads, strict=True)
        ),
        time_per_batch_s=time_s,
        virtual_stages=cut.virtual_stages,
        zero_stage=cut.zero_stage if ways.ranks[way] > 1 else 0,
    )


# ------------------------------------------------------------------------------------------------- time of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """A cut in every number of copies that fits and may be fastest [ways], and its distinct chunks [chunks]."""

    cut: Cut
    copies: Array
    microbatches: Array
    ranks: Array
    """Replicas of the dense parameters; ``expert_ranks``: of the experts."""
    expert_ranks: Array
    chunks: _EqualChunks
    dense_bytes: float
    """Parameters of the first device."""
    expert_bytes: float
    boundary_bytes: float

    @property
    def exchanges(self) -> Array:
        """How often a step sends what a reduce-scatter of all gradients sends: an all-reduce is two. ZeRO 2 scatters
        the gradients of every microbatch and gathers weights once, ZeRO 3 gathers weights for every forward and every
        backward."""
        by_stage = {2: self.microbatches + 1.0, 3: 3.0 * self.microbatches}
        return by_stage.get(self.cut.zero_stage, np.full(len(self.copies), 2.0))


def _times(
    ways: _Ways,
    forward_s: Array,
    backward_s: Array,
    problem: PlacementProblem,
    link_bytes_per_s: Any,
    update_s_per_byte: Any,
) -> Array:
    """Seconds of a batch [ways, candidates]."""
    rate, update = (np.broadcast_to(x, forward_s.shape[1]) for x in (link_bytes_per_s, update_s_per_byte))
    loads = _loads(ways, forward_s, backward_s, problem, rate)
    slots = sum(loads[alike].max(axis=0) for alike in ways.chunks.of_number)  # devices work on the same number together
    filled = (ways.cut.num_stages - 1) * loads.max(axis=0)
    dense, experts, replicas = ways.dense_bytes, ways.expert_bytes, (ways.ranks, ways.expert_ranks)
    sent = dense * (1 - 1 / replicas[0]) + experts * (1 - 1 / replicas[1])
    updated = (
        dense / replicas[0] + experts / replicas[1]
        if ways.cut.zero_stage
        else np.full(len(replicas[0]), dense + experts)
    )
    exchange = problem.resync_factor / 2 * ways.exchanges * sent
    once = exchange[:, None] / rate + updated[:, None] * update
    return np.asarray(slots * ways.microbatches[:, None] + filled + once)


def _loads(ways: _Ways, forward_s: Array, backward_s: Array, problem: PlacementProblem, rate: Array) -> Array:
    """Seconds of a microbatch in the distinct chunks [chunks, candidates]."""
    chunks = ways.chunks
    forward, backward = chunks.distinct @ forward_s, chunks.distinct @ backward_s
    arrives, returns = (
        np.where(end[:, None], 0.0, ways.boundary_bytes / rate) for end in (chunks.is_first, chunks.is_last)
    )
    again = np.where(chunks.is_last[:, None], 0.0, np.maximum(forward - returns, 0.0)) if problem.recompute else 0.0
    return np.asarray(forward + backward + arrives + returns + again)


# --------------------------------------------------------------------------------------------- copies that fit


def _ways_of(cuts: Iterable[Cut], parts: ModelParts, problem: PlacementProblem) -> Iterator[_Ways]:
    """The cuts that fit in some number of copies."""
    limits = problem.memory_bytes, problem.num_devices, problem.num_microbatches, problem.states
    sizes = sizes_of(parts)
    for cut in cuts:
        ways = _ways(sizes, cut, *limits, problem.recompute)
        if ways is not None:
            yield ways


class _EqualChunks(NamedTuple):
    """What equal chunks of layers hold: the number of each part [chunks, parts], of all and of the distinct ones."""

    contents: Array
    distinct: Array
    is_first: Array
    is_last: Array
    which: Array
    """Index of every chunk among the distinct ones."""
    of_number: tuple[Array, ...]
    """Distinct chunks with each number, over all devices."""


@lru_cache(maxsize=1024)
def _chunks(order: tuple[int, ...], parts: int, virtual: int, devices: int) -> _EqualChunks:
    chunks = virtual * devices
    of_layers, numbers = np.eye(parts)[list(order)], np.arange(chunks)
    contents = np.stack([group.sum(axis=0) for group in np.array_split(of_layers, chunks)])
    contents[0, 0] += 1
    contents[-1, -1] += 1
    rows = np.column_stack([contents, numbers == 0, numbers == chunks - 1])
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    first, last = (distinct[:, i] > 0 for i in (-2, -1))
    numbered = tuple(np.unique(group) for group in which.reshape(virtual, devices))
    return _EqualChunks(contents, distinct[:, :-2], first, last, which.reshape(-1), numbered)


class _PartSizes(NamedTuple):
    """What memory depends on: the order of layers, bytes of every part on one device, and devices: of a stage, those
    of them that hold the same parameters, and copies that share experts."""

    order: tuple[int, ...]
    dense_bytes: tuple[float, ...]
    expert_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    boundary_bytes: float
    devices: int
    context_parallel: int
    expert_parallel: int
    tied_bytes: float

    def chunks(self, cut: Cut) -> _EqualChunks:
        return _chunks(self.order, len(self.dense_bytes), cut.virtual_stages, cut.num_stages)

    def device_bytes(self, cut: Cut) -> tuple[Array, Array]:
        """Bytes of dense and of expert parameters on every device of a pipeline."""
        on_device = self.chunks(cut).contents.reshape(cut.virtual_stages, cut.num_stages, -1).sum(axis=0)
        tied = self.tied_bytes if cut.num_stages == 1 else 0.0
        return np.asarray(on_device @ self.dense_bytes) - tied, np.asarray(on_device @ self.expert_bytes)


def sizes_of(parts: ModelParts) -> _PartSizes:
    kinds, split = parts.parts, parts.split
    return _PartSizes(
        order=parts.order,
        dense_bytes=tuple(part.param_bytes - part.expert_param_bytes for part in kinds),
        expert_bytes=tuple(part.expert_param_bytes for part in kinds),
        activation_bytes=tuple(part.activation_bytes for part in kinds),
        boundary_bytes=parts.boundary_bytes,
        devices=split.devices,
        context_parallel=split.context_parallel,
        expert_parallel=split.expert_parallel,
        tied_bytes=parts.tied_bytes,
    )


@lru_cache(maxsize=8192)
def _ways(
    sizes: _PartSizes, cut: Cut, memory: float, num_devices: int, batches: int, states: float, recompute: bool
) -> _Ways | None:
    copies = _copies(sizes, cut, num_devices, batches)
    peak = peak_bytes(sizes, cut, copies, batches, states, recompute=recompute).max(axis=0, initial=0.0)
    copies = copies[peak <= memory * (1 + ROUNDING)]
    if not len(copies):
        return None
    dense, experts = sizes.device_bytes(cut)
    ranks = copies * sizes.context_parallel
    return _Ways(
        cut=cut,
        copies=copies,
        microbatches=batches // copies,
        ranks=ranks,
        expert_ranks=expert_replicas(ranks, sizes.expert_parallel),
        chunks=sizes.chunks(cut),
        dense_bytes=float(dense[0]),
        expert_bytes=float(experts[0]),
        boundary_bytes=sizes.boundary_bytes,
    )


def _copies(sizes: _PartSizes, cut: Cut, num_devices: int, batches: int) -> Array:
    """Numbers of copies that the devices hold, with microbatches in whole rounds of the pipeline."""
    together = copies_together(sizes.expert_parallel, sizes.context_parallel)
    most_copies = min(num_devices // (sizes.devices * cut.num_stages), batches)
    copies = np.arange(together, most_copies + 1, together)
    return np.asarray(copies[batches % (copies * cut.num_stages) == 0])


def peak_bytes(sizes: _PartSizes, cut: Cut, copies: Array, batches: int, states: float, *, recompute: bool) -> Array:
    """Bytes on every device [devices, copies], if ``batches`` microbatches are divided over the copies."""
    ranks = copies * sizes.context_parallel
    dense, experts = (column[:, None] for column in sizes.device_bytes(cut))
    shared = dense / ranks + experts / expert_replicas(ranks, sizes.expert_parallel)
    optimizer, gradients, weights = (shared if cut.zero_stage >= z else dense + experts for z in (1, 2, 3))
    largest = float(np.add(sizes.dense_bytes, sizes.expert_bytes).max())
    gathered = GATHERED * largest if cut.zero_stage == 3 else 0.0
    stash = _kept_bytes(sizes, cut, batches // copies, recompute=recompute)
    return np.asarray(states * optimizer + gradients + weights + gathered + stash)


def _kept_bytes(sizes: _PartSizes, cut: Cut, microbatches: Array, *, recompute: bool) -> Array:
    """Bytes that backward needs on every device [devices, copies]: all activations of one chunk's microbatch, and of
    the others in flight all or, with recomputation, the chunk's input."""
    v, devices = cut.virtual_stages, cut.num_stages
    activations = sizes.chunks(cut).contents @ sizes.activation_bytes
    entering = np.where(np.arange(cut.chunks) == 0, 0.0, sizes.boundary_bytes)
    stash = entering if recompute else activations
    stash, extra = (x.reshape(v, devices).T for x in (stash, activations - stash))  # [devices, chunks]
    schedule, numbers = PipelineSchedule.ONE_F_ONE_B, np.arange(devices)[:, None]
    flying = in_flight(schedule, numbers, devices, v, microbatches) if v > 1 else np.ones((1, 1, 1))
    return np.asarray((flying * stash[:, None]).sum(axis=2) + extra.max(axis=1)[:, None])
