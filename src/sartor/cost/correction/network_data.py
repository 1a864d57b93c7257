"""Residuals: small networks that say how far measurements lay from the formula, as data with their evidence.

One ``<key>.npz`` per fit in ``calibration/residual/`` and one ``residuals.toml`` with what each was fitted on, how well
it did on weights it had not seen, and the fingerprint of the coefficients it corrects. A residual belongs to those
coefficients and no others: refit or replace them and it is not found. Written by lab/fit_residual.py.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.tables import table_of

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A network from dimensionless features to ln(measured / formula), and what is known of its error."""

    gpu: str
    mean: Weights
    """(features, 1): of the rows it was fitted on; ``scale``, ``low`` and ``high`` likewise."""
    scale: Weights
    low: Weights
    """Least standardised value seen; beyond it the residual fades."""
    high: Weights
    layers: tuple[tuple[Weights, Weights], ...]
    """(outputs, inputs) and (outputs, 1) per layer, ramps between them."""
    least: float
    """ln(measured / formula) of the rows fitted on lay between this and ``most`` (all but 1 in 500)."""
    most: float
    formula_log_sigma: float
    """The calibration's own ``log_sigma`` when this was fitted: what a borrower's widening is measured against."""
    log_sigma: float
    """Standard deviation of ln(measured / predicted) on unseen weights, residual included; ``small`` of short ones."""
    log_sigma_small: float
    kin_log_sigma: float
    """The same where a device of the same die borrows coefficients and residual."""
    kin_log_sigma_small: float
    windows: Weights = field(default_factory=lambda: np.zeros((0, 3), dtype=np.float32))
    """Attention, (head dimensions, 3): head_dim, least and most sliding window of the rows fitted on; empty where those
    have none."""


def find_residual(coefficients: Any, part: str = "") -> Residual | None:
    """The residual fitted on exactly these coefficients, whoever borrows them; None where there is none.

    ``part`` names the kernel where coefficients serve several: ``context``, ``generation``, ``encoder``.
    """
    key = _keys().get((fingerprint(coefficients), part))
    return _load(key) if key else None


def residual_records() -> Mapping[str, Mapping[str, Any]]:
    """Per fit (``h200_sxm.bf16``, ``h200_sxm.context``): source, date, rows, errors on unseen weights, fingerprint."""
    return _table()


def fingerprint(coefficients: Any) -> str:
    """Sixteen hex digits of the coefficients that are not defaults, less the interval's width: a borrower widens it."""
    return _fingerprint(coefficients)


@cache
def _fingerprint(coefficients: Any) -> str:
    named = [(f.name, getattr(coefficients, f.name), f.default) for f in fields(coefficients)]
    text = repr([(name, value) for name, value, plain in named if not _beside(name) and value != plain])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _beside(name: str) -> bool:
    """Widths of intervals, and what concerns only products no residual is fitted on."""
    return "log_sigma" in name or name.startswith(("sub_block", "half_block"))


@cache
def _keys() -> dict[tuple[str, str], str]:
    return {(record["fingerprint"], record.get("part", "")): key for key, record in _table().items()}


@cache
def _table() -> dict[str, dict[str, Any]]:
    file = _folder().joinpath("residuals.toml")
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


@cache
def _load(key: str) -> Residual:
    record = _table()[key]
    with _folder().joinpath(f"{key}.npz").open("rb") as file, np.load(file) as held:
        arrays = {name: held[name].astype(np.float32) for name in held.files}
    count = sum(name.startswith("weight_") for name in arrays)
    return Residual(
        gpu=record["gpu"],
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
        **({"windows": arrays["windows"]} if "windows" in arrays else {}),
    )


def _times(record: Mapping[str, Any]) -> float:
    """What a borrower's interval has to be multiplied by so that it holds 80% on devices held out (``lent.toml``)."""
    judged = (table_of("lent.toml") or {}).get("die", {})
    key = f"residual.{record.get('part') or record.get('dtype')}"
    return float(judged.get(key, {}).get("times", 1.0))


def _folder() -> Any:
    return resources.files("sartor.cost.correction").joinpath("data").joinpath("residual")
