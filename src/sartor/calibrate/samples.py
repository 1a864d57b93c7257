"""Which GEMMs to measure, and the trials that decide whether a device's own rows give it a factor.

Each further GEMM makes the chosen ones' distribution over (log m, log n, log k, log waves) most like that of the pool
(kernel herding: Chen, Welling and Smola 2010, eq. 8). Two alternatives had larger held-out errors: points as far apart
as possible, which picks the corners first, and D- or A-optimal designs from the formula's sensitivities, which cannot
know what the formula misses. docs/howto/calibrate.md has the figures.

Fit a smooth factor on predicted times to a few measured GEMMs: how large it is, and over what distance it varies.

A Gaussian process with a fitted mean. Length scale, height and noise are the values of a small grid that make the rows
most likely (Rasmussen and Williams 2006, eq. 5.8), so a few scattered rows change little except the mean. Outliers are
clipped to four robust standard deviations. The same rows give the same factor.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from sartor.calibrate.fit import Index, Products
from sartor.cost.correction.calibration import SHORTEST, OwnRows, closeness
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import DType
from sartor.units import FloatArray, Floats

POOL = 1500
"""Number of GEMMs to choose from; larger pools are thinned evenly in order of FLOPs."""


def choose(products: Products, count: int) -> Index:
    """Indices of the ``count`` most informative GEMMs, best first; all of them if there are no more."""
    if count >= len(products):
        return np.arange(len(products), dtype=np.int64)
    pool = _thinned(products, max(POOL, 4 * count))
    return pool[_herded(_places(products.part(pool)), count)]


REACH = 1.0
"""Length scale of the similarity, in standard deviations; half of it gave the same held-out error."""


def _herded(points: FloatArray, count: int) -> Index:
    """Greedily pick the point most similar to all points and least similar to those already chosen."""
    target, had = np.concatenate([_alike(part, points).mean(axis=1) for part in _parts(points)]), np.zeros(len(points))
    chosen = np.empty(count, dtype=np.int64)
    for i in range(count):
        lacking = target - had / (i + 1)
        lacking[chosen[:i]] = -np.inf
        chosen[i] = int(lacking.argmax())
        had += _alike(points[chosen[i : i + 1]], points)[0]
    return chosen


def _alike(part: FloatArray, points: FloatArray) -> FloatArray:
    """Similarity of each of ``part`` points to every point of ``points``, 0 to 1."""
    squared: Floats = sum((part[:, None, i] - points[None, :, i]) ** 2 for i in range(points.shape[1]))
    similarity: FloatArray = np.exp(-0.5 * squared / REACH**2)
    return similarity


def _parts(points: FloatArray) -> list[FloatArray]:
    """Split points so that the similarity of one piece to all points takes about 16 MB."""
    pieces = 1 + len(points) ** 2 // 2_000_000
    return np.array_split(points, min(pieces, len(points)))


def _places(products: Products) -> FloatArray:
    """(log m, log n, log k, log waves) of every product, each scaled to a standard deviation of 1."""
    batch_m, sms = 1.0 * products.batch * products.m, products.gpu.num_sms
    waves = np.ceil(products.m / 128) * np.ceil(products.n / 128) * products.batch / sms
    columns = np.log(np.stack([batch_m, products.n, products.k, waves], axis=1))
    spread = columns.std(axis=0)
    scaled: FloatArray = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled


def _thinned(products: Products, limit: int) -> Index:
    order = np.lexsort((products.m, products.n, products.k, products.flops))
    if order.size <= limit:
        return order.astype(np.int64)
    return order[np.linspace(0, order.size - 1, limit).astype(np.int64)].astype(np.int64)


# ------------------------------------------------------------------------------------------- regions


def regions(products: Products, folds: int = 4, pieces: int = 4) -> Index:
    """The fold of every product, 0 .. folds - 1: one per weight (n, k). A fold is ``pieces`` contiguous blocks of the
    (log n, log k) plane.

    The plane is halved at medians, the longer side first, until there are folds x pieces blocks. If there are few
    distinct weights, blocks are split along m too.
    """
    keys = np.stack([products.n, products.k], axis=1)
    if len(np.unique(keys, axis=0)) < 2 * folds:
        keys = np.stack([products.n, products.k, products.batch * products.m], axis=1)
    cells, cell_index = np.unique(keys, axis=0, return_inverse=True)
    block = _blocks(np.log(cells), folds * pieces)
    return (block % folds)[cell_index.ravel()].astype(np.int64)


def _blocks(points: FloatArray, count: int) -> Index:
    parts = [np.arange(len(points))]
    while len(parts) < count and max(part.size for part in parts) > 1:
        largest = max(range(len(parts)), key=lambda i: parts[i].size)
        part = parts.pop(largest)
        axis = int(np.ptp(points[part], axis=0).argmax())
        order = part[np.argsort(points[part, axis], kind="stable")]
        parts[largest:largest] = [order[: part.size // 2], order[part.size // 2 :]]
    out = np.empty(len(points), dtype=np.int64)
    for i, part in enumerate(parts):
        out[part] = i
    return out


# ------------------------------------------------------------------------------------------- what to measure

GRID_M = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
GRID_NK = (128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, 11008, 12288, 14336, 16384)
"""Rows and weight sizes usual in transformers; the ragged ones are not divisible by 64, so misalignment is measured."""
GRID_RAGGED = (1000, 1928, 4104, 5000)


def grid(gpu: Gpu, dtype: DType) -> Products:
    """Candidate GEMMs (TN): decode to prefill rows, weight sizes of models, small enough for the device's memory."""
    lengths = (*GRID_NK, *GRID_RAGGED)
    m, n, k = (axis.ravel() for axis in np.meshgrid(GRID_M, lengths, lengths, indexing="ij"))
    gemm_bytes = dtype.bytes * (m * k + n * k) + 2.0 * m * n
    fits = (gemm_bytes < 0.25 * gpu.hbm_bytes) & ~(np.isin(n, GRID_RAGGED) & np.isin(k, GRID_RAGGED))
    m, n, k = (axis[fits].astype(np.int64) for axis in (m, n, k))
    return Products(gpu=gpu, dtype=dtype, batch=np.ones_like(m), m=m, n=n, k=k, layouts=np.full(m.size, "TN"))


