"""Options only of ``sartor design``."""

from __future__ import annotations

from typing import Annotated

import typer

from sartor.cli import common as c

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="MODEL", help="Model to train (config.json, zoo name or org/name). May be repeated."
    ),
]
NumDevices = Annotated[
    int | None, typer.Option("--num-devices", metavar="N", parser=c.whole_number, help="Equal devices.")
]
SeqLen = Annotated[
    str | None,
    typer.Option(
        "--seq-len",
        metavar="S[,S...]",
        help="Tokens per sequence, or one value per model. [default: 4096, or the model's maximum]",
    ),
]
Space = Annotated[
    str, typer.Option("--space", metavar="NAME|FILE", help="A name from `sartor catalog spaces`, or a TOML file.")
]
Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        metavar="WORD",
        help="throughput, throughput-per-mm2, throughput-per-watt or throughput-per-dollar.",
    ),
]
Mean = Annotated[str, typer.Option("--mean", metavar="geometric|arithmetic", help="Mean over several models.")]
Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="W,W,...", help="Weights of the models in the mean. [default: equal]"),
]
AreaMm2 = Annotated[float | None, typer.Option("--area-mm2", metavar="A", help="Largest die.")]
PowerW = Annotated[float | None, typer.Option("--power-w", metavar="P", help="Most power of a device.")]
HbmGib = Annotated[float | None, typer.Option("--hbm-gib", metavar="M", help="Most memory of a device.")]
EnergyJPerToken = Annotated[
    float | None, typer.Option("--energy-j-per-token", metavar="J", help="Most energy per token, all devices.")
]
MicrobatchSize = Annotated[
    str, typer.Option("--microbatch-size", metavar="N,...", help="Microbatch sizes to choose from.")
]
TensorParallel = Annotated[str, typer.Option("--tp", metavar="T,...", help="Tensor-parallel widths to choose from.")]
Recompute = Annotated[
    str, typer.Option("--recompute", metavar="none,full", help="Recomputation settings to choose from.")
]
AreaModel = Annotated[
    str | None,
    typer.Option("--area-model", metavar="published|die", help="Area of cores and buffers only, or of the whole die."),
]
WaferUsd = Annotated[
    float | None, typer.Option("--wafer-usd", metavar="USD", help="Price of a wafer. [default: by node]")
]
HbmUsdPerGb = Annotated[
    float | None, typer.Option("--hbm-usd-per-gb", metavar="USD", help="Price of memory per GB. [default: 10]")
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="SECONDS", help="Stop after this time with the best result so far."),
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance", metavar="SHARE", help="Stop when no point can be better by more than this: 0.01 is 1%."
    ),
]
Baselines = Annotated[
    bool, typer.Option("--baselines/--no-baselines", help="Also price alternatives (known chips, other searches).")
]
Shapes = Annotated[
    int | None,
    typer.Option(
        "--shapes", metavar="N", parser=c.whole_number, help="Also search N shapes of the same size, each with proof."
    ),
]
Fleet = Annotated[
    str | None,
    typer.Option("--fleet", metavar="CHIP[=WEIGHT],...", help="Existing accelerators: find the best shape for them."),
]
Pareto = Annotated[
    str | None,
    typer.Option("--pareto", metavar="AXIS,...", help="Prove the Pareto front over area_mm2, power_w, hbm_bytes, usd."),
]
Against = Annotated[
    list[str] | None,
    typer.Option("--against", metavar="GPU", help="A catalogue GPU to price on the same jobs. May be repeated."),
]
