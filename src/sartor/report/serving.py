"""``sartor serving`` for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sartor.answers.field import columns_of
from sartor.answers.serving import LOAD
from sartor.report.document import bullets_block, document_text, grid_block, opening, section
from sartor.report.grid import field_grid
from sartor.report.words import count_text, interval_text
from sartor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.serving import ServingAnswer
    from sartor.step.serving.served import Server, Shortage


def serving_view(answer: ServingAnswer) -> RenderableType:
    """Whether it fits, how fast it is under the largest load and why; one line per load, and the assumptions."""
    tokens = f"{count_text(int(answer.load.input_len), 'token')} in, {int(answer.load.output_len):,} out"
    served = f"{answer.reading.shape.name or 'model'} served on {_devices(answer)}, {tokens}"
    if not answer.fits:
        wider = ", ".join(f"{name}={value}" for name, value in answer.would_fit.items())
        lacks = " ".join(_lacks(answer, lack) for lack in answer.shortages)
        blocks = [opening([served, lacks + (f" It would with {wider}." if wider else "")], bad=True)]
    else:
        several = int(answer.load.output_len) > 1
        columns = [column for column in columns_of(LOAD) if several or not column.name.startswith("tpot")]
        most = count_text(answer.most_sequences, "sequence")
        first = f"{served}: fits; at most {most} in memory, each halfway through its answer."
        blocks = [opening([first, *_speed(answer)]), section("Loads")]
        blocks += [grid_block(field_grid("Loads", columns, answer.loads))]
    return document_text([*blocks, bullets_block("Assumed", answer.assumptions)])


def _lacks(answer: ServingAnswer, lack: Shortage) -> str:
    pool = f" on the servers for {answer.pool_of(lack)}" if answer.prefill else ""
    if lack.free_bytes <= 0:
        weights, room = (
            format_bytes(n) for n in (lack.weight_bytes, lack.server.memory_share * lack.server.gpu.hbm_bytes)
        )
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


def _speed(answer: ServingAnswer) -> list[str]:
    """Latencies and throughput under the largest load, and what makes up its time per token beside the smallest."""
    least, last = answer.loads[0], answer.loads[-1]
    first = interval_text(last.ttft_s, last.ttft_low_s, last.ttft_high_s)
    each = f", then a token in {interval_text(last.tpot_s, last.tpot_low_s, last.tpot_high_s)}"
    several, rate = int(answer.load.output_len) > 1, f"{last.output_tokens_per_s:,.0f} tokens/s in all"
    lines = [f"At {last.concurrency:,} in flight the first token takes {first}{each if several else ''}: {rate}."]
    between = 1 - last.step_s / last.tpot_s
    words = f"A step of {last.concurrency:,} takes {format_seconds(last.step_s)}"
    if answer.prefill is None and math.isfinite(between) and between > 0:
        words += f"; prompts of other requests between two tokens are {between:.0%} of the time per token"
    if least is not last and several:
        words += f". With {least.concurrency:,} in flight a token takes {format_seconds(least.tpot_s)}"
    return [*lines, f"{words}."]