COLUMNS = ("gpu", "dtype", "batch", "m", "n", "k", "layout")


def plan_samples(gpu: Gpu, dtype: DType, count: int) -> Products:
    """The ``count`` most informative GEMMs of the grid, best first."""
    pool = grid(gpu, dtype)
    return pool.part(choose(pool, count))


def _plan_rows(products: Products) -> list[JsonDict]:
    """One row per GEMM with the columns of a measurement table, except for the time."""
    shared = {"gpu": products.gpu.name, "dtype": products.dtype.value}
    columns = zip(products.batch, products.m, products.n, products.k, products.layouts, strict=True)
    return [
        shared | {"batch": int(b), "m": int(m), "n": int(n), "k": int(k), "layout": str(layout)}
        for b, m, n, k, layout in columns
    ]


def as_csv(products: Products) -> str:
    """The rows with a header line."""
    lines = [",".join(str(row[name]) for name in COLUMNS) for row in _plan_rows(products)]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def plan_body(products: Products, path: str | None) -> JsonDict:
    """The JSON of ``sartor calibrate --plan``."""
    gpu, dtype = products.gpu.name, products.dtype.value
    return {"gpu": gpu, "dtype": dtype, "file": path, "plan": _plan_rows(products)}


LENGTHS = (SHORTEST, 4.0, 7.0)
HEIGHTS = (0.03, 0.07, 0.15, 0.3)
NOISES = (0.02, 0.04, 0.08, 0.16)
MEAN_SD = 0.5
"""Prior standard deviation of the mean: another clock, another definition of what is timed."""
OUTLIER = 4.0
MOST_POINTS = 400
"""Run time grows with the cube of the number of GEMMs and file size with the number; the first rows tell most."""


def fit_own_rows(products: Products, predicted_s: FloatArray, measured_s: FloatArray) -> OwnRows:
    """The factor from ``predicted_s`` to ``measured_s`` fitted to the first ``MOST_POINTS`` GEMMs. The caller sets its
    standard deviations from held-out rows."""
    points = np.log(np.stack([1.0 * products.batch * products.m, products.n, products.k], axis=1))[:MOST_POINTS]
    y = _drawn_in(np.log(measured_s / predicted_s)[:MOST_POINTS])
    apart = {length: closeness(points, points, length) for length in LENGTHS}
    likely = [
        (_log_likelihood(height**2 * apart[length] + MEAN_SD**2, noise, y), length, height, noise)
        for length, height, noise in product(LENGTHS, HEIGHTS, NOISES)
    ]
    _, length, height, noise = max(likely)
    alpha = np.linalg.solve(height**2 * apart[length] + MEAN_SD**2 + noise**2 * np.eye(y.size), y)
    return OwnRows(
        mean=_rounded(MEAN_SD**2 * alpha.sum()),
        length=length,
        points=tuple((_rounded(a), _rounded(b), _rounded(c)) for a, b, c in points),
        weights=tuple(_rounded(height**2 * weight) for weight in alpha),
        log_sigma=0.25,
        log_sigma_small=0.25,
    )


def no_factor(products: Products) -> OwnRows:
    """A factor of 1: the rows only determine the width of the interval."""
    point = tuple(_rounded(np.log(float(size[0]))) for size in (products.batch * products.m, products.n, products.k))
    return OwnRows(
        mean=0.0,
        length=1.0,
        points=((point[0], point[1], point[2]),),
        weights=(0.0,),
        log_sigma=0.25,
        log_sigma_small=0.25,
    )


def factor_of(own_rows: OwnRows, products: Products) -> FloatArray:
    """Factor by which to multiply the predicted times of these GEMMs."""
    rows, n, k = (column.astype(np.float64) for column in (products.batch * products.m, products.n, products.k))
    factor: FloatArray = np.exp(own_rows.log_factor(rows, n, k)[0])
    return factor


def _drawn_in(y: FloatArray) -> FloatArray:
    middle = np.median(y)
    usual = 1.4826 * np.median(np.abs(y - middle)) + 0.01
    drawn: FloatArray = np.clip(y, middle - OUTLIER * usual, middle + OUTLIER * usual)
    return drawn


def _log_likelihood(covariance: FloatArray, noise: float, y: FloatArray) -> float:
    factor = np.linalg.cholesky(covariance + noise**2 * np.eye(y.size))
    half = np.linalg.solve(factor, y)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())


def _rounded(value: float) -> float:
    """Rounded to the six digits written to the file."""
    return float(f"{value:.6g}")
