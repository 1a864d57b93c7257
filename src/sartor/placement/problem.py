"""The placement problem with its extended cost terms, and its result: stages on devices with their times, or the
tightest constraint.

Names in brackets are JSON fields of the public program, used in error messages. Everything is checked on construction,
so solvers need no checks.

Extended terms are all off by default; without them the answer is the published one. Their devices are numbered from the
last stage up: the copies of the last stage come first, then those of the stage before it, and so on; within a stage the
devices of one copy are adjacent. A tier of ``size`` contains the devices ``k * size ... (k + 1) * size - 1``.
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import gcd, isfinite
from typing import Any

import numpy as np

from sartor.errors import InputError, check_positive
from sartor.placement.dynamic_programming import Pairs
from sartor.units import Floats

RESYNC_FACTOR = 4.0
"""Bytes sent per parameter byte and (d-1)/d when copies reduce gradients, as published (a ring needs 2)."""


class PlacedOptimizer(Enum):
    """Optimizer state per parameter, in addition to the parameter and its gradient."""

    SGD = "SGD"
    ADAM = "Adam"

    @property
    def states(self) -> int:
        """Additional copies of the parameters, as counted by the published memory model."""
        return 1 if self is PlacedOptimizer.ADAM else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLayer:
    """One layer at one width; bytes and seconds are those of one device and one microbatch.

    ``param_bytes`` (parameterSize), ``activation_bytes`` (activationSize), ``forward_s`` (optimalLatencyFw),
    ``backward_s`` (optimalLatencyBw), ``is_split`` (isTensorParallelized). ``expert_param_bytes`` is the part of
    ``param_bytes`` that belongs to experts (expertParameterSize; used only by the extended terms).
    """

    id: int
    param_bytes: float
    activation_bytes: float
    forward_s: float
    backward_s: float
    is_split: bool
    expert_param_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor of ``size_bytes`` (communicationCost) per microbatch from layer ``source`` (sourceId) to ``dest``."""

    source: int
    dest: int
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """All layers, and the edges between them, at one tensor-parallel width.

    A stage with a split layer takes ``devices`` = tensor x context parallel devices, any other takes one. Experts are
    shared among data-parallel copies, so the number of copies must be a multiple of ``expert_parallel``.
    """

    tensor_parallel: int
    layers: tuple[PlacedLayer, ...]
    edges: tuple[Edge, ...]
    context_parallel: int = 1
    expert_parallel: int = 1
    tied_bytes: float = 0.0
    """Parameters that the first and the last layer share, counted in both: a stage of all layers holds them once."""

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.context_parallel

    @property
    def name(self) -> str:
        """``4``, or ``4 x cp2 x ep8``: the name of this width in messages."""
        cp, ep = self.context_parallel, self.expert_parallel
        return f"{self.tensor_parallel}" + (f" x cp{cp}" if cp > 1 else "") + (f" x ep{ep}" if ep > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategy:
    """The expert's strategy, priced for comparison (fixedPP, fixedTMPC, fixedDP, numTransformerLayers)."""

    num_stages: int
    tensor_parallel: int
    data_parallel: int
    num_transformer_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """A placement problem.

    ``memory_bytes`` per device (maxMemoryPerDevice), ``num_devices`` (maxDevices), ``link_bytes_per_s`` of every link
    (bandwidth), ``num_microbatches`` in a global batch (mbsInBatch), ``recompute`` (activationRecomputation).

    Three numbers are fixed in the publication and missing in the JSON: ``optimizer_copies`` (bytes per parameter byte
    in addition to parameter and gradient; None: the optimizer's), ``resync_factor`` (bytes sent per parameter byte of
    the first stage and (d-1)/d; the extended terms have their own) and ``update_s_per_byte`` (seconds of the optimizer
    step per parameter byte of the first stage, whose gradients are complete last; 0 as published, and with terms).
    ``zero_stage`` 1 shards optimizer states, and their update, over the copies (terms have their own choice).
    ``even_copies``: all copies have the same number of microbatches (published: the last may have fewer).

    Raises
    ------
    InputError
        For a problem that cannot be solved, naming the field, its value and what must hold.
    """

    widths: tuple[Width, ...]
    memory_bytes: float
    num_devices: int
    link_bytes_per_s: float
    num_microbatches: int
    recompute: bool
    optimizer: PlacedOptimizer
    fixed: FixedStrategy | None = None
    optimizer_copies: float | None = None
    resync_factor: float = RESYNC_FACTOR
    update_s_per_byte: float = 0.0
    zero_stage: int = 0
    even_copies: bool = False

    def __post_init__(self) -> None:
        if self.zero_stage not in (0, 1):
            raise InputError("zero_stage", self.zero_stage, "must be 0 or 1 without terms", "1")
        _positive("maxMemoryPerDevice", self.memory_bytes, "bytes")
        _positive("bandwidth", self.link_bytes_per_s, "bytes per second")
        _count("maxDevices", self.num_devices, MAX_DEVICES)
        _count("mbsInBatch", self.num_microbatches, MAX_MICROBATCHES)
        if not self.widths:
            raise InputError("nodes", {}, 'must hold the layers of at least one width, e.g. {"1": [...]}')
        _check_names(self.widths)
        for name in ("optimizer_copies", "resync_factor", "update_s_per_byte"):
            value = getattr(self, name) or 0.0
            if not math.isfinite(value) or value < 0:
                raise InputError(name, value, "must be finite and not negative", "0")
        for width in self.widths:
            _check_width(width)
            _check_same_graph(width, self.widths[0])
        if self.fixed:
            _check_fixed(self.fixed, self.widths)

    @property
    def states(self) -> float:
        """Copies of the parameters kept in addition to the parameter and its gradient."""
        return self.optimizer.states if self.optimizer_copies is None else self.optimizer_copies

    def state_bytes(self, dense_bytes: Any, expert_bytes: Any, ranks: Any, expert_parallel: int) -> Any:
        """Bytes of parameters, gradients and optimizer states that each of ``ranks`` replicas holds."""
        of_dense, of_experts = 1.0, 1.0
        if self.zero_stage:
            of_dense, of_experts = 1.0 / ranks, 1.0 / expert_replicas(ranks, expert_parallel)
        return (2 + self.states * of_dense) * dense_bytes + (2 + self.states * of_experts) * expert_bytes

    def shares(self, copies: Any) -> Any:
        """Whether this many copies can share the batch."""
        return (self.num_microbatches % copies == 0) | (not self.even_copies)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Ids in topological order: the chain from embedding to head, or one order of a branching graph."""
        first = self.widths[0]
        return _topological_order([x.id for x in first.layers], [(e.source, e.dest) for e in first.edges])


def expert_replicas(ranks: Any, expert_parallel: int) -> Any:
    """Replicas of an expert among ``ranks`` replicas of all other parameters."""
    return np.maximum(np.asarray(ranks) // expert_parallel, 1)


def copies_together(expert_parallel: int, context_parallel: int) -> int:
    """The number of copies is a multiple of this: the devices that share experts are in whole copies and contexts."""
    return expert_parallel // math.gcd(expert_parallel, context_parallel)


MAX_DEVICES = 10**7
"""More accelerators than any machine has; larger numbers are typing errors."""
MAX_MICROBATCHES = 10**7
MAX_LAYERS = 1024
"""Most layers: tables grow with the square, the recurrence with the cube (200 layers: 0.1 s, 1024: 10 s)."""


def _positive(field: str, value: Floats, unit: str) -> None:
    if not math.isfinite(value) or value <= 0:
        raise InputError(field, value, f"must be a positive finite number of {unit}")


def _count(field: str, value: int, largest: int) -> None:
    if not 1 <= value <= largest:
        raise InputError(field, value, f"must be an integer from 1 to {largest}", "1" if value < 1 else str(largest))


def _check_names(widths: tuple[Width, ...]) -> None:
    for width in widths:
        for field in ("tensor_parallel", "context_parallel", "expert_parallel"):
            _count(f"{field} of a width", getattr(width, field), MAX_DEVICES)
    name, times = Counter(width.name for width in widths).most_common(1)[0]
    if times > 1:
        raise InputError("nodes", name, "every width must be given once")


def _check_width(width: Width) -> None:
    where, ids = f'nodes["{width.name}"]', [layer.id for layer in width.layers]
    if not ids:
        raise InputError(where, "[]", "must hold at least one layer")
    if len(ids) > MAX_LAYERS:
        raise InputError(where, f"{len(ids)} layers", f"must hold at most {MAX_LAYERS} layers")
    twice = [id_ for id_, times in Counter(ids).items() if times > 1]
    if twice:
        free = next(id_ for id_ in range(min(ids), max(ids) + 2) if id_ not in ids)
        first, second = [i for i, id_ in enumerate(ids) if id_ == twice[0]][:2]
        must = f"ids must be unique; this one is given twice, to layers [{first}] and [{second}] of the list"
        raise InputError(f"id in {where}", twice[0], must, f"{free}, which none has")
    for layer in width.layers:
        _check_layer(layer, where)
    layer_ids = set(ids)
    for edge in width.edges:
        _check_edge(edge, layer_ids, f'edges["{width.name}"]')
    dense = sorted(layer.param_bytes - layer.expert_param_bytes for layer in width.layers)
    if not 0 <= width.tied_bytes <= dense[-2:][0]:
        raise InputError(f"tied_bytes of {where}", width.tied_bytes, "must be a part of two layers' parameters", "0")
    _topological_order(ids, [(e.source, e.dest) for e in width.edges])


def _topological_order(ids: Sequence[int], pairs: Pairs) -> tuple[int, ...]:
    """``ids`` with every pair (source, dest) going forward; ties by id. Raises `InputError` naming a cycle."""
    waiting = dict.fromkeys(ids, 0)
    after: dict[int, list[int]] = {id_: [] for id_ in ids}
    for source, dest in pairs:
        waiting[dest] += 1
        after[source].append(dest)
    ready = [id_ for id_, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        id_ = heapq.heappop(ready)
        order.append(id_)
        for dest in after[id_]:
            waiting[dest] -= 1
            if waiting[dest] == 0:
                heapq.heappush(ready, dest)
    if len(order) < len(waiting):
        cycle = _some_cycle({id_ for id_ in waiting if id_ not in set(order)}, pairs)
        raise InputError("edges", " -> ".join(map(str, cycle)), "layers must not depend on themselves; this is a cycle")
    return tuple(order)


def _some_cycle(stuck: set[int], pairs: Pairs) -> list[int]:
    """One cycle among layers that each have a predecessor in the set."""
    before = {dest: source for source, dest in pairs if source in stuck and dest in stuck}
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]])
    return path[path.index(path[-1]) :][::-1]


def _check_layer(layer: PlacedLayer, where: str) -> None:
    values = {
        "parameterSize": layer.param_bytes,
        "activationSize": layer.activation_bytes,
        "optimalLatencyFw": layer.forward_s,
        "optimalLatencyBw": layer.backward_s,
        "expertParameterSize": layer.expert_param_bytes,
    }
    for name, value in values.items():
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{name} of layer {layer.id} in {where}", value, "must be finite and not negative", "0")
    if layer.expert_param_bytes > layer.param_bytes:
        raise InputError(
            f"expertParameterSize of layer {layer.id} in {where}",
            layer.expert_param_bytes,
            "must not exceed parameterSize, which it is a part of",
            f"{layer.param_bytes:g}",
        )


def _check_edge(edge: Edge, layer_ids: set[int], where: str) -> None:
    for name, id_ in (("sourceId", edge.source), ("destId", edge.dest)):
        if id_ not in layer_ids:
            nearest = sorted(layer_ids, key=lambda candidate: (abs(candidate - id_), candidate))[:2]
            raise InputError(f"{name} in {where}", id_, "must be the id of a layer", ", ".join(map(str, nearest)))
    if not math.isfinite(edge.size_bytes) or edge.size_bytes < 0:
        pair = f"{edge.source} -> {edge.dest}"
        raise InputError(
            f"communicationCost of {pair} in {where}", edge.size_bytes, "must be finite and not negative", "0"
        )


def _check_same_graph(width: Width, first: Width) -> None:
    """Every width must have the same layers and edges."""
    _agree("layer", width, first, {f"{x.id}" for x in width.layers}, {f"{x.id}" for x in first.layers})
    pairs, others = ({f"{e.source} -> {e.dest}" for e in side.edges} for side in (width, first))
    _agree("edge", width, first, pairs, others)


def _agree(what: str, width: Width, first: Width, mine: set[str], others: set[str]) -> None:
    if mine != others:
        odd = min(mine ^ others)
        has, lacks = (first.name, width.name) if odd in others else (width.name, first.name)
        must = f'width "{has}" has it; all widths must agree'
        raise InputError(f'{what}s of width "{lacks}"', f"no {what} {odd}", must)


def _check_fixed(fixed: FixedStrategy, widths: tuple[Width, ...]) -> None:
    _count("fixedPP", fixed.num_stages, MAX_DEVICES)
    _count("fixedDP", fixed.data_parallel, MAX_DEVICES)
    _count("numTransformerLayers", fixed.num_transformer_layers, MAX_DEVICES)
    degrees = sorted({width.tensor_parallel for width in widths})
    if fixed.tensor_parallel not in degrees:
        nearest = min(degrees, key=lambda t: abs(t - fixed.tensor_parallel))
        must = f"must be one of the widths in nodes ({', '.join(map(str, degrees))})"
        raise InputError("fixedTMPC", fixed.tensor_parallel, must, str(nearest))


def parse_optimizer(word: object) -> PlacedOptimizer:
    """``"SGD"`` or ``"Adam"``, in any case. Raises `InputError` with the closer of the two."""
    names = {member.value.lower(): member for member in PlacedOptimizer}
    if isinstance(word, str) and word.lower() in names:
        return names[word.lower()]
    near = difflib.get_close_matches(str(word).lower(), names, n=1, cutoff=0.4)
    nearest = names[near[0]].value if near else "SGD, Adam"
    raise InputError("optimizerAlgorithm", word, "must be SGD or Adam", nearest)


class PlacementStatus(Enum):
    """``OPTIMAL``: no placement of the model is faster; ``INFEASIBLE``: none fits."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers of one stage in topological order, devices of one of its copies, seconds per microbatch."""

    layers: tuple[int, ...]
    devices: int
    load_s: float
    device_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement, first stage first: ``data_parallel`` copies of a pipeline at one tensor-parallel width.

    With ``virtual_stages`` v > 1 the pipeline is S device groups deep and ``stages`` are its v S chunks: group i runs
    the chunks i, i + S, i + 2 S, ...
    """

    tensor_parallel: int
    data_parallel: int
    stages: tuple[Stage, ...]
    time_per_batch_s: float
    context_parallel: int = 1
    expert_parallel: int = 1
    virtual_stages: int = 1
    zero_stage: int = 0

    @property
    def num_stages(self) -> int:
        """Number of device groups in the pipeline."""
        return len(self.stages) // self.virtual_stages

    @property
    def num_devices(self) -> int:
        """Devices used by all copies."""
        return self.data_parallel * sum(stage.devices for stage in self.stages[: self.num_stages])


@dataclass(frozen=True, slots=True, kw_only=True)
class TightestLimit:
    """Why nothing fits, and the nearest feasible problem.

    ``least_memory_bytes`` is the smallest memory per device with which these devices hold the model (None: too few
    devices for any width); ``least_devices`` the fewest devices with the given memory that hold it (None: no number
    does); ``layer`` a layer that no device holds.
    """

    least_memory_bytes: float | None
    least_devices: int | None
    layer: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The result of a placement problem."""

    status: PlacementStatus
    plan: Plan | None
    fixed_strategy_time_per_batch_s: float | None
    checked: bool
    solve_s: float
    tightest: TightestLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Links among ``size`` adjacent devices: the send bandwidth of each device, and the latency of a message."""

    size: int
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """``num_devices`` equal devices, on which a layer takes ``slowdown`` times the seconds in the tables."""

    name: str
    num_devices: int
    memory_bytes: float
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementTerms:
    """Cost terms beyond the publication.

    Parameters
    ----------
    resync_every_stage
        The copies of every stage reduce its gradients, not only those of the first; the slowest delays the batch.
    tiers
        Link tiers, innermost first; sizes divide one another and the last one holds all devices. Empty: one tier of
        the problem's bandwidth.
    device_types
        Up to three pools of devices. A stage and its copies stay within one; the stages on one pool are adjacent in
        the pipeline. Every order of the pools is tried; links between pools are of the outermost tier.
        Empty: the problem's devices.
    virtual_stages
        Numbers of chunks per device group to try (interleaving); 1 is always allowed.
    zero_stages
        ZeRO stages to choose from (1: optimizer states, 2: and gradients, 3: and parameters are sharded over the
        copies); 0 is always allowed.
    resync_factor
        Bytes sent per parameter byte and (n-1)/n when n copies reduce: 4 as published, 2 for a ring all-reduce.
    """

    resync_every_stage: bool = False
    tiers: tuple[Tier, ...] = ()
    device_types: tuple[DeviceType, ...] = ()
    virtual_stages: tuple[int, ...] = (1,)
    zero_stages: tuple[int, ...] = (0,)
    resync_factor: float = RESYNC_FACTOR

    def __post_init__(self) -> None:
        for tier in self.tiers:
            _at_least_one("devices of a tier", tier.size)
            check_positive("bandwidth of a tier", tier.bytes_per_s)
            if not isfinite(tier.latency_s) or tier.latency_s < 0:
                raise InputError("latency of a tier", tier.latency_s, "must be finite and not negative", "0")
        for inner, outer in pairwise(tier.size for tier in self.tiers):
            if outer % inner or outer == inner:
                nearest = str(max(2, round(outer / inner)) * inner)
                raise InputError("devices of a tier", outer, f"must be a multiple of the {inner} within it", nearest)
        self._check_types()
        for v in self.virtual_stages:
            _at_least_one("virtualStages", v)
        for z in self.zero_stages:
            if z not in (0, 1, 2, 3):
                raise InputError("zeroStages", z, "must be 0, 1, 2 or 3", str(min(max(z, 0), 3)))
        check_positive("resyncFactor", self.resync_factor)
        if len(self.device_types) > 1 and set(self.virtual_stages) != {1}:
            must = "must be [1] with several device types: interleaving over unequal devices is not priced"
            raise InputError("virtualStages", list(self.virtual_stages), must, "[1]")

    def _check_types(self) -> None:
        names = [device_type.name for device_type in self.device_types]
        if len(names) > MAX_TYPES:
            raise InputError("deviceTypes", len(names), f"must be at most {MAX_TYPES}", str(MAX_TYPES))
        if len(set(names)) < len(names):
            raise InputError("deviceTypes", ", ".join(names), "names must be unique")
        for device_type in self.device_types:
            _at_least_one(f"maxDevices of {device_type.name}", device_type.num_devices)
            check_positive(f"maxMemoryPerDevice of {device_type.name}", device_type.memory_bytes)
            check_positive(f"slowdown of {device_type.name}", device_type.slowdown)


MAX_TYPES = 3


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise InputError(field, value, "must be at least 1", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The tiers in use: those of the terms, or one with the problem's bandwidth. The last tier holds all devices."""

    tiers: tuple[Tier, ...]
    resync_factor: float

    @property
    def outermost(self) -> int:
        return len(self.tiers) - 1

    def tier_holding(self, first: int, last: int) -> int:
        """Index of the innermost tier with a group that contains both devices."""
        for index, tier in enumerate(self.tiers[:-1]):
            if first // tier.size == last // tier.size:
                return index
        return self.outermost

    def tier_at(self, boundary: int, reach: int) -> int:
        """Tier of the links across the boundary before device ``boundary``, with ``reach`` devices on either side."""
        return self.tier_holding(max(0, boundary - reach), boundary + reach - 1)

    def resync_s_per_byte(self, ranks: int, stride: int) -> float:
        """Seconds per byte to reduce over ``ranks`` devices, every ``stride``-th, tier by tier.

        Within a tier of size g, gcd(ranks, g / stride) ranks are sure to share a group; the next tier then carries only
        their share of the bytes.
        """
        seconds, share, done = 0.0, 1.0, 1
        for tier, within in zip(self.tiers, self._within(ranks, stride), strict=True):
            n = within // done
            seconds += self.resync_factor * (n - 1) / n * share / tier.bytes_per_s
            share, done = share / n, within
        return seconds

    def resync_latency_s(self, ranks: int, stride: int) -> float:
        """Message latencies of one reduction: 2 (n - 1) on each tier that n parties span."""
        seconds, done = 0.0, 1
        for tier, within in zip(self.tiers, self._within(ranks, stride), strict=True):
            seconds += 2 * (within // done - 1) * tier.latency_s
            done = within
        return seconds

    def _within(self, ranks: int, stride: int) -> list[int]:
        """Number of ranks reduced after each tier."""
        inner = [gcd(ranks, t.size // stride) if t.size % stride == 0 else 1 for t in self.tiers[:-1]]
        return [*inner, ranks]
