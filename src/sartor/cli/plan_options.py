"""Options only of ``sartor plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import common as c

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Model (config.json, zoo name or org/name); optional if --launch has the sizes."
    ),
]
Cluster = Annotated[
    str,
    typer.Option("--cluster", metavar="CLUSTER", help="A name from `sartor catalog clusters`, or a TOML file."),
]
NumDevices = Annotated[
    str | None,
    typer.Option("--num-devices", metavar="N[,N...]", help="Number of devices; several numbers are compared."),
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        metavar="S",
        parser=c.whole_number,
        help="Tokens per sequence. [default: 4096, or the model's maximum]",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="Training precision: bf16, fp16, fp8, fp8_block, mxfp8, nvfp4, ... [default: bf16 if supported]"
    ),
]
MicrobatchSize = Annotated[
    int | None,
    typer.Option("--microbatch-size", metavar="N", parser=c.whole_number, help="Hold the microbatch at N."),
]
Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="AXIS=VALUE,...", help="Fix fields of the plan: `--fix tp=8,recompute=none`."),
]
Framework = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="Trainer: megatron, torchtitan, nemo, maxtext, ...; with a release after @: nemo@26.06. "
        "[default: --write's, else megatron]",
    ),
]
Optimizer = Annotated[str, typer.Option("--optimizer", metavar="adam|sgd|muon", help="Whose states are held.")]
ContextParallel = Annotated[
    str,
    typer.Option(
        "--context-parallel", metavar="ring|all_to_all|all_gather", help="Communication scheme of context parallelism."
    ),
]
RoutingSkew = Annotated[
    float, typer.Option("--routing-skew", help="Tokens of the busiest expert relative to the mean.")
]
Tokens = Annotated[str, typer.Option("--tokens", metavar="N", help="Token budget for the cost: 1T, 300B, 1.5e12.")]
Top = Annotated[int, typer.Option("--top", metavar="N", parser=c.whole_number, help="How many plans to show.")]
Write = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        "--write",
        metavar="TRAINER DIR",
        help="Write the best plan's launch files: megatron, torchtitan, deepspeed or accelerate, and a folder.",
    ),
]
TrainerVersion = Annotated[
    str,
    typer.Option(
        "--trainer-version",
        metavar="VERSION",
        help="With --write: the trainer's version (default: its newest). torchtitan before 0.3 gets a TOML.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Let --write overwrite different files.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", callback=c.writable, help="Write one step as a trace for https://ui.perfetto.dev."
    ),
]
Launch = Annotated[
    Path | None,
    typer.Option(
        "--launch", metavar="FILE", help="Price and lint an existing launch instead: Megatron script, torchtitan TOML."
    ),
]
Allow = Annotated[
    list[str] | None, typer.Option("--allow", metavar="RULE", help="With --launch: skip a rule. May be repeated.")
]
FailOn = Annotated[
    str,
    typer.Option(
        "--fail-on", metavar="error|warn|info|never", help="With --launch: exit with 1 at this grade or above."
    ),
]
