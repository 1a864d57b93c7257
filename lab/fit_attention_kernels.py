"""Fit corrections to the attention formula for each framework: ``<gpu>.<part>.<framework>`` in
``cost/correction/data/residual/``, and the spread of frameworks around their median: the interval of an unknown one.

Development only (pandas, pyarrow, the shared data; no torch): ``python lab/fit_attention_kernels.py SHARED
[gpu.part.framework ...]``. Rows, features and inference are those of lab/fit_residual.py and ``sartor.cost``. Whole
head shapes (heads, key/value heads, head dimension) are held out, a quarter at a time, because a framework's kernels
change with the head shape. The network written is fitted on all rows. Seeded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fit_residual
from fit_residual import (
    DEVICES,
    Rows,
    attention_table,
    errors,
    predict,
    record_of,
    rows_of,
    save,
    windows_of,
    write,
)
from networks import bounds_of, network
from sartor.cost.correction.attention import PARTS
from sartor.cost.correction.network import Residual, residual_records

FRAMEWORKS = ("sglang", "trtllm", "vllm")
WIDTH, LAYERS, EPOCHS, BATCH, RATE, DECAY, ROUNDED = 40, 3, 150, 512, 6e-3, 0.1, 0.02
QUARTERS = 4
LEAST_ROWS = 1500


def main(shared: Path, wanted: list[str]) -> None:
    names = wanted or [f"{gpu}.{part}.{each}" for gpu in DEVICES[:-1] for part in PARTS for each in FRAMEWORKS]
    for name in names:
        gpu, _, what = name.partition(".")
        rows = rows_of(shared, gpu, what, gpu)
        if len(rows.seconds) < LEAST_ROWS:
            continue
        held = in_turn(gpu, rows)
        put(name, held)
        save(name, fit(gpu, rows, np.ones(len(rows.seconds), dtype=bool)))
        print(name, held["formula"]["mape"], held["held_out"], held["coverage"], held["log_sigma"], flush=True)
    medians = dict.fromkeys(name.rpartition(".")[0] for name in names)
    for median in (each for each in medians if each in residual_records()):
        put(median, apart(shared, median))


def put(name: str, values: dict[str, Any]) -> None:
    table = {key: dict(value) for key, value in residual_records().items()}
    table[name] = table.get(name, {}) | values
    write(table)
    fit_residual.measured._table.cache_clear()


def in_turn(gpu: str, rows: Rows) -> dict[str, Any]:
    """The record of a fit; every row's error is from a fit that did not see its head shape."""
    heads = pd.util.hash_pandas_object(rows.sizes[["heads", "kv_heads", "head_dim"]], index=False) % QUARTERS
    time_s, seen_s = np.empty(len(rows.seconds)), np.zeros(len(rows.seconds))
    for quarter in range(QUARTERS):
        held = (heads == quarter).to_numpy()
        if held.any():
            found = predict(fit(gpu, rows, ~held), rows)
            time_s[held] = found[held]
            seen_s += np.where(held, 0.0, found) / (QUARTERS - 1)
    everywhere = np.ones(len(rows.seconds), dtype=bool)
    judged = Rows(**{**{name: getattr(rows, name) for name in Rows.__dataclass_fields__}, "held_out": everywhere})
    what = rows.source.rpartition(f", {gpu} ")[2].replace(" ", ".")
    return record_of(gpu, what, judged, time_s) | {"fitted_on": errors(seen_s, rows, everywhere)}


