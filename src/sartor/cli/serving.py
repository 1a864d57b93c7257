"""``sartor serving``: latency and throughput of a served model."""

from __future__ import annotations

from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o


def serving(
    model: o.Model,
    gpu: o.Gpu = "h100",
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,...", help="Sequences always in flight.")
    ] = "1,4,16,64,256",
    input_len: Annotated[
        int, typer.Option("--input-len", metavar="TOKENS", parser=o.whole_number, help="Tokens of a prompt.")
    ] = 1024,
    output_len: Annotated[
        int, typer.Option("--output-len", metavar="TOKENS", parser=o.whole_number, help="Tokens of an answer.")
    ] = 1024,
    tp: o.Tp = 1,
    copies: Annotated[
        int,
        typer.Option(
            "--copies", metavar="N", parser=o.whole_number, help="Attention's data parallelism: groups of tp devices."
        ),
    ] = 1,
    ep: o.ServingEp = 1,
    dtype: o.DType = None,
    kernels: o.Kernels = None,
    prefill_workers: Annotated[
        int,
        typer.Option("--prefill-workers", metavar="N", parser=o.whole_number, help="Servers that take prompts only."),
    ] = 0,
    prefill_tp: Annotated[
        int | None,
        typer.Option(
            "--prefill-tp", metavar="N", parser=o.whole_number, help="Their tensor parallelism. [default: --tp]"
        ),
    ] = None,
    prefill_copies: Annotated[
        int, typer.Option("--prefill-copies", metavar="N", parser=o.whole_number, help="Their copies.")
    ] = 1,
    decode_workers: Annotated[
        int,
        typer.Option(
            "--decode-workers", metavar="N", parser=o.whole_number, help="Decode servers, with --prefill-workers."
        ),
    ] = 1,
    set_: o.SetField = None,
    calibration: o.Calibration = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Predict a served model: time to first token, time per token and throughput under continuous batching.

    Example: `sartor serving llama-3.1-70b --gpu h100 --tp 4 --dtype fp8 --concurrency 8,64`

    Example: `sartor serving deepseek-v3 --gpu gb200 --dtype nvfp4 --copies 8 --ep 8 --prefill-workers 2 --prefill-tp 4`
    """
    asked = c.asked(locals())
    from sartor import api
    from sartor.cli.declared import numbers
    from sartor.report.serving import serving_view

    found = api.serving(**asked | {"concurrency": numbers("--concurrency", concurrency, int)})
    c.answer("serving", found.to_dict(), as_json=json, out=out)
    if not json:
        c.show(serving_view(found))
    if not found.fits:
        raise c.Exit(3)
