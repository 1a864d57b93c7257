"""``sartor measure parity``: do two shapes of the same size learn equally well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError


def parity(
    device: o.Device = "",
    heads: Annotated[str, typer.Option(metavar="A,B", help="Heads of the two shapes.")] = "",
    ffn: Annotated[
        str, typer.Option(metavar="A,B", help="Feed-forward widths of the two shapes. [default: 4 x hidden-size]")
    ] = "",
    hidden_size: Annotated[
        int | None, typer.Option(metavar="H", min=8, help="[default: 128 on cpu, else 512]", show_default=False)
    ] = None,
    num_layers: Annotated[int | None, typer.Option(metavar="L", min=1, help="[default: 2 on cpu, else 8]")] = None,
    seq_len: o.ParitySeqLen = None,
    batch: o.ParityBatch = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=8, help="[default: 300 on cpu, else 2000]")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each shape.")] = 3,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training text; bytes are the tokens. [default: generated text]")
    ] = None,
    threads: o.Threads = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Train small proxies of two shapes on the same tokens with several seeds, and compare their losses.

    Example: `sartor measure parity --device cpu --heads 8,4 --seeds 3`
    """
    from sartor.bench.parity import compare_shapes, made_text, parity_body, proxies
    from sartor.bench.torch_device import import_torch, open_device
    from sartor.bench.torch_stack import TrainRun, trainer

    torch = import_torch()
    found_on = open_device(device, threads=threads)
    large = found_on.facts.backend != "cpu"
    width = hidden_size or (512 if large else 128)
    first, second = proxies(
        hidden_size=width,
        num_layers=num_layers or (8 if large else 2),
        num_heads=_two("--heads", heads or f"{width // 16},{width // 32}"),
        ffn=_two("--ffn", ffn or f"{4 * width},{4 * width}"),
        seq_len=seq_len or (512 if large else 64),
        batch=batch or (32 if large else 8),
    )
    recipe = TrainRun(steps=steps or (2000 if large else 300))
    data = _read(text) if text else made_text(8_000_000 if large else 400_000)
    train = trainer(torch, found_on.name, data, recipe, _told())
    compared = compare_shapes(first, second, range(seeds), train)
    tokens = recipe.steps * first.batch * first.seq_len
    body = {"parity": parity_body(compared, tokens, found_on.facts.device)}
    c.answer("measure", body, as_json=json, out=out)
    if not json:
        from sartor.report.accuracy_document import parity_view

        c.show(parity_view(body))


def _two(field: str, text: str) -> tuple[int, int]:
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        raise InputError(field, text, "must be two whole numbers with a comma, one of each shape", "8,4")
    return int(words[0]), int(words[1])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError("--text", str(path), f"must be a file that can be read ({error.strerror})") from None


def _told() -> Callable[[str, int, int], Any]:
    """Print progress on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        return lambda *_: None
    return lambda name, step, total: print(f"\r{name}: {step} of {total} steps ", end="", file=sys.stderr, flush=True)
