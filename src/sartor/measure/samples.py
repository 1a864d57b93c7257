"""Which products to measure: the few that tell most, the grid they are chosen from, and regions to be held out whole.

A choice is good when, once measured, the times of all other products are known. What is not known before is the
formula's coefficients (through the sensitivity of each time to each of them) and a smooth misfit of the formula over
(log m, log n, log k, waves). Both together make a covariance of ln(time) over the pool; the next product is the one
whose measurement takes most of the variance off the whole pool (greedy A-optimal design; Krause et al. 2008).
"""

from __future__ import annotations

import numpy as np

from sartor.hardware.calibration import GemmCoefficients
from sartor.hardware.gpu import Gpu
from sartor.measure.fit import NOISE, Array, Index, Products, Unknowns, log_seconds, sensitivities
from sartor.operators import DType

POOL = 1500
"""Products a choice is made among; larger pools are thinned evenly along the order of their work."""

MISFIT, REACH = 0.2, 0.5
"""Standard deviation of what the formula misses, and how far it carries over, in standard deviations of the pool."""


def choose(products: Products, count: int, start: GemmCoefficients) -> Index:
    """Positions of the ``count`` products that tell most, most telling first; all of them where there are no more."""
    if count >= len(products):
        return np.arange(len(products), dtype=np.int64)
    pool = _thinned(products, max(POOL, min(3 * count, 4000)))
    covariance = _covariance(products.part(pool), start)
    return pool[_most_telling(covariance, count)]


def choose_at_random(products: Products, count: int, seed: int) -> Index:
    """Positions of ``count`` products drawn evenly."""
    drawn = np.random.default_rng(seed).permutation(len(products))
    return drawn[:count].astype(np.int64)


def _most_telling(covariance: Array, count: int) -> Index:
    """Greedy: each choice lowers the sum of variances most; then the covariance is conditioned on it."""
    left = covariance.copy()
    chosen: list[int] = []
    for _ in range(count):
        gain = (left**2).sum(axis=0) / (np.diag(left) + NOISE**2)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        left -= np.outer(left[:, best], left[best]) / (left[best, best] + NOISE**2)
    return np.asarray(chosen, dtype=np.int64)


def _covariance(products: Products, start: GemmCoefficients) -> Array:
    unknowns = Unknowns.of(start, penalties=products.misaligned)
    origin = np.clip(np.zeros(unknowns.sd.size), unknowns.low, unknowns.high)
    log_s = log_seconds(products, unknowns)
    jacobian = sensitivities(log_s, origin, unknowns, log_s(origin))
    at = places(products)
    squares = (at**2).sum(axis=1)
    apart = squares[:, None] + squares - 2 * at @ at.T
    covariance: Array = jacobian @ jacobian.T + MISFIT**2 * np.exp(-np.maximum(apart, 0) / (2 * REACH**2))
    return covariance


def places(products: Products) -> Array:
    """(log m, log n, log k, log waves) of every product, each scaled to a standard deviation of 1."""
    batch_m, sms = 1.0 * products.batch * products.m, products.gpu.num_sms
    waves = np.ceil(products.m / 128) * np.ceil(products.n / 128) * products.batch / sms
    columns = np.log(np.stack([batch_m, products.n, products.k, waves], axis=1))
    spread = columns.std(axis=0)
    scaled: Array = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled


def _thinned(products: Products, most: int) -> Index:
    order = np.lexsort((products.m, products.n, products.k, products.flops))
    if order.size <= most:
        return order.astype(np.int64)
    return order[np.linspace(0, order.size - 1, most).astype(np.int64)].astype(np.int64)


# ------------------------------------------------------------------------------------------- regions


def regions(products: Products, folds: int = 4, pieces: int = 4) -> Index:
    """The fold of every product, 0 .. folds - 1: whole weights (n, k), dealt in contiguous blocks of the
    (log n, log k) plane, ``pieces`` blocks to a fold.

    The plane is halved at medians, the longer side first, until there are folds x pieces blocks. Where all products
    share few weights, blocks are of m as well.
    """
    keys = np.stack([products.n, products.k], axis=1)
    if len(np.unique(keys, axis=0)) < 2 * folds:
        keys = np.stack([products.n, products.k, products.batch * products.m], axis=1)
    cells, of = np.unique(keys, axis=0, return_inverse=True)
    block = _blocks(np.log(cells), folds * pieces)
    return (block % folds)[of.ravel()].astype(np.int64)


def _blocks(points: Array, count: int) -> Index:
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
"""Rows and weights that transformers are made of; a few off 64 so that alignment is met."""
GRID_RAGGED = (1000, 1928, 4104, 5000)


def grid(gpu: Gpu, dtype: DType) -> Products:
    """Products worth thinking of: decode to prefill rows against the weights models have, TN, that fit the device."""
    lengths = (*GRID_NK, *GRID_RAGGED)
    m, n, k = (axis.ravel() for axis in np.meshgrid(GRID_M, lengths, lengths, indexing="ij"))
    held = dtype.bytes * (m * k + n * k) + 2.0 * m * n
    fits = (held < 0.25 * gpu.hbm_bytes) & ~(np.isin(n, GRID_RAGGED) & np.isin(k, GRID_RAGGED))
    m, n, k = (axis[fits].astype(np.int64) for axis in (m, n, k))
    return Products(gpu=gpu, dtype=dtype, batch=np.ones_like(m), m=m, n=n, k=k, layouts=np.full(m.size, "TN"))
