"""An independent checker that prices a placement layer by layer, with the published and the extended terms.

It uses plain loops over layers and edges, written from the problem statement (docs/concepts/placement.md) without the
solver's tables. Every returned plan is checked here, and so is the expert's strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from sartor.placement.problem import DeviceType, PlacedLayer, PlacementProblem, PlacementTerms, Plan, Stage, Tier, Width

SLACK = 1e-9
"""Relative excess over a memory limit that counts as rounding."""

StageLayers = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PricedPlacement:
    """A placement with its price and its errors, one sentence each."""

    plan: Plan
    time_per_batch_s: float
    memory_bytes: tuple[float, ...]
    faults: tuple[str, ...]


def price(problem: PlacementProblem, width: Width, stages: StageLayers, data_parallel: int) -> _PricedPlacement:
    """Price ``stages`` (layer ids, first stage first) in ``data_parallel`` copies at ``width``."""
    num_stages = len(stages)
    faults = _structure_faults(width, stages)
    loads, devices, memory = [], [], []
    for index, stage in enumerate(stages):
        split = any(layer.is_split for layer in width.layers if layer.id in stage)
        devices.append(width.tensor_parallel * width.context_parallel if split else 1)
        loads.append(_load(problem, width, stage, index == num_stages - 1))
        ranks = data_parallel * (width.context_parallel if split else 1)
        memory.append(_memory(problem, width, stage, num_stages - index, ranks))
        if memory[-1] > problem.memory_bytes * (1 + SLACK):
            faults.append(f"stage {index} needs {memory[-1]:.6g} bytes of {problem.memory_bytes:.6g}")
    if sum(devices) * data_parallel > problem.num_devices:
        faults.append(f"{sum(devices)} devices x {data_parallel} copies exceed {problem.num_devices}")
    if data_parallel > problem.num_microbatches:
        faults.append(f"{data_parallel} copies have only {problem.num_microbatches} microbatches to share")
    if problem.even_copies and problem.num_microbatches % data_parallel:
        faults.append(f"{problem.num_microbatches} microbatches do not divide into {data_parallel} copies")
    if data_parallel * width.context_parallel % width.expert_parallel:
        contexts = f" x {width.context_parallel} contexts" if width.context_parallel > 1 else ""
        faults.append(f"{data_parallel} copies{contexts} are not a multiple of expert_parallel={width.expert_parallel}")
    rounds = -(-problem.num_microbatches // data_parallel) + num_stages - 1
    first_params = sum(layer.param_bytes for layer in width.layers if layer.id in stages[0])
    first_params -= width.tied_bytes if num_stages == 1 else 0.0
    experts = sum(layer.expert_param_bytes for layer in width.layers if layer.id in stages[0])
    ranks = data_parallel * (width.context_parallel if devices[0] > 1 else 1)
    groups = max(1, ranks // width.expert_parallel)
    agreed = (ranks - 1) / ranks * (first_params - experts) + (groups - 1) / groups * experts
    resync = problem.resync_factor * agreed / problem.link_bytes_per_s
    updated = (first_params - experts) / ranks + experts / groups if problem.zero_stage else first_params
    time_s = max(loads) * rounds + resync + problem.update_s_per_byte * updated
    plan = Plan(
        tensor_parallel=width.tensor_parallel,
        context_parallel=width.context_parallel,
        zero_stage=problem.zero_stage if ranks > 1 else 0,
        data_parallel=data_parallel,
        expert_parallel=width.expert_parallel,
        stages=tuple(
            Stage(layers=tuple(ids), devices=count, load_s=load)
            for ids, count, load in zip(stages, devices, loads, strict=True)
        ),
        time_per_batch_s=time_s,
    )
    return _PricedPlacement(plan=plan, time_per_batch_s=time_s, memory_bytes=tuple(memory), faults=tuple(faults))


def _structure_faults(width: Width, stages: StageLayers) -> list[str]:
    """Layers that are missing or placed twice, and edges that go backward."""
    stage_of = {id_: index for index, stage in enumerate(stages) for id_ in stage}
    faults = []
    placed = [id_ for stage in stages for id_ in stage]
    if sorted(placed) != sorted(layer.id for layer in width.layers):
        faults.append("every layer must be in exactly one stage")
    for edge in width.edges:
        if stage_of.get(edge.source, 0) > stage_of.get(edge.dest, 0):
            faults.append(f"edge {edge.source} -> {edge.dest} goes back to an earlier stage")
    return faults


def _load(problem: PlacementProblem, width: Width, stage: Sequence[int], is_last: bool) -> float:
    """Seconds of one microbatch on the stage, forward and backward."""
    inside = set(stage)
    forward = {x.id: x.forward_s for x in width.layers if x.id in inside}
    backward = {x.id: x.backward_s for x in width.layers if x.id in inside}
    arriving, returning = _transfers(problem, width, inside)
    down = [(e.source, e.dest) for e in width.edges if e.source in inside and e.dest in inside]
    up = [(dest, source) for source, dest in down]
    first = _run(forward, down, arriving, 0.0)
    if problem.recompute and not is_last:
        recomputed = _run(forward, down, {}, 0.0)
        return first + _run(backward, up, returning, recomputed)
    return first + _run(backward, up, returning, 0.0)


def _transfers(problem: PlacementProblem, width: Width, inside: set[int]) -> tuple[dict[int, float], dict[int, float]]:
    """Arrival time of each layer's last incoming tensor, in forward and in backward."""
    size: dict[tuple[int, int], float] = {}
    for edge in width.edges:
        size[edge.source, edge.dest] = size.get((edge.source, edge.dest), 0.0) + edge.size_bytes
    arriving: dict[int, float] = {}
    returning: dict[int, float] = {}
    for (source, dest), size_bytes in size.items():
        seconds = size_bytes / problem.link_bytes_per_s
        if dest in inside and source not in inside:
            arriving[dest] = max(arriving.get(dest, 0.0), seconds)
        if source in inside and dest not in inside:
            returning[source] = max(returning.get(source, 0.0), seconds)
    return arriving, returning


