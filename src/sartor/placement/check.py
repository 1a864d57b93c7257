"""An independent checker that prices a placement layer by layer.

It uses plain loops over layers and edges, written from the problem statement (docs/concepts/placement.md) without the
solver's tables. Every returned plan is checked here, and so is the expert's strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sartor.placement.plan import Plan, Stage
from sartor.placement.problem import PlacementProblem, Width

SLACK = 1e-9
"""Relative excess over a memory limit that counts as rounding."""

StageLayers = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlacement:
    """A placement with its price and its errors, one sentence each."""

    plan: Plan
    time_per_batch_s: float
    memory_bytes: tuple[float, ...]
    faults: tuple[str, ...]


def price(problem: PlacementProblem, width: Width, stages: StageLayers, data_parallel: int) -> PricedPlacement:
    """Price ``stages`` (layer ids, first stage first) in ``data_parallel`` copies at ``width``."""
    num_stages = len(stages)
    faults = structure_faults(width, stages)
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
    return PricedPlacement(plan=plan, time_per_batch_s=time_s, memory_bytes=tuple(memory), faults=tuple(faults))


def structure_faults(width: Width, stages: StageLayers) -> list[str]:
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
    first = run(forward, down, arriving, 0.0)
    if problem.recompute and not is_last:
        recomputed = run(forward, down, {}, 0.0)
        return first + run(backward, up, returning, recomputed)
    return first + run(backward, up, returning, 0.0)


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


def run(seconds: dict[int, float], needs: list[tuple[int, int]], arrivals: dict[int, float], start: float) -> float:
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


def fixed_strategy_time(problem: PlacementProblem) -> float | None:
    """The time of the expert's strategy; None if there is none or it does not fit."""
    stages = fixed_strategy_stages(problem)
    if problem.fixed is None or stages is None:
        return None
    width = next(width for width in problem.widths if width.tensor_parallel == problem.fixed.tensor_parallel)
    priced = price(problem, width, stages, problem.fixed.data_parallel)
    return None if priced.faults else priced.time_per_batch_s


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
