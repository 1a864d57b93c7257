"""How far measurements lay from the formula: a factor near 1 on a predicted time, from a small network.

The network sees a problem through numbers without units only (how compute, traffic and launch compare on this device,
tiles over SMs, what tiles waste, operands over L2), so a relative with other rates can borrow it. Outside what it was
fitted on the factor fades to 1. Rows are evaluated in blocks of one fixed size, padded, so that an entry of an array
equals the scalar call to the last bit. What it gains, and where it was found to lose: docs/concepts/residual.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.kinship import DIE
from sartor.cost.correction.network_data import Residual, Weights, find_residual
from sartor.hardware.gpu import Gpu

Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

BLOCK = 512
"""Rows evaluated together."""

PANEL = 32
"""Rows of one matrix product: few enough that OpenBLAS keeps it on one thread (below 2^18 multiplications). Its threads
wait for each other by spinning, which on a busy machine made this a hundred times slower."""

FADE = 1.0
"""Standard deviations beyond the range fitted on at which nothing of the residual is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Flat arrays: the time with the residual, its standard deviation of ln(measured / predicted), and the factor."""

    time_s: Array
    log_sigma: Array
    factor: Array


def correct(
    residual: Residual,
    gpu: Gpu,
    columns: Mapping[str, Array],
    features: Callable[[Mapping[str, Array]], Weights],
    formula_s: Array,
    floor_s: Array,
    log_sigma: Array,
    short: Mask,
) -> Corrected:
    """Times moved by the residual, never under ``floor_s``; intervals as wide as it was found to miss by.

    ``features`` turns a block of ``columns`` into what the network sees. Where the residual has faded, ``log_sigma``
    is the formula's own. ``short`` marks problems that are mostly launch.
    """
    log_factor, trust = _evaluate(residual, columns, features)
    time_s = np.maximum(formula_s * np.exp(log_factor * trust), floor_s)
    long, brief = sigmas(residual, gpu)
    narrow = np.where(short, brief, long)
    return Corrected(time_s=time_s, log_sigma=trust * narrow + (1 - trust) * log_sigma, factor=time_s / formula_s)


def applicable(calibration: Calibration, coefficients: Any, part: str = "") -> Residual | None:
    """The residual of these coefficients on the device they were fitted on, or on another of the same die."""
    residual = find_residual(coefficients, part)
    owners = {calibration.kin} | ({calibration.gpu} if calibration.calibrated else set())
    if residual is None or residual.gpu not in owners:
        return None
    alike = residual.gpu == calibration.gpu or calibration.kin_on_die
    return residual if alike and coefficients.log_sigma <= DIE * residual.formula_log_sigma else None


def without_residuals(calibration: Calibration) -> Calibration:
    """The formula alone: what the laws of docs/concepts/gemm.md are stated for. Its times count as analytic."""
    return replace(calibration, calibrated=frozenset(), kin="")


def sigmas(residual: Residual, gpu: Gpu) -> tuple[float, float]:
    """Standard deviations of ln(measured / predicted) with the residual: long and short; wider on a borrower."""
    if gpu.name == residual.gpu:
        return residual.log_sigma, residual.log_sigma_small
    return residual.kin_log_sigma, residual.kin_log_sigma_small


def forward(residual: Residual, features: Weights) -> tuple[Weights, Weights]:
    """ln(measured / formula) and how far to believe it (0..1), for (features, rows); rows in whole panels."""
    z = (features - residual.mean) / residual.scale
    inside = np.clip(z, residual.low, residual.high)
    trust = np.clip(1 - np.abs(z - inside).max(axis=0) / np.float32(FADE), 0, 1)
    panels = inside.reshape(len(inside), -1, PANEL).swapaxes(0, 1)
    for weight, bias in residual.layers[:-1]:
        panels = weight @ panels
        panels += bias
        np.maximum(panels, 0, out=panels)
    weight, bias = residual.layers[-1]
    log_factor = (weight.T * panels).sum(axis=1).reshape(-1) + bias[0]
    return np.clip(log_factor, residual.least, residual.most), trust


def _evaluate(
    residual: Residual, columns: Mapping[str, Array], features: Callable[[Mapping[str, Array]], Weights]
) -> tuple[Array, Array]:
    """Blocks of one size, the last filled up with its own first row."""
    size = next(iter(columns.values())).size
    log_factor, trust = np.empty(size), np.empty(size)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        rows = {name: _filled(values[start:stop]) for name, values in columns.items()}
        found, known = forward(residual, features(rows))
        log_factor[start:stop] = found[: stop - start]
        trust[start:stop] = known[: stop - start]
    return log_factor, trust


def _filled(values: Array) -> Array:
    if values.size == BLOCK:
        return values
    return np.concatenate([values, np.full(BLOCK - values.size, values[0])])
