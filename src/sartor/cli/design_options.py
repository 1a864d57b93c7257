"""Options of ``sartor design`` only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Space = Annotated[
    str, typer.Option("--space", metavar="NAME|FILE", help="A name from `sartor catalog spaces`, or a TOML file.")
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
Years = Annotated[
    float | None,
    typer.Option("--years", metavar="Y", help="How long a chip is in use, for its electricity. [default: 4]"),
]
UsdPerKwh = Annotated[
    float | None, typer.Option("--usd-per-kwh", metavar="USD", help="Price of electricity. [default: 0.0806]")
]
Plausibility = Annotated[
    bool,
    typer.Option(
        "--plausibility/--no-plausibility",
        help="Leave out chips that cannot be built (published area: only mark them), or not.",
    ),
]
Sensitivity = Annotated[
    bool, typer.Option("--sensitivity", help="Also say what comes within 1% of the best, and what a 30% error changes.")
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
    str | None,
    typer.Option(
        "--shapes",
        metavar="N|all",
        help="Also search N shapes of the same size, with proof; all: each model's shape is searched with the chip.",
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
    typer.Option(
        "--against",
        metavar="GPU",
        help="A catalogue GPU to price on the same jobs. May be repeated. [default: h100_sxm, tpu_v5p]",
    ),
]
TtftMs = Annotated[
    float | None, typer.Option("--ttft-ms", metavar="MS", help="Most time to the first token (--objective prefill).")
]
TpotMs = Annotated[
    float | None, typer.Option("--tpot-ms", metavar="MS", help="Most time per output token (--objective decode).")
]
Executor = Annotated[
    str,
    typer.Option(
        "--executor", metavar="local|serial|tcp://...", help="Local processes if they help, or a Dask scheduler."
    ),
]
Zigzag = Annotated[
    Path | None,
    typer.Option("--zigzag", metavar="DIR", help="Write the best chip as accelerator and mapping of ZigZag."),
]
Timeloop = Annotated[
    Path | None,
    typer.Option("--timeloop", metavar="DIR", help="Write the best chip as architecture of Timeloop/Accelergy."),
]
