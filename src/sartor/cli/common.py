"""Options, console and output shared by all commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sartor.errors import InputError, visible
from sartor.interrupts import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from sartor.json_types import JsonDict


class Exit(Exception):
    """Exit with this code, after everything was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def whole_number(text: str) -> int:
    """An integer from the command line."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} must be a whole number") from None


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Path to a Hugging Face config.json or its folder, a file from `sartor extract`, a zoo name "
        "(`sartor catalog models`), or org/name.",
        show_default=False,
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="Paths to Hugging Face config.json files or their folders, zoo names, or org/name.",
        show_default=False,
    ),
]
GpuName = Annotated[
    str,
    typer.Option("--gpu", metavar="GPU", help="A name from `sartor catalog gpus`, or a TOML file.", show_default=False),
]
GpuOfPlan = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="A name from `sartor catalog gpus`, or a TOML file. [default: the cluster's, else h100]",
        show_default=False,
    ),
]
ClusterOfPlan = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="In training: a name from `sartor catalog clusters`, or a TOML file. [default: the GPU's usual one]",
    ),
]
NumDevices = Annotated[
    int | None,
    typer.Option(
        "--num-devices",
        metavar="N",
        parser=whole_number,
        help="In training: devices of the whole plan, with --global-batch-size. [default: 64 replicas]",
    ),
]
Pp = Annotated[int, typer.Option("--pp", metavar="N", parser=whole_number, help="Pipeline-parallel stages.")]
Cp = Annotated[int, typer.Option("--cp", metavar="N", parser=whole_number, help="Context-parallel devices.")]
Ep = Annotated[int, typer.Option("--ep", metavar="N", parser=whole_number, help="Expert-parallel devices.")]
ZeroStage = Annotated[
    int | None,
    typer.Option(
        "--zero-stage",
        metavar="0|1|2|3",
        parser=whole_number,
        help="What data-parallel replicas share: optimizer states, gradients, weights. [default: 1]",
    ),
]
VirtualStages = Annotated[
    int | None,
    typer.Option(
        "--virtual-stages", metavar="N", parser=whole_number, help="Interleaved chunks per stage. [default: 1]"
    ),
]
Recompute = Annotated[
    str | None,
    typer.Option("--recompute", metavar="none|selective|full", help="What backward computes again. [default: none]"),
]
Framework = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="Trainer: megatron, torchtitan, nemo, maxtext, ...; its release after an @: nemo@26.06. "
        "[default: megatron]",
    ),
]
PhaseName = Annotated[str, typer.Option("--phase", metavar="train|prefill|decode", help="What the model is doing.")]
SeqLen = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        metavar="N",
        parser=whole_number,
        help="Tokens per sequence. [default: 4096, or the model's maximum]",
    ),
]
ContextLen = Annotated[
    int | None,
    typer.Option(
        "--context-len",
        metavar="N",
        parser=whole_number,
        help="Tokens already in the KV cache. [default: decode 4096, else 0]",
    ),
]
Microbatch = Annotated[
    int | None,
    typer.Option(
        "--microbatch-size",
        metavar="N",
        parser=whole_number,
        help="Sequences per microbatch. [default: train 8192 tokens, prefill 1, decode 8]",
    ),
]
Tp = Annotated[int, typer.Option("--tp", metavar="N", parser=whole_number, help="Tensor-parallel devices.")]
DTypeName = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Data type of the matrix multiplications: bf16, fp16, fp8, nvfp4, ... [default: bf16 if the"
        " device has it]",
    ),
]
AttentionName = Annotated[
    str, typer.Option("--attention", metavar="flash|unfused", help="Attention as one fused kernel, or as three.")
]
SetField = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change the shape: `--set num_heads=20`. May be repeated."),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option("--global-batch-size", metavar="B", parser=whole_number, help="Sequences per step over all devices."),
]


def writable(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """Refuse a file that cannot be written before anything is computed (`sartor.files.check_writable`)."""
    if value is not None:
        from sartor.files import check_writable

        check_writable(value, field=param.opts[0])
    return value


def writable_folder(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """The same for a folder that files are written into."""
    if value is not None:
        from sartor.files import check_writable

        if value.exists() and not value.is_dir():
            raise InputError(param.opts[0], str(value), "is a file; name a folder", str(value.with_suffix("")))
        check_writable(value / "figure.png", field=param.opts[0])
    return value


HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", callback=writable, help="Write one offline page with figures (extra `report`)."
    ),
]
PngFolder = Annotated[
    Path | None,
    typer.Option("--png", metavar="DIR", callback=writable_folder, help="Write each figure as a PNG (extra `report`)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
OutFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", callback=writable, help="Write the JSON to a file as well."),
]


CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Calibration file from `sartor calibrate` for this device."),
]


def parse_sets(words: list[str] | None) -> dict[str, str]:
    """``["num_heads=20"]`` -> ``{"num_heads": "20"}``."""
    out: dict[str, str] = {}
    for word in words or ():
        name, sign, value = word.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError("--set", word, "must read FIELD=VALUE", "--set num_heads=32")
        out[name.strip()] = value.strip()
    return out


def answer(command: str, body: JsonDict, *, as_json: bool, out: Path | None) -> None:
    """Write a command's JSON: to stdout with ``--json``, to a file with ``--out``."""
    if not (as_json or out):
        return
    text = to_json(command, body)
    if out:
        from sartor.files import write_atomic

        write_atomic(out, text.encode(), field="--out")
    if as_json:
        with patient():  # one object, whole
            sys.stdout.write(text)
            sys.stdout.flush()


def to_json(command: str, body: JsonDict) -> str:
    """The contract's envelope: schema and version first, SI numbers, no NaN or Infinity, same bytes every time."""
    from sartor import __version__

    envelope = {"schema": f"sartor/{command}/1", "version": __version__, **body}
    return json.dumps(envelope, indent=2, allow_nan=False, ensure_ascii=True, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} does not belong in JSON")


def complain(error: InputError, command: str) -> None:
    """One sentence on stderr."""
    say(" ".join(f"sartor: {error}".split("\n")))


def complain_json(error: InputError, command: str) -> None:
    """The error object on stdout."""
    sys.stdout.write(to_json(command if command.isidentifier() else "sartor", {"error": error.to_dict()}))


def console() -> Console:
    """The terminal, at most ``WIDEST`` columns of it, or as many as ``COLUMNS`` says; plain text where it is none. What
    a file or a name says is shown, not obeyed: neither markup nor control characters."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        """Escapes at the one place where all text passes; the styles of sartor's own come after."""

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or visible(segment.text) == segment.text:
                    yield segment
                else:
                    yield Segment(visible(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1

    probe = Console()
    told = os.environ.get("COLUMNS", "").isdecimal() or probe.is_terminal
    width = max(NARROWEST, min(probe.width, WIDEST)) if told else USUAL
    return Plain(width=width, soft_wrap=False, highlight=False, markup=False, emoji=False)


NARROWEST, USUAL, WIDEST = 40, 100, 140
"""Columns of printed text."""


def say(text: str) -> None:
    """A note on stderr."""
    print(visible(text), file=sys.stderr)


def show(renderable: Any) -> None:
    """Print for people."""
    console().print(renderable)
