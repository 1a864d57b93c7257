"""The residual of grouped GEMMs: what its networks see of one, and where they apply.

Tables hold whole fused layers of inference in 16-bit types; a network moves both GEMMs of a layer, and is fitted to
the layer's time. Gradients, and GEMMs that may run apart (training), keep the formula's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import GroupedCoefficients
from sartor.cost.correction.network import Weights, applicable, moved_by
from sartor.cost.cost import Cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.hardware.gpu import Gpu
from sartor.operators import GroupedGemm
from sartor.units import Array, Floats, Ints, shaped

PART = "grouped"

SIZES = ("groups", "rows", "n", "k", "skew", "masked_rows", "tokens", "experts")

_TILES = (16, 64, 128)


SHORT = 5
"""Grouped GEMMs shorter than so many launches have an interval of their own."""


def correct_grouped(op: GroupedGemm, cost: Cost, gpu: Gpu, calibration: Calibration) -> Cost:
    """The formula's cost with the network of its kernels applied; ``residual`` in its details is the factor."""
    if not op.pass_.computes_outputs or op.dtype.bytes != 2 or op.apart:
        return cost
    c, peak = calibration.grouped, peak_flops_per_s(gpu, op.dtype)
    residual = applicable(calibration, c, PART)
    if residual is None:
        return cost
    shape = np.shape(cost.time_s)
    formula_s, sigma = (np.asarray(np.broadcast_to(v, shape)).reshape(-1) for v in (cost.time_s, cost.log_sigma))
    columns = grouped_columns(op, shape)
    moved = moved_by(
        residual,
        gpu,
        columns,
        lambda block: grouped_features(block, peak, c, gpu),
        formula_s,
        grouped_floor_s(columns, peak, gpu),
        sigma,
        formula_s < SHORT * c.launch_s,
    )
    time_s, log_sigma, factor = (shaped(array, shape) for array in (moved.time_s, moved.log_sigma, moved.factor))
    return replace(cost, time_s=time_s, log_sigma=log_sigma, details=cost.details | {"residual": factor})


def grouped_columns(op: GroupedGemm, shape: tuple[int, ...]) -> dict[str, Array]:
    """Sizes as flat arrays."""
    return {name: np.broadcast_to(np.asarray(getattr(op, name), dtype=np.float64), shape).reshape(-1) for name in SIZES}


def grouped_features(block: Mapping[str, Array], peak_flops_per_s: float, c: GroupedCoefficients, gpu: Gpu) -> Weights:
    """The network's input, (features, GEMMs): experts, tokens and their rows, ratios of compute, traffic and launch,
    rows over L2, tiles over SMs. n and k themselves are left out: tables have a dozen weight shapes, which a network
    would memorize."""
    groups, routed, n, k, skew, others, masked_rows, experts_held = (block[name] for name in SIZES)
    tokens, experts = (
        np.where(masked_rows > 0, masked_rows, routed + others),
        np.where(experts_held > 0, experts_held, groups),
    )
    rows, masked = walked_rows(routed, others, masked_rows, c.dragged)
    walked, launch_s = walked_rows(routed, others, masked_rows, 1.0)[0], c.launch_s
    active = np.maximum(np.minimum(groups, rows), 1.0)
    rows_per_group = np.maximum(rows / active, 1.0)
    compute = 2 * rows * n * k / peak_flops_per_s
    memory = 2 * (active * n * k + rows * (n + k)) / gpu.hbm_bytes_per_s
    ratios = [compute / memory, compute / launch_s, memory / launch_s]
    tiles: list[Array] = []
    for tile in _TILES:
        waves = active * np.ceil(rows_per_group / tile) * np.ceil(n / 128) / gpu.num_sms
        tiles += [waves, np.ceil(waves) / waves, np.ceil(rows_per_group / tile) * tile / rows_per_group]
    sizes = [active, rows_per_group, np.maximum(skew, 1.0), 1 + masked / rows]
    sizes += [tokens / experts, tokens, 2 * rows * k / gpu.l2_bytes, 1 + (walked - routed) / rows]
    logs: Weights = np.log(np.stack([*sizes, *ratios, *tiles]).astype(np.float32))
    return logs


def walked_rows(rows: Ints, masked: Floats, tokens: Ints, dragged: float) -> tuple[Floats, Floats]:
    """Rows computed and rows only masked: of the choices that tokens with a row here made elsewhere, the share
    ``dragged`` is computed too."""
    if not dragged:
        return rows, masked
    walked = np.asarray(rows, dtype=np.float64) + masked
    called = np.where(np.greater(tokens, 0), tokens, walked)
    extra = dragged * np.maximum(np.minimum(called, rows) * walked / called - rows, 0.0)
    return rows + extra, masked - extra


def grouped_floor_s(block: Mapping[str, Array], peak_flops_per_s: float, gpu: Gpu) -> Array:
    """Least time the datasheet allows: FLOPs at peak, and weights beyond what L2 can hold at HBM's rate."""
    groups, rows, n, k = (block[name] for name in SIZES[:4])
    weights = 2 * np.minimum(groups, rows) * n * k
    memory = np.maximum(weights - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s
    floor_s: Array = np.maximum(2 * rows * n * k / peak_flops_per_s, memory)
    return floor_s
