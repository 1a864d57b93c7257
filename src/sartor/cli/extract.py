"""``sartor extract``, ``catalog`` and ``schema``: the operator graph of any PyTorch model; known devices, models,
clusters, rules and spaces, with sources; the JSON schema of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from json import dumps
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError


def extract(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE_OR_MODEL",
            help="package.module:factory or file.py:factory; a config.json, zoo name, model type or org/name.",
            show_default=False,
        ),
    ],
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=SHAPE:DTYPE", help="Input of a factory's module: `--input x=8x1024:bfloat16`."
        ),
    ] = None,
    batch_axis: Annotated[
        int, typer.Option(metavar="0|1", help="Axis of sequences in a factory's first input: 1 if tokens come first.")
    ] = 0,
    phase: o.TracedPhase = "train",
    seq_len: o.TracedSeqLen = None,
    microbatch_size: o.TracedMicrobatchSize = None,
    dtype: o.TracedDType = None,
    architecture: Annotated[
        str, typer.Option(metavar="CLASS", help="transformers class to build, if not the config's own.")
    ] = "",
    eager: o.Eager = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Trace the operators of any PyTorch module, forward and backward, without weights (extra `torch`).

    `sartor estimate`, `plan` and `design` accept the `--out` file instead of a config.json.

    Example: `sartor extract llama-3.1-70b --out llama.json`

    Example: `sartor estimate llama.json --gpu h100`
    """
    from sartor.read.extract import extract as trace
    from sartor.read.graph_json import graph_body

    with _guest(model):
        found = trace(
            model, inputs=input_ or (), batch_axis=batch_axis, phase=phase, seq_len=seq_len, dtype=dtype, eager=eager,
            microbatch_size=microbatch_size, architecture=architecture,
        )  # fmt: skip
    body = graph_body(found)
    c.answer("extract", body, as_json=json, out=out)
    if out is not None:
        c.say(f"wrote {out}: {len(found.graph.operators)} operators of {len(found.layers)} kinds of layers")
    if not json:
        from sartor.report.table_operators import extract_view

        c.show(extract_view(found, body))


@contextmanager
def _guest(name: str) -> Iterator[None]:
    """Run a user's own code: its output goes to stderr, and an exit in it does not end sartor."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)  # for output of non-Python code
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SystemExit as end:
        must = f"must be a module that can be called, and it ends the program ({end!r})"
        raise InputError("MODULE_OR_MODEL", name, must) from None
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def catalog(
    what: Annotated[
        str, typer.Argument(metavar="gpus|models|clusters|rules|accelerators|spaces", help="Which catalogue.")
    ],
    name: Annotated[str | None, typer.Argument(help="Show one entry with all fields and sources.")] = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """List GPUs, models, clusters, rules, accelerator templates and design spaces, with sources.

    Example: `sartor catalog gpus h100`
    """
    from sartor.api.models import catalog_entries

    entries = catalog_entries(what, name)
    c.answer("catalog", {"catalog": what, "entries": entries}, as_json=json, out=out)
    if not json:
        from sartor.report.table_operators import catalog_view

        c.show(catalog_view(what, entries, whole=name is not None))


def schema(command: Annotated[str, typer.Argument(metavar="COMMAND", help="The command, such as plan.")] = "") -> None:
    """Print the JSON schema (draft 2020-12) that a command's `--json` validates against; without COMMAND, which
    commands have one.

    Example: `sartor schema plan`
    """
    from sartor.answers.commands import COMMANDS, command_schema

    print(dumps(command_schema(command), indent=2) if command else "\n".join(COMMANDS))
