"""Residual networks: how far measurements are from the formula, as a factor near 1 on a predicted time, stored as data.

There is one ``<key>.npz`` per fit in ``data/residual/``, and one ``residuals.json`` with the data each was fitted on,
its error on unseen weights, and the fingerprint of the coefficients it corrects. A residual belongs to exactly those
coefficients: if they change, it is not found. Written by lab/fit_residual.py.

The features of a network are dimensionless (ratios of compute, traffic and launch on this device, tiles over SMs, waste
of tiles, operands over L2), so another device with the same die can borrow it. Outside its fitted range the factor
fades to 1. Rows are evaluated in padded panels of one fixed size, so that an entry of an array equals the scalar call
to the last bit. Gains and known losses: docs/concepts/residual.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.correction.carrying import DIE
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    Coefficients,
    GemmCoefficients,
    GroupedCoefficients,
    table_of,
)
from sartor.cost.cost import Z80
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap

Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Weights: TypeAlias = npt.NDArray[np.float32]
Fitted: TypeAlias = GemmCoefficients | GroupedCoefficients | AttentionCoefficients
"""Coefficients that networks correct."""

BLOCK = 512
"""Most rows evaluated together."""

LIBRARY = "library"
"""Part of networks for GEMMs whose library is known."""

FRAMEWORK = "framework"
"""Part of networks for GEMMs whose framework is known, all of which were timed on the same shapes."""

PANEL = 16
"""Rows of one GEMM: few enough that OpenBLAS keeps it on one thread (below 2^18 multiplications), whose threads
wait for each other by spinning, which on a busy machine made this a hundred times slower. And as many as its kernels
treat alike: of 32 columns the one for AVX2 (Haswell, AMD) rounds the last 8 in another order than the first 24, so
that an entry of an array differed from the scalar call in the last bits."""

FADE = 1.0
"""Standard deviations beyond the fitted range at which the residual has faded completely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A network from dimensionless features to ln(measured / formula), and what is known of its error."""

    gpu: str
    dtype: str = ""
    """Type of the GEMMs it was fitted on; empty for other kernels."""
    mean: Weights
    """(features, 1): of the rows it was fitted on; ``scale``, ``low`` and ``high`` likewise."""
    scale: Weights
    low: Weights
    """Least standardised value seen; beyond it the residual fades."""
    high: Weights
    layers: tuple[tuple[Weights, Weights], ...]
    """(outputs, inputs) and (outputs, 1) per layer, ramps between them."""
    least: float
    """Range of ln(measured / formula) of the fitted rows, from this to ``most`` (all but 1 in 500)."""
    most: float
    formula_log_sigma: float
    """The calibration's own ``log_sigma`` at the time of the fit, for comparison with a borrower's."""
    log_sigma: float
    """Standard deviation of ln(measured / predicted) on unseen weights, residual included; ``small`` of short ones."""
    log_sigma_small: float
    kin_log_sigma: float
    """The same for a device with the same die that borrows coefficients and residual."""
    kin_log_sigma_small: float
    any_log_sigma: float = 0.0
    """For the network of attention's median: the standard deviation that covers 80% of all frameworks;
    ``any_log_sigma_small`` for short kernels."""
    any_log_sigma_small: float = 0.0
    own_lengths: bool = False
    """GEMMs: the network sees n and k as they are (``tuned_features``), not rounded to lengths of tables."""
    menu: bool = False
    """GEMMs: it also sees how near every tile and split of the formula comes to the best (``menu_features``)."""
    steps: tuple[int, ...] = ()
    """GEMMs with own lengths: the lengths of k by which it sees remainders; empty: ``STEPS``."""
    libraries: tuple[str, ...] = ()
    """GEMMs: libraries or frameworks that its inputs name, for kernels whose library is known; empty: it is for any."""
    each_log_sigma: tuple[tuple[float, float], ...] = ()
    """GEMMs: every framework's own ``log_sigma`` and ``log_sigma_small``, in the order of ``libraries``."""
    quantizing: tuple[float, float] = (0.0, 0.0)
    """Frameworks' GEMMs: seconds of a kernel that quantizes the input, and per byte of its traffic."""
    lengths: tuple[tuple[float, ...], ...] = ()
    """GEMMs: the n and k (fp32: and m) of linear layers, where a table holds few; empty: any."""
    windows: Weights = field(default_factory=lambda: np.zeros((0, 3), dtype=np.float32))
    """Attention, (head dimensions, 3): head_dim, least and most sliding window of the rows fitted on; empty where those
    have none."""
    head_dims: tuple[int, ...] = ()
    """Attention: head dimensions of the rows fitted on; empty: any."""
    stream_share: float = 1.0
    """Attention's decode: share of memory's bandwidth that the rows fitted on reach where keys and values are more than
    eight times L2 (95% quantile). Where they fit in L2, tables time a warm cache."""

    def of_library(self, index: int) -> Residual:
        """The same with the interval of one of its libraries, where each has its own."""
        if not self.each_log_sigma:
            return self
        long, small = self.each_log_sigma[index]
        return replace(
            self,
            log_sigma=long,
            log_sigma_small=small,
            kin_log_sigma=self.kin_log_sigma * long / self.log_sigma,
            kin_log_sigma_small=self.kin_log_sigma_small * small / self.log_sigma_small,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Flat arrays: the time with the residual, its standard deviation of ln(measured / predicted), and the factor."""

    time_s: Array
    log_sigma: Array
    factor: Array


def moved_by(
    residual: Residual,
    gpu: Gpu,
    columns: Mapping[str, Array],
    features: Callable[[Mapping[str, Array]], Weights],
    formula_s: Array,
    floor_s: Array,
    log_sigma: Array,
    short: Mask,
    among: Sequence[tuple[Residual, Mask]] = (),
) -> Corrected:
    """Times with the residual applied, never below ``floor_s``, with the residual's own error as interval.

    ``features`` computes the network's input from a block of ``columns``. Where the residual has faded, ``log_sigma``
    is the formula's own, and reaches as far as the nearest rows' factor would. ``short`` marks problems that are mostly
    launch. A time stays within those of the residuals ``among``, each where its mask holds.
    """
    log_factors, trusts = _evaluate((residual, *(alternative for alternative, _ in among)), columns, features)
    times = np.maximum(formula_s * np.exp(log_factors * trusts), floor_s)
    time_s, trust = times[0], trusts[0]
    if among:
        inside = np.stack([mask for _, mask in among])
        shortest = np.where(inside, times[1:], np.inf).min(axis=0)
        longest = np.where(inside, times[1:], -np.inf).max(axis=0)
        time_s = np.where(inside.any(axis=0), np.clip(time_s, shortest, longest), time_s)
    long, brief = _sigmas(residual, gpu)
    narrow = np.where(short, brief, long)
    unused = np.abs(log_factors[0]) * (1 - trust) / Z80
    sigma = np.hypot(trust * narrow + (1 - trust) * log_sigma, unused)
    return Corrected(time_s=time_s, log_sigma=sigma, factor=time_s / formula_s)


def applicable(calibration: Calibration, coefficients: Fitted, part: str = "") -> Residual | None:
    """The residual of these coefficients on the device they were fitted on, or on another of the same die."""
    residual = find_residual(coefficients, part)
    owners = {calibration.relative} | ({calibration.gpu} if calibration.calibrated else set())
    if residual is None or residual.gpu not in owners:
        return None
    alike = residual.gpu == calibration.gpu or calibration.same_die
    return residual if alike and coefficients.log_sigma <= DIE * residual.formula_log_sigma else None


def without_residuals(calibration: Calibration) -> Calibration:
    """The formula alone, to which the laws of docs/concepts/gemm.md apply. Its times count as analytic."""
    return replace(calibration, calibrated=frozenset(), relative="")


def _sigmas(residual: Residual, gpu: Gpu) -> tuple[float, float]:
    """Standard deviations of ln(measured / predicted) with the residual: long and short; wider on a borrower."""
    if gpu.name == residual.gpu:
        return residual.log_sigma, residual.log_sigma_small
    return residual.kin_log_sigma, residual.kin_log_sigma_small


def forward(residual: Residual, features: Weights) -> tuple[Weights, Weights]:
    """ln(measured / formula) and trust in it (0..1), for (features, rows); rows in whole panels."""
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
    residuals: Sequence[Residual], columns: Mapping[str, Array], features: Callable[[Mapping[str, Array]], Weights]
) -> tuple[Array, Array]:
    """ln(measured / formula) and trust, (residuals, rows), in blocks of whole panels, the last filled up with its own
    first row. Residuals share their inputs."""
    size = next(iter(columns.values())).size
    log_factors, trusts = np.empty((2, len(residuals), size))
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        inputs = features({name: _filled(values[start:stop]) for name, values in columns.items()})
        for i, residual in enumerate(residuals):
            log_factor, trust = forward(residual, inputs)
            log_factors[i, start:stop] = log_factor[: stop - start]
            trusts[i, start:stop] = trust[: stop - start]
    return log_factors, trusts


def _filled(values: Array) -> Array:
    missing = -values.size % PANEL
    return np.concatenate([values, np.full(missing, values[0])]) if missing else values


def find_residual(coefficients: Coefficients, part: str = "") -> Residual | None:
    """The residual fitted on exactly these coefficients, whichever device borrows them; None if there is none.

    ``part`` is the kernel if coefficients serve several: ``context``, ``generation``, ``encoder``, followed by a dot
    and the framework if the network is for that framework's kernels only; ``LIBRARY`` for GEMMs of a known library,
    ``FRAMEWORK`` for those of a known framework.
    """
    key = _keys().get((fingerprint(coefficients), part))
    return _load(key) if key else None


def residual_records() -> Mapping[str, JsonMap]:
    """Per fit (``h200_sxm.bf16``, ``h200_sxm.context``): source, date, rows, errors on unseen weights, fingerprint."""
    return _table()


def fingerprint(coefficients: Coefficients) -> str:
    """Sixteen hex digits of the non-default coefficients, without interval widths, which a borrower changes."""
    return _fingerprint(coefficients)


@cache
def _fingerprint(coefficients: Coefficients) -> str:
    named = [(f.name, getattr(coefficients, f.name), f.default) for f in fields(coefficients)]
    text = repr([(name, value) for name, value, plain in named if not _beside(name) and value != plain])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _beside(name: str) -> bool:
    """Interval widths, coefficients of GEMMs without residual or aligned as in no table, those from a borrower's
    datasheet, and whether a run turns through copies, which the formula answers."""
    return "log_sigma" in name or name == "copies" or name.startswith(_BESIDE)


_BESIDE = ("sub_block", "half_block", "quantize_pace", "coarse_share")


@cache
def _keys() -> dict[tuple[str, str], str]:
    return {(record["fingerprint"], record.get("part", "")): key for key, record in _table().items()}


@cache
def _table() -> dict[str, JsonDict]:
    file = _folder().joinpath("residuals.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


@cache
def _load(key: str) -> Residual:
    record = _table()[key]
    with _folder().joinpath(f"{key}.npz").open("rb") as file, np.load(file) as archive:
        arrays = {name: archive[name].astype(np.float32) for name in archive.files}
    count = sum(name.startswith("weight_") for name in arrays)
    return Residual(
        gpu=record["gpu"],
        dtype=record.get("dtype", ""),
        layers=tuple((arrays[f"weight_{i}"], arrays[f"bias_{i}"]) for i in range(count)),
        mean=arrays["mean"],
        scale=arrays["scale"],
        low=arrays["low"],
        high=arrays["high"],
        least=record["least"],
        most=record["most"],
        formula_log_sigma=record["formula_log_sigma"],
        log_sigma=record["log_sigma"],
        log_sigma_small=record["log_sigma_small"],
        kin_log_sigma=_times(record) * record["kin_log_sigma"],
        kin_log_sigma_small=_times(record) * record["kin_log_sigma_small"],
        own_lengths=record.get("own_lengths", False),
        menu=record.get("menu", False),
        steps=tuple(record.get("steps", ())),
        libraries=tuple(record.get("libraries", ())),
        each_log_sigma=tuple((long, small) for long, small in record.get("each_log_sigma", ())),
        quantizing=tuple(record.get("quantizing", (0.0, 0.0))),
        any_log_sigma=record.get("any_log_sigma", 0.0),
        any_log_sigma_small=record.get("any_log_sigma_small", 0.0),
        lengths=tuple(tuple(map(float, lengths)) for lengths in record.get("lengths", ())),
        head_dims=tuple(record.get("head_dims", ())),
        stream_share=record.get("stream_share", 1.0),
        **({"windows": arrays["windows"]} if "windows" in arrays else {}),
    )


def _times(record: JsonMap) -> float:
    """Factor on a borrower's interval so that it covers 80% on held-out devices (``lent.toml``)."""
    judged = (table_of("lent.toml") or {}).get("die", {})
    key = f"residual.{record.get('dtype') or record.get('part', '').partition('.')[0]}"
    return float(judged.get(key, {}).get("times", 1.0))


def _folder() -> Any:
    return resources.files("sartor.cost.correction").joinpath("data").joinpath("residual")