def apart(shared: Path, median: str) -> dict[str, float]:
    """Standard deviations for an unknown framework: those that put 80% of all frameworks' times inside the interval
    around the median network, combined with the frameworks' own held-out deviations."""
    gpu, _, part = median.partition(".")
    table = attention_table(shared)
    there = table[(table.gpu == gpu) & (table.phase == part)].framework.unique()
    logs, small = [], []
    residual = fit_residual.measured._load(median)
    for framework in there:
        rows = rows_of(shared, gpu, f"{part}.{framework}", gpu)
        logs.append(np.abs(np.log(predict(residual, rows) / rows.seconds)))
        small.append(rows.formula_s < fit_residual.SHORT * rows.launch_s)
    error, short = np.concatenate(logs), np.concatenate(small)
    sides = [error[side] if side.sum() >= 30 else error for side in (~short, short)]
    spread = [float(np.quantile(side, 0.8) / 1.2816) for side in sides]
    own = [each for key, each in residual_records().items() if key.startswith(f"{median}.")]
    keys = ("log_sigma", "log_sigma_small")
    return {
        f"any_{k}": round(float(np.hypot(s, np.mean([e[k] for e in own]))), 4)
        for k, s in zip(keys, spread, strict=True)
    }


def fit(gpu: str, rows: Rows, where: Any) -> Residual:
    """Fit ln(measured / formula) by least absolute error (smooth below 2%)."""
    x, y = rows.features[:, where], np.log(rows.seconds / rows.formula_s)[where]
    mean, scale = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6
    z = ((x - mean) / scale).astype(np.float32)
    weights, biases = trained([(z.T.copy(), y.astype(np.float32))])
    ends = z.min(axis=1, keepdims=True), z.max(axis=1, keepdims=True)
    layers = [(w.T, b[:, None]) for w, b in zip(weights, biases, strict=True)]
    return network(gpu, (mean, scale), ends, layers, bounds_of(y), windows=windows_of(rows.sizes[where]))


def trained(sets: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """Weights (inputs, outputs) and biases of a ReLU network with ``LAYERS`` layers, trained by AdamW (Loshchilov and
    Hutter 2019) from a small initial output. Each epoch sees the next set of rows (inputs and goals)."""
    z, goal = sets[0]
    random, widths = np.random.default_rng(0), [z.shape[1], *[WIDTH] * LAYERS, 1]
    weights = [(random.uniform(-1, 1, pair) / np.sqrt(pair[0])).astype(np.float32) for pair in pairwise(widths)]
    weights[-1] *= 0.1
    biases = [np.zeros(width, dtype=np.float32) for width in widths[1:]]
    values = [*weights, *biases]
    first, second = ([np.zeros_like(each) for each in values] for _ in range(2))
    steps = max(1, len(z) // BATCH)
    for step in range(EPOCHS * steps):
        if step % steps == 0:
            z, goal = sets[step // steps % len(sets)]
            order = random.permutation(len(z))
        batch = order[step % steps * BATCH :][:BATCH]
        slopes = _slopes(weights, biases, z[batch], goal[batch])
        rate = _rate((step + 1) / (EPOCHS * steps))
        bias_1, bias_2 = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
        for value, slope, mean, square in zip(values, slopes, first, second, strict=True):
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope * slope - square)
            value *= 1 - rate * DECAY
            value -= rate * (mean / bias_1) / (np.sqrt(square / bias_2) + 1e-8)
    return weights, biases


def _rate(done: float) -> float:
    """Learning rate: rises over the first 15%, then falls as a cosine."""
    return RATE * (done / 0.15 if done < 0.15 else 0.5 * (1 + np.cos(np.pi * (done - 0.15) / 0.85)))


def _slopes(weights: list[Any], biases: list[Any], z: Any, goal: Any) -> list[Any]:
    """Gradients of the mean absolute error (smooth below ``ROUNDED``): of the weights, then of the biases."""
    layers = [z]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        layers.append(np.maximum(layers[-1] @ weight + bias, 0))
    out = (layers[-1] @ weights[-1] + biases[-1])[:, 0]
    slope = (np.clip((out - goal) / ROUNDED, -1, 1) / len(goal))[:, None].astype(np.float32)
    by_weight, by_bias = [], []
    for layer, weight in zip(reversed(layers), reversed(weights), strict=True):
        by_weight.insert(0, layer.T @ slope)
        by_bias.insert(0, slope.sum(axis=0))
        slope = (slope @ weight.T) * (layer > 0)
    return [*by_weight, *by_bias]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
