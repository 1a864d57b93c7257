"""``sartor estimate``, ``sartor gemm`` and ``sartor collective``: where does the time go, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from sartor.cli import common as c


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(estimate)
    app.command()(gemm)
    app.command()(collective)


def estimate(
    model: c.Model,
    gpu: c.GpuOfPlan = None,
    phase: c.PhaseName = "train",
    seq_len: c.SeqLen = None,
    microbatch_size: c.Microbatch = None,
    context_len: c.ContextLen = None,
    num_devices: c.NumDevices = None,
    global_batch_size: c.GlobalBatch = None,
    tp: c.Tp = 1,
    pp: c.Pp = 1,
    cp: c.Cp = 1,
    ep: c.Ep = 1,
    zero_stage: c.ZeroStage = None,
    virtual_stages: c.VirtualStages = None,
    recompute: c.Recompute = None,
    cluster: c.ClusterOfPlan = None,
    framework: c.Framework = None,
    dtype: c.DTypeName = None,
    attention: c.AttentionName = "flash",
    set_: c.SetField = None,
    eager: Annotated[
        bool,
        typer.Option(
            "--eager", help="As uncompiled PyTorch: a kernel for every elementwise operation, launched by the host."
        ),
    ] = False,
    calibration: c.CalibrationFile = None,
    json: c.AsJson = False,
    out: c.OutFile = None,
) -> None:
    """Show where the time goes: every operator of one device's share, with its interval, and in training the step,
    throughput and memory of the whole plan, as `sartor plan --fix` answers them.

    Example: `sartor estimate examples/llama-3-8b/config.json --gpu h100 --phase decode --context-len 8192`

    Example: `sartor estimate llama-3-8b --num-devices 64 --global-batch-size 512 --tp 2 --pp 4 --virtual-stages 2`
    """
    from sartor import api
    from sartor.report import contract

    found = api.estimate(
        model,
        gpu,
        phase=phase,
        seq_len=seq_len,
        microbatch_size=microbatch_size,
        context_len=context_len,
        num_devices=num_devices,
        global_batch_size=global_batch_size,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        zero_stage=zero_stage,
        virtual_stages=virtual_stages,
        recompute=recompute,
        cluster=cluster,
        framework=framework,
        dtype=dtype,
        attention=attention,
        set=c.parse_sets(set_),
        eager=eager,
        calibration=calibration,
    )
    c.answer("estimate", contract.estimate_body(found), as_json=json, out=out)
    if not json:
        from sartor.report.table_estimate import estimate_view

        c.show(estimate_view(found))


def gemm(
    m: Annotated[int, typer.Argument(parser=c.whole_number, help="Rows of A and C.")],
    n: Annotated[int, typer.Argument(parser=c.whole_number, help="Columns of B and C.")],
    k: Annotated[int, typer.Argument(parser=c.whole_number, help="The contracted dimension.")],
    gpu: c.GpuName = "h100",
    batch: Annotated[
        int, typer.Option(metavar="N", parser=c.whole_number, help="Number of independent GEMMs of this size.")
    ] = 1,
    dtype: c.DTypeName = None,
    layout: Annotated[
        str, typer.Option(metavar="TN|NN|NT", help="TN: forward (weight stored n x k); NN: dgrad; NT: wgrad.")
    ] = "TN",
    clock: Annotated[
        str,
        typer.Option(
            metavar="boost|sustained", help="boost: a short benchmark run; sustained: a long run limited by power."
        ),
    ] = "boost",
    calibration: c.CalibrationFile = None,
    json: c.AsJson = False,
    out: c.OutFile = None,
) -> None:
    """Price one GEMM C[m,n] = A[m,k] B[k,n]: its time, tiles and waves, and every tile considered.

    Example: `sartor gemm 2304 1600 4096 --gpu a100 --dtype fp16`
    """
    from sartor import api
    from sartor.report import contract

    found = api.gemm(m, n, k, gpu, batch=batch, dtype=dtype, layout=layout, clock=clock, calibration=calibration)
    c.answer("gemm", contract.gemm_body(found), as_json=json, out=out)
    if not json:
        from sartor.report.table_operators import gemm_view

        c.show(gemm_view(found))


def collective(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.")
    ],
    message_bytes: Annotated[float, typer.Argument(metavar="BYTES", help="Size of the whole, unsharded buffer.")],
    group_size: Annotated[int, typer.Argument(metavar="DEVICES", parser=c.whole_number, help="In the group.")],
    cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="A name from sartor catalog clusters, or a TOML file.")
    ] = None,
    gpu: c.GpuName = "h100",
    stride: Annotated[
        int, typer.Option(metavar="N", parser=c.whole_number, help="Distance between members in device numbers.")
    ] = 1,
    alone: Annotated[bool, typer.Option("--alone", help="No other group communicates, as in a benchmark.")] = False,
    library: Annotated[
        str, typer.Option(metavar="nccl|custom|trtllm", help="Library: an engine's own all-reduce, or NCCL.")
    ] = "nccl",
    eager: Annotated[bool, typer.Option("--eager", help="Launched by the host, call by call (no CUDA graph).")] = False,
    json: c.AsJson = False,
    out: c.OutFile = None,
) -> None:
    """Price one collective over the links that its group crosses.

    On a --cluster bytes cross its tiers; without one they stay on the links of the --gpu.

    Example: `sartor collective all_reduce 64e6 32 --cluster dgx-h100 --stride 8`
    """
    from sartor import api
    from sartor.report import contract

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
    c.answer("collective", contract.collective_body(found), as_json=json, out=out)
    if not json:
        from sartor.report.table_operators import collective_view

        c.show(collective_view(found))
