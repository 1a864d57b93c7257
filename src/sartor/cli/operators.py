"""``sartor operators``: what single operators take, for every row of a file of shapes or for one in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.json_types import JsonMap

if TYPE_CHECKING:
    from sartor.hardware.gpu import Gpu
    from sartor.records.shapes import Shapes

FileOrKind = Annotated[
    str,
    typer.Argument(
        metavar="FILE|KIND",
        help="A CSV or Parquet file of shapes; or, with COLUMN=VALUE words, one gemm, attention, memory_bound, moe or "
        "collectives.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Argument(metavar="COLUMN=VALUE", help="The columns of one operator.", show_default=False),
]
GpuOfShapes = Annotated[
    str | None,
    o.GPU(
        metavar="GPU",
        help=f"{o.KNOWN_GPU} It prices every row, in place of the file's gpu column. [default: that column]",
        show_default=False,
    ),
]


def operators(
    shapes: FileOrKind,
    columns: Columns = None,
    gpu: GpuOfShapes = None,
    kernels: o.Kernels = None,
    clock: o.Clock = "boost",
    calibration: o.Calibration = None,
    write: o.TableOut = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Price single operators: every row of a file of shapes, in the columns of `sartor validate operators` without the
    measured one, or one operator in words.

    Example: `sartor operators shapes.csv --gpu h100 --write predicted.csv`

    Example: `sartor operators attention phase=prefill batch=1 heads=32 kv_heads=8 head_dim=128 seq_q=4096 seq_kv=4096`
    """
    from sartor.api import words as w
    from sartor.cost.correction.calibration import Clock
    from sartor.files import write_atomic
    from sartor.records.shapes import check_table, table_with
    from sartor.validate.accuracy import calibration_of_file
    from sartor.validate.untimed import predicted_columns, price_shapes, priced_body

    if write is not None:
        check_table(write)
    at = w.word_of(Clock, "--clock", clock)
    device = None if gpu is None else w.device_of(gpu)
    found, device, assumed = _read(shapes, columns, device)
    own = calibration_of_file(calibration, {}) if device is None else w.own_calibration(calibration, device)
    if device is not None and kernels is not None:
        w.with_kernels_of(kernels, device, own)  # an unknown one is an error, not a reason for every row
    priced = price_shapes(
        found,
        lambda of: w.with_kernels_or_any(kernels, of, own if own and own.gpu == of.name else None),
        at,
        {} if device is None else {device.name: device},
    )
    body = priced_body(priced, assumed)
    if write is not None:
        write_atomic(write, table_with(found, predicted_columns(priced), write), field="--write")
        c.say(f"wrote {write}")
    c.answer("operators", body, as_json=json, out=out)
    if not json:
        from sartor.report.table_shapes import shapes_view

        c.show(shapes_view(body))


def _read(source: str, columns: list[str] | None, device: Gpu | None) -> tuple[Shapes, Gpu | None, list[str]]:
    """The shapes asked about, the one device that prices them (None: each row's own), and what is assumed."""
    from sartor.api.words import device_of
    from sartor.records.shapes import OPERATORS, one_shape

    words = c.parse_sets(columns, field="columns", name="COLUMN", near="m=4096")
    if source not in {kind.name for kind in OPERATORS}:
        return _read_file(source, words, device)
    named = words.pop("gpu", None)
    if named and device is not None:
        raise InputError("columns", f"gpu={named}", "names a device, as --gpu does; leave one out")
    usual = device is None and named is None
    device = device or device_of(named or "h100_sxm")
    said = ["gpu=h100_sxm (default)"] if usual else []
    found = one_shape(source, words, {"gpu": device.name}, {"dtype": device.default_dtype.value})
    return found, device, said + _default_dtype(found, device)


def _read_file(path: str, words: JsonMap, device: Gpu | None) -> tuple[Shapes, Gpu | None, list[str]]:
    """The shapes of a file. One ``device`` prices all of them; its type is that of rows in files without a dtype."""
    from sartor.records.shapes import read_shapes

    given = {} if device is None else {"gpu": device.name}
    defaults = {} if device is None else {"dtype": device.default_dtype.value}
    found = read_shapes(path, given, defaults)
    if words:
        must = "belong to one operator, after its kind; a file has its own"
        raise InputError("columns", " ".join(f"{name}={value}" for name, value in words.items()), must)
    if device is None:
        return found, None, []
    others = ", ".join(name or "an empty cell" for name in found.gpus if name != device.name)
    said = (
        [f"gpu={device.name} (--gpu) prices every row, in place of {others} in the file's gpu column"] if others else []
    )
    if not found.gpus:
        said = [f"gpu={device.name} (--gpu) prices every row: the file has no gpu column"]
    return found, device, said + _default_dtype(found, device)


def _default_dtype(found: Shapes, device: Gpu) -> list[str]:
    return [] if "dtype" in found.own else [f"dtype={device.default_dtype.value} (default)"]
