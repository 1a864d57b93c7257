"""The residual of matrix products: what its network sees of one, and where it applies.

Tables of tensor cores hold single products of a linear layer's forward (TN, batch 1, n and k in multiples of 256), so
there alone the formula is moved. Tables of general cores (fp32) hold those and batched products (NN), of any sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.network import Array, Mask, applicable, correct
from sartor.cost.correction.network_data import Weights
from sartor.cost.gpu.tiles import Machine, Problems
from sartor.hardware.gpu import Gpu

TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
         (192, 128), (256, 256))  # fmt: skip
"""Output tiles through which a product is seen, whatever the menu of its calibration."""


def correct_gemms(
    found: dict[str, Array],
    sigma: Array,
    short: Mask,
    tabled: Mask,
    across: Mask | None,
    p: Problems,
    machine: Machine,
    gpu: Gpu,
    calibration: Calibration,
    c: GemmCoefficients,
) -> tuple[dict[str, Array], Array]:
    """Times and standard deviations with the residual; unchanged where there is none.

    ``tabled`` marks products of the kind that tables hold, ``short`` those that are mostly launch. ``across`` is given
    for general cores and marks NN. The terms in ``found`` stay the formula's; how far the time was moved is added as
    ``residual`` when they are there.
    """
    residual, where = applicable(calibration, c), np.flatnonzero(tabled)
    if residual is None or not where.size:
        return found, sigma
    chosen = p.part(where)
    moved = correct(
        residual,
        gpu,
        _columns(chosen, across[where] if across is not None else None),
        lambda block: (gemm_features if across is None else general_features)(block, machine, c, gpu),
        found["time_s"][where],
        roofline_of(chosen, machine, gpu),
        sigma[where],
        short[where],
    )
    corrected = {**found, "time_s": _with(found["time_s"], where, moved.time_s)}
    if len(found) > 1:
        corrected["residual"] = _with(np.ones_like(sigma), where, moved.factor)
    return corrected, _with(sigma, where, moved.log_sigma)


def _columns(p: Problems, across: Mask | None) -> dict[str, Array]:
    if across is None:
        return {"m": p.m, "n": table_length(p.n), "k": table_length(p.k)}
    return {"m": p.m, "n": p.n, "k": p.k, "batch": p.batch, "across": across.astype(np.float64)}


def gemm_features(block: Mapping[str, Array], machine: Machine, c: GemmCoefficients, gpu: Gpu) -> Weights:
    """What the network sees, (features, products). No part of it depends on the clock or on the formula's time."""
    m, n, k = (block[name].astype(np.float32) for name in ("m", "n", "k"))
    log_m, log_n, log_k = np.log(m), np.log(n), np.log(k)
    wide, width = np.float32(machine.first_bytes), np.float32(machine.element_bytes)
    first, second, out = m * k * wide, n * k * width, m * n * np.float32(2)
    ratios = _ratios(log_m + log_n + log_k, (first, second, out), first + second + out, machine, c, gpu)
    ragged = [-m % q / q for q in _EDGES]
    parts = [*(np.stack(rows) for rows in ([log_m, log_n, log_k], ratios, ragged))]
    return np.concatenate([*parts, *_tiled(TILES, m, n, np.float32(1), log_m + log_n, machine)])


GENERAL_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64), (32, 32))
"""Output tiles of sgemm kernels, through which a product on general cores is seen."""


def general_features(block: Mapping[str, Array], machine: Machine, c: GemmCoefficients, gpu: Gpu) -> Weights:
    """The same of a product on general cores, batched or not: ``across`` is 1 where its layout is NN."""
    m, n, k, batch, across = (block[name].astype(np.float32) for name in ("m", "n", "k", "batch", "across"))
    log_m, log_n, log_k, log_batch = np.log(m), np.log(n), np.log(k), np.log(batch)
    width = np.float32(machine.element_bytes)
    first, second, out = m * k * width, n * k * width, m * n * width
    moved = batch * (first + second + out)
    ratios = _ratios(log_m + log_n + log_k + log_batch, (first, second, out), moved, machine, c, gpu)
    ragged = [-length % q / q for length in (m, n, k) for q in _GENERAL_EDGES]
    parts = [*(np.stack(rows) for rows in ([log_m, log_n, log_k, log_batch, across], ratios, ragged))]
    return np.concatenate([*parts, *_tiled(GENERAL_TILES, m, n, batch, log_m + log_n + log_batch, machine)])


def _ratios(
    log_mnk: Weights, operands: tuple[Weights, ...], moved: Weights, machine: Machine, c: GemmCoefficients, gpu: Gpu
) -> list[Weights]:
    """Compute, memory and launch against each other, and every operand against L2, all as ln."""
    compute = log_mnk + np.float32(np.log(2 / (machine.sm_flops_per_s * machine.num_sms)))
    memory = np.log(moved) - np.float32(np.log(gpu.hbm_bytes_per_s))
    launch, l2 = np.float32(np.log(c.launch_s)), np.float32(np.log(gpu.l2_bytes))
    return [compute - memory, compute - launch, memory - launch, *(np.log(b) - l2 for b in (*operands, moved))]


def _tiled(
    tiles: tuple[tuple[int, int], ...], m: Weights, n: Weights, batch: Any, log_area: Weights, machine: Machine
) -> tuple[Weights, Weights, Weights]:
    """What the last wave leaves idle, what tiles pad and how many waves there are, by tile, all as ln."""
    tm, tn = np.asarray(tiles, dtype=np.float32).T[:, :, None]
    grid = np.ceil(m / tm) * np.ceil(n / tn) * batch
    waves, log_grid = grid / np.float32(machine.num_sms), np.log(grid)
    log_waves = log_grid - np.float32(np.log(machine.num_sms))
    return np.log(np.ceil(waves)) - log_waves, log_grid + np.log(tm * tn) - log_area, log_waves


_GENERAL_EDGES = tuple(np.float32(q) for q in (2, 4, 8, 32, 128))
"""Of all three lengths: tables of general cores hold sizes at random."""

_EDGES = tuple(np.float32(q) for q in (8, 16, 32, 64, 128, 256))
"""Of rows only: tables hold n and k in multiples of 256 alone (but for the smallest), so theirs can't be learned."""


def table_length(length: Array) -> Array:
    """``n`` or ``k`` rounded up to what tables hold: 32, 64, 128, then multiples of 256.

    Between those the formula alone speaks: a factor learned from no measurement is noise a search would go after.
    """
    step = np.select([length <= 32, length <= 64, length <= 128], [32.0, 64.0, 128.0], 256.0)
    rounded: Array = np.ceil(length / step) * step
    return rounded


def roofline_of(p: Problems, machine: Machine, gpu: Gpu) -> Array:
    compute = 2 * p.batch * p.m * p.n * p.k / (machine.sm_flops_per_s * machine.num_sms)
    moved = p.batch * (p.k * (machine.first_bytes * p.m + machine.element_bytes * p.n) + p.out_bytes * p.m * p.n)
    least: Array = np.maximum(compute, np.maximum(moved - gpu.l2_bytes, 0) / gpu.hbm_bytes_per_s)
    return least


def _with(values: Array, where: Any, changed: Array) -> Array:
    out = values.copy()
    out[where] = changed
    return out
