"""``sartor estimate``, ``serving``, ``deploy``, ``gemm``, ``collective``, ``operators``: where time goes, and why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.plan import Overwrite
from sartor.cli.run_options import takes_run
from sartor.errors import InputError
from sartor.run.fields import NOT_OF_DEPLOYMENTS, NOT_OF_SERVERS, RunOptions

if TYPE_CHECKING:
    from sartor.answers.serving import Choice, DeploymentAnswer

Traffic = Annotated[
    Path | None,
    typer.Option(
        "--traffic", metavar="FILE", help="CSV of requests (time,in,out[,cached]), instead of load and lengths."
    ),
]
Ttft = Annotated[
    float | None, typer.Option("--ttft", metavar="S", parser=o.seconds, help="Largest time to the first token.")
]
Tpot = Annotated[
    float | None, typer.Option("--tpot", metavar="S", parser=o.seconds, help="Largest time between tokens.")
]
MostUsdPerHour = Annotated[
    float | None,
    typer.Option("--max-price", "--most-usd-per-hour", metavar="USD", help="Limit of what all devices cost."),
]


@takes_run()
def estimate(
    model: o.ModelOrLaunch = None,
    gpu: o.GpuOfCluster = None,
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[RunOptions],
) -> None:
    """Show where the time goes: every operator of one device's share, with its interval, and in training the step,
    throughput and memory of the whole plan, as `sartor plan` answers them.

    What is left out of devices, batch and plan is completed: the fastest plan that fits, on the fewest nodes.
    Exits with 3 if nothing runs as stated: it does not fit with any value of what is left open, or --tp or --ep do not
    divide the model (then with the price of sizes and degrees that do).

    Example: `sartor estimate llama-3-8b --gpu h100 --phase decode --context-len 8192`

    Example: `sartor estimate llama-3-8b --num-devices 64 --global-batch-size 512 --tp 2 --pp 4 --virtual-stages 2`
    """
    from sartor import api

    answer = api.estimate(model, gpu, **options)
    c.answer("estimate", answer.to_dict, as_json=json, out=out)
    if not json:
        from sartor.api.shapes import findings_of
        from sartor.report.table_estimate import estimate_view

        c.show(estimate_view(answer, findings_of(answer.question, answer.run, remarks=False), verbose=verbose))
    if answer.infeasible:
        raise c.Exit(3)


def gemm(
    m: Annotated[int, typer.Argument(parser=o.whole_number, help="Rows of A and C.")],
    n: Annotated[int, typer.Argument(parser=o.whole_number, help="Columns of B and C.")],
    k: Annotated[int, typer.Argument(parser=o.whole_number, help="The contracted dimension.")],
    gpu: o.Gpu = "h100",
    batch: o.GemmBatch = 1,
    dtype: o.DType = None,
    layout: Annotated[
        str,
        typer.Option(
            metavar="TN|NN|NT|TILED",
            help="TN: forward (weight stored n x k); NN: dgrad; NT: wgrad; TILED: forward, weights pre-shuffled (AMD).",
        ),
    ] = "TN",
    kernels: o.Kernels = None,
    clock: o.Clock = "boost",
    calibration: o.Calibration = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Price one GEMM C[m,n] = A[m,k] B[k,n]: its time, tiles and waves, and every tile considered.

    Example: `sartor gemm 2304 1600 4096 --gpu a100 --dtype fp16`
    """
    from sartor import api

    found = api.gemm(
        m, n, k, gpu, batch=batch, dtype=dtype, layout=layout, kernels=kernels, clock=clock, calibration=calibration
    )
    c.answer("gemm", found.to_dict, as_json=json, out=out)
    if not json:
        from sartor.report.table_operators import gemm_view

        c.show(gemm_view(found))


