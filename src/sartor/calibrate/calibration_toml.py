"""A fit as the TOML that the cost model reads and as JSON, and the comparison of two calibration files.

From a user's own measured GEMMs to a calibration file: read, choose, fit, and report the held-out error.

Held-out errors come from four-fold cross-validation over contiguous regions of weights (n, k): each fold is fitted
without its region and scored on all rows of the region, chosen or not. The interval is wide enough to cover 80% of
those errors. Candidates are coefficients that may leave their start by more or less, and a smooth factor
(``sartor.calibrate.samples``) over these or over the package's own prediction; the one with the least held-out error
is fitted on every chosen row and written. docs/howto/calibrate.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sartor.calibrate.fit import Index, Products, fit, packaged_seconds, seconds
from sartor.calibrate.fit_streams import StreamFit, fit_streams, passed_over
from sartor.calibrate.read_records import LEAST_ROWS, SOFTWARE, Records, read_records
from sartor.calibrate.samples import choose, factor_of, fit_own_rows, grid, no_factor, regions
from sartor.cost.correction.calibration import OwnRows, load_calibration
from sartor.cost.correction.calibration_file import LAWS, CalibrationFile
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.network import applicable, fingerprint
from sartor.cost.cost import Z80
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap, picked
from sartor.operators import DType
from sartor.records.strangers import LEAST_OF_DEVICE
from sartor.units import FloatArray

MOST_SAMPLES = 400
"""Default number of rows to fit; more change the held-out error by less than its noise (docs/howto/calibrate.md)."""

FAR_OFF = 200.0
"""Median measured / predicted above which times are in another unit (nanoseconds) or a loop's total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFit:
    """Coefficients, what they were made from, and their errors: rows, mape, median, p90, bias."""

    gpu: Gpu
    dtype: DType
    coefficients: GemmCoefficients
    start: str
    """Name of the GPU whose coefficients the fit began at."""
    source: str
    date: str
    rows: int
    shapes: int
    samples: int
    left_out: Mapping[str, int]
    fit: Mapping[str, float]
    held_out: Mapping[str, float]
    before: Mapping[str, float]
    """Errors of the start on the same shapes."""
    catalogue: Mapping[str, float]
    """Errors of sartor's predictions without the file, residuals included."""
    coverage_80: float
    """Share of held-out errors inside the 80% interval that is written to the file."""
    remarks: tuple[str, ...] = field(default=())
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Driver and library versions of the records, where given."""
    streams: Mapping[str, StreamFit] = field(default_factory=dict)
    """Sections beside the GEMMs that the file has rows for and the package has no fit of."""
    over: str = "fit"
    """Base of the prediction: coefficients fitted to the rows (``fit``), or the packaged ones (``package``)."""
    own_rows: OwnRows | None = None
    """Factor on times fitted to the rows, with its interval; None where fitted coefficients alone did best."""


def calibrate(
    path: str | Path,
    gpu: str | None = None,
    *,
    dtype: str | None = None,
    samples: int | None = None,
    start: str | None = None,
    date: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> CalibrationFit:
    """Fit the GEMMs of a CSV or Parquet file.

    ``gpu`` and ``dtype`` choose among several in the file; ``samples`` is how many shapes to fit on (the most
    informative); ``start`` the device to take starting coefficients from (default: itself). ``date`` is written as the
    date of the measurements if the file has no date column. ``progress`` is told how many fits of how many are done.
    Raises ``InputError``.
    """
    records = read_records(path, gpu, dtype)
    device = records.products.gpu
    donor = load_gpu(start) if start else device
    begun = starting_point(donor, records.products.dtype)
    _check_units(records, begun)
    if samples is not None and samples < LEAST_ROWS:
        raise InputError("samples", samples, f"must be at least {LEAST_ROWS}", str(LEAST_ROWS))
    chosen = choose(records.products, min(samples or MOST_SAMPLES, len(records.products)))
    packaged_s = packaged_seconds(records.products)
    tried = _trials(
        records.products, records.measured_s, chosen, begun, packaged_s if start is None else None, progress
    )
    best = min(tried, key=lambda trial: trial.error)
    calibration = replace(_fitted(records, begun, chosen, best, packaged_s, date), start=donor.name)
    with_fit = {**load_calibration(device).gemm, calibration.dtype: calibration.coefficients}
    known_of = replace(load_calibration(device), gemm=with_fit)
    remarks = (*calibration.remarks, *passed_over(path, device, known_of))
    return replace(calibration, streams=fit_streams(path, device, known_of), remarks=remarks)


def starting_point(gpu: Gpu, dtype: DType) -> GemmCoefficients:
    """Current GEMM coefficients of a device: its own fit, that of a related GPU, or its generation's assumptions."""
    return load_calibration(gpu).gemm[dtype]


