"""``sartor serving`` for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sartor.answers.field import columns_of
from sartor.answers.serving import LOAD
from sartor.report.document import Block, bullets_block, document_text, grid_block
from sartor.report.grid import field_grid
from sartor.report.words import count_text
from sartor.step.serving.served import MEMORY_SHARE
from sartor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.serving import ServingAnswer
    from sartor.step.serving.served import Server, Shortage


def serving_view(answer: ServingAnswer) -> RenderableType:
    """The server, one line per load, and the assumptions."""
    tokens = f"{count_text(int(answer.load.input_len), 'token')} in, {int(answer.load.output_len):,} out"
    blocks = [*_blocks(answer), bullets_block("Assumed", answer.assumptions)]
    return document_text(blocks, f"{answer.reading.shape.name or 'model'} served on {_devices(answer)}  {tokens}")


def _blocks(answer: ServingAnswer) -> list[Block]:
    if not answer.fits:
        wider = ", ".join(f"{name}={value}" for name, value in answer.would_fit.items())
        lacks = " ".join(_lacks(answer, lack) for lack in answer.shortages)
        return [Block(words=lacks + (f" It would with {wider}." if wider else ""), style="bold red")]
    several = int(answer.load.output_len) > 1
    columns = [column for column in columns_of(LOAD) if several or not column.name.startswith("tpot")]
    return [grid_block(field_grid("Loads", columns, answer.loads)), Block(words=_reason(answer))]


def _lacks(answer: ServingAnswer, lack: Shortage) -> str:
    pool = f" on the servers for {answer.pool_of(lack)}" if answer.prefill else ""
    if lack.free_bytes <= 0:
        weights, room = (format_bytes(n) for n in (lack.weight_bytes, MEMORY_SHARE * lack.server.gpu.hbm_bytes))
        return f"Does not fit{pool}: the weights take {weights} per GPU, more than the {room} that a server fills."
    return (
        f"Does not fit{pool}: keys and values of one sequence of {count_text(lack.tokens, 'token')} take "
        f"{format_bytes(lack.sequence_bytes)} per GPU; the weights leave {format_bytes(lack.free_bytes)} free, "
        f"enough for at most {count_text(lack.most_tokens, 'token')}."
    )


def _devices(answer: ServingAnswer) -> str:
    found = _of(answer.server, answer.decode_workers if answer.prefill else 1)
    if answer.prefill:
        found = f"{_of(answer.prefill, answer.prefill_workers)} for prompts, {found} for answers"
    return f"{found}, {answer.server.dtype.value}, {answer.server.engine.name}"


def _of(server: Server, workers: int) -> str:
    widths = [
        f"tp={server.tp}",
        *([f"copies={server.copies}"] * (server.copies > 1)),
        *([f"ep={server.ep}"] * (server.ep > 1)),
    ]
    count = f"{workers} x " if workers > 1 else ""
    return f"{count}{server.num_devices} {server.gpu.name} ({', '.join(widths)})"


def _reason(answer: ServingAnswer) -> str:
    """What makes up the time per token under the largest load, and how many sequences fit."""
    last = answer.loads[-1]
    between = 1 - last.step_s / last.tpot_s
    words = f"At {last.concurrency:,} in flight a step takes {format_seconds(last.step_s)}"
    if answer.prefill is None and math.isfinite(between) and between > 0:
        words += f"; prompts of other requests between two tokens are {between:.0%} of the time per token"
    most = count_text(answer.most_sequences, "sequence")
    return f"{words}. At most {most} fit in memory, each halfway through its answer."