def collective(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.")
    ],
    message_bytes: Annotated[
        float,
        typer.Argument(
            metavar="BYTES",
            parser=o.size_in_bytes,
            help="all_gather and reduce_scatter: the whole, unsharded buffer; else what each device holds or sends.",
        ),
    ],
    group_size: Annotated[int, typer.Argument(metavar="DEVICES", parser=o.whole_number, help="In the group.")],
    cluster: o.ClusterOrGpu = None,
    gpu: o.GpuOfCluster = None,
    stride: Annotated[
        int, typer.Option(metavar="N", parser=o.whole_number, help="Distance between members in device numbers.")
    ] = 1,
    alone: Annotated[bool, typer.Option("--alone", help="No other group communicates, as in a benchmark.")] = False,
    library: Annotated[
        str, typer.Option(metavar="nccl|custom|trtllm", help="Library: an engine's own all-reduce, or NCCL.")
    ] = "nccl",
    eager: o.Eager = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Price one collective over the links that its group crosses.

    On a --cluster bytes cross its tiers; without one they stay on the links of the --gpu.

    Example: `sartor collective all_reduce 64e6 32 --cluster dgx-h100 --stride 8`
    """
    from sartor import api

    found = api.collective(
        kind,
        message_bytes,
        group_size,
        cluster=cluster,
        gpu=gpu,
        stride=stride,
        alone=alone,
        library=library,
        eager=eager,
    )
    c.answer("collective", found.to_dict, as_json=json, out=out)
    if not json:
        from sartor.report.table_operators import collective_view

        c.show(collective_view(found))


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

    Example: `sartor operators examples/shapes.csv --gpu h100 --write predicted.csv`

    Example: `sartor operators attention phase=prefill batch=1 heads=32 kv_heads=8 head_dim=128 seq_q=4096`
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


@takes_run(
    without=NOT_OF_SERVERS,
    helps={
        "tp": "Tensor-parallel devices. [default: the fewest that hold a sequence]",
        "ep": "Devices, of tp x copies, over which whole experts are divided; the rest splits each expert.",
        "headroom": "Share of memory that stays free: 1 less --utilization.",
        "launch": "What starts the servers: a script, Dockerfile, manifest or YAML, or the folder that deploy wrote.",
        "kernels": "The serving framework: vllm, sglang, trtllm; its release after an @: vllm@0.10.1. [default: vllm]",
    },
)
def serving(
    model: o.ModelOrLaunch = None,
    gpu: o.GpuOfCluster = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,...", help="Sequences always in flight.")
    ] = "1,4,16,64,256",
    input_len: o.InputLen = 1024,
    output_len: o.OutputLen = 1024,
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
    prefill_ep: Annotated[
        int | None, typer.Option("--prefill-ep", metavar="N", parser=o.whole_number, help="Their --ep.")
    ] = None,
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

    It is `sartor deploy --fix` of one layout, at the same price; `deploy` without --fix searches all. --launch reads a
    script, Dockerfile, manifest or YAML that starts vLLM, SGLang or TensorRT-LLM, and says what would not start: then
    it exits with 1.

    Example: `sartor serving llama-3.1-70b --gpu h100 --tp 4 --dtype fp8 --concurrency 8,64`

    Example: `sartor serving deepseek-v3 --gpu gb200 --dtype nvfp4 --copies 8 --ep 8 --prefill-workers 2 --prefill-tp 4`
    """
    from sartor import api
    from sartor.cli.run_options import numbers
    from sartor.report.table_serving import serving_view

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
        prefill_ep=prefill_ep,
        decode_workers=decode_workers,
        **options,
    )
    c.answer("serving", found.to_dict, as_json=json, out=out)
    if not json:
        c.show(serving_view(found))
    if found.fits is False or "error" in {grade for grade, _, _ in found.findings}:
        raise c.Exit(3 if found.fits is False else 1)


