"""Prices of single operators: every row of a file of shapes, or one operator by its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sartor.api.words import GpuLike, device_of, own_calibration, with_kernels_of, with_kernels_or_any, word_of
from sartor.cost.correction.calibration import Clock
from sartor.cost.correction.calibration_file import own_calibration_of_file
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu

if TYPE_CHECKING:
    from sartor.records.shapes import Shapes
    from sartor.validate.untimed import PricedOperators


def operators(
    shapes: str | Path,
    columns: Mapping[str, object] | None = None,
    *,
    gpu: GpuLike | None = None,
    kernels: str | None = None,
    clock: str = "boost",
    calibration: str | Path | None = None,
) -> PricedOperators:
    """What single operators take: every row of a file of shapes, or one operator by its columns.

    Parameters
    ----------
    shapes
        A file (.csv, .parquet), or a kind of operator: gemm, attention, memory_bound, moe, collectives.
    columns
        The sizes of that one operator: columns of tables of measurements (docs/howto/price-operators.md).
    gpu
        Prices every row, in place of the file's column; one operator without it runs on H100 SXM.
    kernels
        The framework of rows that name none, without which intervals cover all.
    clock, calibration
        As in `sartor.gemm`.

    Returns
    -------
    PricedOperators
        An array per number (``rows.numbers``: ``time_s`` [s], ...) and word (``rows.texts``) in the order of the rows;
        ``rows.texts["reason"]`` says why a row has no price.

    Raises
    ------
    InputError
        For a file or columns that cannot be read, in one sentence.
    MissingExtraError
        Without pyarrow.

    Examples
    --------
    >>> answer = operators("gemm", {"m": 4096, "n": 4096, "k": 1024}, gpu="h100")
    >>> answer.rows.texts["source"]
    array(['calibrated'], dtype=object)
    >>> answer.rows.numbers["time_s"] < 1e-4
    array([ True])
    """
    from sartor.validate.untimed import price_shapes

    clock_mode = word_of(Clock, "clock", clock)
    device = None if gpu is None else device_of(gpu)
    words = {name: str(value) for name, value in (columns or {}).items()}
    shapes_read, device, notes = _read(str(shapes), words, device)
    own = own_calibration_of_file(calibration) if device is None else own_calibration(calibration, device)
    if device is not None and kernels is not None:
        with_kernels_of(kernels, device, own)  # an unknown one is an error, not a reason for every row
    priced = price_shapes(
        shapes_read,
        lambda of: with_kernels_or_any(kernels, of, own if own and own.gpu == of.name else None),
        clock_mode,
        {} if device is None else {device.name: device},
    )
    return replace(priced, assumptions=(*notes, *priced.assumptions))


def _read(source: str, words: Mapping[str, str], device: Gpu | None) -> tuple[Shapes, Gpu | None, list[str]]:
    """The shapes asked about, the one device that prices them (None: each row's own), and what is assumed."""
    from sartor.records.shapes import OPERATORS, one_shape

    if source not in {kind.name for kind in OPERATORS}:
        return _read_file(source, words, device)
    named = words.get("gpu")
    if named and device is not None:
        raise InputError("columns", f"gpu={named}", "names a device, as --gpu does; leave one out")
    notes = ["gpu=h100_sxm (default)"] if device is None and named is None else []
    device = device or device_of(named or "h100_sxm")
    own = {name: value for name, value in words.items() if name != "gpu"}
    shapes_read = one_shape(source, own, {"gpu": device.name}, {"dtype": device.default_dtype.value})
    return shapes_read, device, notes + _default_dtype(shapes_read, device)


def _read_file(path: str, words: Mapping[str, str], device: Gpu | None) -> tuple[Shapes, Gpu | None, list[str]]:
    """The shapes of a file. One ``device`` prices all of them; its type is that of rows in files without a dtype."""
    from sartor.records.shapes import read_shapes

    columns_of_device = {} if device is None else {"gpu": device.name}
    defaults = {} if device is None else {"dtype": device.default_dtype.value}
    shapes_read = read_shapes(path, columns_of_device, defaults)
    if words:
        must = "belong to one operator, after its kind; a file has its own"
        raise InputError("columns", " ".join(f"{name}={value}" for name, value in words.items()), must)
    if device is None:
        return shapes_read, None, []
    others = ", ".join(name or "an empty cell" for name in shapes_read.gpus if name != device.name)
    notes = (
        [f"gpu={device.name} (--gpu) prices every row, in place of {others} in the file's gpu column"] if others else []
    )
    if not shapes_read.gpus:
        notes = [f"gpu={device.name} (--gpu) prices every row: the file has no gpu column"]
    return shapes_read, device, notes + _default_dtype(shapes_read, device)


def _default_dtype(shapes_read: Shapes, device: Gpu) -> list[str]:
    return [] if "dtype" in shapes_read.own else [f"dtype={device.default_dtype.value} (default)"]
