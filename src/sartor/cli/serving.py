"""``sartor serving``: latency and throughput of a served model."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.run_options import takes_run
from sartor.run.fields import FIELDS, OF_ONE_PASS, RunOptions


@takes_run(
    without=(*OF_ONE_PASS, *(name for name, row in FIELDS.items() if not row.inference)),
    helps={
        "tp": "Tensor-parallel devices. [default: the fewest that hold a sequence]",
        "ep": "Devices, of tp x copies, over which whole experts are divided; the rest splits each expert.",
        "headroom": "Share of memory that stays free. [default: 0.1]",
        "kernels": "The serving framework: vllm, sglang, trtllm. [default: vllm]",
    },
)
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
    copies: Annotated[
        int,
        typer.Option(
            "--copies", metavar="N", parser=o.whole_number, help="Attention's data parallelism: groups of tp devices."
        ),
    ] = 1,
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
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[RunOptions],
) -> None:
    """Predict a served model: time to first token, time per token and throughput under continuous batching.

    Example: `sartor serving llama-3.1-70b --gpu h100 --tp 4 --dtype fp8 --concurrency 8,64`

    Example: `sartor serving deepseek-v3 --gpu gb200 --dtype nvfp4 --copies 8 --ep 8 --prefill-workers 2 --prefill-tp 4`
    """
    from sartor import api
    from sartor.cli.run_options import numbers
    from sartor.report.table_estimate import serving_view

    found = api.serving(
        model,
        gpu,
        concurrency=numbers("--concurrency", concurrency, int),
        input_len=input_len,
        output_len=output_len,
        copies=copies,
        prefill_workers=prefill_workers,
        prefill_tp=prefill_tp,
        prefill_copies=prefill_copies,
        decode_workers=decode_workers,
        **options,
    )
    c.answer("serving", found.to_dict(), as_json=json, out=out)
    if not json:
        c.show(serving_view(found))
    if not found.fits:
        raise c.Exit(3)
