"""Fit the residuals of grouped GEMMs to whole fused MoE layers and add them to ``cost/correction/data/residual/``.

Development only (torch, pandas, pyarrow, scipy, the shared data): ``python lab/fit_moe_residual.py SHARED
[gpu | gpu.family | gpu.]...`` (``gpu.``: the median of frameworks). One network per device and kernel family, and then
one for the median of frameworks. A layer is two grouped GEMMs and other kernels; the network corrects both GEMMs, and
their sum with the rest is compared with the measured layer. Targets are those of lab/fit_grouped.py. Each quarter of
the weight shapes is held out in turn; all errors and the interval are over these held-out layers. Seeded.
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fit_residual
from fit_grouped import GPUS, KEYS, SHAPE, SOURCE, completed, layers, layers_of, middle_of, moe_table
from networks import network
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.gemm_features import PART, SHORT, grouped_columns, grouped_features, grouped_floor_s
from sartor.cost.correction.network import PANEL, Residual, fingerprint, forward, residual_records
from sartor.cost.gpu.grouped import grouped_terms
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType
from sartor.records.rows import kernel_family

WIDTH, LAYERS, BATCH, RATE, DECAY, STEPS = 16, 3, 512, 6e-3, 0.3, 500
JITTERS = (0.2, 0.0)
"""Standard deviations of noise on the network's inputs during the fit (so that it also fits nearby weight shapes); the
better one on held-out shapes is used."""
LOSSES = ("ln", "ratio")
"""Of predicted over measured time, the logarithm or its difference from 1, by which rows are judged."""
SEEDS = (0, 1, 2)
RATIO_GAIN = 0.003
"""A known kernel's network is fitted by the ratio if that lowers its error on held-out shapes by this with every seed
(one seed alone moves it by 0.006, lab/notebook/moe.md); the middle of families, which lie far apart, always is. The
first seed is what ships."""
FOLDS = 4
LEAST_SHAPES = 6
"""Fewest weight shapes: with fewer, networks did worse than the formula on held-out ones (11-30%, not 10-17%)."""
KIN = 2.0
"""How much wider a borrower's interval is: the median of 32 borrowed GEMM and attention kernels on Blackwell."""
LEAST_GAIN = 0.95
"""A network is kept only if its error on held-out shapes is below this share of the formula's."""
_LAYER_SIGMA = 0.87
"""Sigma of the sum of two equal parts relative to each part's, at a correlation of 1/2 (cost/cost.py: RHO)."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Layers of one device: formula time, least time and features of both GEMMs; time of the rest; measured time."""

    formula_s: Any
    """[2, rows]"""
    floor_s: Any
    features: Any
    """[2, features, rows]"""
    rest_s: Any
    measured_s: Any
    fold: Any
    """Index of the layer's quarter of the weight shapes."""
    short: Any
    coefficients: Any


def main(shared: Path, wanted: list[str]) -> None:
    torch.set_num_threads(1)
    every = moe_table(shared)
    for name in [gpu for gpu in GPUS if not wanted or any(each.split(".")[0] == gpu for each in wanted)]:
        rows = every[every.gpu == name]
        families = rows.kernel.astype(str).map(kernel_family)
        known = load_calibration(load_gpu(name))
        for family in (*sorted(set(families)), ""):
            asked = not wanted or name in wanted or f"{name}.{family}" in wanted
            if not asked or (family and family not in known.grouped_families):
                continue
            measured = completed(name, layers_of(rows, families, family))
            target = middle_of(measured)
            if len(target[SHAPE].drop_duplicates()) < LEAST_SHAPES:
                print(name, family, "too few weight shapes: left out", flush=True)
                continue
            put(name, family, rows_of(name, family, target), Doubt.of(target, measured))


def rows_of(name: str, family: str, target: pd.DataFrame) -> Rows:
    gpu = load_gpu(name)
    c = load_calibration(gpu).with_kernels(family).grouped
    found, peak, count = layers(name, target), peak_flops_per_s(gpu, DType.BF16), len(target)
    formula, floor, rest = np.empty((2, count)), np.empty((2, count)), np.empty(count)
    features: Any = None
    for where, products, seconds in found.parts:
        rest[where] = seconds
        for i, op in enumerate(products):
            columns = grouped_columns(op, where.shape)
            seen = grouped_features(columns, peak, c, gpu)
            features = np.empty((2, len(seen), count), dtype=np.float32) if features is None else features
            features[i][:, where] = seen
            formula[i, where] = grouped_terms(op, gpu, c)["time_s"]
            floor[i, where] = grouped_floor_s(columns, peak, gpu)
    return Rows(
        formula_s=formula,
        floor_s=floor,
        features=features,
        rest_s=rest,
        measured_s=found.measured_s,
        fold=folds(target),
        short=formula[0] < SHORT * c.launch_s,
        coefficients=c,
    )


