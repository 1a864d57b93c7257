"""The residual of grouped products: what its networks see of one, and where they apply.

Tables hold whole fused layers of inference in 16-bit types; a network moves both products of a layer, and is fitted to
the layer's time. Gradients, and products that may run apart (training), keep the formula's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import GroupedCoefficients
from sartor.cost.correction.network import Array, Weights, applicable, moved_by
from sartor.hardware.gpu import Gpu
from sartor.operators import GroupedGemm, Pass

PART = "grouped"

SIZES = ("groups", "rows", "n", "k", "skew", "masked_rows", "tokens", "experts")

_TILES = (16, 64, 128)


def correct_grouped(
    op: GroupedGemm, time_s: Any, sigma: Any, short: Any, peak_flops_per_s: float, gpu: Gpu, calibration: Calibration
) -> tuple[Any, Any, Any]:
    """Time, standard deviation, and the factor the time was moved by (None where no residual applies)."""
    if op.pass_ is not Pass.FORWARD or op.dtype.bytes != 2:
        return time_s, sigma, None
    c = calibration.grouped
    residual = applicable(calibration, c, PART)
    if residual is None:
        return time_s, sigma, None
    shape = np.shape(time_s)
    columns = grouped_columns(op, shape)
    moved = moved_by(
        residual,
        gpu,
        columns,
        lambda block: grouped_features(block, peak_flops_per_s, c, gpu),
        np.reshape(time_s, -1),
        grouped_floor_s(columns, peak_flops_per_s, gpu),
        np.broadcast_to(sigma, shape).reshape(-1),
        np.broadcast_to(short, shape).reshape(-1),
    )
    return moved.time_s.reshape(shape), moved.log_sigma.reshape(shape), moved.factor.reshape(shape)


def grouped_columns(op: GroupedGemm, shape: tuple[int, ...]) -> dict[str, Array]:
    """Sizes as flat arrays."""
    return {name: np.broadcast_to(np.asarray(getattr(op, name), dtype=np.float64), shape).reshape(-1) for name in SIZES}


def grouped_features(block: Mapping[str, Array], peak_flops_per_s: float, c: GroupedCoefficients, gpu: Gpu) -> Weights:
    """What the network sees, (features, products): experts, tokens and their rows, how compute, traffic and launch
    compare, rows over L2, tiles over SMs. Not n and k themselves: tables hold a dozen weight shapes, which a network
    would learn by heart."""
    groups, routed, n, k, skew, others, told, held = (block[name] for name in SIZES)
    tokens, experts = np.where(told > 0, told, routed + others), np.where(held > 0, held, groups)
    rows, masked = walked_rows(routed, others, told, c.dragged)
    every, launch_s = walked_rows(routed, others, told, 1.0)[0], c.launch_s
    active = np.maximum(np.minimum(groups, rows), 1.0)
    each = np.maximum(rows / active, 1.0)
    compute = 2 * rows * n * k / peak_flops_per_s
    memory = 2 * (active * n * k + rows * (n + k)) / gpu.hbm_bytes_per_s
    ratios = [compute / memory, compute / launch_s, memory / launch_s]
    tiles: list[Array] = []
    for tile in _TILES:
        waves = active * np.ceil(each / tile) * np.ceil(n / 128) / gpu.num_sms
        tiles += [waves, np.ceil(waves) / waves, np.ceil(each / tile) * tile / each]
    sizes = [active, each, np.maximum(skew, 1.0), 1 + masked / rows]
    sizes += [tokens / experts, tokens, 2 * rows * k / gpu.l2_bytes, 1 + (every - routed) / rows]
    logs: Weights = np.log(np.stack([*sizes, *ratios, *tiles]).astype(np.float32))
    return logs


def walked_rows(rows: Any, masked: Any, tokens: Any, dragged: float) -> tuple[Any, Any]:
    """Rows computed and rows only masked: ``dragged`` of the choices that tokens with a row here made elsewhere are
    computed too."""
    if not dragged:
        return rows, masked
    every = np.asarray(rows, dtype=np.float64) + masked
    called = np.where(np.greater(tokens, 0), tokens, every)
    more = dragged * np.maximum(np.minimum(called, rows) * every / called - rows, 0.0)
    return rows + more, masked - more


def grouped_floor_s(block: Mapping[str, Array], peak_flops_per_s: float, gpu: Gpu) -> Array:
    """Least time the datasheet allows: FLOPs at peak, and weights beyond what L2 can hold at HBM's rate."""
    groups, rows, n, k = (block[name] for name in SIZES[:4])
    weights = 2 * np.minimum(groups, rows) * n * k
    memory = np.maximum(weights - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s
    least: Array = np.maximum(2 * rows * n * k / peak_flops_per_s, memory)
    return least