def _fitted(
    records: Records, begun: GemmCoefficients, chosen: Index, best: _Trial, packaged_s: FloatArray, date: str
) -> CalibrationFit:
    """The best way fitted on all chosen rows."""
    products, measured_s = records.products, records.measured_s
    part, predicted = products.part(chosen), best.predicted_s
    if best.freedom is None:
        final, fitted_s = begun, packaged_s[chosen]
    else:
        final = fit(part, measured_s[chosen], begun, freedom=best.freedom)
        fitted_s = seconds(part)(final)
    long, small = _sigmas(predicted, measured_s, final.launch_s, records.apart)
    own_rows = None
    if best.with_rows or best.freedom is None:
        own_rows = fit_own_rows(part, fitted_s, measured_s[chosen]) if best.with_rows else no_factor(part)
        own_rows = replace(own_rows, log_sigma=long, log_sigma_small=small, residual=_under(products, best))
        fitted_s = fitted_s * factor_of(own_rows, part)
    if best.freedom is not None:
        final = replace(final, log_sigma=long, log_sigma_small=small)
    width = np.where(_short(predicted, final.launch_s), small, long)
    held_out, catalogue = _errors(predicted, measured_s), _errors(packaged_s, measured_s)
    return CalibrationFit(
        gpu=products.gpu,
        dtype=products.dtype,
        coefficients=final,
        start="",
        source=records.source,
        date=date or records.date,
        rows=records.rows,
        shapes=len(products),
        samples=len(chosen),
        left_out=records.left_out,
        fit=_errors(fitted_s, measured_s[chosen]),
        held_out=held_out,
        catalogue=catalogue,
        before=_errors(seconds(products)(begun), measured_s),
        coverage_80=float((np.abs(np.log(measured_s / predicted)) <= Z80 * width).mean()),
        remarks=(
            *records.remarks,
            *_remarks(date or records.date, held_out["mape"], catalogue["mape"]),
            *_unchecked(len(products)),
        ),
        made_with=records.made_with,
        over="package" if best.freedom is None else "fit",
        own_rows=own_rows,
    )


def _unchecked(shapes: int) -> tuple[str, ...]:
    """What a file of so few shapes was not checked for."""
    if shapes >= LEAST_OF_DEVICE:
        return ()
    return (
        f"rows: {shapes} shapes are too few to tell whether some are another device's ({LEAST_OF_DEVICE} are enough)",
    )


def _remarks(date: str, held_out: float, catalogue: float) -> list[str]:
    remarks = [] if date else ["date: the records have no date column and --date was not given"]
    if catalogue < held_out:
        remarks += [f"this calibration is worse than none: without it the error on the same shapes is {catalogue:.1%}"]
    return remarks


def _under(products: Products, best: _Trial) -> str:
    """Fingerprint of the packaged coefficients if the factor is fitted on top of their residual, else empty."""
    known_of = load_calibration(products.gpu)
    packaged = known_of.gemm[products.dtype]
    return fingerprint(packaged) if best.freedom is None and applicable(known_of, packaged) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One way to fit the chosen rows, and its predictions for GEMMs outside the regions fitted."""

    freedom: float | None
    """Scale of how far coefficients may leave the start; None: the package's prediction unchanged."""
    with_rows: bool
    predicted_s: FloatArray
    error: float
    """Mean of |ln(predicted / measured)|."""


_FREEDOMS = (1.0, 0.3, 0.1)