def _run(seconds: dict[int, float], needs: list[tuple[int, int]], arrivals: dict[int, float], start: float) -> float:
    """End time of a device that runs one layer at a time and never idles while one is ready."""
    waiting = dict.fromkeys(seconds, 0)
    after: dict[int, list[int]] = {id_: [] for id_ in seconds}
    for source, dest in needs:
        waiting[dest] += 1
        after[source].append(dest)
    free = [id_ for id_, count in waiting.items() if count == 0]
    now = start
    while free:
        chosen = min(free, key=lambda id_: arrivals.get(id_, 0.0))
        free.remove(chosen)
        now = max(now, arrivals.get(chosen, 0.0)) + seconds[chosen]
        for dest in after[chosen]:
            waiting[dest] -= 1
            if waiting[dest] == 0:
                free.append(dest)
    return now


def _memory(problem: PlacementProblem, width: Width, stage: Sequence[int], position: int, ranks: int) -> float:
    """Bytes on a device of the stage at ``position`` from the end, whose parameters have ``ranks`` replicas."""
    inside = set(stage)
    params = sum(layer.param_bytes for layer in width.layers if layer.id in inside)
    params -= width.tied_bytes if len(inside) == len(width.layers) else 0.0
    activations = sum(layer.activation_bytes for layer in width.layers if layer.id in inside)
    entering = sum(e.size_bytes for e in width.edges if e.dest in inside and e.source not in inside)
    optimizer_copies = problem.optimizer_copies
    states = optimizer_copies if optimizer_copies is not None else 1 if problem.optimizer.value == "Adam" else 0
    stash = entering if problem.recompute else activations
    updated = params
    if problem.zero_stage:
        experts = sum(layer.expert_param_bytes for layer in width.layers if layer.id in inside)
        updated = (params - experts) / ranks + experts / max(1, ranks // width.expert_parallel)
    return 2 * params + states * updated + activations + (position - 1) * stash


def fixed_strategy_stages(problem: PlacementProblem) -> list[list[int]] | None:
    """Layers of the expert's stages; None without an expert or with more stages than devices.

    Stage i holds the positions (0-based in topological order, embedding included) with
    ``pos // ceil(T / p) == i`` for pos < T = ``num_transformer_layers``; all later ones are in the last stage.
    """
    fixed = problem.fixed
    if fixed is None or fixed.num_stages > problem.num_devices:
        return None
    per_stage, last = -(-fixed.num_transformer_layers // fixed.num_stages), fixed.num_stages - 1
    stages: list[list[int]] = [[] for _ in range(fixed.num_stages)]
    for position, id_ in enumerate(problem.layer_ids):
        inner = position < fixed.num_transformer_layers
        stages[min(position // per_stage, last) if inner else last].append(id_)
    return stages


@dataclass(frozen=True, slots=True, kw_only=True)
class _PricedWithTerms:
    """A plan with its stage times, total time and errors, one sentence each."""

    plan: Plan
    time_per_batch_s: float
    faults: tuple[str, ...]


def price_with_terms(problem: PlacementProblem, terms: PlacementTerms, plan: Plan) -> _PricedWithTerms:
    """Price ``plan`` from its layers, devices, types, copies, chunks and ZeRO stage; its own times are ignored."""
    check = _Check(problem, terms, plan)
    loads = [check.load(index) for index in range(len(plan.stages))]
    per_copy = -(-problem.num_microbatches // plan.data_parallel)
    time_s = max(loads) * (plan.virtual_stages * per_copy + plan.num_stages - 1)
    stages_that_agree = range(len(plan.stages)) if terms.resync_every_stage else range(1)
    share = 0.5 if plan.zero_stage == 3 else 1.0
    time_s += plan.virtual_stages * share * max(check.agreement(index) for index in stages_that_agree)
    stages = tuple(replace(stage, load_s=load) for stage, load in zip(plan.stages, loads, strict=True))
    return _PricedWithTerms(
        plan=replace(plan, stages=stages, time_per_batch_s=time_s),
        time_per_batch_s=time_s,
        faults=tuple(check.faults(per_copy)),
    )


class _Check:
    """One plan of one problem; every method is about one stage (counted from 0, first stage first)."""

    def __init__(self, problem: PlacementProblem, terms: PlacementTerms, plan: Plan) -> None:
        self.problem, self.terms, self.plan = problem, terms, plan
        degrees = plan.tensor_parallel, plan.context_parallel, plan.expert_parallel
        self.width: Width = next(
            w for w in problem.widths if (w.tensor_parallel, w.context_parallel, w.expert_parallel) == degrees
        )
        widest = any(layer.is_split for layer in self.width.layers)
        self.group_devices = plan.tensor_parallel * plan.context_parallel if widest else 1
        self.tiers: Sequence[Tier] = terms.tiers or (
            Tier(size=problem.num_devices, bytes_per_s=problem.link_bytes_per_s),
        )
        types = terms.device_types or (
            DeviceType(name="", num_devices=problem.num_devices, memory_bytes=problem.memory_bytes),
        )
        self.types = {device_type.name: device_type for device_type in types}

    # Contents of a stage

    def layers(self, index: int) -> list[PlacedLayer]:
        inside = set(self.plan.stages[index].layers)
        return [layer for layer in self.width.layers if layer.id in inside]

    def tied(self, index: int) -> float:
        """Bytes that a stage of all layers holds once though two of them count them."""
        return self.width.tied_bytes if len(self.layers(index)) == len(self.width.layers) else 0.0

    def is_split(self, index: int) -> bool:
        return any(layer.is_split for layer in self.layers(index))

    def type_of(self, index: int) -> DeviceType:
        return self.types[self.plan.stages[index].device_type]

    # Position of a stage

    def group(self, index: int) -> int:
        """Device group counted from the end."""
        return (len(self.plan.stages) - 1 - index) % self.plan.num_stages

    def start(self, index: int) -> int:
        """First device of the stage's group within its device type."""
        mine, behind = self.group(index), 0
        for later in range(len(self.plan.stages) - self.plan.num_stages, len(self.plan.stages)):
            same_type = self.plan.stages[later].device_type == self.plan.stages[index].device_type
            if same_type and self.group(later) < mine:
                behind += self.plan.data_parallel * self.plan.stages[later].devices
        return behind

    def tier_between(self, upstream: int) -> Tier:
        """Tier of the links from stage ``upstream`` to the one after it."""
        downstream = upstream + 1
        if self.plan.stages[upstream].device_type != self.plan.stages[downstream].device_type:
            return self.tiers[-1]
        reach = self.plan.data_parallel * self.group_devices
        if self.group(upstream) < self.group(downstream):  # interleaved: from the last group back to the first
            return self._holding(0, reach * self.plan.num_stages - 1)
        boundary = self.start(upstream)
        return self._holding(max(0, boundary - reach), boundary + reach - 1)

    def _holding(self, first: int, last: int) -> Tier:
        for tier in self.tiers[:-1]:
            if first // tier.size == last // tier.size:
                return tier
        return self.tiers[-1]

    # Time of a stage

    def load(self, index: int) -> float:
        layers, last = self.layers(index), len(self.plan.stages) - 1
        slowdown = self.type_of(index).slowdown
        inside = {layer.id for layer in layers}
        inner = [(e.source, e.dest) for e in self.width.edges if e.source in inside and e.dest in inside]
        forward = {layer.id: layer.forward_s * slowdown for layer in layers}
        backward = {layer.id: layer.backward_s * slowdown for layer in layers}
        arriving = self._arrivals(inside, self.tier_between(index - 1), inward=True) if index else {}
        returning = self._arrivals(inside, self.tier_between(index), inward=False) if index < last else {}
        load = _run(forward, inner, arriving, 0.0)
        again = _run(forward, inner, {}, 0.0) if self.problem.recompute and index < last else 0.0
        load += _run(backward, [(dest, source) for source, dest in inner], returning, again)
        return load + (self.agreement(index) if self.plan.zero_stage == 3 else 0.0)

    def _arrivals(self, inside: set[int], tier: Tier, *, inward: bool) -> dict[int, float]:
        size: dict[tuple[int, int], float] = {}
        for e in self.width.edges:
            if (e.source in inside) != (e.dest in inside) and (e.dest in inside) == inward:
                size[e.source, e.dest] = size.get((e.source, e.dest), 0.0) + e.size_bytes
        arrivals: dict[int, float] = {}
        for (source, dest), size_bytes in size.items():
            waits = dest if inward else source
            arrivals[waits] = max(arrivals.get(waits, 0.0), tier.latency_s + size_bytes / tier.bytes_per_s)
        return arrivals

    def ranks(self, index: int) -> tuple[int, int, int]:
        """Devices with the same dense parameters, devices with the same experts, and their spacing."""
        copies = self.plan.data_parallel * (self.plan.context_parallel if self.is_split(index) else 1)
        spacing = self.plan.tensor_parallel if self.is_split(index) else 1
        return copies, max(1, copies // self.plan.expert_parallel), spacing

    def agreement(self, index: int) -> float:
        """Seconds to reduce the stage's gradients over its copies."""
        experts = sum(layer.expert_param_bytes for layer in self.layers(index))
        dense = sum(layer.param_bytes - layer.expert_param_bytes for layer in self.layers(index)) - self.tied(index)
        copies, expert_copies, spacing = self.ranks(index)
        agreed = self._agree(dense, copies, spacing)
        return agreed + self._agree(experts, expert_copies, spacing * self.plan.expert_parallel)

    def _agree(self, size_bytes: float, ranks: int, spacing: int) -> float:
        if size_bytes <= 0:
            return 0.0
        seconds, done = 0.0, 1
        for tier in self.tiers:
            fit = gcd(ranks, tier.size // spacing) if tier.size % spacing == 0 else 1
            together = ranks if tier is self.tiers[-1] else fit
            parties = together // done
            seconds += self.terms.resync_factor * (parties - 1) / parties * (size_bytes / done) / tier.bytes_per_s
            seconds += 2 * (parties - 1) * tier.latency_s
            done = together
        return seconds

    # Memory and errors

    def memory(self, index: int) -> float:
        """Bytes of the stage on a device, with other chunks of the device counted as equal."""
        params = sum(layer.param_bytes for layer in self.layers(index)) - self.tied(index)
        experts = sum(layer.expert_param_bytes for layer in self.layers(index))
        copies, expert_copies, _ = self.ranks(index)
        shared = (params - experts) / copies + experts / expert_copies
        zero = self.plan.zero_stage
        state_bytes = self.problem.states * (shared if zero >= 1 else params)
        state_bytes += shared if zero >= 2 else params
        state_bytes += shared + max(layer.param_bytes for layer in self.layers(index)) if zero == 3 else params
        activations = sum(layer.activation_bytes for layer in self.layers(index))
        inside = {layer.id for layer in self.layers(index)}
        entering = sum(e.size_bytes for e in self.width.edges if e.dest in inside and e.source not in inside)
        stash = entering if self.problem.recompute else activations
        v, depth = self.plan.virtual_stages, self.plan.num_stages
        in_flight = self.group(index) + 1 if v == 1 else (v - 1) * depth + 2 * self.group(index) + 1
        return v * state_bytes + activations + (in_flight - 1) * stash

    def faults(self, per_copy: int) -> list[str]:
        plan, problem = self.plan, self.problem
        stages = [stage.layers for stage in plan.stages]
        faults = _structure_faults(self.width, stages)
        for index in range(len(plan.stages)):
            memory, limit = self.memory(index), self.type_of(index).memory_bytes
            if memory > limit * (1 + SLACK):
                faults.append(f"stage {index} needs {memory:.6g} bytes of {limit:.6g}")
            alone = plan.virtual_stages == 1 and not self.is_split(index)
            if plan.stages[index].devices != (1 if alone else self.group_devices):
                faults.append(f"stage {index} takes {plan.stages[index].devices} devices")
        for name, device in self.types.items():
            groups = range(len(stages) - plan.num_stages, len(stages))
            used = sum(plan.stages[i].devices for i in groups if plan.stages[i].device_type == name)
            if used * plan.data_parallel > device.num_devices:
                faults.append(f"{used} x {plan.data_parallel} devices exceed {device.num_devices} of type {name!r}")
        if plan.data_parallel > problem.num_microbatches:
            faults.append(f"{plan.data_parallel} copies share {problem.num_microbatches} microbatches")
        if problem.even_copies and problem.num_microbatches % plan.data_parallel:
            faults.append(f"{problem.num_microbatches} microbatches do not divide into {plan.data_parallel} copies")
        if plan.data_parallel * plan.context_parallel % plan.expert_parallel:
            faults.append(f"experts do not split over {plan.data_parallel} copies")
        if plan.virtual_stages > 1 and (per_copy % plan.num_stages or len(stages) % plan.virtual_stages):
            faults.append("interleaving needs microbatches per copy in whole rounds of the pipeline")
        runs = [
            stage.device_type
            for i, stage in enumerate(plan.stages)
            if i == 0 or stage.device_type != plan.stages[i - 1].device_type
        ]
        if len(set(runs)) < len(runs):
            faults.append("the stages on one device type must be neighbours")
        return faults
