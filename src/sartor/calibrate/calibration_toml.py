"""A fit as the TOML that the cost model reads and as JSON, and the comparison of two calibration files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from sartor.calibrate.fit import seconds
from sartor.calibrate.fit_file import CalibrationFit
from sartor.calibrate.read_records import SOFTWARE
from sartor.calibrate.samples import factor_of, grid
from sartor.cost.correction.calibration_file import LAWS, CalibrationFile
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap


def as_toml(calibration: CalibrationFit) -> str:
    """The calibration file: source, rows fitted on, held-out errors, and coefficients."""
    left_out = sum(calibration.left_out.values())
    lines = [
        "# Written by sartor calibrate. Seconds end in _s; shares are of the datasheet's rates.",
        "# Symbols: docs/concepts/gemm.md. Use it with --calibration FILE.",
        f"gpu = {json.dumps(calibration.gpu.name)}",
        f'dtype = "{calibration.dtype.value}"',
        "",
        "[provenance.gemm]",
        f"source = {json.dumps(calibration.source)}",
        f"date = {json.dumps(calibration.date)}",
        *(f"{name} = {json.dumps(words)}" for name, words in calibration.made_with.items()),
        f"start = {json.dumps(calibration.start)}",
        f'over = "{calibration.over}"',
        f"rows = {calibration.rows}",
        f"left_out = {left_out}",
        f"shapes = {calibration.shapes}",
        f"samples = {calibration.samples}",
        f"coverage_80 = {_number(calibration.coverage_80)}",
        *(f"{name} = {_inline(getattr(calibration, name))}" for name in ("fit", "held_out", "before")),
        "",
        "[gemm]",
        "# tile_m, tile_n, share of peak in the main loop",
        "tiles = [",
        *(f"  [{m}, {n}, {_number(share)}]," for m, n, share in calibration.coefficients.tiles),
        "]",
    ]
    names = [field.name for field in fields(GemmCoefficients) if field.name != "tiles"]
    lines += [f"{name} = {_number(getattr(calibration.coefficients, name))}" for name in names]
    if calibration.own_rows:
        lines += ["", "# ln of a factor on times: mean + sum of weight x closeness to a point (ln rows, ln n, ln k)"]
        lines += ["[own_rows]"]
        lines += [
            f"{field.name} = {_value(getattr(calibration.own_rows, field.name))}"
            for field in fields(calibration.own_rows)
        ]
    for section, fit in calibration.streams.items():
        lines += ["", f"[provenance.{section}]", f"rows = {fit.rows}"]
        lines += [f"before = {_number(fit.before)}", f"fit = {_number(fit.after)}", "", f"[{section}]"]
        names = [field.name for field in fields(fit.coefficients) if field.name not in LAWS]
        lines += [f"{name} = {_value(getattr(fit.coefficients, name))}" for name in names]
    return "\n".join(lines) + "\n"


def as_body(calibration: CalibrationFit, path: str | None) -> JsonDict:
    """The JSON of ``sartor calibrate``."""
    c = calibration.coefficients
    return {
        "gpu": calibration.gpu.name,
        "dtype": calibration.dtype.value,
        "file": path,
        "source": calibration.source,
        "date": calibration.date or None,
        "made_with": dict(calibration.made_with),
        "start": calibration.start,
        "over": calibration.over,
        "own_rows": sum(weight != 0 for weight in calibration.own_rows.weights) if calibration.own_rows else 0,
        "rows": calibration.rows,
        "shapes": calibration.shapes,
        "samples": calibration.samples,
        "left_out": [{"reason": reason, "rows": count} for reason, count in calibration.left_out.items()],
        "fit": dict(calibration.fit),
        "held_out": dict(calibration.held_out),
        "before": dict(calibration.before),
        "catalogue": dict(calibration.catalogue),
        "streams": [
            {"section": name, "rows": fit.rows, "before": fit.before, "fit": fit.after}
            for name, fit in calibration.streams.items()
        ],
        "coverage_80": calibration.coverage_80,
        "coefficients": {f.name: getattr(c, f.name) for f in fields(c)},
        "remarks": list(calibration.remarks),
    }


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(entry) for entry in value) + "]"
    return json.dumps(value) if isinstance(value, str) else _number(value)


def _inline(errors: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {_number(value)}" for name, value in errors.items()) + " }"


def _number(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_number(entry) for entry in value) + "]"
    if isinstance(value, int):
        return str(value).lower()  # true and false as TOML has them
    text = f"{value:.6g}"
    return text if any(c in text for c in ".en") else text + ".0"


# ------------------------------------------------------------------------------------------- one against another


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """How predicted GEMM times of one region changed: median, 10th and 90th percentile of after / before."""

    rows: str
    """Range of m: decode (to 64), short (to 1024), long."""
    weights: str
    """Range of n x k: small (to 2^22 elements), large."""
    products: int
    ratio: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationChange:
    """Two calibrations of one device and dtype."""

    before: str
    after: str
    regions: tuple[Region, ...]
    coefficients: Mapping[str, tuple[float, float]]
    """Coefficients that moved by more than 2%: (before, after)."""
    made_with: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Date, driver and library versions that differ between the files: (before, after)."""


