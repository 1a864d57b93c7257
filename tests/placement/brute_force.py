"""Every placement of a small problem, priced from the words of the published problem; nothing of the solver is used."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations
from math import ceil, inf

from sartor.placement.problem import PlacedOptimizer, PlacementProblem, Width

Stages = tuple[frozenset[int], ...]


def best_time(problem: PlacementProblem) -> float:
    """The least time of a batch over all widths, ordered partitions and numbers of copies; infinite if none fits."""
    best = inf
    for width in problem.widths:
        needs = {layer.id: {e.source for e in width.edges if e.dest == layer.id} for layer in width.layers}
        prices: dict[tuple[frozenset[int], bool], tuple[float, float, float, int]] = {}
        for stages in partitions(frozenset(), needs):
            best = min(best, _best_copies(problem, width, stages, prices))
    return best


def partitions(done: frozenset[int], needs: dict[int, set[int]]) -> Iterator[Stages]:
    """All ways to go on from the layers done, stage by stage, no layer before what it needs."""
    left = sorted(set(needs) - done)
    if not left:
        yield ()
        return
    for picked in range(1, 1 << len(left)):
        stage = frozenset(v for bit, v in enumerate(left) if picked >> bit & 1)
        if all(needs[v] <= done | stage for v in stage):
            for rest in partitions(done | stage, needs):
                yield (stage, *rest)


def _best_copies(problem: PlacementProblem, width: Width, stages: Stages, prices: dict) -> float:
    worst, devices = 0.0, 0
    for index, stage in enumerate(stages):
        position = len(stages) - index
        key = stage, position == 1
        if key not in prices:
            prices[key] = _stage(problem, width, stage, position == 1)
        load, held, stash, count = prices[key]
        if held + (position - 1) * stash > problem.memory_bytes:
            return inf
        worst, devices = max(worst, load), devices + count
    params = sum(x.param_bytes for x in width.layers if x.id in stages[0])
    params -= width.tied_bytes if len(stages) == 1 else 0.0
    most = min(problem.num_devices // devices, problem.num_microbatches)
    return min(
        (
            worst * (ceil(problem.num_microbatches / d) + len(stages) - 1)
            + 4 * (d - 1) / d * params / problem.link_bytes_per_s
            for d in range(1, most + 1)
            if problem.num_microbatches % d == 0 or not problem.even_copies
        ),
        default=inf,
    )


def _stage(
    problem: PlacementProblem, width: Width, stage: frozenset[int], is_last: bool
) -> tuple[float, float, float, int]:
    """Load, bytes held, bytes per further microbatch, devices."""
    layers = {x.id: x for x in width.layers if x.id in stage}
    into = [e for e in width.edges if e.dest in stage and e.source not in stage]
    out = [e for e in width.edges if e.source in stage and e.dest not in stage]
    inner = [(e.source, e.dest) for e in width.edges if e.source in stage and e.dest in stage]
    rate = problem.link_bytes_per_s
    forward = {v: x.forward_s for v, x in layers.items()}
    backward = {v: x.backward_s for v, x in layers.items()}
    arriving = {v: max((e.size_bytes / rate for e in into if e.dest == v), default=0.0) for v in stage}
    returning = {v: max((e.size_bytes / rate for e in out if e.source == v), default=0.0) for v in stage}
    load = shortest(forward, inner, arriving, 0.0)
    start = sum(forward.values()) if problem.recompute and not is_last else 0.0
    load += shortest(backward, [(w, v) for v, w in inner], returning, start)
    params = sum(x.param_bytes for x in layers.values())
    params -= width.tied_bytes if len(layers) == len(width.layers) else 0.0
    activations = sum(x.activation_bytes for x in layers.values())
    held = (3 if problem.optimizer is PlacedOptimizer.ADAM else 2) * params + activations
    stash = sum(e.size_bytes for e in into) if problem.recompute else activations
    return load, held, stash, width.devices if any(x.is_split for x in layers.values()) else 1


def shortest(seconds: dict[int, float], inner: list[tuple[int, int]], ready: dict[int, float], start: float) -> float:
    """The earliest end of one device over every order of its layers that respects the edges."""
    if _is_path(sorted(seconds), inner):
        orders: Iterator[tuple[int, ...]] = iter([_path(seconds, inner)])
    else:
        orders = permutations(seconds)
    best = inf
    for order in orders:
        place = {v: index for index, v in enumerate(order)}
        if all(place[u] < place[v] for u, v in inner):
            now = start
            for v in order:
                now = max(now, ready[v]) + seconds[v]
            best = min(best, now)
    return best


def _is_path(ids: list[int], inner: list[tuple[int, int]]) -> bool:
    pairs = set(inner)
    up = all((u, v) in pairs for u, v in pairwise(ids))
    return up or all((v, u) in pairs for u, v in pairwise(ids))


def _path(seconds: dict[int, float], inner: list[tuple[int, int]]) -> tuple[int, ...]:
    ids = sorted(seconds)
    return tuple(ids) if set(pairwise(ids)) <= set(inner) else tuple(ids[::-1])
