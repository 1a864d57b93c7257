"""Independent checker for plans with extended cost terms: plain loops over layers, devices and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from sartor.placement.check import SLACK, fixed_strategy_stages, run, structure_faults
from sartor.placement.plan import Plan, Stage
from sartor.placement.problem import PlacedLayer, PlacementProblem, Width
from sartor.placement.terms import DeviceType, PlacementTerms, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedWithTerms:
    """A plan with its stage times, total time and errors, one sentence each."""

    plan: Plan
    time_per_batch_s: float
    faults: tuple[str, ...]


def price_with_terms(problem: PlacementProblem, terms: PlacementTerms, plan: Plan) -> PricedWithTerms:
    """Price ``plan`` from its layers, devices, types, copies, chunks and ZeRO stage; its own times are ignored."""
    check = _Check(problem, terms, plan)
    loads = [check.load(index) for index in range(len(plan.stages))]
    per_copy = -(-problem.num_microbatches // plan.data_parallel)
    time_s = max(loads) * (plan.virtual_stages * per_copy + plan.num_stages - 1)
    stages_that_agree = range(len(plan.stages)) if terms.resync_every_stage else range(1)
    share = 0.5 if plan.zero_stage == 3 else 1.0
    time_s += plan.virtual_stages * share * max(check.agreement(index) for index in stages_that_agree)
    stages = tuple(replace(stage, load_s=load) for stage, load in zip(plan.stages, loads, strict=True))
    return PricedWithTerms(
        plan=replace(plan, stages=stages, time_per_batch_s=time_s),
        time_per_batch_s=time_s,
        faults=tuple(check.faults(per_copy)),
    )


def fixed_strategy_time_with_terms(problem: PlacementProblem, terms: PlacementTerms) -> float | None:
    """The time of the expert's strategy; None if it does not fit or there are several device types."""
    fixed, stages = problem.fixed, fixed_strategy_stages(problem)
    if fixed is None or stages is None or terms.device_types:
        return None
    width = next(width for width in problem.widths if width.tensor_parallel == fixed.tensor_parallel)
    split = {layer.id for layer in width.layers if layer.is_split}
    plan = Plan(
        tensor_parallel=width.tensor_parallel,
        context_parallel=width.context_parallel,
        expert_parallel=width.expert_parallel,
        data_parallel=fixed.data_parallel,
        stages=tuple(
            Stage(layers=tuple(ids), devices=width.devices if split & set(ids) else 1, load_s=0.0) for ids in stages
        ),
        time_per_batch_s=0.0,
    )
    priced = price_with_terms(problem, terms, plan)
    return None if priced.faults else priced.time_per_batch_s


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
        load = run(forward, inner, arriving, 0.0)
        again = run(forward, inner, {}, 0.0) if self.problem.recompute and index < last else 0.0
        load += run(backward, [(dest, source) for source, dest in inner], returning, again)
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
        faults = structure_faults(self.width, stages)
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
