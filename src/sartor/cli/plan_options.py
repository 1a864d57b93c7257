"""Options of ``sartor plan`` only."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import options as o

Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="AXIS=VALUE,...", help="Fix fields of the plan: `--fix tp=8,recompute=none`."),
]
WhyNot = Annotated[
    list[str] | None,
    typer.Option(
        "--why-not",
        metavar="AXIS=VALUE,...",
        help="Compare a plan with the best, term by term, or the nearest that can run: `--why-not tp=8,pp=2`.",
    ),
]
Simple = Annotated[bool, typer.Option("--simple", help="Only data and tensor parallelism: pp=1, cp=1, ep=1.")]
Tokens = Annotated[str, typer.Option("--tokens", metavar="N", help="Token budget for the cost: 1T, 300B, 1.5e12.")]
Write = Annotated[
    tuple[str, Path] | None,
    o.WRITE(
        metavar="TRAINER DIR",
        help="Write the best plan's launch files: megatron, megatron-bridge, torchtitan, deepspeed "
        "or accelerate, and a folder.",
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
LAUNCH = partial(typer.Option, "--launch", metavar="FILE")
Launch = Annotated[
    Path | None, LAUNCH(help="Price and lint an existing launch instead: Megatron script, torchtitan TOML.")
]
LaunchOfRun = Annotated[
    Path | None,
    LAUNCH(help="Launch file of the run, if its log does not contain the plan: Megatron script, torchtitan TOML."),
]