def _trials(
    products: Products,
    measured_s: FloatArray,
    chosen: Index,
    start: GemmCoefficients,
    packaged_s: FloatArray | None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[_Trial]:
    """Trials with coefficients that may leave the start by much or little (few rows can only spoil a start that is this
    device's own fit) and with the package's prediction as it is, each with and without a smooth factor."""
    bases: list[tuple[float | None, _Predictions]] = [
        (freedom, _refitted(products, measured_s, start, freedom)) for freedom in _FREEDOMS
    ]
    if packaged_s is not None:
        known_s = packaged_s
        bases.append((None, lambda learned, where: known_s[where]))
    fold = regions(products)
    parts = np.unique(fold)
    for turn, (freedom, base) in enumerate(bases):
        plain, moved = (seconds(products)(start) if packaged_s is None else packaged_s.copy() for _ in range(2))
        for part_index, part in enumerate(parts):
            if progress:
                progress(turn * parts.size + part_index, len(bases) * parts.size)
            learned, where = chosen[fold[chosen] != part], np.flatnonzero(fold == part)
            if not learned.size or not where.size:
                continue
            predicted_s = base(learned, np.concatenate([learned, where]))
            own_rows = fit_own_rows(products.part(learned), predicted_s[: learned.size], measured_s[learned])
            plain[where] = predicted_s[learned.size :]
            moved[where] = plain[where] * factor_of(own_rows, products.part(where))
        for with_rows, predicted in ((False, plain), (True, moved)):
            error = float(np.abs(np.log(predicted / measured_s)).mean())
            yield _Trial(freedom=freedom, with_rows=with_rows, predicted_s=predicted, error=error)


_Predictions = Callable[[Index, Index], FloatArray]
"""(rows fitted, rows to predict) -> seconds."""


def _refitted(products: Products, measured_s: FloatArray, start: GemmCoefficients, freedom: float) -> _Predictions:
    def predict(learned: Index, where: Index) -> FloatArray:
        fitted = fit(products.part(learned), measured_s[learned], start, freedom=freedom)
        return seconds(products.part(where))(fitted)

    return predict


def _errors(predicted_s: FloatArray, measured_s: FloatArray) -> dict[str, float]:
    """rows; mape, median and p90 of |predicted / measured - 1|; bias, the median of predicted / measured."""
    ratio = predicted_s / measured_s
    error = np.abs(ratio - 1)
    figures = error.mean(), np.median(error), np.quantile(error, 0.9), np.median(ratio)
    names = ("mape", "median", "p90", "bias")
    return {"rows": int(ratio.size), **{name: float(value) for name, value in zip(names, figures, strict=True)}}


def _short(predicted_s: FloatArray, launch_s: float) -> Any:
    return predicted_s < 8 * launch_s


def _sigmas(predicted_s: FloatArray, measured_s: FloatArray, launch_s: float, apart: FloatArray) -> tuple[float, float]:
    """Standard deviations whose 80% interval covers 80% of the errors of long and of short GEMMs (of all where a kind
    has fewer than 20), and where repeats of a shape lie ``apart`` of their median, these too. With the rank from n + 1
    instead of n, a new error is covered with 80% (conformal)."""
    error = np.abs(np.log(predicted_s / measured_s)) + apart
    short = _short(predicted_s, launch_s)

    def sigma(part: FloatArray) -> float:
        rank = min(part.size, int(np.ceil(0.8 * (part.size + 1))))
        return max(float(np.sort(part)[rank - 1]) / Z80, 0.005)

    kinds = [error[~short], error[short]]
    return sigma(kinds[0] if kinds[0].size >= 20 else error), sigma(kinds[1] if kinds[1].size >= 20 else error)


def _check_units(records: Records, start: GemmCoefficients) -> None:
    """Raises ``InputError`` for times that seem to be in another unit (too long by ``FAR_OFF`` or more)."""
    factor = float(np.median(records.measured_s / seconds(records.products)(start)))
    if factor > FAR_OFF:
        must = f"must be microseconds: its median is {factor:,.0f} times what is predicted (nanoseconds?)"
        raise InputError("latency_us", records.source, must)


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
    for section, stream in calibration.streams.items():
        lines += ["", f"[provenance.{section}]", f"rows = {stream.rows}"]
        lines += [f"before = {_number(stream.before)}", f"fit = {_number(stream.after)}", "", f"[{section}]"]
        names = [field.name for field in fields(stream.coefficients) if field.name not in LAWS]
        lines += [f"{name} = {_value(getattr(stream.coefficients, name))}" for name in names]
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
        **picked(calibration, "start", "over"),
        "own_rows": sum(weight != 0 for weight in calibration.own_rows.weights) if calibration.own_rows else 0,
        **picked(calibration, "rows", "shapes", "samples"),
        "left_out": [{"reason": reason, "rows": count} for reason, count in calibration.left_out.items()],
        **picked(calibration, "fit", "held_out", "before", "catalogue"),
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
