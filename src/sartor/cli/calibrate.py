"""``sartor calibrate``: fit the cost model to your measurements, or plan useful ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.interrupts import report
from sartor.json_types import JsonDict

if TYPE_CHECKING:
    from sartor.cost.correction.calibration_file import CalibrationFile


def calibrate(
    records: Annotated[
        Path | None,
        typer.Argument(metavar="RECORDS", help="CSV or Parquet of measured GEMMs, or a calibration file to compare."),
    ] = None,
    gpu: o.GpuOfRecords = None,
    dtype: o.DTypeOfRecords = None,
    samples: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of shapes to fit on. [default: up to 400]")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="GPU", help="Start from this device's coefficients. [default: its own or a related device's]"
        ),
    ] = None,
    date: Annotated[
        str, typer.Option(metavar="YYYY-MM-DD", help="Date of the measurement, if the file has none.")
    ] = "",
    compare: Annotated[
        Path | None, typer.Option(metavar="OTHER.toml", help="Show the changes since this calibration, by region.")
    ] = None,
    plan: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Without RECORDS: write the N most useful GEMMs to measure on --gpu."),
    ] = None,
    json: o.AsJson = False,
    out: o.CalibrationOut = None,
) -> None:
    """Fit the GEMM model to your own measurements; use it with `--calibration FILE`.

    Example: `sartor calibrate records.csv --gpu h100_sxm --samples 100 --out h100.toml`
    """
    if plan is not None:
        _plan(plan, gpu, dtype, json, out)
    elif records is None:
        raise InputError("RECORDS", "nothing", "must be a file of measurements; --plan N says what to measure")
    elif records.suffix.lower() == ".toml":
        _compare_files(records, compare, gpu, json)
    else:
        _fit(
            records, gpu, {"dtype": dtype, "samples": samples, "start": start, "date": _date(date)}, compare, json, out
        )


def _fit(records: Path, gpu: str | None, words: JsonDict, compare: Path | None, json: bool, out: Path | None) -> None:
    from sartor.calibrate.calibration_toml import as_body, as_toml
    from sartor.calibrate.calibration_toml import calibrate as fit_records
    from sartor.cost.correction.calibration_file import CalibrationFile

    fitted = fit_records(records, gpu, **words, progress=partial(report, "fitting"))
    made_with = {"date": fitted.date, **fitted.made_with}
    after = CalibrationFile(
        gpu=fitted.gpu.name,
        dtype=fitted.dtype,
        gemm=fitted.coefficients,
        provenance=made_with,
        own_rows=fitted.own_rows,
    )
    changed = _changed(compare, after, str(out or records), gpu) if compare else None
    if out is not None:
        from sartor.files import write_atomic

        write_atomic(out, as_toml(fitted).encode())
    body = as_body(fitted, str(out) if out else None) | ({"compared": changed} if changed else {})
    c.answer("calibrate", body, as_json=json, out=None)
    if not json:
        from sartor.report.accuracy_document import calibration_view, change_view

        c.show(calibration_view(body))
        if changed:
            c.show(change_view(changed))


def _plan(count: int, gpu: str | None, dtype: str | None, json: bool, out: Path | None) -> None:
    if gpu is None:
        raise InputError("--gpu", "nothing", "must name the device that --plan is for")
    from sartor.calibrate.samples import as_csv, plan_body, plan_samples
    from sartor.hardware.catalog import load_gpu
    from sartor.records.rows import Unexpressed, dtype_of

    device = load_gpu(gpu)
    try:
        kind = dtype_of(dtype) if dtype else device.default_dtype
    except Unexpressed as why:
        raise InputError("--dtype", dtype, str(why)) from None
    products = plan_samples(device, kind, count)
    if out is not None:
        from sartor.files import write_atomic

        write_atomic(out, as_csv(products).encode())
    c.answer("calibrate", plan_body(products, str(out) if out else None), as_json=json, out=None)
    if not json:
        if out is None:
            print(as_csv(products), end="")
        else:
            c.say(f"wrote {out}: {len(products)} GEMMs; measure them and run sartor calibrate on the times")


def _compare_files(path: Path, compare: Path | None, gpu: str | None, json: bool) -> None:
    if compare is None:
        raise InputError("RECORDS", str(path), "is a calibration; --compare OTHER.toml says what to compare it with")
    from sartor.cost.correction.calibration_file import read_calibration_file

    changed = _changed(compare, read_calibration_file(path), str(path), gpu)
    c.answer("calibrate", {"compared": changed}, as_json=json, out=None)
    if not json:
        from sartor.report.accuracy_document import change_view

        c.show(change_view(changed))


def _changed(compare: Path, after: CalibrationFile, name: str, gpu: str | None) -> JsonDict:
    from sartor.calibrate.calibration_toml import change_body, compare_calibrations
    from sartor.cost.correction.calibration_file import read_calibration_file
    from sartor.hardware.catalog import load_gpu

    before = read_calibration_file(compare)
    try:
        device = load_gpu(gpu or after.gpu)
    except InputError:
        if gpu is not None:
            raise
        must = f"must be the datasheet of {after.gpu}, which the catalogue lacks"
        raise InputError("--gpu", "not given", must, f"{after.gpu}.gpu.toml, as sartor measure wrote it") from None
    return change_body(compare_calibrations(before, after, device, names=(str(compare), name)))


def _date(text: str) -> str:
    import datetime

    today = datetime.date.today()
    try:
        day = datetime.date.fromisoformat(text) if text else None
    except ValueError:
        raise InputError("--date", text, "must be a day as YYYY-MM-DD", "2026-11-21") from None
    if day and day > today:
        raise InputError("--date", text, "must not be after today", today.isoformat())
    return day.isoformat() if day else ""