def folds(target: pd.DataFrame) -> Any:
    """The fold of every row: weight shapes in order of size, every fourth in the same fold."""
    shapes = target[SHAPE].drop_duplicates().sort_values(SHAPE)
    return target.merge(shapes.assign(fold=np.arange(len(shapes)) % FOLDS), on=SHAPE, how="left").fold.to_numpy()


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Every family's measurement of every layer; an interval should cover 80% of them."""

    layer: Any
    """Index of the layer."""
    measured_s: Any

    @classmethod
    def of(cls, target: pd.DataFrame, every: pd.DataFrame) -> Doubt:
        joined = target.assign(layer=np.arange(len(target))).merge(every, on=KEYS, suffixes=("_middle", ""))
        return cls(layer=joined.layer.to_numpy(), measured_s=joined.us.to_numpy(dtype=np.float64) * 1e-6)


def put(name: str, family: str, rows: Rows, doubt: Doubt) -> None:
    """Compute held-out errors in four folds, fit on all rows, and write the network and its record."""
    key = f"{name}.moe{'.' + family if family else ''}"
    everywhere = np.ones(rows.measured_s.shape, dtype=bool)
    held_out = cache(partial(best, name, rows))
    gains = (held_out("ln", seed).mape - held_out("ratio", seed).mape for seed in SEEDS)
    loss = "ratio" if not family or all(gain >= RATIO_GAIN for gain in gains) else "ln"
    found = held_out(loss, SEEDS[0])
    time_s = found.time_s
    formula_s = rows.rest_s + rows.formula_s.sum(axis=0)
    where = f"{name} {family or 'middle of kernel families'}"
    least, most = np.quantile(_target(rows), [0.001, 0.999])
    sigmas = sigma_pair(time_s, rows, doubt)
    record = {
        "gpu": name,
        "part": PART,
        "fingerprint": fingerprint(rows.coefficients),
        "source": f"{SOURCE}, {where}",
        "date": datetime.date.today().isoformat(),
        "rows": len(rows.measured_s),
        "formula": errors(formula_s, rows, everywhere),
        "held_out": errors(time_s, rows, everywhere),
        "fitted_on": found.known,
        "least": round(float(least), 4),
        "most": round(float(most), 4),
        "formula_log_sigma": rows.coefficients.log_sigma,
        "coverage": coverage(time_s, rows, doubt),
        **sigmas,
        **{f"kin_{each}": round(KIN * value, 4) for each, value in sigmas.items()},
    }
    after, before = record["held_out"], record["formula"]
    print(key, found.way, before, after, flush=True)
    if after["mape"] > LEAST_GAIN * before["mape"] or after["median"] > before["median"]:
        print(key, "no better than the formula: left out", flush=True)
        return
    final = fit(name, rows, everywhere, found.way)
    fit_residual.save(key, final)
    _forget()  # another fit may have written in the meantime
    fit_residual.write({**{each: dict(value) for each, value in residual_records().items()}, key: record})
    _forget()


def _forget() -> None:
    for name in ("_table", "_keys", "_load"):
        residual_records.__globals__[name].cache_clear()


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a network is fitted."""

    loss: str
    """One of ``LOSSES``."""
    jitter: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What networks fitted in one way say of the weight shapes that they have not seen."""

    way: Way
    time_s: Any
    mape: float
    known: dict[str, float]
    """Errors on the rows fitted on."""


def best(name: str, rows: Rows, loss: str, seed: int) -> HeldOut:
    """The better of ``JITTERS``."""
    ways = (Way(loss=loss, jitter=jitter, seed=seed) for jitter in JITTERS)
    return min((held_out_by(name, rows, way) for way in ways), key=lambda each: each.mape)


def held_out_by(name: str, rows: Rows, way: Way) -> HeldOut:
    time_s, known = np.empty(rows.measured_s.shape), {}
    for fold in range(FOLDS):
        unseen = rows.fold == fold
        predicted = predict(fit(name, rows, ~unseen, way), rows)
        time_s[unseen] = predicted[unseen]
        known = errors(predicted, rows, ~unseen)
    mape = errors(time_s, rows, np.ones(rows.measured_s.shape, dtype=bool))["mape"]
    return HeldOut(way=way, time_s=time_s, mape=mape, known=known)


