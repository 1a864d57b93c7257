"""Teachers of a GEMM network: networks that also see the formula's terms, which are too slow to compute to ship.

With the times of all tiles, waves and splits among its inputs a network is nearer to weights it has not seen (bf16 of
B200: 3.0% off, 3.4 without), but they take six times as long as all the rest. A network with the plain inputs learns
most of it from rows that the teachers label: m, n and k decide the terms, so it can find them itself where it has
enough rows. No label of a teacher comes from a weight that was held out from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.gemm_features import table_length
from sartor.cost.gpu import gemm as cost_gemm
from sartor.cost.gpu.tiles import CHUNK, Machine, Problems, alternatives
from sartor.operators import DType, Gemm

TEACHERS = 2
OWN = 0.5
"""Share of the measured time in what a measured row teaches; the rest is the teachers'. Tuning tables, whose times
are those of whichever library won, teach nothing by themselves."""

LARGE = 512
"""Least m, n and k of the large rows drawn besides."""

Sizes = dict[str, Any]
Train = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A network with the mean and scale of its inputs."""

    mean: Any
    scale: Any
    net: Any

    def said(self, inputs: Any) -> Any:
        """ln(measured / formula) as it predicts it."""
        import torch

        with torch.no_grad():
            return self.net(torch.tensor(((inputs - self.mean) / self.scale).T.copy()))[:, 0].numpy()


def taught(
    inputs_of: Callable[[Sizes], Any],
    measured: tuple[Sizes, Any],
    gaps: list[tuple[Sizes, Any, Any]],
    train: Train,
    own: float = OWN,
    large: bool = False,
) -> tuple[Any, list[tuple[Sizes, Any]]]:
    """What a network is to learn: goals of the measured rows, and sets of other rows with goals. ``gaps`` are rows
    between the measured ones with interpolated goals; each set has as many drawn rows as there are measured ones, and
    with ``large`` as many large ones besides."""
    sizes, goal = measured
    inputs = inputs_of(sizes)
    between = [(inputs_of(each), goals) for each, goals, _ in gaps]
    team = [_teacher(seed, inputs, goal, between, train) for seed in range(1, TEACHERS + 1)]
    low, high = np.quantile(goal, [0.001, 0.999])

    def said(seen: Any) -> Any:
        return np.clip(np.mean([each.said(seen) for each in team], axis=0), low, high)

    random, sets = np.random.default_rng(1), []
    for (near, goals, _), (seen, _) in zip(gaps, between, strict=True):
        drawn = _drawn(random, sizes, len(goal))
        if large:
            most = _drawn(random, {name: values[values >= LARGE] for name, values in sizes.items()}, len(goal))
            drawn = {name: np.concatenate([values, most[name]]) for name, values in drawn.items()}
        rows = {name: np.concatenate([near[name], drawn[name]]) for name in sizes}
        sets.append((rows, np.concatenate([own * goals + (1 - own) * said(seen), said(inputs_of(drawn))])))
    return own * goal + (1 - own) * said(inputs), sets


def _teacher(seed: int, inputs: Any, goal: Any, between: list[tuple[Any, Any]], train: Train) -> Teacher:
    import torch

    torch.manual_seed(seed)
    mean, scale = inputs.mean(axis=1, keepdims=True), inputs.std(axis=1, keepdims=True) + 1e-6

    def scaled(values: Any) -> Any:
        return torch.tensor(((values - mean) / scale).T.copy())

    more = [(scaled(seen), torch.tensor(goals, dtype=torch.float32)) for seen, goals in between]
    return Teacher(mean=mean, scale=scale, net=train(scaled(inputs), torch.tensor(goal, dtype=torch.float32), more))


def _drawn(random: np.random.Generator, sizes: Sizes, count: int) -> Sizes:
    """``count`` rows: half of each size from those the table has, half from between its least and its greatest."""

    def one(values: Any) -> Any:
        known = np.unique(values)
        other = np.round(np.exp(random.uniform(np.log(known.min()), np.log(known.max()), count)))
        return np.where(random.random(count) < 0.5, random.choice(known, count), other)

    return {name: one(values) for name, values in sizes.items()}


def terms_of(machine: Machine, c: GemmCoefficients, dtype: DType) -> Callable[[Sizes], Any]:
    """A function from GEMM sizes to the formula's terms: of the tile it takes, and the time of all others over its."""

    def terms(sizes: Sizes) -> Any:
        whole = {"m": sizes["m"], "n": table_length(sizes["n"]), "k": table_length(sizes["k"])}
        gemm = Gemm(name="fit", dtype=dtype, **{name: value.astype(np.int64) for name, value in whole.items()})
        arrays, shape = cost_gemm._problem(gemm, c)
        flat = Problems(**{name: np.broadcast_to(value, shape).astype(np.float64) for name, value in arrays.items()})
        parts = [_terms(flat.part(slice(i, i + CHUNK)), machine, c) for i in range(0, shape[0], CHUNK)]
        return np.concatenate(parts, axis=1).astype(np.float32)

    return terms


def _terms(p: Problems, machine: Machine, c: GemmCoefficients) -> Any:
    ways = alternatives(p, machine, c)
    best = ways["time_s"].argmin(axis=0)[None]
    taken = {name: np.take_along_axis(values, best, axis=0)[0] for name, values in ways.items()}
    whole = len(ways["time_s"]) // 2
    full = (ways["wave_efficiency"] * ways["tile_efficiency"])[:whole]
    logs = ("time_s", "tile_m", "tile_n", "split_k", "waves")
    chosen = [np.log(taken[name]) for name in logs] + [taken["tile_efficiency"], taken["wave_efficiency"]]
    chosen += [np.log(taken[name] / taken["time_s"]) for name in ("compute_s", "memory_s")]
    chosen += [c.launch_s / taken["time_s"]]
    slower = np.minimum(np.log(np.minimum(ways["time_s"], 1e3) / taken["time_s"]), 1.0)
    return np.concatenate([np.stack(chosen), slower, np.log(np.maximum(full, 1e-3))])