@takes_run(
    without=NOT_OF_DEPLOYMENTS,
    helps={
        "fix": "Sizes that a layout must have, as `sartor serving` names them: tp=2,prefill_workers=1,prefill_tp=4. "
        "With all of them this prices what `sartor serving` does.",
        "tp": "Tensor-parallel devices of a server. [default: searched]",
        "ep": "Devices over which whole experts are divided. [default: none or all]",
        "dtype": "Data types to compare, such as bf16,fp8. [default: bf16 if the device has it]",
        "kernels": "Serving frameworks to compare: vllm,sglang,trtllm or any. [default: vllm]",
    },
)
def deploy(
    model: o.Model,
    gpu: o.GpusOfServers = None,
    rate: Annotated[float, typer.Option("--requests-per-s", "--rate", metavar="N", help="Requests per second.")] = 0.0,
    users: Annotated[
        int, typer.Option("--users", metavar="N", parser=o.whole_number, help="Requests always in flight, instead.")
    ] = 0,
    ttft: Ttft = None,
    tpot: Tpot = None,
    percentile: Annotated[
        float | None, typer.Option("--percentile", metavar="95", help="Of requests that must see both, not the mean.")
    ] = None,
    probability: Annotated[
        float | None, typer.Option("--probability", metavar="SHARE", help="With which both must hold.")
    ] = None,
    input_len: o.InputLens = None,
    output_len: o.OutputLens = None,
    cached: Annotated[float, typer.Option("--cached", metavar="SHARE", help="Of a prompt, cached already.")] = 0.0,
    traffic: Traffic = None,
    draft_tokens: Annotated[
        int, typer.Option("--draft-tokens", metavar="N", help="Drafted per step (speculative decoding).")
    ] = 0,
    acceptance: Annotated[
        float | None, typer.Option("--acceptance", metavar="SHARE", help="Of drafted tokens after right ones.")
    ] = None,
    most_devices: Annotated[
        int,
        typer.Option(
            "--max-devices", "--most-devices", metavar="N", parser=o.whole_number, help="Limit of all devices."
        ),
    ] = 64,
    most_usd_per_hour: MostUsdPerHour = None,
    why_not: o.WhyNot = None,
    pools: Annotated[bool, typer.Option("--pools/--no-pools", help="Also servers for prompts beside servers.")] = True,
    write: Annotated[
        Path | None,
        o.WRITE(metavar="DIR", help="Write what starts it: scripts, TensorRT-LLM's YAML, Kubernetes, llm-d."),
    ] = None,
    overwrite: Overwrite = False,
    html: o.HtmlFile = None,
    png: o.PngFolder = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[RunOptions],
) -> None:
    """Find the cheapest deployment of a served model: GPUs, replicas, layout and batch that meet objectives.

    Exits with 3 if no layout meets them.

    Example: `sartor deploy qwen2.5-32b --gpu h100,h200 --dtype fp8 --rate 20 --ttft 0.5 --tpot 0.03`

    Example: `sartor deploy llama-3.1-70b --users 200 --tpot 0.04 --probability 0.9 --kernels any`

    Example: `sartor deploy qwen3-8b --input-len p50=800,p95=3000 --output-len 300 --rate 5 --ttft 1 --percentile 95`
    """
    from sartor import api
    from sartor.report.table_serving import deploy_view

    if write is not None:
        _check_folder(write, overwrite)
    try:
        found = api.deploy(
            model,
            [name for words in gpu or () for name in words.split(",")] or None,
            requests_per_s=rate,
            users=users,
            ttft_s=math.inf if ttft is None else ttft,
            tpot_s=math.inf if tpot is None else tpot,
            probability=probability,
            percentile=percentile,
            input_len=input_len,
            output_len=output_len,
            cached=cached,
            traffic=traffic,
            draft_tokens=draft_tokens,
            acceptance=acceptance,
            most_devices=most_devices,
            most_usd_per_hour=most_usd_per_hour,
            why_not=c.parse_fix(why_not, option="--why-not") or None,
            pools=pools,
            **options,
        )
    except InputError as error:
        raise InputError(_FLAGS.get(error.field, error.field), error.value, error.must, error.nearest) from None
    c.answer("deploy", found.to_dict, as_json=json, out=out)
    if not json:
        c.show(deploy_view(found))
    _draw(found, html, png)
    if found.best is None:
        raise c.Exit(3)
    if write is not None:
        _write_servers(found, found.best, model, write)


def _draw(found: DeploymentAnswer, html: Path | None, png: Path | None) -> None:
    from sartor.report.table_serving import deploy_page, front_points

    if html is not None:
        c.write_page(html, deploy_page(found))
    if png is not None and found.front:
        c.write_figures(png, {"front": front_points(found)})


_FLAGS = {
    "requests_per_s": "--requests-per-s",
    "ttft_s": "--ttft",
    "tpot_s": "--tpot",
    "most_devices": "--max-devices",
    "most_usd_per_hour": "--max-price",
}
"""Flags of `deploy` that have another name in Python."""


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Raise `InputError` before the search for a folder that cannot be written or has files of a deployment."""
    from sartor.files import check_writable
    from sartor.launch.serving import FILES

    check_writable(folder / "server.sh", field="--write")
    there = sorted(path for path in folder.glob("*") if FILES.fullmatch(path.name))
    if there and not overwrite:
        raise InputError("--write", str(there[0]), "is there already; give another folder or say --overwrite")


def _write_servers(found: DeploymentAnswer, best: Choice, model: str, folder: Path) -> None:
    """Write what starts the best deployment."""
    from sartor.files import write_together
    from sartor.launch.serving import serving_files

    files = serving_files(best.deployment, model, found.load.longest)
    modes = {True: 0o755, False: 0o644}
    write_together(
        [(folder / name, text.encode(), modes[name.endswith(".sh")]) for name, text in files.items()], field="--write"
    )
    c.say(f"sartor: wrote {', '.join(files)} to {folder}")
    for words in best.notes(model):
        c.say(f"sartor: {words}")
