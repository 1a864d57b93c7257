"""Random placement problems, small enough to be enumerated, and harsh: transfers as long as layers, little memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from sartor.placement.problem import Edge, FixedStrategy, PlacedLayer, PlacedOptimizer, PlacementProblem, Width

Rng = np.random.Generator


def random_chain(rng: Rng, num_layers: int) -> PlacementProblem:
    """A chain, often with skip edges, at one to three widths with some layers split."""
    pairs = [(v - 1, v) for v in range(1, num_layers)]
    for _ in range(int(rng.integers(0, 4)) if num_layers > 2 else 0):
        u, v = sorted(rng.choice(num_layers, 2, replace=False).tolist())
        if v - u > 1 and (u, v) not in pairs:
            pairs.append((u, v))
    return _problem(rng, num_layers, pairs)


def random_graph(rng: Rng, num_layers: int) -> PlacementProblem:
    """A layer graph without a path through all: any edges that go forward, some layers joined to nothing."""
    share = rng.uniform(0.2, 0.7)
    pairs = [(u, v) for v in range(num_layers) for u in range(v) if rng.random() < share]
    missing = int(rng.integers(1, num_layers))
    return _problem(rng, num_layers, [pair for pair in pairs if pair != (missing - 1, missing)])


def _problem(rng: Rng, num_layers: int, pairs: list[tuple[int, int]]) -> PlacementProblem:
    widths = sorted(rng.choice([1, 2, 3, 4], int(rng.integers(1, 4)), replace=False).tolist())
    num_devices = int(rng.integers(1, 15))
    base = _layers(rng, num_layers)
    sizes = [0.0 if rng.random() < 0.1 else float(rng.uniform(0, 4)) for _ in pairs]
    edges = tuple(Edge(source=u, dest=v, size_bytes=size) for (u, v), size in zip(pairs, sizes, strict=True))
    split_share = rng.choice([0.0, 0.5, 1.0])
    splits = rng.random(num_layers) < split_share
    fixed = FixedStrategy(
        num_stages=int(rng.integers(1, num_layers + 2)),
        tensor_parallel=int(rng.choice(widths)),
        data_parallel=int(rng.integers(1, 4)),
        num_transformer_layers=int(rng.integers(1, num_layers + 2)),
    )
    problem = PlacementProblem(
        widths=tuple(
            Width(tensor_parallel=t, layers=tuple(_split(x, t) if splits[x.id] else x for x in base), edges=edges)
            for t in widths
        ),
        memory_bytes=float(rng.choice([6.0, 12.0, 25.0, 60.0, 1000.0]) * rng.uniform(0.7, 1.3)),
        num_devices=num_devices,
        link_bytes_per_s=float(rng.choice([0.3, 1.0, 5.0, 1000.0])),
        num_microbatches=int(rng.integers(1, 40)),
        recompute=bool(rng.random() < 0.5),
        optimizer=PlacedOptimizer.ADAM if rng.random() < 0.5 else PlacedOptimizer.SGD,
        fixed=fixed,
    )
    problem = replace(problem, even_copies=bool(rng.random() < 0.3))
    return _tied(problem, float(rng.choice([0.0, 0.5, 1.0])))


def _tied(problem: PlacementProblem, share: float) -> PlacementProblem:
    """The first and the last layer share parameters."""
    first, last = problem.layer_ids[0], problem.layer_ids[-1]

    def tied(width: Width) -> Width:
        most = min(x.param_bytes for x in width.layers if x.id in (first, last))
        return replace(width, tied_bytes=share * most if first != last else 0.0)

    return replace(problem, widths=tuple(tied(width) for width in problem.widths))


def _layers(rng: Rng, num_layers: int) -> list[PlacedLayer]:
    equal = rng.random() < 0.3  # as in real models: the same layer many times
    drawn = [
        PlacedLayer(
            id=v,
            param_bytes=float(rng.uniform(0, 2)),
            activation_bytes=float(rng.uniform(0, 2)),
            forward_s=0.0 if rng.random() < 0.1 else float(rng.uniform(0, 2)),
            backward_s=float(rng.uniform(0, 4)),
            is_split=False,
        )
        for v in range(num_layers)
    ]
    return [replace(drawn[0], id=v) for v in range(num_layers)] if equal else drawn


def _split(layer: PlacedLayer, t: int) -> PlacedLayer:
    return replace(
        layer,
        is_split=True,
        param_bytes=layer.param_bytes / t,
        activation_bytes=layer.activation_bytes / t**0.5,
        forward_s=layer.forward_s / t**0.8,
        backward_s=layer.backward_s / t**0.8,
    )


def uniform_chain(
    num_layers: int, *, num_devices: int, num_microbatches: int = 8, **changes: object
) -> PlacementProblem:
    """Equal layers of 1 s forward and 2 s backward, 1 byte each, edges of 1 byte, links of 1e6 bytes/s."""
    layer = PlacedLayer(id=0, param_bytes=1.0, activation_bytes=1.0, forward_s=1.0, backward_s=2.0, is_split=False)
    problem = PlacementProblem(
        widths=(
            Width(
                tensor_parallel=1,
                layers=tuple(replace(layer, id=v) for v in range(num_layers)),
                edges=tuple(Edge(source=u, dest=v, size_bytes=1.0) for u, v in pairwise(range(num_layers))),
            ),
        ),
        memory_bytes=1e9,
        num_devices=num_devices,
        link_bytes_per_s=1e6,
        num_microbatches=num_microbatches,
        recompute=False,
        optimizer=PlacedOptimizer.SGD,
    )
    return replace(problem, **changes)  # type: ignore[arg-type]
