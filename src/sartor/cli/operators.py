"""``sartor operators``: what single operators take, for every row of a file of shapes or for one in words."""

from __future__ import annotations

from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o

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
    from sartor import api
    from sartor.files import write_atomic
    from sartor.records.shapes import check_table, table_with
    from sartor.validate.untimed import kinds_of, predicted_columns, priced_body

    if write is not None:
        check_table(write)
    words = c.parse_sets(columns, field="columns", name="COLUMN", near="m=4096")
    priced = api.operators(shapes, words, gpu=gpu, kernels=kernels, clock=clock, calibration=calibration)
    if write is not None:
        write_atomic(write, table_with(priced.shapes, predicted_columns(priced), write), field="--write")
        c.say(f"wrote {write}")
    if json or out is not None:
        c.answer("operators", priced_body(priced), as_json=json, out=out)
    if not json:
        from sartor.report.table_operators import SHOWN, shapes_view

        c.show(shapes_view(priced_body(priced, SHOWN), kinds_of(priced)))