def fit(name: str, rows: Rows, where: Any, way: Way) -> Residual:
    """Fit predicted over measured layers by least absolute error (smooth below 2%) of one of ``LOSSES``."""
    torch.manual_seed(way.seed)
    both = np.concatenate([rows.features[0][:, where], rows.features[1][:, where]], axis=1)
    mean, scale = both.mean(axis=1, keepdims=True), both.std(axis=1, keepdims=True) + 1e-6
    z = [torch.tensor(((each[:, where] - mean) / scale).T.copy()) for each in rows.features]
    formula = torch.tensor(rows.formula_s[:, where] * 1e6, dtype=torch.float32)
    rest, measured = (torch.tensor(each[where] * 1e6, dtype=torch.float32) for each in (rows.rest_s, rows.measured_s))
    parts: list[Any] = []
    for a, b in pairwise([len(mean), *[WIDTH] * LAYERS]):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    net = torch.nn.Sequential(*parts, torch.nn.Linear(WIDTH, 1))
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
        net[-1].bias.zero_()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.15)
    least, most = _bounds(rows, where)
    for _ in range(STEPS):
        batch = torch.randint(len(rest), (min(BATCH, len(rest)),))
        seen = [each[batch] + way.jitter * torch.randn(len(batch), each.shape[1]) for each in z]
        moved = [torch.exp(torch.clamp(net(each)[:, 0], least, most)) for each in seen]
        time = rest[batch] + formula[0, batch] * moved[0] + formula[1, batch] * moved[1]
        error = time / measured[batch] - 1 if way.loss == "ratio" else torch.log(time / measured[batch])
        loss = torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    linear = [part for part in net if isinstance(part, torch.nn.Linear)]
    layers = [(part.weight.detach().numpy(), part.bias.detach().numpy()[:, None]) for part in linear]
    inputs = np.concatenate([each.numpy().T for each in z], axis=1)
    ends = inputs.min(axis=1, keepdims=True), inputs.max(axis=1, keepdims=True)
    return network(name, (mean, scale), ends, layers, (least, most))


def _target(rows: Rows) -> Any:
    """ln of the factor that the GEMMs' total time needs to match the measured layer."""
    products = rows.formula_s.sum(axis=0)
    return np.log(np.maximum(rows.measured_s - rows.rest_s, 0.1 * products) / products)


def _bounds(rows: Rows, where: Any) -> tuple[float, float]:
    least, most = np.quantile(_target(rows)[where], [0.001, 0.999])
    return float(least), float(most)


def predict(residual: Residual, rows: Rows) -> Any:
    """Seconds of every layer."""
    count = rows.measured_s.size
    time_s = rows.rest_s.copy()
    for formula_s, floor_s, features in zip(rows.formula_s, rows.floor_s, rows.features, strict=True):
        log_factor, trust = forward(residual, np.pad(features, ((0, 0), (0, -count % PANEL)), mode="edge"))
        factor = np.exp(log_factor * trust, dtype=np.float64)[:count]
        time_s += np.maximum(formula_s * factor, floor_s)
    return time_s


def errors(time_s: Any, rows: Rows, where: Any) -> dict[str, float]:
    error = np.abs(time_s / rows.measured_s - 1)[where]
    found = {"mape": error.mean(), "median": np.median(error), "p90": np.quantile(error, 0.9)}
    return {"rows": int(error.size), **{key: round(float(value), 4) for key, value in found.items()}}


def coverage(time_s: Any, rows: Rows, doubt: Doubt) -> float:
    """Coverage of an 80% interval fitted on one half of the weight shapes and tested on the other, both ways."""
    missed, odd = np.abs(np.log(time_s[doubt.layer] / doubt.measured_s)), rows.fold[doubt.layer] % 2 == 1
    inside = [(missed[test] <= np.quantile(missed[~test], 0.8)).mean() for test in (odd, ~odd)]
    return round(float(np.mean(inside)), 4)


def sigma_pair(time_s: Any, rows: Rows, doubt: Doubt) -> dict[str, float]:
    """Standard deviations of one GEMM from the errors of held-out layers: long and short ones."""
    share, short = (1 - rows.rest_s / time_s)[doubt.layer], rows.short[doubt.layer]
    missed = np.abs(np.log(time_s[doubt.layer] / doubt.measured_s)) / (_LAYER_SIGMA * np.maximum(share, 0.2))
    parts = (~short, short)
    used = [part if part.sum() >= 30 else np.ones_like(part) for part in parts]
    long, short = (np.quantile(missed[part], 0.8) / 1.2816 for part in used)
    return {"log_sigma": round(float(long), 4), "log_sigma_small": round(float(short), 4)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
