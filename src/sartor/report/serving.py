"""``sartor serving`` for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from sartor.answers.field import columns_of
from sartor.answers.serving import LOAD
from sartor.report.table_estimate import notes, plain_table
from sartor.report.words import count_text, printable
from sartor.step.serving.served import MEMORY_SHARE
from sartor.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from sartor.answers.field import Field
    from sartor.answers.serving import ServedLoad, ServingAnswer
    from sartor.step.serving.served import Server, Shortage


def serving_view(answer: ServingAnswer) -> RenderableType:
    """The server, one line per load, and the assumptions."""
    head = Text(f"{printable(answer.reading.shape.name or 'model')} served on {_devices(answer)}", style="bold")
    head.append(
        f"  {count_text(int(answer.load.input_len), 'token')} in, {int(answer.load.output_len):,} out", style="dim"
    )
    rule = Rule(style="dim", characters="-")
    if not answer.fits:
        wider = ", ".join(f"{name}={value}" for name, value in answer.would_fit.items())
        lacks = " ".join(_lacks(answer, each) for each in answer.shortages)
        words = lacks + (f" It would with {wider}." if wider else "")
        return Group(head, rule, Text(words, style="bold red"), *notes("Assumed", answer.assumptions))
    table = plain_table(*(column.words for column in columns_of(LOAD)))
    for load in answer.loads:
        table.add_row(*(_cell(answer, load, column) for column in columns_of(LOAD)))
    return Group(head, rule, table, Text(), Text(_reason(answer)), *notes("Assumed", answer.assumptions))


def _cell(answer: ServingAnswer, load: ServedLoad, column: Field) -> str:
    if column.name == "concurrency":
        return _short(load.concurrency) + (f" ({_short(load.waiting)} wait)" if load.waiting >= 1 else "")
    if column.name == "ttft_s":
        return _with_interval(load.ttft_s, load.ttft_low_s, load.ttft_high_s)
    if column.name == "tpot_s":
        several = int(answer.load.output_len) > 1
        return _with_interval(load.tpot_s, load.tpot_low_s, load.tpot_high_s) if several else "-"
    return column.text(load)


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


def _short(count: float) -> str:
    """A number of requests that leaves room for its line."""
    return f"{count:,.0f}" if count < 1e6 else format_count(count)


def _with_interval(time_s: float, low_s: float, high_s: float) -> str:
    return f"{_brief(time_s)} ({_brief(low_s)} to {_brief(high_s)})"


def _brief(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 1e5 else f"{seconds:.2g} s"


def _reason(answer: ServingAnswer) -> str:
    """What makes up the time per token under the largest load, and how many sequences fit."""
    last = answer.loads[-1]
    between = 1 - last.step_s / last.tpot_s
    words = f"At {last.concurrency:,} in flight a step takes {format_seconds(last.step_s)}"
    if answer.prefill is None and math.isfinite(between) and between > 0:
        words += f"; prompts of other requests between two tokens are {between:.0%} of the time per token"
    most = count_text(answer.most_sequences, "sequence")
    return f"{words}. At most {most} fit in memory, each halfway through its answer."