def compare_calibrations(
    before: CalibrationFile, after: CalibrationFile, gpu: Gpu, *, names: tuple[str, str]
) -> CalibrationChange:
    """What changed between two calibrations, over a grid of GEMMs typical of models. Raises ``InputError`` if they are
    of different devices or dtypes."""
    for what in ("gpu", "dtype"):
        old, new = getattr(before, what), getattr(after, what)
        if old != new:
            old, new = (getattr(value, "value", value) for value in (old, new))
            raise InputError(what, old, f"of {names[0]} must equal that of {names[1]}", str(new))
    products = grid(gpu, after.dtype)
    predict = seconds(products)
    times = [
        predict(calibration.gemm) * (factor_of(calibration.own_rows, products) if calibration.own_rows else 1)
        for calibration in (before, after)
    ]
    ratio = times[1] / times[0]
    tall = np.digitize(products.m, [65, 1025])
    heavy = (products.n * products.k > 2**22).astype(int)
    regions = []
    for i, rows in enumerate(("decode", "short", "long")):
        for j, weights in enumerate(("small", "large")):
            part = ratio[(tall == i) & (heavy == j)]
            if part.size:
                middle, low, high = np.median(part), np.quantile(part, 0.1), np.quantile(part, 0.9)
                regions.append(
                    Region(
                        rows=rows,
                        weights=weights,
                        products=int(part.size),
                        ratio=float(middle),
                        least=float(low),
                        greatest=float(high),
                    )
                )
    return CalibrationChange(
        before=names[0],
        after=names[1],
        regions=tuple(regions),
        coefficients=_moved(before.gemm, after.gemm),
        made_with=_upgraded(before.provenance, after.provenance),
    )


def _upgraded(before: JsonMap, after: JsonMap) -> dict[str, tuple[str, str]]:
    pairs = {name: (str(before.get(name, "")), str(after.get(name, ""))) for name in ("date", *SOFTWARE)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _moved(before: GemmCoefficients, after: GemmCoefficients) -> dict[str, tuple[float, float]]:
    names = [f.name for f in fields(before) if isinstance(getattr(before, f.name), (int, float))]
    pairs = {name: (float(getattr(before, name)), float(getattr(after, name))) for name in names}
    return {name: pair for name, pair in pairs.items() if abs(pair[1] - pair[0]) > 0.02 * max(abs(pair[0]), 1e-12)}


def change_body(change: CalibrationChange) -> JsonDict:
    """The ``compared`` object of the JSON."""
    regions = [{f.name: getattr(region, f.name) for f in fields(region)} for region in change.regions]
    moved = [{"name": name, "before": old, "after": new} for name, (old, new) in change.coefficients.items()]
    upgraded = [{"name": name, "before": old, "after": new} for name, (old, new) in change.made_with.items()]
    return {
        "before": change.before,
        "after": change.after,
        "made_with": upgraded,
        "regions": regions,
        "coefficients": moved,
    }
